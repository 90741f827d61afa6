from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from vbreg import io
from vbreg.errors import FileFormatError
from vbreg.io import child, las
from vbreg.types import PointCloud


@pytest.fixture
def path(tmp_path: Path, cloud: PointCloud) -> Path:
    pytest.importorskip("lazrs", reason="vbreg[io] is not installed")
    io.write(tmp_path / "a.laz", cloud)
    return tmp_path / "a.laz"


def test_what_is_decoded_comes_back_whole(path: Path) -> None:
    here, there = las.decode(path), child.decode_in_child(path, "las", 1 << 28)
    np.testing.assert_array_equal(there.points, here.points)
    assert list(there.attributes) == list(here.attributes)
    for name, values in here.attributes.items():
        np.testing.assert_array_equal(there.attributes[name], values)
        assert there.attributes[name].dtype == values.dtype


def test_an_error_keeps_its_words(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(FileFormatError, match="damaged data") as caught:
        child.decode_in_child(path, "las", 1 << 28)
    assert str(path) in str(caught.value)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a limit of memory")
def test_a_decoder_has_a_limit_of_memory(path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"too much memory|damaged data"):
        child.decode_in_child(path, "las", 1 << 10)


def test_a_decoder_has_a_limit_of_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_SECONDS", 0.01)  # Python itself takes longer to start
    start = time.perf_counter()
    with pytest.raises(FileFormatError, match="its decoder needs too long"):
        child.decode_in_child(path, "las", 1 << 28)
    assert time.perf_counter() - start < 30


def test_without_a_python_to_start_it_decodes_here(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "")
    assert len(io.read(path)) == 50
