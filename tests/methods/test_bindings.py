"""Methods that other packages bring along: what is handed to them, and what comes back."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from tests.conftest import make_problem
from tests.methods.helpers import TAU, error, moved, opened, parameters, posed
from vbreg import demo
from vbreg.clouds import voxel_downsample
from vbreg.errors import VBRegError
from vbreg.frames import LocalCloud
from vbreg.geometry import procrustes
from vbreg.matching import describe, match_clouds
from vbreg.methods import Problem, open_method
from vbreg.scale import Scale
from vbreg.types import Float64


@pytest.mark.parametrize("name", parameters("kiss-matcher"))
def test_kiss_matcher_registers_a_scan_far_from_the_origin(name: str) -> None:
    """A scan and its moved copy, so that it cannot miss; the demo pair is too hard for it."""
    points = voxel_downsample(torch.from_numpy(demo.load()[0].points), TAU / 2).numpy()
    right = moved(make_problem(10, seed=4).T, points)
    x = points + np.array([1e6, -1e6, 0.0])
    # It finds its own matches; these stand for what other methods are given.
    problem = Problem.of_points(x, right, TAU, scans=(x, right))
    found = opened(name)(problem)
    residual = np.linalg.norm(found.apply_to(x) - right, axis=1)
    assert residual.max() < 0.3
    assert found.determined
    assert found.backend == "external"


@pytest.mark.parametrize("name", parameters("kiss-matcher"))
def test_kiss_matcher_takes_the_matched_clouds_where_there_are_no_scans(name: str) -> None:
    """A problem of clouds holds them; what it starts from is then what the matches join."""
    points = demo.load()[0].points
    truth = make_problem(10, seed=4).T
    scale = Scale.of_threshold(TAU)
    pair = points, moved(truth, points)  # the same scan, so that it cannot miss
    ends = [describe(LocalCloud.of(cloud, "a cloud"), scale, descriptor="fpfh") for cloud in pair]
    result = opened(name)(Problem.of_clouds(match_clouds(*ends, scale)))
    rotation, translation = error(result.T_target_source, truth)
    assert rotation < 2.0
    assert translation < 0.1
    assert result.voxel_size == scale.voxel_size


@pytest.mark.parametrize("name", parameters("kiss-matcher"))
def test_kiss_matcher_asks_for_clouds(name: str) -> None:
    points = make_problem(10).source
    with pytest.raises(VBRegError, match="finds its own matches: give the problem `scans`"):
        opened(name)(posed(points, points))


class StandInSolver:
    """Takes and gives what the binding of TEASER++ is documented to; solves by least squares."""

    Params = SimpleNamespace
    ROTATION_ESTIMATION_ALGORITHM = SimpleNamespace(GNC_TLS="GNC_TLS")

    def __init__(self, parameters: SimpleNamespace) -> None:
        assert parameters.rotation_estimation_algorithm == "GNC_TLS"
        assert parameters.noise_bound == 0.5
        assert parameters.estimate_scaling is False

    def solve(self, source: Float64, target: Float64) -> None:
        assert source.shape == target.shape == (3, 50)
        x, y = (torch.from_numpy(np.array(end.T)) for end in (source, target))
        self.T = procrustes(x, y, torch.ones(50).double())[0].numpy()

    def getSolution(self) -> SimpleNamespace:
        return SimpleNamespace(rotation=self.T[:3, :3], translation=self.T[:3, 3], valid=True)


def test_teaser_is_given_columns_and_its_own_units(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = ModuleType("teaserpp_python")
    stand_in.RobustRegistrationSolver = StandInSolver  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "teaserpp_python", stand_in)
    monkeypatch.setattr("vbreg.methods._installed", lambda _: True)
    problem = make_problem(50, inlier_ratio=1.0, noise=0.0)
    result = open_method("teaser-official")(posed(problem.source, problem.target))
    assert max(error(result.T_target_source, problem.T)) < 1e-5
    assert result.backend == "external"
