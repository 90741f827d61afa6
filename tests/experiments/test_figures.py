"""Numbers behind the figures against naive twins; every figure is drawn once from small data."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import SMALL, fresh, make_problem
from tests.experiments.test_theorem1 import labelled, write_rooms
from vbreg import VBReg
from vbreg.benchmark.predict import predict
from vbreg.benchmark.problems import Settings
from vbreg.benchmark.score import NAN, Row
from vbreg.errors import VBRegError
from vbreg.experiments import figures
from vbreg.methods import Problem
from vbreg.network import NetworkConfig, VariationalNonLocalNetwork
from vbreg.pretrained import save_network


@pytest.mark.parametrize("inlier_ratio", [0.3, 0.01, 0.0, 1.0])
def test_compatible_shares_by_hand(inlier_ratio: float) -> None:
    made = make_problem(80, inlier_ratio)
    x, y, right = made.source / 0.3, made.target / 0.3, made.inliers
    groups: dict[tuple[bool, bool], list[bool]] = {}
    for i in range(80):
        for j in range(80):
            if i != j:
                d = abs(np.linalg.norm(x[i] - x[j]) - np.linalg.norm(y[i] - y[j]))
                groups.setdefault((right[i], right[j]), []).append(d < 1)
    shares = figures.compatible_shares(*(torch.from_numpy(a) for a in (x, y, right)))
    for share, kinds in zip(shares, [(True, True), (True, False), (False, False)], strict=True):
        expected = np.mean(groups[kinds]) if kinds in groups else NAN
        assert share == pytest.approx(expected, nan_ok=True)


def test_compatible_shares_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_problem(150)
    ends = [torch.from_numpy(a) for a in (made.source / 0.1, made.target / 0.1, made.inliers)]
    whole = figures.compatible_shares(*ends)
    monkeypatch.setattr("vbreg.compatibility.MAX_MAP_BYTES", 20_000)
    assert figures.compatible_shares(*ends) == whole


def test_feature_similarity_by_hand() -> None:
    features = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    right = torch.arange(40) % 3 == 0
    unit = [f / f.norm() for f in features]
    inliers = right.nonzero().flatten().tolist()
    outliers = (~right).nonzero().flatten().tolist()
    among = np.mean([float(unit[a] @ unit[b]) for a in inliers for b in inliers if a != b])
    across = np.mean([float(unit[a] @ unit[b]) for a in inliers for b in outliers])
    found = figures.feature_similarity(features, right)
    assert found == pytest.approx((among, across), abs=1e-6)


def test_feature_similarity_at_its_ends() -> None:
    one = figures.feature_similarity(torch.ones(5, 3), torch.arange(5) == 0)
    assert np.isnan(one.among_inliers)
    assert one.to_outliers == pytest.approx(1.0)
    every = figures.feature_similarity(torch.ones(5, 3), torch.ones(5, dtype=torch.bool))
    assert every.among_inliers == 1.0
    assert np.isnan(every.to_outliers)


def test_similarity_does_not_depend_on_the_frame(small_network: VariationalNonLocalNetwork) -> None:
    model, problem = VBReg(small_network), labelled()
    value = figures.last_similarity(model, problem)
    assert all(-1.0 <= v <= 1.0 for v in value)
    matches = problem.problem.correspondences
    moved = Problem.of_points(matches.source + 100.0, matches.target, 0.1)
    problem = replace(problem, problem=moved)
    assert figures.last_similarity(model, problem) == pytest.approx(value, abs=1e-4)


def row(k: int, success: bool, inlier_ratio: float, overlap: float, method: str = "vbreg") -> Row:
    errors = (1.0, 0.05) if success else (90.0, 2.0)
    return Row(
        pair=f"a/{k}-9", scene="a", method=method, success=success, rotation_error=errors[0],
        translation_error=errors[1], rmse=NAN, rmse_counts=False, overlap=overlap, matches=500,
        inlier_ratio=inlier_ratio, inlier_precision=1.0, inlier_recall=1.0, inlier_f1=1.0,
        device="cpu", backend="cpu", seconds=0.1, megabytes=10.0,
    )  # fmt: skip


def test_recall_by_inlier_ratio() -> None:
    low = [row(k, k < 3, 0.03, 0.2) for k in range(10)]
    high = [row(10 + k, True, 0.5, 0.2) for k in range(6)]
    rare = [row(30, True, 0.12, 0.2)]
    bins = figures.recall_bins([*low, *high, *rare])
    assert [(b.inlier_ratio_from, b.inlier_ratio_to, b.pairs) for b in bins] == [
        (0.02, 0.04, 10),
        (0.25, 1.0, 6),
    ]
    assert [b.recall.value for b in bins] == [0.3, 1.0]
    assert all(0 <= b.recall.low <= b.recall.value <= b.recall.high <= 1 for b in bins)


def test_chosen_pairs_follow_the_rule() -> None:
    rows = [row(k, k not in (4, 6), 0.1, 0.1 * k) for k in range(1, 8)]
    shown = figures.chosen_pairs(rows[::-1])
    assert [s.pair for s in shown] == ["a/1-9", "a/2-9", "a/3-9", "a/6-9"]
    assert [s.success for s in shown] == [True, True, True, False]
    assert shown[0].title.startswith("Success, lowest overlap (10 %): a/1-9")
    assert shown[-1].title.startswith("FAILURE, highest overlap (60 %)")


def test_chosen_pairs_without_overlap() -> None:
    rows = [row(k, True, 0.9 - 0.1 * k, NAN) for k in range(4)]
    shown = figures.chosen_pairs(rows)
    assert [s.pair for s in shown] == ["a/3-9", "a/2-9", "a/1-9"]  # and no failure to show
    assert "inlier ratio (60 %)" in shown[0].title


def write_log(folder: Path, pairs: list[int], values: list[float]) -> None:
    folder.mkdir()
    lines = []
    for k, (p, v) in enumerate(zip(pairs, values, strict=True)):
        lines.append({"kind": "train", "step": k, "pairs": p, "label_prior": v})
        lines.append({"kind": "validation", "step": k, "pairs": p, "recall": v, "inlier_f1": v})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_parts_of_a_run_are_joined(tmp_path: Path) -> None:
    parts = [tmp_path / "first", tmp_path / "second"]
    write_log(parts[0], [10, 20, 30], [0.1, 0.2, 0.3])
    write_log(parts[1], [5, 15], [0.4, 0.5])
    whole, smooth = (
        figures.curve_points("a", parts, figures.Curve("train", "label_prior", "", 1.0, n))
        for n in (1, 2)
    )
    assert [p.pairs for p in whole] == [10, 20, 30, 35, 45]
    assert [(p.pairs, p.value) for p in smooth] == [
        (20, pytest.approx(0.15)),
        (35, pytest.approx(0.35)),
    ]


def test_methods_of_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(VBRegError, match="holds no predictions"):
        figures.solved_methods(tmp_path)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All figures of six pairs, by an untrained network of each kind."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("figures")
    write_rooms(folder / "rooms", clouds=4)
    plain = VariationalNonLocalNetwork(NetworkConfig(iterations=2, width=16, variational=False))
    weights = {"VBNonlocal": folder / "vb.safetensors", "SCNonlocal": folder / "sc.safetensors"}
    for path, network in zip(weights.values(), (fresh(SMALL), plain), strict=True):
        save_network(path, network)
    write_log(folder / "log", list(range(10, 130, 10)), [0.5] * 12)
    settings = Settings(str(folder / "rooms"), voxel_size=0.08, points=250)
    methods = [f"vbreg:{weights['VBNonlocal']}", "sm"]
    predict(settings, methods, folder / "benchmark", device="cpu", quiet=True)
    figures.run(
        None,
        folder / "out",
        datasets=[str(folder / "rooms")],
        descriptors=["fpfh"],
        weights=weights,
        benchmark=folder / "benchmark",
        training={"VBNonlocal": [folder / "log"]},
        device="cpu",
        limit=2,
        quiet=True,
    )
    return folder / "out"


@pytest.mark.parametrize("name", ["ambiguity", "similarity", "recall", "training", "alignments"])
def test_every_figure_has_a_picture_and_its_numbers(drawn: Path, name: str) -> None:
    with Image.open(drawn / f"{name}.png") as image:
        assert np.ptp(np.asarray(image.convert("L"))) > 100
    with (drawn / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert all(None not in row.values() for row in rows)


def test_ambiguity_numbers(drawn: Path) -> None:
    with (drawn / "ambiguity.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    for numbers in rows:
        assert numbers["benchmark"] == "rooms, FPFH"
        assert float(numbers["inlier_inlier"]) > float(numbers["inlier_outlier"])


def test_no_ingredients_no_figures(tmp_path: Path) -> None:
    assert figures.run(None, tmp_path, datasets=()) == []
