"""`vbreg map build` describes a map once; `vbreg map locate` finds scans in it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer

from vbreg.cli.app import (
    CoordinatesOption,
    DeviceOption,
    QuietOption,
    VoxelSizeOption,
    examples,
)
from vbreg.cli.checks import check_inputs, tell_which_size_counts
from vbreg.cli.clock import load_torch
from vbreg.cli.console import collected_warnings, complain, print_row, stdout_console
from vbreg.cli.outputs import (
    Aligned,
    Outputs,
    align_each,
    doubts,
    leave,
    probable,
    write_clouds,
    write_poses,
)
from vbreg.cli.register import DescriptorOption, JsonOption, MinProbabilityOption, PresetOption
from vbreg.errors import VBRegError
from vbreg.progress import progress
from vbreg.types import PointCloud

if TYPE_CHECKING:
    from vbreg.maps import Map

NO_CLOUD = PointCloud(np.empty((0, 3)))  # in place of one that nobody needs
ONE_CLOUD = "one cloud, in its own frame"
MAX_NAMED = 5  # scans that do not connect
REMEDY = "it may lie elsewhere, or try more --candidates"  # where a pose is improbable

map_app = typer.Typer(
    help="Describe a map once, and find scans in it.",
    epilog=examples(
        "vbreg map build scans/ -o map.safetensors",
        "vbreg map locate map.safetensors scan.ply",
    ),
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
BUILD_EXAMPLES = examples(
    "vbreg map build scans/ -o map.safetensors      # with poses.txt in it, or all in one frame",
    "vbreg reconstruct scans/ --poses poses.json    # where poses are not known, then:",
    "vbreg map build scans/ --poses poses.json -o map.safetensors",
    "vbreg map build merged.ply -o map.safetensors --voxel-size 0.1",
)
LOCATE_EXAMPLES = examples(
    "vbreg map locate map.safetensors scan.ply",
    "vbreg map locate map.safetensors scan.ply -o scan_in_map.ply --min-probability 0.9",
    "vbreg map locate map.safetensors *.pcd --json - | jq '.[].T_target_source'",
)


def build(
    clouds: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER|FILE",
            help="A folder of clouds, with poses.txt (a row T_map_cloud of 12 or 16 numbers each), "
            "with --poses, or already in one frame; or one merged cloud.",
        ),
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The map, .safetensors.")],
    poses: Annotated[
        Path | None,
        typer.Option(
            help="Poses of the clouds, .json of `vbreg reconstruct` (its largest component becomes "
            "the map), or a file like poses.txt. Left out: poses.txt in the folder."
        ),
    ] = None,
    voxel_size: VoxelSizeOption = None,
    preset: PresetOption = None,
    descriptor: DescriptorOption = "learned",
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Describe a map of one or many clouds, and save it."""
    placed = _placed_clouds(clouds, poses)
    files = placed.files
    if output.suffix != ".safetensors" or not output.absolute().parent.is_dir():
        raise VBRegError(f"-o {output}: expected a .safetensors file in a folder that exists")
    tell_which_size_counts(voxel_size, preset)
    if placed.doubt:
        complain("warning", placed.doubt)
    start = time.perf_counter()
    with progress(quiet) as stage:
        stage("start torch")
        from vbreg.maps import Map

        found = Map.build(
            files,
            placed.poses,
            voxel_size=voxel_size,
            preset=preset,
            descriptor=descriptor,
            device=device,
            names=[path.name for path in files],
            on_done=lambda count: stage("describe", count, len(files)),
        )
        found.save(output)
    if not quiet:
        console = stdout_console()
        keypoints = sum(map(len, found.fragments))
        print_row(console, "clouds", placed.counted)
        print_row(console, "fragments", str(len(found)))
        print_row(console, "poses", placed.told)
        print_row(console, "keypoints", str(keypoints))
        print_row(console, "voxel size", f"{found.scale.voxel_size:g}")
        print_row(console, "seconds", f"{time.perf_counter() - start:.1f}")
        print_row(console, "wrote", f"{output} ({output.stat().st_size / 2**20:.1f} MB)")


