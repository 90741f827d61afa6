"""Weights as safetensors files; each carries a header of its own and a checksum.

They are never a pickle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from vbreg.errors import FileFormatError

WEIGHTS_FOLDER = Path(__file__).parent / "weights"
FORMAT = 1

Module = TypeVar("Module", bound=nn.Module)


def save_weights(
    path: str | Path, module: nn.Module, header: Mapping[str, Any], *, half: bool = False
) -> str:
    """Write the weights of a module and a header; return the checksum written.

    With `half`, matrices and kernels are written in half precision, and loaded as they were.
    """
    tensors = {k: v.detach().cpu().contiguous() for k, v in module.state_dict().items()}
    if half:
        tensors = {k: v.half() if v.ndim >= 2 else v for k, v in tensors.items()}
    digest = checksum(tensors)
    text = json.dumps({"format": FORMAT, **header, "sha256": digest})
    save_file(tensors, str(path), metadata={"vbreg": text})
    return digest


def read_weights(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the header and the tensors of a weights file."""
    try:
        with safe_open(str(path), framework="pt") as file:
            header = json.loads((file.metadata() or {})["vbreg"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise FileFormatError(
            f"{path}: not a weights file of vbreg ({error}); expected safetensors with a "
            "'vbreg' entry in its metadata"
        ) from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise FileFormatError(f"{path}: weights format is not {FORMAT}; update vbreg")
    return header, tensors


def load_weights(path: Path, name: str, build: Callable[..., Module]) -> tuple[Module, str]:
    """Load what `build` makes of the settings that a file has under a name, and its checksum.

    The module is in eval mode on the CPU, and has every tensor of the file and no other.
    """
    header, tensors = read_weights(path)
    try:
        settings = {k: tuple(v) if isinstance(v, list) else v for k, v in header[name].items()}
        module = build(**settings)
        module.load_state_dict(tensors, strict=True)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise do_not_fit(path, error) from error
    if checksum(tensors) != header.get("sha256"):
        raise FileFormatError(f"{path}: checksum of the weights is wrong; get a fresh copy")
    return module.eval(), header["sha256"]


def do_not_fit(path: Path, error: Exception) -> FileFormatError:
    """Return the error of a file whose weights and configuration do not go together."""
    return FileFormatError(
        f"{path}: weights and configuration do not fit together ({error}); "
        "the file is damaged or was written by another version of vbreg"
    )


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over names, dtypes, shapes and bytes."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
