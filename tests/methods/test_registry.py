"""Names, errors and what is loaded when."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import make_problem
from tests.methods.helpers import TAU, posed, untrained
from vbreg.errors import FileFormatError, MissingExtraError, VBRegError
from vbreg.frames import Matches
from vbreg.methods import METHODS, Problem, available, open_method
from vbreg.network import NetworkConfig, VariationalNonLocalNetwork
from vbreg.pretrained import WEIGHTS_FOLDER, save_network


def test_an_unknown_name_is_answered_with_the_choices() -> None:
    for call in (open_method, available):
        with pytest.raises(VBRegError, match="unknown method 'icp': expected one of vbreg, ") as e:
            call("icp")
        assert all(name in str(e.value) for name in METHODS)


def test_every_row_is_complete() -> None:
    for name, entry in METHODS.items():
        assert entry.name == name
        assert all((entry.title, entry.about, entry.paper, entry.needs))
        assert entry.device in ("cpu", "cpu, cuda")
        if entry.package is not None:
            assert (entry.extra is None) != (entry.build is None), name


def test_every_file_of_a_row_is_there() -> None:
    """Opening without what it needs fails for no other reason than that."""
    for name, entry in METHODS.items():
        if available(name):
            assert callable(entry.open(torch.device("cpu")))


@pytest.mark.parametrize("name", [n for n, e in METHODS.items() if e.package])
def test_a_missing_package_is_named_with_the_way_to_get_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert not available(name)
    package = METHODS[name].package
    way = "build it from https://" if METHODS[name].build else r"pip install 'vbreg\[baselines\]'"
    with pytest.raises(MissingExtraError, match=f"needs the package '{package}'.*{way}"):
        open_method(name)


def test_listing_the_methods_loads_none_of_them() -> None:
    code = """
import sys, vbreg.methods
print([m for m in ("torch", "open3d", "kiss_matcher", "scipy") if m in sys.modules])
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_weights_are_for_networks_only() -> None:
    with pytest.raises(VBRegError, match="SC2-PCR has no weights; use 'sc2pcr'"):
        open_method("sc2pcr:file.safetensors")
    with pytest.raises(FileFormatError, match=r"no weights at nowhere\.safetensors"):
        open_method("vbreg:nowhere.safetensors", "cpu")


def test_vbreg_opens_with_other_weights() -> None:
    problem = make_problem(100, inlier_ratio=0.5)
    shipped = open_method("vbreg", "cpu")(posed(problem.source, problem.target))
    path = WEIGHTS_FOLDER / "universal.safetensors"
    given = open_method(f"vbreg:{path}", "cpu")(posed(problem.source, problem.target))
    np.testing.assert_array_equal(shipped.T_target_source, given.T_target_source)


def test_the_search_of_pointdsc_takes_other_networks(tmp_path: Path) -> None:
    """Variational ones, and ones that see descriptors: the rows of an ablation."""
    made = make_problem(100, inlier_ratio=0.5)
    path = tmp_path / "described.safetensors"
    config = NetworkConfig(iterations=2, input="feat", descriptor_width=4)
    save_network(path, VariationalNonLocalNetwork(config))
    method = open_method(f"pointdsc:{path}", "cpu")
    with pytest.raises(VBRegError, match="this network sees descriptors of 4 columns"):
        method(posed(made.source, made.target))
    seen = np.random.default_rng(0).random((100, 8))
    matches = Matches.of_points([made.source], [made.target], TAU, [seen])
    result = method(replace(posed(made.source, made.target), matches=matches))
    assert result.inliers[made.inliers].all()
    named = open_method("pointdsc", "cpu")
    assert named.fingerprint != method.fingerprint  # type: ignore[attr-defined]


def test_pointdsc_opens_with_weights(tmp_path: Path) -> None:
    save_network(tmp_path / "plain.safetensors", untrained())
    problem = make_problem(100, inlier_ratio=0.5)
    method = open_method(f"pointdsc:{tmp_path / 'plain.safetensors'}", "cpu")
    result = method(posed(problem.source, problem.target))
    assert result.inliers[problem.inliers].all()


def test_an_impossible_problem_is_refused() -> None:
    points = np.zeros((5, 3))
    for tau in (0.0, -1.0, float("nan")):
        with pytest.raises(VBRegError, match="inlier_threshold"):
            Problem.of_points(points, points, tau)
    with pytest.raises(VBRegError, match=r"source_points has shape \(1, 5, 3\): expected \(N, 3\)"):
        Problem.of_points(points[None], points[None], TAU)
    with pytest.raises(VBRegError, match=r"\(5, 3\) and target_points \(4, 3\) differ in shape"):
        Problem.of_points(points, points[:4], TAU)
