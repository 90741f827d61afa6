"""Which backend is chosen, and what happens where it does not run (`backends/__init__.py`)."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.conftest import SMALL, fresh, make_problem
from vbreg import backends
from vbreg.backends.cpu import CPUBackend
from vbreg.backends.plain import Backend
from vbreg.errors import VBRegError
from vbreg.methods import Problem, open_method
from vbreg.model import VBReg
from vbreg.types import Registration

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def _no_wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(backends.VARIABLE, raising=False)


def test_a_cpu_has_its_own_backend() -> None:
    assert backends.choose(CPU).name == "cpu"
    assert type(backends.choose(CPU, "plain")) is Backend


def test_a_gpu_without_triton_has_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vbreg.backends.devices.runs_triton", lambda device: False)
    assert backends.choose(CUDA).name == "plain"
    assert type(backends.for_training(CUDA, quick=True)) is Backend


def test_a_gpu_with_triton_has_kernels_that_round(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="needs Triton, which is for Linux")
    from vbreg.backends.triton import TritonBackend

    monkeypatch.setattr("vbreg.backends.devices.runs_triton", lambda device: True)
    chosen = backends.choose(CUDA)
    assert isinstance(chosen, TritonBackend)
    assert chosen.rounding
    assert chosen.records


def test_the_same_backend_is_given_each_time() -> None:
    assert backends.choose(CPU) is backends.choose(CPU)


def test_training_on_a_cpu_is_plain() -> None:
    assert type(backends.for_training(CPU, quick=True)) is Backend
    assert type(backends.for_training(CPU, quick=False)) is Backend


def test_an_unknown_backend_lists_the_choices() -> None:
    with pytest.raises(VBRegError, match="backend 'fast': expected one of 'auto', 'plain'"):
        backends.choose(CPU, "fast")  # type: ignore[arg-type]


@pytest.mark.parametrize(("asked", "expected"), [("plain", "plain"), ("auto", "cpu")])
def test_the_environment_asks_a_whole_process_for_plain_torch(
    asked: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(backends.VARIABLE, asked)
    assert backends.choose(CPU).name == expected
    assert backends.choose(CPU, "plain").name == "plain"
    p = make_problem(60, 0.6)
    found = VBReg(fresh(SMALL)).estimate(p.source, p.target, inlier_threshold=0.1)
    assert found.backend == expected
    problem = Problem.of_points(p.source, p.target, 0.1)
    assert open_method("sc2pcr", "cpu")(problem).backend == expected


def test_an_unknown_wish_of_the_environment_lists_the_choices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(backends.VARIABLE, "quick")
    with pytest.raises(VBRegError, match=r"VBREG_BACKEND is 'quick'.*expected 'auto' or 'plain'"):
        backends.choose(CPU)


def test_a_run_returns_what_was_found_and_who_found_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backends.run(lambda backend: backend.name, CPU) == ("cpu", "cpu")
        assert backends.run(lambda backend: backend.name, CPU, "plain") == ("plain", "plain")


def failing(error: Exception) -> Callable[[Backend], str]:
    """Work that only plain torch can do."""

    def work(backend: Backend) -> str:
        if backend.name != "plain":
            raise error
        return "done"

    return work


def test_plain_torch_takes_over_for_the_rest_of_the_process() -> None:
    with pytest.warns(UserWarning, match="backend 'cpu' does not run here.*VBREG_BACKEND.*no luck"):
        assert backends.run(failing(RuntimeError("no luck")), CPU) == ("done", "plain")
    assert backends.choose(CPU).name == "plain"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        assert backends.run(failing(RuntimeError("no luck")), CPU) == ("done", "plain")


@pytest.mark.parametrize(
    "error", [VBRegError("give metres"), torch.cuda.OutOfMemoryError("too much")]
)
def test_what_plain_torch_would_not_do_better_is_raised(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        backends.run(failing(error), CPU)
    assert not backends._failed


def test_an_error_that_plain_torch_has_too_is_no_fault_of_the_backend() -> None:
    tried = []

    def work(backend: Backend) -> None:
        tried.append(backend.name)
        raise ZeroDivisionError("either way")

    with pytest.raises(ZeroDivisionError, match="either way"):
        backends.run(work, CPU)
    assert tried == ["cpu", "plain"]
    assert not backends._failed
    tried.clear()
    with pytest.raises(ZeroDivisionError):
        backends.run(work, CPU, "plain")
    assert tried == ["plain"]


@pytest.fixture
def broken_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Tensor) -> Tensor:
        raise RuntimeError("an old processor")

    monkeypatch.setattr(CPUBackend, "hypotheses", broken)


def by_vbreg() -> Registration:
    p = make_problem(80, 0.6, seed=3)
    return VBReg(fresh(SMALL)).estimate(p.source, p.target, inlier_threshold=0.1)


def by_sc2pcr() -> Registration:
    p = make_problem(80, 0.6, seed=3)
    return open_method("sc2pcr", "cpu")(Problem.of_points(p.source, p.target, 0.1))


@pytest.mark.usefixtures("broken_cpu")
@pytest.mark.parametrize(("first", "then"), [(by_vbreg, by_sc2pcr), (by_sc2pcr, by_vbreg)])
def test_vbreg_and_compared_methods_do_without_a_backend_that_does_not_run(
    first: Callable[[], Registration], then: Callable[[], Registration]
) -> None:
    truth = make_problem(80, 0.6, seed=3).T
    with pytest.warns(UserWarning, match="backend 'cpu' does not run here.*an old processor"):
        found = first()
    assert found.backend == "plain"
    assert abs(found.T_target_source - truth).max() < 0.05
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the other one does without from the start
        found = then()
    assert found.backend == "plain"
    assert abs(found.T_target_source - truth).max() < 0.05
