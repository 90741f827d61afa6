"""Every layout gives the same pairs: names, clouds, direction, and what is known of them."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.datasets import layouts
from tests.datasets.layouts import NAMES, SCENE, within
from vbreg.datasets.threedmatch import read_log, threedmatch, threedmatch_training
from vbreg.errors import VBRegError

Writer = Callable[[Path], None]


def predator(folder: str, protocol: int = 4) -> Writer:
    def write(root: Path) -> None:
        layouts.pths(root / folder)
        layouts.write_pickle(root / "3DMatch.pkl", layouts.predator_list(), protocol)

    return write


def predator_with_the_list_beside(root: Path) -> None:
    layouts.pths(root / "data" / "indoor" / "test")
    layouts.write_pickle(root / "data" / "indoor" / "3DMatch.pkl", layouts.predator_list())


def predator_repository(root: Path) -> None:
    layouts.pths(root / "data" / "indoor" / "test")
    layouts.write_pickle(root / "configs" / "indoor" / "3DMatch.pkl", layouts.predator_list())


def geotransformer(root: Path) -> None:
    layouts.pths(root / "data" / "test")
    layouts.write_pickle(root / "metadata" / "3DMatch.pkl", layouts.geotransformer_list())


LAYOUTS: dict[str, Writer] = {
    "ours": layouts.ours,
    "PointDSC": layouts.pointdsc,
    "archives": layouts.archives,
    "archives in fragments": lambda root: layouts.archives(root / "fragments"),
    "Predator": predator("data/indoor/test"),
    "Predator, shorter": predator("indoor/test"),
    "Predator, direct": predator("."),
    "Predator, protocol 2": predator("test", 2),
    "Predator, list beside": predator_with_the_list_beside,
    "Predator, repository": predator_repository,
    "GeoTransformer": geotransformer,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_pairs(tmp_path: Path, layout: str) -> None:
    LAYOUTS[layout](tmp_path)
    pairs = threedmatch(tmp_path)
    assert pairs.names == NAMES
    assert pairs.scenes == (SCENE, SCENE)
    for pair, (i, j) in zip(pairs, layouts.PAIRS, strict=True):
        assert (pair.scene, pair.ids) == (SCENE, (i, j))
        np.testing.assert_allclose(pair.source, layouts.fragments()[i], atol=1e-6)
        np.testing.assert_allclose(pair.target, layouts.fragments()[j], atol=1e-6)
        assert pair.source.dtype == np.float64
        assert within(pair, 1e-5) == 1.0  # source i goes to target j
        assert pair.descriptors is None
    assert [pair.consecutive for pair in pairs] == [True, False]


def test_what_only_some_lists_hold(tmp_path: Path) -> None:
    layouts.ours(tmp_path / "a")
    layouts.pointdsc(tmp_path / "b")
    predator("test")(tmp_path / "c")
    geotransformer(tmp_path / "d")
    known, bare, pickled, listed = (threedmatch(tmp_path / name)[1] for name in "abcd")
    assert known.information is not None
    np.testing.assert_allclose(known.information, layouts.information(0, 2))
    assert known.overlap == pickled.overlap == listed.overlap == 0.25
    assert bare.overlap is bare.information is pickled.information is None


@pytest.mark.parametrize("descriptor", ["fcgf", "fpfh"])
def test_descriptors_bring_their_points(tmp_path: Path, descriptor: str) -> None:
    layouts.pointdsc(tmp_path)
    for file in (tmp_path / "fragments" / SCENE).glob("*.ply"):
        file.unlink()  # who has the descriptors need not have the scans
    pair = threedmatch(tmp_path, descriptor=descriptor)[1]
    assert pair.descriptors is not None
    assert len(pair.source) == len(pair.target) == 50
    np.testing.assert_array_equal(pair.descriptors[0], layouts.features(0, 50))
    np.testing.assert_array_equal(pair.descriptors[1], layouts.features(2, 50))
    assert within(pair, 1e-5) == 1.0
    with pytest.raises(VBRegError, match=f"{tmp_path}.*cloud_bin_0_spinnet.npz"):
        threedmatch(tmp_path, descriptor="spinnet")[0]


def test_the_low_overlap_list_goes_with_any_fragments(tmp_path: Path) -> None:
    layouts.pointdsc(tmp_path)
    with pytest.raises(VBRegError, match="no 3DLoMatch in"):
        threedmatch(tmp_path, "3DLoMatch")
    layouts.write_pickle(tmp_path / "3DLoMatch.pkl", layouts.predator_list())
    assert threedmatch(tmp_path, "3DLoMatch").names == NAMES
    assert threedmatch(tmp_path, "3DLoMatch", "fcgf")[0].descriptors is not None


@pytest.mark.parametrize("listed", ["3DLoMatch.pkl", "gt.log", None])
def test_predators_features(tmp_path: Path, listed: str | None) -> None:
    """With a list they have names and go from i to j; without one they stay as they are."""
    layouts.predator_features(tmp_path / "3DLoMatch")
    if listed == "gt.log":
        layouts.write_gt_log(tmp_path / "configs" / "benchmarks" / "3DLoMatch" / SCENE)
    elif listed:
        layouts.write_pickle(tmp_path / listed, layouts.predator_list())
    pairs = threedmatch(tmp_path, "3DLoMatch")
    pair = pairs[1]
    assert pairs.names == (NAMES if listed else ("3DLoMatch/0", "3DLoMatch/1"))
    assert pair.ids == ((0, 2) if listed else None)
    assert within(pair, 1e-4) == 1.0
    assert pair.descriptors is not None
    assert pair.scores is not None
    source = 0 if listed else 2
    np.testing.assert_array_equal(pair.descriptors[0], layouts.features(source))
    np.testing.assert_allclose(pair.source, layouts.fragments()[source], atol=1e-6)
    np.testing.assert_allclose(pair.scores[0], 0.2 if listed else 0.1, rtol=1e-6)


def test_predators_features_beside_fragments_are_asked_for(tmp_path: Path) -> None:
    layouts.ours(tmp_path)
    assert threedmatch(tmp_path)[0].descriptors is None
    with pytest.raises(VBRegError, match=r"Predator's features: <n>\.pth"):
        threedmatch(tmp_path, descriptor="predator")
    layouts.predator_features(tmp_path)
    assert threedmatch(tmp_path)[0].descriptors is None
    found = threedmatch(tmp_path, descriptor="predator")[0]
    assert found.descriptors is not None
    assert found.information is not None


def test_features_of_another_list_are_refused(tmp_path: Path) -> None:
    layouts.predator_features(tmp_path)
    rows = {key: values[::-1] for key, values in layouts.predator_list().items()}
    layouts.write_pickle(tmp_path / "3DMatch.pkl", rows)
    with pytest.raises(VBRegError, match="not that of attic/0-2"):
        threedmatch(tmp_path)[0]
    layouts.write_pickle(tmp_path / "3DMatch.pkl", {k: v[:1] for k, v in rows.items()})
    with pytest.raises(VBRegError, match="only 1 pairs"):
        threedmatch(tmp_path)


class Hostile:
    """Unpickling this the usual way leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def test_a_hostile_list_is_refused_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    layouts.pths(tmp_path / "test")
    layouts.write_pickle(tmp_path / "3DMatch.pkl", {"src": [Hostile(mark)]})
    with pytest.raises(VBRegError, match=r"3DMatch\.pkl: refused .*system.*nothing in it was run"):
        threedmatch(tmp_path)
    assert not mark.exists()


