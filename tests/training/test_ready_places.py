from pathlib import Path

import numpy as np
import pytest
import torch

from tests.descriptors.conftest import corner
from vbreg import io
from vbreg.datasets.poses import inverse_pose
from vbreg.descriptors.prepared import Prepared
from vbreg.geometry import apply, random_rotation
from vbreg.scale import Scale
from vbreg.training.ready_places import (
    MAX_POINTS,
    ReadyPlace,
    Scan,
    prepared,
    ready_place,
    to_arrays,
    to_tensors,
)

SCALE = Scale(0.05)


def scans(count: int = 3) -> list[Scan]:
    """Parts of a corner, each in a frame of its own, in metres."""
    whole = corner().double().numpy() * SCALE.voxel_size
    generator = torch.Generator().manual_seed(0)
    found = []
    for k in range(count):
        part = whole[whole[:, 0] < 0.6 + 0.2 * k]
        T = np.eye(4)
        T[:3, :3] = random_rotation(1, generator=generator)[0].double().numpy()
        T[:3, 3] = 3 * k
        found.append(Scan((part - T[:3, 3]) @ T[:3, :3], T))
    return found


def write_scene(folder: Path, count: int = 6, *, inverted: bool = False) -> Path:
    """A scene of parts of one corner, by file and pose."""
    folder.mkdir(parents=True)
    rows = []
    for k, (points, T, _) in enumerate(scans(count)):
        io.write(folder / f"scan_{k}.ply", points)
        rows.append((inverse_pose(T) if inverted else T).reshape(-1))
    np.savetxt(folder / "poses.txt", np.stack(rows))
    return folder


@pytest.fixture(scope="module")
def place() -> ReadyPlace[Prepared]:
    return ready_place("corner", scans(), SCALE, 4, prepared)


def test_pairs_lay_clouds_on_each_other(place: ReadyPlace[Prepared]) -> None:
    assert [pair[:2] for pair in place.pairs] == [(0, 1), (0, 2), (1, 2)]
    for pair in place.pairs:
        x, y = (place.clouds[end].points.double() for end in pair[:2])
        moved = apply(torch.from_numpy(pair.T_target_source), x)
        assert float(torch.cdist(moved, y).min(1).values.median()) < 0.6
        assert pair.overlap > 0.9


def test_clouds_are_turned_by_chance(place: ReadyPlace[Prepared]) -> None:
    again = ready_place("corner", scans(), SCALE, 4, prepared)
    other = ready_place("corner", scans(), SCALE, 5, prepared)
    first = [p.clouds[0].points for p in (place, again, other)]
    assert torch.equal(first[0], first[1])
    assert first[0].shape != first[2].shape or not torch.equal(first[0], first[2])


def test_arrays_are_small_and_come_back(place: ReadyPlace[Prepared]) -> None:
    arrays = to_arrays(place)
    assert arrays.clouds[0].patches[0].dtype == np.uint16
    back = to_tensors(arrays, torch.device("cpu"))
    for a, b in zip(place.clouds, back.clouds, strict=True):
        torch.testing.assert_close(a.points, b.points)
        for table, same in zip(a.patches, b.patches, strict=True):
            assert torch.equal(table, same.long())
    assert back.pairs is place.pairs


def test_normals_point_to_a_known_sensor_in_half_of_the_places() -> None:
    """A plane seen from one side: without a sensor its centroid lies on it and says nothing."""
    rng = np.random.default_rng(0)
    plane = np.stack([*rng.uniform(0, 1.5, (2, 20_000)), np.zeros(20_000)], axis=-1)
    sensor = np.array([0.7, 0.7, 2.0])
    turned = 0
    for seed in range(12):
        two = [Scan(plane, np.eye(4), sensor), Scan(plane, np.eye(4), sensor * (1, 1, -1))]
        place = ready_place("plane", two, SCALE, seed, prepared)
        T = torch.from_numpy(place.pairs[0].T_target_source[:3, :3]).float()
        up, down = (cloud.surfaces[1].normals for cloud in place.clouds)
        assert up is not None
        assert down is not None
        cosine = float((up.mean(0) @ T.T) @ down.mean(0))
        turned += cosine < -0.9
    assert 2 <= turned <= 10


def test_a_large_cloud_is_cropped_and_a_tiny_one_left_out() -> None:
    rng = np.random.default_rng(0)
    large = np.stack([*rng.uniform(0, 12, (2, 400_000)), np.zeros(400_000)], axis=-1)
    tiny = rng.uniform(0, 0.3, (100, 3))
    found = ready_place(
        "plane", [Scan(large, np.eye(4)), Scan(tiny, np.eye(4))], SCALE, 0, prepared
    )
    assert len(found.clouds) == 1
    assert len(found.clouds[0].points) == MAX_POINTS
