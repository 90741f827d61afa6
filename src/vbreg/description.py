"""What is told of a cloud at its working resolution: normals, descriptors, how much is surface.

It is one run of tensors, which a GPU records for sizes that come again and then replays. Shapes: N
points, one a voxel, F finer ones, n of the points that are described.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from vbreg import backends
from vbreg.backends import devices
from vbreg.backends.neighbors import neighbors_within
from vbreg.backends.plain import Backend
from vbreg.backends.recorder import MAX_RECORDINGS, Recorder, coarse_bucket
from vbreg.clouds import NORMAL_NEIGHBORS, covariances, in_volume, lone_points, mean_of, normals
from vbreg.descriptors import Descriptor, ThinnedCloud
from vbreg.scale import Scale
from vbreg.timing import Clock, untimed

IN_VOXELS = Scale(1.0)
FINER = 4  # times as many finer points as points, at most, in a recording
MAX_RECORDED_POINTS, MAX_RECORDED_ROWS = 2**15, 2**13
MET_BEFORE = 2  # clouds of a size that go step by step, before it is worth a recording

# Of a descriptor: a cloud, and some of its rows (n,) -> (n, D).
Rows: TypeAlias = Callable[[ThinnedCloud, Tensor], Tensor]


class Sampled(NamedTuple):
    """A cloud at its working resolution, before anything is told of it."""

    points: Tensor  # (N, 3)
    detail: Tensor  # (F, 3) closer together; the points themselves where nothing finer is known
    rows: Tensor  # (n,) of the points, that are described
    sensor: Tensor | None  # (3,) where all points were seen from, if that is known
    real: Tensor | None = None  # (N,) which of the points count; None where all do
    real_detail: Tensor | None = None  # (F,)

    def in_voxels(self, voxel_size: float) -> Sampled:
        """Return the cloud with its lengths in voxels."""
        sensor = None if self.sensor is None else self.sensor / voxel_size
        return self._replace(
            points=self.points / voxel_size, detail=self.detail / voxel_size, sensor=sensor
        )


class SurfaceDescription(NamedTuple):
    """What the surroundings of its points tell of a cloud."""

    normals: Tensor  # (N, 3) of length 1
    lone_share: Tensor  # () of the points, that lie on no surface
    volume_share: Tensor  # () of the points, that lie in a volume


class Description(NamedTuple):
    """All that is told of a cloud."""

    surface: SurfaceDescription
    descriptors: Tensor  # (n, D)


def surface_of(cloud: Sampled) -> SurfaceDescription:
    """Return normals and shares of a cloud in voxels. Nothing in between waits for the device."""
    points, real = cloud.points, cloud.real
    near = neighbors_within(points, points, IN_VOXELS.normal_radius, NORMAL_NEIGHBORS, real)
    spread = covariances(points, near, real)
    direction = normals(
        points,
        IN_VOXELS.normal_radius,
        viewpoint=cloud.sensor,
        neighbors=near,
        spread=spread,
        real=real,
    )
    lone, thick = lone_points(near, rounds=1, real=real), in_volume(spread, direction)
    return SurfaceDescription(direction, mean_of(lone.float(), real), mean_of(thick.float(), real))


def description_of(
    cloud: Sampled, scale: Scale, descriptor: Descriptor, clock: Clock
) -> Description:
    """Return what is told of a cloud in the unit of the scale, on the device of its points."""
    device = cloud.points.device
    if not descriptor.recordable:
        return _step_by_step(cloud, scale, descriptor.rows, clock)

    def work(backend: Backend) -> Description:
        if not (backend.records and RecordedDescriber.takes(cloud)):
            return _step_by_step(cloud, scale, descriptor.rows, clock)
        with clock("descriptors"), devices.current(cloud.points):
            return _recorded_on(device, descriptor)(cloud.in_voxels(scale.voxel_size))

    return backends.run(work, device)[0]


def _step_by_step(cloud: Sampled, scale: Scale, rows: Rows, clock: Clock) -> Description:
    """Return what is told of a cloud; the descriptor sees it in the unit of the scale."""
    with clock("normals"):
        surface = surface_of(cloud.in_voxels(scale.voxel_size))
    with clock("descriptors"):
        thinned = ThinnedCloud(
            cloud.points, surface.normals, cloud.detail, scale, cloud.real, cloud.real_detail
        )
        return Description(surface, rows(thinned, cloud.rows))


class RecordedDescription(NamedTuple):
    """One recorded run."""

    graph: torch.cuda.CUDAGraph
    cloud: Sampled  # what it reads,
    known: Tensor  # (2,) and how many of its points and finer points are real
    output: Description


class RecordedDescriber:
    """Describes clouds on one GPU, padded to buckets of sizes, by recordings of those met often.

    A recording takes as long as some clouds described step by step, so that a size is recorded once
    it was met a few times. Until then, and where there is no memory for a recording, the same
    padded run goes step by step, so that a cloud is told the same every time.
    """

    def __init__(self, rows: Rows, device: torch.device) -> None:
        """Take the rows of a descriptor, in which nothing waits for the device."""
        self.rows, self.recorder = rows, Recorder(device)
        self.met: Counter[Size] = Counter()
        self.unrecorded: set[Size] = set()  # for want of memory
        self.recordings: dict[Size, RecordedDescription] = {}
        self.lock = Lock()

    @staticmethod
    def takes(cloud: Sampled) -> bool:
        """Tell whether a cloud is small enough for a recording."""
        size = Size.of(cloud)
        return size.points <= MAX_RECORDED_POINTS and size.rows <= MAX_RECORDED_ROWS

    @torch.no_grad()
    def __call__(self, cloud: Sampled) -> Description:
        """Return what is told of a cloud in voxels. Threads wait for each other."""
        with self.lock:
            with torch.inference_mode():  # whatever the caller's mode is when it is recorded
                surface, descriptors = self._padded(cloud, Size.of(cloud))
            return Description(
                SurfaceDescription(
                    surface.normals[: len(cloud.points)].clone(),
                    surface.lone_share.clone(),
                    surface.volume_share.clone(),
                ),
                descriptors[: len(cloud.rows)].clone(),
            )

    def _padded(self, cloud: Sampled, size: Size) -> Description:
        """Return what is told of a cloud with rows behind that are not real."""
        self.met[size] += 1
        if self.met[size] > MET_BEFORE and size not in self.unrecorded:
            try:
                return self._replayed(cloud, size)
            except devices.OutOfMemoryError:
                self.unrecorded.add(size)
        held, known = _longer(cloud, size)
        _fill(held, known, cloud)
        return self._run(held, known)

    def _replayed(self, cloud: Sampled, size: Size) -> Description:
        """Return the same by a recording, which the next replay of any writes over."""
        if size not in self.recordings:
            if len(self.recordings) >= MAX_RECORDINGS:
                self.recordings.pop(next(iter(self.recordings)))
            held, known = _longer(cloud, size)
            _fill(held, known, cloud)
            graph, output = self.recorder.record(partial(self._run, held, known))
            self.recordings[size] = RecordedDescription(graph, held, known, output)
        graph, held, known, output = self.recordings[size]
        _fill(held, known, cloud)
        graph.replay()
        return output

    def _run(self, held: Sampled, known: Tensor) -> Description:
        return _step_by_step(_marked(held, known), IN_VOXELS, self.rows, untimed)


class Size(NamedTuple):
    """The rows that a recording has for a cloud, and whether the place of its sensor is known."""

    points: int  # and FINER times as many finer ones
    rows: int
    from_sensor: bool

    @staticmethod
    def of(cloud: Sampled) -> Size:
        """Return the size that a cloud fits into."""
        most = max(len(cloud.points), -(-len(cloud.detail) // FINER))
        return Size(coarse_bucket(most), coarse_bucket(len(cloud.rows)), cloud.sensor is not None)


def _longer(cloud: Sampled, size: Size) -> tuple[Sampled, Tensor]:
    """Return a cloud of zeros with as many rows as a size has, and how many are real (2,): none."""
    points, rows = cloud.points, cloud.rows
    held = Sampled(
        points.new_zeros(size.points, 3),
        points.new_zeros(FINER * size.points, 3),
        rows.new_zeros(size.rows),
        points.new_zeros(3, dtype=torch.float64) if size.from_sensor else None,
    )
    return held, rows.new_zeros(2)


def _fill(held: Sampled, known: Tensor, cloud: Sampled) -> None:
    """Copy a cloud into a longer one; rows beyond keep what they had, which is not real."""
    for there, here in zip(held[:3], cloud[:3], strict=True):
        there[: len(here)].copy_(here)
    if held.sensor is not None and cloud.sensor is not None:
        held.sensor.copy_(cloud.sensor, non_blocking=True)
    known[0].fill_(len(cloud.points))  # a copy of both would wait for the device
    known[1].fill_(len(cloud.detail))


def _marked(held: Sampled, known: Tensor) -> Sampled:
    """Return a longer cloud with marks on the rows that are real."""
    real, real_detail = (
        torch.arange(len(part), device=part.device) < count
        for part, count in zip(held[:2], known, strict=True)
    )
    return held._replace(real=real, real_detail=real_detail)


_recorded: WeakKeyDictionary[Descriptor, dict[str, RecordedDescriber]] = WeakKeyDictionary()
_recording = Lock()


def _recorded_on(device: torch.device, descriptor: Descriptor) -> RecordedDescriber:
    """Return the recordings of a descriptor on a device, which go when the descriptor does."""
    with _recording:
        of_descriptor = _recorded.setdefault(descriptor, {})
        if str(device) not in of_descriptor:
            of_descriptor[str(device)] = RecordedDescriber(descriptor.rows, device)
        return of_descriptor[str(device)]
