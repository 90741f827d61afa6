from __future__ import annotations

import numpy as np
import pytest

from vbreg.io import names

COLOURS = ("red", "green", "blue")


@pytest.mark.parametrize(
    ("given", "usual"),
    [
        (["R", "G", "B"], list(COLOURS)),
        (["Red", "Green", "Blue"], list(COLOURS)),
        (["diffuse_red", "diffuse_green", "diffuse_blue"], list(COLOURS)),
        (["normal_x", "normal_y", "normal_z", "curvature"], ["nx", "ny", "nz", "curvature"]),
        (["NormalX", "NormalY", "NormalZ"], ["nx", "ny", "nz"]),
        (["Nx", "Ny", "Nz", "Intensity"], ["nx", "ny", "nz", "intensity"]),
        (["r", "g"], ["r", "g"]),  # not a colour without blue
        (["red", "green", "blue", "r", "g", "b"], [*COLOURS, "r", "g", "b"]),
    ],
)
def test_usual_names(given: list[str], usual: list[str]) -> None:
    columns = {name: np.array([k]) for k, name in enumerate(given)}
    renamed = names.usual_names(columns)
    assert list(renamed) == usual
    assert [int(values[0]) for values in renamed.values()] == list(range(len(given)))


@pytest.mark.parametrize(
    ("values", "expected", "exact"),
    [
        (np.array([0, 7, 255], np.uint8), [0, 7, 255], True),
        (np.array([0, 7, 255], np.float64), [0, 7, 255], True),
        (np.array([0, 257, 65535], np.uint16), [0, 1, 255], True),
        (np.array([0, 1000, 65535], np.uint16), [0, 4, 255], False),
        (np.array([0, 0.2, 1.0]), [0, 51, 255], True),
        (np.array([0, 0.201, np.nan]), [0, 51, 0], False),
    ],
)
def test_eight_bits_of_any_colour(values: np.ndarray, expected: list[int], exact: bool) -> None:
    colours, nothing_lost = names.eight_bit_colours(dict.fromkeys(COLOURS, values))
    np.testing.assert_array_equal(colours["green"], expected)
    assert colours["green"].dtype == np.uint8
    assert nothing_lost == exact


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_sixteen_bits_and_back(dtype: type) -> None:
    values = np.array([0, 1, 255], dtype) * (1 if dtype is np.uint8 else 200)
    wide = names.sixteen_bit_colours(dict.fromkeys(COLOURS, values.astype(dtype)))
    assert wide["red"].dtype == np.uint16
    np.testing.assert_array_equal(names.narrowed_colours(wide)["blue"], values)
    shares = names.sixteen_bit_colours(dict.fromkeys(COLOURS, np.array([0, 0.3, 1])))
    np.testing.assert_array_equal(shares["red"], [0, 19660, 65535])


@pytest.mark.parametrize("dtype", ["<u4", "<i4", "<f4"])
def test_packed_and_unpacked(dtype: str) -> None:
    rng = np.random.default_rng(0)
    colours = {name: rng.integers(0, 256, 500).astype(np.uint8) for name in COLOURS}
    packed = names.packed_colours(colours).view(dtype)
    for name, values in names.unpacked_colours(packed, alpha=False).items():
        np.testing.assert_array_equal(values, colours[name])
    opaque = (names.packed_colours(colours) | np.uint32(0xFF << 24)).view("<u4")
    assert set(names.unpacked_colours(opaque, alpha=True)["alpha"]) == {255}
