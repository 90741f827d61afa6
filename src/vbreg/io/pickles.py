"""Python's pickles, in which other projects keep their lists of pairs.

A pickle is a program: loaded the usual way, it runs whatever its author wished. Here it can name
only the few functions with which numpy rebuilds an array, and even for these it gets ours, which
take numbers and bytes and check them. Whatever else it names, it is refused before anything runs.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vbreg.errors import FileFormatError
from vbreg.io.columns import read_bytes

_PLAIN = (str, bytes, int, float, bool, type(None), np.ndarray)
_NUMBER_OR_TEXT = re.compile(r"[biufSU]\d{1,6}")  # a type code without objects, fields or pointers


def read_pickle(path: str | Path) -> Any:
    """Read a pickle of plain values and arrays, of protocols 0 to 5 and of Python 2.

    Lists, tuples, dicts, text, numbers and arrays of numbers are plain; all else is refused.
    """
    path = Path(path)
    data = read_bytes(path)
    try:
        # Python 2 kept text and an array's bytes in one type, which latin1 brings through whole.
        return _plain(_Unpickler(io.BytesIO(data), encoding="latin1").load(), {})
    except Exception as exc:  # a damaged or hostile pickle raises whatever it likes
        reason = " ".join(str(exc).split())[:200] or type(exc).__name__
        raise FileFormatError(
            f"{path}: refused ({reason}); expected a pickle of lists, dicts, text, numbers and "
            "numeric arrays only; nothing in it was run"
        ) from exc


class _DataType:
    """Stands for a numpy.dtype while the pickle is read."""

    __slots__ = ("dtype",)

    def __init__(self, code: object, *_: object) -> None:
        if not isinstance(code, str) or not _NUMBER_OR_TEXT.fullmatch(code):
            raise pickle.UnpicklingError(f"an array of type {code!r}")
        self.dtype: np.dtype[Any] = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, order, subtype, names, fields, *_ = state
        if order not in ("<", ">", "=", "|") or (subtype, names, fields) != (None, None, None):
            raise pickle.UnpicklingError(f"an array of records, or of byte order {order!r}")
        if order in "<>":
            self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """Stands for a numpy.ndarray, which a pickle makes empty first and fills later."""

    __slots__ = ("array",)

    def __init__(self, *_: object) -> None:
        self.array: NDArray[Any] = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        *_, shape, data_type, fortran, data = state
        self.array = _filled(data, data_type, shape, "F" if fortran else "C").array


def _filled(
    data: object, data_type: object, shape: object, order: object = "C", *_: object
) -> _Array:
    raw = data.encode("latin1") if isinstance(data, str) else data
    if not isinstance(raw, (bytes, bytearray)) or not isinstance(data_type, _DataType):
        raise pickle.UnpicklingError("an array whose content is not bytes of numbers or text")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise pickle.UnpicklingError(f"an array of shape {shape!r}")
    if len(raw) != math.prod(shape) * data_type.dtype.itemsize or order not in ("C", "F"):
        raise pickle.UnpicklingError(f"{len(raw)} bytes for an array of shape {shape}")
    flat = np.frombuffer(raw, data_type.dtype) if raw else np.empty(0, data_type.dtype)
    native = data_type.dtype.newbyteorder("=")
    made = _Array()
    made.array = flat.reshape(shape, order="F" if order == "F" else "C").astype(native)
    return made


def _scalar(data_type: object, data: object) -> Any:
    return _filled(data, data_type, ()).array.item()


def _encode(text: object, encoding: object) -> bytes:
    """Return bytes from the text as which protocol 2 keeps them."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding!r}")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    """Return no bytes, by the call that protocol 2 keeps them as."""
    return b""


class _Known:
    """One of our stand-ins. It can be called, and nothing about it can be changed."""

    __slots__ = ("_call",)
    _call: Callable[..., Any]

    def __init__(self, call: Callable[..., Any]) -> None:
        object.__setattr__(self, "_call", call)

    def __call__(self, *arguments: object) -> Any:
        return self._call(*arguments)

    def __setattr__(self, name: str, value: object) -> None:
        raise pickle.UnpicklingError("a change to a function")

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("a change to a function")


_KNOWN: dict[tuple[str, str], _Known] = {
    ("numpy", "dtype"): _Known(_DataType),
    ("numpy", "ndarray"): _Known(_Array),
    ("_codecs", "encode"): _Known(_encode),
    ("__builtin__", "bytes"): _Known(_no_bytes),
    ("builtins", "bytes"): _Known(_no_bytes),
}
for _core in ("numpy.core", "numpy._core"):  # numpy 2 moved what its pickles name
    _KNOWN[f"{_core}.multiarray", "_reconstruct"] = _Known(_Array)
    _KNOWN[f"{_core}.multiarray", "scalar"] = _Known(_scalar)
    _KNOWN[f"{_core}.numeric", "_frombuffer"] = _Known(_filled)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get((module, name))
        if known is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return known


def _plain(value: Any, done: dict[int, Any]) -> Any:
    """Return the value with arrays for their stand-ins; what occurs twice is walked once."""
    result: Any
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, _Array):
        return value.array
    if type(value) in _PLAIN:
        return value
    if type(value) is list:
        done[id(value)] = result = []  # before its content: a list may hold itself
        result.extend(_plain(item, done) for item in value)
    elif type(value) is dict:
        done[id(value)] = result = {}
        result.update({_plain(k, done): _plain(v, done) for k, v in value.items()})
    elif type(value) is tuple:
        done[id(value)] = result = tuple(_plain(item, done) for item in value)
    else:
        raise pickle.UnpicklingError(f"it holds a {type(value).__name__}")
    return result
