"""The network that tells right matches from wrong ones as an ONNX file, for other runtimes.

    vbreg.export.export_onnx("fast", "fast.onnx")

Inputs are matches of one problem, any number N of them from 3 on: `source` and `target` (N, 3)
float32, each end about its own mean and divided by the inlier threshold. Outputs are `logits` (N,),
whose sigmoid is the confidence, and `features` (N, d) of the last iteration, or (L, N, d) of every
one. What the search behind the network needs stands in the file's metadata.
"""

from __future__ import annotations

import importlib
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vbreg import pretrained
from vbreg.errors import MissingExtraError, VBRegError
from vbreg.io import atomic_path
from vbreg.model import VBReg
from vbreg.network import NetworkOutput, VariationalNonLocalNetwork

OPSET = 18
INPUTS, OUTPUTS = ("source", "target"), ("logits", "features")
METADATA = "vbreg"  # the key of our JSON in the file's metadata
TRACED = 64  # matches that the network is traced with; the file takes any number


class ExportedNetwork(nn.Module):
    """The network for one problem, with what a file gives back as its output."""

    def __init__(self, network: VariationalNonLocalNetwork, every_iteration: bool) -> None:
        super().__init__()
        self.network, self.every_iteration = network, every_iteration

    def forward(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (N,) and features (N, d) or (L, N, d) of matches (N, 3)."""
        output: NetworkOutput = self.network(source[None], target[None])
        if self.every_iteration:
            return output.logits[0], torch.cat(output.features)
        return output.logits[0], output.features[-1][0]


def export_onnx(
    weights: str | PathLike[str] | VBReg,
    path: str | PathLike[str],
    *,
    every_iteration: bool = False,
) -> Path:
    """Write the network of weights, or of a `VBReg`, as an ONNX file and return its path.

    `weights` are 'fast', 'universal' or a file that `vbreg train` wrote. With `every_iteration`,
    the features of all L iterations are given, which are what the search of vbreg votes with; the
    last ones alone are enough to weigh or to compare matches.
    """
    needed = [_module(name) for name in ("onnx", "onnxscript")]
    network, voting, digest = _network_of(weights)
    if network.config.descriptor_width:
        raise VBRegError(
            "this network sees descriptors (input = 'feat'), which the ONNX file has no input for: "
            "export weights that see points alone, as 'fast' and 'universal' do"
        )
    model = ExportedNetwork(network, every_iteration).cpu().float().eval()
    generator = torch.Generator().manual_seed(0)
    ends = tuple(torch.randn(TRACED, 3, generator=generator) for _ in INPUTS)
    matches = torch.export.Dim("matches", min=3)
    # Gradients stay enabled: the readable form then keeps beta whole for any N, and does not ask
    # whether N x N numbers are few.
    with _quietly(), torch.enable_grad():
        program = torch.onnx.export(
            model,
            ends,
            dynamo=True,
            opset_version=OPSET,
            input_names=list(INPUTS),
            output_names=list(OUTPUTS),
            dynamic_shapes=({0: matches}, {0: matches}),
            verbose=False,
        )
    assert program is not None, "torch gives a program where no file is asked for"
    proto = program.model_proto
    about = {
        "network": asdict(network.config),
        "voting": voting,
        "sigma": float(network.sigma.detach()),
        "sha256": digest,
        "every_iteration": every_iteration,
    }
    entry = proto.metadata_props.add()
    entry.key, entry.value = METADATA, json.dumps(about)
    needed[0].checker.check_model(proto)
    with atomic_path(path) as temporary:
        temporary.write_bytes(proto.SerializeToString())
    return Path(path)


def _network_of(
    weights: str | PathLike[str] | VBReg,
) -> tuple[VariationalNonLocalNetwork, dict[str, Any], str | None]:
    """Return the network, the settings of its search and the checksum of its file if known."""
    if isinstance(weights, VBReg):
        # A copy: what is exported is moved to the CPU, and the user's own stays where it is.
        copy = VariationalNonLocalNetwork(weights.network.config)
        copy.load_state_dict({k: v.cpu() for k, v in weights.network.state_dict().items()})
        return copy, asdict(weights.voting), None
    if not isinstance(weights, str | PathLike):
        raise VBRegError(
            f"weights are a {type(weights).__name__}: expected 'fast', 'universal', the path of a "
            "weights file, or a VBReg"
        )
    path = pretrained.weights_path(str(weights))
    network = pretrained.load_network(path)
    digest = str(pretrained.read_header(path)["sha256"])
    return network, asdict(pretrained.load_voting(path)), digest


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(name, "onnx", "writing ONNX files") from error


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep torch's exporter from telling how it works."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
