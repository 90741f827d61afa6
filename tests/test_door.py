"""The door, `import vbreg`: what is there, what is not, and that a type checker knows both."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import vbreg
from tests.conftest import make_problem
from vbreg import model, pretrained, registration, scale
from vbreg.backends import BackendName
from vbreg.cli import register as register_verb
from vbreg.descriptors import DESCRIPTORS, DescriptorName
from vbreg.descriptors.choice import SHIPPED_FCGF
from vbreg.network import VariationalNonLocalNetwork

ROOT = Path(__file__).parents[1]


def test_dir_lists_what_there_is() -> None:
    assert dir(vbreg) == sorted(vbreg.__all__)
    for name in dir(vbreg):
        assert getattr(vbreg, name) is not None
    for name in ("register", "VBReg", "Scale", "VBRegError", "matching", "metrics", "io"):
        assert name in dir(vbreg)


def test_listing_loads_nothing() -> None:
    heavy = ("torch", "scipy", "vbreg.io", "vbreg.demo")
    code = f"import sys, vbreg; dir(vbreg); print([m for m in {heavy} if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["regster", "kernels", "correspondences", "transform"])
def test_what_is_not_there_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"'{name}'; it has .*'register'"):
        getattr(vbreg, name)
    assert not hasattr(vbreg, name)


def test_names_are_the_things_themselves() -> None:
    assert vbreg.register is registration.register
    assert vbreg.VBReg is model.VBReg
    assert vbreg.Scale is scale.Scale
    assert vbreg.VBRegError is vbreg.errors.VBRegError
    assert issubclass(vbreg.VBRegError, ValueError)
    assert vbreg.io.read is not None
    assert vbreg.demo.load()[2].shape == (4, 4)
    with pytest.raises(vbreg.VBRegError, match="no such file"):
        vbreg.register("none.ply", "none.ply")


@pytest.mark.skipif(not importlib.util.find_spec("mypy"), reason="mypy is not installed")
def test_a_misspelt_name_does_not_type_check(tmp_path: Path) -> None:
    """As a user's editor sees it: the right name passes, with its types, and no other."""
    right, wrong = tmp_path / "door_right.py", tmp_path / "door_wrong.py"
    lines = ("import vbreg", 'result = vbreg.register("a.ply", "b.ply", preset="indoor")')
    right.write_text("\n".join([*lines, "fitness: float = result.fitness"]) + "\n")
    wrong.write_text(
        "import vbreg\n"
        'vbreg.regster("a.ply", "b.ply")\n'
        'vbreg.register("a.ply", "b.ply", preset="indor")\n'
        'vbreg.register("a.ply", "b.ply").fitnes\n'
    )
    # With the project's settings, so that what `make check` has cached is used.
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    said = subprocess.run(
        [*command, str(right), str(wrong)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        timeout=300,
    )
    # From a cache, the path is that of the file which was checked first.
    found = re.findall(r"(door_\w+)\.py:(\d+): error: (.*)", said.stdout)
    assert [error[:2] for error in found] == [("door_wrong", line) for line in "234"], said
    messages = [message for _, _, message in found]
    assert 'Module has no attribute "regster"' in messages[0]
    assert "has incompatible type \"Literal['indor']\"" in messages[1]
    assert '"Registration" has no attribute "fitnes"' in messages[2]


def test_reprs_are_short(small_network: VariationalNonLocalNetwork) -> None:
    model = vbreg.VBReg(small_network)
    assert repr(model).startswith("VBReg(L=3, d=32, 0.0")
    assert len(repr(model)) < 200
    problem = make_problem(50, 0.5)
    result = model.estimate(problem.source, problem.target, inlier_threshold=0.1)
    for shown in (result, result.correspondences, vbreg.PointCloud(problem.source)):
        assert len(repr(shown)) < 200


def test_the_usual_weights_are_shipped() -> None:
    assert pretrained.DEFAULT in get_args(pretrained.WeightsName)
    usual, named = (vbreg.VBReg.from_pretrained(*name, device="cpu") for name in ((), ("fast",)))
    assert usual.network.config == named.network.config


@pytest.mark.parametrize(
    ("literal", "registry"),
    [
        (pretrained.WeightsName, set(pretrained.WEIGHTS) - {"plain"}),  # only to compare with
        (scale.PresetName, set(scale.VOXEL_SIZES)),
        (DescriptorName, set(DESCRIPTORS)),
        (register_verb.PresetName, set(scale.VOXEL_SIZES)),
        (BackendName, {"auto", "plain"}),
    ],
    ids=["weights", "preset", "descriptor", "cli preset", "backend"],
)
def test_names_of_the_types_are_those_of_the_registries(
    literal: object, registry: set[str]
) -> None:
    assert set(get_args(literal)) == registry


def test_every_name_at_the_door_is_taken() -> None:
    """A name that the types allow runs; one that they do not is refused."""
    cloud = np.random.default_rng(0).random((500, 3))
    for weights in get_args(pretrained.WeightsName):
        model = vbreg.VBReg.from_pretrained(weights, device="cpu")
        assert str(model.device) == "cpu"
    for preset in get_args(scale.PresetName):
        assert vbreg.Scale.of_preset(preset).voxel_size > 0
    shipped = set(get_args(DescriptorName)) - (set() if SHIPPED_FCGF.is_file() else {"fcgf"})
    for descriptor in shipped:
        found = vbreg.register(
            cloud, cloud, voxel_size=0.2, descriptor=descriptor, weights="fast", device="cpu"
        )
        assert found.determined
    with pytest.raises(vbreg.VBRegError, match="'space'"):
        vbreg.register(cloud, cloud, preset="space")  # type: ignore[arg-type]
