"""Surfaces in OBJ, STL, GLB and OFF, through trimesh (installed by vbreg[mesh]).

A mesh has corners where its author wanted them; points are sampled evenly on the surface instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vbreg.errors import MissingExtraError, VBRegError
from vbreg.io.child import decode_in_child
from vbreg.io.columns import check_file, problem
from vbreg.types import NORMAL_NAMES, Float64, Int64, PointCloud

SAMPLES = 200_000  # points on a surface, the same in every call
_MAX_RATIO = 64  # of the memory that a decoder needs to the size of the file
_MEMORY = 1 << 29  # bytes that it may need besides


def read_mesh(path: Path) -> PointCloud:
    """Read a surface as points that are sampled evenly on it, with normals.

    The file is decoded in a process of its own, with a limit of memory.
    """
    _trimesh(path)
    check_file(path)
    return decode_in_child(path, "meshes", _MEMORY + _MAX_RATIO * path.stat().st_size)


def decode(path: Path) -> PointCloud:
    """Load a mesh and sample it; a file of corners alone gives these."""
    vertices, faces = read_triangles(path)
    return _sampled(path, vertices[faces]) if len(faces) else PointCloud(vertices)


def read_triangles(path: Path) -> tuple[Float64, Int64]:
    """Read the corners (V, 3) and the triangles (F, 3) of a mesh, in this process."""
    trimesh = _trimesh(path)
    try:
        loaded = trimesh.load(
            str(path), file_type=path.suffix[1:].lower(), process=False, skip_materials=True
        )
        mesh = loaded.to_geometry() if hasattr(loaded, "to_geometry") else loaded
        vertices = np.asarray(mesh.vertices, dtype=np.float64).reshape(-1, 3)
        faces = np.asarray(getattr(mesh, "faces", np.empty((0, 3))), dtype=np.int64)
    except VBRegError:
        raise
    except Exception as exc:  # each of trimesh's loaders has errors of its own
        reason = " ".join(str(exc).split())[:100] or type(exc).__name__
        raise problem(path, f"no surface ({reason})", "a mesh of triangles") from exc
    if not len(vertices):
        raise problem(path, "zero points", "a mesh of triangles")
    if len(faces) and (faces.min() < 0 or faces.max() >= len(vertices)):
        raise problem(path, "faces of corners that are not there", "a mesh of triangles")
    return vertices, faces


def _sampled(path: Path, triangles: Any) -> PointCloud:
    """Return points spread evenly over triangles (F, 3, 3), each with the normal of its own."""
    with np.errstate(all="ignore"):
        normals = np.cross(triangles[:, 1] - triangles[:, 0], triangles[:, 2] - triangles[:, 0])
        area = np.linalg.norm(normals, axis=1)
    area[~np.isfinite(area)] = 0
    if not 0 < area.sum() < np.inf:
        raise problem(path, "triangles without area", "a surface")
    rng = np.random.default_rng(0)
    row = np.searchsorted(np.cumsum(area) / area.sum(), rng.random(SAMPLES))
    row = np.minimum(row, len(area) - 1)
    u, v = rng.random((2, SAMPLES, 1))
    u, v = np.where(u + v > 1, 1 - u, u), np.where(u + v > 1, 1 - v, v)
    corner = triangles[row]
    points = corner[:, 0] + u * (corner[:, 1] - corner[:, 0]) + v * (corner[:, 2] - corner[:, 0])
    unit = (normals[row] / np.maximum(area[row, None], np.finfo(float).tiny)).astype(np.float32)
    return PointCloud(points, dict(zip(NORMAL_NAMES, unit.T, strict=True)))


def _trimesh(path: Path) -> Any:
    try:
        import trimesh
    except ImportError:
        kind = path.suffix[1:].upper()
        raise MissingExtraError("trimesh", "mesh", f"reading {kind} files") from None
    return trimesh
