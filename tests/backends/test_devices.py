"""What a machine has, and what is said where it has not what was asked for."""

import gc
import weakref
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
import torch

from tests.conftest import GPU
from vbreg.backends import devices
from vbreg.errors import VBRegError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")
needs_proc = pytest.mark.skipif(not devices.RESET.exists(), reason="needs Linux's /proc")


def test_auto_is_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert devices.choose_device("auto").type == expected


@pytest.mark.parametrize("given", ["cpu", torch.device("cpu")])
def test_a_device_may_be_named_or_given(given: str | torch.device) -> None:
    assert devices.choose_device(given) == CPU


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("gpu", "device 'gpu': expected 'auto', 'cpu', 'cuda' or 'cuda:N'"),
        ("cuda:x", "device 'cuda:x': expected"),
        ("mps", "device 'mps': vbreg runs on 'cpu' and 'cuda'"),
        ("meta", "device 'meta': vbreg runs on 'cpu' and 'cuda'"),
        ("cuda:99", r"device 'cuda:99': this torch sees \d+ GPUs; use 'cpu' or 'auto'"),
    ],
)
def test_a_device_that_is_not_there_is_named_with_what_to_use(given: str, words: str) -> None:
    with pytest.raises(VBRegError, match=words):
        devices.choose_device(given)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(VBRegError, match="sees 0 GPUs"):
        devices.choose_device("cuda")


def test_kinds_of_devices() -> None:
    assert devices.is_cpu(CPU)
    assert not devices.is_gpu(CPU)
    assert devices.is_gpu(CUDA)
    assert devices.device_name(CPU) == "cpu"
    assert not devices.can_record(CPU)
    assert not devices.has_fused_optimizer(CPU)
    assert not devices.runs_triton(CPU)


def test_free_memory_is_what_the_system_says() -> None:
    free = devices.free_memory(CPU)
    assert 2**20 < free < 2**50


@pytest.mark.parametrize("text", [None, "MemTotal: 100 kB\nSwapTotal: 7 kB\n"])
def test_free_memory_is_assumed_where_the_system_does_not_say(
    text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(self: Path, *_: object, **__: object) -> str:
        if text is None:
            raise OSError("no such file")
        return text

    monkeypatch.setattr(Path, "read_text", read)
    assert devices.free_memory(CPU) == devices.ASSUMED_FREE


def test_free_memory_is_read_in_kilobytes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "MemTotal:  9 kB\nMemAvailable:    2048 kB\n"
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    assert devices.free_memory(CPU) == 2048 * 1024


@needs_proc
def test_the_peak_holds_what_was_used_in_between() -> None:
    start = devices.start_peak(CPU, give_back=True)
    if start is None:
        pytest.skip("this system does not let a process set its mark back")
    before = devices.peak(CPU)
    held = np.ones(2**23)  # 64 MB
    del held
    assert devices.peak(CPU) >= start
    assert devices.peak(CPU) - before > 30
    assert devices.start_peak(CPU) is not None
    assert devices.peak(CPU) < before + 60  # the mark is set back


def test_the_peak_is_unknown_where_it_cannot_be_set_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(devices, "RESET", tmp_path / "missing" / "clear_refs")
    assert devices.start_peak(CPU) is None


def test_a_status_without_the_line_gives_no_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    status = tmp_path / "status"
    status.write_text("Name: test\nVmHWM:    2048 kB\n")
    monkeypatch.setattr(devices, "STATUS", status)
    assert devices.peak(CPU) == 2.0
    assert np.isnan(devices._status("VmRSS:"))


@pytest.mark.parametrize(
    ("device", "in_use", "expected"),
    [
        (CPU, True, []),
        (torch.device("cuda:1"), True, [torch.device("cuda:1")]),
        (None, True, [0, 1]),
        (None, False, []),  # to ask would take hold of the GPU
    ],
)
def test_a_wait_is_for_the_gpus_that_are_in_use(
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device | None,
    in_use: bool,
    expected: list[object],
) -> None:
    waited: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: in_use)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    devices.wait(device)
    assert waited == expected


def test_tensors_are_copied_to_the_cpu_all_at_once() -> None:
    device = CUDA if GPU else CPU
    given = torch.arange(3, device=device), torch.ones(2, 2, device=device)
    for copy, tensor in zip(devices.to_cpu(given), given, strict=True):
        assert devices.is_cpu(copy.device)
        assert copy.tolist() == tensor.tolist()


def test_products_are_computed_in_lower_precision_only_where_enabled() -> None:
    a = torch.ones(2, 2)
    for enabled, expected in ((True, torch.bfloat16), (False, torch.float32)):
        with devices.lowered_precision(CPU, enabled=enabled):
            assert (a @ a).dtype == expected


def test_processes_on_a_cpu_talk_through_gloo() -> None:
    assert devices.of_process(CPU, 3) == (CPU, "gloo")


@needs_gpu
def test_a_gpu_has_a_name_and_memory() -> None:
    assert devices.choose_device("auto").type == "cuda"
    assert devices.device_name(CUDA) != "cpu"
    assert 0 < devices.free_memory(CUDA) <= torch.cuda.mem_get_info()[1]
    start = devices.start_peak(CUDA)
    assert start is not None
    held = torch.ones(2**24, device=CUDA)  # 64 MB
    del held
    devices.wait(CUDA)
    assert devices.peak(CUDA) - start > 60


@needs_gpu
def test_little_free_memory_counts_what_torch_holds_in_reserve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free, total = torch.cuda.mem_get_info()
    monkeypatch.setattr(devices, "ENOUGH_FREE", total)
    assert devices.free_memory(CUDA) >= min(free, torch.cuda.mem_get_info()[0])


def test_a_network_stays_where_it_is_and_its_copy_can_be_trained() -> None:
    """Asked for amid inference, on a device that has shapes alone."""
    network, meta = torch.nn.Linear(2, 2), torch.device("meta")
    with torch.inference_mode():
        assert devices.network_on(network, CPU) is network
        copy = devices.network_on(network, meta)
    assert devices.network_on(network, meta) is copy
    for held, device in ((network, CPU), (copy, meta)):
        assert all(p.device == device and not p.is_inference() for p in held.parameters())
    other = devices.network_on(torch.nn.Linear(2, 2), meta)
    assert other is not copy


def test_copies_go_with_their_network() -> None:
    network = torch.nn.Linear(2, 2)
    copy = weakref.ref(devices.network_on(network, torch.device("meta")))
    assert copy() is not None
    del network
    gc.collect()
    assert copy() is None


def test_nobody_waits_for_a_gpu_while_a_run_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = Event()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waited.set())
    with devices.recording_lock:
        devices.wait()  # the thread that records may
        assert waited.is_set()
        waited.clear()
        other = Thread(target=devices.wait)
        other.start()
        assert not waited.wait(0.1)
    assert waited.wait(5.0)
    other.join()
