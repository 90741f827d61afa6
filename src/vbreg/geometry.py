"""Rigid motions. Pure, batched over leading dimensions, any float dtype, any device.

Frames stand in the names: `T_a_b` maps points of frame b into frame a, so that the inner names
cancel in `T_a_c = T_a_b @ T_b_c`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def from_rotation_translation(R: Tensor, t: Tensor) -> Tensor:
    """Join R (..., 3, 3) and t (..., 3) to T (..., 4, 4)."""
    top = torch.cat([R, t.unsqueeze(-1)], dim=-1)
    bottom = torch.zeros_like(top[..., :1, :])
    bottom[..., 0, 3] = 1.0
    return torch.cat([top, bottom], dim=-2)


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Return the rows index (B, K) of x (B, N, C)."""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def apply(T_a_b: Tensor, points_b: Tensor) -> Tensor:
    """Move points (..., N, 3) by T (..., 4, 4)."""
    return points_b @ T_a_b[..., :3, :3].transpose(-1, -2) + T_a_b[..., None, :3, 3]


def inverse(T_a_b: Tensor) -> Tensor:
    """Return T_b_a (..., 4, 4), using that the rotation's inverse is its transpose."""
    R_b_a = T_a_b[..., :3, :3].transpose(-1, -2)
    t_b_a = -(R_b_a @ T_a_b[..., :3, 3:]).squeeze(-1)
    return from_rotation_translation(R_b_a, t_b_a)


