"""Every sensor sees its field, with its rings and its noise, and nothing else."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from vbreg.simulator import depth_camera, sensors
from vbreg.simulator.lidar import Lidar, scan_triangles
from vbreg.simulator.meshes import box
from vbreg.simulator.relief import random_waves

FLAT = random_waves(np.random.default_rng(0), 1.0, 2.0)
HALL = box((9, 9, 8), (0, 0, -4)).triangles()  # nothing is farther than 7.6 m


def scan(lidar: Lidar, seed: int = 0, exact: bool = True) -> torch.Tensor:
    """What a sensor in the middle of a hall sees."""
    if exact:
        lidar = replace(lidar, noise=0.0, ring_offset=0.0, reach=math.inf)
    noise = torch.Generator().manual_seed(seed)
    return scan_triangles(HALL, torch.zeros(len(HALL)), FLAT, np.eye(4), lidar, noise)


def angles(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Azimuth and elevation (N,) in degrees."""
    x, y, z = points.unbind(-1)
    return torch.rad2deg(torch.atan2(y, x)), torch.rad2deg(torch.atan2(z, torch.hypot(x, y)))


@pytest.mark.parametrize(
    ("lidar", "rings", "top", "bottom"),
    [
        (sensors.LIDAR_16, 16, 15.0, -15.0),
        (sensors.LIDAR_32, 32, 10.67, -30.67),
        (replace(sensors.LIDAR_64, ceiling=math.inf), 64, 2.5, -24.8),
        (sensors.TERRESTRIAL_SCANNER, 357, 89.8, -60.0),
    ],
    ids=["16", "32", "64", "tripod"],
)
def test_spinning_sensors_have_their_rings(
    lidar: Lidar, rings: int, top: float, bottom: float
) -> None:
    azimuth, elevation = angles(scan(lidar))
    assert len(torch.unique((100 * elevation).round())) == rings
    assert float(elevation.max()) == pytest.approx(top, abs=0.05)
    assert float(elevation.min()) == pytest.approx(bottom, abs=0.05)
    around = torch.histc(azimuth.float(), 12, -180, 180)
    assert float(around.min() / around.max()) > 0.95


@pytest.mark.parametrize(
    ("name", "across", "up"), [("rosette", 70, 70), ("raster", 120, 25), ("flash", 75, 55)]
)
def test_solid_state_sensors_look_ahead(name: str, across: float, up: float) -> None:
    azimuth, elevation = angles(scan(sensors.SOLID_STATE_LIDARS[name]))
    assert float(azimuth.max() - azimuth.min()) == pytest.approx(across, abs=1)
    assert float(elevation.max() - elevation.min()) == pytest.approx(up, abs=1)
    assert float(azimuth.mean()) == pytest.approx(0, abs=1)


def test_a_rosette_does_not_repeat_but_its_seed_does() -> None:
    one, again, other = (scan(sensors.ROSETTE_LIDAR, seed) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert 0.1 < len(one) / (350 * 350) < 0.9
    units = [points / points.norm(dim=-1, keepdim=True) for points in (one, other)]
    rays = [set(map(tuple, unit.round(decimals=4).tolist())) for unit in units]
    assert len(rays[0] & rays[1]) < 0.9 * len(rays[0])
    azimuth, elevation = angles(one)
    assert float(torch.hypot(azimuth, elevation).max()) < 36  # round, not square


def test_a_scanner_on_a_tripod_is_exact_to_millimetres() -> None:
    points = scan(sensors.TERRESTRIAL_SCANNER, exact=False).abs()
    side = torch.minimum((points[:, :2] - 4.5).abs().amin(-1), (points[:, 2] - 4).abs())
    assert 0.0005 < float(side.square().mean().sqrt()) < 0.003


@pytest.mark.parametrize(
    ("name", "across"), [("narrow", 43), ("normal", 58), ("wide", 90), ("widest", 120)]
)
def test_cameras_see_their_field(name: str, across: float) -> None:
    camera = replace(sensors.CAMERAS[name], grazing=math.radians(89))
    line = torch.linspace(-6, 6, 241)
    x, y = torch.meshgrid(line, line, indexing="ij")
    wall = torch.stack([x, y, torch.full_like(x, 2.0)], dim=-1).reshape(-1, 3)
    normals = torch.tensor([0.0, 0.0, 1.0]).expand_as(wall)
    index, _ = depth_camera.visible_samples(wall, normals, camera)
    angle = torch.rad2deg(torch.atan2(wall[index, 0], wall[index, 2]))
    assert float(angle.max() - angle.min()) == pytest.approx(across, abs=3)


@pytest.mark.parametrize("name", list(sensors.CAMERAS))
def test_noise_of_cameras_grows(name: str) -> None:
    least, growth = sensors.CAMERAS[name].depth_noise
    assert 0 < least < 0.005
    assert 0.005 < least + growth * (3 - 0.4) ** 2 < 0.03
