"""What is known of a pose, as words and files of the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.helpers import Run, Search, assert_one_line, known_pose


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("y", "y"),
        ("0,-1,0", (0.0, -1.0, 0.0)),
        ("0,-1,0,0,0,1", [(0.0, -1.0, 0.0), (0.0, 0.0, 1.0)]),
    ],
)
def test_gravity_is_an_axis_or_numbers(
    run: Run, clouds: tuple[Path, Path], search: Search, text: str, meant: object
) -> None:
    assert run("register", *clouds, f"--gravity={text}").code == 0
    assert search.options is not None
    assert search.options["gravity"] == meant


@pytest.mark.parametrize("text", ["up", "0,1", "1,2,3,4", "a,b,c"])
def test_another_word_for_gravity_is_one_line(
    run: Run, clouds: tuple[Path, Path], search: Search, text: str
) -> None:
    assert_one_line(run("register", *clouds, f"--gravity={text}"), text, "0,-1,0")
    assert search.options is None


@pytest.mark.parametrize("form", ["txt", "json", "npy"])
def test_a_guess_is_read(
    run: Run, clouds: tuple[Path, Path], search: Search, tmp_path: Path, form: str
) -> None:
    path = tmp_path / f"guess.{form}"
    if form == "json":
        path.write_text(json.dumps({"T_target_source": known_pose().tolist()}))
    elif form == "npy":
        np.save(path, known_pose())
    else:
        np.savetxt(path, known_pose()[:3])
    assert run("register", *clouds, "--guess", path, "--max-rotation", "10").code == 0
    assert search.options is not None
    np.testing.assert_allclose(search.options["guess"], known_pose())
    assert search.options["max_rotation"] == 10.0


@pytest.mark.parametrize("content", ["1 2 3\n4 5", "{}", '{"T_target_source": "x"}', "one two"])
def test_what_is_no_guess_is_one_line(
    run: Run, clouds: tuple[Path, Path], search: Search, tmp_path: Path, content: str
) -> None:
    (tmp_path / "guess.txt").write_text(content)
    outcome = run("register", *clouds, "--guess", tmp_path / "guess.txt")
    assert_one_line(outcome, "guess.txt", "expected a rigid pose")
    missing = run("register", *clouds, "--guess", tmp_path / "none.txt")
    assert_one_line(missing, "none.txt", "no such file")
    assert search.options is None


def test_an_unknown_scale_goes_to_the_search(
    run: Run, clouds: tuple[Path, Path], search: Search
) -> None:
    assert run("register", *clouds, "--max-scale", "2").code == 0
    assert search.options is not None
    assert search.options["max_scale"] == 2.0
