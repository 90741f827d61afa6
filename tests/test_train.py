import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import make_problem
from vbreg.datasets.matches import MatchSet
from vbreg.network import NetworkConfig
from vbreg.pretrained import load_network, read_header
from vbreg.train import MatchSampler, TrainConfig, average_weights, step_losses, train

CONFIG = TrainConfig(steps=60, learning_rate=1e-2, sizes=(60,), pairs_of_1000=1, warmup_steps=5)
NETWORK = NetworkConfig(iterations=2, width=16, latent_width=8, hidden_width=8, label_width=4)


@pytest.fixture
def sets() -> list[MatchSet]:
    problems = [make_problem(100 + 20 * s, 0.3, seed=s) for s in range(6)]
    return [
        MatchSet(
            str(n),
            p.source.astype(np.float32),
            p.target.astype(np.float32),
            np.arange(len(p.source)),
            p.inliers,
            p.T,
            0.5,
        )
        for n, p in enumerate(problems)
    ]


def sampler(sets: list[MatchSet], config: TrainConfig = CONFIG) -> MatchSampler:
    return MatchSampler(sets, config, torch.device("cpu"))


def test_augmentation_keeps_matches_what_they_are(sets: list[MatchSet]) -> None:
    """Rotated, swapped and jittered, inliers still keep their mutual distances and outliers not."""
    batch = sampler(sets).draw(B=8, N=80)
    for x, y, labels in zip(batch.source, batch.target, batch.labels, strict=True):
        difference = (torch.cdist(x, x) - torch.cdist(y, y)).abs()
        assert float(difference[labels][:, labels].max()) < 2.0  # inlier thresholds
        assert float(difference[~labels][:, ~labels].median()) > 2.0


def test_batches_are_drawn_by_seed(sets: list[MatchSet]) -> None:
    first, second = sampler(sets).draw(4, 50), sampler(sets).draw(4, 50)
    assert torch.equal(first.source, second.source)
    other = sampler(sets, TrainConfig(seed=1)).draw(4, 50)
    assert not torch.equal(first.source, other.source)


def test_sets_smaller_than_asked_repeat_their_own_rows(sets: list[MatchSet]) -> None:
    batch = sampler(sets[:2]).draw(B=4, N=110)
    assert batch.source.shape == (4, 110, 3)
    assert torch.isfinite(batch.source).all()


def test_training_lowers_the_loss_and_writes_weights(sets: list[MatchSet], tmp_path: Path) -> None:
    path = train(CONFIG, NETWORK, sets, tmp_path)
    network = load_network(path)
    about = read_header(path)["about"]
    assert about["steps"] == 60
    assert about["pairs"] == 60 * 16
    torch.manual_seed(0)
    untrained = type(network)(NETWORK)
    batch = sampler(sets).draw(16, 60)
    with torch.no_grad():
        losses = [
            float(step_losses(n, batch, torch.Generator().manual_seed(0), True).label_prior)
            for n in (untrained, network)
        ]
    assert losses[1] < 0.95 * losses[0]
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert all("kl" in json.loads(line) for line in lines)


def test_average_is_a_weighted_mean() -> None:
    a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    expected = 0.9 * a.weight.detach() + 0.1 * b.weight.detach()
    average_weights(a, b, 0.9)
    torch.testing.assert_close(a.weight.detach(), expected)
