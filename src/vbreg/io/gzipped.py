"""Files within .gz: unpacked to a temporary file, if that is not far larger than the packed one."""

from __future__ import annotations

import gzip
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

from vbreg.errors import FileFormatError
from vbreg.io.columns import check_file, problem
from vbreg.types import PointCloud

GZIP_ENDING = ".gz"
MAX_RATIO = 50  # of the size of a file to that of its .gz; 5 is much already
SPARE = 1 << 26  # bytes that a .gz of any size may hold
_BLOCK = 1 << 20


def read_gzip(path: Path, reader: Callable[[Path], PointCloud]) -> PointCloud:
    """Read what is within a .gz; an error names the .gz."""
    check_file(path)
    with tempfile.TemporaryDirectory() as folder:
        inner = Path(folder) / path.with_suffix("").name
        _unpack(path, inner, MAX_RATIO * path.stat().st_size + SPARE)
        try:
            return reader(inner)
        except FileFormatError as exc:
            raise FileFormatError(str(exc).replace(str(inner), str(path))) from exc


def _unpack(path: Path, inner: Path, most: int) -> None:
    try:
        with gzip.open(path) as packed, inner.open("wb") as file:
            while block := packed.read(_BLOCK):
                if file.tell() + len(block) > most:
                    raise problem(path, f"more than {most} bytes within", "less", "unpack it first")
                file.write(block)
    except (EOFError, gzip.BadGzipFile, zlib.error) as exc:
        raise problem(path, f"damaged data ({exc})", "a .gz file") from exc
