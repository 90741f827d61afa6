"""What the training of a descriptor is made of, read from a TOML file like any training."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from vbreg.descriptors.prepared import DescriptorConfig
from vbreg.training.config import OptimizerConfig, check_field, from_dict, read_toml
from vbreg.training.places import PlacesConfig


@dataclass(frozen=True)
class DescriptorTrainConfig:
    """The plan of a descriptor's training; minutes count the steps alone."""

    minutes: float = 6.0
    pairs: int = 8  # of a step
    seed: int = 0
    precision: Literal["bf16", "fp32"] = "bf16"
    places_held: int = 600
    places_first: int = 48  # before the first step
    log_every: int = 50
    validate_every: int = 500
    start_from: Path | None = None  # a descriptor's weights, relative to the configuration file
    places: PlacesConfig = field(default_factory=PlacesConfig)
    look_at: PlacesConfig | None = None  # places to look at only; none given: more of `places`
    network: DescriptorConfig = field(default_factory=DescriptorConfig)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(weight_decay=1e-4, warmup_steps=100)
    )

    def __post_init__(self) -> None:
        for name in ("pairs", "places_held", "places_first", "log_every", "validate_every"):
            check_field(getattr(self, name) >= 1, self, name, "at least 1")
        check_field(self.minutes > 0, self, "minutes", "a positive number")
        check_field(
            self.places_first <= self.places_held, self, "places_first", "at most places_held"
        )


def is_descriptor_config(path: Path) -> bool:
    """Tell whether a TOML file plans the training of a descriptor: it names places."""
    return "places" in read_toml(path)


def read_descriptor_config(path: Path) -> DescriptorTrainConfig:
    """Read the configuration in a TOML file; its folders are taken relative to the file."""
    config = from_dict(DescriptorTrainConfig, read_toml(path), str(path))
    there = path.parent
    return replace(
        config,
        places=config.places.below(there),
        look_at=config.look_at and config.look_at.below(there),
        start_from=there / config.start_from if config.start_from else None,
    )
