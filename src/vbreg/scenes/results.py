"""What a reconstruction gives: poses, components, and what became of every edge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vbreg.scenes.joining import Join
from vbreg.scenes.sizes import SizeOrigin
from vbreg.types import LIKELY, Float64, Int64

MAX_LISTED = 10  # components whose sizes are told


def counted(count: int, noun: str) -> str:
    """Return a number and what is counted, in the plural where it takes one."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


@dataclass(frozen=True, eq=False)
class SceneEdge:
    """A pose between two scans, and what became of it."""

    source: int
    target: int
    T_target_source: Float64  # (4, 4)
    covariance: Float64  # (6, 6) as `Registration` has it
    probability: float  # that the pair alone gave it
    kept: bool
    error: float  # from the solved poses, in standard deviations; infinite between components
    distance: float  # that it moves points at most from where the solved poses have them; likewise
    allowed: float | None  # such a distance, if it was dropped for being further away
    triangles: int  # of kept edges, that it closes
    triangles_fit: int  # of these, that lead back to their start
    bridge: bool  # kept, and no loop confirms it
    guided: bool  # found again from where the graph says the pair lies
    cut: bool = False  # a bridge that further pairs across it refuted

    @property
    def dropped(self) -> bool:
        """Whether it is not used though it was probable by itself."""
        return not self.kept and self.probability >= LIKELY

    @property
    def doubt(self) -> str:
        """What speaks against the edge, in plain words; empty where nothing does."""
        if not self.kept:
            return f"{'dropped' if self.dropped else 'improbable, not used'}: {self._against}"
        if self.bridge:
            return "no loop confirms it"
        if self.triangles and self.triangles_fit < self.triangles / 2:
            return f"only {self.triangles_fit} of {self.triangles} triangles with it close"
        return ""

    @property
    def _against(self) -> str:
        """Why the edge is not kept."""
        if self.cut:
            return "further pairs across it were tried and do not fit"
        if not np.isfinite(self.error):
            return "it would join scans that nothing else joins"
        if self.allowed is not None:
            return (
                f"it moves points by up to {self.distance:.3g} from where the solved poses have "
                f"them, {self.allowed:.3g} is allowed (unit of the scans)"
            )
        return f"it contradicts the solved poses ({self.error:.1f} standard deviations)"


@dataclass(frozen=True, eq=False, repr=False)
class Reconstruction:
    """The poses of scans, in components, and the evidence for them."""

    names: tuple[str, ...]  # of the K scans
    T_world_scan: Float64  # (K, 4, 4), each component in the frame of its first scan
    component: Int64  # (K,) 0 is the largest
    edges: tuple[SceneEdge, ...]
    similarity: Float64  # (K, K) by which pairs were chosen
    refused: tuple[Join, ...]  # joins of components that were too doubtful
    tried: tuple[tuple[int, int], ...]  # pairs that were registered, each once
    registrations: int  # of these pairs: some are tried again, from where the graph has them
    voxel_size: float
    refined: bool  # on the scans
    size_origin: SizeOrigin = "given"

    def __len__(self) -> int:
        return len(self.names)

    @property
    def components(self) -> list[list[int]]:
        """The numbers of the scans of each component, the largest first."""
        count = int(self.component.max(initial=-1)) + 1
        return [np.flatnonzero(self.component == c).tolist() for c in range(count)]

    @property
    def components_in_words(self) -> str:
        """How many components there are, and of how many scans, the largest first."""
        sizes = [len(members) for members in self.components]
        if len(sizes) == 1:
            return f"1: {counted(sizes[0], 'scan')}"
        if sizes[0] == 1:
            return f"{len(sizes)}: 1 scan each"
        *first, last = map(str, sizes[:MAX_LISTED])
        if len(sizes) == len(first) + 1:
            return f"{len(sizes)}: {', '.join(first)} and {last} scans"
        more = counted(len(sizes) - MAX_LISTED, "more component")
        return f"{len(sizes)}: {', '.join([*first, last])} scans and {more}"

    @property
    def pairs_in_words(self) -> str:
        """How many of all pairs were registered, and how many of these again."""
        possible = len(self) * (len(self) - 1) // 2
        share = 100 * len(self.tried) / possible
        again = self.registrations - len(self.tried)
        said = f"{len(self.tried)} of {possible} registered ({share:.0f} %)"
        return f"{said}, {again} of them again" if again else said

    @property
    def edges_in_words(self) -> str:
        """How many edges were kept, and how many of the others were probable by themselves."""
        kept = sum(edge.kept for edge in self.edges)
        dropped = sum(edge.dropped for edge in self.edges)
        improbable = len(self.edges) - kept - dropped
        said = f"{kept} kept, {dropped} dropped"
        return f"{said}, {improbable} improbable and not used" if improbable else said

    @property
    def doubtful(self) -> list[SceneEdge]:
        """The kept edges that something speaks against."""
        return [edge for edge in self.edges if edge.kept and edge.doubt]

    def __repr__(self) -> str:
        sizes = ", ".join(str(len(members)) for members in self.components[:8])
        kept = sum(edge.kept for edge in self.edges)
        return (
            f"Reconstruction({len(self)} scans, components of {sizes}"
            f"{', ...' if len(self.components) > 8 else ''}, {kept} edges kept, "
            f"{len(self.tried)} pairs tried)"
        )
