"""The run that describes a cloud: the same with rows that are not real, and recorded on a GPU."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.conftest import DEVICE, GPU
from vbreg import demo, description
from vbreg.description import (
    FINER,
    IN_VOXELS,
    MET_BEFORE,
    Description,
    RecordedDescriber,
    Sampled,
    Size,
    description_of,
    surface_of,
)
from vbreg.descriptors import Descriptor, descriptor_named
from vbreg.frames import LocalCloud
from vbreg.matching import describe, evenly
from vbreg.scale import Scale
from vbreg.timing import untimed

SCALE = Scale(0.05)
needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")


def sampled(voxel_size: float = 0.05, *, seen: bool = True, device: str = "cpu") -> Sampled:
    """A scan of a room, in voxels."""
    cloud = LocalCloud.of(demo.load()[0], "source")
    sizes = voxel_size, voxel_size / 2
    points, detail = cloud.thinned(sizes, torch.device(device))
    rows = evenly(len(points), 300).to(device)
    sensor = torch.from_numpy(-cloud.origin) if seen else None
    return Sampled(points, detail, rows, sensor).in_voxels(voxel_size)


def learned() -> Descriptor:
    return descriptor_named("learned")


def stepwise(cloud: Sampled) -> Description:
    return description._step_by_step(cloud, IN_VOXELS, learned().rows, untimed)


def padded(cloud: Sampled, junk: float) -> Description:
    """What a recording computes, of buffers that hold something else beyond the cloud."""
    held, known = description._longer(cloud, Size.of(cloud))
    for part in held[:2]:
        part.fill_(junk)
    description._fill(held, known, cloud)
    return stepwise(description._marked(held, known))


@pytest.mark.parametrize("seen", [True, False])
def test_rows_that_are_not_real_change_nothing(seen: bool) -> None:
    cloud = sampled(0.15, seen=seen)
    N, n = len(cloud.points), len(cloud.rows)
    expected = stepwise(cloud)
    for junk in (0.0, 7.0):  # what an earlier cloud may have left there
        found = padded(cloud, junk)
        assert len(found.surface.normals) > N
        close = {"atol": 1e-5, "rtol": 0.0}
        torch.testing.assert_close(found.surface.normals[:N], expected.surface.normals, **close)
        torch.testing.assert_close(found.descriptors[:n], expected.descriptors, **close)
        for part in ("lone_share", "volume_share"):
            shares = [float(getattr(each.surface, part)) for each in (found, expected)]
            assert shares[0] == pytest.approx(shares[1], abs=1e-6)


def test_lengths_are_in_voxels() -> None:
    cloud = sampled(0.15)
    local = Sampled(*(part * 0.15 for part in cloud[:2]), cloud.rows, cloud.sensor * 0.15)
    found = description_of(local, Scale(0.15), learned(), untimed)
    expected = stepwise(cloud)
    torch.testing.assert_close(found.descriptors, expected.descriptors, atol=1e-3, rtol=0)
    same = (found.surface.normals * expected.surface.normals).sum(-1)
    assert float(same.median()) > 1 - 1e-5


def test_a_size_holds_its_cloud() -> None:
    for N, F, n in ((10, 10, 10), (1024, 4096, 1000), (5000, 12000, 1250), (3000, 15000, 3000)):
        points = torch.zeros(N, 3)
        cloud = Sampled(points, torch.zeros(F, 3), torch.zeros(n, dtype=torch.int64), None)
        size = Size.of(cloud)
        assert size.points >= N
        assert FINER * size.points >= F
        assert size.rows >= n
        assert size.points <= max(1024, 1.5 * max(N, F / FINER))
        assert not size.from_sensor


def test_points_that_stand_alone_and_those_of_a_volume_are_counted() -> None:
    plane = torch.cartesian_prod(torch.arange(30.0), torch.arange(30.0), torch.zeros(1))
    alone = torch.tensor([[100.0, 0, 0], [0, 100.0, 0]])
    points = torch.cat([plane, alone])
    rows = torch.arange(5)
    surface = surface_of(Sampled(points, points, rows, None))
    assert float(surface.lone_share) == pytest.approx(2 / len(points), abs=1e-6)
    assert float(surface.volume_share) == pytest.approx(0.0, abs=1e-6)
    block = torch.cartesian_prod(*[torch.arange(9.0)] * 3)
    assert float(surface_of(Sampled(block, block, rows, None)).volume_share) > 0.5


class Replay:
    """Stands in for a recording on a CPU: a replay writes into what the first run returned."""

    def __init__(self, run: Callable[[], Description], output: Description) -> None:
        self.run, self.output = run, output

    def replay(self) -> None:
        again = self.run()
        for there, here in zip(flat(self.output), flat(again), strict=True):
            there.copy_(here)


class StandIn:
    """Records on a CPU, as often as there is memory for it."""

    def __init__(self, memory: int = 9) -> None:
        self.memory, self.made = memory, 0

    def record(self, run: Callable[[], Description]) -> tuple[Replay, Description]:
        if self.made == self.memory:
            raise torch.cuda.OutOfMemoryError("none is left")
        self.made += 1
        output = run()
        return Replay(run, output), output


def flat(told: Description) -> list[torch.Tensor]:
    return [*told.surface, told.descriptors]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> RecordedDescriber:
    monkeypatch.setattr(description, "Recorder", lambda device: StandIn())
    return RecordedDescriber(learned().rows, torch.device("cpu"))


def test_a_cloud_is_told_the_same_however_often_its_size_was_met(
    recorded: RecordedDescriber,
) -> None:
    one, other = sampled(0.15), sampled(0.16)
    assert Size.of(one) == Size.of(other)
    first = recorded(one)
    for _ in range(MET_BEFORE):
        recorded(other)
    assert recorded.recorder.made == len(recorded.recordings) == 1
    again = recorded(one)
    for a, b in zip(flat(first), flat(again), strict=True):
        assert torch.equal(a, b)
    recorded(other)  # must not write over what is handed out
    for a, b in zip(flat(first), flat(again), strict=True):
        assert torch.equal(a, b)
        assert not b.is_inference()
    assert len(again.surface.normals) == len(one.points)
    assert len(again.descriptors) == len(one.rows)


def test_without_memory_for_a_recording_it_goes_step_by_step(recorded: RecordedDescriber) -> None:
    recorded.recorder.memory = 0
    cloud = sampled(0.15)
    first, *others = (recorded(cloud) for _ in range(MET_BEFORE + 3))
    assert not recorded.recordings
    assert all(torch.equal(first.descriptors, other.descriptors) for other in others)


def test_large_clouds_are_not_recorded() -> None:
    cloud = sampled(0.15)
    assert RecordedDescriber.takes(cloud)
    many = torch.zeros(description.MAX_RECORDED_POINTS + 1, 3)
    assert not RecordedDescriber.takes(cloud._replace(points=many))
    assert not RecordedDescriber.takes(cloud._replace(rows=torch.arange(10_000)))


@needs_gpu
def test_a_recording_gives_what_the_steps_give() -> None:
    cloud = sampled(device=DEVICE)
    expected = stepwise(cloud)
    recorded = RecordedDescriber(learned().rows, torch.device(DEVICE))
    for _ in range(MET_BEFORE + 2):
        found = recorded(cloud)
        torch.testing.assert_close(found.descriptors, expected.descriptors, atol=1e-3, rtol=0)
        same = (found.surface.normals * expected.surface.normals).sum(-1)
        assert float((same > 1 - 1e-5).float().mean()) > 0.999
        assert float(found.surface.lone_share) == pytest.approx(float(expected.surface.lone_share))


@needs_gpu
def test_a_recording_serves_callers_in_and_out_of_inference_mode() -> None:
    cloud = sampled(device=DEVICE)
    recorded = RecordedDescriber(learned().rows, torch.device(DEVICE))
    with torch.inference_mode():
        first = [recorded(cloud) for _ in range(MET_BEFORE + 1)][-1]
    again = recorded(cloud)
    assert torch.equal(first.descriptors, again.descriptors)
    assert not again.descriptors.is_inference()


@needs_gpu
def test_recordings_are_made_of_sizes_that_come_again() -> None:
    mine, device = replace(learned(), name="mine"), torch.device(DEVICE)
    source = demo.load()[0]
    tables, made = [], []
    for _ in range(MET_BEFORE + 2):
        described = describe(source, SCALE, descriptor=mine, device=device)
        tables.append(described.descriptors)
        made.append(len(description._recorded_on(device, mine).recordings))
    assert made == [0] * MET_BEFORE + [1] * 2
    assert all(torch.equal(table, tables[0]) for table in tables)


@needs_gpu
def test_recordings_go_with_their_descriptor() -> None:
    mine = replace(learned(), name="mine")
    device = torch.device(DEVICE)
    description._recorded_on(device, mine)
    before = len(description._recorded)
    del mine
    gc.collect()
    assert len(description._recorded) == before - 1
