"""Simulated scans beside real ones: what their matches are like, and how they look.

    python scripts/compare_scans.py --matches data --real DATA --output docs

Reads the match sets of scripts/make_training_matches.py and real scans (DATA holds `3dmatch`,
`kitti` and `rgbd_train`), prints the tables of docs/simulator.md as Markdown and writes
images/simulator_indoor.png and images/simulator_street.png below the output.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, get_args

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from scipy.spatial import cKDTree

from vbreg.compatibility import spatial_compatibility
from vbreg.datasets import matches
from vbreg.datasets.kitti import kitti
from vbreg.datasets.matches import MatchSet
from vbreg.datasets.pairs import Pair, PairSequence
from vbreg.datasets.threedmatch import Benchmark, threedmatch
from vbreg.io import atomic_path
from vbreg.matching import DescribedCloud
from vbreg.metrics import overlap
from vbreg.render import BACKGROUND, INK, SOURCE, TARGET, Camera, Colour, render_clouds
from vbreg.scale import Scale
from vbreg.simulator import (
    ROOM_KINDS,
    SETTINGS,
    DepthCamera,
    drive_and_scan,
    make_room,
    make_street,
    random_trajectory,
    sample_surface,
    scan_scene,
)
from vbreg.simulator.streets import Setting
from vbreg.types import Float32, Float64

Item = TypeVar("Item")
INDOOR, OUTDOOR = 0.05, 0.30  # voxel sizes; a match is right within two of them
MAX_MATCHES = 8000  # of a street, as in training
WRONG = 1000  # wrong matches of a set whose compatibility is counted
NEAR = 3.0  # thresholds
NEIGHBOURS = 20  # that tell whether a place is flat
MIDDLE = 0.3, 0.7  # overlaps
BENCHMARKS: tuple[Benchmark, ...] = get_args(Benchmark)
Span = tuple[str, float, float]  # a field of Measure, from, to
OVERLAPS: dict[str, Span] = {
    "10-30 %": ("overlap", 0.1, 0.3),
    "30-50 %": ("overlap", 0.3, 0.5),
    "50-70 %": ("overlap", 0.5, 0.7),
    "70-100 %": ("overlap", 0.7, 1.01),
}
DISTANCES: dict[str, Span] = {
    "8-12 m": ("distance", 8.0, 12.0),
    "16-24 m": ("distance", 16.0, 24.0),
}

# --- numbers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """What one match set is like. Shares are fractions."""

    points: int  # of the target cloud at the working resolution
    flat: float  # share of them
    matches: int
    overlap: float
    distance: float  # metres between the origins of the two frames
    right: float  # share of the matches
    error: float  # of the right ones, median, in thresholds
    near: float  # share of the wrong ones that miss by less than NEAR
    distinct: float  # target points that are matched at all, per match
    both_right: float  # share of pairs of matches with beta > 0
    one_right: float
    both_wrong: float


def measure(s: MatchSet, generator: np.random.Generator) -> Measure:
    R, t = s.T_target_source[:3, :3], s.T_target_source[:3, 3]
    error = np.linalg.norm(s.source @ R.T + t - s.target, axis=-1) / s.inlier_threshold
    return Measure(
        len(s.target_cloud),
        flat(s.target_cloud, s.inlier_threshold),
        len(s),
        s.overlap,
        float(np.linalg.norm(t)),
        float(s.labels.mean()),
        float(np.median(error[s.labels])) if s.labels.any() else np.nan,
        float(np.mean(error[~s.labels] < NEAR)),
        len(np.unique(s.target_index)) / len(s),
        *compatible(s, generator),
    )


def flat(points: Float32, threshold: float) -> float:
    """Share of the points (N, 3) whose neighbours lie within 0.1 thresholds (rms) of a plane."""
    _, index = cKDTree(points).query(points, k=min(NEIGHBOURS, len(points)))
    around = points[index].astype(np.float64)  # (N, k, 3)
    around -= around.mean(axis=1, keepdims=True)
    variance = np.linalg.eigvalsh(np.swapaxes(around, 1, 2) @ around)[:, 0] / around.shape[1]
    return float(np.mean(variance < (0.1 * threshold) ** 2))


def compatible(s: MatchSet, generator: np.random.Generator) -> tuple[float, float, float]:
    """Share of pairs with beta > 0, epsilon the inlier threshold: both right, one, none."""
    right, wrong = np.flatnonzero(s.labels), np.flatnonzero(~s.labels)
    wrong = generator.choice(wrong, min(WRONG, len(wrong)), replace=False)
    rows, R, W = np.concatenate([right, wrong]), len(right), len(wrong)
    x, y = (torch.from_numpy(p[rows] / s.inlier_threshold) for p in (s.source, s.target))
    beta = spatial_compatibility(x, y, x, y) > 0
    beta.fill_diagonal_(False)
    blocks = (beta[:R, :R], R * (R - 1)), (beta[:R, R:], R * W), (beta[R:, R:], W * (W - 1))
    both, one, none = (float(b.sum()) / count if count else np.nan for b, count in blocks)
    return both, one, none


Groups = Mapping[str, Sequence[Measure]]


def share_right(groups: Groups, spans: Mapping[str, Span]) -> str:
    """The mean share of right matches within each span, and how many sets are in it."""

    def cell(found: Sequence[Measure], span: Span) -> str:
        field, low, high = span
        right = [m.right for m in found if low <= getattr(m, field) < high]
        return f"{100 * np.mean(right):.1f} ({len(right)})" if right else "-"

    rows = [
        [
            name,
            str(len(found)),
            f"{np.median([m.points for m in found]):.0f}",
            f"{100 * np.mean([m.flat for m in found]):.0f}",
            f"{np.median([m.matches for m in found]):.0f}",
            *(cell(found, span) for span in spans.values()),
        ]
        for name, found in groups.items()
    ]
    return markdown(["matches", "sets", "points", "flat", "matches a set", *spans], rows)


def structure(groups: Groups) -> str:
    """Means over the sets of middling overlap, so that groups can be compared."""
    titles = {
        "near": "near misses",
        "distinct": "distinct targets",
        "both_right": "both right",
        "one_right": "one right",
        "both_wrong": "both wrong",
    }
    rows = []
    for name, found in groups.items():
        middle = [m for m in found if MIDDLE[0] <= m.overlap < MIDDLE[1]]
        mean = {f: np.nanmean([getattr(m, f) for m in middle]) for f in ("error", *titles)}
        percent = (f"{100 * mean[field]:.1f}" for field in titles)
        rows.append([name, str(len(middle)), f"{mean['error']:.2f}", *percent])
    return markdown(["matches", "sets", "error", *titles.values()], rows)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(line)} |" for line in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def evenly(items: Sequence[Item], most: int) -> list[Item]:
    """At most `most` of the items, from first to last."""
    places = np.linspace(0, len(items) - 1, min(most, len(items)))
    return [items[k] for k in places.round().astype(int)]


def stored(files: Iterable[Path], kind: str, most: int) -> Iterator[MatchSet]:
    """Sets called `<place>/<i>-<j> <kind> ...` from the shards of make_training_matches.py."""
    shards = [matches.read_shard(file) for file in files]
    found = [(s, k) for s in shards for k, name in enumerate(s.names) if f" {kind}" in name]
    return (shard[k] for shard, k in evenly(found, most))


def real(sequences: Iterable[PairSequence], voxel_size: float, most: int) -> Iterator[MatchSet]:
    """FPFH matches of real pairs, made and measured as the simulated ones are."""
    scale = Scale(voxel_size)
    known: dict[bytes, DescribedCloud] = {}

    def described(cloud: Float64) -> DescribedCloud:
        key = cloud[::100].tobytes()  # pairs share fragments
        if key not in known:
            known[key] = matches.described(cloud, scale)
        return known[key]

    for sequence, k in evenly([(s, k) for s in sequences for k in range(len(s))], most):
        pair = sequence[k]
        source = matches.thinned(described(pair.source), MAX_MATCHES)
        shared = _overlap(pair, voxel_size)
        yield matches.match_set(
            pair.name, source, described(pair.target), pair.T_target_source, shared, scale
        )


def learned(root: Path, most: int) -> Iterator[MatchSet]:
    """Matches of a learned descriptor that lie beside the fragments of 3DMatch."""
    sequences = {name: threedmatch(root, name) for name in BENCHMARKS}
    everything = [(name, k) for name, sequence in sequences.items() for k in range(len(sequence))]
    for benchmark, k in evenly(everything, most):
        pair = sequences[benchmark][k]
        found = matches.stored_matches(root, "learned", benchmark, pair)
        yield replace(found, overlap=_overlap(pair, INDOOR))


def _overlap(pair: Pair, voxel_size: float) -> float:
    """As in make_training_matches.py: a fourth of the source, within one voxel of the target."""
    source, target, T_target_source = (
        torch.from_numpy(a.copy()) for a in (pair.source[::4], pair.target, pair.T_target_source)
    )
    return overlap(source, target, T_target_source, voxel_size)


def measured(sets: Mapping[str, Iterable[MatchSet]]) -> Groups:
    generator = np.random.default_rng(0)
    return {name: [measure(s, generator) for s in group] for name, group in sets.items()}


def tables(shards: Path, data: Path, most: int) -> str:
    def shard(glob: str) -> list[Path]:
        return sorted(shards.glob(f"{glob}.npz"))

    fragments = [threedmatch(data / "3dmatch", name) for name in BENCHMARKS]
    train, dev = ([kitti(data / "kitti" / part)] for part in ("train", "dev"))
    indoor = measured(
        {
            "FPFH, simulated": stored(shard("indoor/*"), "fpfh", most),
            "FPFH, TUM": stored(shard("real/tum*"), "fpfh", most),
            "FPFH, HoloLens": stored(shard("real/hololens*"), "fpfh", most),
            "FPFH, 3DMatch": real(fragments, INDOOR, most),
            "place code, simulated": stored(shard("indoor/*"), "code", most),
            "learned, 3DMatch": learned(data / "3dmatch", most),
        }
    )
    outdoor = measured(
        {
            "FPFH, simulated streets": stored(shard("streets/*"), "fpfh", most),
            "FPFH, KITTI train": real(train, OUTDOOR, most // 4),
            "FPFH, KITTI dev": real(dev, OUTDOOR, most // 4),
        }
    )
    return "\n\n".join(
        [
            share_right(indoor, OVERLAPS),
            share_right(outdoor, OVERLAPS | DISTANCES),
            structure({**indoor, **outdoor}),
        ]
    )


# --- pictures -------------------------------------------------------------------------------------

Panel = tuple[str, Float64]  # caption, points (N, 3)
SEED = 14  # of every simulated scan
GAP, TITLE, FOOTER = 16, 40, 44  # pixels
SUN3D = "sun3d-hotel_umd-maryland_hotel1"


def simulated_fragment(kind: str) -> Panel:
    generator = np.random.default_rng(SEED)
    scene = sample_surface(make_room(kind, generator), generator)
    trajectory = random_trajectory(scene, generator, focus=np.median(scene.coarse, axis=0))
    noise = torch.Generator().manual_seed(SEED)
    points, _ = scan_scene(scene, trajectory, DepthCamera(), noise)
    return kind, points.numpy()


def simulated_street(setting: Setting) -> Panel:
    generator = np.random.default_rng(SEED)
    street = make_street(generator, setting)
    ((points, _),) = drive_and_scan(street, generator, count=1)
    return setting, points.numpy()


def ahead() -> Camera:
    """The way a sensor with z up looks, from behind it and above."""
    turn, elevation = np.radians([20, 35])
    forward, up = np.array([np.cos(turn), np.sin(turn), 0.0]), np.array([0.0, 0.0, 1.0])
    eye = np.sin(elevation) * up - np.cos(elevation) * forward
    right = np.cross(forward, up)
    return Camera(np.stack([right, np.cross(eye, right), eye]), np.zeros(3), 1.0)


def contact_sheet(
    path: Path,
    rows: Sequence[tuple[str, Colour, Sequence[Panel]]],
    view: Callable[[Float64], Camera],
    size: tuple[int, int],  # of a panel
    metres: float,  # from left to right of a panel
    bar: int,  # metres
) -> None:
    """All panels at one scale, which a bar shows."""
    (width, height), scale = size, size[0] / metres
    across, down = width + GAP, TITLE + height
    columns = max(len(panels) for _, _, panels in rows)
    image = Image.new("RGB", (columns * across + GAP, len(rows) * down + FOOTER), BACKGROUND)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=20)
    for row, (title, colour, panels) in enumerate(rows):
        for column, (caption, points) in enumerate(panels):
            x, y = GAP + column * across, row * down
            camera = replace(view(points), pixels_per_unit=scale)
            pixels = render_clouds([(points, colour)], camera=camera, size=size)
            image.paste(Image.fromarray(pixels), (x, y + TITLE))
            draw.text((x, y + 10), f"{title}: {caption}", fill=INK, font=font)
    y = image.height - FOOTER // 2
    draw.line([(GAP, y), (GAP + bar * scale, y)], fill=INK, width=3)
    draw.text((2 * GAP + bar * scale, y), f"{bar} m", fill=INK, font=font, anchor="lm")
    with atomic_path(path) as temporary:
        image.quantize(256, dither=Image.Dither.NONE).save(temporary, optimize=True)


def pictures(data: Path, output: Path) -> None:
    def read(path: str, key: str) -> Float64:
        with np.load(data / path, allow_pickle=False) as arrays:
            return np.asarray(arrays[key], dtype=np.float64)

    rooms = [simulated_fragment(kind) for kind in ROOM_KINDS]
    fragments = {
        "7-Scenes": "3dmatch/fragments/7-scenes-redkitchen/cloud_bin_10.npz",
        "SUN3D": f"3dmatch/fragments/{SUN3D}/cloud_bin_28.npz",
        "TUM fr1 desk": "rgbd_train/tum_fr1_desk/cloud_bin_15.npz",
        "TUM fr1 xyz": "rgbd_train/tum_fr1_xyz/cloud_bin_20.npz",
        "HoloLens": "rgbd_train/hololens_office/cloud_bin_6.npz",
    }
    scans = {
        "KITTI 00": "kitti/train/00/drive0-pair40_50.npz",
        "KITTI 03": "kitti/dev/03/drive3-pair90_111.npz",
        "KITTI 01": "kitti/train/01/drive1-pair164_169.npz",
    }
    contact_sheet(
        output / "simulator_indoor.png",
        [
            ("simulated", SOURCE, rooms[:6]),
            ("simulated", SOURCE, rooms[6:]),
            ("real", TARGET, [(name, read(path, "pcd")) for name, path in fragments.items()]),
        ],
        lambda points: Camera.facing(points).framing(points, 1, 1),
        (344, 330),
        metres=4.4,
        bar=1,
    )
    contact_sheet(
        output / "simulator_street.png",
        [
            ("simulated", SOURCE, [simulated_street(s) for s in SETTINGS]),
            ("real", TARGET, [(name, read(path, "xyz0")) for name, path in scans.items()]),
        ],
        lambda _: ahead(),
        (580, 380),
        metres=60.0,
        bar=10,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--matches", type=Path, required=True, help="from make_training_matches.py")
    parser.add_argument("--real", type=Path, required=True, help="holds 3dmatch, kitti, rgbd_train")
    parser.add_argument("--output", type=Path, required=True, help="docs")
    parser.add_argument("--most", type=int, default=200, help="sets of a row (KITTI: a fourth)")
    arguments = parser.parse_args()
    pictures(arguments.real, arguments.output / "images")
    print(tables(arguments.matches, arguments.real, arguments.most))


if __name__ == "__main__":
    main()
