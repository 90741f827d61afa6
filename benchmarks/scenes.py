"""How well `reconstruct` places the fragments of whole scenes, without their order.

    python benchmarks/scenes.py --root DATA/3dmatch --output out/scenes
    python benchmarks/scenes.py --root DATA/3dmatch --output out/scenes --scenes 7-scenes-redkitchen
    python benchmarks/scenes.py --root DATA/3dmatch --output out/scenes --device cuda --others
    python benchmarks/scenes.py --root DATA/kitti/dev --output out/drives --dataset kitti

    python benchmarks/scenes.py --root DATA/3dmatch --output out/scenes --truth

Every fragment of a scene goes in; the pairs of 3DMatch and 3DLoMatch are then read off the solved
poses (15 degrees, 30 cm; a pair of two components counts as a failure). `--others` solves the same
edges with gtsam's graduated non-convexity and Open3D's pose graph, where these are installed.
`--truth` adds the true poses, and where refinements lead that begin at them, ours and Open3D's ICP,
with how far surfaces are apart then. Surfaces are nearly what a refinement makes small: a smaller
distance alone does not tell that the truth is off. Seconds are those of a clock; those of the cores
together do not grow where other programs run.
Results of pairs are kept in OUTPUT/pairs: a second run studies the graph alone, and says no
pairs a second. Tables are markdown on stdout, and scenes.csv in OUTPUT; progress goes to stderr.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from scene_solvers import OTHERS, open3d_refined
from scene_truth import Scene, kitti_scenes, threedmatch_scenes, true_pose, with_rotations

from vbreg.benchmark.markdown import markdown_table
from vbreg.frames import LocalCloud
from vbreg.matching import describe
from vbreg.metrics import pose_error
from vbreg.model import VBReg
from vbreg.motions import inverse
from vbreg.registrar import usual_viewpoint
from vbreg.scale import PresetName, Scale
from vbreg.scenes import PoseEdges, Reconstruction, reconstruct, solve_graph
from vbreg.scenes.overlaps import ScanSurface, exact_poses, overlapping_pairs
from vbreg.scenes.search import ERROR_SCALE
from vbreg.types import Float64, Int64

SURFACE_POINTS = 1000  # of a cloud, whose distance from the other is looked at


@dataclass(frozen=True)
class Row:
    """A row of the table: a scene, solved in one way."""

    scene: str
    solver: str
    scans: int
    pairs_tried: int  # registrations: those tried again count again
    share_tried: float
    components: int
    largest: int
    recall: float  # of the first list of pairs
    recall_low: float  # of the second, of low overlap; NaN where there is none
    position_median: float  # metres, of the largest component, after aligning it
    position_max: float
    pair_median: float  # metres between found and true translations of the first list's pairs
    edges_kept: int
    known_kept: int  # of these, whose true pose is known
    wrong_kept: int
    surface_distance: float  # metres between the surfaces of the pairs of the first list
    seconds: float
    core_seconds: float  # of this process on all cores
    resumed: bool = False  # pairs of an earlier run were there: seconds are not those of all


def is_right(A: Float64, B: Float64, limits: tuple[float, float]) -> bool:
    """Tell whether a pose is right by the protocol."""
    return bool(pose_error(torch.from_numpy(A), torch.from_numpy(B)).success(*limits))


def recall(
    T: Float64,
    component: Int64,
    pairs: Sequence[tuple[int, int, Float64]],
    limits: tuple[float, float],
) -> float:
    """Return the share of pairs that poses (K, 4, 4) get right."""
    right = [
        component[s] == component[t] and is_right(inverse(T[t]) @ T[s], truth, limits)
        for s, t, truth in pairs
    ]
    return float(np.mean(right))


def position_errors(T: Float64, truth: dict[int, Float64], members: Sequence[int]) -> Float64:
    """Return how far scans are from their true places, once all are moved by one best motion."""
    known = [k for k in members if k in truth]
    if len(known) < 3:
        return np.full(1, np.nan)
    ours = np.stack([T[k][:3, 3] for k in known])
    theirs = np.stack([truth[k][:3, 3] for k in known])
    a, b = ours.mean(0), theirs.mean(0)
    U, _, Vh = np.linalg.svd((theirs - b).T @ (ours - a))
    R = U @ np.diag([1, 1, np.linalg.det(U @ Vh)]) @ Vh
    return np.linalg.norm((ours - a) @ R.T + b - theirs, axis=1)


def surface_distance(scene: Scene, T: Float64, component: Int64) -> float:
    """Return the distance from points to the other cloud of their pair, a median for each pair.

    Points count that have a neighbour within a third of the limit for a right pair. The mean over
    the first list of pairs, both ways, as far as the scans are in one component.
    """
    reach = scene.limits[1] / 3
    found = []
    for s, t, _ in next(iter(scene.pairs.values())):
        if component[s] != component[t]:
            continue
        for a, b in ((s, t), (t, s)):
            points = scene.points[a]
            X = inverse(T[b]) @ T[a]
            some = points[:: max(1, len(points) // SURFACE_POINTS)] @ X[:3, :3].T + X[:3, 3]
            distance, _ = scene.trees[b].query(some, distance_upper_bound=reach)
            if np.isfinite(distance).any():
                found.append(float(np.median(distance[np.isfinite(distance)])))
    return float(np.mean(found)) if found else float("nan")


def row_of(
    scene: Scene,
    solver: str,
    T: Float64,
    component: Int64,
    kept: Sequence[tuple[int, int, Float64]],  # source, target, T_target_source
    tried: int,
    clock: Clock,
) -> Row:
    """Compare a solution with the truth."""
    K = len(scene.clouds)
    lists = list(scene.pairs.values())
    recalls = [recall(T, component, pairs, scene.limits) for pairs in lists]
    members = np.flatnonzero(component == 0).tolist()
    errors = position_errors(T, scene.truth[0], members)
    shifts = [
        np.linalg.norm((inverse(T[t]) @ T[s] - pose)[:3, 3])
        for s, t, pose in lists[0]
        if component[s] == component[t]
    ]
    judged = [(pose, true_pose(scene, s, t)) for s, t, pose in kept]
    right = [is_right(pose, true, scene.limits) for pose, true in judged if true is not None]
    return Row(
        scene.name,
        solver,
        K,
        tried,
        tried / (K * (K - 1) / 2),
        int(component.max()) + 1,
        len(members),
        recalls[0],
        recalls[1] if len(recalls) > 1 else float("nan"),
        float(np.median(errors)),
        float(errors.max()),
        float(np.median(shifts)) if shifts else float("nan"),
        len(kept),
        len(right),
        right.count(False),
        surface_distance(scene, T, component),
        *clock.seconds(),
    )


# --- others, on the same edges


def edges_of(found: Reconstruction) -> PoseEdges:
    """Return what the graph was made of: every pose that was heard."""
    edges = found.edges
    return PoseEdges.of(
        [(e.source, e.target) for e in edges],
        [e.T_target_source for e in edges],
        [ERROR_SCALE**2 * e.covariance for e in edges],
        [e.probability for e in edges],
    )


def other_rows(scene: Scene, found: Reconstruction, console: Console) -> Iterator[Row]:
    """Yield a row for every other solver that is installed."""
    edges = edges_of(found)
    for name, solve in OTHERS.items():
        clock = Clock()
        try:
            T, component = solve(len(found), edges)
        except ImportError as error:
            console.print(f"{name}: {error.name} is not installed")
            continue
        clock.stop()
        yield row_of(scene, name, T, component, [], found.registrations, clock)


# --- how good the truth is


def true_rows(scene: Scene, model: VBReg, outdoors: bool, console: Console) -> Iterator[Row]:
    """Yield a row for the true poses, and rows for where refinements lead from them."""
    K = len(scene.clouds)
    if len(scene.truth[0]) < K:
        return  # known pairs do not connect all scans
    alone = np.zeros(K, dtype=np.int64)
    T = with_rotations(np.stack([scene.truth[0][k] for k in range(K)]))
    clock = Clock()
    clock.stop()
    yield row_of(scene, "the true poses", T, alone, [], 0, clock)
    preset: PresetName = "outdoor" if outdoors else "indoor"
    scale = Scale.of_preset(preset)
    clock = Clock()
    scans = []
    for points in scene.points:
        local = LocalCloud.of(points, scene.name)
        seen_from = usual_viewpoint(preset, local)
        scans.append(describe(local, scale, viewpoint=seen_from, device=model.device))
    pairs = overlapping_pairs([ScanSurface.of(scan, scale) for scan in scans], T, alone, scale)
    run = zip(pairs, exact_poses(scans, T, pairs, scale), strict=True)
    exact = {pair: laid for pair, laid in run if laid is not None}
    poses = [pose for pose, _ in exact.values()]
    covariances = [ERROR_SCALE**2 * covariance for _, covariance in exact.values()]
    found = solve_graph(K, PoseEdges.of(list(exact), poses, covariances), start=T)
    clock.stop()
    ends = found.T_world_scan, found.component
    yield row_of(scene, "refined from the true poses", *ends, [], 0, clock)
    clock = Clock()
    try:
        refined = open3d_refined(scene.points, T, pairs, scale)
    except ImportError as error:
        console.print(f"Open3D from the true poses: {error.name} is not installed")
        return
    clock.stop()
    yield row_of(scene, "Open3D from the true poses", refined, alone, [], 0, clock)


# --- the run


class Clock:
    """The seconds from its making to its stop, on the wall and of all cores together."""

    def __init__(self) -> None:
        self.began = time.perf_counter(), time.process_time()
        self.ended = self.began

    def stop(self) -> None:
        """Take the time."""
        self.ended = time.perf_counter(), time.process_time()

    def seconds(self) -> tuple[float, float]:
        """Return both numbers of seconds."""
        return self.ended[0] - self.began[0], self.ended[1] - self.began[1]


def table(rows: Sequence[Row]) -> str:
    """Return the rows, and the mean of each solver."""
    header = ["scene", "solver", "scans", "pairs tried", "components", "largest", "recall"]
    header += ["low overlap", "position error", "at most", "of pairs", "edges kept", "known"]
    header += ["wrong", "surfaces apart", "seconds", "of cores", "pairs/s"]
    body = [
        [
            row.scene,
            row.solver,
            str(row.scans),
            f"{row.pairs_tried} ({100 * row.share_tried:.0f} %)" if row.pairs_tried else "-",
            str(row.components),
            str(row.largest),
            _shown(row.recall, "%"),
            _shown(row.recall_low, "%"),
            _shown(row.position_median, "cm"),
            _shown(row.position_max, "cm"),
            _shown(row.pair_median, "cm"),
            str(row.edges_kept) if row.edges_kept else "-",
            str(row.known_kept) if row.edges_kept else "-",
            str(row.wrong_kept) if row.known_kept else "-",
            _shown(row.surface_distance, "cm", 2),
            f"{row.seconds:.1f}",
            f"{row.core_seconds:.1f}",
            f"{row.pairs_tried / row.seconds:.2f}" if row.edges_kept and not row.resumed else "-",
        ]
        for row in rows
    ]
    lines = [markdown_table(header, body)]
    for solver in dict.fromkeys(row.solver for row in rows):
        own = [row for row in rows if row.solver == solver]
        mean = [np.mean([getattr(r, name) for r in own]) for name in ("recall", "recall_low")]
        median = np.median([r.position_median for r in own])
        line = (
            f"\n{solver}: mean over {len(own)} scenes {_shown(mean[0], '%')} and "
            f"{_shown(mean[1], '%')}, position error {_shown(median, 'cm')} (median of medians)"
        )
        if any(r.edges_kept for r in own):
            wrong, known = (sum(getattr(r, n) for r in own) for n in ("wrong_kept", "known_kept"))
            line += f", {wrong} wrong of {known} edges kept whose truth is known"
        lines.append(line)
    return "\n".join(lines)


def _shown(value: float, unit: str, digits: int = 1) -> str:
    """Return a share in percent, or metres in centimetres; a dash where it is not known."""
    return "-" if np.isnan(value) else f"{100 * value:.{digits}f} {unit}"


def main() -> None:
    """Reconstruct every scene, compare, write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--dataset", choices=("3dmatch", "kitti"), default="3dmatch")
    parser.add_argument("--scenes", default="", help="names, with commas; left out, all")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pair-share", type=float, default=0.25)
    parser.add_argument("--no-refine", action="store_true")
    parser.add_argument("--others", action="store_true", help="gtsam and Open3D on the same edges")
    parser.add_argument("--truth", action="store_true", help="how good the true poses are")
    options = parser.parse_args()
    console = Console(stderr=True)
    options.output.mkdir(parents=True, exist_ok=True)
    model = VBReg.from_pretrained(device=options.device)
    outdoors = options.dataset == "kitti"
    read = kitti_scenes if outdoors else threedmatch_scenes
    rows: list[Row] = []
    for scene in read(options.root, [name for name in options.scenes.split(",") if name]):
        work = options.output / "pairs" / scene.name
        resumed = work.exists()
        clock = Clock()
        with progress(console, scene.name) as tell:
            found = reconstruct(
                scene.points,
                preset="outdoor" if outdoors else "indoor",
                model=model,
                pair_share=options.pair_share,
                refine=not options.no_refine,
                work=work,
                on_progress=tell,
            )
        clock.stop()
        kept = [(e.source, e.target, e.T_target_source) for e in found.edges if e.kept]
        ends = found.T_world_scan, found.component
        row = row_of(scene, "reconstruct", *ends, kept, found.registrations, clock)
        rows.append(replace(row, resumed=resumed))
        if options.others:
            rows += other_rows(scene, found, console)
        if options.truth:
            rows += true_rows(scene, model, outdoors, console)
        with (options.output / "scenes.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(asdict(rows[0])))
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)
        own = [row for row in rows if row.scene == scene.name]
        console.print(table(own), soft_wrap=True, markup=False)
    print(table(rows))


class progress:
    """A bar on stderr for the stages of a scene."""

    def __init__(self, console: Console, name: str) -> None:
        columns = TextColumn(f"{name} {{task.description}}"), BarColumn()
        self.bar = Progress(*columns, MofNCompleteColumn(), TimeElapsedColumn(), console=console)
        self.task = self.bar.add_task("")

    def __enter__(self) -> Callable[[str, int, int], None]:
        self.bar.start()
        return lambda stage, done, total: self.bar.update(
            self.task, description=stage, completed=done, total=total
        )

    def __exit__(self, *error: object) -> None:
        self.bar.stop()


if __name__ == "__main__":
    main()
