"""Laws of the package as a whole: what it loads, who imports whom, who knows what."""

import ast
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
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
optional = "open3d", "laspy", "pye57", "matplotlib", "PIL", "ray", "pyarrow"
print([m for m in optional if m in sys.modules])
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


# What each room (a file or a folder of src/vbreg) may import of ours, the lowest first.
ALLOWED = {
    "errors": "",
    "geometry": "",
    "progress": "",
    "web_page": "",
    "types": "errors",
    "motions": "types",
    "compatibility": "",
    "attempts": "errors geometry types",
    "io": "errors motions types",
    "simulator": "errors geometry types",
    "network": "compatibility",
    "voting": "compatibility geometry",
    "demo": "errors io types",
    "inputs": "errors io types",
    "render": "errors io types",
    "losses": "compatibility network",
    "estimation": "compatibility geometry voting",
    "weights_file": "errors",
    "pretrained": "errors network voting weights_file",
    "scale": "errors inputs",
    "alignment": "geometry scale",
    "backends": (
        "alignment compatibility errors estimation geometry inputs network scale types voting"
    ),
    "clouds": "backends errors inputs types",
    "frames": "backends clouds errors inputs types",
    "streaming": "clouds frames inputs io types",
    "sparse": "backends errors",
    "descriptors": "backends clouds errors inputs io scale sparse weights_file",
    "metrics": "backends errors geometry inputs",
    "timing": "backends",
    "uncertainty": "backends geometry motions scale types",
    "summary": "metrics types uncertainty",
    "figure": "io render types",
    "description": "backends clouds descriptors scale timing",
    "matching": (
        "backends clouds description descriptors errors frames inputs scale streaming timing types"
    ),
    "surfaces": "backends matching",
    "refinement": "alignment backends geometry surfaces",
    "constraints": "errors estimation frames geometry inputs matching types",
    "solver": "backends estimation frames network timing voting",
    "verification": (
        "errors estimation geometry matching refinement scale solver surfaces weights_file"
    ),
    "datasets": "clouds errors frames geometry io matching metrics motions scale simulator types",
    "recording": (
        "backends estimation frames network refinement solver timing types verification voting"
    ),
    "pair_problem": (
        "backends estimation frames matching refinement scale solver surfaces types uncertainty "
        "verification"
    ),
    "model": (
        "backends constraints errors frames inputs matching network pair_problem pretrained "
        "recording solver surfaces timing types uncertainty verification voting"
    ),
    "registrar": (
        "attempts clouds constraints descriptors errors frames matching model pair_problem scale "
        "timing types"
    ),
    "registration": (
        "backends constraints descriptors errors frames inputs matching model pretrained "
        "registrar scale streaming timing types"
    ),
    "scenes": (
        "backends clouds constraints descriptors errors inputs io matching model motions "
        "pretrained refinement registrar scale streaming surfaces types uncertainty web_page"
    ),
    "maps": (
        "descriptors errors inputs io matching model motions pair_problem registrar scale scenes "
        "streaming types weights_file"
    ),
    "batch": (
        "backends constraints descriptors errors frames inputs io matching model pretrained "
        "progress registrar scale streaming types"
    ),
    "__init__": (
        "clouds demo descriptors errors estimation geometry io maps matching metrics model network "
        "registration scale scenes types uncertainty voting"
    ),
    "export": "errors io model network pretrained",
    "viewer": "demo errors io model pretrained registration render summary types web_page",
    "methods": (
        "backends compatibility errors estimation frames geometry inputs matching model network "
        "pretrained registration scale sparse timing types verification voting weights_file"
    ),
    "training": (
        "backends clouds datasets descriptors errors frames geometry io losses matching methods "
        "metrics model network pretrained progress refinement scale simulator solver "
        "surfaces types verification voting"
    ),
    "benchmark": (
        "backends datasets descriptors errors frames io matching methods metrics progress scale "
        "types"
    ),
    "experiments": (
        "backends benchmark compatibility datasets descriptors errors frames io methods model "
        "pretrained render training types voting"
    ),
    "cli": (
        "backends batch benchmark clouds datasets demo errors experiments export figure inputs io "
        "maps methods progress registration render scenes streaming summary training types viewer"
    ),
    "__main__": "cli",
}
LEAVES = {
    "cli",
    "training",
    "experiments",
    "viewer",
    "figure",
    "__main__",
    "render",
}  # for leaves alone
SCIENCE = {
    "network",
    "compatibility",
    "voting",
    "estimation",
    "alignment",
}  # written once, for any device


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


