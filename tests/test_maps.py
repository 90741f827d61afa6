"""A map: a query lands where it was taken, whatever the frame, and a saved map is the map."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import vbreg
from vbreg import Map, VBReg, io, maps
from vbreg.descriptors import descriptor_named
from vbreg.descriptors.choice import SHIPPED
from vbreg.errors import FileFormatError, VBRegError
from vbreg.scale import Scale
from vbreg.scenes.retrieval import similarities, similarities_to
from vbreg.types import Alternative
from vbreg.weights_file import read_weights

SIZE = 0.1
EAST = np.array([512_345.678, 5_412_345.678, 432.1])


def corner(place: int, seed: int, count: int = 6000) -> np.ndarray:
    """A corner of three walls with bumps of its own at each place, sampled by chance."""
    waves = np.random.default_rng(100 + place)
    k, phase = waves.uniform(1.0, 4.0, (3, 3)), waves.uniform(0, 6, 3)
    points = np.random.default_rng(seed).random((count, 3)) * waves.uniform(1.0, 2.5, 3)
    for axis, rows in enumerate(np.array_split(np.arange(count), 3)):
        points[rows, axis] = 0.3 * np.sin(points[rows] @ k[axis] + phase[axis])
    return points


def pose(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    T = np.eye(4)
    Q = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    T[:3, :3] = Q * np.sign(np.linalg.det(Q))
    T[:3, 3] = rng.normal(size=3) * 5
    return T


def moved(points: np.ndarray, T: np.ndarray) -> np.ndarray:
    return np.asarray(points @ T[:3, :3].T + T[:3, 3])


@pytest.fixture(scope="module")
def model() -> VBReg:
    return VBReg.from_pretrained(device="cpu")


@pytest.fixture(scope="module")
def place(model: VBReg) -> Map:
    """Four corners, each in a frame of its own, far from the origin of the map."""
    poses = [pose(k) for k in range(4)]
    for T in poses:
        T[:3, 3] += EAST
    clouds = [corner(k, k) for k in range(4)]
    return Map.build(clouds, poses, voxel_size=SIZE, model=model)


@pytest.mark.parametrize("k", [0, 2])
def test_a_query_lands_where_it_was_taken(place: Map, k: int) -> None:
    T_query = pose(50 + k)
    query = moved(corner(k, 10 + k), np.linalg.inv(T_query))
    T_map_cloud = pose(k)
    T_map_cloud[:3, 3] += EAST
    expected = T_map_cloud @ T_query
    found = place.locate(query)
    assert sorted(name for name, _ in place.ranked(place.describe(query))) == list("0123")
    assert (found.success_probability or 0) > 0.5
    np.testing.assert_allclose(
        moved(query, found.T_target_source), moved(query, expected), atol=0.1
    )
    assert found.voxel_size == SIZE


def test_places_that_look_alike_share_the_probability(model: VBReg, place: Map) -> None:
    """The same corner twice: nobody can tell which of them it is."""
    clouds = [corner(0, 0), corner(0, 0) + 20.0, corner(1, 1)]
    twice = Map.build(clouds, voxel_size=SIZE, model=model)
    found = twice.locate(corner(0, 10))
    alone = Map.build(clouds[0], voxel_size=SIZE, model=model).locate(corner(0, 10))
    p, q = found.success_probability or 0.0, alone.success_probability or 0.0
    assert q > 0.8 > 0.6 > p
    other = found.alternatives[0]
    assert other.probability == pytest.approx(p, abs=0.1)
    apart = np.abs((other.T_target_source - found.T_target_source)[:3, 3])
    np.testing.assert_allclose(apart, 20.0, atol=0.2)
    assert any("is possible, too" in reason for reason in found.reasons)


def test_every_place_is_told_once_and_all_share_one_probability(place: Map) -> None:
    """60 % here or 35 % there, says one fragment, and another: there, with 55 %."""
    here, there, elsewhere = pose(1), pose(2), pose(3)
    found = place.locate(corner(0, 10))
    best = replace(
        found,
        T_target_source=here,
        success_probability=0.6,
        alternatives=(Alternative(there, 0.35), Alternative(elsewhere, 0.04)),
    )
    rival = replace(found, T_target_source=there, success_probability=0.55, alternatives=())
    joint = maps._most_probable([rival, best], np.zeros(3))
    odds = np.array([0.6 / 0.4, 0.55 / 0.45])
    shares = odds / (1 + odds.sum())
    assert joint.T_target_source is here
    assert joint.success_probability == pytest.approx(shares[0])
    assert [each.T_target_source is there for each in joint.alternatives] == [True, False]
    told = [each.probability for each in joint.alternatives]
    assert told == pytest.approx([shares[1], 0.04 * shares[0] / 0.6])
    alone = maps._most_probable([best], np.zeros(3))
    assert [each.probability for each in alone.alternatives] == pytest.approx([0.35, 0.04])


def test_the_frame_of_the_map_goes_with_the_answer(model: VBReg, place: Map) -> None:
    """T_other_query = T_other_map T_map_query, up to the accuracy of a refinement."""
    query = corner(1, 11)
    T = pose(77)
    clouds = [corner(k, k) for k in range(4)]
    other = Map.build(clouds, [T @ pose(k) for k in range(4)], voxel_size=SIZE, model=model)
    here = Map.build(clouds, [pose(k) for k in range(4)], voxel_size=SIZE, model=model)
    answers = other.locate(query).T_target_source, T @ here.locate(query).T_target_source
    np.testing.assert_allclose(answers[0], answers[1], atol=0.03)


def test_a_saved_map_is_the_map(place: Map, model: VBReg, tmp_path: Path) -> None:
    place.save(tmp_path / "map.safetensors")
    again = Map.load(tmp_path / "map.safetensors", model=model)
    assert again.names == place.names
    assert again.scale == place.scale
    query = corner(3, 13)
    one, two = (each.locate(query) for each in (place, again))
    np.testing.assert_array_equal(one.T_target_source, two.T_target_source)
    assert one.success_probability == two.success_probability
    assert "4 fragments" in repr(again)


@pytest.mark.slow
def test_a_merged_cloud_is_cut_into_pieces_that_cover_it(
    model: VBReg, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "MAX_FRAGMENT", 700)
    parts = [corner(k, k) + np.array([4.0 * k, 0, 0]) for k in range(3)]
    whole = Map.build(np.concatenate(parts), voxel_size=SIZE, model=model, descriptor="fpfh")
    assert len(whole) > 2
    held = np.concatenate(
        [f.surface.points.double().numpy() + f.origin for f in whole.fragments if f.surface]
    )
    near = np.linalg.norm(np.concatenate(parts)[::20, None] - held[None], axis=-1).min(1)
    assert near.max() < 2 * SIZE
    assert all(len(f.surface.points) <= 700 for f in whole.fragments if f.surface)


@pytest.mark.parametrize("strays", [0, 200])
def test_pieces_of_a_cloud_that_is_dense_in_its_middle_have_few_more_points_than_it(
    monkeypatch: pytest.MonkeyPatch, strays: int
) -> None:
    """As a scan from one place is: so many points within each distance of the sensor."""
    monkeypatch.setattr(maps, "MAX_FRAGMENT", 1000)
    rng = np.random.default_rng(0)
    angle, distance = rng.uniform(0, 2 * np.pi, 32_000), 10 ** rng.uniform(-2, 2, 32_000)
    around = np.stack([np.cos(angle), np.sin(angle), rng.normal(0, 0.1, len(angle))], axis=1)
    far = rng.normal(size=(strays, 3)) * 5000
    points = torch.from_numpy(np.concatenate([distance[:, None] * around, far])).float()
    detail = torch.cat([points, points + 0.001])
    pieces = list(maps._pieces(points, detail))
    assert all(len(some) <= 1000 for some, _ in pieces)
    for whole, parts in zip((points, detail), zip(*pieces, strict=True), strict=True):
        assert sum(map(len, parts)) < 1.5 * len(whole)
        held = {tuple(point) for part in parts for point in part.tolist()}
        assert held == {tuple(point) for point in whole.tolist()}
    for some, fine in pieces:
        assert {tuple(point) for point in some.tolist()} <= {tuple(x) for x in fine.tolist()}


def test_points_in_one_place_are_not_cut_for_ever() -> None:
    same = torch.zeros(30_000, 3)
    assert len(list(maps._pieces(same, same))) == 1


def test_the_shortlist_is_that_of_whole_scenes(place: Map) -> None:
    table = similarities(place.fragments)
    for k, fragment in enumerate(place.fragments):
        row = similarities_to(fragment, place.table).double().numpy()
        others = np.arange(len(row)) != k
        np.testing.assert_allclose(row[others], table[k][others], atol=1e-6)


def test_normals_point_to_the_origin_only_where_every_cloud_is_a_scan_from_there(
    model: VBReg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A map has one viewpoint, and its queries have the same."""
    scans = [corner(k, k, 600) - 0.5 for k in range(3)]  # round the origin of each
    options: dict[str, Any] = {
        "preset": "outdoor", "voxel_size": SIZE, "descriptor": "fpfh", "model": model
    }  # fmt: skip
    poses = [pose(k) for k in range(3)]

    def seen_from(*given: Any, **more: Any) -> str:
        return Map.build(*given, **{**options, **more}).viewpoint

    assert seen_from(scans, poses) == "origin"
    assert seen_from(scans[0]) == "origin"
    assert seen_from(scans, poses, preset=None) == "unknown"
    assert seen_from([*scans[:2], scans[2] + 50.0], poses) == "unknown"  # wherever it stands
    assert seen_from(scans) == "unknown"  # they are in one frame already
    monkeypatch.setattr(maps, "MAX_FRAGMENT", 200)
    assert seen_from(scans[0]) == "unknown"  # large: several scans that were merged


