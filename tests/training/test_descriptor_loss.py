import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vbreg.training.descriptor_loss import (
    DRAWN,
    DescriptorLoss,
    Padded,
    contrast_named,
    draw,
    hardest,
    pairs_loss,
)

N = 600
CONTRAST = contrast_named("infonce", torch.tensor(0.05).log())
POINTS = 40 * torch.rand(1, N, 3, generator=torch.Generator().manual_seed(0))


def loss_of(source: Tensor, target: Tensor, shift: float = 0.0) -> DescriptorLoss:
    return pairs_loss((source, target), (POINTS + shift, POINTS), CONTRAST)


def random_descriptors(seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(1, N, 16, generator=torch.Generator().manual_seed(seed)), dim=-1)


def test_the_same_descriptors_are_right() -> None:
    d = random_descriptors()
    found = loss_of(d, d)
    assert float(found.right_anchors) == float(found.inlier_ratio) == 1.0
    assert float(found.contrast) < 0.3
    assert float(found.pairs) == 1


def test_unrelated_descriptors_are_wrong() -> None:
    found = loss_of(random_descriptors(0), random_descriptors(1))
    assert float(found.right_anchors) < 0.1
    assert float(found.contrast) > math.log(N) - 1


def test_nothing_is_learned_where_nothing_overlaps() -> None:
    d = random_descriptors().requires_grad_()
    found = loss_of(d, d, shift=1000.0)
    assert float(found.pairs) == 0
    found.contrast.backward()
    assert d.grad is not None
    assert not bool(d.grad.any())


def test_a_pair_that_does_not_overlap_does_not_count() -> None:
    d, e = random_descriptors(0), random_descriptors(1)
    alone = pairs_loss((d, e), (POINTS, POINTS), CONTRAST)
    twice = torch.cat([d, d]), torch.cat([e, e])
    away = torch.cat([POINTS, POINTS + 1000])
    joined = pairs_loss(twice, (away, torch.cat([POINTS] * 2)), CONTRAST)
    for one, other in zip(alone, joined, strict=True):
        assert float(one) == pytest.approx(float(other), rel=1e-5)


def test_what_lies_beside_the_truth_is_not_wrong() -> None:
    """Two points half a voxel apart that look the same: neither is held against the other."""
    d = random_descriptors()
    twins = torch.cat([POINTS, POINTS + 0.5], dim=1), torch.cat([d, d], dim=1)
    found = pairs_loss((twins[1],) * 2, (twins[0],) * 2, CONTRAST)
    assert float(found.contrast) < 0.3  # log 2 where they were


def test_the_gradient_reaches_descriptors_and_temperature() -> None:
    d = random_descriptors().requires_grad_()
    temperature = torch.tensor(-2.3, requires_grad=True)
    contrast = contrast_named("infonce", temperature)
    found = pairs_loss((d, random_descriptors(1)), (POINTS, POINTS), contrast)
    found.contrast.backward()
    assert all(x.grad is not None and bool(x.grad.any()) for x in (d, temperature))


def test_the_hardest_of_the_others_is_pushed_away_and_the_partner_drawn_near() -> None:
    """As a loop over the points says it: margins 0.1 of the squared distance and 1.4."""
    s = F.normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), dim=-1)
    t = F.normalize(torch.randn(9, 4, generator=torch.Generator().manual_seed(1)), dim=-1)
    partner = torch.tensor([0, 3, 3, 8, 1, 2])
    beside = torch.rand(6, 9, generator=torch.Generator().manual_seed(2)) < 0.3
    beside[torch.arange(6), partner] = False
    found = hardest((s @ t.T)[None], partner[None], beside[None])[0]
    for k in range(6):
        near = float((s[k] - t[partner[k]]).square().sum())
        others = [j for j in range(9) if j != partner[k] and not beside[k, j]]
        far = min(float((s[k] - t[j]).norm()) for j in others)
        assert float(found[k]) == pytest.approx(
            max(near - 0.1, 0) + max(1.4 - far, 0) ** 2, abs=1e-4
        )


def test_both_losses_tell_the_same_from_the_unrelated() -> None:
    d, e = random_descriptors(0), random_descriptors(1)
    contrast = contrast_named("hardest", torch.tensor(0.0))
    same, other = (pairs_loss((d, x), (POINTS, POINTS), contrast) for x in (d, e))
    assert float(same.contrast) < float(other.contrast)
    assert float(same.right_anchors) == 1.0


@pytest.mark.parametrize("count", [4 * DRAWN, DRAWN // 2])
def test_partners_are_drawn_with_those_drawn_by_chance(count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = 80 * torch.rand(count, 3, generator=generator)
    y = torch.cat([x[: count // 2] + 0.1, x[:50] + 1000])
    others = torch.rand(30, 3, generator=generator), torch.rand(700, 3, generator=generator)
    clouds = [Padded.of([cloud, other]) for cloud, other in zip((x, y), others, strict=True)]
    drawn = draw(clouds[0], clouds[1], generator)
    assert drawn[0].shape == drawn[1].shape == (2, 2 * DRAWN)
    assert int(drawn[0][1].max()) < 30  # never a point that is not there
    assert int(drawn[1][1].max()) < 700
    source, target = (rows[0] for rows in drawn)
    in_both = source[:DRAWN]
    in_both = in_both[in_both < count // 2]
    near = torch.cdist(x[in_both], y[target]).min(1).values
    assert float(near.max()) < 0.2
    if count > DRAWN:
        assert len(source[:DRAWN].unique()) == DRAWN
