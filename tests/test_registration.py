"""The recipe: from clouds, files and options to a pose."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vbreg
from tests.helpers import EAST, motion, move, surface
from vbreg import Scale, VBReg, descriptors, register
from vbreg.clouds import normals, voxel_downsample
from vbreg.errors import FileFormatError, VBRegError
from vbreg.frames import LocalCloud
from vbreg.network import VariationalNonLocalNetwork


def test_clouds_far_away_have_the_same_pose(fast: VBReg) -> None:
    """`register` with both clouds millions of metres from their origins, in opposite directions."""
    source, target = surface(), move(motion(1), surface(seed=1))
    near = register(source, target, voxel_size=0.1, model=fast)
    shift = 1, -1
    far = register(source + shift[0] * EAST, target + shift[1] * EAST, voxel_size=0.1, model=fast)
    moved = far.apply_to(source + shift[0] * EAST) - shift[1] * EAST
    assert np.abs(moved - near.apply_to(source)).max() < 1e-5
    assert np.array_equal(far.inliers, near.inliers)
    np.testing.assert_allclose(
        far.correspondences.target - shift[1] * EAST, near.correspondences.target, atol=1e-6
    )
    assert far.score == pytest.approx(near.score, abs=1e-5)


def test_register_gives_the_network_its_fpfh(feat_network: VariationalNonLocalNetwork) -> None:
    model = VBReg(feat_network)
    cloud = np.random.default_rng(0).random((2000, 3))
    with pytest.raises(VBRegError, match="3 columns: this network takes 33; give the descriptor"):
        register(cloud, cloud, voxel_size=0.1, model=model, descriptor=lambda p, n, s: n)
    result = register(
        cloud,
        cloud[::-1] + 3.0,
        voxel_size=0.1,
        model=model,
        descriptor="fpfh",
        max_correspondences=80,
        retry=False,
    )
    fpfh, matches = [], result.correspondences
    for points, index in (
        (cloud, matches.source_index),
        (cloud[::-1] + 3.0, matches.target_index),
    ):
        local = voxel_downsample(LocalCloud.of(points, "cloud").points, 0.1)
        fpfh.append(descriptors.fpfh(local, normals(local, 0.2), 0.5)[index])
    again = model.estimate(
        matches.source, matches.target, descriptors=(fpfh[0], fpfh[1]), inlier_threshold=0.2
    )
    np.testing.assert_allclose(result.confidence, again.confidence, atol=1e-4)


def test_a_descriptor_of_another_width_is_named(feat_network: VariationalNonLocalNetwork) -> None:
    with pytest.raises(VBRegError, match="the descriptor has 3 columns: this network takes 33"):
        register(
            surface(),
            surface(),
            voxel_size=0.1,
            model=VBReg(feat_network),
            descriptor=lambda points, normals, scale: points + 1,
        )


# --- descriptors of the user's own


def own_fpfh(points: torch.Tensor, unit: torch.Tensor, scale: Scale) -> torch.Tensor:
    return descriptors.fpfh(points, unit, scale.feature_radius)


def test_a_function_that_computes_fpfh_gives_the_same_pose(fast: VBReg) -> None:
    clouds = surface(), move(motion(1), surface(seed=1))
    by_name, by_function = (
        register(*clouds, voxel_size=0.1, model=fast, descriptor=d) for d in ("fpfh", own_fpfh)
    )
    np.testing.assert_array_equal(by_function.T_target_source, by_name.T_target_source)
    np.testing.assert_array_equal(by_function.confidence, by_name.confidence)


def test_a_function_gets_points_unit_normals_and_the_scale(fast: VBReg) -> None:
    given = []

    def mine(points: torch.Tensor, unit: torch.Tensor, scale: Scale) -> torch.Tensor:
        given.append((points, unit, scale))
        return own_fpfh(points, unit, scale)

    register(surface() + EAST, surface(seed=1), voxel_size=0.1, model=fast, descriptor=mine)
    assert len(given) == 2  # source, then target
    for points, unit, scale in given:
        assert scale == Scale(0.1)
        assert points.shape == unit.shape
        assert float(points.abs().max()) < 2  # local, wherever the cloud lies
        torch.testing.assert_close(unit.norm(dim=-1), torch.ones(len(unit)))


@pytest.mark.parametrize(
    ("descriptor", "message"),
    [
        ("shot", r"descriptor 'shot': expected 'learned', 'fpfh', 'fcgf', a file"),
        (33, "descriptor 33: expected 'learned', 'fpfh', 'fcgf', a file"),
        (lambda points, unit, scale: points[1:], r"gave shape .* one row per point"),
        (lambda points, unit, scale: points / 0, "gave NaN or infinity: give a row of zeros"),
        (lambda points, unit, scale: "fpfh", "gave a str: expected numbers"),
        (lambda points, unit, scale: torch.zeros(len(points), 4), "0 matches between"),
    ],
)
def test_a_wrong_descriptor_is_named(fast: VBReg, descriptor: object, message: str) -> None:
    with pytest.raises(VBRegError, match=message):
        register(
            surface(),
            surface(),
            voxel_size=0.1,
            model=fast,
            descriptor=descriptor,  # type: ignore[arg-type]
        )


# --- weights and options


def test_a_cpu_takes_the_fast_weights_by_itself() -> None:
    cloud = surface()
    stages: list[str] = []
    first = register(cloud, cloud, voxel_size=0.1, device="cpu", on_stage=stages.append)
    fast, universal = (
        register(cloud, cloud, voxel_size=0.1, device="cpu", weights=name)
        for name in ("fast", "universal")
    )
    np.testing.assert_array_equal(first.confidence, fast.confidence)
    assert not np.array_equal(first.confidence, universal.confidence)
    assert first.backend == "cpu"
    assert stages[:3] == ["prepare", "voxel size", "weights"]
    assert list(first.timings) == list(dict.fromkeys(stages))


def test_weights_and_a_model_are_one_too_many(fast: VBReg) -> None:
    with pytest.raises(VBRegError, match="weights 'fast' and a model: give one of them"):
        register("nowhere.ply", "nowhere.ply", model=fast, weights="fast")  # before any is read


def test_weights_may_be_a_file(tmp_path: Path) -> None:
    path = Path(descriptors.__file__).parents[1] / "weights" / "fast.safetensors"
    copy = tmp_path / "mine.safetensors"
    copy.write_bytes(path.read_bytes())
    cloud = surface()
    named, filed = (
        register(cloud, cloud, voxel_size=0.1, weights=weights, device="cpu")
        for weights in ("fast", str(copy))
    )
    np.testing.assert_array_equal(filed.confidence, named.confidence)
    with pytest.raises(FileFormatError, match=r"no weights at .*none"):
        register(cloud, cloud, voxel_size=0.1, weights=tmp_path / "none.safetensors")


def test_more_matches_of_clouds_than_memory_holds_are_thinned(
    small_network: VariationalNonLocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = np.random.default_rng(0).random((1500, 3))
    model = VBReg(small_network)
    whole = register(cloud, cloud, voxel_size=0.05, model=model)
    assert not whole.memory_limited
    monkeypatch.setattr(VBReg, "_max_matches", lambda model: 200)
    with pytest.warns(UserWarning, match="more than the free memory holds"):
        thinned = register(cloud, cloud, voxel_size=0.05, model=model)
    assert len(thinned.correspondences) == 200 < thinned.matches_found == whole.matches_found
    assert thinned.memory_limited
    found = dict(
        zip(whole.correspondences.source_index, whole.correspondences.target_index, strict=True)
    )
    rows = thinned.correspondences.source_index
    assert [found[i] for i in rows] == thinned.correspondences.target_index.tolist()
    with warnings.catch_warnings():  # no reason to warn where fewer were asked for
        warnings.simplefilter("error")
        asked = register(cloud, cloud, voxel_size=0.05, model=model, max_correspondences=150)
    assert not asked.memory_limited
    assert len(asked.correspondences) == 150


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": "a"}, "seed 'a': expected a whole number"),
        ({"seed": 1.5}, r"seed 1\.5"),
        ({"seed": True}, "seed True"),
        ({"seed": 2**70}, "of 64 bits"),
        ({"device": None}, "device None: expected 'auto'"),
        ({"device": 3.5}, r"device 3\.5"),
        ({"model": "fast"}, "model is a str: expected a VBReg"),
        ({"weights": 3}, "weights 3: expected one of universal, fast"),
        ({"on_stage": 3}, "on_stage is a int: expected a function"),
        ({"preset": []}, r"preset \[\]: expected one of indoor, outdoor"),
        ({"keypoints": np.array([1, 2])}, "keypoints .*or 'all'"),
        ({"max_scale": "2"}, "max_scale '2': expected a positive number"),
        ({"voxel_size": True}, "voxel_size True"),
        ({"matching": "both"}, "matching 'both': expected one of one-way"),
        ({"verify": "no"}, "verify 'no': expected True or False"),
        ({"retry": 2}, "retry 2: expected True or False"),
    ],
)
def test_a_wrong_option_is_told_before_any_work(options: dict[str, Any], message: str) -> None:
    stages: list[str] = []
    given = {"on_stage": stages.append, **options}
    with pytest.raises(VBRegError, match=message):
        vbreg.register("nowhere.ply", "nowhere.ply", **given)  # type: ignore[arg-type]
    assert not stages
