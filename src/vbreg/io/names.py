"""Colours, normals and intensity: one name for each in a cloud, and each format's own in its files.

In a cloud these are red, green, blue (bytes, where the file has bytes), nx, ny, nz and intensity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vbreg.types import NORMAL_NAMES

Columns = Mapping[str, NDArray[Any]]

COLOUR_NAMES = ("red", "green", "blue")
PCL_NORMALS = ("normal_x", "normal_y", "normal_z")
LAS_NORMALS = ("NormalX", "NormalY", "NormalZ")  # as PDAL and CloudCompare call them

_TRIPLES = (
    (NORMAL_NAMES, NORMAL_NAMES),
    (PCL_NORMALS, NORMAL_NAMES),
    (("normalx", "normaly", "normalz"), NORMAL_NAMES),
    (COLOUR_NAMES, COLOUR_NAMES),
    (("r", "g", "b"), COLOUR_NAMES),
    (("diffuse_red", "diffuse_green", "diffuse_blue"), COLOUR_NAMES),
)
_WIDENED = 257  # what a byte is multiplied by to fill 16 bits


def usual_names(columns: Columns) -> dict[str, NDArray[Any]]:
    """Return the columns in their order, with colours, normals and intensity under our names."""
    flat = {name.lower(): name for name, values in columns.items() if values.ndim == 1}
    renamed = {flat["intensity"]: "intensity"} if "intensity" in flat else {}
    for names, usual in _TRIPLES:
        if set(names) <= set(flat) and not set(usual) & set(renamed.values()):
            renamed |= {flat[name]: new for name, new in zip(names, usual, strict=True)}
    result = {renamed.get(name, name): values for name, values in columns.items()}
    if set(COLOUR_NAMES) <= set(result):
        result |= _whole_colours({name: result[name] for name in COLOUR_NAMES})
    return result


def has_all(columns: Columns, names: tuple[str, ...]) -> bool:
    """Tell whether all of these columns are there, with one number a point."""
    return all(name in columns and columns[name].ndim == 1 for name in names)


def eight_bit_colours(columns: Columns) -> tuple[dict[str, NDArray[np.uint8]], bool]:
    """Return red, green and blue as bytes, and whether nothing was rounded for it.

    Whole numbers up to 255 are bytes, up to 65535 they are 16-bit colours; fractions are shares.
    """
    given = {name: np.asarray(columns[name]) for name in COLOUR_NAMES}
    if all(values.dtype == np.uint8 for values in given.values()):
        return given, True
    rows = np.nan_to_num(np.stack(list(given.values())).astype(np.float64))
    whole = bool((rows == np.round(rows)).all())
    full = 255.0 if whole and rows.max(initial=0) <= 255 else 65535.0 if whole else 1.0
    scaled = np.clip(rows / full, 0, 1) * 255
    bytes_ = np.round(scaled).astype(np.uint8)
    return dict(zip(COLOUR_NAMES, bytes_, strict=True)), bool(
        np.allclose(bytes_, scaled, atol=1e-4)
    )


def sixteen_bit_colours(columns: Columns) -> dict[str, NDArray[np.uint16]]:
    """Return red, green and blue as LAS wants them: 16 bits, all of them used."""
    given = {name: np.asarray(columns[name]) for name in COLOUR_NAMES}
    if all(values.dtype == np.uint16 for values in given.values()):
        return given
    if all(values.dtype == np.uint8 for values in given.values()):
        return {
            name: values.astype(np.uint16) * np.uint16(_WIDENED) for name, values in given.items()
        }
    narrow, exact = eight_bit_colours(columns)
    if exact:
        return {
            name: values.astype(np.uint16) * np.uint16(_WIDENED) for name, values in narrow.items()
        }
    rows = {name: np.nan_to_num(values.astype(np.float64)) for name, values in given.items()}
    most = max(float(values.max(initial=0)) for values in rows.values())
    full = 1.0 if most <= 1 else 65535.0
    return {
        name: np.round(np.clip(values / full, 0, 1) * 65535).astype(np.uint16)
        for name, values in rows.items()
    }


def narrowed_colours(columns: Columns) -> dict[str, NDArray[Any]]:
    """Return 16-bit colours as bytes where they are bytes that were widened, or never were more."""
    rows = np.stack([columns[name] for name in COLOUR_NAMES])
    if int(rows.max(initial=0)) <= 255:
        return dict(zip(COLOUR_NAMES, rows.astype(np.uint8), strict=True))
    if not np.any(rows % _WIDENED):
        return dict(zip(COLOUR_NAMES, (rows // _WIDENED).astype(np.uint8), strict=True))
    return dict(zip(COLOUR_NAMES, rows, strict=True))


def packed_colours(colours: Mapping[str, NDArray[np.uint8]]) -> NDArray[np.uint32]:
    """Return PCL's one number a point: red, green and blue in the three lower bytes."""
    red, green, blue = (colours[name].astype(np.uint32) for name in COLOUR_NAMES)
    packed: NDArray[np.uint32] = (red << np.uint32(16)) | (green << np.uint32(8)) | blue
    return packed


def unpacked_colours(packed: NDArray[Any], *, alpha: bool) -> dict[str, NDArray[np.uint8]]:
    """Return the colours in PCL's one number a point, whose bits may be those of a float."""
    if packed.dtype.kind == "f":
        small = packed.astype(np.float32)
        as_number = np.isfinite(packed) & (np.abs(packed) >= 1) & (np.abs(packed) < 2**32)
        bits = small.view(np.uint32).copy()
        bits[as_number] = np.abs(packed[as_number]).astype(np.uint32)  # ASCII files hold the number
    else:
        bits = packed.astype(np.uint32)
    places = {"red": 16, "green": 8, "blue": 0} | ({"alpha": 24} if alpha else {})
    return {name: ((bits >> place) & 255).astype(np.uint8) for name, place in places.items()}


def _whole_colours(columns: Columns) -> dict[str, NDArray[Any]]:
    """Return colours that were read as floats but are whole numbers as bytes, or as 16 bits."""
    rows = np.stack(list(columns.values()))
    if rows.dtype.kind != "f" or not np.isfinite(rows).all() or (rows != np.round(rows)).any():
        return dict(columns)
    if rows.min(initial=0) < 0 or rows.max(initial=0) > 65535:
        return dict(columns)
    dtype = np.uint8 if rows.max(initial=0) <= 255 else np.uint16
    return dict(zip(columns, rows.astype(dtype), strict=True))
