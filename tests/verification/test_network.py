"""A judge treats candidates alike, hears both clouds alike, and ignores what is not there."""

from __future__ import annotations

import pytest
import torch

from vbreg.verification.evidence import (
    AROUND,
    NEIGHBORS,
    PAIR_FEATURES,
    POINT_FEATURES,
    POSE_FEATURES,
    Findings,
    Landing,
)
from vbreg.verification.network import JudgeConfig, JudgeNetwork

SMALL = JudgeConfig(pair_width=8, width=16, pose_width=16, layers=1)


def findings(B: int = 2, C: int = 5, S: int = 20, seed: int = 0) -> Findings:
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator)

    def landing() -> Landing:
        paired = rand(B, C, S, NEIGHBORS) < 0.6
        pairs = rand(B, C, S, NEIGHBORS, PAIR_FEATURES) * paired.unsqueeze(-1)
        return Landing(rand(B, C, S, POINT_FEATURES), pairs, paired)

    around = [torch.randint(S, (B, S, AROUND), generator=generator) for _ in range(2)]
    return Findings(
        (landing(), landing()),
        (around[0], around[1]),
        (torch.ones(B, S).bool(), torch.ones(B, S).bool()),
        rand(B, C, POSE_FEATURES),
        torch.ones(B, C).bool(),
    )


@pytest.fixture
def network() -> JudgeNetwork:
    torch.manual_seed(0)
    return JudgeNetwork(SMALL).eval()


def with_candidates(given: Findings, order: torch.Tensor) -> Findings:
    return given._replace(
        landings=tuple(Landing(*(part[:, order] for part in side)) for side in given.landings),
        poses=given.poses[:, order],
        valid=given.valid[:, order],
    )


def test_the_order_of_candidates_does_not_matter(network: JudgeNetwork) -> None:
    given, order = findings(), torch.tensor([3, 1, 4, 0, 2])
    plain, shuffled = network(given), network(with_candidates(given, order))
    torch.testing.assert_close(shuffled.choice, plain.choice[:, order])
    torch.testing.assert_close(shuffled.trust, plain.trust[:, order])


def test_source_and_target_are_heard_alike(network: JudgeNetwork) -> None:
    given = findings()
    turned = given._replace(
        landings=given.landings[::-1], around=given.around[::-1], real=given.real[::-1]
    )
    torch.testing.assert_close(network(turned).trust, network(given).trust)


def test_what_is_not_a_candidate_is_not_heard(network: JudgeNetwork) -> None:
    given = findings()
    fewer = with_candidates(given, torch.arange(3))
    hidden = given.valid.clone()
    hidden[:, 3:] = False
    found = network(given._replace(valid=hidden))
    torch.testing.assert_close(found.choice[:, :3], network(fewer).choice)
    torch.testing.assert_close(found.trust[:, :3], network(fewer).trust)
    assert (found.choice[:, 3:] == -torch.inf).all()


def test_points_that_are_not_real_are_not_heard(network: JudgeNetwork) -> None:
    given = findings()
    around = tuple(part % 12 for part in given.around)  # nobody hears the last
    real = tuple(torch.arange(20).expand(2, 20) < 12 for _ in range(2))
    first = given._replace(around=around, real=real)
    changed = tuple(
        side._replace(points=torch.where(real[0][:, None, :, None], side.points, 9.0))
        for side in given.landings
    )
    torch.testing.assert_close(network(first._replace(landings=changed)), network(first))


def test_without_any_candidate_nothing_breaks(network: JudgeNetwork) -> None:
    given = findings()
    found = network(given._replace(valid=torch.zeros_like(given.valid)))
    assert found.trust.isfinite().all()


def test_a_single_candidate_is_judged(network: JudgeNetwork) -> None:
    found = network(findings(C=1))
    assert found.trust.shape == (2, 1)
    assert network.calibrated(found.trust).isfinite().all()


def test_a_refined_candidate_takes_its_place_among_the_others(network: JudgeNetwork) -> None:
    given = findings()
    chosen = torch.tensor([3, 1])
    seen = network.look(given)
    same = given._replace(
        landings=tuple(
            Landing(*(part[torch.arange(2), chosen].unsqueeze(1) for part in side))
            for side in given.landings
        ),
        poses=given.poses[torch.arange(2), chosen].unsqueeze(1),
        valid=given.valid[:, :1],
    )
    again = network.judge_again(seen, given.valid, chosen, same)
    first = network(given).trust.gather(1, chosen.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(again, first)
    other = network.judge_again(seen, given.valid, chosen, same._replace(poses=same.poses + 1))
    assert not torch.allclose(other, first)
