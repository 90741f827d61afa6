from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from tests.io.conftest import assert_same_cloud

from vbreg import io
from vbreg.errors import FileFormatError
from vbreg.types import PointCloud


@pytest.mark.parametrize("ending", [".ply", ".pcd", ".npz"])
def test_any_format_may_be_packed(tmp_path: Path, cloud: PointCloud, ending: str) -> None:
    io.write(tmp_path / f"a{ending}", cloud)
    packed = tmp_path / f"a{ending}.gz"
    packed.write_bytes(gzip.compress((tmp_path / f"a{ending}").read_bytes()))
    back = io.read(packed)
    np.testing.assert_array_equal(back.points, cloud.points)
    assert_same_cloud(back, io.read(tmp_path / f"a{ending}"))
    with pytest.raises(FileFormatError, match=r"the ending '\.gz'"):
        io.write(packed, cloud)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no gzip", "damaged data"),
        (gzip.compress(b"1 2 3\n" * 1000)[:-20], "damaged data"),
        (gzip.compress(b"one two three\n"), "the line 'one two three'"),
        (gzip.compress(bytes(1 << 27)), "more than 7[0-9]+ bytes within"),
    ],
    ids=["no gzip", "cut off", "no numbers", "too large"],  # gzip writes the time into its bytes
)
def test_an_error_names_the_packed_file(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.xyz.gz"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=message) as caught:
        io.read(path)
    assert str(path) in str(caught.value)
