"""What the training of a descriptor, ours or FCGF, is made of: a TOML file like any training's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

from vbreg.descriptors.fcgf import FcgfConfig
from vbreg.descriptors.prepared import DescriptorConfig
from vbreg.training.config import from_dict, read_toml
from vbreg.training.descriptor_loss import ContrastName
from vbreg.training.places import PlacesConfig
from vbreg.training.places_run import PlacesPlan


@dataclass(frozen=True)
class ContrastPlan(PlacesPlan):
    """What the plans of all descriptors have."""

    precision: Literal["bf16", "fp32"] = "bf16"
    loss: ContrastName = "infonce"
    start_from: Path | None = None  # a descriptor's weights, relative to the configuration file
    look_at: PlacesConfig | None = None  # places to look at only; none given: more of `places`


@dataclass(frozen=True)
class DescriptorTrainConfig(ContrastPlan):
    """The plan of a descriptor's training."""

    network: DescriptorConfig = field(default_factory=DescriptorConfig)


@dataclass(frozen=True)
class FcgfTrainConfig(ContrastPlan):
    """The plan of FCGF's training."""

    fcgf: FcgfConfig = field(default_factory=FcgfConfig)


P = TypeVar("P", bound=ContrastPlan)


def is_fcgf_config(path: Path) -> bool:
    """Tell whether a TOML file plans the training of FCGF: it has a table of that name."""
    return "fcgf" in read_toml(path)


def is_descriptor_config(path: Path) -> bool:
    """Tell whether a TOML file plans the training of a descriptor: it names places and no more."""
    given = read_toml(path)
    return "places" in given and not {"judge", "fcgf"} & given.keys()


def read_descriptor_config(path: Path) -> DescriptorTrainConfig:
    """Read the configuration in a TOML file; its folders are taken relative to the file."""
    return _read(DescriptorTrainConfig, path)


def read_fcgf_config(path: Path) -> FcgfTrainConfig:
    """Read the configuration in a TOML file; its folders are taken relative to the file."""
    return _read(FcgfTrainConfig, path)


def _read(kind: type[P], path: Path) -> P:
    config = from_dict(kind, read_toml(path), str(path))
    there = path.parent
    return replace(
        config,
        places=config.places.below(there),
        look_at=config.look_at and config.look_at.below(there),
        start_from=there / config.start_from if config.start_from else None,
    )