def locate(
    map_path: Annotated[Path, typer.Argument(metavar="MAP", help="What `vbreg map build` wrote.")],
    scans: Annotated[list[Path], typer.Argument(metavar="SCAN...", help="Clouds to find in it.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="Write the whole scan in the map's frame: a file, or a folder, as for several "
            "scans.",
        ),
    ] = None,
    json_path: JsonOption = None,
    coordinates: CoordinatesOption = None,
    candidates: Annotated[
        int, typer.Option(min=1, help="Fragments that a scan is registered to, at most.")
    ] = 5,
    min_probability: MinProbabilityOption = None,
    descriptor: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="What the map was described by, where its weights file lies elsewhere now.",
        ),
    ] = None,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Find the pose of each scan in a map."""
    several = len(scans) > 1
    outputs = Outputs(
        *(output, None, None, None, None, json_path, coordinates, quiet), roles=("SCAN", "MAP")
    )
    check_inputs(*scans)
    outputs.check(scans, map_path)
    with progress(quiet) as stage:
        stage("start torch")
        start = load_torch()
        from vbreg.maps import Map

        stage("read map")
        begin = time.perf_counter()
        place = Map.load(map_path, device=device, descriptor=descriptor)
        loading = time.perf_counter() - begin

        def find(path: Path) -> Aligned:
            stage(f"locate {path.name}")
            return _located(place, path, candidates, loading, outputs.need_clouds)

        found = align_each(scans, find)
    failed, kept = len(found) < len(scans), found
    if found:
        failed |= not write_poses(outputs, found, map_path, several=several, start=start)
        kept = probable(outputs, found, min_probability, several)
        failed |= not write_clouds(outputs, kept, NO_CLOUD, several)
    leave(failed=failed, improbable=len(kept) < len(found))


def _located(place: Map, path: Path, candidates: int, loading: float, need_cloud: bool) -> Aligned:
    """Find a scan in the map, and collect the warnings on the way."""
    from vbreg import io

    start = time.perf_counter()
    with collected_warnings() as said:
        cloud = io.read(path) if need_cloud else NO_CLOUD
        result = place.locate(cloud if need_cloud else path, candidates=candidates)
    timings = {"read map": loading, "locate": time.perf_counter() - start}
    return Aligned(path, cloud, result, timings, [*said, *doubts(result, REMEDY)])


class PlacedClouds(NamedTuple):
    """The files of a map, their poses, and where these come from, in words."""

    files: list[Path]
    poses: Any  # (K, 4, 4); None where the clouds are in one frame already
    told: str
    doubt: str = ""  # what is taken for granted
    apart: Sequence[str] = ()  # names of scans that do not connect to these

    @property
    def counted(self) -> str:
        """The number of clouds, and those that are left out since they do not connect."""
        if not self.apart:
            return str(len(self.files))
        more = len(self.apart) - MAX_NAMED
        named = [*self.apart[:MAX_NAMED], *([f"{more} more"] if more > 0 else [])]
        verb = "does" if len(self.apart) == 1 else "do"
        every = len(self.files) + len(self.apart)
        return f"{len(self.files)} of {every}; {_listed(named)} {verb} not connect"


def _listed(names: Sequence[str]) -> str:
    """Return names as a sentence lists them."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _placed_clouds(path: Path, given: Path | None) -> PlacedClouds:
    """Find the files of a map and their poses."""
    if not path.is_dir():
        check_inputs(path)
        if given is not None:
            raise VBRegError(f"--poses {given}: {path} is one cloud; poses go with a folder")
        return PlacedClouds([path], None, ONE_CLOUD)
    from vbreg.datasets.folder import files_and_poses
    from vbreg.io.folders import POSES, cloud_files

    if given is not None and given.suffix.lower() == ".json":
        return _placed_by_reconstruction(path, given)
    if given is not None or (path / POSES).is_file():
        source = given or path / POSES
        return PlacedClouds(*files_and_poses(path, source), str(source))
    files = cloud_files(path)
    if not files:
        raise VBRegError(f"{path}: no clouds in this folder; `vbreg formats` lists their endings")
    if len(files) == 1:
        return PlacedClouds(files, None, ONE_CLOUD)
    doubt = (
        f"{path} has no {POSES}, and --poses is not given: all clouds are taken to be in one "
        f"frame; if they are not, run `vbreg reconstruct {path} --poses poses.json` first and give "
        "`--poses poses.json`"
    )
    return PlacedClouds(files, None, "none: all clouds are taken to be in one frame", doubt)


def _placed_by_reconstruction(folder: Path, path: Path) -> PlacedClouds:
    """Find the scans that a reconstruction put into its largest component."""
    from vbreg.scenes.outputs import read_scene_poses

    poses = read_scene_poses(path)
    if missing := [name for name in poses if not (folder / name).is_file()]:
        raise VBRegError(
            f"--poses {path}: {len(missing)} of its scans are not in {folder}, say {missing[0]}; "
            "give the folder that was reconstructed"
        )
    files = [folder / name for name in poses]
    scans = json.loads(path.read_text(encoding="utf-8"))["scans"]
    apart = [str(scan["name"]) for scan in scans if str(scan["name"]) not in poses]
    told = f"{path}, the largest component"
    return PlacedClouds(files, list(poses.values()), told, apart=apart)


map_app.command("build", epilog=BUILD_EXAMPLES)(build)
map_app.command("locate", epilog=LOCATE_EXAMPLES)(locate)
