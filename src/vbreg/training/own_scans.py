"""Training on a user's own scans: what a folder must hold, and the plan that follows from it.

Scans are thinned once and copied below the folder of the run, some to train on and others to look
at only, so that what is read while a run goes on is small and known to be sound.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from vbreg import io
from vbreg.clouds import estimate_voxel_size, voxel_downsample
from vbreg.datasets.folder import files_and_poses
from vbreg.datasets.poses import inverse_pose
from vbreg.descriptors.choice import SHIPPED
from vbreg.descriptors.learned import load_descriptor
from vbreg.errors import VBRegError
from vbreg.frames import LocalCloud
from vbreg.io.folders import POSES
from vbreg.io.meshes import read_triangles
from vbreg.metrics import overlap
from vbreg.scale import Scale
from vbreg.simulator.places import MESH
from vbreg.training.config import OptimizerConfig
from vbreg.training.descriptor_config import DescriptorTrainConfig
from vbreg.training.places import FRAGMENTS, GROUP, PlacesConfig
from vbreg.training.ready_places import MIN_OVERLAP, MIN_POINTS
from vbreg.types import Float64, Int64

MIN_SCANS = 4  # of a folder: two to train on, two to look at
MIN_SCENES = 3  # from which on whole scenes are held out
HELD_OUT_SHARE = 4  # one in so many scans, scenes or meshes is only looked at
LOOKED_AT = 4  # places of held-out scans, whose loss is logged
WORKERS: int | None = None  # processes that make places; none given: one less than there are cores
SAMPLED_SCANS = 8  # of the first scene, whose voxel sizes are estimated
MESH_ENDINGS = (".npz", ".ply", ".obj", ".stl", ".glb", ".off")
MESH_EXTENT = (1.0, 1000.0)  # metres that a mesh may be wide
NEEDED = (
    f"clouds with {POSES} beside them (a row T_world_cloud for every cloud, in the order of the "
    "numbers in their names), folders of these, or meshes in metres with z up "
    f"({', '.join(MESH_ENDINGS)})"
)
Say = Callable[[str], None]


@dataclass(frozen=True)
class OwnScans:
    """Scans that are ready to be trained on, and others that are only looked at."""

    train: PlacesConfig
    look_at: PlacesConfig

    def plan(self, minutes: float) -> DescriptorTrainConfig:
        """Return the plan that trains the shipped descriptor on these scans."""
        return DescriptorTrainConfig(
            minutes=minutes,
            pairs=2,  # of a step: on a CPU ten minutes are few steps else
            precision="fp32",
            places_held=64,
            places_first=4,
            log_every=5,
            validate_every=50,
            start_from=SHIPPED,
            places=self.train,
            look_at=self.look_at,
            network=load_descriptor(SHIPPED).network.config,
            optimizer=OptimizerConfig(
                learning_rate=2e-4, weight_decay=1e-4, warmup_steps=10, ema=0.98
            ),
        )


@dataclass(frozen=True, eq=False)
class _ThinScan:
    """A scan about its middle, with one point for a quarter of the voxel size."""

    points: torch.Tensor  # (N, 3)
    T_scan_points: Float64  # (4, 4), from the middle to the frame of the file
    T_world_scan: Float64  # (4, 4), as the poses have it

    @property
    def T_world_points(self) -> Float64:
        """The pose of the points about their middle."""
        return self.T_world_scan @ self.T_scan_points


def prepare_scans(
    folder: Path, output: Path, voxel_size: float | None = None, say: Say = print
) -> OwnScans:
    """Check the scans or meshes of a folder and copy them, thinned, below `output`.

    The voxel size is estimated if none is given. A folder that nothing can be learned from is an
    error that says what is missing.
    """
    if not folder.is_dir():
        raise VBRegError(f"--scans {folder}: no such folder; expected {NEEDED}")
    scenes = [path.parent for path in (folder / POSES, *sorted(folder.glob(f"*/{POSES}")))]
    scenes = [scene for scene in scenes if (scene / POSES).is_file()]
    if scenes:
        return _prepare_scenes(scenes, output, voxel_size, say)
    meshes = sorted(path for path in folder.iterdir() if path.suffix.lower() in MESH_ENDINGS)
    if not meshes:
        raise VBRegError(f"--scans {folder}: no {POSES} and no meshes in it; expected {NEEDED}")
    return _prepare_meshes(meshes, output, voxel_size, say)


def _prepare_scenes(
    scenes: Sequence[Path], output: Path, voxel_size: float | None, say: Say
) -> OwnScans:
    scale = Scale(voxel_size) if voxel_size is not None else _usual_scale(scenes[0])
    clouds = [_thin_scans(scene, scale) for scene in scenes]
    count = sum(map(len, clouds))
    say(f"{count} scans, folders: {len(scenes)}, voxel size {scale.voxel_size:g}")
    if count < MIN_SCANS:
        raise VBRegError(
            f"{count} scans with {MIN_POINTS} or more voxels of {scale.voxel_size:g}: expected at "
            f"least {MIN_SCANS}; add scans, or give a smaller --voxel-size"
        )
    train, held_out = _split(clouds)
    for what, part in (("to train on", train), ("to look at", held_out)):
        pairs = [_pairs(scene, scale) for scene in part]
        if not any(pairs):
            raise _no_overlap(part, scale, what)
        kept = [scene for scene, found in zip(part, pairs, strict=True) if found]
        scans = sum(map(len, kept))
        say(f"{what}: {scans} scans, {sum(pairs)} pairs that overlap by {MIN_OVERLAP:.0%} or more")
        _write_scenes(kept, output / ("train" if part is train else "held_out"))
    configs = [
        PlacesConfig(
            kinds=(FRAGMENTS,),
            weights=(1.0,),
            fragments=output / name,
            voxel_size=scale.voxel_size,
            workers=WORKERS,
            held_out=LOOKED_AT,
        )
        for name in ("train", "held_out")
    ]
    return OwnScans(*configs)


def _usual_scale(scene: Path) -> Scale:
    """Return the scale that suits the first scans of a scene."""
    files, _ = files_and_poses(scene)
    sizes = []
    for file in files[:SAMPLED_SCANS]:
        points = LocalCloud.of(file, str(file)).points
        sizes.append(estimate_voxel_size(points))
    if not sizes:
        raise VBRegError(f"{scene}: no clouds beside {POSES}; expected {NEEDED}")
    return Scale(float(np.median(sizes)))


def _thin_scans(scene: Path, scale: Scale) -> list[_ThinScan]:
    """Read the scans of a scene one by one, without those that are too small."""
    found = []
    for file, T_world_scan in zip(*files_and_poses(scene), strict=True):
        local = LocalCloud.of(file, str(file))
        if len(voxel_downsample(local.points, scale.voxel_size)) < MIN_POINTS:
            continue
        shift = np.eye(4)
        shift[:3, 3] = local.origin
        points = voxel_downsample(local.points, scale.detail_size / 2)
        found.append(_ThinScan(points, shift, T_world_scan))
    return found


def _split(
    scenes: list[list[_ThinScan]],
) -> tuple[list[list[_ThinScan]], list[list[_ThinScan]]]:
    """Hold out the last scenes or, where there are few, the last scans of each."""
    if len(scenes) >= MIN_SCENES:
        held_out = max(1, len(scenes) // HELD_OUT_SHARE)
        return scenes[:-held_out], scenes[-held_out:]
    train, look_at = [], []
    for scans in scenes:
        held_out = max(2, len(scans) // HELD_OUT_SHARE)
        train.append(scans[:-held_out])
        look_at.append(scans[-held_out:])
    return train, look_at


def _pairs(scans: Sequence[_ThinScan], scale: Scale) -> int:
    """Count the pairs of a scene, near each other in its order, that overlap enough."""
    thin = [voxel_downsample(scan.points, scale.voxel_size) for scan in scans]
    poses = [scan.T_world_points for scan in scans]
    count = 0
    for i in range(len(scans)):
        for j in range(i + 1, min(i + 3 * GROUP, len(scans))):
            T = torch.from_numpy(inverse_pose(poses[j]) @ poses[i])
            some = thin[i][:: 1 + len(thin[i]) // 1000]
            count += overlap(some, thin[j], T, 1.5 * scale.voxel_size) >= MIN_OVERLAP
    return count


def _no_overlap(scenes: list[list[_ThinScan]], scale: Scale, what: str) -> VBRegError:
    scans = sum(map(len, scenes))
    inverted = [
        [replace(scan, T_world_scan=inverse_pose(scan.T_world_scan)) for scan in scene]
        for scene in scenes
    ]
    if any(_pairs(scene, scale) for scene in inverted):
        hint = f"the inverses of the poses do: write T_world_cloud, cloud to world, to {POSES}"
    else:
        hint = "check that poses and clouds have the same unit and order, or add scans"
    return VBRegError(
        f"of {scans} scans {what} no two overlap by {MIN_OVERLAP:.0%} under the poses of {POSES}: "
        f"expected some that do; {hint}"
    )


def _write_scenes(scenes: Sequence[Sequence[_ThinScan]], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for k, scans in enumerate(scenes):
        scene = folder / f"scene_{k}"
        scene.mkdir(parents=True)
        for n, scan in enumerate(scans):
            np.savez(scene / f"cloud_{n}.npz", pcd=scan.points.numpy())
        poses = np.stack([scan.T_world_points.reshape(-1) for scan in scans])
        np.savetxt(scene / POSES, poses, fmt="%.17g")


def _prepare_meshes(
    files: Sequence[Path], output: Path, voxel_size: float | None, say: Say
) -> OwnScans:
    if voxel_size is not None:
        raise VBRegError(
            f"--voxel-size {voxel_size:g} with meshes: their scans are simulated, each at the "
            "voxel size of its sensor; leave it out"
        )
    held_out = len(files) // HELD_OUT_SHARE
    parts = {"train": files[: len(files) - held_out], "held_out": files[len(files) - held_out :]}
    say(f"{len(files)} meshes, {held_out} of them to look at only")
    if not held_out:
        parts["held_out"] = files
        say("few meshes: other scans of the same ones are looked at")
    for name, part in parts.items():
        shutil.rmtree(output / name, ignore_errors=True)
        (output / name).mkdir(parents=True)
        for k, file in enumerate(part):
            vertices, faces = _read_surface(file)
            np.savez(output / name / f"mesh_{k}.npz", vertices=vertices, faces=faces)
    return OwnScans(
        *(
            PlacesConfig(
                kinds=(MESH,),
                weights=(1.0,),
                meshes=output / name,
                workers=WORKERS,
                held_out=LOOKED_AT,
            )
            for name in parts
        )
    )


def _read_surface(file: Path) -> tuple[Float64, Int64]:
    """Read the corners (V, 3) and triangles (F, 3) of a mesh that may be scanned."""
    if file.suffix.lower() == ".npz":
        with np.load(file, allow_pickle=False) as data:
            missing = {"vertices", "faces"} - set(data.files)
            if missing:
                raise VBRegError(
                    f"{file} holds {', '.join(data.files)}: expected the arrays vertices (V, 3) "
                    "and faces (F, 3)"
                )
            vertices, faces = data["vertices"].astype(float), data["faces"].astype(int)
    elif file.suffix.lower() == ".ply":
        cloud = io.read(file)
        vertices = cloud.points
        faces = np.empty((0, 3), int) if cloud.faces is None else cloud.faces
    else:
        vertices, faces = read_triangles(file)
    if not len(faces):
        raise VBRegError(
            f"{file} has no faces: expected a mesh, or scans with {POSES} beside them; add that "
            "file if these are scans"
        )
    extent = float(np.ptp(vertices, axis=0).max())
    if not MESH_EXTENT[0] <= extent <= MESH_EXTENT[1]:
        raise VBRegError(
            f"{file} is {extent:g} wide: expected {MESH_EXTENT[0]:g} to {MESH_EXTENT[1]:g} metres; "
            "scale it to metres, with z up"
        )
    return vertices, faces
