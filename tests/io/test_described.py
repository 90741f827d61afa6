from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from vbreg.errors import FileFormatError, VBRegError
from vbreg.io import StoredCloud, read_described_pair, read_descriptors

rng = np.random.default_rng(0)
POINTS = rng.normal(size=(20, 3))
FEATURES = rng.normal(size=(20, 32)).astype(np.float32)


def check(described: StoredCloud, rows: slice = slice(None)) -> None:
    assert described.points.dtype == np.float64
    assert described.features.dtype == np.float32
    assert len(described) == len(POINTS[rows])
    np.testing.assert_allclose(described.points, POINTS[rows], rtol=1e-6)
    np.testing.assert_array_equal(described.features, FEATURES[rows])


@pytest.mark.parametrize("points", ["points", "xyz"])
@pytest.mark.parametrize("features", ["feature", "features"])
def test_npz_names(tmp_path, points, features):
    np.savez(tmp_path / "a.npz", **{points: POINTS, features: FEATURES})
    check(read_descriptors(tmp_path / "a.npz"))


def test_npz_with_the_scan_beside_the_described_points(tmp_path):
    scan = rng.normal(size=(500, 3))
    np.savez(tmp_path / "a.npz", points=scan, xyz=POINTS, feature=FEATURES)
    check(read_descriptors(tmp_path / "a.npz"))
    np.savez(tmp_path / "b.npz", xyz=scan, points=POINTS, feature=FEATURES)
    check(read_descriptors(str(tmp_path / "b.npz")))


def test_plain_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", POINTS, FEATURES)
    check(read_descriptors(tmp_path / "a.npz"))
    np.save(tmp_path / "a.npy", np.concatenate([POINTS, FEATURES], axis=1))
    check(read_descriptors(tmp_path / "a.npy"))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("convert", [torch.from_numpy, np.asarray, np.asfortranarray])
def test_pth_of_tensors_or_arrays(tmp_path, convert, zipped):
    path = tmp_path / "a.pth"
    points, features = convert(POINTS), convert(FEATURES)
    for held in ({"xyz": points, "features": features, "scene": "kitchen"}, (points, features)):
        torch.save(held, path, _use_new_zipfile_serialization=zipped)
        check(read_descriptors(path))


@pytest.mark.parametrize("convert", [torch.from_numpy, np.asarray])
@pytest.mark.parametrize("length", [int, np.int64, np.int32, torch.tensor])
def test_predator_pair(tmp_path, convert, length):
    held = {
        "pcd": convert(POINTS),
        "feats": convert(FEATURES),
        "overlaps": convert(rng.uniform(size=20)),
        "saliency": convert(rng.uniform(size=20)),
        "len_src": length(12),
        "rot": convert(np.eye(3)),
        "trans": convert(np.zeros((3, 1))),
    }
    torch.save(held, tmp_path / "0.pth")
    source, target = read_described_pair(tmp_path / "0.pth")
    check(source, slice(12))
    check(target, slice(12, None))


def test_kitti_pair(tmp_path):
    np.savez(
        tmp_path / "drive8-pair0_11.npz",
        xyz0=POINTS[:12],
        xyz1=POINTS[12:],
        features0=FEATURES[:12],
        features1=FEATURES[12:],
        gt_trans=np.eye(4),
    )
    source, target = read_described_pair(tmp_path / "drive8-pair0_11.npz")
    check(source, slice(12))
    check(target, slice(12, None))
    with pytest.raises(FileFormatError, match="read_described_pair"):
        read_descriptors(tmp_path / "drive8-pair0_11.npz")


def test_numpy_pickles_of_either_generation(tmp_path):
    """numpy 2 renamed the module that its pickles name: files of both ages stay readable."""
    old, new = b"cnumpy.core.multiarray\n", b"cnumpy._core.multiarray\n"
    torch.save((POINTS, FEATURES), tmp_path / "a.pth", _use_new_zipfile_serialization=False)
    written = (tmp_path / "a.pth").read_bytes()
    assert old in written or new in written
    for one, other in ((old, new), (new, old)):
        (tmp_path / "b.pth").write_bytes(written.replace(one, other))
        check(read_descriptors(tmp_path / "b.pth"))