def procrustes(source: Tensor, target: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Fit the rigid motion that minimises sum_n w_n |R x_n + t - y_n|^2.

    source, target (..., N, 3), weights (..., N) >= 0 -> T (..., 4, 4), sound (...) bool.

    The rotation is proper (det +1). A set that does not determine one (fewer than three points
    with weight, collinear points, no weight at all) still gives a finite pose and `sound` False.
    """
    total = weights.sum(-1, keepdim=True)
    has_weight = total > 0
    w = torch.where(has_weight, weights / total.clamp_min(torch.finfo(weights.dtype).tiny), 0.0)
    mean_source = (w.unsqueeze(-1) * source).sum(-2, keepdim=True)  # (..., 1, 3)
    mean_target = (w.unsqueeze(-1) * target).sum(-2, keepdim=True)
    x, y = source - mean_source, target - mean_target
    H = x.transpose(-1, -2) @ (w.unsqueeze(-1) * y)  # (..., 3, 3)
    U, S, Vh = torch.linalg.svd(H)
    det = torch.linalg.det(U) * torch.linalg.det(Vh)
    sign = torch.stack([torch.ones_like(det), torch.ones_like(det), det.sign()], dim=-1)
    R = Vh.transpose(-1, -2) @ (sign.unsqueeze(-1) * U.transpose(-1, -2))  # V diag(1,1,det) U^T
    t = mean_target.squeeze(-2) - (R @ mean_source.transpose(-1, -2)).squeeze(-1)
    # Two directions must carry signal. The bound is relative to the spread of the points, well
    # above rounding, well below the thinnest plane that a scan can show.
    spread = (
        (w.unsqueeze(-1) * x.square()).sum((-1, -2)) * (w.unsqueeze(-1) * y.square()).sum((-1, -2))
    ).sqrt()
    sound = (
        has_weight.squeeze(-1)
        & (S[..., 1] > 100 * torch.finfo(S.dtype).eps * spread)
        & (spread > 0)
    )
    return from_rotation_translation(R, t), sound


def upright_procrustes(
    source: Tensor, target: Tensor, weights: Tensor, R_upright: Tensor, up: Tensor
) -> tuple[Tensor, Tensor]:
    """Fit the motion of four degrees of freedom: a turn about `up` after R_upright, and a shift.

    As `procrustes`; R_upright (3, 3) turns up in the source to `up` (3,) in the target. Points
    above each other do not say how far to turn: `sound` is then False.
    """
    total = weights.sum(-1, keepdim=True)
    has_weight = total > 0
    w = torch.where(has_weight, weights / total.clamp_min(torch.finfo(weights.dtype).tiny), 0.0)
    w = w.unsqueeze(-1)
    mean_source = (w * source).sum(-2, keepdim=True)  # (..., 1, 3)
    mean_target = (w * target).sum(-2, keepdim=True)
    x, y = (source - mean_source) @ R_upright.T, target - mean_target
    x, y = (p - (p @ up).unsqueeze(-1) * up for p in (x, y))  # what lies across up
    cosine = (w * x * y).sum((-1, -2))
    sine = (w * torch.linalg.cross(x, y)).sum(-2) @ up
    angle = torch.atan2(sine, cosine)[..., None, None]
    K = cross_matrix(up)
    turn = identity(3, K) + angle.sin() * K + (1 - angle.cos()) * (K @ K)  # Rodrigues
    R = turn @ R_upright
    t = mean_target.squeeze(-2) - (R @ mean_source.transpose(-1, -2)).squeeze(-1)
    spread = ((w * x.square()).sum((-1, -2)) * (w * y.square()).sum((-1, -2))).sqrt()
    signal = torch.hypot(sine, cosine) > 100 * torch.finfo(w.dtype).eps * spread
    return from_rotation_translation(R, t), has_weight.squeeze(-1) & signal & (spread > 0)


def cross_matrix(v: Tensor) -> Tensor:
    """Return the matrix (..., 3, 3) of the cross product with v (..., 3)."""
    x, y, z = v.unbind(-1)
    zero = torch.zeros_like(x)
    return torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=-1).unflatten(-1, (3, 3))


def identity(n: int, like: Tensor) -> Tensor:
    """Return the identity (n, n) in the precision of a tensor, made where it is.

    A GPU would wait for a copy from the host.
    """
    return torch.eye(n, dtype=like.dtype, device=like.device)


def rotation_of_vector(v: Tensor) -> Tensor:
    """Return the rotation (..., 3, 3) about v (..., 3) by its length (Rodrigues)."""
    angle = torch.linalg.vector_norm(v, dim=-1)[..., None, None]
    K = cross_matrix(v)
    half = torch.sinc(angle / (2 * math.pi))  # sin(angle / 2) / (angle / 2)
    return identity(3, v) + torch.sinc(angle / math.pi) * K + 0.5 * half.square() * (K @ K)


def vector_of_rotation(R: Tensor) -> Tensor:
    """Return the vector (..., 3) about which, and by whose length, R (..., 3, 3) turns.

    It is the inverse of `rotation_of_vector` for lengths up to pi, accurate at both ends.
    """
    (xx, xy, xz), (yx, yy, yz), (zx, zy, zz) = (row.unbind(-1) for row in R.unbind(-2))
    # Each row is the quaternion, scalar first, times four times one of its entries.
    rows = [
        1 + xx + yy + zz, zy - yz, xz - zx, yx - xy,
        zy - yz, 1 + xx - yy - zz, xy + yx, xz + zx,
        xz - zx, xy + yx, 1 - xx + yy - zz, yz + zy,
        yx - xy, xz + zx, yz + zy, 1 - xx - yy + zz,
    ]  # fmt: skip
    multiples = torch.stack(rows, dim=-1).unflatten(-1, (4, 4))
    largest = multiples.diagonal(dim1=-2, dim2=-1).argmax(-1)[..., None, None]
    q = multiples.gather(-2, largest.expand(*largest.shape[:-1], 4)).squeeze(-2)
    q = torch.where(q[..., :1] < 0, -q, q)
    sine = torch.linalg.vector_norm(q[..., 1:], dim=-1, keepdim=True)  # of half the angle, scaled
    angle = 2 * torch.atan2(sine, q[..., :1])
    return q[..., 1:] * angle / sine.clamp_min(torch.finfo(q.dtype).tiny)


def turn_between(a: Tensor, b: Tensor) -> Tensor:
    """Return the smallest rotation (3, 3) that turns the unit vector a (3,) to b (3,)."""
    axis, cosine = torch.linalg.cross(a, b), a @ b
    if float(cosine) < -1 + 1e-12:  # opposite: half a turn about anything across
        across = torch.linalg.cross(a, identity(3, a)[a.abs().argmin()])
        across = across / torch.linalg.vector_norm(across)
        return 2 * torch.outer(across, across) - identity(3, a)
    K = cross_matrix(axis)
    return identity(3, a) + K + K @ K / (1 + cosine)


def rotation_angle(R: Tensor) -> Tensor:
    """Return the angle of R (..., 3, 3) in radians, accurate near zero and near pi."""
    skew = torch.stack(
        [
            R[..., 2, 1] - R[..., 1, 2],
            R[..., 0, 2] - R[..., 2, 0],
            R[..., 1, 0] - R[..., 0, 1],
        ],
        dim=-1,
    )
    trace = R.diagonal(dim1=-2, dim2=-1).sum(-1)
    return torch.atan2(torch.linalg.vector_norm(skew, dim=-1), trace - 1.0)


def random_rotation(
    *batch: int,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Draw rotations (*batch, 3, 3), uniform over SO(3): normalised Gaussian quaternions."""
    q = torch.randn(*batch, 4, generator=generator, dtype=dtype, device=device)
    return quaternion_to_matrix(q / torch.linalg.vector_norm(q, dim=-1, keepdim=True))


def quaternion_to_matrix(q: Tensor) -> Tensor:
    """Return the rotation (..., 3, 3) of a unit quaternion (..., 4), scalar first."""
    w, x, y, z = q.unbind(-1)
    rows = [
        1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
        2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
        2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(rows, dim=-1).reshape(*q.shape[:-1], 3, 3)


def degrees(radians: Tensor) -> Tensor:
    """Convert angles to degrees."""
    return radians * (180.0 / math.pi)
