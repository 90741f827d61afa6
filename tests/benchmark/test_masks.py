"""Labels survive as text."""

import numpy as np
import pytest

from vbreg.benchmark.masks import pack, unpack


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000])
def test_masks_survive_as_text(count: int) -> None:
    mask = np.random.default_rng(count).random(count) < 0.3
    assert np.array_equal(unpack(pack(mask), count), mask)
