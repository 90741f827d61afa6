"""Weights as safetensors files; each carries its configuration, that of the search, a checksum.

They are never a pickle.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vbreg.errors import FileFormatError
from vbreg.network import NetworkConfig, VariationalNonLocalNetwork
from vbreg.voting import VotingConfig

WEIGHTS_FOLDER = Path(__file__).parent / "weights"
FORMAT = 1


WeightsName: TypeAlias = Literal["universal", "fast"]

WEIGHTS: Mapping[str, str] = {  # files of the package, by name
    "universal": "universal.safetensors",
    "fast": "fast.safetensors",  # fewer iterations, narrower, fewer seeds
    "plain": "plain.safetensors",  # SCNonlocal, trained alike: to compare with, and for PointDSC
}


def weights_path(name_or_path: str | Path) -> Path:
    """Return the path of weights that are shipped, or the path given."""
    shipped = WEIGHTS.get(str(name_or_path))
    return Path(name_or_path) if shipped is None else WEIGHTS_FOLDER / shipped


def fingerprint(name_or_path: str | Path) -> str:
    """Return what a weights file computes: its checksum, and the search if it is not the usual."""
    path = weights_path(name_or_path)
    digest, voting = str(read_header(path).get("sha256")), load_voting(path)
    return digest if voting == VotingConfig() else f"{digest} {json.dumps(asdict(voting))}"


def save_network(
    path: str | Path,
    network: VariationalNonLocalNetwork,
    about: Mapping[str, Any] | None = None,
    voting: VotingConfig | None = None,
) -> str:
    """Write weights, configuration and settings of the search; return the checksum written."""
    tensors = {k: v.detach().cpu().contiguous() for k, v in network.state_dict().items()}
    digest = checksum(tensors)
    header = {
        "format": FORMAT,
        "network": asdict(network.config),
        "voting": asdict(voting or VotingConfig()),
        "sha256": digest,
        "about": dict(about or {}),
    }
    save_file(tensors, str(path), metadata={"vbreg": json.dumps(header)})
    return digest


def load_network(path: str | Path) -> VariationalNonLocalNetwork:
    """Load the network of a weights file, in eval mode on the CPU: every tensor and no other."""
    path = Path(path)
    if not path.is_file():
        raise FileFormatError(
            f"no weights at {path}: give one of {', '.join(WEIGHTS)} or the path of a "
            ".safetensors file that vbreg wrote"
        )
    header, tensors = _read(path)
    try:
        network = VariationalNonLocalNetwork(NetworkConfig(**header["network"]))
        network.load_state_dict(tensors, strict=True)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FileFormatError(
            f"{path}: weights and configuration do not fit together ({error}); "
            "the file is damaged or was written by another version of vbreg"
        ) from error
    if checksum(tensors) != header.get("sha256"):
        raise FileFormatError(f"{path}: checksum of the weights is wrong; get a fresh copy")
    return network.eval()


def load_voting(path: str | Path) -> VotingConfig:
    """Load the settings of the search that go with the weights of a file."""
    try:
        return VotingConfig(**read_header(path).get("voting", {}))
    except (TypeError, ValueError) as error:
        raise FileFormatError(
            f"{path}: its settings of the search are not to be understood ({error}); "
            "the file is damaged or was written by another version of vbreg"
        ) from error


def read_header(path: str | Path) -> dict[str, Any]:
    """Read configuration, settings of the search, checksum and provenance of a weights file."""
    return _read(Path(path))[0]


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over names, dtypes, shapes and bytes."""
    sha = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
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
