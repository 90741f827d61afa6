"""Every compared method behind one interface: `open_method(name)(Problem(...)) -> Registration`.

To add one: write `methods/<file>.py` with a function `open_(device)` that gives a Method, and add
its row here. Files are loaded when a method is opened, so that listing them costs nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vbreg.errors import MissingExtraError, VBRegError
from vbreg.methods.interface import Method, MethodEntry, MissingBuildError, Problem

if TYPE_CHECKING:
    import torch

_WEIGHTS = Path(__file__).parents[1] / "weights"  # torch is not loaded to know it

__all__ = ["METHODS", "Method", "MethodEntry", "Problem", "available", "open_method"]


def _opener(file: str, function: str = "open_") -> Callable[..., Method]:
    """Return what opens the method of a file of this package, which is imported only then."""

    def open_(*arguments: object) -> Method:
        module = importlib.import_module(f"vbreg.methods.{file}")
        method: Method = getattr(module, function)(*arguments)
        return method

    return open_


_ENTRIES = (
    MethodEntry(
        name="vbreg",
        title="VBReg",
        about="variational non-local network, voting over its iterations; ours, shipped weights",
        paper="Jiang et al., CVPR 2023",
        open=_opener("vbreg"),
        open_weights=_opener("vbreg", "open_weights"),
    ),
    MethodEntry(
        name="verified",
        title="VBReg, verified",
        about="VBReg, then choice by the clouds and refinement; without clouds, as vbreg:fast",
        paper="this package",
        open=_opener("vbreg", "open_verified"),
        open_weights=_opener("vbreg", "open_verified_weights"),
    ),
    MethodEntry(
        name="register",
        title="vbreg.register",
        about="the call as users make it: its own matches, and more attempts where a pose is in "
        "doubt",
        paper="this package",
        open=_opener("register"),
        open_weights=_opener("register", "open_weights"),
        needs="clouds",
    ),
    MethodEntry(
        name="pointdsc",
        title="PointDSC",
        about="non-local network guided by spatial consistency, neural spectral matching",
        paper="Bai et al., CVPR 2021",
        open=_opener("pointdsc"),
        open_weights=_opener("pointdsc", "open_weights"),
    ),
    MethodEntry(
        name="dgr",
        title="DGR",
        about="6-D sparse U-Net weighs the matches; robust least squares, or RANSAC; ours",
        paper="Choy et al., CVPR 2020",
        open=_opener("dgr"),
        open_weights=_opener("dgr", "open_weights"),
        weights="dgr.safetensors",
    ),
    MethodEntry(
        name="sc2pcr",
        title="SC2-PCR",
        about="seeds from spectral matching, consensus sets by second-order compatibility",
        paper="Chen et al., CVPR 2022",
        open=_opener("sc2pcr"),
    ),
    MethodEntry(
        name="sc2pcr++",
        title="SC2-PCR++",
        about="SC2-PCR, its choice by descriptors of both clouds; without clouds, as sc2pcr",
        paper="Chen et al., TPAMI 2023",
        open=_opener("sc2pcr_plus"),
    ),
    MethodEntry(
        name="turboreg",
        title="TurboReg",
        about="hypotheses from 3-cliques round the heaviest edges of a tight compatibility graph",
        paper="Yan et al., ICCV 2025",
        open=_opener("turboreg"),
    ),
    MethodEntry(
        name="mac",
        title="MAC",
        about="hypotheses from maximal cliques of the second-order compatibility graph",
        paper="Zhang et al., CVPR 2023",
        open=_opener("mac"),
    ),
    MethodEntry(
        name="teaser",
        title="TEASER++",
        about="maximum clique, then truncated least squares of rotation and translation; ours",
        paper="Yang et al., T-RO 2020",
        open=_opener("teaser"),
    ),
    MethodEntry(
        name="teaser-official",
        title="TEASER++ (authors' code)",
        about="the authors' C++ through its Python binding",
        paper="Yang et al., T-RO 2020",
        open=_opener("teaser_official"),
        device="cpu",
        package="teaserpp_python",
        build="https://github.com/MIT-SPARK/TEASER-plusplus (or use `teaser`, which is ours)",
    ),
    MethodEntry(
        name="trde",
        title="TR_DE",
        about="branch and bound: axis and shift along it, then translation and angle across; ours",
        paper="Chen et al., CVPR 2022 (transformation decomposition)",
        open=_opener("trde"),
    ),
    MethodEntry(
        name="dhvr",
        title="DHVR (voting alone)",
        about="triplets vote for poses in 6-D bins; a local sum in place of the authors' network",
        paper="Lee et al., ICCV 2021",
        open=_opener("dhvr"),
    ),
    MethodEntry(
        name="ransac",
        title="RANSAC-50k",
        about="50,000 triplets at once, edge lengths compared, counted by inliers; ours",
        paper="Fischler & Bolles, CACM 1981",
        open=_opener("ransac"),
    ),
    MethodEntry(
        name="ransac-open3d",
        title="RANSAC-50k (Open3D)",
        about="Open3D's RANSAC on the given matches",
        paper="Fischler & Bolles, CACM 1981; Zhou et al., 2018",
        open=_opener("open3d_methods", "open_ransac"),
        device="cpu",
        package="open3d",
        extra="baselines",
    ),
    MethodEntry(
        name="sm",
        title="SM",
        about="spectral matching: least squares on the tenth with the largest eigenvector entries",
        paper="Leordeanu & Hebert, ICCV 2005",
        open=_opener("sm"),
    ),
    MethodEntry(
        name="fgr",
        title="FGR (Open3D)",
        about="fast global registration on the given matches, by Open3D",
        paper="Zhou et al., ECCV 2016",
        open=_opener("open3d_methods", "open_fgr"),
        device="cpu",
        package="open3d",
        extra="baselines",
    ),
    MethodEntry(
        name="kiss-matcher",
        title="KISS-Matcher",
        about="its own features, matches and graph pruning on the clouds",
        paper="Lim et al., ICRA 2025",
        open=_opener("kiss"),
        needs="clouds",
        device="cpu",
        package="kiss_matcher",
        extra="baselines",
    ),
)
METHODS: Mapping[str, MethodEntry] = {entry.name: entry for entry in _ENTRIES}


def open_method(name: str, device: str | torch.device = "auto") -> Method:
    """Open the method of that name; `name:PATH` opens it with other weights.

    A method that runs on the CPU only does so whatever the device.
    """
    from vbreg.backends.devices import choose_device

    base, colon, weights = name.partition(":")
    entry = _entry(base)
    if not _installed(entry):
        raise _missing(entry)
    chosen = choose_device("cpu" if entry.device == "cpu" else device)
    if not colon:
        return entry.open(chosen)
    if entry.open_weights is None:
        raise VBRegError(f"method {name!r}: {entry.title} has no weights; use {base!r}")
    return entry.open_weights(chosen, weights)


def available(name: str) -> bool:
    """Tell whether what the method imports is installed, and its weights are there."""
    entry = _entry(name)
    return _installed(entry) and (entry.weights is None or (_WEIGHTS / entry.weights).is_file())


def _installed(entry: MethodEntry) -> bool:
    return entry.package is None or importlib.util.find_spec(entry.package) is not None


def _entry(name: str) -> MethodEntry:
    if name not in METHODS:
        raise VBRegError(f"unknown method {name!r}: expected one of {', '.join(METHODS)}")
    return METHODS[name]


def _missing(entry: MethodEntry) -> MissingExtraError:
    assert entry.package is not None
    if entry.extra is None:
        assert entry.build is not None
        return MissingBuildError(entry.package, entry.title, entry.build)
    return MissingExtraError(entry.package, entry.extra, entry.title)
