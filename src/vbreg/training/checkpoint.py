"""Where a run stands: enough to go on to the bit, in one file that is never half written."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from vbreg.backends.devices import has_fused_optimizer
from vbreg.errors import FileFormatError, VBRegError
from vbreg.io.atomic import atomic_path
from vbreg.network import VariationalNonLocalNetwork
from vbreg.pretrained import load_network
from vbreg.training.config import OptimizerConfig, TrainConfig, from_dict, to_dict

NAME = "checkpoint.pt"
VERSION = 3
COUNTS = ("step", "pairs", "skipped", "seconds", "step_seconds", "places")
MAY_MOVE = (
    *("data.shards", "data.validation", "start_from"),
    *(
        f"{table}.{name}"
        for table in ("places", "look_at")
        for name in ("meshes", "fragments", "scan_pairs", "workers")
    ),
)
N = TypeVar("N", bound=torch.nn.Module)


@dataclass
class State(Generic[N]):
    """What a step of training changes, of a network of any kind."""

    network: N
    averaged: N
    optimizer: torch.optim.Optimizer
    step: int = 0
    pairs: int = 0
    skipped: int = 0  # steps whose gradient was not finite
    seconds: float = 0.0
    step_seconds: float = 0.0  # of them, in steps; without the first of each process
    places: int = 0  # that were made, in the training of a descriptor

    @staticmethod
    def of(network: N, config: OptimizerConfig, device: torch.device) -> State[N]:
        """Return the state before the first step of a network."""
        network = network.to(device)
        averaged = copy.deepcopy(network).eval().requires_grad_(False)
        optimizer = torch.optim.AdamW(
            network.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=has_fused_optimizer(device),
        )
        return State(network, averaged, optimizer)

    @staticmethod
    def start(config: TrainConfig, device: torch.device) -> State[VariationalNonLocalNetwork]:
        """Return the state before the first step of a plan."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            network = VariationalNonLocalNetwork(config.network)
        if config.start_from is not None:
            network = load_network(config.start_from).train()
            check_same_network(config.start_from, network.config, config.network)
        return State.of(network, config.optimizer, device)

    def save(self, folder: Path, config: object) -> None:
        """Write the state into a folder."""
        content = {
            "version": VERSION,
            "config": to_dict(config),
            "network": self.network.state_dict(),
            "averaged": self.averaged.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "counts": [getattr(self, name) for name in COUNTS],
        }
        with atomic_path(folder / NAME) as path:
            torch.save(content, path)

    def resume(self, folder: Path, config: object) -> None:
        """Take over what a run of the same configuration has saved in `folder`."""
        content = _read(folder / NAME)
        # What the file does not know yet has today's default.
        then = from_dict(type(config), content["config"], str(folder / NAME))
        different = _differences(to_dict(then), to_dict(config))
        if different:
            raise VBRegError(
                f"{folder / NAME} was made with another configuration ({', '.join(different)}): "
                "go on with the old one, or train afresh in another folder"
            )
        self.network.load_state_dict(content["network"])
        self.averaged.load_state_dict(content["averaged"])
        self.optimizer.load_state_dict(content["optimizer"])
        for name, value in zip(COUNTS, content["counts"], strict=True):
            setattr(self, name, value)


def check_same_network(path: Path, held: object, asked: object) -> None:
    """Raise an error unless the network of a weights file is the one that a plan asks for."""
    if held != asked:
        raise VBRegError(
            f"{path} holds another network ({held}) than the configuration asks for ({asked})"
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise FileFormatError(f"{path} is not a readable checkpoint: {error}") from error
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise FileFormatError(f"{path} is not a checkpoint of version {VERSION}; train afresh")
    return content


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Names of what differs; folders may have moved."""
    found = []
    for name in sorted(set(old) | set(new)):
        a, b = old.get(name), new.get(name)
        if isinstance(a, dict) and isinstance(b, dict):
            found += _differences(a, b, f"{prefix}{name}.")
        elif a != b and prefix + name not in MAY_MOVE:
            found.append(f"{prefix}{name}: {a!r} then, {b!r} now")
    return found
