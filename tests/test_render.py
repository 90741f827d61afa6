"""Pictures: both clouds are there, the nearer wins, and the same call gives the same pixels."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vbreg.errors import VBRegError
from vbreg.render import (
    BACKGROUND,
    HEADER,
    MAX_DRAWN_POINTS,
    SIZE,
    SOURCE,
    TARGET,
    Camera,
    before_after,
    drawable,
    render_clouds,
)

RED, GREEN = (220, 30, 30), (30, 180, 60)


def plane(z: float, half: float = 1.0, n: int = 80) -> np.ndarray:
    x, y = np.meshgrid(np.linspace(-half, half, n), np.linspace(-half, half, n))
    return np.stack([x.ravel(), y.ravel(), np.full(x.size, z)], axis=1)


def share(pixels: np.ndarray, colour: tuple[int, int, int]) -> float:
    """The share of pixels whose direction in colour space is that of `colour`."""
    shade = pixels.reshape(-1, 3).astype(float)
    shade = shade[np.abs(shade - BACKGROUND).max(axis=1) > 20]
    cosine = shade @ np.array(colour) / np.linalg.norm(shade, axis=1) / np.linalg.norm(colour)
    return float(np.mean(cosine > 0.97)) if len(shade) else 0.0


@pytest.fixture
def room() -> np.ndarray:
    rng = np.random.default_rng(0)
    u = rng.random((9000, 3)) * [4, 3, 2]
    for axis, rows in enumerate(np.array_split(np.arange(len(u)), 3)):
        u[rows, axis] = 0
    return u


def from_above() -> Camera:
    return Camera(np.eye(3), np.zeros(3), 60.0)  # z points to the eye


def test_the_nearer_cloud_hides_the_other() -> None:
    for order in (1, -1):
        clouds = [(plane(1.0), RED), (plane(-1.0), GREEN)][::order]
        pixels = render_clouds(clouds, camera=from_above(), size=(200, 200))
        assert share(pixels, RED) > 0.9  # the rest is the soft edge
        assert share(pixels, GREEN) == 0


def test_a_hole_shows_what_lies_behind() -> None:
    clouds = [(plane(1.0, half=0.5), RED), (plane(0.0, half=1.0), GREEN)]
    pixels = render_clouds(clouds, camera=from_above(), size=(200, 200))
    assert 0.15 < share(pixels, RED) < 0.35
    assert tuple(pixels[2, 2]) == BACKGROUND


def test_axes_are_a_right_handed_frame_that_sees_the_floor_from_above(room: np.ndarray) -> None:
    axes = Camera.facing(room).axes
    np.testing.assert_allclose(axes @ axes.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(axes) == pytest.approx(1)
    assert axes[2, 2] > 0  # the eye is above
    assert axes[1, 2] > 0  # and up is up in the picture


def test_a_depth_cameras_frame_is_drawn_upright(room: np.ndarray) -> None:
    camera_frame = room @ np.array([[1, 0, 0], [0, 0, 1], [0, -1, 0]]) + [-2, 0, 3]
    axes = Camera.facing(camera_frame).axes
    assert axes[1, 1] < 0  # y is down
    assert axes[2, 2] < 0  # the eye is on the sensor's side


def test_the_open_side_of_a_room_faces_the_eye(room: np.ndarray) -> None:
    assert (Camera.facing(room).axes[2, :2] > 0).all()  # its walls are x = 0 and y = 0


@pytest.mark.parametrize(
    "points", [np.zeros((1, 3)), np.ones((5, 3)), np.eye(3)], ids=["one", "equal", "three"]
)
def test_degenerate_clouds_are_drawn(points: np.ndarray) -> None:
    pixels = render_clouds([(points, RED)], size=(64, 64))
    assert pixels.shape == (64, 64, 3)
    assert share(pixels, RED) > 0


def test_non_finite_points_are_left_out(room: np.ndarray) -> None:
    dirty = np.concatenate([room, [[np.nan, 0, 0], [np.inf, 0, 0]]])
    pixels = [render_clouds([(p, RED)], size=(64, 64)) for p in (room, dirty)]
    np.testing.assert_array_equal(*pixels)
    with pytest.raises(VBRegError, match="finite"):
        render_clouds([(np.full((4, 3), np.nan), RED)])


def test_large_clouds_are_thinned_the_same_way_each_time() -> None:
    points = np.random.default_rng(0).random((MAX_DRAWN_POINTS + 1000, 3))
    assert len(drawable(points)) == MAX_DRAWN_POINTS
    np.testing.assert_array_equal(drawable(points), drawable(points))


def test_no_corner_of_a_box_and_no_small_cloud_is_cut_off(room: np.ndarray) -> None:
    box = np.random.default_rng(0).uniform(-2, 2, (5000, 3))
    beside = np.random.default_rng(1).uniform([4, 0, 0], [4.3, 0.3, 0.3], (40, 3))
    for view in (Camera.facing(box), Camera.facing(room)):
        camera = view.framing(box, 300, 200, beside)
        for cloud in (box, beside):
            place = camera.project(cloud, 300, 200)[:, :2]
            assert (place > 0).all()
            assert (place < [300, 200]).all()


def test_a_long_tail_does_not_make_the_rest_small(room: np.ndarray) -> None:
    view = Camera.facing(room)
    stray = np.concatenate([room, [[500.0, 0.0, 0.0]]])
    scales = [view.framing(points, 300, 200).pixels_per_unit for points in (room, stray)]
    assert scales[1] > 0.6 * scales[0]


@pytest.mark.parametrize("offset", [0.0, 5e6], ids=["as given", "far apart"])
def test_before_after_shows_both_clouds_on_both_sides(
    room: np.ndarray, tmp_path: Path, offset: float
) -> None:
    T = np.eye(4)
    T[:3, 3] = offset
    path = tmp_path / "picture.png"
    source, target = room[room[:, 0] > 1], room[room[:, 0] < 3] + offset
    before_after(source, target, T, path, title="a title that is far too long " * 20)
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.size == SIZE
        pixels = np.asarray(image)
    for half in np.split(pixels, 2, axis=1):
        assert share(half, SOURCE) > 0.1
        assert share(half, TARGET) > 0.1
    assert [p.name for p in tmp_path.iterdir()] == ["picture.png"]


def test_the_pose_is_applied_to_the_right_panel_only(room: np.ndarray, tmp_path: Path) -> None:
    """Once the source lies exactly on the target it covers it; before, both are seen."""
    T = np.eye(4)
    T[:3, 3] = [2.0, 0.0, 0.0]
    before_after(room, room + T[:3, 3], T, tmp_path / "a.png")
    left, right = np.split(np.asarray(Image.open(tmp_path / "a.png"))[100:], 2, axis=1)
    assert share(left, TARGET) > 0.1
    assert share(right, TARGET) == 0


def test_the_verdict_is_written_above_the_pose(room: np.ndarray, tmp_path: Path) -> None:
    """However long it is, it changes the caption of the right half alone."""
    pixels = []
    for k, verdict in enumerate(("", "do not trust this pose, 12 %", "not judged " * 30)):
        path = tmp_path / f"{k}.png"
        before_after(room, room, np.eye(4), path, verdict=verdict)
        pixels.append(np.asarray(Image.open(path)).astype(int))
    for changed in pixels[1:]:
        rows, columns, _ = np.nonzero(changed != pixels[0])
        assert rows.min() > HEADER // 2
        assert rows.max() < HEADER
        assert columns.min() > SIZE[0] // 2 + 28
        assert columns.max() < SIZE[0] - 28


def test_no_folder_no_file(room: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(VBRegError, match="does not exist"):
        before_after(room, room, np.eye(4), tmp_path / "missing" / "picture.png")


@pytest.mark.skipif("VBREG_DATA" not in os.environ, reason="VBREG_DATA does not name a data folder")
def test_a_real_street_is_seen_from_above(tmp_path: Path) -> None:
    scans = sorted(Path(os.environ["VBREG_DATA"]).glob("kitti/*/*/*.npz"))
    if not scans:
        pytest.skip("no kitti/*/*/*.npz in VBREG_DATA")
    with np.load(scans[0]) as pair:
        assert Camera.facing(pair["xyz1"].astype(float)).axes[2, 2] > 0.7
        before_after(pair["xyz0"], pair["xyz1"], pair["gt_trans"], tmp_path / "street.png")
    assert (tmp_path / "street.png").stat().st_size > 50_000
