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
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from scipy.spatial import cKDTree

from vbreg.benchmark.problems import Settings
from vbreg.datasets.threedmatch import read_log
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
BENCHMARKS = ("3DMatch", "3DLoMatch")


def limits_of(dataset: str) -> tuple[float, float]:
    """Return the degrees and metres below which a pose of a data set is right."""
    protocol = Settings.of(dataset)
    return protocol.rotation, protocol.translation


@dataclass(frozen=True, eq=False)
class Scene:
    """Clouds, pairs of them with a known pose, and the poses that follow."""

    name: str
    clouds: Sequence[Path | Float64]
    pairs: dict[str, list[tuple[int, int, Float64]]]  # source, target, T_target_source
    truth: list[dict[int, Float64]]  # T_world_scan of scans that pairs connect, the most first
    limits: tuple[float, float] = limits_of("3dmatch")

    @cached_property
    def points(self) -> list[Float64]:
        """The points of every cloud."""
        return [_cloud(cloud) for cloud in self.clouds]

    @cached_property
    def trees(self) -> list[cKDTree]:
        """The points, as neighbours are looked for among them."""
        return [cKDTree(points) for points in self.points]


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


def chosen(root: Path, names: Sequence[str]) -> list[Path]:
    """Return the folders of these names, or all."""
    folders = {path.name: path for path in sorted(root.iterdir()) if path.is_dir()}
    unknown = [name for name in names if name not in folders]
    if unknown:
        raise SystemExit(f"no scene {unknown[0]!r}; choose from {', '.join(folders)}")
    return [folders[name] for name in names or folders]


def threedmatch_scenes(root: Path, names: Sequence[str]) -> Iterator[Scene]:
    """Yield the scenes of 3DMatch in this project's layout."""
    for folder in chosen(root / "fragments", names):
        count = len(list(folder.glob("cloud_bin_*.npz")))
        clouds = [folder / f"cloud_bin_{k}.npz" for k in range(count)]
        logs = {b: root / "benchmarks" / b / folder.name / "gt.log" for b in BENCHMARKS}
        # The file has T_i_j; the pair is laid from i onto j, as `vbreg benchmark` does.
        pairs = {
            b: [(i, j, np.linalg.inv(T_i_j)) for i, j, T_i_j in read_log(path)]
            for b, path in logs.items()
        }
        every = [pair for each in pairs.values() for pair in each]
        yield Scene(folder.name, clouds, pairs, chained(every))


def kitti_scenes(root: Path, names: Sequence[str]) -> Iterator[Scene]:
    """Yield drives of KITTI: every scan that a pair names, once."""
    for folder in chosen(root, names):
        scans: dict[int, Float64] = {}
        pairs = []
        for file in sorted(folder.glob("drive*-pair*_*.npz")):
            found = re.search(r"pair(\d+)_(\d+)", file.name)
            assert found is not None
            a, b = map(int, found.groups())
            with np.load(file) as held:
                scans.setdefault(a, held["xyz0"].astype(np.float64))
                scans.setdefault(b, held["xyz1"].astype(np.float64))
                pairs.append((a, b, held["gt_trans"].astype(np.float64)))
        number = {frame: k for k, frame in enumerate(sorted(scans))}
        listed = [(number[a], number[b], T_b_a) for a, b, T_b_a in pairs]
        clouds = [scans[frame] for frame in sorted(scans)]
        yield Scene(folder.name, clouds, {"pairs": listed}, chained(listed), limits_of("kitti"))


def chained(pairs: Sequence[tuple[int, int, Float64]]) -> list[dict[int, Float64]]:
    """Return poses of scans by number, each set of scans in a frame of its own; the largest first.

    Pairs lead from scan to scan, from the first of a set.
    """
    neighbours: dict[int, list[tuple[int, Float64]]] = {}
    for source, target, T_target_source in pairs:
        neighbours.setdefault(target, []).append((source, T_target_source))
        neighbours.setdefault(source, []).append((target, np.linalg.inv(T_target_source)))
    sets: list[dict[int, Float64]] = []
    for start in sorted(neighbours):
        if any(start in T for T in sets):
            continue
        T = {start: np.eye(4)}
        todo = [start]
        while todo:
            here = todo.pop(0)
            for other, T_here_other in neighbours[here]:
                if other not in T:
                    T[other] = T[here] @ T_here_other
                    todo.append(other)
        sets.append(T)
    return sorted(sets, key=len, reverse=True)


def true_pose(scene: Scene, source: int, target: int) -> Float64 | None:
    """Return the true T_target_source, or None where known pairs do not join the two scans."""
    for T in scene.truth:
        if source in T and target in T:
            return inverse(T[target]) @ T[source]
    return None


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


