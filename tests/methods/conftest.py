"""Small problems need few samples and few cliques."""

from __future__ import annotations

from functools import partial

import pytest

from vbreg.methods import dhvr, mac, open3d_methods, ransac
from vbreg.methods.cliques import maximal_cliques


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ransac, "SAMPLES", 10_000)
    monkeypatch.setattr(dhvr, "TRIPLETS", 20_000)
    monkeypatch.setattr(open3d_methods, "SAMPLES", 10_000)
    monkeypatch.setattr(mac, "maximal_cliques", partial(maximal_cliques, steps=200_000))
