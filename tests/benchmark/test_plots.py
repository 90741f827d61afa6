"""Pictures of a benchmark: one for each thing that was measured, and none for what was not."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.benchmark.test_score import rows_of
from vbreg.benchmark import plots
from vbreg.benchmark.score import summarise
from vbreg.methods import METHODS

pytest.importorskip("matplotlib", reason="pictures need vbreg[plots]")


@pytest.mark.parametrize("timed", [True, False])
def test_there_is_a_picture_of_times_where_there_are_times(timed: bool, tmp_path: Path) -> None:
    rows = [
        replace(row, seconds=0.1 if timed else np.nan)
        for row in rows_of("sc2pcr", [True, True, False]) + rows_of("ransac", [True, False, False])
    ]
    names = {path.stem for path in plots.draw(tmp_path, rows, summarise(rows))}
    assert names >= {"recall", "errors", "inlier_ratio"}
    assert ("time" in names) == timed
    assert all((tmp_path / f"{name}.png").stat().st_size > 1000 for name in names)


def test_no_two_methods_have_the_same_line() -> None:
    looks = {(plots._colour(k), plots._line(k)) for k in range(len(METHODS))}
    assert len(looks) == len(METHODS)
