"""One small data folder for all experiments."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.experiments import miniature


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 3dmatch and kitti; nobody writes into it."""
    return miniature.write(tmp_path_factory.mktemp("miniature"))
