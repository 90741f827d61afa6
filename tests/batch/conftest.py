"""Small clouds in files, and a table that pairs them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vbreg import io


def corner(seed: int) -> np.ndarray:
    """Three bumpy walls of a corner, seen by chance and turned."""
    rng = np.random.default_rng(seed)
    points = rng.random((900, 3)) * [1.6, 1.2, 0.8]
    for axis, rows in enumerate(np.array_split(np.arange(len(points)), 3)):
        points[rows, axis] = 0.1 * np.sin(5 * points[rows].sum(axis=1))
    Q = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    return points @ (Q * np.sign(np.linalg.det(Q))).T + rng.normal(size=3)


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six pairs of four clouds; one has a file that is not there, one a wrong voxel size."""
    folder = tmp_path_factory.mktemp("clouds")
    for k in range(4):
        io.write(folder / f"{k}.ply", corner(k))
    rows = ["id,source,target,voxel_size"]
    rows += ["a,0.ply,1.ply,", "b,2.ply,missing.ply,", "c,1.ply,2.ply,0.12"]
    rows += ["d,3.ply,0.ply,", "e,0.ply,1.ply,wrong", "f,2.ply,0.ply,"]
    path = folder / "pairs.csv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path
