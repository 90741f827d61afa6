"""A map that is described once and asked many times: where is this scan?

Fragments of the map lie in its frame, each with keypoints, descriptors and a surface. A query is
described, compared with all fragments by a cheap score, registered to the best few, and the most
probable pose is the answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from safetensors.torch import save_file
from torch import Tensor

from vbreg.descriptors import (
    DESCRIPTORS,
    Descriptor,
    DescriptorChoice,
    MatchingName,
    descriptor_named,
)
from vbreg.errors import FileFormatError, VBRegError
from vbreg.inputs import Cloud, check_whole_number
from vbreg.io import atomic_path
from vbreg.matching import (
    DescribedCloud,
    Keypoints,
    ThinnedSurface,
    describe,
    describe_points,
    match_clouds,
)
from vbreg.model import VBReg
from vbreg.motions import is_rigid
from vbreg.pair_problem import MIN_ALTERNATIVE
from vbreg.registrar import usual_viewpoint
from vbreg.scale import PresetName, Scale
from vbreg.scenes.retrieval import KeypointTable, keypoint_table, similarities_to
from vbreg.scenes.sizes import common_scale
from vbreg.streaming import local_cloud
from vbreg.types import Alternative, Float64, Registration
from vbreg.weights_file import FORMAT, checksum, read_weights

ENDING = ".safetensors"
CANDIDATES = 5  # fragments that a query is registered to
MAX_FRAGMENT = 20_000  # points at the working resolution; a larger cloud is cut into pieces
SHARED = 0.06  # of the points of a piece that both of its halves have
SAME_DEGREES, SAME_THRESHOLDS = 10.0, 3.0  # inlier thresholds: poses that agree are no rivals

OnDone: TypeAlias = Callable[[int], object]
SeenFrom: TypeAlias = Literal["origin", "unknown"]


@dataclass(frozen=True, eq=False)
class Map:
    """Fragments of a place in one frame, described, and the network that registers to them."""

    fragments: tuple[DescribedCloud, ...]  # in the frame of the map
    names: tuple[str, ...]
    scale: Scale
    descriptor: Descriptor
    viewpoint: SeenFrom  # of fragments and queries
    keypoints: Keypoints | None
    model: VBReg

    @staticmethod
    def build(
        clouds: Cloud | Sequence[Cloud],
        poses: Sequence[ArrayLike] | None = None,
        *,
        voxel_size: float | None = None,
        preset: PresetName | None = None,
        descriptor: DescriptorChoice = "learned",
        keypoints: Keypoints | None = None,
        names: Sequence[str] | None = None,
        model: VBReg | None = None,
        device: str = "auto",
        on_done: OnDone = lambda count: None,
    ) -> Map:
        """Describe a map: one merged cloud, or several with their poses T_map_cloud (4, 4).

        Without poses, all clouds are in the frame of the map. `voxel_size` is as in `register`;
        left out, the preset's, or estimated. A large cloud is cut into pieces that overlap.
        `on_done` is told how many clouds are described.
        """
        given = _several(clouds)
        placed = _checked_poses(poses, len(given))
        called = [f"{k}" for k in range(len(given))] if names is None else list(names)
        if len(called) != len(given):
            raise VBRegError(f"{len(called)} names for {len(given)} clouds: give one for each")
        compute = descriptor_named(descriptor)
        model = model or VBReg.from_pretrained(device=device)
        scale, _ = common_scale(given, called, voxel_size, preset)
        thinned = [
            _thinned(cloud, name, scale, preset, model.device)
            for cloud, name in zip(given, called, strict=True)
        ]
        viewpoint = _viewpoint(thinned, own_frames=poses is not None or len(given) == 1)
        options = {"descriptor": compute, "keypoints": keypoints, "viewpoint": viewpoint}
        fragments: list[DescribedCloud] = []
        owners: list[str] = []
        for k, (cut, T) in enumerate(zip(thinned, placed, strict=True)):
            pieces = [piece.moved(T) for piece in _described(cut, scale, options)]
            fragments += pieces
            owners += (
                [called[k]]
                if len(pieces) == 1
                else [f"{called[k]}#{number}" for number in range(len(pieces))]
            )
            on_done(k + 1)
        return Map(tuple(fragments), tuple(owners), scale, compute, viewpoint, keypoints, model)

    def __len__(self) -> int:
        """Return the number of fragments."""
        return len(self.fragments)

    def __repr__(self) -> str:
        count = sum(len(fragment) for fragment in self.fragments)
        return (
            f"Map({len(self)} fragments, {count} keypoints, voxel size {self.scale.voxel_size:g}, "
            f"descriptor {self.descriptor.name!r}, {self.model.device})"
        )

    @cached_property
    def table(self) -> KeypointTable:
        """What queries are compared with."""
        return keypoint_table(self.fragments)

    def ranked(self, query: DescribedCloud) -> list[tuple[str, float]]:
        """Return the names of all fragments and how alike a query is to each, the best first."""
        scores = similarities_to(query, self.table)
        order = scores.argsort(descending=True, stable=True).tolist()
        return [(self.names[k], float(scores[k])) for k in order]

    def describe(self, query: Cloud) -> DescribedCloud:
        """Describe a query as the fragments were."""
        return describe(
            query,
            self.scale,
            descriptor=self.descriptor,
            keypoints=self.keypoints,
            viewpoint=self.viewpoint,
            device=self.model.device,
        )

    def locate(
        self, query: Cloud | DescribedCloud, *, candidates: int = CANDIDATES
    ) -> Registration:
        """Find the pose of a query in the map: `T_target_source` is T_map_query.

        The query is registered to the `candidates` fragments that are most like it, and the most
        probable pose is returned. Where fragments disagree, as rooms that look alike make them,
        they share the probability, and the other poses are among the `alternatives`.
        """
        check_whole_number(candidates, "candidates", 1)
        described = query if isinstance(query, DescribedCloud) else self.describe(query)
        scores = similarities_to(described, self.table)
        order = scores.argsort(descending=True, stable=True)[:candidates].tolist()
        pairs, failure = [], VBRegError("")
        for k in order:
            try:
                pairs.append(match_clouds(described, self.fragments[k], self.scale))
            except VBRegError as error:  # too few matches with this one
                failure = error
        if not pairs:
            raise failure
        return _most_probable(self.model.solve_batch(pairs), described.origin)

    def save(self, path: str | Path) -> None:
        """Write the map to a file (.safetensors), all or nothing."""
        path = Path(path)
        if path.suffix != ENDING:
            raise FileFormatError(f"{path}: expected the ending {ENDING}")
        tensors = {name: tensor.contiguous() for name, tensor in _flat(self.fragments).items()}
        header = {
            "format": FORMAT,
            "map": {
                "voxel_size": self.scale.voxel_size,
                "descriptor": _said_of(self.descriptor),
                "fingerprint": self.descriptor.fingerprint,
                "matching": self.fragments[0].matching,
                "viewpoint": self.viewpoint,
                "keypoints": self.keypoints,
                "names": self.names,
            },
            "sha256": checksum(tensors),
        }
        with atomic_path(path) as temporary:
            save_file(tensors, str(temporary), metadata={"vbreg": json.dumps(header)})

    @staticmethod
    def load(
        path: str | Path,
        *,
        device: str = "auto",
        model: VBReg | None = None,
        descriptor: DescriptorChoice | None = None,
    ) -> Map:
        """Read a map that `save` wrote; it must have been described with the same weights.

        `descriptor` is needed where the map was described by a function of your own, or by a
        weights file that lies elsewhere now.
        """
        path = Path(path)
        if not path.is_file():
            raise FileFormatError(f"{path}: no such file; expected a map that vbreg wrote")
        if path.suffix != ENDING:
            raise FileFormatError(
                f"{path}: not a map ({ENDING}); build one first, with `vbreg map build "
                f"FOLDER|FILE -o map{ENDING}` or Map.build(...).save"
            )
        header, tensors = read_weights(path)
        about = _checked_header(path, header, tensors)
        compute = _descriptor_of(path, about, descriptor)
        model = model or VBReg.from_pretrained(device=device)
        fragments = [f.to(model.device) for f in _fragments(path, tensors, about["matching"])]
        if len(fragments) != len(about["names"]):
            raise FileFormatError(f"{path}: {len(fragments)} fragments; expected one for each name")
        return Map(
            tuple(fragments),
            tuple(about["names"]),
            Scale(about["voxel_size"]),
            compute,
            about["viewpoint"],
            about["keypoints"],
            model,
        )


def _most_probable(found: Sequence[Registration], middle: Float64) -> Registration:
    """Return the most probable pose of a query about its middle (3,), less what others have."""
    ranked = sorted(found, key=lambda each: (each.success_probability or 0.0, each.score))[::-1]
    best = ranked[0]
    near = SAME_THRESHOLDS * best.inlier_threshold

    def known(T: Float64, others: Sequence[Registration]) -> bool:
        return any(_same_place(T, other.T_target_source, middle, near) for other in others)

    others: list[Registration] = []
    for each in ranked[1:]:
        if not known(each.T_target_source, [best, *others]):
            others.append(each)
    odds = [_odds(each) for each in (best, *others)]
    shares = [share / (1 + sum(odds)) for share in odds]
    rivals = [
        Alternative(each.T_target_source, share)
        for each, share in zip(others, shares[1:], strict=True)
    ]
    # Its own alternatives lose as much as the best pose does to its rivals.
    less = shares[0] / (best.success_probability or 1.0)
    own = [
        Alternative(each.T_target_source, less * each.probability)
        for each in best.alternatives
        if not known(each.T_target_source, others)
    ]
    kept = [each for each in (*own, *rivals) if each.probability >= MIN_ALTERNATIVE]
    return replace(
        best,
        success_probability=shares[0],
        alternatives=tuple(sorted(kept, key=lambda each: -each.probability)),
    )


def _odds(found: Registration) -> float:
    p = min(found.success_probability or 0.0, 1 - 1e-9)
    return p / (1 - p)


def _same_place(one: Float64, other: Float64, middle: Float64, near: float) -> bool:
    """Tell whether two poses (4, 4) put a query, whose middle (3,) is given, to the same place."""
    R = one[:3, :3].T @ other[:3, :3]
    angle = np.degrees(np.arccos(np.clip((np.trace(R) - 1) / 2, -1, 1)))
    apart = (one - other) @ np.append(middle, 1.0)
    return bool(angle <= SAME_DEGREES and np.linalg.norm(apart) <= near)


def _several(clouds: Cloud | Sequence[Cloud]) -> list[Cloud]:
    """Return clouds as a list; rows of three numbers are one cloud."""
    if not isinstance(clouds, list | tuple):
        return [clouds]  # type: ignore[list-item]  # a sequence of another kind is an array
    first = clouds[0] if len(clouds) else None
    rows = isinstance(first, list | tuple) and all(isinstance(x, int | float) for x in first)
    return [clouds] if rows else list(clouds)


class _Thinned(NamedTuple):
    """A cloud at its working resolution, cut into pieces, about an origin of its own."""

    pieces: list[tuple[Tensor, Tensor]]  # points (N, 3) and their detail (F, 3)
    origin: Float64  # (3,)
    from_origin: bool  # whether its sensor was at the origin of its frame, as far as one can tell


def _thinned(
    cloud: Cloud, name: str, scale: Scale, preset: PresetName | None, device: torch.device
) -> _Thinned:
    """Read a cloud, and cut what is left of it at its working resolution."""
    local = local_cloud(cloud, f"cloud {name}")
    points, detail = local.thinned((scale.voxel_size, scale.detail_size), device)
    from_origin = usual_viewpoint(preset, local) == "origin"
    return _Thinned(list(_pieces(points, detail)), local.origin, from_origin)


def _viewpoint(clouds: Sequence[_Thinned], *, own_frames: bool) -> SeenFrom:
    """Return where the sensor was in the frame of each cloud, and so in that of a query.

    That is their origin where every cloud is one scan in a frame of its own. Clouds of one frame
    are not, and one that is cut into pieces is taken for several scans that were merged.
    """
    scans = own_frames and all(cloud.from_origin and len(cloud.pieces) == 1 for cloud in clouds)
    return "origin" if scans else "unknown"


def _described(cloud: _Thinned, scale: Scale, options: dict[str, Any]) -> Iterator[DescribedCloud]:
    """Yield the pieces of a cloud, described, each about its own middle."""
    for some, fine in cloud.pieces:
        middle = some.mean(0)
        origin = cloud.origin + middle.double().cpu().numpy()
        yield describe_points(some - middle, origin, scale, detail=fine - middle, **options)


def _checked_poses(poses: Sequence[ArrayLike] | None, count: int) -> Float64:
    """Return poses (K, 4, 4)."""
    if count == 0:
        raise VBRegError("a map of no clouds: give at least one")
    if poses is None:
        return np.repeat(np.eye(4)[None], count, axis=0)
    try:
        given = np.asarray(poses, dtype=np.float64)
    except (TypeError, ValueError):
        given = np.empty(0)
    if given.shape != (count, 4, 4) or not np.isfinite(given).all():
        raise VBRegError(
            f"poses of shape {given.shape} for {count} clouds: expected a pose T_map_cloud (4, 4) "
            "for each"
        )
    rigid = is_rigid(given)
    if not rigid.all():
        k = int(rigid.argmin())
        raise VBRegError(
            f"pose {k} of {count} is no rotation and translation: it has determinant "
            f"{np.linalg.det(given[k, :3, :3]):.4g} and the last row {given[k, 3].tolist()}; "
            "expected poses that neither scale nor mirror, with 0 0 0 1 below"
        )
    return given


def _pieces(points: Tensor, detail: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Cut points (N, 3) and their detail (F, 3) into pieces of at most MAX_FRAGMENT points.

    A piece is halved across its longest side; both halves have the points nearest to the cut, a
    share of all, so that the pieces together have few more points than the cloud.
    """
    extent = points.amax(0) - points.amin(0)
    if len(points) <= MAX_FRAGMENT or not bool(extent.any()):
        yield points, detail
        return
    axis = int(extent.argmax())
    order = points[:, axis].argsort(stable=True)
    count = math.ceil((1 + SHARED) / 2 * len(points))
    for rows, side in ((order[:count], 1.0), (order[-count:], -1.0)):
        some = points[rows.sort().values]
        end = (side * some[:, axis]).amax()
        yield from _pieces(some, detail[side * detail[:, axis] <= end])


