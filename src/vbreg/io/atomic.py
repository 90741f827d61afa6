"""Nothing half-written: a file appears under its name only when it is complete."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vbreg.errors import FileFormatError


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it to `path` on success, remove it on error.

    The temporary name keeps the ending, since some libraries choose the format by it.
    """
    target = Path(path)
    final = Path(os.path.realpath(target))  # so that a symbolic link keeps pointing at its file
    _check_target(target, final)
    temporary = final.with_name(f".vbreg-{secrets.token_hex(8)}{target.suffix}")
    try:
        yield temporary
        if final.exists():
            shutil.copymode(final, temporary)
        os.replace(temporary, final)  # noqa: PTH105 - the one call that is atomic on every system
    except OSError as exc:
        reason = exc.strerror or str(exc)
        raise FileFormatError(
            f"cannot write {target}: {reason}; check the permissions and the free space of "
            f"{final.parent}, or choose another place"
        ) from exc
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _check_target(target: Path, final: Path) -> None:
    if final.is_dir():
        raise FileFormatError(f"cannot write {target}: it is a directory; give a file name")
    if not final.parent.is_dir():
        raise FileFormatError(
            f"cannot write {target}: the directory {final.parent} does not exist; create it first"
        )
    if final.exists() and not final.is_file():
        # Renaming over a device or a pipe would replace it by a plain file.
        raise FileFormatError(f"cannot write {target}: it is not a regular file; choose another")