def test_a_hostile_fragment_is_refused_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    predator("test")(tmp_path)
    torch.save(Hostile(mark), tmp_path / "test" / SCENE / "cloud_bin_1.pth")
    with pytest.raises(VBRegError, match=r"cloud_bin_1\.pth"):
        threedmatch(tmp_path)[0]
    assert not mark.exists()


@pytest.mark.parametrize(
    "held",
    [
        {"src": ["a"]},
        [{"pcd0": "test/a/cloud_bin_0.pth"}],
        {**layouts.predator_list(), "rot": [np.eye(2)] * 2},
        {**layouts.predator_list(), "src": ["test/cellar/cloud_bin_1.pth"] * 2},
        {**layouts.predator_list(), "trans": []},
        [1, 2],
        7,
    ],
)
def test_a_list_of_something_else_is_named(tmp_path: Path, held: object) -> None:
    layouts.pths(tmp_path / "test")
    layouts.write_pickle(tmp_path / "3DMatch.pkl", held)
    with pytest.raises(VBRegError, match=r"3DMatch\.pkl: expected lists src, tgt"):
        threedmatch(tmp_path)


def test_an_unknown_root_lists_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(VBRegError) as error:
        threedmatch(tmp_path, "3DLoMatch")
    message = str(error.value)
    for words in (
        str(tmp_path),
        "fragments: none, ground truth: 0 pairs",
        "benchmarks/3DLoMatch/<scene>/gt.log",
        "gt_result/<scene>-evaluation/gt.log",
        "data/indoor/test/<scene>/cloud_bin_<k>.pth",
        "metadata/3DLoMatch.pkl",
        "<n>.pth",
    ):
        assert words in message
    layouts.plys(tmp_path)
    with pytest.raises(VBRegError, match=rf"fragments: {tmp_path}, ground truth: 0 pairs"):
        threedmatch(tmp_path)