def _said_of(descriptor: Descriptor) -> dict[str, str]:
    """Return the kind and the name of a descriptor, as a map's file has them.

    A name alone may mean another descriptor where the file is read.
    """
    # `descriptor_named` wraps a function of the user's own, which has no network.
    own = descriptor.network is None and isinstance(descriptor.rows, partial)
    if not own and descriptor.name in DESCRIPTORS:
        return {"kind": "shipped", "name": descriptor.name}
    if descriptor.network is None:
        return {"kind": "function", "name": descriptor.name}
    return {"kind": "file", "name": str(Path(descriptor.name).absolute())}


def _descriptor_of(path: Path, about: dict[str, Any], given: DescriptorChoice | None) -> Descriptor:
    """Return the descriptor that a map in a file was described by."""
    kind, name = about["descriptor"]["kind"], about["descriptor"]["name"]
    if given is None and kind == "function":
        raise VBRegError(
            f"{path} was described by a function of your own, {name!r}: give it, "
            "Map.load(..., descriptor=...)"
        )
    if given is None and kind == "file" and not Path(name).is_file():
        raise VBRegError(
            f"{path} was described by the weights of {name}, which are not there: say where they "
            "are, Map.load(..., descriptor=...) or --descriptor"
        )
    compute = descriptor_named(name if given is None else given)
    other_kind = (_said_of(compute)["kind"] == "function") != (kind == "function")
    if other_kind or compute.fingerprint != about["fingerprint"]:
        what = "a function of your own" if kind == "function" else "other weights than those here"
        raise VBRegError(
            f"{path} was described by {name!r}, {what}, and not by {compute.name!r}: give what it "
            "was described by, build it again, or use the version of vbreg that wrote it"
        )
    return compute


