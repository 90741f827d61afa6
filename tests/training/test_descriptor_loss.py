import math

import torch
import torch.nn.functional as F

from vbreg.training.descriptor_loss import MAX_DRAWN, draw, pair_loss

N = 600
TEMPERATURE = torch.tensor(0.05)


def loss_of(source: torch.Tensor, target: torch.Tensor, saliency: torch.Tensor, shift: float = 0.0):  # type: ignore[no-untyped-def]
    points = 40 * torch.rand(N, 3, generator=torch.Generator().manual_seed(0))
    return pair_loss(
        (source, target),
        (saliency, saliency),
        (points + shift, points),
        (N, N),
        TEMPERATURE,
    )


def random_descriptors(seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(N, 16, generator=torch.Generator().manual_seed(seed)), dim=-1)


def test_the_same_descriptors_are_right() -> None:
    d = random_descriptors()
    found = loss_of(d, d, torch.full((N,), 9.0))
    assert float(found.right_anchors) == float(found.inlier_ratio) == 1.0
    assert float(found.contrast) < 0.3  # log 2 where they were
    assert float(found.saliency) < 0.01  # it had said so


def test_unrelated_descriptors_are_wrong() -> None:
    found = loss_of(random_descriptors(0), random_descriptors(1), torch.full((N,), -9.0))
    assert float(found.right_anchors) < 0.1
    assert float(found.contrast) > math.log(N) - 1
    assert float(found.saliency) < 0.5


def test_nothing_is_learned_where_nothing_overlaps() -> None:
    d = random_descriptors()
    assert loss_of(d, d, torch.zeros(N), shift=1000.0) is None


def test_what_lies_beside_the_truth_is_not_wrong() -> None:
    """Two points half a voxel apart that look the same: neither is held against the other."""
    d = random_descriptors()
    points = 40 * torch.rand(N, 3, generator=torch.Generator().manual_seed(0))
    twins = torch.cat([points, points + 0.5]), torch.cat([d, d])
    found = pair_loss(
        (d, twins[1]),
        (torch.zeros(N), torch.zeros(2 * N)),
        (points, twins[0]),
        (N, 2 * N),
        TEMPERATURE,
    )
    assert found is not None
    assert float(found.contrast) < 0.3  # log 2 where they were


def test_the_gradient_reaches_descriptors_saliency_and_temperature() -> None:
    d = random_descriptors().requires_grad_()
    s = torch.zeros(N, requires_grad=True)
    temperature = torch.tensor(0.1, requires_grad=True)
    points = 40 * torch.rand(N, 3, generator=torch.Generator().manual_seed(0))
    found = pair_loss(
        (d, random_descriptors(1)),
        (s, torch.zeros(N)),
        (points, points),
        (N, N),
        temperature,
    )
    assert found is not None
    (found.contrast + found.saliency).backward()
    assert all(x.grad is not None and bool(x.grad.any()) for x in (d, s, temperature))


def test_partners_are_drawn_with_those_drawn_by_chance() -> None:
    generator = torch.Generator().manual_seed(0)
    x = 80 * torch.rand(4 * MAX_DRAWN, 3, generator=generator)
    y = torch.cat([x[: 2 * MAX_DRAWN] + 0.1, x[:50] + 1000])
    drawn = draw(x, y, generator)
    assert drawn.by_chance == (MAX_DRAWN, MAX_DRAWN)
    in_both = drawn.source[:MAX_DRAWN]
    in_both = in_both[in_both < 2 * MAX_DRAWN]
    near = torch.cdist(x[in_both], y[drawn.target]).min(1).values
    assert float(near.max()) < 0.2
    assert bool((drawn.target[MAX_DRAWN:] < 2 * MAX_DRAWN).all())  # nothing far away has a partner
