"""How long a pose takes, beside peers in the same run, and how that grows.

    python benchmarks/speed.py --root DATA/3dmatch -o out/speed            # a GPU, if there is one
    python benchmarks/speed.py --root DATA/3dmatch -o out/speed --device cpu

Tables, each a CSV file and part of speed.md: matches in, pose out; clouds in, pose out; the stages
of ours beside the time that the machine's own float32 matrix product needs for the same arithmetic;
time and memory against the number of matches; 64 problems at once. On a GPU the stages are those of
plain torch, since a recorded run has no stages. Peers that are not installed are left out (`pip
install vbreg[baselines]`). Every time is taken after a warm-up, the device synchronised. `run.json`
holds the command, machine and commit of each table.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vbreg.backends import devices
from vbreg.backends.devices import choose_device, device_name
from vbreg.benchmark.markdown import markdown_table
from vbreg.benchmark.measure import measured
from vbreg.benchmark.power_law import GROWTH_FROM, exponent
from vbreg.benchmark.problems import Labelled, Settings, labelled_problems
from vbreg.benchmark.report import describe_run, machine
from vbreg.methods import METHODS, Problem, available, open_method
from vbreg.methods.common import EXTERNAL
from vbreg.methods.open3d_methods import fgr_option
from vbreg.metrics import pose_error
from vbreg.model import VBReg
from vbreg.network import NetworkConfig
from vbreg.registration import register
from vbreg.scale import Scale
from vbreg.types import Correspondences, Registration

OURS = ("vbreg", "verified")
PEERS = tuple(n for n, entry in METHODS.items() if entry.needs == "matches" and n not in OURS)
SIZES = (250, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
KISS = "KISS-Matcher"
SCALE = Scale.of_preset("indoor")
Answer = tuple[np.ndarray[Any, Any], str]  # a pose, and the backend that found it
Row = dict[str, Any]


class Timing(NamedTuple):
    median: float  # milliseconds
    p95: float
    megabytes: float  # the highest peak

    @staticmethod
    def of(
        solve: Callable[[Any], Any], inputs: Sequence[Any], device: torch.device
    ) -> tuple[Timing, list[Any]]:
        """Time one call for each input after a warm-up; return timing and results.

        What a GPU records is allocated in the warm-up alone.
        """
        warm_up = inputs if devices.is_gpu(device) else inputs[:1]
        first = [measured(partial(solve, given), device, give_back=True)[1] for given in warm_up]
        found = [measured(partial(solve, given), device) for given in inputs]
        ms = 1e3 * np.array([cost.seconds for _, cost in found])
        costs = [*(cost for _, cost in found), *first]
        most = max(cost.megabytes or 0.0 for cost in costs)
        timing = Timing(float(np.median(ms)), float(np.percentile(ms, 95)), most)
        return timing, [result for result, _ in found]


def right(T: np.ndarray[Any, Any], labelled: Labelled) -> bool:
    error = pose_error(torch.tensor(T), torch.tensor(labelled.pair.T_target_source))
    return bool(error.success(15.0, 0.30))


def timed(
    solvers: dict[str, Callable[[Problem], Answer]],
    problems: Sequence[Labelled],
    device: torch.device,
) -> list[Row]:
    rows = []
    for name, solve in solvers.items():
        timing, found = Timing.of(solve, [p.problem for p in problems], device)
        good = sum(right(T, p) for (T, _), p in zip(found, problems, strict=True))
        rows.append(
            {
                "method": name,
                "backend": ", ".join(sorted({backend for _, backend in found})),
                "median_ms": round(timing.median, 2),
                "p95_ms": round(timing.p95, 2),
                "peak_mb": round(timing.megabytes),
                "right": f"{good}/{len(problems)}",
            }
        )
        print(rows[-1], flush=True)
    return rows


def with_ratios(rows: list[Row], to: str) -> list[Row]:
    base = next((row["median_ms"] for row in rows if row["method"] == to), None)
    if base is None:  # it is not installed
        return rows
    return [{**row, f"times {to}": round(row["median_ms"] / base, 2)} for row in rows]


def answer(result: Registration) -> Answer:
    return result.T_target_source, result.backend


def matches_in(
    names: Sequence[str], device: torch.device
) -> dict[str, Callable[[Problem], Answer]]:
    def solver(name: str) -> Callable[[Problem], Answer]:
        method = open_method(name, device)
        return lambda problem: answer(method(problem))

    return {name: solver(name) for name in names}


def clouds_in(
    weights: Sequence[str], device: torch.device
) -> dict[str, Callable[[Problem], Answer]]:
    def solver(name: str, descriptor: str, verify: bool) -> Callable[[Problem], Answer]:
        model = VBReg.from_pretrained(name, device=device)
        return lambda p: answer(
            register(
                *p.scans,
                voxel_size=SCALE.voxel_size,
                model=model,
                descriptor=descriptor,
                verify=verify,
            )
        )

    solvers = {}
    for verified in (False, True):
        said = "register, " if verified else "vbreg "
        solvers |= {f"{said}{name}": solver(name, "learned", verified) for name in weights}
        solvers |= {f"{said}{name}, FPFH": solver(name, "fpfh", verified) for name in weights}
    if available("ransac-open3d"):
        solvers |= {"Open3D RANSAC 100k": open3d_ransac, "Open3D FGR": open3d_fgr}
    if available("kiss-matcher"):
        kiss = open_method("kiss-matcher", "cpu")
        solvers[KISS] = lambda p: answer(kiss(p))
    return solvers


def open3d_clouds(problem: Problem) -> Iterator[tuple[Any, Any]]:
    import open3d as o3d

    search = o3d.geometry.KDTreeSearchParamHybrid
    assert problem.scans is not None
    for scan in problem.scans:
        cloud = o3d.geometry.PointCloud(
            o3d.utility.Vector3dVector(np.array(scan))
        ).voxel_down_sample(SCALE.voxel_size)
        cloud.estimate_normals(search(SCALE.normal_radius, 30))
        hybrid = search(SCALE.feature_radius, 100)
        yield cloud, o3d.pipelines.registration.compute_fpfh_feature(cloud, hybrid)


def open3d_ransac(problem: Problem) -> Answer:
    """Register by Open3D's RANSAC as in its guide, with 100,000 samples."""
    import open3d as o3d

    registration = o3d.pipelines.registration
    o3d.utility.random.seed(0)
    (source, a), (target, b) = open3d_clouds(problem)
    near = 1.5 * SCALE.voxel_size
    found = registration.registration_ransac_based_on_feature_matching(
        source, target, a, b, False, near,
        registration.TransformationEstimationPointToPoint(False), 3,
        [
            registration.CorrespondenceCheckerBasedOnEdgeLength(0.9),
            registration.CorrespondenceCheckerBasedOnDistance(near),
        ],
        registration.RANSACConvergenceCriteria(100_000, 0.999),
    )  # fmt: skip
    return np.asarray(found.transformation), EXTERNAL


