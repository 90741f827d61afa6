from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vbreg import io
from vbreg.errors import FileFormatError, MissingExtraError
from vbreg.io import meshes

ENDINGS = [".obj", ".stl", ".glb", ".off"]


@pytest.fixture
def trimesh() -> Any:
    return pytest.importorskip("trimesh", reason="vbreg[mesh] is not installed")


@pytest.mark.parametrize(
    "ending", [ENDINGS[0], *(pytest.param(e, marks=pytest.mark.slow) for e in ENDINGS[1:])]
)
def test_points_lie_evenly_on_the_surface(tmp_path: Path, trimesh: Any, ending: str) -> None:
    box = trimesh.creation.box(extents=(2, 4, 1))
    box.export(tmp_path / f"a{ending}")
    cloud = io.read(tmp_path / f"a{ending}")
    assert len(cloud) == meshes.SAMPLES
    outside = np.abs(cloud.points) / [1, 2, 0.5]
    np.testing.assert_allclose(outside.max(axis=1), 1, atol=1e-6)
    normals = np.stack([cloud.attributes[name] for name in ("nx", "ny", "nz")], axis=1)
    np.testing.assert_allclose(np.linalg.norm(normals, axis=1), 1, atol=1e-6)
    top = (normals[:, 2] > 0.5).mean()  # 8 of 28 square metres lie above and below
    assert top == pytest.approx(4 * 2 / 28, abs=0.01)
    np.testing.assert_array_equal(io.read(tmp_path / f"a{ending}").points, cloud.points)


def test_corners_alone_are_points(tmp_path: Path, trimesh: Any) -> None:
    (tmp_path / "a.obj").write_text("v 1 2 3\nv 4 5 6\n")
    np.testing.assert_array_equal(io.read(tmp_path / "a.obj").points, [[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        *((ending, b"nonsense") for ending in ENDINGS),
        (".obj", b"v 0 0 0\nf 1 1 1\n"),  # a triangle without area
        (".off", b"OFF\n1 1 0\n0 0 0\n3 0 0 0\n"),
    ],
)
def test_what_is_no_surface(tmp_path: Path, trimesh: Any, ending: str, content: bytes) -> None:
    path = tmp_path / f"a{ending}"
    path.write_bytes(content)
    with pytest.raises(FileFormatError) as caught:
        io.read(path)
    assert str(path) in str(caught.value)


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trimesh", None)
    with pytest.raises(MissingExtraError, match=r"reading STL files needs.*vbreg\[mesh\]"):
        io.read(tmp_path / "a.stl")