PARTS = ("points", "normals", "descriptors", "surface", "surface_normals")


def _flat(fragments: Sequence[DescribedCloud]) -> dict[str, Tensor]:
    """Return all fragments as a few tensors, one after the other, and how long each is."""
    rows: dict[str, list[Tensor]] = {name: [] for name in PARTS}
    for fragment in fragments:
        assert fragment.normals is not None
        assert fragment.surface is not None
        parts = fragment.points, fragment.normals, fragment.descriptors, *fragment.surface
        for name, part in zip(PARTS, parts, strict=True):
            rows[name].append(part.float().cpu())
    counts = [[len(f), len(f.surface.points) if f.surface else 0] for f in fragments]
    return {
        **{name: torch.cat(parts) for name, parts in rows.items()},
        "counts": torch.tensor(counts),
        "origins": torch.from_numpy(np.stack([fragment.origin for fragment in fragments])),
    }


def _fragments(
    path: Path, tensors: dict[str, Tensor], matching: MatchingName
) -> Iterator[DescribedCloud]:
    """Yield the fragments of which `_flat` made tensors."""
    keypoints, surface = tensors["counts"].T.tolist()
    try:
        points, normals, descriptors = (tensors[name].split(keypoints) for name in PARTS[:3])
        places, sides = (tensors[name].split(surface) for name in PARTS[3:])
    except RuntimeError as error:
        raise FileFormatError(f"{path}: its tensors do not fit together ({error})") from error
    for k, origin in enumerate(tensors["origins"].double().numpy()):
        on_surface = ThinnedSurface(places[k], sides[k])
        yield DescribedCloud(points[k], normals[k], descriptors[k], origin, matching, on_surface)


def _checked_header(
    path: Path, header: dict[str, Any], tensors: dict[str, Tensor]
) -> dict[str, Any]:
    """Return what a file says about its map, if it holds one and is as it was written."""
    about = header.get("map")
    if not isinstance(about, dict) or set(tensors) != {*PARTS, "counts", "origins"}:
        raise FileFormatError(f"{path}: it holds no map; expected what `vbreg map build` wrote")
    if header.get("sha256") != checksum(tensors):
        raise FileFormatError(f"{path}: its checksum is wrong; get a fresh copy, or build it again")
    known = {"voxel_size", "descriptor", "fingerprint", "matching", "viewpoint", "keypoints"}
    as_known = set(about) == known | {"names"} and isinstance(about["descriptor"], dict)
    if not as_known or about["matching"] not in get_args(MatchingName):
        raise FileFormatError(f"{path}: a map of another version of vbreg; build it again")
    return about
