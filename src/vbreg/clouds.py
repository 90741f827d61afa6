"""Point clouds before description: one point per voxel, normals, and the scale of it all.

Everything runs in the frame it is given: move clouds with large coordinates (UTM) near the origin
before converting them to float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from scipy.spatial import cKDTree
from torch import Tensor

from vbreg.backends.neighbors import MAX_CELLS, Neighbors, radius_knn
from vbreg.errors import VBRegError
from vbreg.inputs import check_points, positive_number
from vbreg.types import Bool, Float64

NORMAL_NEIGHBORS = 30  # at most, that give a normal
SPREADING_STEPS = 8  # averaging steps that find the side of a surface on which its surroundings lie
BEHIND_ALL = 2**62  # more than any number of a voxel
CENTROID_WEIGHT = 1e-3  # of the cloud's centroid in the same question, in radii
SURFACE_VOXELS = 4500  # that a cloud should have at its own voxel size
MIN_SURFACE_NEIGHBORS = 8  # of the 26 voxels around one, for it to lie within a sampled surface
MAX_OCCUPANCY = 0.75  # voxels per point above which a voxel is smaller than the spacing
MAX_VOXELS = 250_000  # of a cloud at an estimated size; `vbreg.matching` refuses a few more
WELL_SURROUNDED = 0.9  # quantile of how many others are near a point, as within a surface
LONE_SHARE = 0.35  # of that number, below which a point lies on no surface,
MIN_ON_SURFACE = 3  # and this number, itself included, which fixes a plane
PRUNING_ROUNDS = 8  # of taking away what only lone points lie near
THICK = 0.15  # share of the spread about a point that is along the normal; a third at the most
OUTLIER_NEIGHBORS = 16
OUTLIER_DEVIATIONS = 3.0
MAX_SCALE_SAMPLE = 200_000  # points that suffice to estimate the scale
SCALE_STEP = 2**0.5  # of a voxel size to the next that is tried
REACH_QUANTILE = 0.9  # of the distances from the middle that give the coarsest voxel size
MAX_REACH = 100.0  # times that distance, beyond which points do not count
MAX_SIZE_RATIO = 2.0  # of two clouds' own voxel sizes, up to which both count
GRIDS = (  # orientations of the grids that voxels are counted in; no axis is near another's
    ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    ((0.36, 0.48, -0.8), (-0.8, 0.6, 0.0), (0.48, 0.64, 0.6)),
    ((0.28, -0.96, 0.0), (0.576, 0.168, -0.8), (0.768, 0.224, 0.6)),
)


def voxel_downsample(points: Tensor, voxel_size: float) -> Tensor:
    """Return the mean of the points (N, 3) in each occupied voxel -> (M, 3), ordered by voxel."""
    return in_voxels(points, voxel_size).mean_points(points)


def in_voxels(points: Tensor, voxel_size: float) -> Voxels:
    """Return which voxel of that size each of the points (N, 3) lies in."""
    check_points("points", points)
    positive_number(voxel_size, "voxel_size")
    if len(points):
        check_width(points.amin(0), points.amax(0), voxel_size)
    return Voxels.of(points, voxel_size)


@dataclass(frozen=True, eq=False)
class Voxels:
    """Which points lie in one voxel: the points one voxel after the other."""

    order: Tensor  # (N,) rows of the points; those that are not real come last
    voxel: Tensor  # (N,) the number of the voxel of each of these rows, ascending
    count: Tensor  # () the number of voxels that hold real points

    @staticmethod
    def of(points: Tensor, voxel_size: float, real: Tensor | None = None) -> Voxels:
        """Return the voxels of points (N, 3), some of which are real (N,), without waiting."""
        if len(points) == 0:
            none = torch.zeros(0, dtype=torch.int64, device=points.device)
            return Voxels(none, none, none.sum())
        low = points if real is None else points.masked_fill(~real.unsqueeze(-1), torch.inf)
        key = _voxel_keys(points, voxel_size, low.amin(0))
        if real is not None:  # every other point has a voxel of its own, behind all of these
            key = torch.where(real, key, BEHIND_ALL + torch.arange(len(key), device=key.device))
        ordered, order = key.sort(stable=True)
        voxel = F.pad((ordered[1:] != ordered[:-1]).cumsum(0), (1, 0))
        count = voxel[-1] + 1
        return Voxels(order, voxel, count if real is None else count - (~real).sum())

    def means(self, part: Tensor) -> Tensor:
        """Return the means of rows (N, C) in each voxel -> (N, C), for `count` voxels."""
        if len(part) == 0:
            return part
        row = torch.arange(len(part), device=part.device)
        first = torch.full_like(row, len(part)).scatter_reduce_(0, self.voxel, row, "amin")
        # Bags rather than a scatter: float atomics on a GPU would make the mean depend on luck.
        return F.embedding_bag(self.order, part, first, mode="mean")

    def mean_points(self, points: Tensor) -> Tensor:
        """Return the mean of the points (N, 3) in each voxel -> (M, 3)."""
        return self.means(points.double())[: int(self.count)].to(points.dtype)

    def index(self) -> Tensor:
        """Return the number of the voxel that each point lies in -> (N,) int64."""
        return torch.empty_like(self.voxel).scatter_(0, self.order, self.voxel)


def voxel_index(points: Tensor, voxel_size: float) -> Tensor:
    """Return the row of `voxel_downsample` that each point (N, 3) went into -> (N,) int64."""
    return in_voxels(points, voxel_size).index()


class VoxelMeans:
    """The mean of the points in each occupied voxel, of points that come block by block.

    It equals `voxel_downsample` of all of them at once, up to the order of summation, and takes
    the memory of the voxels and of one block.
    """

    def __init__(self, voxel_size: float, low: Tensor, high: Tensor) -> None:
        """Take the least and the largest coordinates (3,) of all points that will come."""
        self.voxel_size = positive_number(voxel_size, "voxel_size")
        check_width(low, high, voxel_size)
        self.low = low
        self.key = torch.zeros(0, dtype=torch.int64)  # (M,) ascending
        self.sum = torch.zeros(0, 4, dtype=torch.float64)  # (M, 4) of points, and their number

    def add(self, points: Tensor) -> None:
        """Take in a block of points (n, 3)."""
        check_points("points", points)
        if len(points) == 0:
            return
        every = _voxel_keys(points, self.voxel_size, self.low)
        key, voxel = torch.unique(every, return_inverse=True)
        one = torch.ones(len(points), 1, dtype=torch.float64)
        rows = torch.cat([points.double(), one], dim=1)
        total = torch.zeros(len(key), 4, dtype=torch.float64).index_add_(0, voxel, rows)
        at = torch.searchsorted(self.key, key)
        here = at < len(self.key)
        known = here.clone()
        known[here] = self.key[at[here]] == key[here]
        self.sum.index_add_(0, at[known], total[known])
        if not bool(known.all()):
            key, order = torch.cat([self.key, key[~known]]).sort()
            self.key, self.sum = key, torch.cat([self.sum, total[~known]])[order]

    def points(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the means (M, 3), ordered by voxel."""
        return (self.sum[:, :3] / self.sum[:, 3:]).to(dtype)


