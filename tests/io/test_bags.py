from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path, PureWindowsPath
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vbreg import io
from vbreg.errors import FileFormatError, MissingExtraError
from vbreg.io import bags

POINT = np.dtype(
    {
        "names": ["x", "y", "z", "rgb", "ring"],
        "formats": ["<f4", "<f4", "<f4", "<u4", "<u2"],
        "offsets": [0, 4, 8, 16, 20],
        "itemsize": 24,
    }
)
TYPES = {"<f4": 7, "<u4": 6, "<u2": 4}


def table(second: int) -> np.ndarray:
    rows = np.zeros(6, POINT)
    rows["x"], rows["ring"], rows["rgb"] = np.arange(6) + second, np.arange(6), 0xFF0102
    return rows


def write_bag(path: Path, kind: str, compression: str = "none") -> Path:
    """Three seconds of a topic, one cloud each second, and one of another topic."""
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS1_NOETIC if kind == "ros1" else Stores.ROS2_HUMBLE)
    kinds = store.types
    name = "sensor_msgs/msg/PointCloud2"
    stamp = kinds["builtin_interfaces/msg/Time"](sec=0, nanosec=0)
    more = {"seq": 0} if kind == "ros1" else {}
    header = kinds["std_msgs/msg/Header"](stamp=stamp, frame_id="lidar", **more)
    fields = [
        kinds["sensor_msgs/msg/PointField"](
            name=field, offset=POINT.fields[field][1], datatype=TYPES[POINT[field].str], count=1
        )
        for field in POINT.names
    ]
    if kind == "ros1":
        from rosbags.rosbag1 import Writer

        bag = path / "run.bag"
        writer = Writer(bag)
    else:
        from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin
        from rosbags.rosbag2 import Writer as Writer2

        bag = path / "run"
        plugin = StoragePlugin.MCAP if kind == "mcap" else StoragePlugin.SQLITE3
        writer = Writer2(bag, version=9, storage_plugin=plugin)
        if compression != "none":
            writer.set_compression(CompressionMode[compression.upper()], CompressionFormat.ZSTD)
    with writer:
        options = {"typestore": store}
        topics = {topic: writer.add_connection(topic, name, **options) for topic in ("/a", "/b")}
        for second, topic in ((0, "/a"), (1, "/a"), (2, "/b"), (2, "/a")):
            message = kinds[name](
                header=header, height=2, width=3, fields=fields, is_bigendian=False, point_step=24,
                row_step=72, data=table(second).view(np.uint8), is_dense=True,
            )  # fmt: skip
            write = store.serialize_ros1 if kind == "ros1" else store.serialize_cdr
            writer.write(topics[topic], second * 10**9 + 10**9, write(message, name))
    return bag


@pytest.mark.parametrize("kind", [pytest.param("ros1", marks=pytest.mark.slow), "db3"])
def test_an_address_names_a_cloud(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("rosbags", reason="vbreg[ros] is not installed")
    bag = write_bag(tmp_path, kind)
    for address, first in ((":/a", 0), (":/a@0.5", 1), (":/b", 2), (":/a@2", 2)):
        cloud = io.read(f"{bag}{address}")
        np.testing.assert_array_equal(cloud.points[:, 0], np.arange(6) + first)
    assert list(cloud.attributes) == ["red", "green", "blue", "ring"]
    assert [int(cloud.attributes[name][0]) for name in ("red", "green", "blue")] == [255, 1, 2]
    io.check_readable(f"{bag}:/a@1")
    with pytest.raises(FileFormatError, match=r"no topic; expected one .*\(/a, /b\)"):
        io.read(bag)
    with pytest.raises(FileFormatError, match="no cloud at 9 s or later"):
        io.read(f"{bag}:/a@9")
    with pytest.raises(FileFormatError, match="the topic /c"):
        io.read(f"{bag}:/c")


@pytest.mark.parametrize("kind", ["db3", "mcap"])
def test_a_file_of_a_bag_by_itself(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("rosbags", reason="vbreg[ros] is not installed")
    alone = tmp_path / f"alone.{kind}"
    (write_bag(tmp_path, kind) / f"run.{kind}").rename(alone)
    assert io.read(f"{alone}:/a@1").points[0, 0] == 1


def test_a_file_of_ros_2_humble_does_not_define_its_messages(tmp_path: Path) -> None:
    pytest.importorskip("rosbags", reason="vbreg[ros] is not installed")
    file = write_bag(tmp_path, "db3") / "run.db3"
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("UPDATE schema SET schema_version = 3")
        database.execute("DROP TABLE message_definitions")
        database.execute("ALTER TABLE topics DROP COLUMN type_description_hash")
    assert io.read(f"{file}:/a@1").points[0, 0] == 1


@pytest.mark.parametrize("compression", ["file", "message"])
def test_a_compressed_bag_is_named_by_its_folder(tmp_path: Path, compression: str) -> None:
    pytest.importorskip("rosbags", reason="vbreg[ros] is not installed")
    bag = write_bag(tmp_path, "mcap", compression).rename(tmp_path / "run_2026.11.17")
    assert io.read(f"{bag}:/a@1").points[0, 0] == 1
    (file,) = bag.glob("run.mcap*")
    with pytest.raises(FileFormatError, match=r"compressed.*name the folder of the bag"):
        io.read(f"{file}:/a@1")


def message(**changes: Any) -> Any:
    field = {"name": "x", "offset": 0, "datatype": 7, "count": 1}
    fields = [
        SimpleNamespace(**{**field, "name": axis, "offset": 4 * k}) for k, axis in enumerate("xyz")
    ]
    held = {"width": 2, "height": 1, "point_step": 12, "row_step": 24, "is_bigendian": False}
    return SimpleNamespace(**{**held, "fields": fields, "data": bytes(24), **changes})


def test_fields_of_either_byte_order() -> None:
    data = np.arange(6, dtype=">f4").tobytes()
    columns = bags.message_columns(Path("a"), message(data=data, is_bigendian=True))
    np.testing.assert_array_equal(columns["y"], [1, 4])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 0}, "zero points"),
        ({"width": 10**12}, "in rows of 24"),
        ({"height": 10**12}, "24 bytes; expected 2000000000000 points"),
        ({"point_step": 8}, "the field 'z' at byte 8 of 8"),
        ({"data": b""}, "0 bytes"),
    ],
)
def test_messages_that_lie(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(FileFormatError, match=words):
        bags.message_columns(Path("a"), message(**changes))


def test_what_is_no_bag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bags.bag_address(Path("a.ply")) is None
    assert bags.bag_address(tmp_path) is None
    assert bags.bag_address(Path("a.bag:/x/y@1.5")) == (Path("a.bag"), "/x/y", 1.5)
    windows = PureWindowsPath("C:/runs/a.bag:/x/y@2")
    assert bags.bag_address(windows) == (Path("C:\\runs\\a.bag"), "/x/y", 2)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "rosbags", None)
    with pytest.raises(MissingExtraError, match=r"reading ROS bags needs.*vbreg\[ros\]"):
        io.read(tmp_path / "a.bag")


def test_a_damaged_bag(tmp_path: Path) -> None:
    pytest.importorskip("rosbags", reason="vbreg[ros] is not installed")
    (tmp_path / "a.bag").write_bytes(b"#ROSBAG V2.0\nnonsense")
    with pytest.raises(FileFormatError, match="a bag of ROS 1 or ROS 2"):
        io.read(tmp_path / "a.bag:/x")
    with pytest.raises(FileFormatError, match="no such file"):
        io.check_readable(tmp_path / "b.bag:/x")
