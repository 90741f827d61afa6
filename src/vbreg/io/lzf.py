"""LZF, the byte compression inside PCD files.

A control byte below 32 announces that many literal bytes plus one. Otherwise its upper three bits
(7: plus the next byte) are a length less two, and its lower five with the next byte a distance
less one: copy that many bytes from that far back in the output.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_RATIO = 88  # three bytes of input give at most 264 of output
_WINDOW = 1 << 13
_LONGEST = 264
_LITERALS = 32
_BLOCK = 1 << 20


def decompress(data: bytes, size: int) -> bytes:
    """Return the `size` bytes that `data` stands for; ValueError if these are not as many.

    The loop runs per run, not per byte: both kinds of run are copied as slices.
    """
    out = bytearray()
    at, end = 0, len(data)
    try:
        while at < end:
            control = data[at]
            at += 1
            if control < 32:
                stop = at + control + 1
                out += data[at:stop]
                at = stop
                continue
            length = control >> 5
            if length == 7:
                length += data[at]
                at += 1
            length += 2
            distance = ((control & 31) << 8) + data[at] + 1
            at += 1
            start = len(out) - distance
            if start < 0:
                raise ValueError("a reference to before the start")
            if distance >= length:
                out += out[start : start + length]
            else:  # the copy overlaps itself: the last `distance` bytes repeat
                pattern = out[start:]
                out += (pattern * (length // distance + 1))[:length]
    except IndexError:
        raise ValueError("the compressed data ends in the middle of a run") from None
    if at != end or len(out) != size:
        raise ValueError(f"it unpacks to {len(out)} bytes instead of {size}")
    return bytes(out)


def compress(data: bytes) -> bytes:
    """Compress greedily; repeats are found by one sort a block, so Python only walks the hits."""
    out = bytearray()
    done = 0  # everything before is in `out`
    for begin in range(0, len(data), _BLOCK):
        end = min(begin + _BLOCK, len(data))
        places, sources = _repeats(data, begin, end)
        for place, source in zip(places, sources, strict=True):
            if place < done:
                continue
            length = _common(data, source, place)
            _literals(out, data, done, place)
            _reference(out, place - source, length)
            done = place + length
    _literals(out, data, done, len(data))
    return bytes(out)


def _repeats(data: bytes, begin: int, end: int) -> tuple[list[int], list[int]]:
    """Find places in begin..end whose three bytes occur in the window before, and where."""
    first = max(0, begin - _WINDOW)
    block = np.frombuffer(data, np.uint8, min(end + 2, len(data)) - first, first).astype(np.int32)
    if len(block) < 3:
        return [], []
    keys = (block[:-2] << 16) | (block[1:-1] << 8) | block[2:]
    order = np.argsort(keys, kind="stable")
    same = keys[order[1:]] == keys[order[:-1]]
    latest: NDArray[np.int64] = np.full(len(keys), -1, dtype=np.int64)
    latest[order[1:][same]] = order[:-1][same]
    place = np.arange(len(keys))
    hit = (latest >= 0) & (place - latest <= _WINDOW) & (place >= begin - first)
    return (place[hit] + first).tolist(), (latest[hit] + first).tolist()


def _common(data: bytes, source: int, place: int) -> int:
    """Count the bytes that agree from both places on, at most what one reference can carry."""
    longest = min(_LONGEST, len(data) - place)
    if data[source : source + 8] != data[place : place + 8]:
        longest = min(longest, 8)  # the usual case, decided without a long comparison
    theirs = int.from_bytes(data[source : source + longest], "little")
    differ = theirs ^ int.from_bytes(data[place : place + longest], "little")
    return longest if not differ else ((differ & -differ).bit_length() - 1) >> 3


def _literals(out: bytearray, data: bytes, start: int, stop: int) -> None:
    for at in range(start, stop, _LITERALS):
        count = min(_LITERALS, stop - at)
        out.append(count - 1)
        out += data[at : at + count]


def _reference(out: bytearray, distance: int, length: int) -> None:
    distance, length = distance - 1, length - 2
    if length < 7:
        out.append((length << 5) | (distance >> 8))
    else:
        out.append((7 << 5) | (distance >> 8))
        out.append(length - 7)
    out.append(distance & 255)
