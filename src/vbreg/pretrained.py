"""The networks that tell right matches from wrong: shipped weights by name, files of your own."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from vbreg.errors import FileFormatError, VBRegError
from vbreg.network import NetworkConfig, VariationalNonLocalNetwork
from vbreg.voting import VotingConfig
from vbreg.weights_file import WEIGHTS_FOLDER, load_weights, read_weights, save_weights

WeightsName: TypeAlias = Literal["universal", "fast"]

DEFAULT: WeightsName = "fast"  # finds what `universal` finds, and is quicker on a CPU
WEIGHTS: Mapping[str, str] = {  # files of the package, by name
    "universal": "universal.safetensors",
    "fast": "fast.safetensors",  # fewer iterations, narrower, fewer seeds
    "plain": "plain.safetensors",  # SCNonlocal, trained alike: to compare with, and for PointDSC
}


def check_weights(weights: object) -> None:
    """Raise where weights are neither a name nor a path."""
    if not isinstance(weights, str | os.PathLike):
        raise VBRegError(
            f"weights {weights!r}: expected one of {', '.join(get_args(WeightsName))}, or the path "
            "of a .safetensors file that vbreg wrote"
        )


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
    header = {
        "network": asdict(network.config),
        "voting": asdict(voting or VotingConfig()),
        "about": dict(about or {}),
    }
    return save_weights(path, network, header)


def load_network(path: str | Path) -> VariationalNonLocalNetwork:
    """Load the network of a weights file, in eval mode on the CPU: every tensor and no other."""
    path = Path(path)
    if not path.is_file():
        raise FileFormatError(
            f"no weights at {path}: give one of {', '.join(WEIGHTS)} or the path of a "
            ".safetensors file that vbreg wrote"
        )
    return load_weights(
        path, "network", lambda **settings: VariationalNonLocalNetwork(NetworkConfig(**settings))
    )[0]


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
    return read_weights(Path(path))[0]
