"""3DMatch and 3DLoMatch are read here in the layouts that other projects unpack them to.

Fragments and ground truth are looked for apart from each other, since people mix them: PointDSC's
fragments with Predator's list of 3DLoMatch, for one. In every layout a pair is named
`<scene>/<i>-<j>` with i < j, its source is fragment i and its target is j, as the paper has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from vbreg.datasets.pairs import Pair, PairEntry, PairSequence
from vbreg.datasets.poses import inverse_pose, pose_matrix
from vbreg.datasets.reading import (
    must_exist,
    read_described,
    read_points,
    take_arrays,
    unrecognised_layout,
)
from vbreg.errors import FileFormatError, VBRegError
from vbreg.io import described_pair, read_arrays, read_pickle
from vbreg.types import Float32, Float64

Benchmark = Literal["3DMatch", "3DLoMatch"]

_FRAGMENTS = ("fragments", ".", "data/indoor/test", "indoor/test", "test", "data/test")
_ENDINGS = (".npz", ".ply", ".pth")
_LOGS = ("benchmarks", "configs/benchmarks", "metadata/benchmarks")
_PICKLES = (".", "configs/indoor", "metadata")
_LAYOUTS = (
    "vbreg: fragments/<scene>/cloud_bin_<k>.npz with benchmarks/{0}/<scene>/gt.log",
    "PointDSC, VBReg, SC2-PCR: fragments/<scene>/cloud_bin_<k>.ply, or cloud_bin_<k>_fcgf.npz for "
    "the descriptor fcgf, with (3DMatch only) gt_result/<scene>-evaluation/gt.log",
    "3DMatch's archives: <scene>/cloud_bin_<k>.ply with (3DMatch only) <scene>-evaluation/gt.log",
    "Predator: data/indoor/test/<scene>/cloud_bin_<k>.pth (or indoor/test/, test/, or just "
    "<scene>/) with {0}.pkl, configs/indoor/{0}.pkl or configs/benchmarks/{0}/<scene>/gt.log",
    "GeoTransformer: data/test/<scene>/cloud_bin_<k>.pth with metadata/{0}.pkl",
    "Predator's features: <n>.pth or {0}/<n>.pth with pcd, feats, len_src, rot, trans",
)


@dataclass(frozen=True, eq=False)
class Truth:
    """This is a row of a benchmark: two fragments, and the pose from the first to the second."""

    scene: str
    i: int
    j: int
    T_j_i: Float64
    overlap: float | None = None
    information: Float64 | None = None

    @property
    def name(self) -> str:
        """Return the name that the pair has in every layout."""
        return f"{self.scene}/{self.i}-{self.j}"

    def pair(
        self,
        source: Float64,
        target: Float64,
        descriptors: tuple[Float32, Float32] | None = None,
        scores: tuple[Float32, Float32] | None = None,
    ) -> Pair:
        """Join the clouds with what the row knows of them."""
        return Pair(
            self.name,
            source,
            target,
            self.T_j_i,
            overlap=self.overlap,
            scene=self.scene,
            ids=(self.i, self.j),
            descriptors=descriptors,
            scores=scores,
            information=self.information,
        )


def threedmatch(
    root: str | Path, benchmark: Benchmark = "3DMatch", descriptor: str | None = None
) -> PairSequence:
    """Return all pairs that the lists of a benchmark name, in whichever layout `root` has.

    With `descriptor` the clouds are the described points: "fcgf" or "fpfh" reads PointDSC's
    `cloud_bin_<k>_<descriptor>.npz`, "predator" the `<n>.pth` that Predator's test leaves behind
    (they are taken without asking, too, where there are no fragments).
    """
    if benchmark not in get_args(Benchmark):
        raise VBRegError(f"no benchmark {benchmark!r}; choose from {get_args(Benchmark)}")
    root = must_exist(Path(root), f"the root of {benchmark}")
    fragments = _first_folder(root, _FRAGMENTS, "*/cloud_bin_*")
    truth = _truth(root, fragments, benchmark)
    features = _feature_files(root, benchmark)
    if features and (descriptor == "predator" or not (fragments or descriptor)):
        return PairSequence(_feature_entries(features, truth, benchmark))
    if fragments is None or not truth or descriptor == "predator":
        found = f"fragments: {fragments or 'none'}, ground truth: {len(truth)} pairs"
        raise unrecognised_layout(
            benchmark, root, found, (text.format(benchmark) for text in _LAYOUTS)
        )
    return PairSequence(
        PairEntry(row.name, row.scene, partial(_load, fragments / row.scene, row, descriptor))
        for row in truth
    )


def threedmatch_training(root: str | Path, min_overlap: float = 0.30) -> PairSequence:
    """Return FCGF's training set: the pairs of `*-<min_overlap>.txt` in `<scene>@<seq>_<id>.npz`.

    The clouds of a sequence lie in one frame already, so every pose is the identity.
    """
    root = must_exist(Path(root), "the root of FCGF's training set")
    ending = f"-{min_overlap:.2f}.txt"
    folder = _first_folder(root, (".", "threedmatch"), f"*{ending}")
    if folder is None:
        layout = f"FCGF: <scene>@<seq>_<id>.npz with <scene>@<seq>{ending}, here or in threedmatch/"
        raise unrecognised_layout("FCGF training set", root, f"no *{ending}", [layout])
    return PairSequence(
        entry for file in sorted(folder.glob(f"*{ending}")) for entry in _training_entries(file)
    )


def read_log(path: Path, size: int = 4) -> list[tuple[int, int, Float64]]:
    """Read `i j n` and the rows of a matrix, pair after pair, of gt.log (size 4) or gt.info (6).

    The pose in a gt.log maps fragment j into fragment i.
    """
    words = must_exist(path, "the ground truth").read_text(encoding="utf-8").split()
    each = 3 + size**2
    try:
        rows = np.array(words, dtype=np.float64).reshape(-1, each)
    except ValueError as error:
        raise FileFormatError(
            f"{path.absolute()}: {len(words)} words, expected {each} numbers a pair ({error})"
        ) from error
    return [(int(row[0]), int(row[1]), row[3:].reshape(size, size)) for row in rows]


# --- fragments ------------------------------------------------------------------------------------


def _first_folder(root: Path, folders: Sequence[str], pattern: str) -> Path | None:
    """Return the first of the folders that holds a file of this pattern."""
    candidates = (root / folder for folder in folders)
    return next((path for path in candidates if next(path.glob(pattern), None)), None)


def _load(folder: Path, row: Truth, descriptor: str | None) -> Pair:
    """Read the two fragments of a pair, or their described points."""
    if descriptor is None:
        source, target = (read_points(_fragment(folder, k)) for k in (row.i, row.j))
        return row.pair(source, target)
    a, b = (read_described(folder / f"cloud_bin_{k}_{descriptor}.npz") for k in (row.i, row.j))
    return row.pair(a.points, b.points, (a.features, b.features))


def _fragment(folder: Path, k: int) -> Path:
    """Return the file of fragment k, in whichever format it is there."""
    paths = [folder / f"cloud_bin_{k}{ending}" for ending in _ENDINGS]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise FileFormatError(
            f"a fragment not found: looked for {paths[0].absolute()}, and for it with "
            f"{' and '.join(_ENDINGS[1:])}"
        )
    return found


# --- ground truth ---------------------------------------------------------------------------------


def _truth(root: Path, fragments: Path | None, benchmark: str) -> list[Truth]:
    """Read the ground truth, from logs if there are any, since they alone hold the information."""
    logs = _logs(root, fragments, benchmark)
    if logs:
        return [row for scene, folder in logs.items() for row in _scene_truth(scene, folder)]
    beside = (fragments, fragments.parent) if fragments else ()
    for folder in (*(root / name for name in _PICKLES), *beside):
        if (folder / f"{benchmark}.pkl").is_file():
            return list(_pickled_truth(folder / f"{benchmark}.pkl"))
    return []


def _logs(root: Path, fragments: Path | None, benchmark: str) -> dict[str, Path]:
    """Return the folder of gt.log for every scene."""
    for name in _LOGS:
        if paths := sorted((root / name / benchmark).glob("*/gt.log")):
            return {path.parent.name: path.parent for path in paths}
    if benchmark != "3DMatch":  # folders called evaluation do not say of what; they are 3DMatch's
        return {}
    for folder in (root / "gt_result", fragments or root, root):
        if paths := sorted(folder.glob("*-evaluation/gt.log")):
            return {path.parent.name.removesuffix("-evaluation"): path.parent for path in paths}
    return {}


def _scene_truth(scene: str, folder: Path) -> Iterator[Truth]:
    """Yield the ground truth of one scene from its logs."""
    overlaps = _read_overlaps(folder / "gt_overlap.log")
    info = folder / "gt.info"
    information = {(i, j): matrix for i, j, matrix in (read_log(info, 6) if info.exists() else ())}
    for i, j, T_i_j in read_log(folder / "gt.log"):
        pair = i, j
        yield Truth(scene, i, j, inverse_pose(T_i_j), overlaps.get(pair), information.get(pair))


def _read_overlaps(path: Path) -> dict[tuple[int, int], float]:
    """Read the overlap of each pair (i, j); empty where there is no list."""
    if not path.exists():  # only Predator's lists carry it
        return {}
    rows = np.loadtxt(path, delimiter=",", ndmin=2)
    return {(int(i), int(j)): float(overlap) for i, j, overlap in rows}


def _pickled_truth(path: Path) -> Iterator[Truth]:
    """Yield the ground truth of a pickle.

    Predator keeps a dict of lists (src into tgt), GeoTransformer a list of dicts (1 into 0).
    """
    held = read_pickle(path)
    try:
        for moving, fixed, R, t, overlap in _pickled_rows(held):
            yield _ordered(_place(moving), _place(fixed), pose_matrix(R, t), overlap)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(
            f"{path.absolute()}: expected lists src, tgt, rot, trans, or a list of pcd0, pcd1, "
            f"rotation, translation ({type(error).__name__}: {error})"
        ) from error


def _pickled_rows(held: Any) -> Iterator[tuple[str, str, Any, Any, float | None]]:
    """Yield moving file, fixed file, rotation, translation and overlap of either pickle."""
    if isinstance(held, Mapping):
        overlaps = held.get("overlap", [None] * len(held["src"]))
        keys = ("src", "tgt", "rot", "trans")
        yield from zip(*(held[key] for key in keys), overlaps, strict=True)
    else:
        for row in held:
            moved, to = row["pcd1"], row["pcd0"]
            yield moved, to, row["rotation"], row["translation"], row.get("overlap")


def _place(file: str) -> tuple[str, int]:
    """Read scene and k from test/<scene>/cloud_bin_<k>.pth."""
    *_, scene, name = file.replace("\\", "/").split("/")
    return scene, int(re.sub(r"\D", "", name))


def _ordered(
    moving: tuple[str, int], fixed: tuple[str, int], T_fixed_moving: Float64, overlap: float | None
) -> Truth:
    """Return the same pair from the lower fragment to the higher."""
    if moving[0] != fixed[0]:
        raise ValueError(f"a pair of two scenes, {moving[0]} and {fixed[0]}")
    share = None if overlap is None else float(overlap)
    if moving[1] < fixed[1]:
        return Truth(moving[0], moving[1], fixed[1], T_fixed_moving, share)
    return Truth(moving[0], fixed[1], moving[1], inverse_pose(T_fixed_moving), share)


# --- Predator's features --------------------------------------------------------------------------


def _feature_files(root: Path, benchmark: str) -> dict[int, Path]:
    """Return <n>.pth by n, the number of its pair in Predator's list."""
    for folder in (root / benchmark, root):
        files = [path for path in folder.glob("*.pth") if path.stem.isdecimal()]
        if files:
            return {int(path.stem): path for path in sorted(files, key=lambda p: int(p.stem))}
    return {}


