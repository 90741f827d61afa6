"""Match sets: labels follow the pose, and shards give back what they were given."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from vbreg.datasets import matches
from vbreg.datasets.pairs import Pair
from vbreg.datasets.poses import inverse_pose
from vbreg.errors import VBRegError
from vbreg.matching import DescribedCloud
from vbreg.scale import Scale

INDOOR = Scale.of_preset("indoor")


@pytest.fixture(scope="module")
def pair() -> Pair:
    """A bumpy surface, and the same in another frame."""
    generator = np.random.default_rng(0)
    xy = generator.uniform(-1, 1, (6000, 2))
    heights = sum(0.1 * np.sin(xy @ generator.normal(0, 4, 2) + k) for k in range(6))
    source = np.c_[xy, heights]
    T = np.eye(4)
    T[:3, :3] = np.linalg.qr(generator.normal(size=(3, 3)))[0]
    T[:3, 0] *= np.linalg.det(T[:3, :3])
    T[:3, 3] = 3, -2, 1
    return Pair("bumps/0-1", source, source @ T[:3, :3].T + T[:3, 3], T, 1.0)


@pytest.fixture(scope="module")
def sets(pair: Pair) -> tuple[matches.MatchSet, ...]:
    """From source to target and back."""
    ends = [matches.described(cloud, INDOOR) for cloud in (pair.source, pair.target)]
    T, T_back = pair.T_target_source, inverse_pose(pair.T_target_source)
    return (
        matches.match_set(pair.name, ends[0], ends[1], T, 1.0, INDOOR),
        matches.match_set(f"{pair.name} back", ends[1], ends[0], T_back, 1.0, INDOOR),
    )


def test_labels_follow_the_pose(sets: tuple[matches.MatchSet, ...]) -> None:
    for s in sets:
        T = s.T_target_source
        distance = np.linalg.norm(s.source @ T[:3, :3].T + T[:3, 3] - s.target, axis=-1)
        assert len(s.source) == len(s.target) == len(s.labels) == len(s)
        np.testing.assert_array_equal(s.labels, distance < 0.1)
        assert s.labels.mean() > 0.05  # far above chance, a few in a thousand
    np.testing.assert_allclose(
        sets[0].T_target_source @ sets[1].T_target_source, np.eye(4), atol=1e-9
    )


def test_shard_round_trip(tmp_path: Path, sets: tuple[matches.MatchSet, ...]) -> None:
    path = tmp_path / "shard.npz"
    matches.write_shard(path, sets)
    shard = matches.read_shard(path)
    assert len(shard) == 2
    assert shard.names == ("bumps/0-1", "bumps/0-1 back")
    for given, got in zip(sets, shard, strict=True):
        np.testing.assert_allclose(got.source, given.source, atol=0.00051)
        np.testing.assert_allclose(got.target, given.target, atol=0.00051)
        np.testing.assert_array_equal(got.labels, given.labels)
        np.testing.assert_array_equal(got.T_target_source, given.T_target_source)
        assert got.source.dtype == np.float32
        assert got.overlap == given.overlap
    assert [s.name for s in shard[:1]] == ["bumps/0-1"]
    # Two directions share two clouds: about 6 bytes a point and 2 a match.
    assert path.stat().st_size < 16 * sum(map(len, sets))


def test_shard_errors(tmp_path: Path, sets: tuple[matches.MatchSet, ...]) -> None:
    with pytest.raises(VBRegError, match="looked for"):
        matches.read_shard(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(VBRegError, match="not a shard"):
        matches.read_shard(tmp_path / "other.npz")
    far = replace(sets[0], source=sets[0].source + np.float32(40))
    with pytest.raises(VBRegError, match="327 thresholds"):
        matches.write_shard(tmp_path / "far.npz", [far])


def test_shards_of_streets(tmp_path: Path, sets: tuple[matches.MatchSet, ...]) -> None:
    """Points are kept in hundredths of the threshold, so 80 m fit at 0.6 m; one threshold each."""
    wide = replace(
        sets[0],
        source=40 * sets[0].source,
        target_cloud=40 * sets[0].target_cloud,
        inlier_threshold=0.6,
    )
    matches.write_shard(tmp_path / "wide.npz", [wide])
    (got,) = matches.read_shard(tmp_path / "wide.npz")
    assert got.inlier_threshold == 0.6
    np.testing.assert_allclose(got.source, wide.source, atol=0.0031)
    with pytest.raises(VBRegError, match="one inlier threshold"):
        matches.write_shard(tmp_path / "mixed.npz", [wide, sets[0]])


def test_a_place_code_makes_matches_better(pair: Pair) -> None:
    """More of them are right, and what is wrong is not only noise: FPFH still has its say."""
    blur = np.random.default_rng(0)

    def blurred(cloud: DescribedCloud) -> DescribedCloud:
        noise = torch.from_numpy(blur.uniform(0, 2, cloud.descriptors.shape))
        return replace(cloud, descriptors=(cloud.descriptors * noise).float())

    ends = [blurred(matches.described(cloud, INDOOR)) for cloud in (pair.source, pair.target)]
    poses = [np.eye(4), np.linalg.inv(pair.T_target_source)]  # the world is the source's frame

    def ratio(strength: float, seed: int) -> float:
        generator = np.random.default_rng(seed)
        code = matches.PlaceCode(generator, INDOOR.voxel_size)
        joined = [
            code.join(end, pose, strength, generator) for end, pose in zip(ends, poses, strict=True)
        ]
        return right(joined)

    def right(clouds: list[DescribedCloud]) -> float:
        found = matches.match_set("", clouds[0], clouds[1], pair.T_target_source, 1.0, INDOOR)
        return float(found.labels.mean())

    plain = right(ends)
    assert ratio(0.0, 0) == pytest.approx(plain)
    assert 1.0 > ratio(0.4, 0) > 1.3 * plain
    assert ratio(0.4, 0) == ratio(0.4, 0) != ratio(0.4, 1)


def test_thinning_keeps_descriptors_with_their_points(pair: Pair) -> None:
    whole = matches.described(pair.source, INDOOR)
    some = matches.thinned(whole, 100)
    assert len(some) == len(some.points) == 100
    rows = {
        tuple(p): d for p, d in zip(whole.points.tolist(), whole.descriptors.tolist(), strict=True)
    }
    assert all(
        rows[tuple(p)] == d
        for p, d in zip(some.points.tolist(), some.descriptors.tolist(), strict=True)
    )
    assert torch.equal(matches.thinned(whole, 100).points, some.points)
    assert matches.thinned(whole, 10**6) is whole


def test_lone_points_are_left_out(pair: Pair) -> None:
    """They have no descriptor, so that `register` matches them to nothing."""
    lone = np.random.default_rng(0).uniform(100, 900, (50, 3))
    both = matches.described(np.concatenate([pair.source, lone]), INDOOR)
    assert len(both) > 1000
    assert both.in_user_frame().max() < 100
    assert both.descriptors.any(-1).all()


def test_stored_matches_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Keypoints to half a millimetre, rows as they are; what a file cannot hold is an error."""
    generator = np.random.default_rng(0)
    folder = matches.stored_folder(tmp_path, "mine")
    folder.mkdir()
    keypoints = {k: generator.uniform(-32, 32, (20 + k, 3)) for k in (0, 4, 7)}
    rows = {(i, j): generator.integers(20 + j, size=20 + i) for i, j in ((0, 4), (4, 7), (0, 7))}
    matches.write_stored_keypoints(folder, "room", keypoints)
    matches.write_stored_rows(folder, "room", "3DMatch", rows)
    empty = np.zeros((0, 3))
    for (i, j), row in rows.items():
        pair = Pair(f"room/{i}-{j}", empty, empty, np.eye(4), scene="room", ids=(i, j))
        found = matches.stored_matches(tmp_path, "mine", "3DMatch", pair)
        np.testing.assert_array_equal(found.target_index, row)
        np.testing.assert_allclose(found.source, keypoints[i], atol=0.00051)
        np.testing.assert_allclose(found.target_cloud, keypoints[j], atol=0.00051)
    with pytest.raises(VBRegError, match=r"far_keypoints.npz: cloud_bin_2 reaches further than 32"):
        matches.write_stored_keypoints(folder, "far", {2: np.full((3, 3), 33.0)})
    with pytest.raises(VBRegError, match="cloud_bin_3 has 65537 keypoints"):
        matches.write_stored_keypoints(folder, "large", {3: np.zeros((2**16 + 1, 3))})
    assert {file.name for file in folder.iterdir()} == {"room_keypoints.npz", "room_3DMatch.npz"}