def normals(
    points: Tensor,
    radius: float,
    max_neighbors: int = NORMAL_NEIGHBORS,
    *,
    viewpoint: Tensor | None = None,  # (3,) from which all points were seen
    neighbors: Neighbors | None = None,  # as `radius_knn` finds them, where that is done
    spread: Tensor | None = None,  # as `covariances` tells it, where that is done
    real: Tensor | None = None,  # (N,) which of the points count; left out, all do
) -> Tensor:
    """Return unit normals (N, 3) of points (N, 3): the least principal axis round each.

    The sign points to the viewpoint. If none is given, it points to the side on which the
    surroundings lie (the inside of a room, the hollow of a bend), so a rotated cloud has rotated
    normals; where nothing in reach bends, the cloud's centroid decides. A point with fewer than
    three neighbours gets some unit vector.
    """
    if neighbors is None:
        neighbors = radius_knn(points, None, radius, max_neighbors)
    if len(points) == 0:
        return points
    centroid = mean_of(points.double(), real)
    x = points.double() - centroid  # (N, 3)
    spread = covariances(points, neighbors, real) if spread is None else spread
    n = smallest_eigenvectors(spread)
    if viewpoint is None:
        side = _surroundings(x, neighbors) - x + CENTROID_WEIGHT * radius * F.normalize(-x, dim=-1)
    else:
        side = viewpoint.to(x) - centroid - x
    n = torch.where((n * side).sum(-1, keepdim=True) < 0, -n, n)
    return n.to(points.dtype)


