"""Rooms are closed, furnished, repeat where they should, and leave room to scan."""

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

from tests.simulator.congruence import pieces
from vbreg.errors import VBRegError
from vbreg.simulator import (
    ROOM_KINDS,
    DepthCamera,
    make_room,
    meshes,
    random_trajectory,
    sample_surface,
    scan_scene,
)
from vbreg.simulator.meshes import Mesh

KINDS = list(ROOM_KINDS)


def build(kind: str, seed: int = 0) -> Mesh:
    return make_room(kind, np.random.default_rng(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_builds(kind: str) -> None:
    for seed in range(2):
        mesh = build(kind, seed)
        assert np.isfinite(mesh.vertices).all()
        assert mesh.faces.min() >= 0
        assert mesh.faces.max() < len(mesh.vertices)
        extent = np.ptp(mesh.vertices, axis=0)
        assert ((extent > 1.5) & (extent < (15, 15, 6))).all()
        assert 50 < meshes.area(mesh) < (700 if kind == "clutter" else 400)
        assert meshes.floor_height(mesh, np.random.default_rng(0)) == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_repeat_and_differ(kind: str) -> None:
    first, again, other = build(kind, 7), build(kind, 7), build(kind, 8)
    np.testing.assert_array_equal(first.vertices, again.vertices)
    np.testing.assert_array_equal(first.faces, again.faces)
    assert first.vertices.shape != other.vertices.shape


@pytest.mark.parametrize("kind", KINDS)
def test_a_camera_finds_a_place_and_no_way_out(kind: str) -> None:
    generator = np.random.default_rng(1)
    scene = sample_surface(make_room(kind, generator), generator, spacing=0.025)
    eye = random_trajectory(scene, generator, frames=5)[0, :3, 3]
    k = np.arange(200) + 0.5  # directions evenly about the eye, a dozen samples or more in each
    z, turn = 1 - k / 100, np.pi * (1 + 5**0.5) * k
    r = np.sqrt(1 - z**2)
    compass = cKDTree(np.stack([r * np.cos(turn), r * np.sin(turn), z], axis=-1))
    gaze = scene.points.numpy() - eye
    hit = compass.query(gaze / np.linalg.norm(gaze, axis=-1, keepdims=True))[1]
    assert len(np.unique(hit)) == 200


@pytest.mark.parametrize("kind", ["kitchen", "plain"])
def test_scans_are_full(kind: str) -> None:
    generator = np.random.default_rng(2)
    scene = sample_surface(make_room(kind, generator), generator)
    trajectory = random_trajectory(scene, generator, frames=6)
    camera = DepthCamera(keep=0.8, volume=False)
    fragment, _ = scan_scene(scene, trajectory, camera, torch.Generator().manual_seed(0))
    assert len(fragment) > 4000


@pytest.mark.parametrize(
    ("kind", "least"), [("corridor", 3), ("kitchen", 3), ("office", 4), ("meeting", 6)]
)
def test_what_repeats_is_congruent(kind: str, least: int) -> None:
    for seed in range(3):
        assert pieces(build(kind, seed)).most_common(1)[0][1] >= least


def test_the_symmetric_room_comes_in_pairs() -> None:
    for seed in range(3):
        paired, single = pieces(build("symmetric", seed)), pieces(build("living_room", seed))
        share = [sum(n for n in c.values() if n > 1) / c.total() for c in (paired, single)]
        assert share[0] > max(0.6, share[1])


def test_an_unknown_kind_is_told_the_known_ones() -> None:
    with pytest.raises(VBRegError, match="kitchen"):
        build("cellar")


def test_clutter_adds_what_a_plain_room_lacks() -> None:
    """The kind `clutter` holds many more separate things on its floor area than a living room."""
    for seed in range(3):
        full, tidy = (build(kind, seed) for kind in ("clutter", "living_room"))
        area = [float(np.prod(np.ptp(mesh.vertices, axis=0)[:2])) for mesh in (full, tidy)]
        assert len(pieces(full)) / area[0] > 1.2 * len(pieces(tidy)) / area[1]
