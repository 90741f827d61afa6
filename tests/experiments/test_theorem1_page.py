"""The page follows the numbers, and two runs write the same."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import SMALL, fresh
from tests.experiments.test_theorem1 import write_rooms
from vbreg.benchmark.problems import Settings, labelled_problems
from vbreg.errors import VBRegError
from vbreg.experiments import theorem1_page
from vbreg.experiments.theorem1 import Measurement, poisson_fit
from vbreg.pretrained import save_network


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("posed") / "rooms"
    write_rooms(folder)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    save_network(path, fresh(SMALL))
    return path


def test_run_writes_numbers_page_and_picture(rooms: Path, weights: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    settings = Settings(str(rooms), voxel_size=0.08, points=250)
    files = []
    for name in ("once", "again"):
        page = theorem1_page.run(
            settings, None, tmp_path / name, weights=weights, device="cpu", quiet=True
        )
        files.append([page.with_suffix(end).read_bytes() for end in (".csv", ".md", ".png")])
    assert files[0] == files[1]
    with (tmp_path / "once/theorem1.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["pair"] for row in rows] == ["rooms/0-1", "rooms/0-2", "rooms/1-2"]
    for row in rows:
        assert int(row["inlier_seeds"]) > 0
        alpha, U = float(row["alpha"]), float(row["bound_kappa_50000"])
        assert (alpha < U) == bool(int(row["below_kappa_50000"]))
    text = files[0][1].decode()
    assert "alpha < U holds on" in text
    assert "dispersion" in text


def measurement(counts: np.ndarray, inliers: int = 300) -> Measurement:
    fit = poisson_fit(counts, 40)
    return Measurement("a/0-1", "a", 5000, inliers, 40, 1000, counts, 0.1, fit)


def test_a_pair_without_an_inlier_seed_has_no_terms() -> None:
    row = theorem1_page.csv_row(measurement(np.zeros(0, dtype=np.int64), inliers=0))
    assert row["clean_set_found"] is False
    assert row["ransac_3_1000"] == 0.0
    assert row["below_kappa_1000"] == ""


def test_words_follow_the_numbers() -> None:
    generator = np.random.default_rng(0)
    fine = [measurement(generator.poisson(4.0, 300)) for _ in range(10)]
    wide = [measurement(generator.negative_binomial(1, 0.2, 300)) for _ in range(10)]
    nothing = [measurement(np.zeros(0, dtype=np.int64), inliers=20)]
    assert "near Poisson" in theorem1_page.findings(fine)
    assert "not Poisson" in theorem1_page.findings(wide)
    assert "nothing to measure" in theorem1_page.findings(nothing)
    assert "without an inlier among their seeds: 1" in theorem1_page.findings(wide + nothing)
    few = [measurement(np.full(15, 30), inliers=15)]
    assert "fewer than 40 inliers at all: 1" in theorem1_page.findings(wide + few)


def test_pages_and_pictures_of_poor_data(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    nothing = [measurement(np.zeros(0, dtype=np.int64), inliers=0)]
    clean = [measurement(np.zeros(50, dtype=np.int64), inliers=4000)]
    settings = Settings("3dmatch", descriptor="fpfh")
    for found in (nothing, clean, nothing + clean):
        assert theorem1_page.markdown(found, settings).startswith("# Theorem 1 on 3dmatch, fpfh")
        assert theorem1_page.draw(found, tmp_path / "a.png").stat().st_size > 0
        assert all(isinstance(theorem1_page.csv_row(m)["alpha"], float) for m in found)


def test_no_pairs_left(rooms: Path) -> None:
    device = torch.device("cpu")
    with pytest.raises(VBRegError, match="no pairs"):
        next(labelled_problems(Settings(str(rooms)), None, device=device, limit=0))
