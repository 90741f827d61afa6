"""How many pairs a machine registers in an hour, and what ten million pairs take on a cluster.

    python benchmarks/throughput.py                                 # a GPU, if there is one
    python benchmarks/throughput.py --device cpu --places 1 --pairs 8 --workers 1,2
    python benchmarks/throughput.py --clouds DATA/3dmatch/fragments --voxel-size 0.05
    python benchmarks/throughput.py --map --fragments 200           # queries against a map
    python benchmarks/throughput.py --map --scenes DATA/3dmatch     # the same with real scans
    python benchmarks/throughput.py --estimate-only out.json --price 2.5 --pairs-a-cloud 20

Clouds are simulated rooms, or the files of a folder (each folder in it is a scene). Measured are
reading and describing a cloud, pairs one by one and in batches, and `vbreg batch` from a table to a
table. From these it is computed what `--total` pairs take with `--cluster` workers: hours, network,
storage, and money as hours times a price that you give. Neither Ray nor pyarrow is needed.

With `--map --scenes` the fragments of 3DMatch lie in a map under their true poses, less every
`--every`-th of a scene, which is a query: one map for each scene, then one of all of them.
The map of all holds sun3d-hotel1 and sun3d-hotel3, which are one room: a query that is found in the
other's copy of it counts as wrong.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vbreg import io
from vbreg.backends import devices
from vbreg.backends.devices import choose_device, device_name
from vbreg.batch import BatchSettings, register_table
from vbreg.batch.tables import write_table
from vbreg.maps import Map
from vbreg.matching import DescribedCloud, MatchedClouds, describe, match_clouds
from vbreg.metrics import pose_error
from vbreg.model import SOLVED_TOGETHER, SOLVED_TOGETHER_CPU, VBReg
from vbreg.scale import Scale
from vbreg.scenes.retrieval import similarities_to
from vbreg.simulator import make_place
from vbreg.timing import Stopwatch
from vbreg.types import SURE, Float64

KIND = "room_camera"  # of simulated places
APART = 100.0  # metres between places of a map
HELD_OUT = 8  # every so many-th scan is a query and not part of the map
RIGHT = (5.0, 0.3)  # degrees and metres of a simulated query that is located, at its middle
RIGHT_REAL = (15.0, 0.3)  # the same of a real one, at its origin, as 3DMatch counts pairs
Row = dict[str, Any]


class Scene(NamedTuple):
    """Files of clouds of one place, and their poses where these are known."""

    name: str
    files: list[Path]
    poses: list[Float64] | None  # T_world_cloud


class Query(NamedTuple):
    """A scan that is not in the map, and where it belongs."""

    points: Float64
    T_map_query: Float64


def simulated(folder: Path, places: int) -> list[Scene]:
    """Write the scans of some rooms to files."""
    scenes = []
    for seed in range(places):
        place = make_place(KIND, seed)
        (folder / str(seed)).mkdir()
        files = [folder / str(seed) / f"cloud_{k}.ply" for k in range(len(place.scans))]
        for path, scan in zip(files, place.scans, strict=True):
            io.write(path, scan.points)
        scenes.append(Scene(str(seed), files, [scan.T_world_scan for scan in place.scans]))
        _say(f"simulated {seed + 1} of {places} places")
    return scenes


def of_folder(folder: Path) -> list[Scene]:
    """List the clouds of a folder, or those of each folder in it."""
    endings = {row.ending for row in io.FORMATS if row.reads}
    inside = sorted(path for path in folder.iterdir() if path.is_dir()) or [folder]
    scenes = {
        each.name: [path for path in sorted(each.iterdir()) if path.suffix in endings]
        for each in inside
    }
    return [Scene(name, files, None) for name, files in scenes.items() if len(files) > 1]


def of_3dmatch(root: Path, names: Sequence[str]) -> list[Scene]:
    """List the fragments of 3DMatch that its pairs give a pose to."""
    from scene_truth import threedmatch_scenes, with_rotations

    found = []
    for scene in threedmatch_scenes(root, names):
        known = sorted(scene.truth[0])
        poses = with_rotations(np.stack([scene.truth[0][k] for k in known]))
        files = [Path(str(scene.clouds[k])) for k in known]
        found.append(Scene(scene.name, files, list(poses)))
    return found


def pairs_of(scenes: Sequence[Scene], most: int) -> list[tuple[Path, Path]]:
    """Return pairs of neighbouring clouds, of all scenes alike."""
    found = [
        (scene.files[k + step], scene.files[k])
        for step in (1, 2, 3)
        for scene in scenes
        for k in range(len(scene.files) - step)
    ]
    return found[:most]


def now(device: torch.device) -> float:
    """Return the time in seconds, when a GPU has done its work.

    On a CPU it is that of this process's core, which other programs do not lengthen.
    """
    devices.wait()
    return time.process_time() if str(device) == "cpu" else time.perf_counter()


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a run, after one that warms up."""
    work()
    start = now(device)
    work()
    return now(device) - start


