"""E57, through pye57 (installed by vbreg[io])."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vbreg.errors import FileFormatError, MissingExtraError, VBRegError
from vbreg.io.child import decode_in_child
from vbreg.io.columns import check_file, coordinate_type, problem
from vbreg.io.names import has_all
from vbreg.types import NORMAL_NAMES, Float64, PointCloud

_CHUNK = 1_000_000  # points decoded at a time: a header cannot make us allocate what it claims
_MAX_RATIO = 64  # of the memory that a decoder needs to the size of the file
_MEMORY = 1 << 29  # bytes that it may need besides
_CARTESIAN = ("cartesianX", "cartesianY", "cartesianZ")
_SPHERICAL = ("sphericalRange", "sphericalAzimuth", "sphericalElevation")
_ATTRIBUTES = {
    "intensity": "intensity",
    "colorRed": "red",
    "colorGreen": "green",
    "colorBlue": "blue",
    "nor:normalX": "nx",
    "nor:normalY": "ny",
    "nor:normalZ": "nz",
}
_NORMALS = ("nor", "http://www.libe57.org/E57_NOR_surface_normals.txt")  # an extension of E57


def read_e57(path: Path) -> PointCloud:
    """Read all scans of the file in the file's frame, one after the other.

    A point that its scanner marked as invalid has no position; it is kept as NaN. The file is
    decoded in a process of its own, with a limit of memory.
    """
    _pye57("reading")
    check_file(path)
    with path.open("rb") as head:
        signature = head.read(8)
    if signature != b"ASTM-E57":
        raise problem(path, f"a file that starts with {signature!r}", "the signature 'ASTM-E57'")
    return decode_in_child(path, "e57", _MEMORY + _MAX_RATIO * path.stat().st_size)


def decode(path: Path) -> PointCloud:
    """Decode all scans of a file that is an E57 by its signature."""
    pye57 = _pye57("reading")
    try:
        with pye57.E57(str(path)) as file:
            scans = [_read_scan(pye57, path, file, k) for k in range(file.scan_count)]
    except VBRegError:
        raise
    except Exception as exc:  # libE57 and its wrapper raise what they like on a damaged file
        reason = str(exc).strip().split("\n")[0]
        raise problem(path, f"damaged data ({reason})", "an E57 file") from exc
    if not sum(map(len, scans)):
        raise problem(path, f"zero points in {len(scans)} scans", "at least one point")
    scans = [scan for scan in scans if len(scan)]
    common = [name for name in scans[0].attributes if all(name in s.attributes for s in scans)]
    attributes = {
        name: np.concatenate([scan.attributes[name] for scan in scans]) for name in common
    }
    return PointCloud(np.concatenate([scan.points for scan in scans]), attributes)


def write_e57(path: Path, cloud: PointCloud) -> list[str]:
    """Write one scan with an identity pose, in double precision if the coordinates need it.

    Return what is lost.
    """
    pye57 = _pye57("writing")
    columns: dict[str, NDArray[Any]] = dict(zip(_CARTESIAN, cloud.points.T, strict=True))
    for field, name in _ATTRIBUTES.items():
        values = cloud.attributes.get(name)
        if values is not None and values.ndim == 1:
            columns[field] = values
    columns = {k: np.ascontiguousarray(v, dtype=np.float64) for k, v in columns.items()}
    try:
        with pye57.E57(str(path), mode="w") as file:
            _write_scan(pye57.libe57, file, columns, coordinate_type(cloud.points))
    except Exception as exc:
        raise FileFormatError(f"pye57 failed: {str(exc).strip()}; write .ply instead") from exc
    kept = {_ATTRIBUTES[field] for field in columns if field in _ATTRIBUTES}
    return [f"the attribute '{name}'" for name in cloud.attributes if name not in kept]


def _pye57(doing: str) -> ModuleType:
    try:
        import pye57
    except ImportError:
        raise MissingExtraError("pye57", "io", f"{doing} E57 files") from None
    module: ModuleType = pye57
    return module


def _read_scan(pye57: ModuleType, path: Path, file: Any, index: int) -> PointCloud:
    header = file.get_header(index)
    present = set(header.point_fields)
    axes = _CARTESIAN if present.issuperset(_CARTESIAN) else _SPHERICAL
    if not present.issuperset(axes):
        found = ", ".join(header.point_fields)
        raise problem(path, f"scan {index} with {found}", "cartesian or spherical coordinates")
    invalid = "cartesianInvalidState" if axes is _CARTESIAN else "sphericalInvalidState"
    fields = [*axes, *(name for name in (*_ATTRIBUTES, invalid) if name in present)]
    columns = _read_fields(pye57.libe57, path, file, header, fields)
    points = np.stack([columns[axis] for axis in axes], axis=1)
    if axes is _SPHERICAL:
        points = _cartesian(points)
    if invalid in columns:
        points[columns[invalid] != 0] = np.nan
    rotation, translation = _pose(path, header)
    points = points @ rotation.T + translation
    attributes = {new: columns[old] for old, new in _ATTRIBUTES.items() if old in columns}
    if has_all(attributes, NORMAL_NAMES):
        normals = np.stack([attributes[name] for name in NORMAL_NAMES]).T @ rotation.T
        attributes |= dict(zip(NORMAL_NAMES, normals.T, strict=True))
    return PointCloud(points, {name: _compact(values) for name, values in attributes.items()})


def _read_fields(
    libe57: ModuleType, path: Path, file: Any, header: Any, fields: list[str]
) -> dict[str, Float64]:
    """Read every field as float64, which holds each type that an E57 scan of points may have."""
    capacity = min(header.point_count, _CHUNK)
    if capacity == 0:
        return {field: np.empty(0) for field in fields}
    chunk = {field: np.empty(capacity) for field in fields}
    buffers = libe57.VectorSourceDestBuffer()
    for field, values in chunk.items():
        buffers.append(
            libe57.SourceDestBuffer(file.image_file, field, values, capacity, True, True)
        )
    parts: dict[str, list[Float64]] = {field: [] for field in fields}
    reader = header.points.reader(buffers)
    while count := reader.read():
        for field, values in chunk.items():
            parts[field].append(values[:count].copy())
    reader.close()
    columns = {field: np.concatenate(values) for field, values in parts.items() if values}
    total = len(columns[fields[0]]) if columns else 0
    if total != header.point_count:
        raise problem(path, f"{total} points in a scan", f"{header.point_count}")
    return columns


def _cartesian(spherical: Float64) -> Float64:
    """Convert (N, 3) range, azimuth, elevation in radians to x, y, z (N, 3)."""
    distance, azimuth, elevation = spherical.T
    flat = distance * np.cos(elevation)
    return np.stack(
        [flat * np.cos(azimuth), flat * np.sin(azimuth), distance * np.sin(elevation)], axis=1
    )


def _pose(path: Path, header: Any) -> tuple[Float64, Float64]:
    """Read R, t of the scan in the file's frame by name, not by order; either may be absent."""
    rotation, translation = np.eye(3), np.zeros(3)
    if header.node.isDefined("pose/rotation"):
        node = header.node["pose"]["rotation"]
        q = np.array([node[axis].value() for axis in "wxyz"])
        norm = float(np.linalg.norm(q))
        if not 0 < norm < np.inf:
            raise problem(path, f"a scan with the rotation {q.tolist()}", "a unit quaternion")
        w, x, y, z = q / norm
        rotation = np.array(
            [
                [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
                [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
                [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
            ]
        )
    if header.node.isDefined("pose/translation"):
        node = header.node["pose"]["translation"]
        translation = np.array([node[axis].value() for axis in "xyz"])
    return rotation, translation


def _compact(values: Float64) -> NDArray[Any]:
    """Return values in the smallest type that holds them exactly: colours come back as bytes."""
    for dtype in (np.uint8, np.uint16, np.float32):  # an attribute that is always 0 is a byte
        with np.errstate(all="ignore"):
            narrow = values.astype(dtype)
            if np.array_equal(narrow.astype(np.float64), values, equal_nan=True):
                return narrow
    return values


def _write_scan(
    libe57: ModuleType, file: Any, columns: dict[str, Float64], coordinate: np.dtype[Any]
) -> None:
    image = file.image_file
    scan = libe57.StructureNode(image)
    scan.set("guid", libe57.StringNode(image, f"{{{uuid.uuid4()}}}"))
    scan.set("name", libe57.StringNode(image, "vbreg"))
    prototype = libe57.StructureNode(image)
    buffers = libe57.VectorSourceDestBuffer()
    limits = {"color": libe57.StructureNode(image), "intensity": libe57.StructureNode(image)}
    if any(name.startswith("nor:") for name in columns):
        image.extensionsAdd(*_NORMALS)
    for name, values in columns.items():
        small = coordinate if name in _CARTESIAN else _compact(values).dtype
        prototype.set(name, _number_node(libe57, image, small))
        buffers.append(libe57.SourceDestBuffer(image, name, values, len(values), True, True))
        group = next((group for group in limits if name.startswith(group)), None)
        if group is not None:  # the standard asks for them, and viewers scale colours by them
            low, high = _limits(values, small)
            limits[group].set(f"{name}Minimum", libe57.FloatNode(image, low))
            limits[group].set(f"{name}Maximum", libe57.FloatNode(image, high))
    for group, node in limits.items():
        if node.childCount():
            scan.set(f"{group}Limits", node)
    points = libe57.CompressedVectorNode(image, prototype, libe57.VectorNode(image, True))
    scan.set("points", points)
    file.data3d.append(scan)
    writer = points.writer(buffers)
    writer.write(len(columns["cartesianX"]))
    writer.close()


def _number_node(libe57: ModuleType, image: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "u":
        return libe57.IntegerNode(image, 0, 0, int(np.iinfo(dtype).max))
    precision = libe57.E57_SINGLE if dtype.itemsize == 4 else libe57.E57_DOUBLE
    return libe57.FloatNode(image, 0.0, precision)


def _limits(values: Float64, dtype: np.dtype[Any]) -> tuple[float, float]:
    if dtype.kind == "u":
        return 0.0, float(np.iinfo(dtype).max)
    finite = values[np.isfinite(values)]
    return float(finite.min(initial=0.0)), float(finite.max(initial=0.0))