def mean_of(rows: Tensor, real: Tensor | None = None) -> Tensor:
    """Return the mean of rows (N, ...), or of those that are real (N,)."""
    if real is None:
        return rows.mean(0)
    weight = real.to(rows.dtype) / real.sum().clamp_min(1)
    return torch.tensordot(weight, rows, dims=1)


def covariances(points: Tensor, neighbors: Neighbors, real: Tensor | None = None) -> Tensor:
    """Return the covariance (N, 3, 3) float64 of the neighbourhood of each point (N, 3).

    Where only some points are real (N,), no other is anybody's neighbour.
    """
    index, _, valid = neighbors
    x = points.double() - mean_of(points.double(), real)
    weight = valid.to(x.dtype) / valid.sum(-1, keepdim=True)  # (N, k)
    offset = (x[index] - x[:, None]) * weight[..., None].sqrt()  # (N, k, 3)
    mean = (offset * weight[..., None].sqrt()).sum(1)  # (N, 3)
    return offset.transpose(-1, -2) @ offset - mean[:, :, None] * mean[:, None, :]


def smallest_eigenvectors(A: Tensor) -> Tensor:
    """Return unit eigenvectors (N, 3) of the least eigenvalue of symmetric A (N, 3, 3).

    Where two least eigenvalues are equal the answer is some unit vector of their plane.
    """
    eye = torch.eye(3, dtype=A.dtype, device=A.device)
    mean = A.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    B = A - mean * eye
    scale = (B.square().sum((-1, -2)) / 6).sqrt()[:, None, None]  # (N, 1, 1)
    B = B / scale.clamp_min(torch.finfo(A.dtype).tiny)
    # The eigenvalues of B are 2 cos of three angles 120 degrees apart.
    det = (B[:, 0] * torch.linalg.cross(B[:, 1], B[:, 2])).sum(-1)
    angle = torch.arccos((det / 2).clamp(-1, 1)) / 3
    C = B - (2 * torch.cos(angle + 2 * math.pi / 3))[:, None, None] * eye  # rank 2
    crosses = torch.linalg.cross(C, C.roll(1, dims=-2))  # (N, 3, 3) each along the null space
    normal = _longest_row(crosses)
    # Rank 1 (points on a line): any direction across the line. Rank 0 (one point): any direction.
    line = F.normalize(_longest_row(C), dim=-1)
    across = torch.linalg.cross(line, eye[line.abs().argmin(-1)])
    small = torch.linalg.vector_norm(normal, dim=-1, keepdim=True) < 1e-6
    normal = torch.where(small, across, normal)
    tiny = torch.linalg.vector_norm(normal, dim=-1, keepdim=True) < 1e-6
    return F.normalize(torch.where(tiny, eye[2], normal), dim=-1)


def lone_points(
    neighbors: Neighbors, rounds: int = PRUNING_ROUNDS, real: Tensor | None = None
) -> Tensor:
    """Tell (N,) which points lie on no surface: far fewer others lie near them than near most.

    Points are one a voxel; `neighbors` are what `radius_knn` finds among them within two voxels or
    so. What has mostly lone points near it is alone as well, which is asked a few times over. Where
    only some points are real (N,), the others say nothing.
    """
    index, _, valid = neighbors
    alone = torch.zeros(len(index), dtype=torch.bool, device=index.device)
    if len(index) == 0:
        return alone
    company = valid.sum(-1)  # the point itself included
    counted = company.float()
    counted = counted if real is None else counted.masked_fill(~real, torch.nan)
    least = (LONE_SHARE * counted.nanquantile(WELL_SURROUNDED)).clamp_min(MIN_ON_SURFACE)
    for _ in range(rounds):
        alone = alone | (company < least)
        company = (valid & ~alone[index]).sum(-1)
    return alone


def in_volume(spread: Tensor, normals: Tensor) -> Tensor:
    """Tell (N,) which points lie in a volume and not on a surface.

    Others lie more than half as far along the normal as across it, in the mean.

    `spread` is what `covariances` tells, and `normals` (N, 3) are unit.
    """
    n = normals.to(spread)
    along = torch.einsum("ni,nij,nj->n", n, spread, n)
    return along > THICK * spread.diagonal(dim1=-2, dim2=-1).sum(-1)


