"""Train the network on shards of labelled matches: `python -m vbreg.train --help`."""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from vbreg.datasets.matches import MatchSet, read_shard
from vbreg.geometry import random_rotation
from vbreg.losses import Loss, loss
from vbreg.network import NetworkConfig, VariationalNonLocalNetwork
from vbreg.pretrained import save_network

LOG_EVERY = 50  # steps


@dataclass(frozen=True)
class TrainConfig:
    minutes: float = 8.0
    steps: int | None = None  # given: so many steps instead of so many minutes
    seed: int = 0
    learning_rate: float = 1e-3
    weight_decay: float = 1e-6
    warmup_steps: int = 100
    gradient_clip: float = 1.0
    ema: float = 0.999
    inlier_threshold: float = 0.10  # metres; the unit of the network
    sizes: tuple[int, ...] = (500, 1000, 1000, 2000)  # correspondences a step, drawn evenly
    pairs_of_1000: int = 64  # batch at 1000 correspondences; others as memory allows
    prior_mean: bool = True  # train the prior pass on the mean, which inference uses


@dataclass(frozen=True)
class Batch:
    source: Tensor  # (B, N, 3) in units of the inlier threshold
    target: Tensor
    labels: Tensor  # (B, N)


class MatchSampler:
    """All match sets in one tensor on the device; batches are drawn and augmented there."""

    def __init__(self, sets: list[MatchSet], config: TrainConfig, device: torch.device) -> None:
        self.config, self.device = config, device
        self.generator = torch.Generator(device).manual_seed(config.seed)
        points = [
            torch.cat([torch.as_tensor(s.source), torch.as_tensor(s.target)], 1) for s in sets
        ]
        self.points = torch.cat(points).to(device)  # (M, 6) metres
        self.labels = torch.cat([torch.as_tensor(s.labels) for s in sets]).to(device)
        sizes = torch.tensor([len(s.labels) for s in sets])
        self.sizes = sizes.to(device)
        self.starts = (sizes.cumsum(0) - sizes).to(device)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            sizes = self.config.sizes
            choice = torch.randint(len(sizes), (), generator=self.generator, device=self.device)
            N = sizes[int(choice)]
            yield self.draw(max(1, int(self.config.pairs_of_1000 * min(1e3 / N, 1e6 / N**2))), N)

    def draw(self, B: int, N: int) -> Batch:
        rows = self._choose_rows(B, N)
        labels = self.labels[rows]
        points = self.points[rows]  # (B, N, 6)
        source, target = self._augment(points[..., :3], points[..., 3:])
        return Batch(source, target, labels)

    def _choose_rows(self, B: int, N: int) -> Tensor:
        """N rows of each of B sets, drawn so that the inlier ratio varies from half to eight times
        what the descriptor gave."""
        pick = torch.randint(len(self.sizes), (B,), generator=self.generator, device=self.device)
        width = int(self.sizes[pick].max())
        offset = torch.arange(width, device=self.device)
        real = offset < self.sizes[pick].unsqueeze(-1)
        rows = (self.starts[pick].unsqueeze(-1) + offset).clamp_max(len(self.labels) - 1)
        boost = math.log(0.5) + self._uniform(B, 1) * math.log(16.0)
        # Gumbel top-N: sampling without replacement with weight exp(boost) for inliers.
        key = -(-self._uniform(B, width).clamp(1e-9, 1 - 1e-7).log()).log()
        key = key + boost * self.labels[rows]
        chosen = key.masked_fill(~real, -torch.inf).topk(min(N, width), dim=-1).indices
        # Sets smaller than N repeat rows of their own rather than pad.
        return rows.gather(-1, chosen % self.sizes[pick].unsqueeze(-1))

    def _augment(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Any rotation of either end, a few mm of jitter, ends swapped half of the time."""
        B = len(source)
        swap = self._uniform(B, 1, 1) < 0.5
        ends = torch.where(swap, target, source), torch.where(swap, source, target)
        moved = []
        for end in ends:
            R = random_rotation(B, generator=self.generator, device=self.device)
            noise = torch.randn(end.shape, generator=self.generator, device=self.device)
            scale = 0.005 * self._uniform(B, 1, 1)
            moved.append(
                ((end + scale * noise) @ R.transpose(-1, -2)) / self.config.inlier_threshold
            )
        return moved[0], moved[1]

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator, device=self.device)


def step_losses(
    network: VariationalNonLocalNetwork, batch: Batch, generator: torch.Generator, prior_mean: bool
) -> Loss:
    """Posterior pass with labels, prior pass without; both see the same correspondences."""
    posterior = network(batch.source, batch.target, labels=batch.labels, generator=generator)
    prior = network(batch.source, batch.target, generator=None if prior_mean else generator)
    return loss(posterior, prior, batch.labels, network.sigma)


def train(
    config: TrainConfig, network_config: NetworkConfig, sets: list[MatchSet], output: Path
) -> Path:
    """Train until minutes or steps are over; averaged weights and a log go to `output`."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(config.seed)
    network = VariationalNonLocalNetwork(network_config).to(device)
    averaged = copy.deepcopy(network).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
    )
    sampler = MatchSampler(sets, config, device)
    started, steps, pairs, skipped = time.monotonic(), 0, 0, 0
    log = output / "log.jsonl"
    log.write_text("")
    for batch in sampler:
        minutes = (time.monotonic() - started) / 60
        progress = steps / config.steps if config.steps else minutes / config.minutes
        if progress >= 1.0:
            break
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * _schedule(steps, progress, config)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            terms = step_losses(network, batch, sampler.generator, config.prior_mean)
        optimizer.zero_grad(set_to_none=True)
        terms.total.backward()
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), config.gradient_clip)
        if torch.isfinite(norm):
            optimizer.step()
            average_weights(averaged, network, min(config.ema, (1 + steps) / (10 + steps)))
        else:
            skipped += 1
        steps, pairs = steps + 1, pairs + len(batch.labels)
        if steps % LOG_EVERY == 0:
            record = {"step": steps, "pairs": pairs, "minutes": minutes, "skipped": skipped}
            _report(log, record | {k: float(v.detach()) for k, v in terms._asdict().items()})
    path = output / "universal.safetensors"
    about = {"steps": steps, "pairs": pairs, "match_sets": len(sets), "config": asdict(config)}
    about["device"] = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    save_network(path, averaged, about)
    return path


