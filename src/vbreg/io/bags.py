"""Clouds in ROS 1 and ROS 2 bags, through rosbags (installed by vbreg[ros]).

A bag holds many clouds, so an address names one: `run.bag:/points@12.5` is the first cloud of the
topic /points that is 12.5 s or more after the start of the bag. Topic and time may be left out. A
bag of ROS 2 is named by its folder, or by a file in it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vbreg.errors import FileFormatError, MissingExtraError, VBRegError
from vbreg.io.child import decode_in_child
from vbreg.io.columns import cloud_from_columns, problem
from vbreg.io.pcd import unpacked
from vbreg.types import PointCloud

BAG_ENDINGS = (".bag", ".mcap", ".db3")
_PACKED_ENDINGS = (".mcap.zstd", ".db3.zstd")
_CLOUD = "sensor_msgs/msg/PointCloud2"
# A drive's letter is no bag, and Path turns the slashes of Windows round.
_ADDRESS = re.compile(
    r"(?P<bag>(?:[A-Za-z]:(?=[/\\]))?.+?)"
    r"(?::(?P<topic>[/\\][^@]*))?(?:@(?P<seconds>\d+(?:\.\d+)?))?"
)
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}
_ZSTD = b"\x28\xb5\x2f\xfd"  # what a compressed message begins with
_MEMORY = 1 << 30  # bytes for the decoder: chunks of a bag are small, and one is held at a time


class Address(NamedTuple):
    """A cloud in a bag."""

    bag: Path
    topic: str | None
    seconds: float  # after the start of the bag


def bag_address(path: Path) -> Address | None:
    """Parse `BAG[:/TOPIC][@SECONDS]`; return None for what is no bag."""
    match = _ADDRESS.fullmatch(str(path))
    if match is None:
        return None
    bag = Path(match["bag"])
    named = bag.name.lower().endswith((*BAG_ENDINGS, *_PACKED_ENDINGS))
    if not named and not (bag / "metadata.yaml").is_file():
        return None
    topic = match["topic"]
    return Address(bag, topic and topic.replace("\\", "/"), float(match["seconds"] or 0))


def read_bag(path: Path) -> PointCloud:
    """Read the cloud that an address names, in a process of its own."""
    _rosbags()
    address = bag_address(path)
    assert address is not None
    if not address.bag.exists():
        raise problem(path, "no such file", "an existing bag", "check the spelling")
    if address.bag.is_file() and address.bag.name.lower().endswith(_PACKED_ENDINGS):
        raise _packed(path, "a compressed part of a bag")
    return decode_in_child(path, "bags", _MEMORY, size=_size(address.bag))


def decode(path: Path) -> PointCloud:
    """Find the message that an address names, and return its points with all fields."""
    address = bag_address(path)
    assert address is not None
    try:
        message = _message(path, address)
    except VBRegError:
        raise
    except Exception as exc:  # rosbags and what it decompresses with raise a dozen types
        reason = " ".join(str(exc).split())[:100] or type(exc).__name__
        raise problem(path, f"not readable ({reason})", "a bag of ROS 1 or ROS 2") from exc
    return cloud_from_columns(path, unpacked(message_columns(path, message)))


def message_columns(path: Path, message: Any) -> dict[str, NDArray[Any]]:
    """Return the fields of a PointCloud2 message, one column each."""
    data = bytes(message.data)
    count, step = message.width * message.height, message.point_step
    order = ">" if message.is_bigendian else "<"
    columns: dict[str, NDArray[Any]] = {}
    if count == 0:
        raise problem(path, "zero points", "at least one point")
    if step < 1 or message.row_step < message.width * step:
        raise problem(path, f"points of {step} bytes in rows of {message.row_step}", "whole points")
    if message.row_step * message.height > len(data):
        raise problem(path, f"{len(data)} bytes", f"{count} points of {step} bytes")
    rows = np.frombuffer(data, np.uint8, message.row_step * message.height)
    table = rows.reshape(message.height, message.row_step)[:, : message.width * step]
    table = np.ascontiguousarray(table).reshape(count, step)
    for field in message.fields:
        code = _TYPES.get(field.datatype)
        size = np.dtype(code).itemsize * field.count if code else 0
        if not code or field.count < 1 or field.offset + size > step:
            found = f"the field '{field.name}' at byte {field.offset} of {step}"
            raise problem(path, found, "fields within a point")
        values = table[:, field.offset : field.offset + size].copy().view(order + code)
        columns[field.name] = values[:, 0] if field.count == 1 else values
    return columns


def _message(path: Path, address: Address) -> Any:
    from rosbags.highlevel import AnyReader
    from rosbags.typesys import Stores, get_typestore

    # Files of ROS 2 Humble and before do not say what a PointCloud2 is; it has not changed since.
    usual = get_typestore(Stores.ROS2_HUMBLE)
    with AnyReader([address.bag], default_typestore=usual) as reader:
        clouds = [c for c in reader.connections if c.msgtype == _CLOUD]
        topics = sorted({connection.topic for connection in clouds})
        topic = address.topic or (topics[0] if len(topics) == 1 else None)
        if topic not in topics:
            found = f"the topic {topic}" if topic else "no topic"
            known = ", ".join(topics) or "none in this bag"
            hint = f"write {address.bag.name}:/TOPIC"
            raise problem(path, found, f"one with point clouds ({known})", hint)
        start = reader.start_time + round(address.seconds * 1e9)
        wanted = [connection for connection in clouds if connection.topic == topic]
        for connection, _, raw in reader.messages(connections=wanted, start=start):
            if bytes(raw[:4]) == _ZSTD:
                raise _packed(path, "compressed messages")
            return reader.deserialize(raw, connection.msgtype)
        length = (reader.end_time - reader.start_time) / 1e9
    raise problem(path, f"no cloud at {address.seconds:g} s or later", f"less than {length:g} s")


def _packed(path: Path, found: str) -> FileFormatError:
    """Return the error for a file that only the metadata.yaml of its folder says how to unpack."""
    hint = "name the folder of the bag, where metadata.yaml lies, in place of the file"
    return problem(path, found, "a bag that can be read by itself", hint)


def _size(bag: Path) -> int:
    files = [bag] if bag.is_file() else [path for path in bag.iterdir() if path.is_file()]
    return sum(path.stat().st_size for path in files)


def _rosbags() -> None:
    try:
        import rosbags  # noqa: F401
    except ImportError:
        raise MissingExtraError("rosbags", "ros", "reading ROS bags") from None
