import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "vbreg"


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
    tomllib = pytest.importorskip("tomllib", reason="tomllib comes with Python 3.11")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [d for d in project["dependencies"] if "open3d" in d or "==" in d]
    assert {"io", "baselines", "train", "dev"} <= set(project["optional-dependencies"])


# What each room may import of ours. A leaf may import anything, and nobody imports a leaf.
ALLOWED = {
    "types": set(),
    "errors": set(),
    "geometry": set(),
    "timing": set(),
    "io": {"types", "errors"},
    "neighbors": {"errors"},
    "clouds": {"errors", "neighbors"},
    "descriptors": {"errors", "neighbors", "types"},
    "correspondences": {"errors", "geometry", "neighbors"},
    "kernels": set(),
    "compatibility": {"kernels"},
    "inference": {"kernels"},
    "network": {"compatibility", "inference", "kernels"},
    "voting": {"compatibility", "kernels"},
    "estimation": {"compatibility", "geometry", "kernels", "voting"},
    "memory": {"network"},
    "solver": {"estimation", "kernels", "network", "voting"},
    "metrics": {"geometry"},
    "losses": {"compatibility", "network"},
    "pretrained": {"errors", "network", "voting"},
    "frames": {"errors", "io", "solver", "types"},
    "simulator": {"errors", "geometry", "types"},
    "datasets": {
        "clouds",
        "correspondences",
        "descriptors",
        "errors",
        "geometry",
        "io",
        "simulator",
        "types",
    },
    "training": {
        "compatibility",
        "datasets",
        "errors",
        "geometry",
        "io",
        "losses",
        "metrics",
        "network",
        "pretrained",
        "registration",
        "types",
        "voting",
    },
    "benchmark": {
        "correspondences",
        "datasets",
        "errors",
        "io",
        "methods",
        "metrics",
        "registration",
        "types",
        "__init__",
    },
    "methods": {
        "compatibility",
        "errors",
        "estimation",
        "frames",
        "geometry",
        "network",
        "pretrained",
        "registration",
        "timing",
        "types",
        "voting",
    },
    "render": {"errors", "io", "types"},
    "demo": {"errors", "io", "types"},
}
LEAVES = {"cli", "training", "experiments", "__main__", "render", "demo"}


def rooms_imported(path: Path) -> set[str]:
    """Rooms of ours that a file imports, however it is written."""
    package = path.relative_to(SOURCE).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ("vbreg", *package[: len(package) - node.level + 1]) if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        found |= {n.split(".")[1] for n in names if n.startswith("vbreg.")}
    return found


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def test_imports_point_downward() -> None:
    rooms = {room_of(p) for p in SOURCE.rglob("*.py")}
    for path in SOURCE.rglob("*.py"):
        room, imported = room_of(path), rooms_imported(path) & rooms - {"__init__"}
        if room in ALLOWED:
            assert imported - {room} <= ALLOWED[room], path
        if room not in LEAVES:
            assert not imported & LEAVES, path


def test_the_law_sees_every_way_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    monkeypatch.setattr(sys.modules[__name__], "SOURCE", tmp_path)
    for text in (
        "import vbreg.cli",
        "from vbreg import cli",
        "from vbreg.cli import main",
        "def f():\n    from ..cli import main",
        "from .. import cli",
    ):
        (tmp_path / "sub" / "a.py").write_text(text)
        assert rooms_imported(tmp_path / "sub" / "a.py") == {"cli"}, text


def test_every_stage_is_reached_from_the_package() -> None:
    code = """
import vbreg
print([callable(f) for f in (
    vbreg.io.read, vbreg.clouds.voxel_downsample, vbreg.clouds.normals, vbreg.descriptors.fpfh,
    vbreg.descriptors.read_descriptors, vbreg.correspondences.match,
    vbreg.network.VariationalNonLocalNetwork, vbreg.voting.select_seeds, vbreg.voting.vote,
    vbreg.estimation.hypotheses, vbreg.estimation.refine, vbreg.errors.VBRegError, vbreg.register,
    vbreg.VBReg)].count(True))
"""
    assert run(code) == "14"


def test_no_placeholder_is_left_in_the_documents() -> None:
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *SOURCE.rglob("*.md")]:
        assert not re.search(r"[A-Z]+_(TABLE|TIME)|TODO|FIXME", path.read_text()), path
