from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from vbreg.errors import FileFormatError
from vbreg.io import atomic_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_success_leaves_the_file_and_nothing_else(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "result.json") as temporary:
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".json"
        temporary.write_text(json.dumps({"a": 1}))
        assert not (tmp_path / "result.json").exists()
    assert names(tmp_path) == ["result.json"]
    assert json.loads((tmp_path / "result.json").read_text()) == {"a": 1}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_failure_keeps_the_old_file(tmp_path: Path, error: type[BaseException]) -> None:
    target = tmp_path / "result.json"
    target.write_text("old")

    def fail() -> None:
        with atomic_path(target) as temporary:
            temporary.write_text("ne")
            raise error

    with pytest.raises(error):
        fail()
    assert target.read_text() == "old"
    assert names(tmp_path) == ["result.json"]


def test_failing_system_call_is_told_in_our_words(tmp_path: Path) -> None:
    def fail() -> None:
        with atomic_path(tmp_path / "a.ply"):
            raise OSError(28, "No space left on device")

    with pytest.raises(FileFormatError, match=r"a\.ply: No space left on device; check"):
        fail()
    assert names(tmp_path) == []


def test_missing_directory_and_directory(tmp_path: Path) -> None:
    with (
        pytest.raises(FileFormatError, match=r"nowhere does not exist; create it"),
        atomic_path(tmp_path / "nowhere" / "a.ply"),
    ):
        pass
    with pytest.raises(FileFormatError, match="it is a directory"), atomic_path(tmp_path):
        pass


@pytest.mark.skipif(os.name != "posix", reason="pipes, links and modes of POSIX")
def test_pipes_links_and_modes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.ply")
    with (
        pytest.raises(FileFormatError, match="not a regular file"),
        atomic_path(tmp_path / "pipe.ply"),
    ):
        pass
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    with atomic_path(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
