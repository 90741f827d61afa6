"""These tests are about what all verbs share: help, version, wrong usage, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import vbreg
from tests.cli.helpers import Outcome, Run, Search, assert_one_line
from vbreg import cli, io

VERBS = (
    *("register", "reconstruct", "batch", "view", "transform", "info", "demo", "formats"),
    *("train", "export", "methods", "benchmark", "experiment", "map"),
)
PROGRAMS = {"vbreg", "torchrun", "tensorboard"}  # that examples begin with


@pytest.mark.parametrize("command", [None, *VERBS])
@pytest.mark.parametrize("columns", ["60", "80"])
def test_help_ends_with_examples(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str | None, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    outcome = run(*([command] if command else []), "--help")
    assert outcome.code == 0
    _, _, examples = outcome.out.partition("EXAMPLES\n")
    lines = examples.rstrip().splitlines()
    assert lines
    assert all(line.split()[0] in PROGRAMS for line in lines)  # one a line, none rewrapped


def test_no_command_prints_help(run: Run) -> None:
    assert run() == run("--help")


def test_version(run: Run) -> None:
    assert run("--version") == Outcome(0, f"vbreg {vbreg.__version__}\n", "")


def test_help_lists_the_verbs_in_order(run: Run) -> None:
    _, _, listed = run("--help").out.partition("Commands:\n")
    names = [line.split()[0] for line in listed.splitlines() if line.startswith("  ")]
    assert names[: len(VERBS)] == list(VERBS)


@pytest.mark.parametrize("group", [[], ["map"]])
def test_the_list_of_verbs_is_not_cut(
    run: Run, monkeypatch: pytest.MonkeyPatch, group: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, _, listed = run(*group, "--help").out.partition("Commands:\n")
    verbs, _, _ = listed.partition("EXAMPLES")
    assert verbs
    assert "..." not in verbs


def test_help_does_not_load_torch() -> None:
    code = f"""
import sys
from contextlib import suppress
from vbreg.cli import main
for verb in {[[], *([verb] for verb in VERBS)]}:
    with suppress(SystemExit):
        main([*verb, "--help"])
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)


@pytest.mark.parametrize("module", ["vbreg", "vbreg.cli"])
def test_the_command_line_runs_as_a_module(module: str) -> None:
    command = [sys.executable, "-m", module, "--version"]
    said = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout
    assert said == f"vbreg {vbreg.__version__}\n"


@pytest.mark.parametrize("arguments", [["regster"], ["register"], ["register", "--nonsense"]])
def test_wrong_usage_is_exit_code_2(run: Run, arguments: list[str]) -> None:
    outcome = run(*arguments)
    assert outcome.code == 2
    assert "Usage" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("given", [[], ["one.ply"], ["one.ply", "-q"]])
def test_one_cloud_alone_misses_another(run: Run, given: list[str]) -> None:
    outcome = run("register", *given)
    assert outcome.code == 2
    assert "Missing argument: expected SOURCE and TARGET" in outcome.err


def test_ctrl_c_is_quiet(run: Run, clouds: tuple[Path, Path], search: Search) -> None:
    search.error = KeyboardInterrupt()
    assert run("register", *clouds) == Outcome(130, "", "")


def test_our_own_faults_keep_their_traceback(clouds: tuple[Path, Path], search: Search) -> None:
    search.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        cli.main(["register", *map(str, clouds)])


LONG = "x" * 300 + ".ply"


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", LONG],
        ["register", LONG, LONG],
        ["register", "SOURCE", "TARGET", "-o", LONG],
        ["transform", LONG, "-o", "a.ply"],
    ],
)
def test_a_name_that_no_system_takes_is_one_line(
    run: Run, clouds: tuple[Path, Path], arguments: list[str]
) -> None:
    names = dict(zip(("SOURCE", "TARGET"), clouds, strict=True))
    assert_one_line(run(*(names.get(word, word) for word in arguments)))


@pytest.mark.slow
def test_an_ascii_terminal_prints_every_name(tmp_path: Path) -> None:
    io.write(tmp_path / "sch\u00f6n.npy", np.eye(3))
    code = "import sys; from vbreg.cli import main; main(['info', sys.argv[1]])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "sch\u00f6n.npy")],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=120,
        check=True,
    )
    assert rb"sch\xf6n.npy" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is full")
def test_a_full_disk_behind_stdout_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "vbreg", "formats"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "vbreg: error: [Errno 28] No space left on device\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
def test_a_reader_that_goes_away_is_quiet() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "vbreg", "formats"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.communicate(timeout=60)[1] == b""
