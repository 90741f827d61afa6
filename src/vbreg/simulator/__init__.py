"""Scans of places that never were are made here, with poses that are known exactly.

The data take one way, file by file:

    meshes          triangles, and the shapes that everything is put together from
    -> small_objects, furniture, walls, clutter -> rooms     a furnished room of some kind
    -> street_objects -> streets                             a street with its traffic
    -> depth_camera (rooms) or lidar (streets)               a sensor on its path
    -> posed scans: points (N, 3) in the sensor's frame, and T_world_sensor (4, 4)

    generator, noise = np.random.default_rng(0), torch.Generator().manual_seed(0)
    scene = sample_surface(make_room("office", generator), generator)
    path = random_trajectory(scene, generator)
    points, T_world_scan = scan_scene(scene, path, DepthCamera(), noise)

    street = make_street(generator, "residential")
    (points, T_world_scan), *others = drive_and_scan(street, generator, count=2)
"""

from vbreg.simulator.clutter import add_clutter
from vbreg.simulator.depth_camera import (
    DepthCamera,
    Scene,
    random_trajectory,
    sample_surface,
    scan_scene,
)
from vbreg.simulator.lidar import Lidar, drive_and_scan, scan_street
from vbreg.simulator.meshes import Mesh
from vbreg.simulator.rooms import ROOM_KINDS, make_room
from vbreg.simulator.streets import SETTINGS, Street, make_street

__all__ = [
    "ROOM_KINDS",
    "SETTINGS",
    "DepthCamera",
    "Lidar",
    "Mesh",
    "Scene",
    "Street",
    "add_clutter",
    "drive_and_scan",
    "make_room",
    "make_street",
    "random_trajectory",
    "sample_surface",
    "scan_scene",
    "scan_street",
]
