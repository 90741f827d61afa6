"""One small data folder for all experiments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.experiments import miniature


@pytest.fixture(scope="module", autouse=True)
def no_pictures_of_benchmarks() -> Iterator[None]:
    """The tests of `vbreg.benchmark` look at these; here they would take half of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vbreg.benchmark.plots.draw", lambda *_: [])
        yield


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 3dmatch and kitti; nobody writes into it."""
    return miniature.write(tmp_path_factory.mktemp("miniature"))
