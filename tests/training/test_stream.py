import time

import pytest

from vbreg.training.stream import Stream


def double(k: int) -> int:
    """Even numbers take longer, so that they are overtaken."""
    time.sleep(0.1 * (k % 2 == 0))
    return 2 * k


def fail_at_three(k: int) -> int:
    if k == 3:
        raise ValueError("three is too many")
    return k


def slowly(k: int) -> int:
    time.sleep(3)
    return k


def slow_at_first(k: int) -> int:
    time.sleep(2 if k == 0 else 0)
    return k


@pytest.mark.parametrize("workers", [0, 2])
def test_results_come_in_order(workers: int) -> None:
    with Stream(double, workers, first=5) as stream:
        assert [stream.take() for _ in range(6)] == [10, 12, 14, 16, 18, 20]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_the_work_is_raised_where_it_is_taken(workers: int) -> None:
    with Stream(fail_at_three, workers) as stream:
        assert [stream.take() for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError, match="three is too many"):
            stream.take()


def test_nobody_need_wait() -> None:
    with Stream(slowly, 1) as stream:
        began = time.monotonic()
        assert stream.take_if_ready() is None
        assert time.monotonic() - began < 2.5
        assert stream.take() == 0


def test_nobody_waits_for_the_first() -> None:
    with Stream(slow_at_first, 2) as stream:
        end = time.monotonic() + 20
        found = None
        while found is None and time.monotonic() < end:
            found = stream.take_if_ready()
    assert found == 1
