"""The growth of costs."""

import math

import pytest

from vbreg.benchmark.power_law import exponent


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_an_exponent_is_that_of_the_power_law(power: float) -> None:
    sizes = [5000, 10_000, 50_000]
    costs = [3 * n**power for n in sizes]
    # The first is below where the law is looked for.
    assert exponent([100, *sizes], [1e9, *costs]) == pytest.approx(power)
    assert math.isnan(exponent(sizes[:1], costs[:1]))
