"""Small objects stand on z = 0 about the origin, and are small."""

import numpy as np
import pytest

from vbreg.simulator import meshes, small_objects
from vbreg.simulator.meshes import Maker

MAKERS = sorted(
    {
        *small_objects.KITCHENWARE,
        *small_objects.PAPERWORK,
        *small_objects.BELONGINGS,
        *small_objects.LEFTOVERS,
        *small_objects.TOILETRIES,
        small_objects.monitor,
    },
    key=lambda maker: maker.__name__,
)


@pytest.mark.parametrize("make", MAKERS, ids=lambda maker: maker.__name__)
def test_it_stands_about_the_origin(make: Maker) -> None:
    for seed in range(5):
        mesh = make(np.random.default_rng(seed))
        assert np.isfinite(mesh.vertices).all()
        assert mesh.faces.max() < len(mesh.vertices)
        low, high = mesh.vertices.min(0), mesh.vertices.max(0)
        assert abs(low[2]) < 0.15
        assert (low[:2] < 0.01).all()
        assert (high[:2] > -0.01).all()
        assert (high - low < 1.8).all()
        assert meshes.area(mesh) > 0.005


def test_scattered_objects_lie_on_their_board() -> None:
    def cube(generator: meshes.Generator) -> meshes.Mesh:
        return meshes.box((0.02, 0.02, 0.02))

    found = small_objects.scatter_objects((cube,), 50, (2.0, 0.5), 0.7, np.random.default_rng(0))
    assert len(found) == 50
    points = np.concatenate([mesh.vertices for mesh in found])
    assert points[:, 2].min() == pytest.approx(0.7)
    assert np.abs(points[:, 0]).max() < 1.0
    assert np.abs(points[:, 1]).max() < 0.25
    assert np.ptp(points[:, 0]) > 1.5