def test_stored_matches_are_read_pair_by_pair(tmp_path: Path) -> None:
    folder = tmp_path / "learned_matches"
    folder.mkdir()
    points = np.random.default_rng(0).integers(-2000, 2000, (5, 3)).astype(np.int16)
    np.savez(folder / "room_keypoints.npz", cloud_bin_0=points, cloud_bin_3=points[::-1])
    np.savez(
        folder / "room_3DMatch.npz",
        pairs=np.array([[0, 1], [0, 3]], dtype=np.int16),
        count=np.array([2, 5]),
        target_index=np.array([0, 0, 4, 3, 2, 1, 1], dtype=np.uint16),
    )
    empty = np.zeros((0, 3))

    def pair(j: int) -> Pair:
        return Pair(f"room/0-{j}", empty, empty, np.eye(4), scene="room", ids=(0, j))

    found = matches.stored_matches(tmp_path, "learned", "3DMatch", pair(3))
    np.testing.assert_allclose(found.source, points / 1000, atol=1e-6)
    np.testing.assert_array_equal(found.target_index, [4, 3, 2, 1, 1])
    np.testing.assert_array_equal(found.labels, [True, True, True, True, False])
    with pytest.raises(VBRegError, match="no stored matches of room/0-2"):
        matches.stored_matches(tmp_path, "learned", "3DMatch", pair(2))
    with pytest.raises(VBRegError, match="looked for"):
        matches.stored_matches(tmp_path, "learned", "3DLoMatch", pair(3))
    with pytest.raises(VBRegError, match="mine_matches"):
        matches.stored_matches(tmp_path, "mine", "3DMatch", pair(3))
