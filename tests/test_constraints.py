"""What is known of a pose is kept to by the answer, and helps where the matches mislead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.conftest import Form
from tests.test_uncertainty import corner, motion, moved
from vbreg import Registration, VBRegError, register
from vbreg.constraints import Constraints
from vbreg.matching import DescribedCloud, MatchedClouds, describe, match_clouds
from vbreg.metrics import pose_error
from vbreg.model import VBReg
from vbreg.network import VariationalNonLocalNetwork
from vbreg.scale import Scale

Points = NDArray[np.float64]
VOXEL = 0.1
SCALE = Scale(VOXEL)
UP = np.array([0.0, 0.0, 1.0])


def turn(axis: int, degrees: float) -> Points:
    """A rotation about a coordinate axis."""
    a, b = [k for k in range(3) if k != axis]
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    R = np.eye(3)
    R[a, a], R[a, b], R[b, a], R[b, b] = c, -s, s, c
    return R


def pose(R: Points, t: tuple[float, float, float]) -> Points:
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R, t
    return T


def off(a: Points, b: Points) -> tuple[float, float]:
    """Degrees and length between two poses."""
    error = pose_error(torch.from_numpy(a), torch.from_numpy(b))
    return float(error.rotation), float(error.translation)


def scene(seed: int = 0) -> Points:
    rng = np.random.default_rng(seed)
    points = corner(rng)[0]
    return points + rng.normal(0, 0.01, points.shape)


@pytest.fixture(scope="module")
def model() -> VBReg:
    return VBReg.from_pretrained("fast", device="cpu")


def found(model: VBReg, source: Points, target: Points, **known: Any) -> Registration:
    return register(source, target, voxel_size=VOXEL, model=model, **known)


def described_points(points: Points, codes: Points) -> DescribedCloud:
    ends = torch.from_numpy(points).float(), torch.from_numpy(codes).float()
    return DescribedCloud(ends[0], None, ends[1], np.zeros(3))


def two_answers(T_many: Points, T_few: Points, many: int = 150, few: int = 60) -> MatchedClouds:
    """Matches of which `many` agree with one pose and `few` with another."""
    rng = np.random.default_rng(0)
    points, codes = rng.uniform(-2, 2, (many + few, 3)), rng.normal(size=(many + few, 16))
    target = np.concatenate([moved(T_many, points[:many]), moved(T_few, points[many:])])
    ends = described_points(points, codes), described_points(target, codes)
    return match_clouds(*ends, SCALE)


FAR = pose(turn(0, 90), (3.0, 1.0, 0.5))  # lies down
NEAR = pose(turn(2, 25), (0.3, -0.2, 0.1))  # upright


@pytest.mark.parametrize(
    ("known", "meant"),
    [
        ({}, FAR),
        ({"gravity": True}, NEAR),
        ({"max_rotation": 40.0}, NEAR),
        ({"max_translation": 1.0}, NEAR),
        ({"guess": NEAR, "max_translation": 0.5, "max_rotation": 10.0}, NEAR),
        ({"guess": FAR, "max_translation": 0.5, "max_rotation": 10.0}, FAR),
        ({"guess": FAR, "max_rotation": 10.0}, FAR),
    ],
    ids=["nothing", "gravity", "rotation", "translation", "near", "far", "rotation from far"],
)
def test_what_is_known_decides_between_two_answers(
    model: VBReg, known: dict[str, Any], meant: Points
) -> None:
    """Most matches agree with a pose that lies down and far away."""
    result = model.solve(two_answers(FAR, NEAR), constraints=Constraints.of(**known))
    angle, length = off(result.T_target_source, meant)
    assert angle < 1.0
    assert length < 0.05


@pytest.mark.parametrize("ups", ["z", [[0.0, -1.0, 0.0], [0.0, 0.0, 2.0]]])
def test_with_gravity_the_pose_turns_about_up_alone(model: VBReg, ups: Any) -> None:
    source = scene()
    if ups == "z":
        T, up_source = pose(turn(2, 130), (1.0, 2.0, 3.0)), UP
    else:  # a camera looks along z and has y down
        stand = np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]])
        T, up_source = pose(turn(2, 40) @ stand, (1.0, 2.0, 3.0)), -np.eye(3)[1]
    result = found(model, source, moved(T, scene(1)), gravity=ups)
    np.testing.assert_allclose(result.T_target_source[:3, :3] @ up_source, UP, atol=1e-9)
    angle, length = off(result.T_target_source, T)
    assert angle < 1.0
    assert length < 0.1


def test_a_wrong_tilt_is_taken_at_its_word(model: VBReg) -> None:
    """Gravity three degrees off: the pose is upright all the same, and off by no more."""
    T = pose(turn(0, 3.0) @ turn(2, 60), (1.0, 0.0, 0.0))
    result = found(model, scene(), moved(T, scene(1)), gravity=(0, 0, 1))
    np.testing.assert_allclose(result.T_target_source[:3, :3] @ UP, UP, atol=1e-9)
    assert off(result.T_target_source, T)[0] < 4.5


@pytest.mark.parametrize("gravity", [None, "z"])
@pytest.mark.parametrize("seed", range(3))
def test_the_answer_lies_within_the_limits_whatever_the_clouds(
    model: VBReg, gravity: Any, seed: int
) -> None:
    """Clouds that have nothing to do with each other, far from their origins."""
    rng = np.random.default_rng(seed)
    source, target = rng.normal(size=(2, 1500, 3)) + rng.normal(0, 100, (2, 1, 3))
    guess = pose(turn(2, 20.0 * seed), (0.0, 0.0, 0.0))
    guess[:3, 3] = target.mean(0) - guess[:3, :3] @ source.mean(0)
    limits = {"max_translation": 0.7, "max_rotation": 15.0}
    result = found(model, source, target, gravity=gravity, guess=guess, **limits)
    T = result.T_target_source
    assert off(T, guess)[0] <= 15.0 + 1e-4
    middle = source.mean(0)
    moved_middle = moved(T, middle[None]) - moved(guess, middle[None])
    assert np.linalg.norm(moved_middle) <= 0.7 + 1e-4
    if gravity:
        np.testing.assert_allclose(T[:3, :3] @ UP, UP, atol=1e-6)


def test_limits_without_a_guess_count_from_no_motion(model: VBReg) -> None:
    T = pose(turn(2, 5), (0.2, 0.1, 0.0))
    result = found(model, scene(), moved(T, scene(1)), max_translation=1.0, max_rotation=10.0)
    angle, length = off(result.T_target_source, T)
    assert angle < 1.0
    assert length < 0.1


@pytest.mark.parametrize(
    ("limits", "reached"),
    [
        ({"max_translation": 0.21}, ("max_translation",)),
        ({"max_translation": 1.0}, ()),
        ({"max_translation": 1.0, "max_rotation": 4.9}, ("max_rotation",)),
    ],
)
def test_a_limit_that_the_pose_reaches_is_told(
    model: VBReg, limits: dict[str, float], reached: tuple[str, ...]
) -> None:
    """The truth is a little beyond, so that the answer is held back."""
    R, source = turn(2, 5), scene()
    shift = source.mean(0) - R @ source.mean(0) + np.array([0.22, 0.0, 0.0])
    T = pose(R, tuple(shift))
    assert found(model, source, moved(T, scene(1)), **limits).limits_reached == reached


def test_moving_both_frames_moves_the_answer(model: VBReg) -> None:
    """The source, the target, the guess and up: all in other frames."""
    T = pose(turn(2, 50), (1.0, 2.0, 0.0))
    source, target, A, B = scene(), moved(T, scene(1)), motion(1, 50.0), motion(2, 50.0)
    guess = pose(turn(2, 45), (1.0, 2.0, 0.0))
    known = {"max_translation": 1.0, "max_rotation": 20.0}
    here = found(model, source, target, gravity="z", guess=guess, **known)
    ups = [A[:3, :3] @ UP, B[:3, :3] @ UP]
    there = found(
        model,
        moved(A, source),
        moved(B, target),
        gravity=ups,
        guess=B @ guess @ np.linalg.inv(A),
        **known,
    )
    expected = B @ here.T_target_source @ np.linalg.inv(A)
    # The voxel grid differs, and so do the points.
    apart = moved(there.T_target_source, moved(A, source)) - moved(expected, moved(A, source))
    assert np.abs(apart).max() < 0.1


def test_nothing_known_changes_nothing(model: VBReg) -> None:
    source, target = scene(), moved(motion(3), scene(1))
    plain = found(model, source, target)
    said = found(model, source, target, gravity=False, guess=None)
    np.testing.assert_array_equal(plain.T_target_source, said.T_target_source)
    np.testing.assert_array_equal(plain.inliers, said.inliers)
    assert Constraints.of() is None
    assert Constraints.of(gravity=False) is None


def test_wide_limits_leave_the_pose_as_it_is(model: VBReg) -> None:
    source, target = scene(), moved(motion(3), scene(1))
    plain = found(model, source, target)
    wide = found(model, source, target, max_translation=1e4, max_rotation=180.0)
    np.testing.assert_allclose(wide.T_target_source, plain.T_target_source, atol=1e-6)


def test_every_backend_keeps_to_what_is_known(
    form: Form, small_network: VariationalNonLocalNetwork
) -> None:
    """Through the one seam: the same tensors, whoever computes the rest."""
    from vbreg.solver import Solver
    from vbreg.voting import VotingConfig

    network = small_network.to(form.device, form.dtype)
    solver = Solver(network, VotingConfig(min_seeds=16, set_size=8))
    matched = two_answers(FAR, NEAR, many=28, few=20)
    constraints = Constraints.of(gravity="z", max_translation=1.0)
    assert constraints is not None
    matches = matched.matches()
    limits = constraints.limits(matches)
    given = matches.map(lambda part: part.to(form.device))
    with torch.inference_mode():
        solution = solver(given, form.backend, whole=True, limits=limits)
    angle, length = off(matches.to_user(solution.T)[0], NEAR)
    assert angle < 1.0
    assert length < 0.05


def test_whether_up_is_z_may_be_said_with_numpy() -> None:
    assert Constraints.of(gravity=np.False_) is None
    known = Constraints.of(gravity=np.True_)
    assert known is not None
    assert known.up is not None
    np.testing.assert_array_equal(known.up, (UP, UP))


# --- matches that cannot be


def test_matches_out_of_reach_are_dropped() -> None:
    matched = two_answers(FAR, NEAR)
    constraints = Constraints.of(guess=NEAR, max_translation=0.2, max_rotation=5.0)
    assert constraints is not None
    kept = constraints.narrow(matched)
    right = kept.source_index >= 150
    assert int(right.sum()) == 60  # none of them is lost
    assert len(right) < 90
    loose = Constraints.of(guess=NEAR, max_rotation=5.0)  # may be shifted any way
    assert loose is not None
    assert len(loose.narrow(matched).source_index) == 210


def test_floors_do_not_match_walls() -> None:
    """With gravity, a surface is as steep in one scan as in the other, whichever side is out."""
    clouds = [describe(scene(seed), SCALE, device=torch.device("cpu")) for seed in (0, 1)]
    rows = torch.arange(min(map(len, clouds)))
    matched = MatchedClouds(clouds[0], clouds[1], rows, rows.flip(0), len(rows), SCALE)
    upright = Constraints.of(gravity=True)
    assert upright is not None
    kept = upright.narrow(matched)
    assert 0 < len(kept.source_index) < len(rows)
    for i, j in zip(kept.source_index, kept.target_index, strict=True):
        assert clouds[0].normals is not None
        assert clouds[1].normals is not None
        a, b = clouds[0].normals[i, 2].abs(), clouds[1].normals[j, 2].abs()
        assert abs(np.degrees(np.arccos(min(1.0, float(a))) - np.arccos(min(1.0, float(b))))) < 30.1


def test_where_no_match_is_left_it_says_so(model: VBReg) -> None:
    with pytest.raises(VBRegError, match=r"0 of 210 matches agree with .* allow more"):
        model.solve(
            two_answers(FAR, NEAR),
            constraints=Constraints.of(
                guess=pose(np.eye(3), (500.0, 0.0, 0.0)), max_translation=1.0
            ),
        )


def test_matches_that_cannot_be_do_not_crowd_out_the_others(model: VBReg) -> None:
    """A guess leaves some of all matches; they are thinned no further than to what is allowed."""
    source, target = scene(), moved(NEAR, scene(1))
    known = {"guess": NEAR, "max_translation": 0.1, "max_rotation": 5.0}
    free = found(model, source, target, keypoints="all")
    result = found(model, source, target, keypoints="all", max_correspondences=300, **known)
    assert len(free.correspondences) > 1500
    assert len(result.correspondences) == 300
    assert result.matches_found == free.matches_found
    ends = result.correspondences
    apart = np.linalg.norm(moved(NEAR, ends.source) - ends.target, axis=1)
    assert apart.max() < 0.1 + 2 * np.sin(np.radians(2.5)) * 5 + SCALE.inlier_threshold


def test_matches_are_thinned_where_clouds_are_matched_already(model: VBReg) -> None:
    constraints = Constraints.of(guess=NEAR, max_translation=0.2, max_rotation=5.0)
    given = two_answers(FAR, NEAR)
    result = model.solve(given, constraints=constraints, max_correspondences=50)
    assert len(result.correspondences) == 50
    with pytest.raises(VBRegError, match="max_correspondences 2: expected a whole number from 3"):
        model.solve(given, max_correspondences=2)


# --- points to ignore


def test_ignored_points_are_as_if_they_were_not_there(model: VBReg) -> None:
    source, target = scene(), moved(motion(3), scene(1))
    junk = np.random.default_rng(0).uniform(10, 12, (500, 3))
    mask = np.arange(len(source) + 500) >= len(source)
    plain = found(model, source, target)
    whole = np.concatenate([source, junk])
    nothing = torch.zeros(len(target), dtype=torch.bool)
    for ignore in ((mask, None), (lambda p: p[:, 0] > 9, nothing)):
        result = found(model, whole, target, ignore=ignore)
        np.testing.assert_array_equal(result.T_target_source, plain.T_target_source)
        assert result.points_read == (len(whole), len(target))


@pytest.mark.parametrize(
    ("ignore", "said"),
    [
        ((np.zeros(3, dtype=bool), None), r"ignore for source is a mask: bool of shape \(3,\)"),
        ((None, lambda p: p[:, 0]), r"ignore for target is a function that returns float64"),
        (lambda p: np.ones(len(p), dtype=bool), r"source has 0 finite points .* ignored"),
    ],
)
def test_what_does_not_tell_points_is_named(model: VBReg, ignore: Any, said: str) -> None:
    with pytest.raises(VBRegError, match=said):
        found(model, scene(), scene(1), ignore=ignore)


# --- mistakes


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"gravity": "w"}, r"gravity 'w': expected True"),
        ({"gravity": (0, 0, 0)}, r"gravity \(0, 0, 0\)"),
        ({"gravity": 1}, r"gravity 1: expected True \(z is up\)"),
        ({"gravity": 1.0}, r"gravity 1\.0: expected True"),
        ({"gravity": (0, 1)}, r"expected True \(z is up\)"),
        ({"gravity": (0, np.nan, 1)}, "gravity"),
        ({"guess": np.eye(4)}, "how far off it may be"),
        ({"guess": np.eye(3), "max_rotation": 5}, r"shape \(3, 3\): expected a pose \(4, 4\)"),
        ({"guess": 2 * np.eye(4), "max_rotation": 5}, r"\(4, 4\)"),
        ({"guess": np.diag([2, 2, 2, 1.0]), "max_rotation": 5}, "neither scaled nor mirrored"),
        ({"guess": np.diag([1, 1, -1, 1.0]), "max_rotation": 5}, "mirrored"),
        ({"guess": np.diag([1, 1, np.nan, 1]), "max_rotation": 5}, "value that is not finite, nan"),
        ({"guess": "here", "max_rotation": 5}, r"\(4, 4\)"),
        ({"max_rotation": 0}, "max_rotation 0: expected degrees"),
        ({"max_rotation": 181}, "at most 180"),
        ({"max_rotation": "5"}, "max_rotation '5': expected degrees"),
        ({"max_rotation": "a lot"}, "expected degrees"),
        ({"max_translation": -1}, "max_translation -1: expected a positive number"),
    ],
)
def test_mistakes_are_named_before_any_work(known: dict[str, Any], said: str) -> None:
    with pytest.raises(VBRegError, match=said):
        register("none.ply", "none.ply", **known)


@pytest.mark.parametrize("as_tensor", [torch.tensor, lambda x: torch.tensor(x, requires_grad=True)])
def test_what_is_known_may_be_a_tensor(as_tensor: Any) -> None:
    T = np.eye(4)
    T[:3, 3] = 1.0, 2.0, 3.0
    known = Constraints.of(gravity=as_tensor([0.0, 0.0, 2.0]), guess=as_tensor(T), max_rotation=5)
    assert known is not None
    assert known.up is not None
    np.testing.assert_array_equal(known.up[0], UP)
    np.testing.assert_allclose(known.T_guess, T)
    assert known.names == ("gravity", "guess", "max_rotation")


def test_the_name_of_a_file_is_no_guess() -> None:
    with pytest.raises(VBRegError, match=r"a guess that is a str: .* `vbreg\.io\.read_pose`"):
        Constraints.of(guess="pose.txt", max_rotation=5.0)  # type: ignore[arg-type]


def test_a_pose_that_fits_no_match_asks_about_what_was_given(model: VBReg) -> None:
    """A wrong limit is more likely than a wrong voxel size."""
    points = corner(np.random.default_rng(0))[0]
    tilted = moved(pose(turn(0, 90.0), (0.0, 0.0, 0.0)), points)
    found = register(points, tilted, voxel_size=VOXEL, model=model, max_rotation=5.0)
    assert found.constrained_by == ("max_rotation",)
    assert any("is what you said of the pose right (max_rotation)?" in r for r in found.reasons)