def gtsam_solution(scans: int, edges: PoseEdges) -> tuple[Float64, Int64]:
    """Solve with gtsam's graduated non-convexity, truncated, from the tree of probable edges."""
    import gtsam

    from vbreg.motions import adjoint
    from vbreg.scenes.graph import components, tree_poses

    A = adjoint(edges.T_target_source)
    information = np.swapaxes(A, -1, -2) @ edges.information @ A
    factors, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
    component = components(scans, edges)
    for k, pose in enumerate(tree_poses(scans, edges)):
        values.insert(k, gtsam.Pose3(pose))
    sure = gtsam.noiseModel.Isotropic.Sigma(6, 1e-6)
    firsts = np.unique(component, return_index=True)[1].tolist()
    for k in firsts:
        factors.add(gtsam.PriorFactorPose3(int(k), values.atPose3(int(k)), sure))
    for e in range(len(edges)):
        noise = gtsam.noiseModel.Gaussian.Information(information[e])
        pose = gtsam.Pose3(edges.T_target_source[e])
        ends = int(edges.target[e]), int(edges.source[e])
        factors.add(gtsam.BetweenFactorPose3(*ends, pose, noise))
    params = gtsam.GncLMParams(gtsam.LevenbergMarquardtParams())
    params.setLossType(gtsam.GncLossType.TLS)
    params.setKnownInliers(list(range(len(firsts))))
    optimizer = gtsam.GncLMOptimizer(factors, values, params)
    optimizer.setInlierCostThresholdsAtProbability(0.99)
    solved = optimizer.optimize()
    weights = np.asarray(optimizer.getWeights())[len(firsts) :]
    T = np.stack([solved.atPose3(k).matrix() for k in range(scans)])
    return T, components(scans, edges.take(weights > 0.5))


def open3d_solution(scans: int, edges: PoseEdges) -> tuple[Float64, Int64]:
    """Solve with Open3D's pose graph: every edge uncertain, then pruned by its line process."""
    import open3d

    from vbreg.scenes.graph import components, tree_poses

    registration = open3d.pipelines.registration
    graph = registration.PoseGraph()
    for pose in tree_poses(scans, edges):
        graph.nodes.append(registration.PoseGraphNode(pose))
    for s, t, pose, W in zip(
        edges.source, edges.target, edges.T_target_source, edges.information, strict=True
    ):
        graph.edges.append(registration.PoseGraphEdge(int(s), int(t), pose, W, uncertain=True))
    open3d_optimized(graph)
    T = np.stack([np.asarray(node.pose) for node in graph.nodes])
    ends = [(edge.source_node_id, edge.target_node_id) for edge in graph.edges]
    left = PoseEdges.of(ends, [np.eye(4)] * len(ends))
    return T, components(scans, left)


def open3d_optimized(graph: Any) -> None:
    """Solve a pose graph of Open3D in place."""
    import open3d

    registration = open3d.pipelines.registration
    option = registration.GlobalOptimizationOption(
        max_correspondence_distance=0.1, edge_prune_threshold=0.25, reference_node=0
    )
    registration.global_optimization(
        graph,
        registration.GlobalOptimizationLevenbergMarquardt(),
        registration.GlobalOptimizationConvergenceCriteria(),
        option,
    )


def plain_gnc(scans: int, edges: PoseEdges) -> tuple[Float64, Int64]:
    """Solve all edges at once with our own graph, without the rules of joining."""
    found = solve_graph(scans, edges)
    return found.T_world_scan, found.component


OTHERS: dict[str, Callable[[int, PoseEdges], tuple[Float64, Int64]]] = {
    "our GNC on all edges": plain_gnc,
    "gtsam GNC": gtsam_solution,
    "Open3D pose graph": open3d_solution,
}


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
        refined = open3d_refined(scene, T, pairs, scale)
    except ImportError as error:
        console.print(f"Open3D from the true poses: {error.name} is not installed")
        return
    clock.stop()
    yield row_of(scene, "Open3D from the true poses", refined, alone, [], 0, clock)


def open3d_refined(
    scene: Scene, T: Float64, pairs: Sequence[tuple[int, int]], scale: Scale
) -> Float64:
    """Return poses (K, 4, 4) by Open3D's ICP of these pairs, from poses, and its pose graph."""
    import open3d

    registration = open3d.pipelines.registration
    clouds = []
    for points in scene.points:
        cloud = open3d.geometry.PointCloud(open3d.utility.Vector3dVector(points))
        cloud = cloud.voxel_down_sample(scale.voxel_size)
        around = open3d.geometry.KDTreeSearchParamHybrid(scale.normal_radius, 30)
        cloud.estimate_normals(around)
        clouds.append(cloud)
    graph = registration.PoseGraph()
    for pose in T:
        graph.nodes.append(registration.PoseGraphNode(pose))
    reach = scale.inlier_threshold
    to_plane = registration.TransformationEstimationPointToPlane()
    for s, t in pairs:
        X = inverse(T[t]) @ T[s]
        for most in (reach, reach / 2):
            X = registration.registration_icp(
                clouds[s], clouds[t], most, X, to_plane
            ).transformation
        W = registration.get_information_matrix_from_point_clouds(
            clouds[s], clouds[t], reach / 2, X
        )
        graph.edges.append(registration.PoseGraphEdge(s, t, X, W, uncertain=False))
    open3d_optimized(graph)
    return np.stack([np.asarray(node.pose) for node in graph.nodes])


def with_rotations(T: Float64) -> Float64:
    """Return poses (K, 4, 4) with the rotations nearest to theirs: files are rounded."""
    U, _, Vh = np.linalg.svd(T[:, :3, :3])
    found = T.copy()
    found[:, :3, :3] = U @ Vh
    return found


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
    lines = [
        "| scene | solver | scans | pairs tried | components | largest | recall | low overlap | "
        "position error | at most | of pairs | edges kept | known | wrong | surfaces apart | "
        "seconds | of cores | pairs/s |",
        "|" + "---|" * 18,
    ]
    for row in rows:
        cells = [
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
        lines.append("| " + " | ".join(cells) + " |")
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


def _cloud(cloud: Path | Float64) -> Float64:
    """Return the points of a fragment."""
    if not isinstance(cloud, Path):
        return cloud
    with np.load(cloud) as held:
        return np.asarray(held["pcd"], dtype=np.float64)


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
