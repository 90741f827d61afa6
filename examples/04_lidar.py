"""Two sweeps of a LiDAR: the preset for streets, and how far the pose is off."""

import numpy as np

import vbreg
from vbreg.simulator import drive_and_scan, make_street
from vbreg.simulator.sensors import LIDAR_16

# Two simulated sweeps of 16 rings, some metres apart; or paths: "scan1.pcd", "scan2.pcd".
generator = np.random.default_rng(0)
street = make_street(generator, "residential")
drive = drive_and_scan(street, generator, count=2, lidar=LIDAR_16)
(source, T_world_source), (target, T_world_target) = drive
T_true = np.linalg.inv(T_world_target.numpy()) @ T_world_source.numpy()

result = vbreg.register(source, target, preset="outdoor")  # 30 cm voxels, sensor at the origin

print(result.verdict)
print(f"the sweeps are {np.linalg.norm(T_true[:3, 3]):.2f} m apart")
off = np.linalg.norm(result.T_target_source[:3, 3] - T_true[:3, 3])
print(f"the pose is off by {100 * off:.1f} cm")
