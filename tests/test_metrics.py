"""How good a pose is, which matches are right, and how much two clouds share."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vbreg.errors import VBRegError
from vbreg.geometry import apply, from_rotation_translation, random_rotation
from vbreg.metrics import classification, overlap, pose_error, right_matches


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pose(seed: int, *batch: int) -> Tensor:
    g = generator(seed)
    R = random_rotation(*batch, generator=g, dtype=torch.float64)
    return from_rotation_translation(R, torch.randn(*batch, 3, generator=g, dtype=torch.float64))


def test_errors_of_a_known_motion() -> None:
    truth = torch.eye(4, dtype=torch.float64)
    angle = math.radians(10)
    estimate = truth.clone()
    estimate[:2, :2] = torch.tensor(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    )
    estimate[:3, 3] = torch.tensor([0.3, 0.0, 0.4])
    error = pose_error(estimate, truth)
    assert float(error.rotation) == pytest.approx(10.0)
    assert float(error.translation) == pytest.approx(0.5)  # a length, not its square
    assert error.success(15, 0.6)
    assert not error.success(10.0, 0.6)  # strict
    assert not error.success(15, 0.5)


def test_classification_counts() -> None:
    predicted = torch.tensor([True, True, False, False])
    actual = torch.tensor([True, False, True, False])
    assert [float(v) for v in classification(predicted, actual)] == [0.5, 0.5, 0.5]
    nothing = torch.zeros(4, dtype=torch.bool)
    assert [float(v) for v in classification(nothing, actual)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_right_matches_lie_within_the_threshold(batch: tuple[int, ...]) -> None:
    g = generator(1)
    T = pose(1, *batch)
    source = torch.randn(*batch, 20, 3, generator=g, dtype=torch.float64)
    direction = F.normalize(torch.randn(*batch, 20, 3, generator=g, dtype=torch.float64), dim=-1)
    error = torch.linspace(0, 0.2, 20, dtype=torch.float64)
    target = apply(T, source) + error[:, None] * direction
    assert torch.equal(right_matches(source, target, T, 0.1), (error < 0.1).expand(*batch, 20))


def test_right_matches_errors() -> None:
    points, T = torch.zeros(4, 3), torch.eye(4)
    with pytest.raises(VBRegError, match=r"threshold 0\.0: expected a positive number"):
        right_matches(points, points, T, 0.0)
    with pytest.raises(VBRegError, match="one row per match"):
        right_matches(points, points[:3], T, 0.1)
    with pytest.raises(VBRegError, match="T_target_source has shape"):
        right_matches(points, points, T[:3], 0.1)


def test_overlap_counts_the_shared_part() -> None:
    g = generator(2)
    source = torch.rand(200, 3, generator=g, dtype=torch.float64)
    T = pose(2)
    assert overlap(source, apply(T, source), T, 0.001) == 1.0
    assert overlap(source, apply(T, source)[:50], T, 1e-6) == 0.25
    assert overlap(source, apply(T, source) + 100, T, 0.1) == 0.0
    assert overlap(source, source[:0], T, 0.1) == 0.0
    with pytest.raises(VBRegError, match="expected \\(4, 4\\)"):
        overlap(source, source, T[None], 0.1)