@torch.no_grad()
def average_weights(averaged: torch.nn.Module, current: torch.nn.Module, decay: float) -> None:
    """Exponential moving average; a `decay` that grows from small lets early weights go."""
    torch._foreach_lerp_(list(averaged.parameters()), list(current.parameters()), 1.0 - decay)


def _report(log: Path, record: dict[str, float]) -> None:
    line = json.dumps({name: round(value, 4) for name, value in record.items()})
    print(line, flush=True)
    with log.open("a") as file:
        print(line, file=file)


def _schedule(step: int, progress: float, config: TrainConfig) -> float:
    """Linear warm-up, then a cosine down to a hundredth."""
    warm = min(1.0, (step + 1) / config.warmup_steps)
    return warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, required=True, help="folder of match shards (.npz)")
    parser.add_argument("--output", type=Path, required=True, help="folder for weights and log")
    parser.add_argument("--minutes", type=float, default=TrainConfig.minutes)
    parser.add_argument("--steps", type=int, help="stop after so many steps, not by the clock")
    parser.add_argument("--learning-rate", type=float, default=TrainConfig.learning_rate)
    parser.add_argument("--seed", type=int, default=TrainConfig.seed)
    parser.add_argument("--iterations", type=int, default=NetworkConfig.iterations)
    arguments = parser.parse_args()
    if not any(arguments.shards.glob("*.npz")):
        parser.error(f"no .npz shards in {arguments.shards}: make them first")
    arguments.output.mkdir(parents=True, exist_ok=True)
    sets = [s for path in sorted(arguments.shards.glob("*.npz")) for s in read_shard(path)]
    config = TrainConfig(
        minutes=arguments.minutes,
        steps=arguments.steps,
        learning_rate=arguments.learning_rate,
        seed=arguments.seed,
    )
    path = train(config, NetworkConfig(iterations=arguments.iterations), sets, arguments.output)
    print(path)


if __name__ == "__main__":
    main()