def _feature_entries(
    files: Mapping[int, Path], truth: Sequence[Truth], benchmark: str
) -> Iterator[PairEntry]:
    """Yield pairs named by the list where there is one, else by their number."""
    for n, path in files.items():
        if not truth:
            yield PairEntry(
                f"{benchmark}/{n}", "", partial(_load_features, path, f"{benchmark}/{n}")
            )
        elif n < len(truth):
            row = truth[n]
            yield PairEntry(row.name, row.scene, partial(_load_listed_features, path, row))
        else:
            raise FileFormatError(
                f"{path.absolute()}: the list of {benchmark} has only {len(truth)} pairs; "
                "move the features away from it, or give them the list they were made with"
            )


def _load_features(path: Path, name: str) -> Pair:
    """Read both clouds, descriptors, scores and the pose from a file of Predator's."""
    held = read_arrays(path)
    a, b = described_pair(path, held)
    R, t = take_arrays(path, held, "rot", "trans")
    scores = None
    if {"overlaps", "saliency"} <= held.keys():
        both = (held["overlaps"] * held["saliency"]).astype(np.float32).reshape(-1)
        scores = both[: len(a)], both[len(a) :]
    features = a.features, b.features
    return Pair(name, a.points, b.points, pose_matrix(R, t), descriptors=features, scores=scores)