class Hostile:
    """Unpickling this leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle", "nested", "npz", "npy"])
@pytest.mark.parametrize("read", [read_descriptors, read_described_pair])
def test_a_hostile_file_raises_and_runs_nothing(tmp_path, kind, read):
    mark = tmp_path / "mark"
    hostile = Hostile(mark)
    path = tmp_path / {"npz": "a.npz", "npy": "a.npy"}.get(kind, "a.pth")
    objects = np.array([hostile], dtype=object)
    if kind in ("zip", "legacy"):
        torch.save(hostile, path, _use_new_zipfile_serialization=kind == "zip")
    elif kind == "pickle":
        path.write_bytes(pickle.dumps({"xyz": POINTS, "features": hostile}))
    elif kind == "nested":
        torch.save({"xyz": POINTS, "features": FEATURES, "more": [objects]}, path)
    elif kind == "npz":
        np.savez(path, xyz=POINTS, features=FEATURES, more=objects)
    else:
        np.save(path, objects)
    with pytest.raises(VBRegError, match=r"plain numeric arrays|never loaded"):
        read(path)
    assert not mark.exists()


def test_an_array_of_objects_in_a_pth_is_refused(tmp_path):
    torch.save({"xyz": POINTS, "features": np.array([[None]] * 20)}, tmp_path / "a.pth")
    with pytest.raises(VBRegError):
        read_descriptors(tmp_path / "a.pth")


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({"pcd": POINTS}, "holds pcd"),
        ({"xyz": POINTS, "features": FEATURES[:5]}, "expected (20, D)"),
        ({"xyz": POINTS[:, :2], "features": FEATURES}, "expected (N, 3)"),
        ({"xyz": POINTS, "features": FEATURES[:, 0]}, "features have shape (20,)"),
        ({"xyz": POINTS, "features": FEATURES.astype(str)}, "expected numbers"),
        ({"xyz": np.float64(1), "features": FEATURES}, "points have shape ()"),
        ({}, "no arrays"),
    ],
)
def test_errors_say_what_was_found(tmp_path, held, words):
    np.savez(tmp_path / "a.npz", **held)
    with pytest.raises(FileFormatError) as error:
        read_descriptors(tmp_path / "a.npz")
    assert words in str(error.value)
    assert str(tmp_path / "a.npz") in str(error.value)


@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.pth"])
@pytest.mark.parametrize("content", [b"", b"not an archive", None])
def test_broken_or_missing_files(tmp_path, name, content):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FileFormatError, match=name):
        read_descriptors(tmp_path / name)


def test_truncated_archives(tmp_path):
    np.savez(tmp_path / "a.npz", xyz=POINTS, features=FEATURES)
    torch.save({"xyz": POINTS, "features": FEATURES}, tmp_path / "a.pth")
    for name in ("a.npz", "a.pth"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(FileFormatError):
            read_descriptors(tmp_path / name)


def test_unknown_ending_lists_the_known(tmp_path):
    with pytest.raises(FileFormatError, match=r"\.ply.*\.npz, \.npy, \.pth"):
        read_descriptors(tmp_path / "a.ply")


@pytest.mark.parametrize("length", [-1, 21])
def test_a_pair_with_an_impossible_length(tmp_path, length):
    torch.save({"pcd": POINTS, "feats": FEATURES, "len_src": length}, tmp_path / "a.pth")
    with pytest.raises(FileFormatError, match=f"len_src is {length}"):
        read_described_pair(tmp_path / "a.pth")


def test_a_single_cloud_is_no_pair(tmp_path):
    np.savez(tmp_path / "a.npz", xyz=POINTS, features=FEATURES)
    with pytest.raises(FileFormatError, match="read_descriptors"):
        read_described_pair(tmp_path / "a.npz")
