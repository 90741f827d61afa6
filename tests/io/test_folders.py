"""Clouds of a folder: every format that is read, by number, and no file that only lies there."""

from pathlib import Path

from vbreg.io import cloud_files, natural_key


def test_clouds_are_listed_by_the_numbers_in_their_names(tmp_path: Path) -> None:
    listed = ["scan_2.PLY", "scan_9.ply", "scan_10.txt", "scan_010.ply", "readme_scan.ply"]
    others = [
        ".hidden.ply",
        "readme.md",
        "poses.txt",
        "scan.html",
        "readme.txt",
        "README_scans.TXT",
    ]
    others += ["LICENSE.txt", "licence.txt", "Changelog.csv"]
    for name in (*reversed(listed), *others):
        (tmp_path / name).touch()
    (tmp_path / "folder.ply").mkdir()
    found = [path.name for path in cloud_files(tmp_path)]
    assert sorted(found) == sorted(listed)
    assert [name for name in found if name.startswith("scan")][:2] == listed[:2]


def test_numbers_come_in_their_order() -> None:
    names = ["a2b", "a10b", "a10b3", "b", "b1"]
    assert sorted(reversed(names), key=natural_key) == names
