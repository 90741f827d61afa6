import subprocess
import sys
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[1]


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_core_needs_no_extra() -> None:
    """Neither importing nor reading, describing, matching and estimating loads an optional one."""
    code = """
import sys, numpy as np, vbreg
cloud = np.random.default_rng(0).random((2000, 3))
vbreg.register(cloud, cloud, voxel_size=0.1)
print([m for m in ("open3d", "laspy", "pye57", "matplotlib", "PIL") if m in sys.modules])
"""
    assert run(code) == "[]"


def test_importing_has_no_side_effects() -> None:
    code = """
import torch
def state():
    return torch.get_rng_state().tolist(), torch.get_num_threads(), torch.get_default_dtype()
before = state()
import vbreg.registration
print(state() == before)
"""
    assert run(code) == "True"


def test_the_command_line_does_not_wait_for_torch() -> None:
    assert run("import sys, vbreg, vbreg.cli; print('torch' in sys.modules)") == "False"


def test_dependencies_are_few_and_extras_are_named() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [d for d in project["dependencies"] if "open3d" in d or "==" in d]
    assert {"io", "baselines", "dev"} <= set(project["optional-dependencies"])


def test_imports_point_downward() -> None:
    """The leaves are imported by nobody; the pure rooms import nothing of ours above them."""
    source = ROOT / "src" / "vbreg"
    forbidden = {
        "geometry": "vbreg.",
        "types": "vbreg.",
        "network": "vbreg.io",
        "voting": "vbreg.network",
        "estimation": "vbreg.network",
        "metrics": "vbreg.registration",
    }
    for room, other in forbidden.items():
        lines = (source / f"{room}.py").read_text().splitlines()
        assert not [x for x in lines if x.startswith(("import " + other, "from " + other))], room
    for path in source.rglob("*.py"):
        text = path.read_text()
        if path.name not in ("cli.py", "__main__.py"):
            assert "vbreg.cli" not in text, path
        assert "vbreg.train" not in text or path.name == "train.py", path
