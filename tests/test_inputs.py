"""What users hand in: every form is taken, and an error names the value and the way out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vbreg import PointCloud, io
from vbreg.errors import FileFormatError, VBRegError
from vbreg.inputs import (
    as_descriptors,
    as_matches,
    as_points,
    check_points,
    finite_rows,
    ignored_points,
    load_points,
    positive_number,
)

POINTS = np.random.default_rng(0).random((10, 3))

FIELDS = np.zeros(10, dtype=[("x", "f8"), ("y", "f8"), ("z", "f8"), ("intensity", "f4")])
for column, axis in enumerate("xyz"):
    FIELDS[axis] = POINTS[:, column]


@pytest.mark.parametrize(
    "cloud",
    [
        POINTS,
        POINTS.tolist(),
        torch.from_numpy(POINTS),
        torch.from_numpy(POINTS).requires_grad_(),
        SimpleNamespace(points=POINTS),
        PointCloud(POINTS),
        SimpleNamespace(point={"positions": torch.from_numpy(POINTS)}),
        np.ma.masked_array(POINTS, mask=False),
        FIELDS,
    ],
    ids=[
        *("array", "list", "tensor", "with gradient", "like open3d", "PointCloud"),
        *("like open3d's tensor clouds", "masked array", "fields"),
    ],
)
def test_clouds_come_in_many_forms(cloud: object) -> None:
    found = load_points(cloud, "source")  # type: ignore[arg-type]
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, POINTS)


def test_clouds_come_in_files(tmp_path: Path) -> None:
    io.write(tmp_path / "a.npy", POINTS)
    for path in (tmp_path / "a.npy", str(tmp_path / "a.npy")):
        np.testing.assert_array_equal(load_points(path, "source"), POINTS)
    with pytest.raises(FileFormatError, match=r"none\.npy"):
        load_points(tmp_path / "none.npy", "source")


def test_reduced_precision_tensors_are_read() -> None:
    points = torch.rand(10, 3).bfloat16()
    np.testing.assert_array_equal(load_points(points, "source"), points.double().numpy())


def test_the_callers_array_is_never_shared() -> None:
    for given in (POINTS, torch.from_numpy(POINTS)):
        assert not np.shares_memory(as_points(given, "points"), POINTS)


@pytest.mark.parametrize(
    ("cloud", "message"),
    [
        (object(), "source is a object: expected points .N, 3. as an array, a tensor, a path"),
        (np.zeros((5, 2)), r"source has shape \(5, 2\): expected \(N, 3\)"),
        (np.zeros((2, 5, 3)), r"source has shape \(2, 5, 3\): expected \(N, 3\)"),
        (np.zeros(3), r"source has shape \(3,\)"),
        (np.array([["a", "b", "c"]]), "its values are <U1"),
        (SimpleNamespace(points=[[1], [1, 2]]), "source is a list"),
    ],
)
def test_a_wrong_cloud_is_named(cloud: object, message: str) -> None:
    with pytest.raises(VBRegError, match=message):
        load_points(cloud, "source")  # type: ignore[arg-type]


def test_matches_say_which_rows_are_finite() -> None:
    source, target = POINTS.copy(), POINTS.copy()
    source[2, 1], target[7] = np.nan, np.inf
    ends = as_matches(source, torch.from_numpy(target))
    np.testing.assert_array_equal(ends[0], source)
    np.testing.assert_array_equal(ends[1], target)
    assert np.flatnonzero(~finite_rows(*ends)).tolist() == [2, 7]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (POINTS, POINTS[:4], r"source_points \(10, 3\) and target_points \(4, 3\) differ in shape"),
        (POINTS[None], POINTS[None], r"\(1, 10, 3\): .* several problems go to estimate_batch"),
        (POINTS, "a.ply", "target_points is a str"),
    ],
)
def test_wrong_matches_are_named(source: object, target: object, message: str) -> None:
    with pytest.raises(VBRegError, match=message):
        as_matches(source, target)  # type: ignore[arg-type]


def test_descriptors_have_length_one_and_stand_side_by_side() -> None:
    rng = np.random.default_rng(1)
    source, target = rng.random((2, 4, 5))
    valid = np.array([True, True, False, True])
    target[2] = np.nan
    found = as_descriptors((source, torch.from_numpy(target)), valid, 5)
    assert found is not None
    assert found.shape == (4, 10)
    np.testing.assert_allclose(np.linalg.norm(found[valid, :5], axis=1), 1)
    np.testing.assert_allclose(np.linalg.norm(found[valid, 5:], axis=1), 1)
    assert not found[2].any()
    expected = source[0] / np.linalg.norm(source[0])
    np.testing.assert_allclose(found[0, :5], expected)
    assert as_descriptors(None, valid, 0) is None


def test_a_descriptor_of_zeros_stays_zero() -> None:
    found = as_descriptors((np.zeros((3, 2)), np.ones((3, 2))), np.ones(3, bool), 2)
    assert found is not None
    assert not found[:, :2].any()


@pytest.mark.parametrize("value", [0, -1.0, np.nan, np.inf, "wide", "0.5", b"2", None, [1, 2]])
def test_a_number_that_is_not_positive_is_named(value: object) -> None:
    with pytest.raises(VBRegError) as error:
        positive_number(value, "voxel_size")
    assert str(error.value).startswith(f"voxel_size {value!r}: expected a positive number")


@pytest.mark.parametrize("value", [0.5, 2, np.float32(0.25), torch.tensor(0.5)])
def test_a_positive_number_becomes_a_float(value: object) -> None:
    assert type(positive_number(value, "radius")) is float


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (torch.zeros(5, 2), r"points has shape \(5, 2\): expected \(N, 3\)"),
        (torch.zeros(3), r"points has shape \(3,\)"),
        (torch.zeros(5, 3, dtype=torch.int64), "convert it to float32 or float64"),
        (torch.tensor([[0.0, 0, 0], [torch.nan, 0, 0]]), "holds 1 points with NaN or infinity"),
    ],
)
def test_tensors_that_are_no_points_are_named(points: torch.Tensor, message: str) -> None:
    with pytest.raises(VBRegError, match=message):
        check_points("points", points)


def test_masked_coordinates_are_missing() -> None:
    masked = np.ma.masked_array(POINTS, mask=POINTS > 0.9)
    found = load_points(masked, "source")
    np.testing.assert_array_equal(np.isnan(found), POINTS > 0.9)
    np.testing.assert_array_equal(found[POINTS <= 0.9], POINTS[POINTS <= 0.9])


def test_points_in_columns_are_refused() -> None:
    with pytest.raises(VBRegError, match=r"shape \(3, 10\): expected \(N, 3\); transpose it"):
        load_points(POINTS.T, "source")


@pytest.mark.parametrize(
    "ignore",
    [
        [True, False, False],
        np.array([True, False, False]),
        torch.tensor([True, False, False]),
        lambda points: points[:, 0] < 1,
        lambda points: torch.from_numpy(points)[:, 0] < 1,
    ],
)
def test_points_to_ignore_come_in_many_forms(ignore: object) -> None:
    points = np.arange(9.0).reshape(3, 3)
    mask = ignored_points(ignore, points, "source")  # type: ignore[arg-type]
    assert mask.tolist() == [True, False, False]


@pytest.mark.parametrize("ignore", [[0, 1, 2], [True], "all", lambda points: None])
def test_what_tells_no_points_is_named(ignore: object) -> None:
    with pytest.raises(VBRegError, match=r"ignore for target .* each of its 3 points"):
        ignored_points(ignore, np.zeros((3, 3)), "target")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "hint"),
    [((50, 4), r"points\[:, :3\]"), ((8, 9, 3), "reshape"), ((1, 50, 3), "reshape")],
)
def test_arrays_as_robots_give_them_are_refused_with_what_to_do(
    shape: tuple[int, ...], hint: str
) -> None:
    with pytest.raises(VBRegError, match=rf"expected \(N, 3\); .*{hint}"):
        load_points(np.zeros(shape), "source")


def test_masks_of_both_clouds_come_as_a_tuple() -> None:
    with pytest.raises(VBRegError, match=r"as a tuple \(source, target\)"):
        ignored_points([np.zeros(10, dtype=bool), None], POINTS, "source")  # type: ignore[list-item]
