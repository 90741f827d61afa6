"""Training: a typed configuration, batches of labelled matches, the loop and its records.

`vbreg train config.toml --output DIR` is the way in; `loop.train` is the page to read first.
"""

from vbreg.training.config import TrainConfig
from vbreg.training.loop import train

__all__ = ["TrainConfig", "train"]
