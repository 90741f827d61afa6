"""Interiors made from nothing: closed, furnished, repeating where they should, and free to scan."""

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from vbreg.datasets import shapes, virtual
from vbreg.datasets.interiors import INTERIORS, interior
from vbreg.datasets.shapes import Mesh
from vbreg.errors import VBRegError

KINDS = list(INTERIORS)


def build(kind: str, seed: int = 0) -> Mesh:
    return interior(kind, np.random.default_rng(seed))


def pieces(mesh: Mesh) -> Counter[tuple[float, ...]]:
    """How often each connected piece occurs, up to its pose: one key per rigid shape.

    Only what is wider than a hand in two directions counts.
    """
    ends = np.concatenate([mesh.faces[:, :2], mesh.faces[:, 1:]])
    graph = coo_matrix((np.ones(len(ends)), ends.T), shape=[len(mesh.vertices)] * 2)
    count, label = connected_components(graph, directed=False)
    size = np.bincount(label, minlength=count)
    used = np.isin(np.arange(count), label[mesh.faces[:, 0]])
    mean = np.stack([np.bincount(label, v, count) / size for v in mesh.vertices.T], axis=-1)
    offset = mesh.vertices - mean[label]
    square = (offset[:, :, None] * offset[:, None]).reshape(-1, 9)
    scatter = np.stack([np.bincount(label, s, count) / size for s in square.T], axis=-1)
    spread = np.sqrt(np.linalg.eigvalsh(scatter.reshape(-1, 3, 3)).clip(0))
    keep = used & (spread[:, 1] > 0.08)
    return Counter(map(tuple, np.c_[size, spread.round(6)][keep].tolist()))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_builds(kind: str) -> None:
    for seed in range(2):
        mesh = build(kind, seed)
        assert np.isfinite(mesh.vertices).all()
        assert mesh.faces.min() >= 0
        assert mesh.faces.max() < len(mesh.vertices)
        extent = np.ptp(mesh.vertices, axis=0)
        assert ((extent > 1.5) & (extent < (15, 15, 6))).all()
        assert 50 < shapes.area(mesh) < 400
        assert shapes.floor_height(mesh, np.random.default_rng(0)) == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_repeat_and_differ(kind: str) -> None:
    first, again, other = build(kind, 7), build(kind, 7), build(kind, 8)
    np.testing.assert_array_equal(first.vertices, again.vertices)
    np.testing.assert_array_equal(first.faces, again.faces)
    assert first.vertices.shape != other.vertices.shape


@pytest.mark.parametrize("kind", KINDS)
def test_a_camera_finds_a_place_and_no_way_out(kind: str) -> None:
    generator = np.random.default_rng(1)
    scene = virtual.sample_surface(interior(kind, generator), generator, spacing=0.025)
    eye = virtual.random_trajectory(scene, generator, frames=5)[0, :3, 3]
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
    scene = virtual.sample_surface(interior(kind, generator), generator)
    trajectory = virtual.random_trajectory(scene, generator, frames=6)
    camera = virtual.Camera(keep=0.8, volume=False)
    fragment, _ = virtual.scan(scene, trajectory, camera, torch.Generator().manual_seed(0))
    assert len(fragment) > 4000


@pytest.mark.parametrize(
    ("kind", "least"), [("corridor", 3), ("kitchen", 3), ("office", 4), ("meeting", 6)]
)
def test_what_repeats_is_congruent(kind: str, least: int) -> None:
    for seed in range(3):
        assert pieces(build(kind, seed)).most_common(1)[0][1] >= least


def test_the_symmetric_room_comes_in_pairs() -> None:
    for seed in range(3):
        paired, single = pieces(build("symmetric", seed)), pieces(build("room", seed))
        share = [sum(n for n in c.values() if n > 1) / c.total() for c in (paired, single)]
        assert share[0] > max(0.6, share[1])


def test_copies_keep_their_shape() -> None:
    generator = np.random.default_rng(0)
    blob = shapes.blob((0.3, 0.5, 0.7), generator)
    twice = shapes.copies(blob, [(0, 0, 0, 0.5), (3, 1, 0.2, 2.0)])
    assert set(pieces(twice).values()) == {2}
    assert shapes.area(twice) == pytest.approx(2 * shapes.area(blob))


def test_a_box_leaves_out_the_faces_it_is_told_to() -> None:
    open_box = shapes.box((1, 2, 3), skip="xXZ")
    assert shapes.area(open_box) == pytest.approx(2 * 1 * 3 + 1 * 2)
    assert shapes.area(shapes.box((1, 2, 3))) == pytest.approx(2 * (2 + 3 + 6))


def test_a_tube_keeps_its_radius() -> None:
    path = np.array([(0, 0, 0), (0, 0, 0.5), (0, 0, 2.0)])
    tube = shapes.tube(path, 0.1, segments=64)
    np.testing.assert_allclose(np.linalg.norm(tube.vertices[:, :2], axis=-1), 0.1)
    assert shapes.area(tube) == pytest.approx(2 * np.pi * 0.1 * 2.0, rel=0.01)


def test_points_lie_on_their_faces_in_proportion_to_the_area() -> None:
    mesh = shapes.box((1, 2, 3))
    points, normals = shapes.surface_points(mesh, 4400, np.random.default_rng(0))
    on_top = np.abs(points[:, 2] - 3) < 1e-12
    assert abs(on_top.sum() - 400) <= 2  # 2 of 22 square metres
    np.testing.assert_allclose(np.abs(normals[on_top, 2]), 1)
    half = np.abs(points - [0, 0, 1.5]) / [0.5, 1, 1.5]
    np.testing.assert_allclose(half.max(-1), 1)


def test_an_unknown_kind_is_told_the_known_ones() -> None:
    with pytest.raises(VBRegError, match="kitchen"):
        build("cellar")
