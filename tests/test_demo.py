"""The pair of scans that comes with the package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial import cKDTree

from vbreg import demo, io
from vbreg.errors import FileFormatError


def test_the_truth_is_a_rigid_motion_that_aligns_the_pair() -> None:
    source, target, T = demo.load()
    np.testing.assert_allclose(T[:3, :3] @ T[:3, :3].T, np.eye(3), atol=1e-6)
    assert np.linalg.det(T[:3, :3]) == pytest.approx(1, abs=1e-6)
    np.testing.assert_array_equal(T[3], [0, 0, 0, 1])

    tree = cKDTree(target.points)
    before = tree.query(source.points)[0]
    after = tree.query(source.points @ T[:3, :3].T + T[:3, 3])[0]
    assert np.mean(after < 0.05) == pytest.approx(0.41, abs=0.01)
    assert np.mean(before < 0.05) < 0.05
    angle = np.degrees(np.arccos((np.trace(T[:3, :3]) - 1) / 2))
    assert angle > 90


def test_the_scans_are_small_enough_to_ship() -> None:
    assert sum(path.stat().st_size for path in demo.DEMO_FOLDER.iterdir()) < 500_000


def test_a_missing_folder_is_a_users_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "DEMO_FOLDER", tmp_path)
    with pytest.raises(FileFormatError, match="reinstall"):
        demo.load()


def test_the_scans_are_copied_and_no_file_of_yours_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "scans"
    for _ in range(2):  # also where they are already
        files = demo.copy_to(folder)
        assert files == [folder / "source.ply", folder / "target.ply"]
    for path, cloud in zip(files, demo.load()[:2], strict=True):
        np.testing.assert_array_equal(io.read(path).points, cloud.points)
    assert sorted(folder.iterdir()) == files
    files[1].write_text("mine")
    with pytest.raises(FileFormatError, match="there is another file already"):
        demo.copy_to(folder)
    assert files[1].read_text() == "mine"
    with pytest.raises(FileFormatError, match="no folder can be made there"):
        demo.copy_to(files[1])
    with pytest.raises(FileFormatError, match="no folder can be made there"):
        demo.copy_to(tmp_path / "none" / "scans")
