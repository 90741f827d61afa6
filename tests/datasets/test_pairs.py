"""The sequence: names are free, clouds come late, and a choice reads nothing."""

import numpy as np
import pytest

from vbreg.datasets.pairs import Pair, PairEntry, PairSequence, turned
from vbreg.errors import VBRegError

EMPTY = np.zeros((0, 3))


@pytest.fixture
def loaded() -> list[str]:
    return []


@pytest.fixture
def sequence(loaded: list[str]) -> PairSequence:
    """Ten pairs, a and b in turn."""

    def entry(k: int) -> PairEntry:
        scene = "ab"[k % 2]

        def load() -> Pair:
            loaded.append(f"{scene}/{k}")
            return Pair(f"{scene}/{k}", EMPTY, EMPTY, np.eye(4), scene=scene)

        return PairEntry(f"{scene}/{k}", scene, load)

    return PairSequence(entry(k) for k in range(10))


def test_names_come_without_clouds(sequence: PairSequence, loaded: list[str]) -> None:
    assert len(sequence) == 10
    assert sequence.names[:2] == ("a/0", "b/1")
    assert sequence.scenes[:3] == ("a", "b", "a")
    assert sequence[2:4].names == ("a/2", "b/3")
    assert loaded == []
    assert sequence[-1].name == "b/9"
    assert [pair.name for pair in sequence[:2]] == ["a/0", "b/1"]
    assert loaded == ["b/9", "a/0", "b/1"]


def test_select(sequence: PairSequence, loaded: list[str]) -> None:
    assert sequence.select().names == sequence.names
    assert sequence.select(limit=2).names == ("a/0", "b/1")
    assert sequence.select(limit=0).names == ()
    assert sequence.select(every=4).names == ("a/0", "a/4", "a/8")
    assert sequence.select(scenes=["b"], every=2, limit=2).names == ("b/1", "b/5")
    assert sequence.select(scenes=[]).names == ()
    assert loaded == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scenes": ["c", "a"]}, r"\['c'\].*\['a', 'b'\]"),
        ({"every": 0}, "every is 0"),
        ({"limit": -1}, "limit -1"),
    ],
)
def test_a_wrong_choice_is_named(
    sequence: PairSequence, options: dict[str, int], message: str
) -> None:
    with pytest.raises(VBRegError, match=message):
        sequence.select(**options)


@pytest.mark.parametrize(
    ("ids", "consecutive"), [((0, 1), True), ((5, 4), True), ((0, 2), False), (None, False)]
)
def test_consecutive(ids: tuple[int, int] | None, consecutive: bool) -> None:
    assert Pair("p", EMPTY, EMPTY, np.eye(4), ids=ids).consecutive is consecutive


def test_a_turned_pair_fits_as_before() -> None:
    rng = np.random.default_rng(0)
    T = np.eye(4)
    T[:3, 3] = 1, 2, 3
    source = rng.normal(size=(20, 3))
    pair = Pair("scene/0-1", source, source + T[:3, 3], T, scene="scene", ids=(0, 1))
    other = Pair("scene/1-2", pair.target, source, T, scene="scene", ids=(1, 2))
    found, again, next_pair = turned(pair), turned(pair), turned(other)
    np.testing.assert_array_equal(found.source, again.source)
    np.testing.assert_array_equal(found.target, next_pair.source)  # one cloud, one turn
    assert np.abs(found.source - pair.source).max() > 0.1
    moved = found.source @ found.T_target_source[:3, :3].T + found.T_target_source[:3, 3]
    np.testing.assert_allclose(moved, found.target, atol=1e-12)


def test_a_sequence_of_turned_pairs(sequence: PairSequence, loaded: list[str]) -> None:
    found = sequence.turned()
    assert found.names == sequence.names
    assert loaded == []
    assert found[0].name == sequence.names[0]
