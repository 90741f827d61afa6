"""Which task a configuration on places asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vbreg.training.context_task import ContextTask
from vbreg.training.descriptor_task import DescriptorTask
from vbreg.training.places_config import (
    ContextTrainConfig,
    DescriptorTrainConfig,
    read_places_config,
)
from vbreg.training.places_loop import train_on_places


def train_places_config(path: Path, output: Path, **options: Any) -> Path:
    """Train what a TOML file asks for; the options are those of `train_on_places`."""
    config = read_places_config(path)
    if isinstance(config, ContextTrainConfig):
        return train_on_places(ContextTask(config), output, **options)
    assert isinstance(config, DescriptorTrainConfig)
    return train_on_places(DescriptorTask(config), output, **options)
