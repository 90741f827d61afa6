"""One voxel size sets every radius."""

from __future__ import annotations

import dataclasses

import pytest

import vbreg
from vbreg.errors import VBRegError
from vbreg.scale import VOXEL_SIZES, Scale


def test_every_radius_follows_from_the_voxel_size() -> None:
    scale = Scale(0.05)
    assert scale.inlier_threshold == pytest.approx(0.10)
    assert scale.normal_radius == pytest.approx(0.10)
    assert scale.feature_radius == pytest.approx(0.25)
    lengths = ("voxel_size", "inlier_threshold", "normal_radius", "feature_radius")
    for name in lengths:  # in another unit all are
        assert getattr(Scale(50), name) == pytest.approx(1000 * getattr(scale, name))


def test_a_threshold_has_its_scale() -> None:
    assert Scale.of_threshold(0.10) == Scale(0.05)
    assert Scale.of_threshold(Scale(0.3).inlier_threshold) == Scale(0.3)


def test_presets_are_voxel_sizes() -> None:
    assert Scale.of_preset("indoor") == Scale(0.05)
    assert Scale.of_preset("outdoor") == Scale(0.30)
    assert all(Scale.of_preset(name).voxel_size == size for name, size in VOXEL_SIZES.items())
    with pytest.raises(
        VBRegError, match="unknown preset 'underwater': expected one of indoor, out"
    ):
        Scale.of_preset("underwater")


@pytest.mark.parametrize("size", [0, -0.05, float("nan"), "fine", None])
def test_a_size_that_is_no_length_is_named(size: object) -> None:
    with pytest.raises(VBRegError, match=f"voxel_size {size!r}: expected a positive number"):
        Scale(size)  # type: ignore[arg-type]
    if size is not None and not isinstance(size, str):
        with pytest.raises(VBRegError, match="expected a positive number"):
            Scale.of_threshold(size)  # type: ignore[arg-type]


def test_a_scale_is_a_value() -> None:
    assert type(Scale(1).voxel_size) is float
    assert hash(Scale(0.05)) == hash(Scale(0.05))
    assert vbreg.Scale is Scale
    with pytest.raises(dataclasses.FrozenInstanceError):
        Scale(0.05).voxel_size = 1.0  # type: ignore[misc]
