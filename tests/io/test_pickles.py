"""Pickles: plain data comes back whole, and nothing else is ever run."""

from __future__ import annotations

import collections
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from vbreg.errors import FileFormatError
from vbreg.io import read_pickle

PLAIN = {
    "text": ["a", "ä", b"\x00\xff"],
    "numbers": [1, -(2**70), 1.5, True, None],
    "tuple": (1, (2, [3])),
    "rot": [np.eye(3), np.eye(3, dtype=np.float32)[:, ::-1]],
    "order": [np.arange(6).reshape(2, 3, order="F"), np.arange(4, dtype=">i2")],
    "empty": np.zeros((0, 3)),
    "flags": np.array([True, False]),
    "names": np.array(["attic", "cellar"]),
    "scalar": [np.float64(0.25), np.int32(7), np.bool_(True)],
    3: "a key that is a number",
}


def same(a: object, b: object) -> None:
    if isinstance(a, dict):
        assert isinstance(b, dict)
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert type(a) is type(b)
        for x, y in zip(a, b, strict=True):  # type: ignore[arg-type]
            same(x, y)
    elif isinstance(a, np.ndarray):
        np.testing.assert_array_equal(a, b)  # type: ignore[arg-type]
        assert a.dtype.newbyteorder("=") == b.dtype  # type: ignore[attr-defined]
    else:
        assert a == b


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_comes_back(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps(PLAIN, protocol))
    same(PLAIN, read_pickle(path))


def test_numpy_of_either_generation(tmp_path: Path) -> None:
    written = pickle.dumps([np.eye(2), np.float64(3)], 2)
    for old in (b"cnumpy.core.multiarray\n", b"cnumpy._core.multiarray\n"):
        renamed = written.replace(b"cnumpy._core.multiarray\n", old)
        renamed = renamed.replace(b"cnumpy.core.multiarray\n", old)
        (tmp_path / "a.pkl").write_bytes(renamed)
        same([np.eye(2), 3.0], read_pickle(tmp_path / "a.pkl"))


def test_an_array_of_python_2(tmp_path: Path) -> None:
    """Its bytes are a str there: the opcode U, which latin1 brings through."""
    data = np.array([1.5, -2.0])
    raw = data.tobytes()
    program = (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02f8K\x00K\x01\x87R(K\x03U\x01<NNN"
        b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U" + bytes([len(raw)]) + raw + b"tb."
    )
    (tmp_path / "a.pkl").write_bytes(program)
    same(data, read_pickle(tmp_path / "a.pkl"))


def test_a_list_that_holds_itself_or_one_list_many_times(tmp_path: Path) -> None:
    loop: list[object] = [1]
    loop.append(loop)
    layers: list[object] = []
    for _ in range(60):  # 2^60 lists, if each were walked
        layers = [layers, layers]
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([loop, layers]))
    got = read_pickle(tmp_path / "a.pkl")
    assert got[0][1][1][0] == 1
    assert got[1][0] is got[1][1]


class Call:
    """A pickle that calls a function with these arguments when it is loaded."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_pickle_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "mark"
    for hostile in (
        Call(os.system, f"touch {mark}"),
        Call(os.mkdir, str(mark)),
        Call(eval, f"open({str(mark)!r}, 'w')"),
        {"rot": [np.eye(3), np.array([Call(os.system, f"touch {mark}")], dtype=object)]},
    ):
        (tmp_path / "a.pkl").write_bytes(pickle.dumps(hostile, protocol))
        with pytest.raises(FileFormatError, match=r"a\.pkl: refused .*nothing in it was run"):
            read_pickle(tmp_path / "a.pkl")
        assert not mark.exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (collections.OrderedDict(a=1), "collections.OrderedDict"),
        ({1, 2}, "set"),
        (np.dtype("f8"), "_DataType"),
        (np.array([None]), "type 'O8'"),
        (np.zeros(2, dtype=[("a", "f8")]), "type 'V8'"),
        (complex(1, 2), "complex"),
        (Path, "Path"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, value: object, message: str) -> None:
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(value, 4))
    with pytest.raises(FileFormatError, match=message):
        read_pickle(tmp_path / "a.pkl")


DTYPE = b"cnumpy\ndtype\nX\x02\x00\x00\x00f8\x85R"
EMPTY = b"cnumpy._core.multiarray\n_reconstruct\n)R"


@pytest.mark.parametrize(
    "program",
    [
        EMPTY + b"(K\x01J\x00\x00\x00\x7f\x85" + DTYPE + b"\x89C\x08" + bytes(8) + b"tb.",
        EMPTY + b"(K\x01J\xff\xff\xff\xff\x85" + DTYPE + b"\x89C\x08" + bytes(8) + b"tb.",
        EMPTY + b"(K\x01K\x01\x85" + DTYPE + b"\x89K\x08tb.",
        EMPTY + b"(K\x01K\x01\x85K\x05\x89C\x08" + bytes(8) + b"tb.",
        DTYPE[:-4] + b"K\x05\x85R.",
        b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00rot\x86R.",
        b"c_codecs\nencode\n}X\x01\x00\x00\x00aK\x01sb.",  # sets an attribute of a function
        b"c_codecs\nencode\n(NX\x01\x00\x00\x00a}tb.",
        b"cnumpy\ndtype\n.",
        b"",
        b"not a pickle",
        pickle.dumps(PLAIN)[:-20],
    ],
)
def test_broken_and_forged_pickles(tmp_path: Path, program: bytes) -> None:
    (tmp_path / "a.pkl").write_bytes(program)
    with pytest.raises(FileFormatError, match=r"a\.pkl"):
        read_pickle(tmp_path / "a.pkl")


def test_a_missing_pickle(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="no such file"):
        read_pickle(tmp_path / "a.pkl")
