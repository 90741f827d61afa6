"""These fixtures run the command line in this process, with a known pose in place of the search."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.helpers import Outcome, Run, Search, known_pose
from vbreg import cli, io, registration
from vbreg.types import Correspondences, PointCloud, Registration, Uncertainty


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs `vbreg ARGUMENTS...` in this process."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def invoke(*arguments: str | Path) -> Outcome:
        with pytest.raises(SystemExit) as stop:
            cli.main([str(argument) for argument in arguments])
        streams = capsys.readouterr()
        return Outcome(int(stop.value.code or 0), streams.out, streams.err)

    return invoke


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Search:
    n = 200
    matches = Correspondences(np.zeros((n, 3)), np.zeros((n, 3)))
    result = Registration(
        T_target_source=known_pose(),
        correspondences=matches,
        inliers=np.arange(n) < 120,
        confidence=np.zeros(n, dtype=np.float32),
        score=0.5,
        inlier_rmse=0.03,
        fixed=True,
        inlier_threshold=0.1,
        matches_found=n,
        backend="cpu",
        voxel_size=0.05,
        first_voxel_size=0.05,
        voxel_size_estimated=True,
        points_read=(500, 600),
        points_dropped=(1, 0),
        lone_shares=(0.02, 0.03),
        volume_shares=(0.1, 0.2),
        timings={"prepare": 0.25, "network": 0.5},
        uncertainty_given=Uncertainty(np.diag([1e-4] * 3 + [4e-4] * 3), ()),
    )
    stand_in = Search(result)
    monkeypatch.setattr(registration, "register", stand_in)
    return stand_in


@pytest.fixture
def clouds(tmp_path: Path) -> tuple[Path, Path]:
    """Write a source with normals, colour and one point that is not finite, and a bare target."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "in"
    folder.mkdir()
    points = rng.random((500, 3))
    points[7] = np.nan
    normals = rng.normal(size=(500, 3)).astype(np.float32)
    attributes = {axis: normals[:, k] for k, axis in enumerate(("nx", "ny", "nz"))}
    attributes["red"] = rng.integers(0, 255, 500).astype(np.uint8)
    io.write(folder / "source.ply", PointCloud(points, attributes))
    io.write(folder / "target.ply", rng.random((600, 3)))
    return folder / "source.ply", folder / "target.ply"
