"""A reconstruction into files and back: poses as JSON, TUM or g2o, a cloud for each component."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vbreg import __version__, io
from vbreg.clouds import voxel_index
from vbreg.errors import FileFormatError, VBRegWarning
from vbreg.inputs import positive_number
from vbreg.scenes.graph import information_of
from vbreg.scenes.results import Reconstruction, counted
from vbreg.types import Float64, PointCloud

POSE_ENDINGS = (".json", ".tum", ".txt", ".g2o")


def write_scene_poses(path: str | os.PathLike[str], found: Reconstruction) -> None:
    """Write the poses by the ending: .json (all there is to say), .tum or .txt, .g2o.

    TUM's lines have no place for several frames: there is the largest component alone.
    """
    path = Path(path)
    ending = path.suffix.lower()
    if ending == ".json":
        with io.atomic_path(path) as temporary:
            text = json.dumps(scene_as_json(found), indent=2, allow_nan=False)
            temporary.write_text(text + "\n", encoding="utf-8")
    elif ending == ".g2o":
        poses = list(enumerate(found.T_world_scan))
        edges = [
            io.MeasuredPose(e.source, e.target, e.T_target_source, information_of(e.covariance))
            for e in found.edges
            if e.kept
        ]
        io.write_g2o(path, poses, edges)
    elif ending in (".tum", ".txt"):
        members = found.components[0]
        comments = [f"{k} {found.names[k]}" for k in members]
        left = len(found) - len(members)
        comments += [f"not connected to these: {counted(left, 'scan')}"] if left else []
        io.write_tum(path, [(k, found.T_world_scan[k]) for k in members], comments)
    else:
        raise FileFormatError(
            f"{path}: unknown ending '{ending}', expected one of {', '.join(POSE_ENDINGS)}"
        )


def scene_as_json(found: Reconstruction) -> dict[str, Any]:
    """Return poses, components and edges as JSON's types."""
    return {
        "version": __version__,
        "voxel_size": found.voxel_size,
        "pairs_tried": len(found.tried),
        "registrations": found.registrations,
        "components": found.components,
        "scans": [
            {
                "name": name,
                "component": int(found.component[k]),
                "T_world_scan": found.T_world_scan[k].tolist(),
            }
            for k, name in enumerate(found.names)
        ],
        "edges": [
            {
                "source": e.source,
                "target": e.target,
                "T_target_source": e.T_target_source.tolist(),
                "probability": e.probability,
                "kept": e.kept,
                "dropped": e.dropped,
                "error": e.error if np.isfinite(e.error) else None,
                "distance": e.distance if np.isfinite(e.distance) else None,
                "triangles": e.triangles,
                "triangles_fit": e.triangles_fit,
                "bridge": e.bridge,
                "guided": e.guided,
                "doubt": e.doubt,
            }
            for e in found.edges
        ],
        "refused_joins": [
            {
                "components": list(join.groups),
                "evidence": join.evidence,
                "against": join.rival,
            }
            for join in found.refused
        ],
    }


def read_scene_poses(path: str | os.PathLike[str]) -> dict[str, Float64]:
    """Return T_world_scan (4, 4) of each scan of the largest component, by its name.

    The file is one that `write_scene_poses` wrote as JSON.
    """
    path = Path(path)
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(scan["name"]): np.array(scan["T_world_scan"], dtype=np.float64)
            for scan in said["scans"]
            if scan["component"] == 0
        }
    except FileNotFoundError as error:
        raise FileFormatError(f"{path}: no such file; expected poses of reconstruct") from error
    except (OSError, UnicodeDecodeError, ValueError, TypeError, LookupError) as error:
        raise FileFormatError(
            f"{path}: no poses of `vbreg reconstruct --poses {path.name}` in it "
            f"({type(error).__name__}: {error})"
        ) from error


def merged_component(
    clouds: Sequence[str | os.PathLike[str] | PointCloud],
    found: Reconstruction,
    component: int = 0,
    *,
    thin: float | None = None,
    on_done: Callable[[int], object] = lambda scans: None,
) -> PointCloud:
    """Return the scans of a component as one cloud, with what every scan has of each point.

    The attribute `scan` is the number of the scan; others that not all scans have are left out,
    with a warning. With `thin`, one point a voxel of this size is
    kept of each scan. Files are read one after the other: memory holds one, and what is kept.
    """
    if thin is not None:
        positive_number(thin, "thin")
    points: list[Float64] = []
    columns: dict[str, list[NDArray[Any]]] = {}
    seen: set[str] = set()
    for done, k in enumerate(found.components[component], start=1):
        given = clouds[k]
        cloud = given if isinstance(given, PointCloud) else io.read(given)
        cloud = cloud.selected(_kept(cloud, thin)).transformed(found.T_world_scan[k])
        own = {**cloud.attributes, "scan": np.full(len(cloud), k, dtype=np.int32)}
        seen |= set(own)
        columns = columns if points else {name: [] for name in own}
        columns = {
            name: [*parts, own[name]]
            for name, parts in columns.items()
            if name in own and all(part.shape[1:] == own[name].shape[1:] for part in parts)
        }
        points.append(cloud.points)
        on_done(done)
    if others := sorted(seen - set(columns)):
        text = f"the merged cloud is without {', '.join(others)}, which not all scans have"
        warnings.warn(text, VBRegWarning, stacklevel=2)
    # Column by column, so that memory does not hold everything twice.
    attributes = {name: np.concatenate(columns.pop(name)) for name in list(columns)}
    return PointCloud(np.concatenate(points), attributes)


def _kept(cloud: PointCloud, thin: float | None) -> Any:
    """Tell (N,) which points go into the merged cloud: the finite ones, or one a voxel."""
    finite = np.isfinite(cloud.points).all(axis=1)
    if thin is None:
        return finite
    rows = np.flatnonzero(finite)
    points = cloud.points[rows] - cloud.points[rows].mean(axis=0)
    voxel = voxel_index(torch.from_numpy(points), thin).numpy()
    first = np.unique(voxel, return_index=True)[1]
    kept = np.zeros(len(cloud), dtype=bool)
    kept[rows[first]] = True
    return kept
