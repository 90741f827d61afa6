"""What training on places is made of, read from a TOML file like any training."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from vbreg.context import ContextConfig
from vbreg.descriptors.prepared import DescriptorConfig
from vbreg.errors import VBRegError
from vbreg.training.config import OptimizerConfig, check_field, from_dict, read_toml
from vbreg.training.places import PlacesConfig


@dataclass(frozen=True)
class PlacesTrainConfig:
    """A plan to train on places that are made meanwhile; minutes count the steps alone."""

    minutes: float = 6.0
    pairs: int = 8  # of a step
    seed: int = 0
    precision: Literal["bf16", "fp32"] = "bf16"
    places_held: int = 600
    places_first: int = 48  # before the first step
    log_every: int = 50
    validate_every: int = 500
    places: PlacesConfig = field(default_factory=PlacesConfig)
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


@dataclass(frozen=True)
class DescriptorTrainConfig(PlacesTrainConfig):
    """The plan of a descriptor's training."""

    trains: Literal["descriptor"] = "descriptor"
    network: DescriptorConfig = field(default_factory=DescriptorConfig)


@dataclass(frozen=True)
class ContextTrainConfig(PlacesTrainConfig):
    """The plan of the training of what lets two clouds look at each other."""

    trains: Literal["context"] = "context"
    keypoints: int = 1024  # of a cloud
    network: ContextConfig = field(default_factory=ContextConfig)


CONFIGS: dict[str, type[PlacesTrainConfig]] = {
    "descriptor": DescriptorTrainConfig,
    "context": ContextTrainConfig,
}


def trained_on_places(path: Path) -> bool:
    """Tell whether a TOML file plans a training on places: it says what is trained on them."""
    return "trains" in read_toml(path)


def read_places_config(path: Path) -> PlacesTrainConfig:
    """Read the configuration in a TOML file; its folders are taken relative to the file."""
    found = read_toml(path)
    if found.get("trains") not in CONFIGS:
        raise VBRegError(
            f"{path}: trains = {found.get('trains')!r}: expected one of {', '.join(CONFIGS)}"
        )
    config = from_dict(CONFIGS[found["trains"]], found, str(path))
    return replace(config, places=config.places.below(path.parent))