def stages(
    pairs: Sequence[tuple[Path, Path]], model: VBReg, scale: Scale
) -> tuple[Row, list[MatchedClouds]]:
    """Measure reading and describing clouds, and return them matched."""
    files = sorted({path for pair in pairs for path in pair})
    start = now(model.device)
    clouds = {path: io.read(path).points for path in files}
    reading = (now(model.device) - start) / len(files)
    described: dict[Path, DescribedCloud] = {}

    def work() -> None:
        for path, points in clouds.items():
            described[path] = describe(points, scale, device=model.device)

    describing = seconds_of(work, model.device) / len(files)

    def match() -> list[MatchedClouds]:
        return [match_clouds(described[a], described[b], scale) for a, b in pairs]

    matching = seconds_of(match, model.device) / len(pairs)
    matched = match()
    return {
        "clouds": len(files),
        "bytes a cloud": statistics.mean(path.stat().st_size for path in files),
        "points a cloud": statistics.mean(len(points) for points in clouds.values()),
        "read a cloud": reading,
        "describe a cloud": describing,
        "match a pair": matching,
        "matches a pair": statistics.mean(len(each.source_index) for each in matched),
    }, matched


def batches(matched: Sequence[MatchedClouds], model: VBReg, sizes: Sequence[int]) -> list[Row]:
    """Measure one by one and so many together, with and without the judge."""
    rows = []
    for verify in (True, False):
        for size in sizes:
            groups = [matched[k : k + size] for k in range(0, len(matched), size)]

            def work(groups: list[Any] = groups, verify: bool = verify) -> None:
                for group in groups:
                    model.solve_batch(group, verify=verify)

            seconds = seconds_of(work, model.device) / len(matched)
            clock = Stopwatch()
            for group in groups:
                model.solve_batch(group, verify=verify, clock=clock)
            whole = sum(clock.seconds.values())
            parts = {f"{stage} %": round(100 * s / whole) for stage, s in clock.seconds.items()}
            rows.append({"judged": verify, "together": size, "seconds a pair": seconds, **parts})
            _say(f"batches of {size}, verify {verify}: {seconds * 1000:.1f} ms a pair")
    return rows


