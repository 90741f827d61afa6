"""Sensors that people use are listed here, as presets of `DepthCamera` and `Lidar`.

Numbers follow the data sheets and published measurements of the sensors that are named; images of
cameras are coarser than the real ones, as a fragment's fusion is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from vbreg.simulator.depth_camera import DepthCamera
from vbreg.simulator.lidar import Lidar

# --- depth cameras: degrees across, noise that grows with the square of the depth

NARROW_CAMERA = DepthCamera(  # 43 x 33 degrees, as a stereo camera with a long lens
    focal=203.0, far=5.0, depth_noise=(0.001, 0.0022), disparity_step=1 / 600
)
NORMAL_CAMERA = DepthCamera()  # 58 x 45 degrees, structured light
WIDE_CAMERA = DepthCamera(  # 90 x 74 degrees, stereo with a wide lens
    width=200, height=150, focal=100.0, near=0.3, far=4.0, depth_noise=(0.0015, 0.0035),
    disparity_step=1 / 400, volume=False,
)  # fmt: skip
WIDEST_CAMERA = DepthCamera(  # 120 x 120 degrees, time of flight, as Azure Kinect's or HoloLens'
    width=224, height=224, focal=64.7, near=0.25, far=3.2, depth_noise=(0.002, 0.0018),
    disparity_step=1 / 5000, volume=False,
)  # fmt: skip
CAMERAS: Mapping[str, DepthCamera] = {
    "narrow": NARROW_CAMERA,
    "normal": NORMAL_CAMERA,
    "wide": WIDE_CAMERA,
    "widest": WIDEST_CAMERA,
}

# --- LiDARs that spin

LIDAR_16 = Lidar(  # as the VLP-16
    rings=16, columns=1800, elevation=(15.0, -15.0), near=0.4, ceiling=math.inf, reach=120.0
)
LIDAR_32 = Lidar(  # as the HDL-32
    rings=32, columns=1800, elevation=(10.67, -30.67), near=0.4, ceiling=math.inf, reach=120.0
)
LIDAR_64 = Lidar()  # as the HDL-64 on the KITTI car

# --- LiDARs that do not spin

ROSETTE_LIDAR = Lidar(  # 70 x 70 degrees, a flower that never repeats, as the Livox Avia
    rings=350, columns=350, field=70.0, elevation=(35.0, -35.0), pattern="rosette", pulses=90_000,
    near=0.5, far=60.0, ceiling=math.inf, ring_offset=0.0, reach=120.0,
)  # fmt: skip
RASTER_LIDAR = Lidar(  # 120 x 25 degrees, dense rows, as solid-state sensors of cars
    rings=125, columns=600, field=120.0, elevation=(12.5, -12.5), near=0.5, far=100.0,
    ceiling=math.inf, ring_offset=0.0, reach=140.0,
)  # fmt: skip
FLASH_LIDAR = Lidar(  # 75 x 55 degrees, an image of ranges, as in tablets and on robots
    rings=220, columns=300, field=75.0, elevation=(27.5, -27.5), near=0.3, far=9.0,
    ceiling=math.inf, noise=0.01, ring_offset=0.0, reach=20.0,
)  # fmt: skip
SOLID_STATE_LIDARS: Mapping[str, Lidar] = {
    "rosette": ROSETTE_LIDAR,
    "raster": RASTER_LIDAR,
    "flash": FLASH_LIDAR,
}

TERRESTRIAL_SCANNER = Lidar(  # on a tripod: 360 x 300 degrees, the tripod hides what is below
    rings=357, columns=857, elevation=(89.8, -60.0), near=0.4, far=60.0, ceiling=math.inf,
    noise=0.002, ring_offset=0.0, reach=60.0, height=1.6,
)  # fmt: skip

# Where a sensor is carried: its height above the floor in metres, and how it tilts, radians rms.
ON_A_CAR = ((1.6, 1.9), 0.008)
ON_A_ROBOT = ((0.4, 0.6), 0.02)
BY_HAND = ((1.2, 1.8), 0.12)
ON_A_BACKPACK = ((1.6, 1.9), 0.06)
ON_A_TRIPOD = ((1.4, 1.8), 0.003)
