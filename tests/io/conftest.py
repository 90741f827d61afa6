"""Clouds that every format must bring back."""

from __future__ import annotations

import numpy as np
import pytest

from vbreg.types import PointCloud


@pytest.fixture
def cloud() -> PointCloud:
    """Coordinates that float32 holds exactly, with colours, intensity and a normal."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(50, 3)).astype(np.float32).astype(np.float64)
    return PointCloud(
        points,
        {
            "red": rng.integers(0, 256, 50).astype(np.uint8),
            "intensity": rng.uniform(0, 1, 50).astype(np.float32),
            "nx": rng.normal(size=50),
        },
    )


@pytest.fixture
def utm() -> PointCloud:
    """Millimetres at UTM coordinates: nothing that float32 could hold."""
    rng = np.random.default_rng(1)
    points = np.array([512345.678, 5403210.987, 312.345]) + rng.uniform(0, 100, (50, 3)).round(3)
    return PointCloud(points)


def assert_same_cloud(back: PointCloud, cloud: PointCloud) -> None:
    """Points and attributes to the bit, types included."""
    np.testing.assert_array_equal(back.points, cloud.points)
    assert list(back.attributes) == list(cloud.attributes)
    for name, values in cloud.attributes.items():
        assert back.attributes[name].dtype == values.dtype
        np.testing.assert_array_equal(back.attributes[name], values)