def _load_listed_features(path: Path, row: Truth) -> Pair:
    """Read features and order them as the list does, by comparing the poses.

    In Predator's own files fragment i is the target.
    """
    pair = _load_features(path, row.name)
    backward, forward = (
        np.allclose(T, row.T_j_i, atol=1e-3)
        for T in (inverse_pose(pair.T_target_source), pair.T_target_source)
    )
    if not (backward or forward):
        raise FileFormatError(
            f"{path.absolute()}: its pose is not that of {row.name}, pair {path.stem} of the list; "
            "the features were made with another list"
        )
    assert pair.descriptors is not None
    if forward and not backward:
        return row.pair(pair.source, pair.target, pair.descriptors, pair.scores)
    scores = pair.scores and pair.scores[::-1]
    return row.pair(pair.target, pair.source, pair.descriptors[::-1], scores)


# --- FCGF's training set --------------------------------------------------------------------------


def _training_entries(file: Path) -> Iterator[PairEntry]:
    """Yield the pairs that one list of FCGF's training set names."""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        words = line.split()
        if not words:
            continue
        ends = [re.fullmatch(r"(.+)_(\d+)\.npz", word) for word in words[:2]]
        if len(ends) < 2 or ends[0] is None or ends[1] is None:
            raise FileFormatError(
                f"{file.absolute()}, line {number}: {line!r}, expected two files "
                "<scene>@<seq>_<id>.npz and their overlap"
            )
        scene, i, j = ends[0][1], int(ends[0][2]), int(ends[1][2])
        overlap = float(words[2]) if len(words) > 2 else None
        row = Truth(scene, i, j, np.eye(4), overlap)
        yield PairEntry(
            row.name, scene, partial(_load_training, file.parent, words[0], words[1], row)
        )


def _load_training(folder: Path, source: str, target: str, row: Truth) -> Pair:
    """Read the two clouds of a training pair."""
    return row.pair(read_points(folder / source), read_points(folder / target))
