"""What the training of a descriptor is made of, read from a TOML file like any training."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from vbreg.descriptors.prepared import DescriptorConfig
from vbreg.training.config import from_dict, read_toml
from vbreg.training.places import PlacesConfig
from vbreg.training.places_run import PlacesPlan


@dataclass(frozen=True)
class DescriptorTrainConfig(PlacesPlan):
    """The plan of a descriptor's training."""

    precision: Literal["bf16", "fp32"] = "bf16"
    start_from: Path | None = None  # a descriptor's weights, relative to the configuration file
    look_at: PlacesConfig | None = None  # places to look at only; none given: more of `places`
    network: DescriptorConfig = field(default_factory=DescriptorConfig)


def is_descriptor_config(path: Path) -> bool:
    """Tell whether a TOML file plans the training of a descriptor: it names places, no judge."""
    given = read_toml(path)
    return "places" in given and "judge" not in given


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