def isolated_points(
    points: Float64, neighbors: int = OUTLIER_NEIGHBORS, deviations: float = OUTLIER_DEVIATIONS
) -> Bool:
    """Tell (N,) which of the points (N, 3) are not finite or lie apart from all others.

    A point lies apart if the mean distance to its nearest `neighbors` exceeds the mean of all such
    distances by so many standard deviations.
    """
    finite = np.asarray(np.isfinite(points).all(axis=1))
    apart = ~finite
    if finite.sum() > neighbors:
        kept = points[finite]
        nearest = cKDTree(kept, balanced_tree=False).query(kept, k=neighbors + 1)[0]
        distance = np.asarray(nearest)[:, 1:].mean(axis=1)  # column 0 is the point itself
        apart[finite] = distance > distance.mean() + deviations * distance.std()
    return apart


def estimate_voxel_size(source: Tensor, target: Tensor | None = None) -> float:
    """Return a voxel size that suits one or two clouds, by extent and spacing, to 2 digits.

    A cloud at its own size has about 4500 voxels on densely sampled surfaces, or as many as its
    spacing allows. Far, thinly sampled parts do not count, so a street scan keeps its detail. Of
    clouds whose own sizes differ much the smaller one counts: it may be an object, and the other
    the scene around it. The size does not fall below the spacing of either, nor so low that one has
    more voxels than are matched.
    """
    clouds = {"the cloud": source} if target is None else {"source": source, "target": target}
    sizes = []
    for name, points in clouds.items():
        check_points(name, points)
        if not len(points) or bool((points == points[0]).all()):
            raise VBRegError(
                f"the scale of {name} cannot be estimated from {len(points)} points "
                "without extent: give voxel_size"
            )
        sizes.append(_own_voxel_size(points))
    smaller, larger = min(size for size, _ in sizes), max(size for size, _ in sizes)
    size = smaller * math.sqrt(min(larger / smaller, MAX_SIZE_RATIO))
    size = max(size, max(spacing for _, spacing in sizes))
    for points in clouds.values():
        size = _at_most_voxels(points, size)
    return float(f"{size:.1e}")


def _at_most_voxels(points: Tensor, size: float) -> float:
    """Return the size, or a larger one at which points (N, 3) have no more than MAX_VOXELS."""
    if len(points) <= MAX_VOXELS:
        return size
    middle, reach = _middle_and_reach(points[:: math.ceil(len(points) / MAX_SCALE_SAMPLE)])
    near = points.double() - middle
    near = near[torch.linalg.vector_norm(near, dim=-1) <= MAX_REACH * reach]
    while (count := len(_occupied_cells(near, size)[0])) > MAX_VOXELS:
        size *= max(1.05, math.sqrt(count / MAX_VOXELS))  # voxels lie on surfaces
    return size


def _middle_and_reach(points: Tensor) -> tuple[Tensor, float]:
    """Return the middle (3,) of points (N, 3), and how far from it nearly all of them lie."""
    middle = points.double().median(0).values
    distance = torch.linalg.vector_norm(points.double() - middle, dim=-1)
    return middle, float(distance.quantile(REACH_QUANTILE)) or float(distance.amax())


def _own_voxel_size(points: Tensor) -> tuple[float, float]:
    """Return the voxel size for one cloud, and the least size that its spacing allows.

    Sizes are tried from coarse to fine. Nothing depends on how the cloud is turned: the coarsest
    size follows from distances, and voxels are counted in grids of several orientations.
    """
    points = points[:: math.ceil(len(points) / MAX_SCALE_SAMPLE)].double()
    middle, reach = _middle_and_reach(points)
    points = points - middle
    # Strays would make the grid too wide to count.
    points = points[torch.linalg.vector_norm(points, dim=-1) <= MAX_REACH * reach]
    size, least = reach / 4, 8 * float(points.abs().amax()) / MAX_CELLS
    turned = [points @ torch.tensor(R, dtype=points.dtype, device=points.device) for R in GRIDS]
    tried: list[tuple[float, float]] = []  # voxels on surfaces, size
    while True:
        counts = [_count_voxels(each, size) for each in turned]
        voxels = sum(count for count, _ in counts) / len(counts)
        on_surface = sum(count for _, count in counts) / len(counts)
        tried.append((on_surface, size))
        if voxels > MAX_OCCUPANCY * len(points) or on_surface >= SURFACE_VOXELS or size < least:
            break
        size /= SCALE_STEP
    spacing = size if voxels > MAX_OCCUPANCY * len(points) else 0.0
    most = max(count for count, _ in tried)
    wanted = SURFACE_VOXELS if most >= SURFACE_VOXELS else 0.9 * most
    at = next(k for k, (count, _) in enumerate(tried) if count >= wanted)
    return _size_between(tried[max(at - 1, 0)], tried[at], wanted), spacing


