"""Laws of pairs: a result is read back as it was written, and a store knows what it has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from vbreg.matching import DescribedCloud
from vbreg.model import VBReg
from vbreg.motions import exponential
from vbreg.scale import Scale
from vbreg.scenes.pairs import Guess, PairResult, PairStore, register_pairs
from vbreg.types import Alternative


def result(source: int = 0, target: int = 1, seed: int = 0) -> PairResult:
    rng = np.random.default_rng(seed)
    T, other = exponential(rng.normal(size=(2, 6)))
    C = rng.normal(size=(6, 6))
    return PairResult(source, target, T, C @ C.T, 0.7, 0.3, True, (Alternative(other, 0.1),))


def same(a: PairResult, b: PairResult) -> bool:
    return a.as_row("x") == b.as_row("x") and (a.source, a.target) == (b.source, b.target)


def test_a_store_on_disk_gives_back_every_bit(tmp_path: Path) -> None:
    given = result()
    PairStore(tmp_path, {"voxel_size": 0.05}, ["a", "b", "c"]).add(given)
    again = PairStore(tmp_path, {"voxel_size": 0.05}, ["a", "b", "c"])
    found = again.get(0, 1)
    assert found is not None
    assert same(found, given)
    assert again.get(0, 2) is None
    assert again.get(1, 0) is None


def test_scans_are_known_by_what_they_are(tmp_path: Path) -> None:
    """Scans may be added before others, and one that changed is computed anew."""
    PairStore(tmp_path, {}, ["a", "b"]).add(result(0, 1))
    later = PairStore(tmp_path, {}, ["new", "a", "b", "changed"])
    found = later.get(1, 2)
    assert found is not None
    assert (found.source, found.target) == (1, 2)
    assert later.get(1, 3) is None


def test_other_settings_have_results_of_their_own(tmp_path: Path) -> None:
    PairStore(tmp_path, {"voxel_size": 0.05}, ["a", "b"]).add(result())
    assert PairStore(tmp_path, {"voxel_size": 0.1}, ["a", "b"]).get(0, 1) is None
    assert len(list(tmp_path.iterdir())) == 2


def test_a_guess_is_part_of_the_question(tmp_path: Path) -> None:
    store = PairStore(tmp_path, {}, ["a", "b"])
    guess = Guess(np.eye(4), 0.5, 20.0)
    store.add(result(), guess)
    assert store.get(0, 1) is None
    assert store.get(0, 1, guess) is not None
    nearly = Guess(np.eye(4) + 1e-5, 0.5, 20.0)
    assert store.get(0, 1, nearly) is not None
    assert store.get(0, 1, Guess(np.eye(4), 0.6, 20.0)) is None


def test_a_pair_without_matches_is_no_error() -> None:
    nothing = DescribedCloud(torch.zeros(5, 3), None, torch.zeros(5, 4), np.zeros(3))
    model = VBReg.from_pretrained(device="cpu")
    [found] = register_pairs([nothing, nothing], [(0, 1)], Scale(0.1), model)
    assert found.probability == 0.0
    assert not found.determined