def allowed(room: str) -> set[str]:
    return set(ALLOWED[room].split())


def test_imports_point_downward() -> None:
    rooms = {room_of(p) for p in SOURCE.rglob("*.py")}
    assert rooms == set(ALLOWED), "a room without a row, or a row without a room"
    for path in SOURCE.rglob("*.py"):
        room, imported = room_of(path), rooms_imported(path) & rooms - {"__init__"}
        assert imported - {room} <= allowed(room), path


def test_the_table_is_as_tight_as_the_code() -> None:
    imported: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        imported.setdefault(room_of(path), set()).update(rooms_imported(path))
    spare = {room: allowed(room) - imported[room] for room in ALLOWED}
    assert not any(spare.values()), {room: names for room, names in spare.items() if names}


def test_rooms_have_an_order() -> None:
    """What a room imports stands above it in the table: no two rooms need each other."""
    above: set[str] = set()
    for room in ALLOWED:
        assert allowed(room) <= above, room
        above.add(room)
    for room in set(ALLOWED) - LEAVES:
        assert not allowed(room) & LEAVES, room
    for room in set(ALLOWED) - {"cli"}:
        assert not allowed(room) & {"viewer", "figure"}, room  # the command line shows, nobody else


def test_the_document_has_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.split("\n## The rooms\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    told = re.findall(r"`([^`]+)`", " ".join(cells))
    rooms = [room for room in ALLOWED if not room.startswith("__")]
    assert sorted(told) == sorted(f"{r}/" if (SOURCE / r).is_dir() else r for r in rooms)


def test_the_science_imports_no_backend() -> None:
    for room in SCIENCE:
        assert allowed(room) <= SCIENCE | {"geometry", "scale"}, room
    for path in SOURCE.rglob("*.py"):
        if room_of(path) in SCIENCE:
            assert "backends" not in rooms_imported(path), path


# --- one seam for hardware

DEVICE_TEST = re.compile(
    r"(^|\.)device\.type$|\.is_cuda$|\.cuda$|^torch\.(cuda|backends)\b|(^|\.)(is_cpu|is_gpu)$"
)


def device_tests(text: str) -> list[str]:
    """Names in code, of attributes and imports, that ask what a device is.

    An annotation asks nothing: training/compiled.py names the type torch.cuda.CUDAGraph so.
    """
    tree = ast.parse(text)
    annotations: set[ast.AST] = set()
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if isinstance(held := getattr(node, field, None), ast.AST):
                annotations.update(ast.walk(held))
    found = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute) and node not in annotations:
            names = [ast.unparse(node)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found += [name for name in names if DEVICE_TEST.search(name)]
    return found


def test_nobody_else_asks_what_a_device_is() -> None:
    for path in SOURCE.rglob("*.py"):
        if room_of(path) not in ("backends", "recording"):
            assert not device_tests(path.read_text()), path


@pytest.mark.parametrize(
    "text",
    [
        "if x.device.type == 'cpu': pass",
        "kind = device.type",
        "x.is_cuda",
        "x = x.cuda()",
        "torch.cuda.synchronize()",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "import torch.cuda",
        "from torch import cuda",
        "from vbreg.backends.devices import is_cpu",
        "devices.is_gpu(x)",
    ],
)
def test_the_law_sees_every_way_to_ask(text: str) -> None:
    assert device_tests(text)


@pytest.mark.parametrize(
    "text",
    [
        "# torch.cuda.synchronize()",
        "'x.is_cuda'",
        "def f(graph: torch.cuda.CUDAGraph) -> torch.cuda.CUDAGraph: pass",
        "x: dict[str, torch.cuda.CUDAGraph] = {}",
        "entry.device == 'cpu'",
        "column.dtype.type",
    ],
)
def test_the_law_lets_other_things_be(text: str) -> None:
    assert not device_tests(text)


# --- files are read alike on every system


def unnamed_encodings(text: str) -> list[str]:
    """Calls that read or write text in whatever code the system prefers."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        given = {keyword.arg for keyword in node.keywords}
        reads = node.func.attr == "read_text" and not node.args
        writes = node.func.attr == "write_text" and len(node.args) == 1
        opens = node.func.attr == "open" and "newline" in given
        if (reads or writes or opens) and "encoding" not in given:
            found.append(ast.unparse(node))
    return found


def test_text_files_name_their_encoding() -> None:
    folders = [SOURCE, ROOT / "scripts", ROOT / "benchmarks", ROOT / "examples"]
    for path in [path for folder in folders for path in folder.rglob("*.py")]:
        assert not unnamed_encodings(path.read_text(encoding="utf-8")), path


def test_the_law_sees_unnamed_encodings() -> None:
    for text in ("p.read_text()", "(a / b).write_text(x)", "p.open('w', newline='')"):
        assert unnamed_encodings(text) == [text]
    for text in ("p.read_text(encoding='utf-8')", "p.open('rb')", "read_text(path)"):
        assert not unnamed_encodings(text)


# --- one place for a length, one meaning for a name


def last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def own_scales(text: str) -> list[str]:
    """Products such as 2 * voxel_size and inlier_threshold / 2, which are for `Scale` to know."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div))):
            continue
        for length, factor in ((node.left, node.right), (node.right, node.left)):
            value = factor.value if isinstance(factor, ast.Constant) else None
            if isinstance(node.op, ast.Div) and length is node.right:
                continue
            voxels = "voxel" in last_name(length) and value in (2, 5)
            thresholds = "threshold" in last_name(length) and value in (2, 0.5, 2.5)
            if voxels or thresholds:
                found.append(ast.unparse(node))
    return found


def test_lengths_follow_from_the_scale_in_one_place() -> None:
    folders = [SOURCE, ROOT / "scripts", ROOT / "benchmarks", ROOT / "examples"]
    for path in [path for folder in folders for path in folder.rglob("*.py")]:
        if path != SOURCE / "scale.py":
            assert not own_scales(path.read_text()), path


def test_the_law_sees_lengths() -> None:
    for text in ("2 * voxel_size", "voxel * 5.0", "s.inlier_threshold / 2", "0.5 * threshold"):
        assert own_scales(text) == [text]
    for text in ("3 * voxel_size", "1 / voxel_size", "2 / voxel_size", "2 * radius"):
        assert not own_scales(text)


def test_a_public_class_name_means_one_thing() -> None:
    where: dict[str, list[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert not {name: paths for name, paths in where.items() if len(paths) > 1}


# --- every public thing says what it is

Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

# What the sentence of a function may begin with: imperatives alone. Add a verb, never a noun.
VERBS = {
    "Align", "Apply", "Ask", "Begin", "Bring", "Check", "Choose", "Compare", "Compile", "Complain",
    "Compress", "Compute", "Convert", "Copy", "Count", "Cut", "Decode", "Describe", "Draw",
    "Drive", "Drop", "Find", "Fit", "Furnish", "Fuse", "Group", "Hang", "Join", "Keep", "Label",
    "Lay", "Let", "Line", "List", "Load", "Make", "Match", "Move", "Narrow", "Open", "Parse",
    "Place", "Print", "Put", "Raise", "Read", "Refine", "Register", "Repeat", "Return", "Run",
    "Sample", "Say", "Scan", "Score", "Send", "Set", "Shift", "Show", "Solve", "Spread", "Sum",
    "Summarise", "Take", "Tell", "Thin", "Train", "Turn", "Weigh", "Write", "Yield",
    "Answer", "Close", "Decide", "End", "Give", "Import", "Look", "Start",
}  # fmt: skip


def public_definitions(
    tree: ast.Module | ast.ClassDef, above: tuple[ast.ClassDef, ...] = ()
) -> Iterator[tuple[tuple[ast.ClassDef, ...], Documented]]:
    """Functions, classes, methods and properties, each with the classes that it is in."""
    for node in tree.body:
        if isinstance(node, Documented) and not node.name.startswith("_"):
            yield above, node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node, (*above, node))


def is_stub(node: Documented) -> bool:
    """An overload, or a method of a Protocol: its body is `...`."""
    only = node.body[0].value if isinstance(node.body[0], ast.Expr) else None
    return isinstance(only, ast.Constant) and only.value is ...


def is_property(node: Documented) -> bool:
    """Tell whether it is read like a value, so that a noun may say what it is."""
    names = {last_name(decorator) for decorator in node.decorator_list}
    return bool(names & {"property", "cached_property"})


def is_sentence(node: Documented, text: str) -> bool:
    """Tell whether a docstring begins with a sentence, and that of a function with a verb."""
    if not re.match(r"[A-Z].*?\.(\s|$)", text.split("\n\n")[0], re.DOTALL):
        return False
    if isinstance(node, ast.ClassDef) or is_property(node):
        return True
    return re.split(r"\W", text, maxsplit=1)[0] in VERBS


def overrides(inside: ast.ClassDef, name: str, classes: dict[str, ast.ClassDef]) -> bool:
    """Tell whether a base class of ours, or torch's modules, document the method already."""
    if name == "forward" and any(ast.unparse(base).startswith("nn.") for base in inside.bases):
        return True
    for base in map(last_name, inside.bases):
        if base in classes:
            held = [n for n in classes[base].body if getattr(n, "name", "") == name]
            if any(ast.get_docstring(n) for n in held if isinstance(n, Documented)):
                return True
            if overrides(classes[base], name, classes):
                return True
    return False


def test_every_public_thing_has_a_sentence() -> None:
    trees = {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    classes = {
        node.name: node
        for tree in trees.values()
        for _, node in public_definitions(tree)
        if isinstance(node, ast.ClassDef)
    }
    faults = []
    for path, tree in trees.items():
        for above, node in public_definitions(tree):
            text = ast.get_docstring(node)
            if text is None and (
                is_stub(node) or (above and overrides(above[-1], node.name, classes))
            ):
                continue
            if text is None or not is_sentence(node, text):
                name = ".".join(part.name for part in (*above, node))
                faults.append(f"{path.relative_to(SOURCE)} {name}: {(text or 'nothing')[:60]}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("code", "right"),
    [
        ('def f():\n    """Return the pose."""', True),
        ('def f():\n    """Train, or go on."""', True),
        ('def f():\n    """The pose."""', False),
        ('def f():\n    """Returns the pose."""', False),
        ('def f():\n    """Return the pose"""', False),
        ('@property\ndef f(self):\n    """The pose."""', True),
        ('@functools.cached_property\ndef f(self):\n    """The pose."""', True),
        ('class F:\n    """The pose."""', True),
    ],
)
def test_the_law_sees_what_is_no_sentence(code: str, right: bool) -> None:
    node = ast.parse(code).body[0]
    assert isinstance(node, Documented)
    assert is_sentence(node, ast.get_docstring(node) or "") == right


# --- tests mirror the package

ACROSS = {"door", "end_to_end", "examples", "fuzz", "package"}  # what is about no single room


def test_every_test_has_its_room() -> None:
    for path in (ROOT / "tests").glob("test_*.py"):
        name = path.stem.removeprefix("test_")
        assert name in ACROSS or name in ALLOWED, path


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
    vbreg.io.read_descriptors, vbreg.matching.match,
    vbreg.matching.describe, vbreg.matching.match_clouds, vbreg.metrics.right_matches,
    vbreg.metrics.overlap, vbreg.geometry.apply, vbreg.Scale,
    vbreg.network.VariationalNonLocalNetwork, vbreg.voting.select_seeds, vbreg.voting.vote,
    vbreg.estimation.hypotheses, vbreg.estimation.refine, vbreg.errors.VBRegError, vbreg.register,
    vbreg.VBReg)].count(True))
"""
    assert run(code) == "20"


def test_no_placeholder_is_left_in_the_documents() -> None:
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *SOURCE.rglob("*.md")]:
        assert not re.search(r"[A-Z]+_(TABLE|TIME)|TODO|FIXME", path.read_text()), path


# --- what is handed out

MAX_WHEEL_BYTES = 45_000_000  # weights included, those of compared methods among them


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a source archive and a wheel, made from the files that git knows of."""
    for name in ("build", "hatchling", "twine"):
        pytest.importorskip(name, reason="vbreg[dev] is not installed")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder


def test_the_archives_are_in_order_and_small(built: Path) -> None:
    files = sorted(built.iterdir())
    assert [path.name.partition("-0.1.0")[2] for path in files] == ["-py3-none-any.whl", ".tar.gz"]
    assert all(path.stat().st_size < MAX_WHEEL_BYTES for path in files)
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    with tarfile.open(files[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "CITATION.cff", "src/vbreg/py.typed", "tests/test_package.py"} <= names


def test_an_installed_wheel_has_all_that_it_needs(built: Path, tmp_path: Path) -> None:
    wheel = next(built.glob("*.whl"))
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*command, "--target", str(tmp_path / "site"), str(wheel)],
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip
    code = """
import sys, vbreg
from vbreg import cli, demo, pretrained
print(vbreg.__file__)
assert demo.load()[2].shape == (4, 4)
from vbreg.viewer import report
pages = "page.html", "viewer.css", "viewer.js", "LICENSE-three.txt"
assert all(report.static_text(name) for name in pages)
assert all(pretrained.weights_path(name).is_file() for name in pretrained.WEIGHTS)
"""
    search = [str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
        cwd=tmp_path, check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.strip() == str(tmp_path / "site" / "vbreg" / "__init__.py")


def test_the_citation_has_the_version_of_the_package() -> None:
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert f"version: {version[1]}\n" in (ROOT / "CITATION.cff").read_text()
