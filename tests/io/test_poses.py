from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from vbreg import io
from vbreg.errors import FileFormatError

T = np.array([[0, -1, 0, 5e6], [1, 0, 0, 0.1], [0, 0, 1, -3], [0, 0, 0, 1]])


def test_json_text_and_npy(tmp_path: Path) -> None:
    texts = {
        "a.json": json.dumps({"T_target_source": T.tolist(), "more": 1}),
        "b.json": json.dumps(T.tolist()),
        "c.txt": "# T\n" + "\n".join(" ".join(map(repr, row)) for row in T.tolist()) + "\n\n",
        "d.csv": "\r\n".join(",".join(map(repr, row)) for row in T.tolist()),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    np.save(tmp_path / "e.npy", T)
    for name in (*texts, "e.npy"):
        np.testing.assert_array_equal(io.read_pose(tmp_path / name), T)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "no pose"),
        ("{", "no pose"),
        ("1 2 3\n", r"shape \(1, 3\)"),
        ("a b c d\n", "no pose"),
        ('[{"T_target_source": 1}, {}]', "it holds 2 poses"),
        (json.dumps(T.T.tolist()), "transpose it"),
        (json.dumps((2 * T + np.diag([0, 0, 0, -1])).tolist()), "no rotation"),
        (json.dumps(np.diag([1, 1, -1, 1]).tolist()), r"determinant -1"),
        (json.dumps(np.full((4, 4), np.nan).tolist()), "finite"),
        ("\0", "no pose"),
    ],
)
def test_what_is_no_pose(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(FileFormatError, match=message) as caught:
        io.read_pose(tmp_path / "a.json")
    assert str(tmp_path / "a.json") in str(caught.value)