def test_what_is_no_map_is_told(place: Map, model: VBReg, tmp_path: Path) -> None:
    path = tmp_path / "map.safetensors"
    with pytest.raises(FileFormatError, match="no such file"):
        Map.load(path, model=model)
    path.write_bytes(b"nonsense")
    with pytest.raises(FileFormatError, match="not a weights file"):
        Map.load(path, model=model)
    with pytest.raises(FileFormatError, match="holds no map"):
        Map.load(vbreg.pretrained.weights_path("fast"), model=model)
    with pytest.raises(FileFormatError, match="ending"):
        place.save(tmp_path / "map.npz")


def test_a_damaged_or_foreign_map_is_told(place: Map, model: VBReg, tmp_path: Path) -> None:
    path = tmp_path / "map.safetensors"
    place.save(path)
    header, tensors = read_weights(path)

    def rewrite(**changes: object) -> None:
        about = {**header, "map": {**header["map"], **changes}}
        save_file(tensors, str(path), metadata={"vbreg": json.dumps(about)})

    rewrite(fingerprint="other")
    with pytest.raises(VBRegError, match="other weights than those here"):
        Map.load(path, model=model)
    rewrite(names=["one"])
    with pytest.raises(FileFormatError, match="one for each name"):
        Map.load(path, model=model)
    rewrite(descriptor="learned")  # says not whether it is shipped, of a file or a function
    with pytest.raises(FileFormatError, match="another version"):
        Map.load(path, model=model)
    rewrite(matching="by luck")
    with pytest.raises(FileFormatError, match="another version"):
        Map.load(path, model=model)
    tensors["points"][0, 0] += 1
    rewrite()
    with pytest.raises(FileFormatError, match="checksum"):
        Map.load(path, model=model)
    with safe_open(str(path), framework="pt") as file:  # what is read is never a pickle
        assert "points" in file.keys()  # noqa: SIM118


