"""benchmarks/*.py: each says how it is used, and speed.py measures what it says."""

from __future__ import annotations

import csv
import json
import math
import runpy
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from tests.experiments import miniature
from tests.scripts.helpers import ROOT, load
from vbreg.datasets import open_pairs
from vbreg.methods import available
from vbreg.motions import exponential
from vbreg.network import NetworkConfig

FILES = sorted((ROOT / "benchmarks").glob("*.py"))
BENCHMARKS = [path.name for path in FILES if "__main__" in path.read_text()]  # less what they share


@pytest.fixture(scope="module")
def speed() -> ModuleType:
    return load("benchmarks/speed.py")


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_says_how_it_is_used(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a GPU, and without the packages that it compares with."""
    monkeypatch.setitem(sys.modules, "open3d", None)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "benchmarks" / name), run_name="__main__")
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {name}")


def test_many_pairs_are_estimated_from_what_was_measured() -> None:
    """Twice the workers, half the hours; the money does not change."""
    throughput = load("benchmarks/throughput.py")
    stages = {"match a pair": 0.1, "read a cloud": 0.5, "describe a cloud": 1.5}
    stages["bytes a cloud"] = 1e6
    batches = [
        {"judged": True, "together": 1, "seconds a pair": 0.9},
        {"judged": True, "together": 4, "seconds a pair": 0.7},
        {"judged": False, "together": 1, "seconds a pair": 0.1},
    ]
    found = {"stages": stages, "batches": batches, "tables": [{"bytes a row": 500.0}]}
    found["solved together"] = 1
    given = ["--total", "3600000", "--pairs-a-cloud", "10", "--reads", "1", "--price", "2"]
    one, two = (
        throughput.estimate(found, throughput._parser().parse_args([*given, "--cluster", n]))
        for n in ("100", "200")
    )
    assert one["worker hours"] == pytest.approx(1000 + 200)  # a second a pair, two a cloud
    assert one["hours"] == pytest.approx(12)
    assert two["hours"] == pytest.approx(6)
    assert one["cost"] == two["cost"] == pytest.approx(2400)
    assert one["network GB"] == one["storage of clouds GB"] == pytest.approx(360)
    assert one["storage of the table GB"] == pytest.approx(1.8)


def test_queries_of_a_map_are_held_out_and_places_lie_apart(tmp_path: Path) -> None:
    """Every scan is in the map or a query; a place moves as a whole, queries with it."""
    throughput = load("benchmarks/throughput.py")
    poses = [exponential(np.array([0, 0, k / 10, k, 0, 0])) for k in range(10)]
    scenes = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        files = [tmp_path / name / f"{k}.npy" for k in range(10)]
        for k, path in enumerate(files):
            np.save(path, np.full((4, 3), float(k)))
        scenes.append(throughput.Scene(name, files, poses))
    clouds, T, queries = throughput.held_out(scenes, 5)
    assert len(clouds) == len(T) == 16
    assert [int(query.points[0, 0]) for query in queries] == [2, 7, 2, 7]
    assert {path.stem for path in clouds}.isdisjoint({"2", "7"})
    for place, shift in ((0, 0.0), (1, throughput.APART)):
        for k, query in zip((2, 7), queries[2 * place :], strict=False):
            expected = poses[k].copy()
            expected[0, 3] += shift
            np.testing.assert_array_equal(query.T_map_query, expected)
    assert len(throughput.held_out(scenes, 5, fragments=8)[2]) == 4
    assert len(throughput.held_out(scenes, 5, fragments=32)[0]) == 16


@pytest.mark.parametrize(("degrees", "metres", "right"), [(14, 0.29, 1), (16, 0, 0), (0, 0.31, 0)])
def test_a_real_query_is_right_as_a_pair_of_3dmatch_is(
    degrees: float, metres: float, right: int
) -> None:
    throughput = load("benchmarks/throughput.py")
    truth = exponential(np.array([0.1, 0.2, 0.3, 1, 2, 3]))
    found = truth @ exponential(np.array([0, 0, math.radians(degrees), 0, 0, 0]))
    found[0, 3] += metres
    assert throughput.is_right(found, truth, np.full((5, 3), 4.0), real=True) == bool(right)


def test_speed_is_measured_and_written(
    speed: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one small pair, by a few methods; every row says which backend was timed."""
    root = miniature.write(tmp_path / "data") / "3dmatch"
    monkeypatch.setattr(speed, "PEERS", ("sc2pcr", "sm"))
    output = tmp_path / "out"
    options = {"root": root, "output": output, "device": "cpu", "pairs": 1, "weights": "fast"}
    options |= {"most": 250, "only": "matches,clouds,stages,growth"}
    command = [f"--{name}={value}" for name, value in options.items()]
    monkeypatch.setattr(sys, "argv", ["speed.py", *command])
    speed.main()
    rows = {}
    for name in ("matches", "clouds", "stages", "growth"):
        with (output / f"{name}.csv").open(newline="") as file:
            rows[name] = list(csv.DictReader(file))
        assert all(float(row["median_ms"]) > 0 for row in rows[name])
    methods = ["vbreg:fast", "verified", "sc2pcr", "sm"]
    assert [row["method"] for row in rows["matches"]] == methods
    assert {row["backend"] for row in rows["matches"]} == {"cpu"}
    assert [row["right"] for row in rows["matches"]][:3] == ["1/1"] * 3
    ratios = {row["method"]: float(row["times sc2pcr"]) for row in rows["matches"]}
    assert ratios["sc2pcr"] == 1.0
    backends = {row["method"]: row["backend"] for row in rows["clouds"]}
    assert backends["vbreg fast"] == "cpu"
    if available("kiss-matcher"):
        assert backends[speed.KISS] == "external"
    stages = ["network", "vote", "estimate", "refine"]
    assert [row["stage"] for row in rows["stages"]] == stages
    assert [row["matches"] for row in rows["growth"]] == ["250"]
    recorded = json.loads((output / "run.json").read_text())
    assert set(recorded) == {"matches", "clouds", "stages", "growth"}
    assert "--pairs 1" in recorded["matches"]["command"]
    assert str(tmp_path) not in json.dumps(recorded)
    assert "## Matches in, pose out" in (output / "speed.md").read_text()
    assert (output / "growth.png").exists()


def test_products_are_those_of_the_network(speed: ModuleType) -> None:
    """Their number is that of its matrix products: attention, and layers once an iteration."""
    config = NetworkConfig(iterations=3, width=32, latent_width=16, hidden_width=24, label_width=8)
    products = speed.network_products(config, 100)
    assert {times for times, *_ in products} == {3}
    assert (3, 100, 32, 100) in products
    assert (3, 100, 100, 32) in products
    plain = speed.network_products(NetworkConfig(iterations=3, width=32, variational=False), 100)
    assert len(plain) < len(products)
    flops = [sum(t * a * b * c for t, a, b, c in speed.network_products(config, n)) for n in (1, 2)]
    assert 2 < flops[1] / flops[0] < 4
    assert speed.product_time(config, 50, torch.device("cpu")) > 0


def test_ratios_are_to_the_named_row_if_it_is_there(speed: ModuleType) -> None:
    rows = [{"method": "a", "median_ms": 3.0}, {"method": "b", "median_ms": 1.5}]
    assert [row["times b"] for row in speed.with_ratios(rows, "b")] == [2.0, 1.0]
    assert speed.with_ratios(rows, "c") == rows


@pytest.mark.parametrize("n", [10, 50, 120])
def test_matches_are_thinned_or_repeated_to_a_number(speed: ModuleType, n: int) -> None:
    generator = np.random.default_rng(0)
    ends = generator.uniform(0, 2, (2, 50, 3))
    from vbreg.benchmark.problems import Labelled
    from vbreg.datasets import Pair
    from vbreg.methods import Problem

    problem = Problem.of_points(*ends, 0.1)
    labelled = Labelled(Pair("a", *ends, np.eye(4)), problem, np.ones(50, bool))
    found = speed.resized(labelled, n)
    assert len(found) == n
    near = np.linalg.norm(found.source[:, None] - ends[0], axis=-1).min(1)
    assert near.max() < 0.05
    assert (near.max() == 0) == (n < 50)


def test_the_pairs_of_the_small_data_are_opened(tmp_path: Path) -> None:
    root = miniature.write(tmp_path)
    assert open_pairs("3dmatch", root / "3dmatch").names == miniature.NAMES
    drives = open_pairs("kitti", root / "kitti" / "dev").scenes
    assert {drive: list(drives).count(drive) for drive in drives} == {"03": 2, "03_20m": 2}
