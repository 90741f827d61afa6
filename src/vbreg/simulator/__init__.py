"""Scans of places that never were are made here, with poses that are known exactly.

The data take one way, file by file:

    meshes, relief  triangles, the shapes that everything is put together from, and unevenness
    -> small_objects, furniture, walls, clutter -> rooms -> buildings     furnished rooms in a row
    -> street_objects -> streets                                          a street with its traffic
    -> movables                       what is moved, added or taken away between two scans
    -> depth_camera, lidar            how a sensor sees; `sensors` lists those that people use
    -> viewpoints -> surveys          where it stands; six to ten scans of one place
    -> places                         a place by kind and seed

    generator, noise = np.random.default_rng(0), torch.Generator().manual_seed(0)
    scene = sample_surface(make_room("office", generator), generator)
    path = random_trajectory(scene, generator)
    points, T_world_scan = scan_scene(scene, path, DepthCamera(), noise)

    street = make_street(generator, "residential")
    (points, T_world_scan), *others = drive_and_scan(street, generator, count=2)

    source, target, *others = make_place("building_tripod", seed=3).scans
"""

from vbreg.simulator.buildings import make_building
from vbreg.simulator.clutter import add_clutter
from vbreg.simulator.depth_camera import (
    DepthCamera,
    Scene,
    random_trajectory,
    sample_surface,
    scan_scene,
)
from vbreg.simulator.lidar import Lidar, drive_and_scan, scan_street, scan_triangles
from vbreg.simulator.meshes import Mesh
from vbreg.simulator.movables import Movable
from vbreg.simulator.places import PLACE_KINDS, Place, PosedScan, make_place
from vbreg.simulator.rooms import ROOM_KINDS, make_room
from vbreg.simulator.streets import SETTINGS, Street, make_street

__all__ = [
    "PLACE_KINDS",
    "ROOM_KINDS",
    "SETTINGS",
    "DepthCamera",
    "Lidar",
    "Mesh",
    "Movable",
    "Place",
    "PosedScan",
    "Scene",
    "Street",
    "add_clutter",
    "drive_and_scan",
    "make_building",
    "make_place",
    "make_room",
    "make_street",
    "random_trajectory",
    "sample_surface",
    "scan_scene",
    "scan_street",
    "scan_triangles",
]
