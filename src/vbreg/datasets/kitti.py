"""KITTI is read here: the odometry drives themselves, or pairs that were cut out of them.

Pairs of the drives are those of the literature (FCGF's rule, after 3DFeat-Net): with frame a goes
the last frame before the car is more than 10 m away, and the next pair begins one frame later. Of
the test drives 8 to 10 these are 555, one with a wrong pose left out.

The official poses come from GPS and inertial sensors and are off by decimetres between two frames;
the literature refines them by ICP on the two scans, which `refine` does here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from vbreg.datasets.icp import refine_pose
from vbreg.datasets.pairs import Pair, PairEntry, PairSequence
from vbreg.datasets.poses import inverse_pose
from vbreg.datasets.reading import (
    must_exist,
    read_points,
    read_poses,
    take_arrays,
    unrecognised_layout,
)
from vbreg.errors import FileFormatError, VBRegError
from vbreg.io import described_pair, natural_key, read_arrays
from vbreg.types import Float64

Split = Literal["train", "val", "test"]

DRIVES: dict[Split, tuple[int, ...]] = {
    "train": (0, 1, 2, 3, 4, 5),
    "val": (6, 7),
    "test": (8, 9, 10),
}
# The ground truth of this pair fails, and so the literature drops it.
PAIRS_WITH_WRONG_TRUTH = {(8, 15, 58)}
MAX_FRAMES_AHEAD = 100  # within which the other end of a pair is looked for
_FILES = "drive*-pair*_*.npz"
_DESCRIPTORS = ("fcgf", "fpfh")
_LAYOUTS = (
    "odometry: sequences/<ss>/velodyne/<nnnnnn>.bin with sequences/<ss>/calib.txt and "
    "poses/<ss>.txt, here or in dataset/",
    "PointDSC: fcgf_{0}/drive<d>-pair<a>_<b>.npz, or fpfh_{0}/",
    "pair files: drive<d>-pair<a>_<b>.npz (xyz0, xyz1, gt_trans), here or one folder deeper",
)


def kitti(
    root: str | Path,
    split: Split = "test",
    descriptor: str | None = None,
    *,
    drives: Sequence[int] | None = None,
    distance: float = 10.0,
    refine: bool = False,
) -> PairSequence:
    """Return pairs about 10 m apart, in whichever layout `root` has.

    `split` chooses the drives (`DRIVES`) or PointDSC's folder; plain pair files have none, so all
    of them are given, a sub folder being a scene. `drives`, `distance` and `refine` (a second a
    pair, each time it is read) are for the odometry drives. With `descriptor` the clouds are the
    described points, with those descriptors.
    """
    if split not in get_args(Split):
        raise VBRegError(f"no split {split!r} of KITTI; choose from {get_args(Split)}")
    root = must_exist(Path(root), "the root of KITTI")
    odometry = next((b for b in (root, root / "dataset") if (b / "sequences").is_dir()), None)
    if odometry and descriptor is None:
        chosen = DRIVES[split] if drives is None else drives
        return PairSequence(e for d in chosen for e in _drive(odometry, d, distance, refine))
    if drives is not None or refine:
        raise VBRegError(f"drives and refine are for odometry drives; no sequences/ in {root}")
    files = _pair_files(root, split, descriptor)
    entries = [_file_entry(path, scene, descriptor) for path, scene in files]
    if not entries:
        found = f"no pairs with the descriptor {descriptor}" if descriptor else "no scans"
        raise unrecognised_layout("KITTI", root, found, (text.format(split) for text in _LAYOUTS))
    return PairSequence(entries)


# --- odometry drives ------------------------------------------------------------------------------


def choose_frames(
    positions: Float64, present: Collection[int], distance: float = 10.0
) -> list[tuple[int, int]]:
    """Choose frames (a, b): b is the last before the car is more than `distance` from a.

    `positions` (F, 3) are those of the car; frames that are not `present` are left out.
    """
    pairs: list[tuple[int, int]] = []
    a = 0
    while a < len(positions):
        far = np.linalg.norm(positions[a : a + MAX_FRAMES_AHEAD] - positions[a], axis=-1) > distance
        b = a + int(far.argmax()) - 1  # before a where nothing is far
        if a in present and b in present and b > a:
            pairs.append((a, b))
            a = b
        a += 1
    return pairs


def _drive(base: Path, drive: int, distance: float, refine: bool) -> Iterator[PairEntry]:
    """Yield the pairs of one drive."""
    scene = f"{drive:02d}"
    scans = must_exist(base / "sequences" / scene / "velodyne", "the scans of a drive")
    T_camera_lidar = _read_calibration(base / "sequences" / scene / "calib.txt")
    T_world_camera = read_poses(base / "poses" / f"{scene}.txt")
    T_world_lidar = T_world_camera @ T_camera_lidar
    present = {int(path.stem) for path in scans.glob("*.bin") if path.stem.isdecimal()}
    for a, b in choose_frames(T_world_camera[:, :3, 3], present, distance):
        if (drive, a, b) not in PAIRS_WITH_WRONG_TRUTH:
            T_b_a = inverse_pose(T_world_lidar[b]) @ T_world_lidar[a]
            load = partial(_load_scans, scans, scene, a, b, T_b_a, refine)
            yield PairEntry(f"{scene}/{a}-{b}", scene, load)


def _load_scans(folder: Path, scene: str, a: int, b: int, T_b_a: Float64, refine: bool) -> Pair:
    """Read the two scans of a pair, and refine its pose where that is asked for."""
    source, target = (read_points(folder / f"{frame:06d}.bin") for frame in (a, b))
    T = refine_pose(source, target, T_b_a) if refine else T_b_a
    return Pair(f"{scene}/{a}-{b}", source, target, T, scene=scene, ids=(a, b))


def _read_calibration(path: Path) -> Float64:
    """Read T_camera_lidar (4, 4)."""
    text = must_exist(path, "the calibration of a drive").read_text(encoding="utf-8")
    line = re.search(r"^Tr(?:_velo_to_cam)?:(.*)$", text, re.MULTILINE)
    values = line[1].split() if line else []
    if len(values) != 12:
        raise FileFormatError(f"{path.absolute()}: expected a line Tr: and twelve numbers")
    T = np.eye(4)
    T[:3] = np.array(values, dtype=np.float64).reshape(3, 4)
    return T


# --- pair files -----------------------------------------------------------------------------------


def _pair_files(root: Path, split: str, descriptor: str | None) -> Iterator[tuple[Path, str]]:
    """Yield files and their scene, from PointDSC's folder, else `root`, else its sub folders.

    PointDSC puts the drives of a split into one folder, so there the drive is the scene; a sub
    folder, or `root` with a record of how its pairs were made, is a scene of its own.
    """
    names = _DESCRIPTORS if descriptor is None else (descriptor,)
    for folder in (*(root / f"{name}_{split}" for name in names), root):
        if files := _in_natural_order(folder.glob(_FILES)):
            scene = folder.resolve().name if (folder / "pairs.csv").exists() else None
            yield from ((file, scene or f"{_frames(file)[0]:02d}") for file in files)
            return
    for file in _in_natural_order(root.glob(f"*/{_FILES}")):
        if not re.search(r"_(train|val|test)$", file.parent.name):
            yield file, file.parent.name


def _in_natural_order(files: Iterable[Path]) -> list[Path]:
    """Sort files by the numbers in their names."""
    return sorted(files, key=lambda path: (natural_key(path.parent.name), natural_key(path.name)))


def _frames(file: Path) -> tuple[int, int, int]:
    """Read d, a and b from the name drive<d>-pair<a>_<b>.npz."""
    found = re.fullmatch(r"drive(\d+)-pair(\d+)_(\d+)", file.stem)
    if found is None:
        raise FileFormatError(f"{file.absolute()}: expected the name drive<d>-pair<a>_<b>.npz")
    drive, a, b = map(int, found.groups())
    return drive, a, b


def _file_entry(path: Path, scene: str, descriptor: str | None) -> PairEntry:
    """Return the entry of one pair file."""
    _, a, b = _frames(path)
    load = partial(_load_file, path, scene, a, b, descriptor is not None)
    return PairEntry(f"{scene}/{a}-{b}", scene, load)


def _load_file(path: Path, scene: str, a: int, b: int, described: bool) -> Pair:
    """Read a pair file, with its descriptors where they are asked for."""
    held = read_arrays(must_exist(path, "a pair"))
    xyz0, xyz1, T = (
        m.astype(np.float64) for m in take_arrays(path, held, "xyz0", "xyz1", "gt_trans")
    )
    features = None
    if described:
        take_arrays(path, held, "features0", "features1")
        ends = described_pair(path, held)
        features = ends[0].features, ends[1].features
    name = f"{scene}/{a}-{b}"
    return Pair(name, xyz0, xyz1, T, scene=scene, ids=(a, b), descriptors=features)
