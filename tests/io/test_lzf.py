from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vbreg.io import lzf


def naive(data: bytes) -> bytes:
    """The format's definition, byte by byte: the oracle for the fast loop."""
    out: list[int] = []
    rest = iter(data)
    for control in rest:
        if control < 32:
            out.extend(next(rest) for _ in range(control + 1))
            continue
        length = control >> 5
        if length == 7:
            length += next(rest)
        distance = (control & 31) * 256 + next(rest) + 1
        for _ in range(length + 2):
            out.append(out[-distance])
    return bytes(out)


compressible = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.tuples(st.binary(min_size=1, max_size=5), st.integers(1, 400)).map(
            lambda t: t[0] * t[1]
        ),
    ),
    max_size=12,
).map(b"".join)


@given(compressible)
@settings(max_examples=150, deadline=None)
def test_round_trip_and_agreement_with_the_definition(data: bytes) -> None:
    packed = lzf.compress(data)
    assert naive(packed) == data
    assert lzf.decompress(packed, len(data)) == data
    assert len(data) <= len(packed) * lzf.MAX_RATIO


def test_known_stream() -> None:
    # 'abc' as literals, then a copy of 9 bytes from 3 back.
    assert lzf.decompress(b"\x02abc\xe0\x00\x02", 12) == b"abc" * 4


def test_references_reach_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lzf, "_BLOCK", 1000)
    data = bytes(range(250)) * 40
    packed = lzf.compress(data)
    assert lzf.decompress(packed, len(data)) == data
    assert len(packed) < len(data) / 20


@pytest.mark.parametrize(
    ("packed", "size"),
    [
        (b"\x05abc", 6),  # literals that are not there
        (b"\x20", 3),  # a reference without its distance
        (b"\xe0\x01", 9),  # a long reference without its distance
        (b"\x20\x00", 3),  # a reference to before the start
        (b"\x02abc", 4),  # fewer bytes than promised
    ],
)
def test_damaged_streams(packed: bytes, size: int) -> None:
    with pytest.raises(ValueError, match=r"unpacks|middle|before"):
        lzf.decompress(packed, size)


@given(st.binary(max_size=200), st.integers(0, 300))
@settings(max_examples=150, deadline=None)
def test_noise_raises_only_value_error(noise: bytes, size: int) -> None:
    with contextlib.suppress(ValueError):
        assert len(lzf.decompress(noise, size)) == size