def test_a_function_is_not_taken_for_the_descriptor_that_has_its_name(
    model: VBReg, tmp_path: Path
) -> None:
    def fpfh(points: torch.Tensor, normals: torch.Tensor, scale: Scale) -> torch.Tensor:
        return torch.cat([points, normals], dim=1)

    for name, choice in (("own", fpfh), ("shipped", "fpfh"), ("named", descriptor_named("fpfh"))):
        built = Map.build(corner(0, 0, 600), voxel_size=SIZE, model=model, descriptor=choice)  # type: ignore[arg-type]
        built.save(tmp_path / f"{name}.safetensors")
    for name in ("shipped", "named"):
        assert Map.load(tmp_path / f"{name}.safetensors", model=model).descriptor.name == "fpfh"
        with pytest.raises(VBRegError, match="described by 'fpfh', other weights"):
            Map.load(tmp_path / f"{name}.safetensors", model=model, descriptor=fpfh)
    own = tmp_path / "own.safetensors"
    with pytest.raises(VBRegError, match=r"function of your own, 'fpfh': give it, Map\.load"):
        Map.load(own, model=model)
    with pytest.raises(VBRegError, match="'fpfh', a function of your own, and not by 'fpfh'"):
        Map.load(own, model=model, descriptor="fpfh")
    assert len(Map.load(own, model=model, descriptor=fpfh)) == 1


