"""Laws of the search on made-up pairs: what is tried, what is joined, what stays apart."""

from __future__ import annotations

import pytest

from vbreg.scenes.search import pair_budget


@pytest.mark.parametrize(
    ("scans", "share", "most"),
    [
        (2, 0.25, 2),  # the one pair, and once more
        (8, 0.01, 56),  # all 28, and once more, whatever the share
        (9, 0.25, 9),
        (9, 1.0, 36),
        (37, 0.25, 166),
        (60, 0.25, 442),
        (60, 0.1, 177),
        (60, 0.01, 17),
    ],
)
def test_all_pairs_of_few_scans_are_tried_and_a_share_of_many(
    scans: int, share: float, most: int
) -> None:
    assert pair_budget(scans, share) == most
