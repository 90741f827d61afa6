"""Laws that hold for every format."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vbreg import io
from vbreg.errors import FileFormatError, VBRegError
from vbreg.io import formats
from vbreg.io.pcd import write_pcd
from vbreg.io.ply import write_ply
from vbreg.types import PointCloud

PACKAGES = {".las": "laspy", ".laz": "lazrs", ".e57": "pye57"}
EXTRAS = {  # the optional dependency of vbreg that an ending needs
    **dict.fromkeys((".las", ".laz", ".e57"), "io"),
    **dict.fromkeys((".obj", ".stl", ".glb", ".off"), "mesh"),
    **dict.fromkeys((".bag", ".mcap", ".db3"), "ros"),
}
ENDINGS = [row.ending for row in io.FORMATS if row.writes]
VARIANTS = {
    "ascii.ply": functools.partial(write_ply, encoding="ascii"),
    "big.ply": functools.partial(write_ply, encoding="binary_big_endian"),
    "ascii.pcd": functools.partial(write_pcd, encoding="ascii"),
    "compressed.pcd": functools.partial(write_pcd, encoding="binary_compressed"),
}


def available(ending: str) -> bool:
    package = PACKAGES.get(ending)
    return package is None or importlib.util.find_spec(package) is not None


def need(ending: str) -> None:
    if not available(ending):
        pytest.skip(f"{PACKAGES[ending]} is not installed; it comes with vbreg[io]")


COLOURS, NORMALS = ("red", "green", "blue"), ("nx", "ny", "nz")
NEEDED = {".xyzn": NORMALS, ".xyzrgb": COLOURS}  # attributes that an ending cannot do without
HELD = {  # of colours, normals and intensity; the others hold all
    ".pts": (*COLOURS, "intensity"), ".xyzn": NORMALS, ".xyzrgb": COLOURS, ".npy": (),
    ".bin": ("intensity",),
}  # fmt: skip


def full_cloud(count: int = 40) -> PointCloud:
    rng = np.random.default_rng(0)
    attributes = {name: rng.integers(0, 256, count).astype(np.uint8) for name in COLOURS}
    attributes |= {name: rng.normal(size=count).astype(np.float32) for name in NORMALS}
    attributes["intensity"] = rng.uniform(0, 1, count).astype(np.float32)
    return PointCloud(rng.normal(size=(count, 3)).astype(np.float32).astype(float), attributes)


def least(ending: str, points: Any) -> Any:
    """The points, with no more attributes than the ending asks for."""
    needed = NEEDED.get(ending)
    if needed is None:
        return points
    return PointCloud(np.asarray(points), {name: np.ones(len(points)) for name in needed})


@functools.cache
def valid_file(name: str) -> bytes:
    cloud = full_cloud()
    if (suffix := Path(name).suffix or name) in HELD:
        cloud = replace(cloud, attributes={k: cloud.attributes[k] for k in HELD[suffix]})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{Path(name).suffix or name}"
        if name in VARIANTS:
            VARIANTS[name](path, cloud)
        else:
            io.write(path, cloud)
        return path.read_bytes()


def read_or_refuse(name: str, data: bytes) -> None:
    """A damaged file is read or refused, never a traceback."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{Path(name).suffix or name}"
        path.write_bytes(data)
        try:
            cloud = io.read(path)
        except VBRegError as error:
            assert str(path) in str(error)  # noqa: PT017
        else:
            assert cloud.points.shape == (len(cloud), 3)
            assert cloud.points.dtype == np.float64
            assert all(len(values) == len(cloud) > 0 for values in cloud.attributes.values())


IN_A_PROCESS = (".laz", ".e57")  # of its own a decoder reads these, so that fewer are tried
QUICK = [name for name in (*ENDINGS, *VARIANTS) if name not in IN_A_PROCESS]
FRACTIONS = st.floats(0, 1, exclude_max=True)
DAMAGE = st.lists(st.tuples(FRACTIONS, st.integers(0, 255)), min_size=1)


def cut(name: str, where: float) -> None:
    data = valid_file(name)
    read_or_refuse(name, data[: int(where * len(data))])


