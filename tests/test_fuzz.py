"""Whatever points come in: a finite pose or an error of ours, the same in every call."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from vbreg import Registration, VBReg, VBRegError, register

Points = NDArray[np.float64]
SHAPES = ("cloud", "plane", "line", "point", "lattice", "twice", "far", "holes", "sphere")
FEW = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@st.composite
def clouds(draw: st.DrawFn) -> Points:
    """Clouds of all kinds, some of which no pose can be found for."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.sampled_from([0, 1, 2, 3, 10, 100, 600]))
    size = draw(st.sampled_from([1e-3, 1.0, 50.0]))
    points = size * rng.random((n, 3))
    shape = draw(st.sampled_from(SHAPES))
    if shape == "plane":
        points[:, 2] = 0
    elif shape == "line":
        points[:, 1:] = 0
    elif shape == "point":
        points[:] = 1.0
    elif shape == "lattice":
        points = np.round(points, 1)
    elif shape == "twice":
        points = np.concatenate([points, points])
    elif shape == "far":
        points = points + 1e6
    elif shape == "holes" and n:
        points[rng.random(n) < 0.3] = draw(st.sampled_from([np.nan, np.inf]))
    elif shape == "sphere" and n:
        points = size * points / np.linalg.norm(points, axis=1, keepdims=True).clip(1e-9)
    return points


def assert_sound(result: Registration) -> None:
    T = result.T_target_source
    assert np.isfinite(T).all()
    np.testing.assert_allclose(T[:3, :3] @ T[:3, :3].T, np.eye(3), atol=1e-6)
    assert np.linalg.det(T[:3, :3]) > 0
    assert 0.0 <= result.score <= 1.0
    assert result.covariance is not None
    assert np.isfinite(result.covariance).all()
    p = result.success_probability
    assert p is None or 0.0 <= p <= 1.0
    assert isinstance(result.verdict, str)


@pytest.fixture(scope="module")
def model() -> VBReg:
    return VBReg.from_pretrained("fast", device="cpu")


@FEW
@given(source=clouds(), target=clouds(), size=st.sampled_from([None, 1e-3, 0.1, 5.0]))
@pytest.mark.parametrize("descriptor", ["learned", "fpfh"])
def test_any_clouds(
    model: VBReg, descriptor: str, source: Points, target: Points, size: float | None
) -> None:
    try:
        result = register(source, target, voxel_size=size, model=model, descriptor=descriptor)
    except VBRegError:
        return
    assert_sound(result)


@FEW
@given(source=clouds(), seed=st.integers(0, 9), threshold=st.sampled_from([1e-4, 0.1, 1e3]))
def test_any_matches(model: VBReg, source: Points, seed: int, threshold: float) -> None:
    order = np.random.default_rng(seed).permutation(len(source))
    target = source[order] if seed % 2 else source[::-1].copy()
    try:
        result = model.estimate(source, target, inlier_threshold=threshold)
    except VBRegError:
        return
    assert_sound(result)


def test_very_many_matches_are_thinned(model: VBReg) -> None:
    rng = np.random.default_rng(0)
    source = rng.random((3000, 3))
    result = model.estimate(source, source + 1.0, inlier_threshold=0.05, max_correspondences=500)
    assert len(result.correspondences) == 500
    assert result.matches_found == 3000
    assert not result.memory_limited
    index = result.correspondences.source_index
    assert index is not None
    np.testing.assert_array_equal(result.correspondences.source, source[index])
    np.testing.assert_allclose(result.T_target_source[:3, 3], 1.0, atol=1e-6)
    with pytest.raises(VBRegError, match="max_correspondences"):
        model.estimate(source, source, inlier_threshold=0.05, max_correspondences=2)
