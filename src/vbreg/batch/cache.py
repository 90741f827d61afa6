"""Clouds that a worker has read and described, as many as fit into its share of memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from vbreg.frames import LocalCloud
from vbreg.matching import DescribedCloud, Viewpoint, describe
from vbreg.scale import Scale
from vbreg.streaming import local_cloud

FileKey: TypeAlias = tuple[str, int, int]  # path, time of the last change, size


@dataclass(eq=False)
class Held:
    """A cloud of a file, and how it was described."""

    cloud: LocalCloud
    described: dict[object, DescribedCloud] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """The memory that it takes."""
        tensors = [self.cloud.points]
        for each in self.described.values():
            tensors += _tensors(each)
        return sum(tensor.nbytes for tensor in tensors)


def _tensors(cloud: DescribedCloud) -> Iterator[Tensor]:
    parts = (cloud.points, cloud.normals, cloud.descriptors, *(cloud.surface or ()))
    yield from (part for part in parts if part is not None)


class CloudCache:
    """The clouds that were used last. A file that changes is read again."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.held: OrderedDict[FileKey, Held] = OrderedDict()
        self.files: dict[LocalCloud, FileKey] = {}
        self.read = self.described = 0  # how often

    def cloud(self, path: str) -> LocalCloud:
        """Return the cloud of a file about its own middle."""
        key = file_key(path)
        if key not in self.held:
            cloud = local_cloud(path, Path(path).name)
            self.held[key], self.files[cloud] = Held(cloud), key
            self.read += 1
        self.held.move_to_end(key)
        self._forget()
        return self.held[key].cloud

    def describe(
        self, cloud: LocalCloud, scale: Scale, *, viewpoint: Viewpoint, **options: Any
    ) -> DescribedCloud:
        """Describe a cloud as `vbreg.matching.describe` does, or remember how it was.

        All calls of a worker have the same other options. A cloud that is no file's is described.
        """
        held = self.held.get(self.files.get(cloud, ("", 0, 0)))
        if held is None:
            self.described += 1
            return describe(cloud, scale, viewpoint=viewpoint, **options)
        seen_from = viewpoint if isinstance(viewpoint, str) else tuple(np.ravel(viewpoint))
        key = scale, seen_from
        if key not in held.described:
            self.described += 1
            held.described[key] = describe(cloud, scale, viewpoint=viewpoint, **options)
            self._forget()
        return held.described[key]

    def _forget(self) -> None:
        """Drop what was used least lately until the rest fits; the last one stays."""
        total = sum(held.bytes for held in self.held.values())
        while total > self.most_bytes and len(self.held) > 1:
            _, old = self.held.popitem(last=False)
            del self.files[old.cloud]
            total -= old.bytes


def file_key(path: str) -> FileKey:
    """Return what changes when the file does; where nothing is known of it, reading will tell."""
    try:
        facts = Path(path).stat()
    except (OSError, ValueError):
        return path, 0, 0
    return path, facts.st_mtime_ns, facts.st_size
