import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from vbreg.training.stream import Stream


def double(k: int) -> int:
    """Even numbers take longer, so that they are overtaken; eleven is one too many."""
    time.sleep(0.1 * (k % 2 == 0))
    if k == 11:
        raise ValueError("eleven is too many")
    return 2 * k


def slowly(k: int) -> int:
    time.sleep(0.5)
    return k


def slow_at_first(k: int) -> int:
    time.sleep(0.5 if k == 0 else 0)
    return k


def threads(count: int, context: Any, initializer: Callable[[], None]) -> ThreadPoolExecutor:
    """Workers that start at once."""
    return ThreadPoolExecutor(count)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow), 2])
def test_results_come_in_order_and_an_error_where_it_is_taken(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, in another one, and in two threads of which one overtakes the other."""
    if workers == 2:
        monkeypatch.setattr("vbreg.training.stream.ProcessPoolExecutor", threads)
    with Stream(double, workers, first=5) as stream:
        assert [stream.take() for _ in range(6)] == [10, 12, 14, 16, 18, 20]
        with pytest.raises(ValueError, match="eleven is too many"):
            stream.take()


def test_nobody_need_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vbreg.training.stream.ProcessPoolExecutor", threads)
    with Stream(slowly, 1) as stream:
        began = time.monotonic()
        assert stream.take_if_ready() is None
        assert time.monotonic() - began < 0.4
        assert stream.take() == 0


def test_nobody_waits_for_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vbreg.training.stream.ProcessPoolExecutor", threads)
    with Stream(slow_at_first, 2) as stream:
        end = time.monotonic() + 20
        found = None
        while found is None and time.monotonic() < end:
            found = stream.take_if_ready()
    assert found == 1