def _size_between(coarse: tuple[float, float], fine: tuple[float, float], wanted: float) -> float:
    """Return the size at which so many voxels lie on surfaces, log-linear between two sizes."""
    few, many = max(coarse[0], 1.0), max(fine[0], 1.0)
    if many <= few or wanted <= few:
        return fine[1]
    share = math.log(wanted / few) / math.log(many / few)
    return coarse[1] * (fine[1] / coarse[1]) ** share


def _count_voxels(points: Tensor, size: float) -> tuple[int, int]:
    """Count the voxels that hold points (N, 3), and those that lie within a sampled surface."""
    key, stride = _occupied_cells(points, size)
    step = torch.tensor([-1, 0, 1], device=points.device)
    column = key[:, None] + (step[:, None] * stride[0] + step * stride[1]).reshape(-1)  # (V, 9)
    above = torch.searchsorted(key, column + 1, right=True)
    around = (above - torch.searchsorted(key, column - 1)).sum(-1) - 1
    return len(key), int((around >= MIN_SURFACE_NEIGHBORS).sum())


def _occupied_cells(points: Tensor, size: float) -> tuple[Tensor, Tensor]:
    """Return the numbers (V,) of the voxels that hold points, ascending, and the strides (3,)."""
    cell = ((points - points.amin(0)) / size + 0.5).long() + 1  # (N, 3), an empty layer below
    _, ny, nz = (cell.amax(0) + 2).tolist()  # and one above
    stride = torch.tensor([ny * nz, nz, 1], device=points.device)
    return torch.unique((cell * stride).sum(-1)), stride


def _cells(points: Tensor, voxel_size: float, low: Tensor) -> Tensor:
    """Return the whole numbers (..., 3) of the voxels that points (..., 3) lie in, from `low` on.

    Half a voxel of margin keeps points on a regular lattice away from the voxels' faces.
    """
    return ((points - low) / voxel_size + 0.5).floor()


def check_width(low: Tensor, high: Tensor, voxel_size: float) -> None:
    """Raise where a cloud is so many voxels wide that they cannot be counted."""
    widest = float(_cells(high, voxel_size, low).amax()) + 1
    if not widest <= MAX_CELLS:
        raise VBRegError(
            f"voxel_size is {voxel_size:g}, but the cloud is {widest:.3g} such voxels wide: "
            f"expected at most {MAX_CELLS}; give a larger voxel_size or drop far outliers"
        )


def _voxel_keys(points: Tensor, voxel_size: float, low: Tensor) -> Tensor:
    """Return an integer (N,) per point, equal for points of one voxel, ascending in x, y, z.

    No point lies below `low` (3,), nor MAX_CELLS voxels above it.
    """
    x, y, z = _cells(points, voxel_size, low).long().unbind(-1)
    return (x * MAX_CELLS + y) * MAX_CELLS + z


def _surroundings(x: Tensor, neighbors: Neighbors) -> Tensor:
    """Return the mean (N, 3) of what surrounds each point, well beyond the neighbourhood."""
    index, _, valid = neighbors
    weight = valid.to(x.dtype) / valid.sum(-1, keepdim=True)
    for _ in range(SPREADING_STEPS):
        x = F.embedding_bag(index, x, mode="sum", per_sample_weights=weight)
    return x


def _longest_row(rows: Tensor) -> Tensor:
    """Return the longest (N, 3) of the rows (N, r, 3)."""
    longest = rows.square().sum(-1).argmax(-1)
    return rows[torch.arange(len(rows), device=rows.device), longest]
