"""A survey says from where it saw, keeps to its voxel, and repeats by its generator."""

from dataclasses import replace

import numpy as np
import pytest

from vbreg.simulator import make_room, sensors, surveys

FEW_RAYS = replace(sensors.LIDAR_16, columns=500)


@pytest.mark.parametrize("sweeps", [1, 2])
def test_the_viewpoint_is_known_where_there_is_one(sweeps: int) -> None:
    def scans() -> list[surveys.PosedScan]:
        generator = np.random.default_rng(1)
        mesh = make_room("plain", generator)
        return surveys.survey_with_lidar(
            mesh, generator, FEW_RAYS, sensors.ON_A_ROBOT, 0.1, (sweeps, sweeps)
        )[1]

    one, again = scans(), scans()
    assert 4 <= len(one) <= 10
    for scan, same in zip(one, again, strict=True):
        np.testing.assert_array_equal(scan.points, same.points)
        assert 0.3 < scan.T_world_scan[2, 3] < 0.7
        if sweeps == 1:
            np.testing.assert_array_equal(scan.viewpoint, np.zeros(3))
            assert np.linalg.norm(scan.points, axis=-1).min() > 0.9 * FEW_RAYS.near
        else:
            assert scan.viewpoint is None


def test_an_object_sets_its_own_scale() -> None:
    voxel_size, scans = surveys.survey_object(np.random.default_rng(0), on_table=False)
    world = np.concatenate(
        [s.points @ s.T_world_scan[:3, :3].T + s.T_world_scan[:3, 3] for s in scans]
    )
    size = np.ptp(world, axis=0).max()
    assert 25 < size / voxel_size < 60
    for scan in scans:
        distance = np.linalg.norm(scan.T_world_scan[:3, 3] - world.mean(0))
        assert distance > 0.3
