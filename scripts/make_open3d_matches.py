"""Write the matches of Open3D's FPFH for the pairs of 3DMatch and 3DLoMatch.

    python scripts/make_open3d_matches.py --root DATA/3dmatch               # needs vbreg[baselines]
    python scripts/make_open3d_matches.py --root DATA/3dmatch --output data

makes the folder `open3d_fpfh_matches` below the output, or else beside the fragments, where
`vbreg experiment` and `--descriptor matches:open3d_fpfh` look for it. These are the matches that
papers use: one point per 5 cm voxel, normals of up to 30 neighbours within two voxels, FPFH of up
to 100 within five, at length 1; each source point and its nearest target point, all of them.

The folder gets its name when all scenes are in it, so that a run that was killed leaves none.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, get_args

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from vbreg.datasets.matches import (
    INDOOR,
    stored_folder,
    stored_matches,
    write_stored_keypoints,
    write_stored_rows,
)
from vbreg.datasets.pairs import Pair, PairSequence
from vbreg.datasets.threedmatch import Benchmark, threedmatch
from vbreg.descriptors.open3d_fpfh import open3d_fpfh, open3d_voxels
from vbreg.errors import VBRegError
from vbreg.matching import match
from vbreg.types import Float64, Int64

NAME = "open3d_fpfh"
BENCHMARKS: tuple[Benchmark, ...] = get_args(Benchmark)


class Fragment(NamedTuple):
    """A fragment as it is matched."""

    keypoints: Tensor  # (N, 3)
    features: Tensor  # (N, 33)


class Scene:
    """The fragments of a scene, each described once."""

    def __init__(self) -> None:
        self.fragments: dict[int, Fragment] = {}

    def rows(self, pair: Pair) -> Int64:
        """For every keypoint of the source its nearest in the target."""
        source, target = self._fragment(pair, 0), self._fragment(pair, 1)
        return match(source.features, target.features)[1].numpy()

    def keypoints(self) -> dict[int, Float64]:
        return {k: self.fragments[k].keypoints.numpy() for k in sorted(self.fragments)}

    def _fragment(self, pair: Pair, end: int) -> Fragment:
        k = ids_of(pair)[end]
        if k not in self.fragments:
            points = torch.from_numpy(np.array((pair.source, pair.target)[end], dtype=np.float64))
            keypoints = open3d_voxels(points, INDOOR)
            self.fragments[k] = Fragment(keypoints, open3d_fpfh(keypoints, INDOOR))
        return self.fragments[k]


def ids_of(pair: Pair) -> tuple[int, int]:
    if pair.ids is None:
        raise VBRegError(f"{pair.name}: its fragments have no numbers; give a root with fragments")
    return pair.ids


def write_matches(root: Path, output: Path) -> dict[str, float]:
    """Write all scenes or none, and return the mean share of right matches of each benchmark."""
    sequences = {benchmark: threedmatch(root, benchmark) for benchmark in BENCHMARKS}
    folder = stored_folder(output, NAME)
    if folder.exists():
        raise VBRegError(f"{folder} exists: delete it to make it anew, or give another --output")
    output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=output) as name:
        unfinished = Path(name)
        stored_folder(unfinished, NAME).mkdir()
        ratios = write_scenes(sequences, unfinished)
        stored_folder(unfinished, NAME).rename(folder)
    return ratios


def write_scenes(sequences: Mapping[str, PairSequence], output: Path) -> dict[str, float]:
    """Write one scene after the other, and return what `write_matches` returns."""
    folder = stored_folder(output, NAME)
    ratios: dict[str, list[float]] = {benchmark: [] for benchmark in sequences}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("pairs", total=sum(map(len, sequences.values())))
        for name in dict.fromkeys(s for sequence in sequences.values() for s in sequence.scenes):
            scene = Scene()
            rows: dict[str, dict[tuple[int, int], Int64]] = {b: {} for b in sequences}
            for benchmark, sequence in sequences.items():
                for pair in of_scene(sequence, name):
                    rows[benchmark][ids_of(pair)] = scene.rows(pair)
                    progress.advance(task)
            write_stored_keypoints(folder, name, scene.keypoints())
            for benchmark, found in rows.items():
                if found:
                    write_stored_rows(folder, name, benchmark, found)
            for benchmark, sequence in sequences.items():
                ratios[benchmark] += right_shares(output, benchmark, of_scene(sequence, name))
    return {benchmark: float(np.mean(shares)) for benchmark, shares in ratios.items()}


def of_scene(pairs: PairSequence, scene: str) -> PairSequence:
    return pairs.select(scenes=[scene]) if scene in pairs.scenes else pairs[:0]


def right_shares(output: Path, benchmark: str, pairs: PairSequence) -> list[float]:
    """The share of right matches of each pair, as `vbreg experiment` will read them."""
    return [float(stored_matches(output, NAME, benchmark, p).labels.mean()) for p in pairs]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, required=True, help="the folder of 3DMatch")
    parser.add_argument("--output", type=Path, help=f"holds {NAME}_matches; left out: the root")
    options = parser.parse_args()
    output = options.output or options.root
    try:
        ratios = write_matches(options.root, output)
    except (VBRegError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for benchmark, ratio in ratios.items():
        print(f"{benchmark}: {100 * ratio:.2f} % of the matches are right")
    size = sum(file.stat().st_size for file in stored_folder(output, NAME).iterdir())
    print(f"wrote {stored_folder(output, NAME)}: {size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