def test_missing_things_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(VBRegError, match=f"looked for {tmp_path}/none"):
        threedmatch(tmp_path / "none")
    with pytest.raises(VBRegError, match="3DMatch"):
        threedmatch(tmp_path, "4DMatch")  # type: ignore[arg-type]
    layouts.ours(tmp_path)
    (tmp_path / "fragments" / SCENE / "cloud_bin_1.npz").unlink()
    monkeypatch.chdir(tmp_path)
    pairs = threedmatch(".")  # the list is there, the cloud is missed when it is asked for
    with pytest.raises(VBRegError, match=rf"{tmp_path}/fragments/attic/cloud_bin_1\.npz.*\.ply"):
        pairs[0]


@pytest.mark.parametrize("text", ["0 1 3 1 0 0", "a b c", ""])
def test_a_broken_log(tmp_path: Path, text: str) -> None:
    (tmp_path / "gt.log").write_text(text)
    if text:
        with pytest.raises(VBRegError, match=f"{tmp_path}/gt.log.*19 numbers"):
            read_log(tmp_path / "gt.log")
    else:
        assert read_log(tmp_path / "gt.log") == []


@pytest.mark.parametrize("folder", [".", "threedmatch"])
def test_fcgf_training_set(tmp_path: Path, folder: str) -> None:
    place = tmp_path / folder
    place.mkdir(exist_ok=True)
    points = np.random.default_rng(0).uniform(size=(30, 3))
    for k in range(3):
        np.savez(place / f"attic@seq-01_00{k}.npz", pcd=points, color=points)
    names = [f"attic@seq-01_00{k}.npz" for k in range(3)]
    (place / "attic@seq-01-0.30.txt").write_text(
        f"{names[0]} {names[1]} 0.84\n{names[0]} {names[2]} 0.31\n\n"
    )
    (place / "attic@seq-01-0.50.txt").write_text(f"{names[0]} {names[1]} 0.84\n")
    pairs = threedmatch_training(tmp_path)
    assert pairs.names == ("attic@seq-01/0-1", "attic@seq-01/0-2")
    assert (pairs[1].overlap, pairs[1].ids, pairs[1].scene) == (0.31, (0, 2), "attic@seq-01")
    assert within(pairs[1], 1e-9) == 1.0
    np.testing.assert_array_equal(pairs[1].T_target_source, np.eye(4))
    assert len(threedmatch_training(tmp_path, 0.5)) == 1
    (place / "cellar-0.30.txt").write_text("what else\n")
    with pytest.raises(VBRegError, match=r"cellar-0.30.txt, line 1: 'what else'"):
        threedmatch_training(tmp_path)
    with pytest.raises(VBRegError, match=r"no \*-0.70.txt"):
        threedmatch_training(tmp_path, 0.7)


@pytest.mark.parametrize("benchmark", ["3DMatch", "3DLoMatch"])
def test_real_pairs_overlap_the_right_way_round(data_root: Path, benchmark: str) -> None:
    pairs = threedmatch(data_root / "3dmatch", benchmark)  # type: ignore[arg-type]
    low, high = (0.3, 1.0) if benchmark == "3DMatch" else (0.1, 0.3)
    for pair in pairs.select(every=len(pairs) // 8):
        assert pair.overlap is not None
        assert low - 0.02 < pair.overlap < high + 0.02
        assert pair.information is not None
        assert within(pair, 0.05) > 0.8 * pair.overlap
        assert pair.ids is not None
        assert pair.ids[0] < pair.ids[1]
    turned = pairs[0]
    object.__setattr__(turned, "T_target_source", np.linalg.inv(turned.T_target_source))
    assert within(turned, 0.05) < 0.5 * (turned.overlap or 0)