def open3d_fgr(problem: Problem) -> Answer:
    """Register by Open3D's FGR with the options of our method `fgr`.

    The kernel narrows from the extent of the clouds to the inlier threshold; Open3D's default does
    not narrow it.
    """
    import open3d as o3d

    registration = o3d.pipelines.registration
    o3d.utility.random.seed(0)
    (source, a), (target, b) = open3d_clouds(problem)
    ends = [np.asarray(cloud.points) - cloud.get_center() for cloud in (source, target)]
    radius = max(np.linalg.norm(end, axis=1).max() for end in ends) / SCALE.inlier_threshold
    found = registration.registration_fgr_based_on_feature_matching(
        source, target, a, b, fgr_option(float(radius))
    )
    return np.asarray(found.transformation), EXTERNAL


def network_products(config: NetworkConfig, n: int) -> list[tuple[int, int, int, int]]:
    """List (times, rows, inner, columns) of the dense network's matrix products on n matches."""
    d, z, h = config.width, config.latent_width, config.hidden_width
    branch = [(z + d, h), (h, 3 * h), (h, 3 * h), (h, h), (h, z), (z + h, d)]
    layers = [shape for shape in branch for _ in range(3)] if config.variational else [(d, d)]
    layers += [(d, d)] * 3 + [(d, d // 2), (d // 2, d // 2), (d // 2, d)]
    products = [(n, inner, columns) for inner, columns in layers] + [(n, d, n), (n, n, d)]
    return [(config.iterations, *shape) for shape in products]


def product_time(config: NetworkConfig, n: int, device: torch.device) -> float:
    """Return the seconds that torch's float32 product needs for `network_products`, once each.

    `measured` is not used: its look at memory seems to slow the product after it, which would
    flatter the network.
    """
    total = 0.0
    for times, rows, inner, columns in network_products(config, n):
        a, b = (torch.rand(shape, device=device) for shape in ((rows, inner), (inner, columns)))
        out = a @ b
        devices.wait(device)
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        devices.wait(device)
        total += times * (time.perf_counter() - start)
    return total


def stages(problems: Sequence[Labelled], weights: Sequence[str], device: torch.device) -> list[Row]:
    """Medians over pairs, step by step; on a GPU of plain torch, since a recording has no steps.
    Each pair's network and products are timed in turns, and the least of three is taken of both, so
    that neither has the better of a noisy machine."""
    rows = []
    for name in weights:
        backend = "plain" if devices.is_gpu(device) else "auto"
        model = VBReg.from_pretrained(name, device=device, backend=backend)
        estimate(model, problems[0].problem.correspondences)
        timings, floors = [], []
        for labelled in problems:
            turns = [
                (
                    estimate(model, labelled.problem.correspondences).timings,
                    product_time(model.network.config, len(labelled.right), device),
                )
                for _ in range(3)
            ]
            timings.append({stage: min(t[stage] for t, _ in turns) for stage in turns[0][0]})
            floors.append(min(floor for _, floor in turns))
        n = int(np.median([len(p.right) for p in problems]))
        for stage in timings[0]:
            seconds = np.array([t[stage] for t in timings])
            ms = 1e3 * float(np.median(seconds))
            row = {"weights": name, "matches": n, "stage": stage, "median_ms": round(ms, 2)}
            if stage == "network":
                ratio = float(np.median(seconds / np.array(floors)))
                floor = 1e3 * float(np.median(floors))
                row |= {"product_ms": round(floor, 2), "times_product": round(ratio, 2)}
            rows.append(row)
            print(row, flush=True)
    return rows


def resized(labelled: Labelled, n: int) -> Correspondences:
    """n of the matches; beyond their number some twice or more, each moved a little anew."""
    matches = labelled.problem.correspondences
    generator = np.random.default_rng(n)
    whole, rest = divmod(n, len(matches))
    rows = np.concatenate(
        [np.arange(len(matches))] * whole + [generator.permutation(len(matches))[:rest]]
    )
    moved = generator.normal(0, 0.1 * SCALE.voxel_size, (2, n, 3)) * (whole > 0)
    return Correspondences(matches.source[rows] + moved[0], matches.target[rows] + moved[1])


def estimate(model: VBReg, matches: Correspondences) -> Registration:
    """Estimate from all matches, more than are taken by default included."""
    return model.estimate(
        matches.source,
        matches.target,
        inlier_threshold=SCALE.inlier_threshold,
        max_correspondences=max(SIZES[0], len(matches)),
    )


def growth(
    labelled: Labelled, weights: Sequence[str], sizes: Sequence[int], device: torch.device
) -> list[Row]:
    rows = []
    for name in weights:
        model = VBReg.from_pretrained(name, device=device)
        for n in sizes:
            inputs = [resized(labelled, n)] * (5 if n <= 5000 else 1)
            solve = partial(estimate, model)
            timing, found = Timing.of(solve, inputs, device)
            rows.append(
                {
                    "weights": name,
                    "matches": n,
                    "median_ms": round(timing.median, 2),
                    "peak_mb": round(timing.megabytes),
                    "right": right(found[0].T_target_source, labelled),
                }
            )
            print(rows[-1], flush=True)
    return rows


def batches(
    labelled: Labelled, weights: Sequence[str], problems: int, n: int, device: torch.device
) -> list[Row]:
    """Many small problems at once: each other rows of one pair's matches."""
    matches = labelled.problem.correspondences
    generator = np.random.default_rng(0)
    rows = np.stack([generator.permutation(len(matches))[:n] for _ in range(problems)])
    sources, targets = list(matches.source[rows]), list(matches.target[rows])
    found = []
    for name in weights:
        model = VBReg.from_pretrained(name, device=device)
        solve = partial(model.estimate_batch, inlier_threshold=SCALE.inlier_threshold)
        timing, _ = Timing.of(lambda ends, f=solve: f(*ends), [(sources, targets)] * 3, device)
        rate = round(1e3 * problems / timing.median)
        found.append(
            {
                "weights": name,
                "problems": problems,
                "matches each": n,
                "median_ms": round(timing.median, 2),
                "problems a second": rate,
                "peak_mb": round(timing.megabytes),
            }
        )
        print(found[-1], flush=True)
    return found


def plot_growth(rows: Sequence[Row], path: Path) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    from vbreg.benchmark.plots import COLOURS, new_figure, save

    figure, axes = new_figure(width=9.0, height=3.6, columns=2)
    for k, name in enumerate(dict.fromkeys(row["weights"] for row in rows)):
        own = [row for row in rows if row["weights"] == name]
        for axis, column, label in zip(
            axes,
            ("median_ms", "peak_mb"),
            ("milliseconds", "megabytes above the weights"),
            strict=True,
        ):
            seen = [r for r in own if r[column]]
            sizes, costs = ([r[name] for r in seen] for name in ("matches", column))
            axis.loglog(
                sizes,
                costs,
                "o-",
                color=COLOURS[k],
                label=f"{name}, exponent {exponent(sizes, costs):.2f} from {GROWTH_FROM} on",
            )
            axis.set_xlabel("matches")
            axis.set_ylabel(label)
            axis.legend(fontsize=8)
            axis.tick_params(labelsize=8)
            for scale in (axis.xaxis, axis.yaxis):
                scale.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
                scale.set_major_formatter(StrMethodFormatter("{x:,g}"))
                scale.set_minor_formatter(NullFormatter())
    save(figure, path)


def write(output: Path, name: str, title: str, rows: Sequence[Row]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with (output / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    table = markdown_table(columns, [[str(row.get(c, "")) for c in columns] for row in rows])
    return f"## {title}\n\n{table}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, required=True, help="the 3DMatch folder")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/speed"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--weights", default="universal,fast", help="with commas between")
    parser.add_argument("--most", type=int, default=SIZES[-1], help="matches, for growth")
    parser.add_argument("--only", default="matches,clouds,stages,batches,growth")
    options = parser.parse_args()
    device, weights = choose_device(options.device), options.weights.split(",")
    options.output.mkdir(parents=True, exist_ok=True)
    settings = Settings.of("3dmatch", descriptor="fpfh")
    every = max(1, 820 // options.pairs)
    problems = list(labelled_problems(settings, options.root, device=device, every=every))
    names = [*(f"vbreg:{name}" for name in weights), "verified"]
    names += [p for p in PEERS if available(p)]
    typical = min(problems, key=lambda p: abs(len(p.right) - 5000))
    sizes = [n for n in SIZES if n <= options.most]
    tables: dict[str, tuple[str, Callable[[], list[Row]]]] = {
        "matches": (
            "Matches in, pose out",
            lambda: with_ratios(timed(matches_in(names, device), problems, device), "sc2pcr"),
        ),
        "clouds": (
            "Clouds in, pose out",
            lambda: with_ratios(timed(clouds_in(weights, device), problems, device), KISS),
        ),
        "stages": (
            "Where the time goes" + ", in plain torch" * devices.is_gpu(device),
            lambda: stages(problems, weights, device),
        ),
        "batches": ("Problems at once", lambda: batches(typical, weights, 64, 1000, device)),
        "growth": ("Growth", lambda: growth(typical, weights, sizes, device)),
    }
    command = " ".join(
        ["python benchmarks/speed.py --root DATA/3dmatch", *_set_by_user(options, parser)]
    )
    run = describe_run(settings, command, [device_name(device)])
    about = machine(run)
    record = options.output / "run.json"
    runs = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    peers = ", ".join(METHODS[p].title for p in PEERS if available(p))
    parts = [f"# Speed\n\n{len(problems)} pairs of 3DMatch with FPFH, {about}. Peers: {peers}.\n"]
    for name in options.only.split(","):
        title, table = tables[name]
        rows = table()
        parts.append(write(options.output, name, title, rows))
        runs[name] = run
        record.write_text(json.dumps(runs, indent=2) + "\n", encoding="utf-8")
        page = "\n".join([*parts, f"Made by `{command}`.\n"])
        (options.output / "speed.md").write_text(page, encoding="utf-8")
        if name == "growth":
            plot_growth(rows, options.output / "growth.png")


def _set_by_user(options: argparse.Namespace, parser: argparse.ArgumentParser) -> Iterator[str]:
    for name in ("device", "pairs", "weights", "most", "only"):
        if getattr(options, name) != parser.get_default(name):
            yield f"--{name} {getattr(options, name)}"


if __name__ == "__main__":
    main()