def test_a_weights_file_is_found_from_elsewhere_and_named_where_it_is_gone(
    model: VBReg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = Path("mine.safetensors")
    shutil.copy(SHIPPED, weights)
    built = Map.build(corner(0, 0, 600), voxel_size=SIZE, model=model, descriptor=str(weights))
    built.save("map.safetensors")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    path = tmp_path / "map.safetensors"
    assert len(Map.load(path, model=model)) == 1
    moved_to = shutil.move(tmp_path / weights, "moved.safetensors")
    with pytest.raises(VBRegError, match=r"mine\.safetensors, which are not there.*descriptor="):
        Map.load(path, model=model)
    assert len(Map.load(path, model=model, descriptor=moved_to)) == 1


@pytest.mark.parametrize(
    ("clouds", "options", "message"),
    [
        ([], {}, "no clouds"),
        ([corner(0, 0)], {"poses": [np.eye(3)]}, "expected a pose"),
        ([corner(0, 0)], {"poses": [2 * np.eye(4)]}, "no rotation"),
        ([corner(0, 0)], {"poses": [np.diag([1.0, 1.0, 1.0, 2.0])]}, r"last row .*2\.0\]"),
        ([corner(0, 0)], {"poses": [np.eye(4)] * 2}, "for 1 clouds"),
        ([corner(0, 0)], {"names": ["a", "b"]}, "2 names for 1 clouds"),
    ],
)
def test_mistakes_are_told(
    model: VBReg, clouds: list[np.ndarray], options: dict[str, object], message: str
) -> None:
    with pytest.raises(VBRegError, match=message):
        Map.build(clouds, voxel_size=SIZE, model=model, **options)  # type: ignore[arg-type]


def test_a_query_of_too_few_points_is_told(place: Map) -> None:
    with pytest.raises(VBRegError, match="at least 3 are needed"):
        place.locate(np.random.default_rng(0).random((5, 3)) * 100)
    with pytest.raises(VBRegError, match="candidates 0"):
        place.locate(corner(0, 0), candidates=0)


def test_the_voxel_size_is_estimated_and_files_are_read(model: VBReg, tmp_path: Path) -> None:
    io.write(tmp_path / "a.ply", corner(0, 0))
    one = Map.build(tmp_path / "a.ply", model=model, descriptor="fpfh")
    two = Map.build([tmp_path / "a.ply"], model=model, descriptor=descriptor_named("fpfh"))
    assert one.scale == two.scale
    assert one.names == ("0",)
    rows = Map.build(corner(0, 0).tolist(), model=model, voxel_size=SIZE, descriptor="fpfh")
    assert len(rows) == 1