def tables(
    pairs: Sequence[tuple[Path, Path]], voxel_size: float, device: str, workers: Sequence[int]
) -> list[Row]:
    """Measure `vbreg batch`, from a table to a table, the start of its processes included."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        table = Path(name) / "pairs.csv"
        cells = ({"source": str(a.absolute()), "target": str(b.absolute())} for a, b in pairs)
        write_table(table, {"source": str, "target": str}, cells)
        settings = BatchSettings(voxel_size=voxel_size)
        for count in workers:
            output = Path(name) / f"poses{count}.csv"
            done = register_table(table, output, settings=settings, workers=count, device=device)
            rows.append(
                {
                    "workers": count,
                    "pairs": done.rows,
                    "seconds": done.seconds,
                    "pairs a second": done.rows / done.seconds,
                    **done.counts,
                    "bytes a row": output.stat().st_size / done.rows,
                }
            )
            _say(f"vbreg batch with {count} workers: {done.rows / done.seconds:.2f} pairs/s")
    return rows


def held_out(
    scenes: Sequence[Scene], every: int, fragments: int | None = None
) -> tuple[list[Path], list[Float64], list[Query]]:
    """Return the clouds of a map, their poses, and as many queries as its places allow."""
    clouds: list[Path] = []
    poses: list[Float64] = []
    queries = []
    for place, scene in enumerate(scenes):
        assert scene.poses is not None
        for k, (path, T) in enumerate(zip(scene.files, scene.poses, strict=True)):
            T_map = T.copy()
            T_map[:3, 3] += np.array([place % 10, place // 10, 0]) * APART
            if k % every == every // 2:
                queries.append(Query(io.read(path).points, T_map))
            elif fragments is None or len(clouds) < fragments:
                clouds.append(path)
                poses.append(T_map)
    reached = 1.0 if fragments is None else len(clouds) / fragments
    return clouds, poses, queries[: max(1, int(len(queries) * reached))]


def map_queries(
    name: str,
    scenes: Sequence[Scene],
    options: argparse.Namespace,
    model: VBReg,
) -> Row:
    """Measure queries against a map: how long they take, how many are right, and trusted."""
    real = options.scenes is not None
    clouds, poses, queries = held_out(scenes, options.every, None if real else options.fragments)
    start = time.perf_counter()
    place_map = Map.build(clouds, poses, voxel_size=options.voxel_size, model=model)
    built = time.perf_counter() - start
    _say(f"{place_map} built in {built:.1f} s")
    times, found, right = [], [], []
    for points, T_map_query in queries:
        times.append(query_seconds(place_map, points, model.device))
        found.append(place_map.locate(points))
        right.append(is_right(found[-1].T_target_source, T_map_query, points, real))
    whole, describing, shortlist = (
        [1000 * seconds for seconds in column] for column in zip(*times, strict=True)
    )
    trusted = [(each.success_probability or 0.0) >= SURE for each in found]
    return {
        "map": name,
        "fragments": len(place_map),
        "queries": len(queries),
        "right": sum(right),
        f"trusted ({SURE:.0%})": sum(trusted),
        "trusted and wrong": sum(t and not r for t, r in zip(trusted, right, strict=True)),
        "build seconds": built,
        "median ms": statistics.median(whole),
        "worst ms": max(whole),
        "describe ms": statistics.median(describing),
        "shortlist ms": statistics.median(shortlist),
    }


def query_seconds(
    place_map: Map, points: Float64, device: torch.device
) -> tuple[float, float, float]:
    """Return the seconds of a query, and of these for describing and comparing it."""
    query = place_map.describe(points)
    return (
        seconds_of(lambda: place_map.locate(points), device),
        seconds_of(lambda: place_map.describe(points), device),
        seconds_of(lambda: similarities_to(query, place_map.table), device),
    )


def is_right(T_map_query: Float64, truth: Float64, points: Float64, real: bool) -> bool:
    """Tell whether a query is located: at the origin of a real one, else about its middle."""
    about = np.eye(4)
    if not real:
        about[:3, 3] = points.mean(0)
    ends = torch.from_numpy(T_map_query @ about), torch.from_numpy(truth @ about)
    return bool(pose_error(*ends).success(*(RIGHT_REAL if real else RIGHT)))


def maps(options: argparse.Namespace, folder: Path, model: VBReg) -> list[Row]:
    """Measure a map of simulated rooms, or those of real scenes, one by one and all in one."""
    if options.scenes is None:
        per_place = options.every - 1  # fragments of a place of eight scans, less the query
        scenes = simulated(folder, -(-options.fragments // per_place))
        return [map_queries("simulated rooms", scenes, options, model)]
    names = [name for name in (options.only or "").split(",") if name]
    scenes = of_3dmatch(options.scenes, names)
    rows = [map_queries(scene.name, [scene], options, model) for scene in scenes]
    if len(scenes) > 1:
        rows.append(map_queries("all in one", scenes, options, model))
    return rows


def estimate(found: Row, options: argparse.Namespace) -> Row:
    """Compute what many pairs take on a cluster from what was measured on this machine."""
    stage = found["stages"]
    judged = [row for row in found["batches"] if row["judged"]]
    shipped = [row for row in judged if row["together"] <= found["solved together"]]
    best = max(shipped, key=lambda row: row["together"])  # as `vbreg batch` solves them
    clouds = options.total / options.pairs_a_cloud
    pair = stage["match a pair"] + best["seconds a pair"]
    cloud = options.reads * (stage["read a cloud"] + stage["describe a cloud"])
    seconds = (options.total * pair + clouds * cloud) / options.cluster
    read = clouds * options.reads * stage["bytes a cloud"]
    hours = seconds / 3600
    return {
        "pairs": options.total,
        "clouds": clouds,
        "workers": options.cluster,
        "seconds a pair": pair,
        "seconds a cloud": cloud,
        "hours": hours,
        "worker hours": hours * options.cluster,
        "price a worker hour": options.price,
        "cost": None if options.price is None else hours * options.cluster * options.price,
        "network GB": read / 1e9,
        "network MB/s": read / seconds / 1e6,
        "storage of clouds GB": clouds * stage["bytes a cloud"] / 1e9,
        "storage of the table GB": options.total * found["tables"][0]["bytes a row"] / 1e9,
    }


def report(found: Row) -> str:
    """Return what was measured as text with tables."""
    lines = [f"on {found['device']}, torch {found['torch']}", ""]
    if "stages" in found:
        lines += [*_table([found["stages"]]), "", *_table(found["batches"]), ""]
        lines += [*_table(found["tables"]), "", *_table([found["estimate"]], across=False), ""]
    if "map" in found:
        lines += _table(found["map"])
    return "\n".join(lines)


def _table(rows: Sequence[Row], across: bool = True) -> list[str]:
    if not across:
        return ["| | |", "|---|---|", *(f"| {k} | {_cell(v)} |" for k, v in rows[0].items())]
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return head + ["| " + " | ".join(_cell(row.get(n)) for n in names) + " |" for row in rows]


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--places", type=int, default=4, help="simulated, of eight scans each")
    parser.add_argument("--clouds", type=Path, help="a folder of clouds instead")
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--voxel-size", type=float, default=0.05)
    parser.add_argument("--together", default="1,2,4,8,16,32", help="sizes of batches")
    parser.add_argument("--workers", help="of `vbreg batch`, with commas; left out, one and all")
    parser.add_argument("--map", action="store_true", help="measure queries against a map instead")
    parser.add_argument("--fragments", type=int, default=200, help="of a simulated map")
    parser.add_argument("--scenes", type=Path, help="3DMatch, for maps of real scans")
    parser.add_argument("--only", help="names of these scenes, with commas; left out, all")
    parser.add_argument("--every", type=int, default=HELD_OUT, help="scan is a query, of a map")
    parser.add_argument("--total", type=int, default=10_000_000, help="pairs of the estimate")
    parser.add_argument("--cluster", type=int, default=64, help="workers of the estimate")
    parser.add_argument("--pairs-a-cloud", type=float, default=10.0, help="pairs for each cloud")
    parser.add_argument("--reads", type=float, default=2.0, help="of a cloud, by several workers")
    parser.add_argument("--price", type=float, help="of a worker's hour, in your currency")
    parser.add_argument("--estimate-only", type=Path, help="from what --output wrote")
    parser.add_argument("-o", "--output", type=Path, help="write all numbers as JSON")
    return parser


def measure(options: argparse.Namespace) -> Row:
    """Measure what is asked for."""
    device = choose_device(options.device)
    model = VBReg.from_pretrained(device=device)
    together = devices.chunk_size(device, cpu=SOLVED_TOGETHER_CPU, gpu=SOLVED_TOGETHER)
    found: Row = {"device": device_name(device), "torch": torch.__version__}
    found["solved together"] = together
    if str(device) == "cpu":
        torch.set_num_threads(1)  # as in a worker
        found["device"] += ", one core a worker"
    with tempfile.TemporaryDirectory() as name:
        if options.map:
            if options.clouds:
                raise SystemExit("--map needs true poses: give --scenes in place of --clouds")
            found["map"] = maps(options, Path(name), model)
            return found
        clouds = options.clouds
        scenes = of_folder(clouds) if clouds else simulated(Path(name), options.places)
        pairs = pairs_of(scenes, options.pairs)
        found["stages"], matched = stages(pairs, model, Scale(options.voxel_size))
        sizes = [int(size) for size in options.together.split(",") if int(size) <= len(matched)]
        found["batches"] = batches(matched, model, sizes)
        every = sorted({1, len(devices.for_workers(options.device, None))})
        counts = [int(n) for n in options.workers.split(",")] if options.workers else every
        found["tables"] = tables(pairs, options.voxel_size, options.device, counts)
    return found


def main() -> None:
    options = _parser().parse_args()
    if options.estimate_only:
        found = json.loads(options.estimate_only.read_text(encoding="utf-8"))
    else:
        found = measure(options)
    if "stages" in found:
        found["estimate"] = estimate(found, options)
    if options.output:
        options.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(report(found))


if __name__ == "__main__":
    main()
