"""Streets keep the road free, move nothing but the traffic, and repeat by their seed."""

import numpy as np
import pytest
import torch

from vbreg.simulator import streets


@pytest.fixture(scope="module", params=streets.SETTINGS)
def street(request: pytest.FixtureRequest) -> streets.Street:
    return streets.make_street(np.random.default_rng(5), request.param)


def test_seeds_repeat() -> None:
    def triangles(seed: int) -> torch.Tensor:
        return streets.make_street(np.random.default_rng(seed), "urban").triangles_at(3.0)[0]

    one = triangles(1)
    assert torch.equal(one, triangles(1))
    assert one.shape != triangles(2).shape


def test_every_face_is_finite_and_has_its_relief(street: streets.Street) -> None:
    triangles, relief = street.triangles_at(0.0)
    assert triangles.isfinite().all()
    assert len(triangles) == len(relief)
    assert (relief >= 0).all()


def test_the_road_is_free(street: streets.Street) -> None:
    """Nothing that stands still reaches into the middle of the lanes, up to a car's height."""
    middle = street.triangles.mean(1).double().numpy()
    x, y, z = middle[np.abs(middle[:, 0]) < streets.ROAD_HALF_LENGTH / 2].T
    left = (y - street.road.centre(x)) / np.hypot(1, street.road.slope(x))
    above = z - street.road.height(x, y)
    lanes = (np.abs(left) < street.road.width / 2 - 0.5) & (above < 1.5)
    assert lanes.sum() > 100
    assert np.mean(above[lanes] < 0.2) > 0.98  # but for a leaf or two


def test_frames_stand_on_the_road(street: streets.Street) -> None:
    for s, t in ((-30.0, 2.0), (0.0, 0.0), (20.0, -3.0)):
        T = street.road.car_pose(s, t)
        np.testing.assert_allclose(T[:3, :3] @ T[:3, :3].T, np.eye(3), atol=1e-12)
        assert np.linalg.det(T[:3, :3]) == pytest.approx(1)
        assert T[2, 2] > 0.95
        assert T[2, 3] == pytest.approx(float(street.road.height(T[0, 3], T[1, 3])))
    ahead = street.road.car_pose(1.0, 0.0)[:3, 3] - street.road.car_pose(0.0, 0.0)[:3, 3]
    assert ahead @ street.road.car_pose(0.5, 0.0)[:3, 0] > 0.99 * np.linalg.norm(ahead)


def test_only_traffic_moves(street: streets.Street) -> None:
    assert street.movers
    (before, _), (after, _) = street.triangles_at(0.0), street.triangles_at(0.5)
    still = len(street.triangles)
    assert torch.equal(before[:still], after[:still])
    start = still
    for mover in street.movers:
        end = start + len(mover.triangles)
        step = torch.linalg.vector_norm((after - before)[start:end].mean((0, 1)))
        if abs(mover.start) < streets.ROAD_HALF_LENGTH - 10:
            assert float(step) == pytest.approx(abs(mover.speed) / 2, rel=0.1)
        start = end
    assert start == len(after)


def test_traffic_keeps_right_and_looks_ahead(street: streets.Street) -> None:
    for mover in street.movers:
        a, b = (mover.pose(street.road, time) for time in (0.0, 0.01))
        if np.linalg.norm(step := b[:3, 3] - a[:3, 3]) < 1:
            assert step @ a[:3, 0] > 0.95 * np.linalg.norm(step)
        assert mover.offset * mover.speed < 0
        assert np.linalg.det(a[:3, :3]) == pytest.approx(1)


def test_traffic_stays_clear_of_the_eye(street: streets.Street) -> None:
    eye = street.movers[0].pose(street.road, 0.0)[:2, 3]
    moving = street.triangles_at(0.0, eye)[0][len(street.triangles) :]
    assert len(moving) <= len(street.triangles_at(0.0)[0]) - len(street.triangles) - len(
        street.movers[0].triangles
    )


def test_waves_have_unit_variance(street: streets.Street) -> None:
    points = 100 * torch.rand(20000, 3, generator=torch.Generator().manual_seed(0))
    waves = street.waves(points)
    assert abs(float(waves.mean())) < 0.05
    assert float(waves.std()) == pytest.approx(1, abs=0.05)
