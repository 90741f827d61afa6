"""Checkpoints of other projects: their tensors alone are read.

Torch's weights-only loader refuses whatever is no tensor or plain value before anything runs. The
settings that training scripts like to keep beside the tensors (a namespace, an EasyDict) are read
as plain dicts, so that nobody need unpickle a checkpoint the unsafe way to get rid of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vbreg.errors import FileFormatError
from vbreg.io.described import numpy_allowed

if TYPE_CHECKING:
    from torch import Tensor

CHECKPOINT_SUFFIX = ".pth"
_SETTINGS = ("easydict.EasyDict", "argparse.Namespace")


def read_state_dict(path: str | Path) -> dict[str, Tensor]:
    """Read the tensors by name that a checkpoint holds as such or under `state_dict`."""
    import torch

    path = Path(path)
    if not path.is_file():
        raise FileFormatError(f"no checkpoint at {path}: check the path")
    try:
        with numpy_allowed(*((OrderedDict, name) for name in _SETTINGS)):
            held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file raises a dozen kinds
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise FileFormatError(
            f"{path}: refused ({reason}); expected a checkpoint of tensors and plain settings; "
            "nothing in it was run (settings beside the tensors need torch 2.5 or later)"
        ) from error
    if isinstance(held, Mapping):
        held = held.get("state_dict", held)
    if not isinstance(held, Mapping) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in held.items()
    ):
        raise FileFormatError(f"{path}: expected tensors by name, or such under 'state_dict'")
    return {name: value.detach() for name, value in held.items()}
