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
    arrays = {"e.npy": T, "f.npy": T[:3], "g.npy": T[:3].ravel(), "h.npy": T[None]}
    for name, array in arrays.items():
        np.save(tmp_path / name, array)
    for count in (12, 16):
        texts[f"{count}.txt"] = " ".join(map(repr, T.ravel()[:count].tolist()))
    texts["3.txt"] = "\n".join(" ".join(map(repr, row)) for row in T[:3].tolist())
    texts["3.json"] = json.dumps(T[:3].tolist())
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    for name in (*texts, *arrays):
        np.testing.assert_array_equal(io.read_pose(tmp_path / name), T)


def test_one_of_several_is_chosen_by_name_or_number(tmp_path: Path) -> None:
    other = np.diag([-1.0, -1.0, 1.0, 1.0])
    poses = {"scans/a.ply": T, "b.ply": other}
    register = [{"source": name, "T_target_source": T_.tolist()} for name, T_ in poses.items()]
    scene = [{"name": name, "T_world_scan": T_.tolist()} for name, T_ in poses.items()]
    rows = [" ".join(map(repr, T_[:3].ravel().tolist())) for T_ in poses.values()]
    texts = {
        "r.json": json.dumps(register),
        "s.json": json.dumps({"scans": scene, "edges": []}),
        "k.txt": "\n".join(rows),
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.write_text(text)
        for number, pose in enumerate((T, other)):
            np.testing.assert_array_equal(io.read_pose(path, str(number)), pose)
        for which in (None, "c.ply", "2", "-1"):
            with pytest.raises(FileFormatError, match="it holds 2 poses") as caught:
                io.read_pose(path, which)
            assert ("0, 1" if name == "k.txt" else "0 scans/a.ply, 1 b.ply") in str(caught.value)
        if name != "k.txt":
            for which in ("scans/a.ply", "a.ply"):
                np.testing.assert_array_equal(io.read_pose(path, which), T)
    (tmp_path / "one.json").write_text(json.dumps({"scans": scene[:1]}))
    np.testing.assert_array_equal(io.read_pose(tmp_path / "one.json"), T)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "no pose"),
        ("{", "no pose"),
        ("1 2 3\n", r"shape \(1, 3\)"),
        ("a b c d\n", "no pose"),
        ('[{"T_target_source": 1}, {"T_target_source": 2}]', "it holds 2 poses"),
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
