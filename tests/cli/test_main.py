"""These tests are about what all verbs share: help, version, wrong usage, exit codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import vbreg
from tests.cli.helpers import Outcome, Run, Search
from vbreg import cli

VERBS = ("register", "info", "demo", "formats", "train", "methods", "benchmark", "experiment")
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


def test_ctrl_c_is_quiet(run: Run, clouds: tuple[Path, Path], search: Search) -> None:
    search.error = KeyboardInterrupt()
    assert run("register", *clouds) == Outcome(130, "", "")


def test_our_own_faults_keep_their_traceback(clouds: tuple[Path, Path], search: Search) -> None:
    search.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        cli.main(["register", *map(str, clouds)])
