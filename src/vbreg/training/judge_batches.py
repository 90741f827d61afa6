"""What a judge is trained on: pairs that are matched and searched as `register` does.

Beside pairs that overlap there are such that do not, of one place or of two, mirrored ones, noise
and wrong voxel sizes. The candidates of each pair are labelled by the true pose.
Shapes: B pairs, C candidates, n keypoints of a cloud, N matches of a pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vbreg import backends
from vbreg.datasets.poses import inverse_pose
from vbreg.frames import Matches
from vbreg.geometry import (
    from_rotation_translation,
    identity,
    random_rotation,
    rotation_angle,
)
from vbreg.model import VBReg
from vbreg.refinement import refined, with_fewer_points
from vbreg.scale import INLIER_THRESHOLD
from vbreg.solver import Solution
from vbreg.surfaces import OrientedPoints, SurfacePair
from vbreg.training.ready_places import MIN_OVERLAP, DescribedScan, ReadyPlace
from vbreg.types import Float64
from vbreg.verification.evidence import (
    Candidates,
    Findings,
    View,
    candidates_of,
    evidence,
    view,
)
from vbreg.voting import seed_count

Kind = Literal["learned", "fpfh"]
KEYPOINTS: dict[Kind, tuple[int, ...]] = {"learned": (600, 1000, 1280), "fpfh": (1500, 4096)}
LEARNED_SHARE = 0.65  # of the batches; the others are matched by FPFH
# A pose that is right lies below both, in radians and voxels that suit the place; streets are
# scanned from afar, and 15 degrees would be nowhere near.
RIGHT, RIGHT_IN_STREETS = (math.radians(15.0), 6.0), (math.radians(5.0), 2.0)
MAX_SURFACE = 8192  # points of a cloud
STRANGERS = 0.12  # share of the pairs whose clouds are of two places
BY_OVERLAP = ((0.0, 0.1, 0.2), (0.1, 0.3, 0.45), (0.3, 1.01, 0.35))  # from, to, share of the pairs
TRUTH_SHOWN = 0.3  # share of the pairs without a right candidate that are given one
SLIP_ANGLE, SLIP_SHIFT = 0.03, 0.4  # of such a candidate: radians, voxels


class Drawn(NamedTuple):
    """A pair of scans, and the true pose if there is one."""

    source: DescribedScan
    target: DescribedScan
    T_target_source: Float64 | None  # (4, 4) in voxels
    within: tuple[float, float]  # radians and voxels, below which a pose is right
    usual: bool  # such as users have: overlapping, genuine, of a voxel size that suits


class TruePoses(NamedTuple):
    """The true poses of pairs, and when another pose counts as right."""

    T_target_source: Tensor  # (B, 4, 4) float64 in voxels
    known: Tensor  # (B,)
    within: Tensor  # (B, 2) radians and voxels

    def right(self, T: Tensor) -> Tensor:
        """Tell (B, C) which poses (B, C, 4, 4) in voxels are right."""
        truth = self.T_target_source[:, None]
        angle = rotation_angle(T[..., :3, :3].double() @ truth[..., :3, :3].mT)
        shift = (T[..., :3, 3] - truth[..., :3, 3]).norm(dim=-1)
        right = (angle < self.within[:, :1]) & (shift < self.within[:, 1:])
        return right & self.known[:, None]


class JudgeBatch(NamedTuple):
    """Findings on candidates, which of them are right, and what it takes to refine one of them."""

    evidence: Findings
    right: Tensor  # (B, C)
    shown: Tensor  # (B,) where the truth was put among the candidates
    candidates: Candidates
    views: tuple[View, View]
    surfaces: SurfacePair
    crowd: Tensor  # (B, N)
    confidence: Tensor  # (B, N)
    truth: TruePoses

    @torch.no_grad()
    def refined(self, chosen: Tensor) -> tuple[Findings, Tensor]:
        """Refine one candidate (B,) of each pair on the clouds -> the evidence, which are right."""
        rows = torch.arange(len(chosen), device=chosen.device)
        T = refined(
            with_fewer_points(self.surfaces), self.candidates.T_target_source[rows, chosen].double()
        )
        right = self.truth.right(T[:, None])[:, 0] & self.evidence.valid[rows, chosen]
        again = candidates_of(
            T[:, None], self.surfaces, self.crowd, self.confidence, best=self.candidates.best
        )
        return evidence(*self.views, again), right


def draw_pairs(
    places: Sequence[ReadyPlace[DescribedScan]], count: int, choice: np.random.Generator
) -> list[Drawn]:
    """Draw pairs of scans, of all overlaps alike, and some of two places."""
    drawn = []
    for _ in range(count):
        place, other = (places[int(choice.integers(len(places)))] for _ in range(2))
        if choice.random() < STRANGERS and other is not place:
            drawn.append(_strangers(place, other, choice))
            continue
        low, high, _ = BY_OVERLAP[
            int(choice.choice(len(BY_OVERLAP), p=[share for *_, share in BY_OVERLAP]))
        ]
        # Two scans that are both mirrored do fit, so that one end at least is genuine.
        pairs = [p for p in place.pairs if place.genuine[p.source] or place.genuine[p.target]]
        pairs = pairs or list(place.pairs)
        among = [pair for pair in pairs if low <= pair.overlap < high] or pairs
        pair = among[int(choice.integers(len(among)))]
        genuine = place.genuine[pair.source] and place.genuine[pair.target]
        ends = place.clouds[pair.source], place.clouds[pair.target]
        T = pair.T_target_source
        if choice.random() < 0.5:
            ends, T = (ends[1], ends[0]), inverse_pose(T)
        usual = genuine and place.unit == 1.0 and pair.overlap >= MIN_OVERLAP
        drawn.append(Drawn(*ends, T if genuine else None, _right_within(place), usual))
    return drawn


def _strangers(
    first: ReadyPlace[DescribedScan],
    second: ReadyPlace[DescribedScan],
    choice: np.random.Generator,
) -> Drawn:
    """Return scans of two places."""
    source, target = (
        place.clouds[int(choice.integers(len(place.clouds)))] for place in (first, second)
    )
    return Drawn(source, target, None, RIGHT, False)


def _right_within(place: ReadyPlace[DescribedScan]) -> tuple[float, float]:
    angle, shift = RIGHT_IN_STREETS if place.kind.startswith("street") else RIGHT
    return angle, shift * place.unit


@dataclass(frozen=True, eq=False)
class JudgeBatches:
    """Matches drawn pairs, searches their poses and gathers the evidence on them."""

    model: VBReg
    candidates: int
    looked_at: int

    @torch.no_grad()
    def __call__(
        self, drawn: Sequence[Drawn], choice: np.random.Generator, generator: torch.Generator
    ) -> JudgeBatch:
        """Return a batch of pairs, all matched by the same kind of descriptor."""
        kind: Kind = "learned" if choice.random() < LEARNED_SHARE else "fpfh"
        n = int(choice.choice(KEYPOINTS[kind]))
        sides = [pair.source for pair in drawn], [pair.target for pair in drawn]
        (source, source_rows), (target, target_rows) = (
            _keypoints(scans, kind, n, choice) for scans in sides
        )
        matches = match_batch(source, source_rows, target, target_rows, kind)
        solution = self._search(matches)
        truth = _truths(drawn, solution.T.device)
        valid = solution.candidate_score >= 0
        T, shown = _show_truth(solution.candidates, valid, truth, generator)
        valid[:, -1] |= shown
        surfaces = SurfacePair(
            _surface(sides[0]),
            _surface(sides[1]),
            matches.source * INLIER_THRESHOLD,
            matches.target * INLIER_THRESHOLD,
            matches.mask,
        )
        found = candidates_of(T, surfaces, solution.crowd, solution.confidence, valid)
        views = (
            view(source, source_rows, surfaces.source, target, target_rows, self._rows(source)),
            view(target, target_rows, surfaces.target, source, source_rows, self._rows(target)),
        )
        return JudgeBatch(
            evidence(*views, found),
            truth.right(found.T_target_source) & valid,
            shown,
            found,
            views,
            surfaces,
            solution.crowd,
            solution.confidence,
            truth,
        )

    def _search(self, matches: Matches) -> Solution:
        """Return candidates as `register` finds them, in voxels; an identity for none."""
        solver = self.model.solver
        solution = solver(
            matches,
            backends.choose(self.model.device),
            most_seeds=int(seed_count(matches.mask.sum(-1), solver.voting).max()),
            candidates=self.candidates,
        )
        none = (solution.candidate_score < 0)[..., None, None]
        T = torch.where(none, identity(4, solution.candidates), solution.candidates)
        T[..., :3, 3] *= INLIER_THRESHOLD
        return solution._replace(candidates=T)

    def _rows(self, keypoints: OrientedPoints) -> Tensor:
        """Return which keypoints are looked at: the first, since all lie in an order of chance."""
        most = min(self.looked_at, keypoints.points.shape[1])
        return torch.arange(most, device=keypoints.points.device)


def _keypoints(
    scans: Sequence[DescribedScan], kind: Kind, n: int, choice: np.random.Generator
) -> tuple[OrientedPoints, Tensor]:
    """Return n keypoints of each scan, from one on, and descriptors (B, n, D) of length 1."""
    counts = [len(getattr(scan, kind)) for scan in scans]
    firsts = [int(choice.integers(max(1, count - n + 1))) for count in counts]
    tables = [
        getattr(scan, kind)[first : first + n] for scan, first in zip(scans, firsts, strict=True)
    ]
    points, normals = (
        pad_sequence(
            [
                getattr(scan, name)[first : first + len(table)]
                for scan, first, table in zip(scans, firsts, tables, strict=True)
            ],
            batch_first=True,
        )
        for name in ("points", "normals")
    )
    described = F.normalize(pad_sequence(tables, batch_first=True).float(), dim=-1)
    return OrientedPoints(points, normals, described.any(-1)), described


def _surface(scans: Sequence[DescribedScan]) -> OrientedPoints:
    points, normals, real = (
        pad_sequence([part[:MAX_SURFACE] for part in parts], batch_first=True)
        for parts in (
            [scan.points for scan in scans],
            [scan.normals for scan in scans],
            [torch.ones_like(scan.points[:, 0], dtype=torch.bool) for scan in scans],
        )
    )
    return OrientedPoints(points, normals, real)


def match_batch(
    source: OrientedPoints,
    source_rows: Tensor,  # (B, n, D) descriptors
    target: OrientedPoints,
    target_rows: Tensor,
    kind: Kind,
) -> Matches:
    """Match keypoints as `register` does: either way by the learned descriptor, else one way."""
    similarity = source_rows @ target_rows.transpose(1, 2)
    both = source.real.unsqueeze(2) & target.real.unsqueeze(1)
    similarity = similarity.masked_fill_(~both, -2.0)
    there, back = similarity.argmax(2), similarity.argmax(1)
    i = torch.arange(there.shape[1], device=there.device).expand_as(there)
    j, kept = there, source.real & target.real.any(1, keepdim=True)
    if kind == "learned":
        every = torch.arange(back.shape[1], device=back.device).expand_as(back)
        new = (there.gather(1, back) != every) & target.real & source.real.any(1, keepdim=True)
        i, j = torch.cat([i, back], 1), torch.cat([j, every], 1)
        kept = torch.cat([kept, new], 1)
    ends = [
        (end.points.gather(1, rows.unsqueeze(-1).expand(-1, -1, 3)).double() / INLIER_THRESHOLD)
        * kept.unsqueeze(-1)
        for end, rows in ((source, i), (target, j))
    ]
    zero = np.zeros((len(i), 3))
    return Matches(ends[0], ends[1], kept, None, (zero, zero), 1.0)


def _truths(drawn: Sequence[Drawn], device: torch.device) -> TruePoses:
    T = np.stack([np.eye(4) if p.T_target_source is None else p.T_target_source for p in drawn])
    known = torch.tensor([p.T_target_source is not None for p in drawn], device=device)
    within = torch.tensor([p.within for p in drawn], device=device, dtype=torch.float64)
    return TruePoses(torch.from_numpy(T).to(device), known, within)


def _show_truth(
    T: Tensor, valid: Tensor, truth: TruePoses, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Put the true pose, slipped a little, in the last place of some pairs that lack it.

    T (B, C, 4, 4) in voxels, of which some are valid (B, C) -> the same, shown (B,).
    """
    lacks = ~(truth.right(T) & valid).any(-1) & truth.known
    shown = lacks & (torch.rand(len(T), generator=generator, device=T.device) < TRUTH_SHOWN)
    R = random_rotation(len(T), generator=generator, device=T.device, dtype=T.dtype)
    small = torch.matrix_exp(SLIP_ANGLE * (R - R.transpose(-1, -2)) / 2)
    shift = SLIP_SHIFT * torch.randn(len(T), 3, generator=generator, device=T.device, dtype=T.dtype)
    T_true = truth.T_target_source
    slipped = from_rotation_translation(small @ T_true[:, :3, :3], T_true[:, :3, 3] + shift)
    last = torch.where(shown[:, None, None], slipped, T[:, -1])
    return torch.cat([T[:, :-1], last.unsqueeze(1)], dim=1), shown
