"""Fast point feature histograms (Rusu, Blodow, Beetz, ICRA 2009), batched over all pairs.

Two things differ from the usual implementations, both chosen on training scans: a pair votes for
the two nearest bins instead of one, and the histograms are compared by their square roots
(Hellinger), which keeps the few large bins of flat surfaces from drowning the others.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vbreg.backends.neighbors import radius_knn
from vbreg.errors import VBRegError
from vbreg.inputs import check_points

BINS = 11  # per angle
WIDTH = 3 * BINS  # numbers a point
MAX_CHUNK_PAIRS = 2**17
OWN_WEIGHT = 0.5  # of a point's own histogram beside the mean of its neighbours'
FIXED_POINT_ONE = 2**16  # fixed-point 1.0 of a vote's share
ONE_VOTE = 2**32  # one vote, above all the bits that the shares can fill, within a float64


def fpfh(points: Tensor, normals: Tensor, radius: float, max_neighbors: int = 100) -> Tensor:
    """Return FPFH (N, 33) of points (N, 3) with unit normals (N, 3); rows have length 1.

    Three histograms of 11 bins: the twist theta, then alpha and phi. Invariant to rigid motion.
    A point without neighbours gets the zero row.
    """
    check_points("normals", normals)
    if normals.shape != points.shape:
        raise VBRegError(
            f"normals have shape {tuple(normals.shape)} and points {tuple(points.shape)}: "
            "give one normal per point"
        )
    index, distance2, valid = radius_knn(points, None, radius, max_neighbors)
    if len(points) == 0:
        return points.new_zeros(0, WIDTH)
    valid = valid & (distance2 > 0)  # a pair needs a direction
    chunk = max(1, MAX_CHUNK_PAIRS // index.shape[1])
    normals = normals.to(points.dtype)
    own = points.new_zeros(len(points), WIDTH)
    for rows in torch.arange(len(points), device=points.device).split(chunk):
        own[rows] = _histograms(pair_angles(points, normals, rows, index[rows]), valid[rows]).to(
            points.dtype
        )
    weight = torch.where(valid, distance2, math.inf).rsqrt()  # (N, k) 1 / distance
    weight = weight / weight.sum(-1, keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny)
    mean = F.embedding_bag(index, own, mode="sum", per_sample_weights=weight)  # (N, 33)
    return F.normalize((mean + OWN_WEIGHT * own).sqrt(), dim=-1)


def pair_angles(points: Tensor, normals: Tensor, rows: Tensor, index: Tensor) -> Tensor:
    """Return theta / pi, alpha, phi of each pair (rows[n], index[n, k]) -> (3, n, k) in -1..1.

    The Darboux frame u, v, w stands on the point that is described. (Rusu puts it on that end of
    the pair whose normal lies closer to the line: on flat surfaces noise decides which.)
    Written with dot products only: with t the other normal, e the unit direction to it and
    s = |e x u|, v.t = e.(u x t) / s and w.t = (e.t - phi u.t) / s.
    """
    table = torch.cat([points, normals], dim=-1).T.contiguous()  # (6, N) by column: 3x the speed
    x, y, z, ux, uy, uz = table[:, rows, None]  # (n, 1) each
    qx, qy, qz, tx, ty, tz = table.index_select(1, index.reshape(-1)).reshape(6, *index.shape)
    ex, ey, ez = qx - x, qy - y, qz - z  # (n, k) each
    scale = (ex * ex + ey * ey + ez * ez).clamp_min(torch.finfo(points.dtype).tiny).rsqrt()
    phi = (ux * ex + uy * ey + uz * ez) * scale
    e_t = (tx * ex + ty * ey + tz * ez) * scale
    u_t = ux * tx + uy * ty + uz * tz
    triple = ex * (uy * tz - uz * ty) + ey * (uz * tx - ux * tz) + ez * (ux * ty - uy * tx)
    s = (1 - phi * phi).clamp_min(1e-12).sqrt()
    theta = torch.atan2((e_t - phi * u_t) / s, u_t)
    return torch.stack([theta / math.pi, triple * scale / s, phi]).clamp_(-1, 1)


def _histograms(angles: Tensor, valid: Tensor) -> Tensor:
    """Count angles (3, n, k) in -1..1 where valid (n, k) -> (n, 33); groups of 11 sum to 1 (or 0).

    Votes are whole numbers, so their sum is exact whatever the order of the pairs, on any device.
    One scatter carries both the count and the shares of the votes that straddle a boundary.
    """
    n = len(valid)
    place = (angles + 1) * (0.5 * BINS) + 0.5  # 0.5 .. 11.5, bin b has its middle at b + 1
    lower = place.floor()
    share = ((place - lower) * FIXED_POINT_ONE).floor()  # of the upper bin
    vote = (share.double() + ONE_VOTE) * valid  # (3, n, k)
    votes = vote.new_zeros(3, n, BINS + 1).scatter_add_(2, lower.long(), vote)
    count = (votes / ONE_VOTE).floor()
    upper = (votes - count * ONE_VOTE) / FIXED_POINT_ONE  # (3, n, 12)
    lower_sum = count - upper
    h = upper[..., :BINS] + lower_sum[..., 1:]  # (3, n, 11)
    # The outermost half votes: theta is an angle and wraps round, the cosines end there.
    h[0, :, -1] += lower_sum[0, :, 0]
    h[0, :, 0] += upper[0, :, -1]
    h[1:, :, 0] += lower_sum[1:, :, 0]
    h[1:, :, -1] += upper[1:, :, -1]
    h = h / valid.sum(-1)[:, None].clamp_min(1)
    return h.transpose(0, 1).reshape(n, WIDTH)
