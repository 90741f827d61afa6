"""One door: every name opens its data set, anything else is told what there is."""

from pathlib import Path

import numpy as np
import pytest

from tests.datasets import layouts
from vbreg.datasets import KINDS, open_pairs
from vbreg.errors import VBRegError


def test_every_kind(tmp_path: Path) -> None:
    layouts.ours(tmp_path, "3DMatch")
    layouts.ours(tmp_path, "3DLoMatch")
    layouts.pointdsc(tmp_path / "other")
    np.savez(tmp_path / "drive3-pair0_11.npz", xyz0=np.eye(3), xyz1=np.eye(3), gt_trans=np.eye(4))
    (tmp_path / "attic-0.30.txt").write_text("a_0.npz a_1.npz 0.5\n")
    assert open_pairs("3dmatch", tmp_path).names == layouts.NAMES
    assert open_pairs("3DLoMatch", str(tmp_path)).names == layouts.NAMES
    assert open_pairs("3dmatch", tmp_path / "other", descriptor="fcgf")[0].descriptors is not None
    assert open_pairs("3dmatch-train", tmp_path).names == ("a/0-1",)
    assert open_pairs("kitti", tmp_path).names == ("03/0-11",)
    assert len(open_pairs("synthetic", count=4)) == 4


def test_a_folder(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", pcd=layouts.fragments()[0])
    np.savez(tmp_path / "b.npz", pcd=layouts.fragments()[0])
    np.savetxt(tmp_path / "poses.txt", np.tile(np.eye(4).reshape(16), (2, 1)))
    for kind in (tmp_path, str(tmp_path)):
        assert open_pairs(kind, radius=0.1).names == (f"{tmp_path.name}/0-1",)


def test_unknown_things_list_the_choices(tmp_path: Path) -> None:
    with pytest.raises(VBRegError, match="choose from " + ", ".join(KINDS)):
        open_pairs("4dmatch", tmp_path)
    with pytest.raises(VBRegError, match=r"kitti has no options \['every'\].*split.*refine"):
        open_pairs("kitti", tmp_path, every=3)
    with pytest.raises(VBRegError, match="3dmatch needs a root"):
        open_pairs("3dmatch")
