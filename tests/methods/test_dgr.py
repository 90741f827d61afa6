"""DGR: the network, the robust fit, the safeguard, and weights that may not be there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conftest import make_problem
from tests.methods.helpers import (
    TAU,
    error,
    moved,
    opened,
    posed,
    random_pose,
    surface_problem,
)
from vbreg import methods
from vbreg.errors import FileFormatError
from vbreg.estimation import squared_residuals
from vbreg.methods import available, dgr, open_method, ransac
from vbreg.methods.common import Task
from vbreg.methods.dgr import (
    CELL,
    DeepGlobalRegistration,
    DgrConfig,
    DgrNetwork,
    load_dgr,
    robust_fit,
    save_dgr,
)

TINY = DgrConfig((4, 4, 6, 6), (4, 4, 4, 6))


def fresh() -> DgrNetwork:
    """A network of random weights whose norms have seen something, in eval mode."""
    torch.manual_seed(0)
    network = DgrNetwork(TINY)
    with torch.no_grad():
        for _ in range(3):
            network(*matches())
    return network.eval()


def matches(B: int = 2, N: int = 200, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Matches of which half lie together at both ends, in inlier thresholds."""
    generator = torch.Generator().manual_seed(seed)
    x, y = (12 * torch.rand(B, N, 3, generator=generator) for _ in range(2))
    y[:, : N // 2] = x[:, : N // 2] + 5
    return x, y


class Oracle(DgrNetwork):
    """Knows by the rows which matches are right."""

    def __init__(self, right: Tensor) -> None:
        super().__init__(TINY)
        self.right = right

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return torch.where(self.right, 4.0, -4.0).expand(len(source), -1)


@torch.no_grad()
def test_every_match_has_a_logit_whatever_the_order_and_the_company() -> None:
    network = fresh()
    x, y = matches()
    found = network(x, y)
    assert found.shape == x.shape[:2]
    assert float(found.std()) > 1e-3
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(network(x[:, order], y[:, order]), found[:, order])
    torch.testing.assert_close(network(x[1:], y[1:]), found[1:], atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_shifted_by_whole_cells_of_the_coarsest_level_nothing_changes() -> None:
    network = fresh()
    x, y = ((end / CELL).floor() * CELL + CELL / 2 for end in matches())
    shift = CELL * torch.tensor([8.0, -16.0, 24.0])
    torch.testing.assert_close(network(x + shift, y - shift), network(x, y))


@torch.no_grad()
def test_swapping_and_mirroring_axes_changes_nothing_at_the_finest_level() -> None:
    """The classes of offsets do not change; coarser cells begin elsewhere, so only there."""
    layer = fresh().conv1
    x, y = matches(1)
    counted = []
    for at in (x, -x[..., [1, 0, 2]]):
        both = torch.cat([at, y], dim=-1)[0]
        cells, row = dgr.occupied((both / CELL).round().long())
        around = dgr.levels(cells).first
        counted.append(layer(torch.ones(len(cells), 1), around)[row])
    torch.testing.assert_close(counted[0], counted[1])


def test_the_robust_fit_is_a_minimum_of_the_huber_loss() -> None:
    problem = make_problem(300, 0.6, 0.01, seed=3)
    x, y = (torch.from_numpy(end / TAU)[None] for end in (problem.source, problem.target))
    w = torch.rand(1, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    w = w * torch.from_numpy(np.where(problem.inliers, 1.0, 0.2))

    def loss(T: Tensor) -> float:
        d = squared_residuals(T, x, y).sqrt()
        each = torch.where(d < 1, 0.5 * d.square(), d - 0.5)
        return float((w * each).sum())

    found = robust_fit(x, y, w)
    assert bool(found.determined)
    best = loss(found.T)
    assert best < loss(dgr.procrustes(x, y, w)[0])
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        step = 1e-3 * torch.randn(6, dtype=torch.float64, generator=generator)
        nudge = torch.eye(4, dtype=torch.float64)
        nudge[:3, :3] = torch.linalg.matrix_exp(
            torch.tensor([[0, -step[2], step[1]], [step[2], 0, -step[0]], [-step[1], step[0], 0]])
        )
        nudge[:3, 3] = step[3:]
        assert loss(nudge @ found.T) >= best - 1e-9


def answer_of(right: Tensor, problem: methods.Problem) -> tuple[np.ndarray, np.ndarray]:
    method = dgr.Dgr(DeepGlobalRegistration(Oracle(right)), torch.device("cpu"))
    result = method(problem)
    return result.T_target_source, result.confidence


def test_good_weights_give_the_pose() -> None:
    made = make_problem(1000, 0.3)
    T, confidence = answer_of(torch.from_numpy(made.inliers), posed(made.source, made.target))
    rotation, translation = error(T, made.T)
    assert rotation < 0.5
    assert translation < 0.01
    assert np.array_equal(confidence > 0.5, made.inliers)
    assert (confidence[~made.inliers] == 0).all()  # below 0.05


def test_where_the_weights_find_too_little_ransac_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = make_problem(1000, 0.3)
    asked: list[int] = []
    real = ransac.solve

    def watched(task: Task, samples: int = 0) -> object:
        asked.append(samples)
        return real(task, 5000)

    monkeypatch.setattr(ransac, "solve", watched)
    few = torch.from_numpy(made.inliers & (np.arange(1000) < 300))
    T, _ = answer_of(few, posed(made.source, made.target))
    assert asked == [80_000]
    assert error(T, made.T)[0] < 2.0


@pytest.fixture
def _no_ransac(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is found, the weights find it."""

    def asked(*_: object) -> None:
        raise AssertionError("RANSAC was asked")

    monkeypatch.setattr(ransac, "solve", asked)


@pytest.mark.usefixtures("_no_ransac")
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_shipped_network_finds_a_pose_that_most_matches_speak_against(seed: int) -> None:
    """85 % are wrong; RANSAC is not asked."""
    problem = surface_problem(seed)
    result = opened("dgr")(posed(problem.source, problem.target))
    rotation, translation = error(result.T_target_source, problem.T)
    assert rotation < 0.5
    assert translation < 0.01
    weights = result.confidence
    assert weights[problem.inliers].sum() > 0.9 * weights.sum()


@pytest.mark.usefixtures("_no_ransac")
def test_the_pose_of_the_shipped_network_moves_with_the_clouds() -> None:
    """The weights do not stay the same: cells lie along the axes of each frame."""
    problem, A, B = surface_problem(0), random_pose(11), random_pose(12)
    before = opened("dgr")(posed(problem.source, problem.target))
    after = opened("dgr")(posed(moved(A, problem.source), moved(B, problem.target)))
    expected = B @ before.T_target_source @ np.linalg.inv(A)
    rotation, translation = error(after.T_target_source, expected)
    assert rotation < 0.5
    assert translation < 0.01
    assert np.corrcoef(before.confidence, after.confidence)[0, 1] > 0.7


def test_every_weight_gets_a_gradient() -> None:
    network = DgrNetwork(TINY)
    network(*matches()).square().sum().backward()
    without = [n for n, p in network.named_parameters() if p.grad is None or not bool(p.grad.any())]
    assert not without


def test_a_file_is_read_back_and_opened(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    digest = save_dgr(path, fresh(), {"steps": 3})
    network, fingerprint = load_dgr(path)
    assert fingerprint == digest
    assert network.config == TINY
    with torch.no_grad():
        found, made = (n(*matches()) for n in (network, fresh()))
    torch.testing.assert_close(found, made, atol=0.02, rtol=0.02)
    made_up = make_problem(60, 1.0)
    result = open_method(f"dgr:{path}", "cpu")(posed(made_up.source, made_up.target))
    assert np.isfinite(result.T_target_source).all()


def test_without_shipped_weights_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "_WEIGHTS", tmp_path)
    monkeypatch.setattr(dgr, "SHIPPED", tmp_path / "dgr.safetensors")
    assert not available("dgr")
    with pytest.raises(FileFormatError, match=r"train them with `vbreg train configs/dgr.toml"):
        open_method("dgr", "cpu")
    save_dgr(dgr.SHIPPED, fresh())
    assert available("dgr")
    assert callable(open_method("dgr", "cpu"))


def test_the_size_of_the_default_is_within_bounds() -> None:
    assert 2 * sum(p.numel() for p in DgrNetwork().parameters()) < 5e6  # bytes of a file


def test_a_configuration_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="positive"):
        DgrConfig(channels=(0, 1, 1, 1))
