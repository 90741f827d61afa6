"""To Open3D and back; a cloud of Open3D that is registered, and moved by the result."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.test_types import result

import vbreg
from vbreg import PointCloud, VBRegError, demo, io
from vbreg.errors import MissingExtraError
from vbreg.io.names import COLOUR_NAMES


@pytest.fixture
def open3d() -> Any:
    return pytest.importorskip("open3d", reason="needs Open3D: see `make test-baselines`")


def cloud() -> PointCloud:
    rng = np.random.default_rng(0)
    normals = rng.normal(size=(50, 3))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    attributes: dict[str, Any] = dict(zip(("nx", "ny", "nz"), normals.T, strict=True))
    attributes |= {name: rng.integers(0, 256, 50).astype(np.uint8) for name in COLOUR_NAMES}
    return PointCloud(rng.normal((5e5, 5e6, 100.0), size=(50, 3)), attributes)


@pytest.mark.baselines
def test_a_cloud_comes_back_as_it_was(open3d: ModuleType) -> None:
    given = cloud()
    back = io.from_open3d(io.to_open3d(given))
    np.testing.assert_array_equal(back.points, given.points)
    assert set(back.attributes) == set(given.attributes)
    for name, values in given.attributes.items():
        np.testing.assert_array_equal(back.attributes[name], values, err_msg=name)


@pytest.mark.baselines
def test_tensor_clouds_are_taken(open3d: Any) -> None:
    given = cloud()
    tensors = open3d.t.geometry.PointCloud.from_legacy(io.to_open3d(given))
    back = io.from_open3d(tensors)
    np.testing.assert_allclose(back.points, given.points, atol=0.5)  # Open3D holds float32 there


@pytest.mark.baselines
def test_a_bare_cloud_has_no_attributes(open3d: Any) -> None:
    points = np.random.default_rng(0).random((20, 3))
    made = io.to_open3d(PointCloud(points))
    assert not made.has_normals()
    assert not made.has_colors()
    assert dict(io.from_open3d(made).attributes) == {}


@pytest.mark.baselines
def test_the_result_moves_a_copy(open3d: Any) -> None:
    given = cloud()
    theirs = io.to_open3d(given)
    moved = result().apply_to(theirs)
    assert isinstance(moved, open3d.geometry.PointCloud)
    ours = result().apply_to(given)
    np.testing.assert_allclose(np.asarray(moved.points), ours.points, atol=1e-6)
    turned = np.stack([ours.attributes[name] for name in ("nx", "ny", "nz")], axis=1)
    np.testing.assert_allclose(np.asarray(moved.normals), turned, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(theirs.points), given.points)  # not the caller's own


@pytest.mark.baselines
def test_tensor_clouds_and_meshes_are_moved(open3d: Any) -> None:
    tensors = open3d.t.geometry.PointCloud(np.eye(3, dtype=np.float64))
    moved = result().apply_to(tensors).point.positions.numpy()
    np.testing.assert_allclose(moved, result().apply_to(np.eye(3)), atol=1e-4)
    np.testing.assert_array_equal(tensors.point.positions.numpy(), np.eye(3))  # the caller's own
    mesh = open3d.geometry.TriangleMesh.create_box()
    corners = np.array(mesh.vertices)
    moved = result().apply_to(mesh)
    np.testing.assert_allclose(np.asarray(moved.vertices), result().apply_to(corners))
    np.testing.assert_array_equal(np.asarray(mesh.vertices), corners)


@pytest.mark.baselines
def test_from_open3d_to_a_pose_and_back(open3d: Any) -> None:
    source, target, T = demo.load()
    clouds = io.to_open3d(source), io.to_open3d(target)
    found = vbreg.register(*clouds, voxel_size=0.1)
    np.testing.assert_allclose(found.T_target_source, T, atol=0.15)
    assert len(found.apply_to(clouds[0]).points) == len(source)


def test_without_open3d_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open3d", None)
    with pytest.raises(MissingExtraError, match=r"vbreg\[baselines\]"):
        io.to_open3d(PointCloud(np.zeros((3, 3))))


def test_what_is_no_cloud_is_named() -> None:
    with pytest.raises(VBRegError, match="no cloud of Open3D"):
        io.from_open3d(np.zeros((3, 3)))