def damaged(name: str, damage: list[tuple[float, int]], header_only: bool) -> None:
    data = bytearray(valid_file(name))
    reach = min(300, len(data)) if header_only else len(data)
    for where, byte in damage:
        data[int(where * reach)] = byte
    read_or_refuse(name, bytes(data))


@pytest.mark.parametrize("name", QUICK)
@given(where=FRACTIONS)
@settings(max_examples=25, deadline=None)
def test_truncated(name: str, where: float) -> None:
    need(name)
    cut(name, where)


@pytest.mark.parametrize("name", QUICK)
@given(damage=DAMAGE, header_only=st.booleans())
@settings(max_examples=40, deadline=None)
def test_corrupted(name: str, damage: list[tuple[float, int]], header_only: bool) -> None:
    need(name)
    damaged(name, damage, header_only)


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_A_PROCESS)
@given(where=FRACTIONS, damage=DAMAGE, header_only=st.booleans())
@settings(max_examples=8, deadline=None)
def test_truncated_or_corrupted_for_a_decoder_in_a_process(
    name: str, where: float, damage: list[tuple[float, int]], header_only: bool
) -> None:
    need(name)
    cut(name, where)
    damaged(name, damage, header_only)


@pytest.mark.slow
def test_mutants_take_little_memory_and_time() -> None:
    """The whole of it, some thousand of each: `python -m tests.io.mutants 400`."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.io.mutants", "40"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("extreme", [False, True])
def test_arrays_of_any_type_and_paths_of_any_case(
    tmp_path: Path, ending: str, extreme: bool
) -> None:
    need(ending)
    points = np.array([[0, 1, 2], [1000, -1000, 5]] if extreme else [[0, 0, 0]])
    for array in (points, points.astype(np.float32), points.tolist()):
        path = tmp_path / f"a b{ending.upper()}"
        io.write(str(path), least(ending, array))
        np.testing.assert_array_equal(io.read(str(path)).points, points)


@pytest.mark.parametrize("ending", ENDINGS)
def test_bad_paths(tmp_path: Path, ending: str) -> None:
    need(ending)
    path = tmp_path / f"a{ending}"
    with pytest.raises(FileFormatError, match="no such file"):
        io.read(path)
    path.write_bytes(b"")
    with pytest.raises(FileFormatError, match="an empty file"):
        io.read(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(FileFormatError, match="a directory"):
        io.read(path)
    with pytest.raises(FileFormatError, match="it is a directory"):
        io.write(path, np.zeros((1, 3)))
    with pytest.raises(FileFormatError, match="does not exist; create it"):
        io.write(tmp_path / "nowhere" / f"a{ending}", np.zeros((1, 3)))


@pytest.mark.parametrize(
    ("name", "content", "remedy"),
    [
        ("flat.npy", np.zeros(9), "save it with x, y and z of every point"),
        ("plane.npy", np.zeros((9, 2)), "save it with x, y and z of every point"),
        ("wide.npy", np.zeros((3, 2)), "transpose it"),
        ("waves.npy", np.zeros((9, 3), complex), "save it as float64"),
        ("plane.xyz", "1 2\n3 4\n", "save it with x, y and z of every point"),
        ("words.xyz", "# words\n", "save it with x, y and z of every point"),
        ("empty.ply", "", "export or download the file again"),
    ],
)
def test_the_remedy_suits_the_fault(
    tmp_path: Path, name: str, content: np.ndarray | str, remedy: str
) -> None:
    if isinstance(content, str):
        (tmp_path / name).write_text(content)
    else:
        np.save(tmp_path / name, content)
    with pytest.raises(FileFormatError, match=f"; {remedy}$"):
        io.read(tmp_path / name)


def test_an_empty_file_with_a_pose_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "guess.json").write_text("")
    with pytest.raises(FileFormatError, match=r"expected a file with a pose; write it again$"):
        io.read_pose(tmp_path / "guess.json")


def test_a_folder_is_for_reconstruct_and_nothing_is_written_as_ptx(tmp_path: Path) -> None:
    for act in (io.read, io.check_readable):
        with pytest.raises(FileFormatError, match=f"or `vbreg reconstruct {tmp_path}` for all"):
            act(tmp_path)
    with pytest.raises(FileFormatError, match=r"a directory.*; name a file inside it$"):
        io.write(tmp_path, np.zeros((1, 3)))
    with pytest.raises(FileFormatError, match=r"one of \.ply, .* to write; choose another ending$"):
        io.write(tmp_path / "a.ptx", np.zeros((1, 3)))


@pytest.mark.parametrize("name", ["a.blend", "a", "a.blend.gz"])
def test_unknown_ending_lists_the_known(tmp_path: Path, name: str) -> None:
    for act in (lambda p: io.read(p), lambda p: io.write(p, np.zeros((1, 3)))):
        with pytest.raises(FileFormatError, match=r"expected one of \.ply, \.pcd, .*\.e57"):
            act(tmp_path / name)


@pytest.mark.parametrize(
    ("cloud", "message"),
    [
        (np.zeros((0, 3)), "zero points"),
        (np.zeros((4, 2)), r"shape \(4, 2\)"),
        (np.zeros(3), r"shape \(3,\)"),
        (["a", "b"], "expected \\(N, 3\\) real numbers"),
        (np.zeros((1, 3), complex), "complex128"),
        (PointCloud(np.zeros((2, 3)), {"red": np.zeros(3)}), "'red' has shape"),
        (PointCloud(np.zeros((2, 3)), {"tag": np.array(["a", "b"])}), "'tag' has shape"),
        (PointCloud(np.zeros((2, 3)), {"X": np.zeros(2)}), "'X' would be a second"),
        (PointCloud(np.zeros((2, 3)), {"a b": np.zeros(2), "a_b": np.zeros(2)}), "second column"),
    ],
)
def test_clouds_that_are_not_written(tmp_path: Path, cloud: PointCloud, message: str) -> None:
    with pytest.raises(FileFormatError, match=rf"cannot write .*a\.ply: .*{message}"):
        io.write(tmp_path / "a.ply", cloud)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", ENDINGS)
def test_failing_write_leaves_the_old_file(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(ending)
    path = tmp_path / f"a{ending}"
    io.write(path, least(ending, np.zeros((1, 3))))
    before = path.read_bytes()
    row = formats._BY_ENDING[ending]

    def half(temporary: Path, cloud: PointCloud) -> None:
        assert row.writer is not None
        row.writer(temporary, cloud)
        temporary.write_bytes(temporary.read_bytes()[:-1])
        raise OSError(28, "No space left on device")

    broken = formats.Format(ending, row.reader, half, row.note)
    monkeypatch.setitem(formats._BY_ENDING, ending, broken)
    with pytest.raises(FileFormatError, match="No space left on device"):
        io.write(path, least(ending, np.ones((5, 3))))
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


def test_the_callers_arrays_are_left_alone(tmp_path: Path) -> None:
    points = np.arange(6.0).reshape(2, 3)
    points.flags.writeable = False
    for ending in ENDINGS:
        if ending not in PACKAGES and ending not in NEEDED:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                io.write(tmp_path / f"a{ending}", PointCloud(points, {"k": np.arange(2)}))


@pytest.mark.parametrize("first", ENDINGS)
@pytest.mark.parametrize("second", [".ply", ".pcd", ".las", ".csv"])
def test_colours_and_normals_survive_every_way(tmp_path: Path, first: str, second: str) -> None:
    need(first)
    need(second)
    cloud = full_cloud()
    held = HELD.get(first, tuple(cloud.attributes))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        io.write(tmp_path / f"a{first}", cloud)
    lost = set(cloud.attributes) - set(held)
    assert len(said) == bool(lost)
    assert all(f"'{name}'" in str(said[0].message) for name in lost)
    io.write(tmp_path / f"b{second}", io.read(tmp_path / f"a{first}"))
    back = io.read(tmp_path / f"b{second}").attributes
    for name in held:
        np.testing.assert_allclose(back[name], cloud.attributes[name], rtol=1e-6)
    assert all(back[name].dtype == np.uint8 for name in COLOURS if name in held)


def by_open3d(path: Path) -> dict[str, Any]:
    o3d = pytest.importorskip("open3d")
    read = o3d.io.read_point_cloud(str(path))
    held = {
        "points": read.points,
        "colours": np.asarray(read.colors) * 255,
        "normals": read.normals,
    }
    return {name: np.asarray(values) for name, values in held.items() if len(values)}


def by_trimesh(path: Path) -> dict[str, Any]:
    read = pytest.importorskip("trimesh").load(str(path))
    return {"points": np.asarray(read.vertices), "colours": np.asarray(read.colors)[:, :3]}


def by_laspy(path: Path) -> dict[str, Any]:
    read = pytest.importorskip("laspy").read(str(path))
    normals = np.stack([read[name] for name in ("NormalX", "NormalY", "NormalZ")], axis=1)
    colours = np.stack([read.red, read.green, read.blue], axis=1) / 257
    return {"points": read.xyz, "colours": colours, "normals": normals}


def by_pye57(path: Path) -> dict[str, Any]:
    with pytest.importorskip("pye57").E57(str(path)) as file:
        held = file.read_scan_raw(0, ignore_unsupported_fields=True)
    points = np.stack([held[f"cartesian{axis}"] for axis in "XYZ"], axis=1)
    colours = np.stack([held[f"color{name.title()}"] for name in COLOURS], axis=1)
    return {"points": points, "colours": colours}


@pytest.mark.baselines
@pytest.mark.parametrize(
    ("ending", "program", "found"),
    [
        (".ply", by_open3d, {"points", "colours", "normals"}),
        (".pcd", by_open3d, {"points", "colours", "normals"}),
        (".xyz", by_open3d, {"points"}),
        (".pts", by_open3d, {"points", "colours"}),
        (".xyzn", by_open3d, {"points", "normals"}),
        (".xyzrgb", by_open3d, {"points", "colours"}),
        (".ply", by_trimesh, {"points", "colours"}),
        (".las", by_laspy, {"points", "colours", "normals"}),
        (".laz", by_laspy, {"points", "colours", "normals"}),
        (".e57", by_pye57, {"points", "colours"}),
    ],
)
def test_other_programs_read_what_is_written(
    tmp_path: Path, ending: str, program: Any, found: set[str]
) -> None:
    """The table in docs/stages.md says the same."""
    need(ending)
    cloud = full_cloud()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        io.write(tmp_path / f"a{ending}", cloud)
    read = program(tmp_path / f"a{ending}")
    assert set(read) == found
    expected = {
        name: np.stack([cloud.attributes[k] for k in names], axis=1)
        for name, names in (("colours", COLOURS), ("normals", NORMALS))
    } | {"points": cloud.points}
    for name, values in read.items():
        np.testing.assert_allclose(values, expected[name], atol=1e-4)


def test_table_of_formats() -> None:
    assert len({row.ending for row in io.FORMATS}) == len(io.FORMATS)
    for row in io.FORMATS:
        assert row.reads
        assert row.note
        assert row.extra == EXTRAS.get(row.ending)


def test_a_format_may_lack_a_direction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = formats.Format(".ply", None, None, "neither")
    monkeypatch.setitem(formats._BY_ENDING, ".ply", row)
    with pytest.raises(FileFormatError, match="only written"):
        io.read(tmp_path / "a.ply")
    with pytest.raises(FileFormatError, match="only read"):
        io.write(tmp_path / "a.ply", np.zeros((1, 3)))


def test_import_is_light() -> None:
    code = "import sys, vbreg.io; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"laspy", "pye57", "trimesh", "rosbags"} & set(done.stdout.split())


def test_real_fragment(tmp_path: Path) -> None:
    root = os.environ.get("VBREG_DATA")
    if not root:
        pytest.skip("VBREG_DATA is not set; it names the folder of the benchmark data")
    path = Path(root) / "3dmatch/fragments/7-scenes-redkitchen/cloud_bin_0.npz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    cloud = io.read(path)
    assert len(cloud) > 10_000
    for ending in (".ply", ".pcd", ".xyz", ".npz", ".bin"):
        io.write(tmp_path / f"a{ending}", cloud)
        np.testing.assert_array_equal(io.read(tmp_path / f"a{ending}").points, cloud.points)
