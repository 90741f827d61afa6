from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from vbreg.correspondences import label, match, overlap

from vbreg import correspondences
from vbreg.errors import VBRegError
from vbreg.geometry import apply, from_rotation_translation, random_rotation

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pose(seed: int, *batch: int) -> Tensor:
    g = generator(seed)
    R = random_rotation(*batch, generator=g, dtype=torch.float64)
    return from_rotation_translation(R, torch.randn(*batch, 3, generator=g, dtype=torch.float64))


def naive_match(source: Tensor, target: Tensor) -> list[int]:
    source, target = F.normalize(source.double(), dim=1), F.normalize(target.double(), dim=1)
    return [int((target - f).square().sum(1).argmin()) for f in source]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scores", [7, 2**22])
@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 40), m=st.integers(1, 40), seed=st.integers(0, 1000))
def test_match_equals_the_naive_search(device, scores, n, m, seed):
    g = generator(seed)
    source, target = torch.randn(n, 33, generator=g), torch.randn(m, 33, generator=g)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(correspondences, "_SCORES_PER_CHUNK", scores)
        source_index, target_index = match(source.to(device), target.to(device))
        mutual_source, mutual_target = match(source.to(device), target.to(device), mutual=True)
    there, back = naive_match(source, target), naive_match(target, source)
    assert source_index.tolist() == list(range(n))
    assert target_index.tolist() == there
    assert mutual_source.tolist() == [i for i in range(n) if back[there[i]] == i]
    assert mutual_target.tolist() == [there[i] for i in mutual_source.tolist()]


def test_match_ignores_the_length_of_descriptors():
    g = generator(0)
    source, target = torch.rand(50, 33, generator=g), torch.rand(60, 33, generator=g)
    factor = torch.rand(60, 1, generator=g) + 0.1
    assert torch.equal(match(source, target)[1], match(7 * source, factor * target)[1])


def test_match_gives_ties_to_the_lowest_index():
    g = generator(0)
    target = torch.rand(37, 33, generator=g)
    source = target[torch.randperm(37, generator=g)]
    once, twice = match(source, target), match(source, torch.cat([target, target]))
    assert torch.equal(once[1], twice[1])
    assert torch.equal(match(torch.cat([source, source]), target, mutual=True)[0], once[0])


def test_match_of_many_stays_small():
    """20,000 x 20,000 similarities are 1.6 GB; a fresh process must not come near."""
    pytest.importorskip("resource", reason="peak memory is read through a Unix module")
    program = """
import resource, torch
from vbreg.correspondences import match
f = torch.rand(20_000, 33, generator=torch.Generator().manual_seed(0))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
match(f, f.flip(0))
print((peak() - before) / 1024)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) / (1024 if sys.platform == "darwin" else 1) < 256  # MB


def test_match_of_nothing():
    for n, m in ((0, 3), (3, 0), (0, 0)):
        source_index, target_index = match(torch.zeros(n, 5), torch.zeros(m, 5))
        assert source_index.shape == target_index.shape == (0,)


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (torch.zeros(3), torch.zeros(3, 4), "source_features has shape (3,)"),
        (torch.zeros(3, 5), torch.zeros(3, 4), "5 columns"),
        (torch.full((3, 4), torch.nan), torch.zeros(3, 4), "NaN"),
    ],
)
def test_match_errors_name_the_value(source, target, words):
    with pytest.raises(VBRegError) as error:
        match(source, target)
    assert words in str(error.value)


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_label_is_true_within_the_threshold(batch):
    g = generator(1)
    T = pose(1, *batch)
    source = torch.randn(*batch, 20, 3, generator=g, dtype=torch.float64)
    direction = F.normalize(torch.randn(*batch, 20, 3, generator=g, dtype=torch.float64), dim=-1)
    error = torch.linspace(0, 0.2, 20, dtype=torch.float64)
    target = apply(T, source) + error[:, None] * direction
    assert torch.equal(label(source, target, T, 0.1), (error < 0.1).expand(*batch, 20))


def test_label_errors():
    points, T = torch.zeros(4, 3), torch.eye(4)
    with pytest.raises(VBRegError, match="threshold is 0"):
        label(points, points, T, 0.0)
    with pytest.raises(VBRegError, match="one row per match"):
        label(points, points[:3], T, 0.1)
    with pytest.raises(VBRegError, match="T_target_source has shape"):
        label(points, points, T[:3], 0.1)


def test_overlap_counts_the_shared_part():
    g = generator(2)
    source = torch.rand(200, 3, generator=g, dtype=torch.float64)
    T = pose(2)
    assert overlap(source, apply(T, source), T, 0.001) == 1.0
    assert overlap(source, apply(T, source)[:50], T, 1e-6) == 0.25
    assert overlap(source, apply(T, source) + 100, T, 0.1) == 0.0
    assert overlap(source, source[:0], T, 0.1) == 0.0
    with pytest.raises(VBRegError, match="expected \\(4, 4\\)"):
        overlap(source, source, T[None], 0.1)
