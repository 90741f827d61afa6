from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.helpers import Run, Search, known_pose
from vbreg import demo, io
from vbreg.types import PointCloud


def test_demo_compares_with_the_truth(
    run: Run, search: Search, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    source, target = PointCloud(rng.random((90, 3))), PointCloud(rng.random((90, 3)))
    truth = known_pose()
    monkeypatch.setattr(demo, "load", lambda: (source, target, truth))
    truth[0, 3] += 0.02
    outcome = run("demo", "--picture", tmp_path / "demo.png")
    assert outcome.code == 0
    assert "off by 0.00 deg and 2.0 cm" in outcome.out
    assert Image.open(tmp_path / "demo.png").format == "PNG"
    truth[0, 3] += 5
    assert run("demo", "--picture", tmp_path / "demo.png").code == 1


def test_demo_writes_its_scans_to_try_other_commands_on(
    run: Run, search: Search, tmp_path: Path
) -> None:
    picture, folder = tmp_path / "demo.png", tmp_path / "scans"
    outcome = run("demo", "--picture", picture, "--files", folder)
    for role, cloud in zip(("source", "target"), demo.load()[:2], strict=True):
        path = folder / f"{role}.ply"
        assert f"wrote        {path}\n" in outcome.out
        np.testing.assert_array_equal(io.read(path).points, cloud.points)
