"""A step of a refinement by kernels is the readable step, on clouds of every kind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.backends.corners import corner_pairs
from tests.conftest import DEVICE
from vbreg import backends
from vbreg.alignment import MIN_PARTNERS, Surfaces, aligned, alignment_gain
from vbreg.backends.plain import Backend
from vbreg.geometry import apply, from_rotation_translation, random_rotation
from vbreg.refinement import exact_surfaces, refined
from vbreg.surfaces import OrientedPoints, SurfacePair

pytest.importorskip("triton", reason="needs Triton, which is for Linux")
from vbreg.backends.triton import TritonBackend, alignment

CLOSE = {"atol": 1e-10, "rtol": 0.0}


def pairs(B: int, seed: int = 0) -> tuple[SurfacePair, Tensor]:
    """Return pairs of corners, and poses some way off."""
    return corner_pairs(B, DEVICE, seed)


def check(surfaces: Surfaces, T: Tensor, reach: float = 4.0) -> Tensor:
    """Compare both forms of a step; return the poses after it."""
    quick = TritonBackend()
    found = quick.aligned(surfaces, T, reach)
    torch.testing.assert_close(found, aligned(surfaces, T, reach), **CLOSE)
    gain = quick.alignment_gain(surfaces, T, reach)
    torch.testing.assert_close(gain, alignment_gain(surfaces, T, reach), **CLOSE)
    return found


@pytest.mark.parametrize("reach", [4.0, 2.0, 1.7])
@pytest.mark.parametrize("B", [1, 2])
def test_a_step_is_the_readable_one(B: int, reach: float) -> None:
    pair, T = pairs(B, seed=B)
    moved = check(exact_surfaces(pair), T, reach)
    assert ((moved - T).abs().amax((1, 2)) > 0.01).all()


def test_a_step_is_the_readable_one_where_points_are_compared_in_several_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alignment, "POINTS", 32)
    pair, T = pairs(1)
    check(exact_surfaces(pair), T)


def test_poses_without_partners_stay() -> None:
    pair, T = pairs(2)
    T[1, :3, 3] += 1000.0
    moved = check(exact_surfaces(pair), T)
    assert torch.equal(moved[1], T[1])
    assert not torch.equal(moved[0], T[0])


def test_poses_with_few_partners_stay() -> None:
    pair, T = pairs(1)
    real = torch.zeros_like(pair.source.real)
    real[:, : int(MIN_PARTNERS) - 1] = True
    few = OrientedPoints(pair.source.points, pair.source.normals, real)
    assert torch.equal(check(exact_surfaces(pair._replace(source=few)), T), T)


def test_clouds_without_real_points_change_nothing() -> None:
    pair, T = pairs(1)
    for end in ("source", "target"):
        given = getattr(pair, end)
        none = OrientedPoints(given.points, given.normals, torch.zeros_like(given.real))
        assert torch.equal(check(exact_surfaces(pair._replace(**{end: none})), T), T)


def test_matches_that_disagree_or_are_none_do_not_pull() -> None:
    pair, T = pairs(2)
    away = pair._replace(matched_target=pair.matched_target + 50)
    unreal = pair._replace(matched_real=torch.zeros_like(pair.matched_real))
    none = pair._replace(**{f: getattr(pair, f)[:, :0] for f in pair._fields[2:]})
    alone = [check(exact_surfaces(other), T) for other in (away, unreal, none)]
    torch.testing.assert_close(alone[0], alone[1], **CLOSE)
    torch.testing.assert_close(alone[0], alone[2], **CLOSE)
    assert (check(exact_surfaces(pair), T) - alone[0]).abs().max() > 1e-4


def test_a_step_moves_with_the_source() -> None:
    """The source elsewhere, and the pose that undoes it before: the same place in the target."""
    pair, T = pairs(1)
    surfaces = exact_surfaces(pair)
    R = random_rotation(1, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    G = from_rotation_translation(R, torch.full((1, 3), 20.0, dtype=torch.float64)).to(DEVICE)
    elsewhere = surfaces._replace(
        source=apply(G, surfaces.source),
        source_normals=surfaces.source_normals @ G[:, :3, :3].mT,
        middle=apply(G, surfaces.middle[:, None])[:, 0],
        matched_source=apply(G, surfaces.matched_source),
    )
    found = TritonBackend().aligned(elsewhere, T @ torch.linalg.inv(G), 4.0) @ G
    torch.testing.assert_close(found, TritonBackend().aligned(surfaces, T, 4.0), **CLOSE)


def test_with_gravity_the_step_is_the_readable_one() -> None:
    pair, T = pairs(1)
    up = torch.tensor([0.0, 0.6, 0.8], device=DEVICE)
    surfaces = exact_surfaces(pair)
    expected = aligned(surfaces, T, 4.0, up)
    assert torch.equal(TritonBackend().aligned(surfaces, T, 4.0, up), expected)
    assert not torch.equal(expected, aligned(surfaces, T, 4.0))


def test_a_whole_refinement_is_the_readable_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, T = pairs(2, seed=3)
    poses = []
    for backend in (Backend(), TritonBackend()):
        monkeypatch.setattr(backends, "_load", lambda name, chosen=backend: chosen)
        poses.append(refined(pair, T))
    torch.testing.assert_close(poses[1], poses[0], atol=1e-9, rtol=0)
    assert ((poses[0] - T).abs().amax((1, 2)) > 0.01).all()
