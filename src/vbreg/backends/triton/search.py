"""The search, one kernel a step: non-maximum suppression, poses of sets, scores, refinement.

Each computes what the torch function of the same name in `voting`, `estimation` or `geometry`
computes. Poses are fitted in double precision by Horn's quaternion: the largest eigenvalue of a
symmetric 4 x 4 matrix by Newton's method from above, its eigenvector from the adjugate.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vbreg.backends.triton.beta import beta_of

BLOCK = 1024  # correspondences looked at together
MIN_EXTENT = (
    1e-10  # extent across a line of matches over that along it: below, rounding is all of it
)
SUPPRESSED_ROWS, SUPPRESSED_COLUMNS = 32, 128  # of a tile


@triton.jit
def _minors(a0, a1, a2, a3, b0, b1, b2, b3):
    """The six 2 x 2 minors of two rows of four."""
    return (
        a0 * b1 - b0 * a1, a0 * b2 - b0 * a2, a0 * b3 - b0 * a3,
        a1 * b2 - b1 * a2, a1 * b3 - b1 * a3, a2 * b3 - b2 * a3,
    )  # fmt: skip


@triton.jit
def _quaternion(xx, xy, xz, yx, yy, yz, zx, zy, zz):
    """(w, x, y, z), unit, of the rotation that turns a onto b best, given the sums of a_i b_j,
    whose squares sum to one."""
    n00, n01, n02, n03 = xx + yy + zz, yz - zy, zx - xz, xy - yx
    n11, n12, n13 = xx - yy - zz, xy + yx, zx + xz
    n22, n23 = yy - xx - zz, yz + zy
    n33 = zz - xx - yy
    s0, s1, s2, s3, s4, s5 = _minors(n00, n01, n02, n03, n01, n11, n12, n13)
    c0, c1, c2, c3, c4, c5 = _minors(n02, n12, n22, n23, n03, n13, n23, n33)
    constant = s0 * c5 - s1 * c4 + s2 * c3 + s3 * c2 - s4 * c1 + s5 * c0
    linear = -8.0 * (xx * (yy * zz - yz * zy) - xy * (yx * zz - yz * zx) + xz * (yx * zy - yy * zx))
    # e^4 - 2 e^2 + linear e + constant: convex and positive above its largest root.
    e = xx * 0.0 + 1.7320509  # the root of 3 is the most that it can be
    for _ in range(32):
        e2 = e * e
        slope = 4.0 * e * (e2 - 1.0) + linear
        value = e2 * (e2 - 2.0) + linear * e + constant
        e -= tl.where(slope > 1e-300, value / tl.maximum(slope, 1e-300), 0.0)
    m00, m11, m22, m33 = n00 - e, n11 - e, n22 - e, n33 - e
    s0, s1, s2, s3, s4, s5 = _minors(m00, n01, n02, n03, n01, m11, n12, n13)
    c0, c1, c2, c3, c4, c5 = _minors(n02, n12, m22, n23, n03, n13, n23, m33)
    # Columns of the adjugate are multiples of the eigenvector; the longest is the surest.
    w0 = m11 * c5 - n12 * c4 + n13 * c3
    x0 = -n01 * c5 + n12 * c2 - n13 * c1
    y0 = n01 * c4 - m11 * c2 + n13 * c0
    z0 = -n01 * c3 + m11 * c1 - n12 * c0
    w1 = -n01 * c5 + n02 * c4 - n03 * c3
    x1 = m00 * c5 - n02 * c2 + n03 * c1
    y1 = -m00 * c4 + n01 * c2 - n03 * c0
    z1 = m00 * c3 - n01 * c1 + n02 * c0
    w2 = n13 * s5 - n23 * s4 + m33 * s3
    x2 = -n03 * s5 + n23 * s2 - m33 * s1
    y2 = n03 * s4 - n13 * s2 + m33 * s0
    z2 = -n03 * s3 + n13 * s1 - n23 * s0
    w3 = -n12 * s5 + m22 * s4 - n23 * s3
    x3 = n02 * s5 - m22 * s2 + n23 * s1
    y3 = -n02 * s4 + n12 * s2 - n23 * s0
    z3 = n02 * s3 - n12 * s1 + m22 * s0
    w, x, y, z = w0, x0, y0, z0
    length = w0 * w0 + x0 * x0 + y0 * y0 + z0 * z0
    other = w1 * w1 + x1 * x1 + y1 * y1 + z1 * z1
    w, x, y, z, length = _longer(w, x, y, z, length, w1, x1, y1, z1, other)
    other = w2 * w2 + x2 * x2 + y2 * y2 + z2 * z2
    w, x, y, z, length = _longer(w, x, y, z, length, w2, x2, y2, z2, other)
    other = w3 * w3 + x3 * x3 + y3 * y3 + z3 * z3
    w, x, y, z, length = _longer(w, x, y, z, length, w3, x3, y3, z3, other)
    known = length > 1e-300
    size = tl.sqrt(tl.where(known, length, 1.0))
    return tl.where(known, w / size, 1.0), tl.where(known, x / size, 0.0), \
        tl.where(known, y / size, 0.0), tl.where(known, z / size, 0.0)  # fmt: skip


@triton.jit
def _longer(w, x, y, z, length, w2, x2, y2, z2, length2):
    take = length2 > length
    return (
        tl.where(take, w2, w), tl.where(take, x2, x), tl.where(take, y2, y),
        tl.where(take, z2, z), tl.where(take, length2, length),
    )  # fmt: skip


@triton.jit
def _pose(total, ax, ay, az, bx, by, bz, aa, bb, xx, xy, xz, yx, yy, yz, zx, zy, zz, tolerance):
    """R (nine), t (three) and whether they are fixed, from weighted sums over matches (a, b): of
    the weights, of a, of b, of |a|^2, of |b|^2 and of the products a_i b_j."""
    some = total > 0.0
    scale = 1.0 / tl.where(some, total, 1.0)
    ax, ay, az, bx, by, bz = (
        ax * scale, ay * scale, az * scale, bx * scale, by * scale, bz * scale,
    )  # fmt: skip
    spread_a = tl.maximum(aa * scale - ax * ax - ay * ay - az * az, 0.0)
    spread_b = tl.maximum(bb * scale - bx * bx - by * by - bz * bz, 0.0)
    spread = tl.sqrt(spread_a * spread_b)
    xx, xy, xz = xx * scale - ax * bx, xy * scale - ax * by, xz * scale - ax * bz
    yx, yy, yz = yx * scale - ay * bx, yy * scale - ay * by, yz * scale - ay * bz
    zx, zy, zz = zx * scale - az * bx, zy * scale - az * by, zz * scale - az * bz
    size = tl.sqrt(
        xx * xx + xy * xy + xz * xz + yx * yx + yy * yy + yz * yz + zx * zx + zy * zy + zz * zz
    )
    part = 1.0 / tl.where(size > 0.0, size, 1.0)
    xx, xy, xz = xx * part, xy * part, xz * part
    yx, yy, yz = yx * part, yy * part, yz * part
    zx, zy, zz = zx * part, zy * part, zz * part
    # Squares of the nine 2 x 2 minors sum to those of the products of singular values, so that this
    # is the second singular value up to a factor of 3.
    u0, u1, u2 = yy * zz - yz * zy, yx * zz - yz * zx, yx * zy - yy * zx
    v0, v1, v2 = xy * zz - xz * zy, xx * zz - xz * zx, xx * zy - xy * zx
    w0, w1, w2 = xy * yz - xz * yy, xx * yz - xz * yx, xx * yy - xy * yx
    second = size * tl.sqrt(
        u0 * u0 + u1 * u1 + u2 * u2 + v0 * v0 + v1 * v1 + v2 * v2 + w0 * w0 + w1 * w1 + w2 * w2
    )
    sound = some & (spread > 0.0) & (second > tolerance * spread)
    w, x, y, z = _quaternion(xx, xy, xz, yx, yy, yz, zx, zy, zz)
    r00, r01, r02 = 1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)
    r10, r11, r12 = 2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)
    r20, r21, r22 = 2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)
    t0 = bx - r00 * ax - r01 * ay - r02 * az
    t1 = by - r10 * ax - r11 * ay - r12 * az
    t2 = bz - r20 * ax - r21 * ay - r22 * az
    return r00, r01, r02, t0, r10, r11, r12, t1, r20, r21, r22, t2, sound


@triton.jit
def _load(points, n, rows, inside):
    """Source x, y, z and target x, y, z of some rows of points (6, n), in double precision."""
    return (
        tl.load(points + rows, mask=inside, other=0.0).to(tl.float64),
        tl.load(points + n + rows, mask=inside, other=0.0).to(tl.float64),
        tl.load(points + 2 * n + rows, mask=inside, other=0.0).to(tl.float64),
        tl.load(points + 3 * n + rows, mask=inside, other=0.0).to(tl.float64),
        tl.load(points + 4 * n + rows, mask=inside, other=0.0).to(tl.float64),
        tl.load(points + 5 * n + rows, mask=inside, other=0.0).to(tl.float64),
    )


@triton.jit
def _store(T, r00, r01, r02, t0, r10, r11, r12, t1, r20, r21, r22, t2):
    kind = T.dtype.element_ty
    tl.store(T + 0, r00.to(kind))
    tl.store(T + 1, r01.to(kind))
    tl.store(T + 2, r02.to(kind))
    tl.store(T + 3, t0.to(kind))
    tl.store(T + 4, r10.to(kind))
    tl.store(T + 5, r11.to(kind))
    tl.store(T + 6, r12.to(kind))
    tl.store(T + 7, t1.to(kind))
    tl.store(T + 8, r20.to(kind))
    tl.store(T + 9, r21.to(kind))
    tl.store(T + 10, r22.to(kind))
    tl.store(T + 11, t2.to(kind))
    for k in tl.static_range(12, 15):
        tl.store(T + k, 0.0)
    tl.store(T + 15, 1.0)


@triton.jit
def _fit(points, members, weights, T, sound, N, K, kappa, tolerance, SIZE: tl.constexpr):
    which = tl.program_id(0).to(tl.int64)
    points += (which // K) * N * 6
    slot = tl.arange(0, SIZE)
    inside = slot < kappa
    row = tl.load(members + which * kappa + slot, mask=inside, other=0)
    w = tl.load(weights + which * kappa + slot, mask=inside, other=0.0).to(tl.float64)
    x, y, z, u, v, s = _load(points, N, row, inside)
    r00, r01, r02, t0, r10, r11, r12, t1, r20, r21, r22, t2, fixed = _pose(
        tl.sum(w), tl.sum(w * x), tl.sum(w * y), tl.sum(w * z),
        tl.sum(w * u), tl.sum(w * v), tl.sum(w * s),
        tl.sum(w * (x * x + y * y + z * z)), tl.sum(w * (u * u + v * v + s * s)),
        tl.sum(w * x * u), tl.sum(w * x * v), tl.sum(w * x * s),
        tl.sum(w * y * u), tl.sum(w * y * v), tl.sum(w * y * s),
        tl.sum(w * z * u), tl.sum(w * z * v), tl.sum(w * z * s),
        tolerance,
    )  # fmt: skip
    _store(T + which * 16, r00, r01, r02, t0, r10, r11, r12, t1, r20, r21, r22, t2)
    tl.store(sound + which, fixed.to(tl.uint8))


@triton.jit
def _score(points, weights, T, scores, N, K, BLOCK: tl.constexpr):
    which = tl.program_id(0).to(tl.int64)
    points += (which // K) * N * 6
    weights += (which // K) * N
    T += which * 16
    sum_gain = 0.0
    sum_weight = 0.0
    for start in range(0, N, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        inside = rows < N
        x = tl.load(points + rows, mask=inside, other=0.0)
        y = tl.load(points + N + rows, mask=inside, other=0.0)
        z = tl.load(points + 2 * N + rows, mask=inside, other=0.0)
        d2 = tl.zeros([BLOCK], dtype=tl.float32)
        for axis in tl.static_range(3):
            moved = tl.load(T + 4 * axis) * x + tl.load(T + 4 * axis + 1) * y
            moved += tl.load(T + 4 * axis + 2) * z + tl.load(T + 4 * axis + 3)
            d = moved - tl.load(points + (3 + axis) * N + rows, mask=inside, other=0.0)
            d2 += d * d
        w = tl.load(weights + rows, mask=inside, other=0.0)
        sum_gain += tl.sum(tl.maximum(1.0 - d2, 0.0) * w)
        sum_weight += tl.sum(w)
    tl.store(scores + which, sum_gain / tl.maximum(sum_weight, 1e-30))


@triton.jit
def _refine(points, mask, T, determined, N, rounds, settled, tolerance, BLOCK: tl.constexpr):
    problem = tl.program_id(0).to(tl.int64)
    points += problem * N * 6
    mask += problem * N
    T += problem * 16
    r00, r01, r02, t0 = tl.load(T), tl.load(T + 1), tl.load(T + 2), tl.load(T + 3)
    r10, r11, r12, t1 = tl.load(T + 4), tl.load(T + 5), tl.load(T + 6), tl.load(T + 7)
    r20, r21, r22, t2 = tl.load(T + 8), tl.load(T + 9), tl.load(T + 10), tl.load(T + 11)
    fixed = tl.load(determined + problem).to(tl.int32)
    left = rounds
    while left > 0:
        total = tl.zeros([BLOCK], dtype=tl.float64)
        ax, ay, az = total, total, total
        bx, by, bz = total, total, total
        aa, bb = total, total
        xx, xy, xz = total, total, total
        yx, yy, yz = total, total, total
        zx, zy, zz = total, total, total
        for start in range(0, N, BLOCK):
            rows = start + tl.arange(0, BLOCK)
            inside = rows < N
            x, y, z, u, v, s = _load(points, N, rows, inside)
            real = tl.load(mask + rows, mask=inside, other=0) != 0
            dx = r00 * x + r01 * y + r02 * z + t0 - u
            dy = r10 * x + r11 * y + r12 * z + t1 - v
            dz = r20 * x + r21 * y + r22 * z + t2 - s
            d2 = dx * dx + dy * dy + dz * dz
            w = tl.where(real & (d2 < 1.0), 1.0 / (1.0 + d2), 0.0)
            total += w
            ax, ay, az = ax + w * x, ay + w * y, az + w * z
            bx, by, bz = bx + w * u, by + w * v, bz + w * s
            aa += w * (x * x + y * y + z * z)
            bb += w * (u * u + v * v + s * s)
            xx, xy, xz = xx + w * x * u, xy + w * x * v, xz + w * x * s
            yx, yy, yz = yx + w * y * u, yy + w * y * v, yz + w * y * s
            zx, zy, zz = zx + w * z * u, zy + w * z * v, zz + w * z * s
        p00, p01, p02, q0, p10, p11, p12, q1, p20, p21, p22, q2, sound = _pose(
            tl.sum(total), tl.sum(ax), tl.sum(ay), tl.sum(az), tl.sum(bx), tl.sum(by), tl.sum(bz),
            tl.sum(aa), tl.sum(bb), tl.sum(xx), tl.sum(xy), tl.sum(xz), tl.sum(yx), tl.sum(yy),
            tl.sum(yz), tl.sum(zx), tl.sum(zy), tl.sum(zz), tolerance,
        )  # fmt: skip
        change = tl.maximum(tl.abs(p00 - r00), tl.abs(p01 - r01))
        change = tl.maximum(change, tl.maximum(tl.abs(p02 - r02), tl.abs(q0 - t0)))
        change = tl.maximum(change, tl.maximum(tl.abs(p10 - r10), tl.abs(p11 - r11)))
        change = tl.maximum(change, tl.maximum(tl.abs(p12 - r12), tl.abs(q1 - t1)))
        change = tl.maximum(change, tl.maximum(tl.abs(p20 - r20), tl.abs(p21 - r21)))
        change = tl.maximum(change, tl.maximum(tl.abs(p22 - r22), tl.abs(q2 - t2)))
        r00, r01, r02 = (
            tl.where(sound, p00, r00),
            tl.where(sound, p01, r01),
            tl.where(sound, p02, r02),
        )
        r10, r11, r12 = (
            tl.where(sound, p10, r10),
            tl.where(sound, p11, r11),
            tl.where(sound, p12, r12),
        )
        r20, r21, r22 = (
            tl.where(sound, p20, r20),
            tl.where(sound, p21, r21),
            tl.where(sound, p22, r22),
        )
        t0, t1, t2 = tl.where(sound, q0, t0), tl.where(sound, q1, t1), tl.where(sound, q2, t2)
        fixed = tl.where(sound, 1, fixed)
        left = tl.where(sound & (change > settled), left - 1, 0)
    _store(T, r00, r01, r02, t0, r10, r11, r12, t1, r20, r21, r22, t2)
    tl.store(determined + problem, fixed.to(tl.uint8))


@triton.jit
def _suppress(points, confidence, suppressed, N, radius, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    problem = tl.program_id(0).to(tl.int64)
    points += problem * N * 6
    confidence += problem * N
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = rows < N
    x = tl.load(points + rows, mask=inside, other=0.0)[:, None]
    y = tl.load(points + N + rows, mask=inside, other=0.0)[:, None]
    z = tl.load(points + 2 * N + rows, mask=inside, other=0.0)[:, None]
    own = tl.load(confidence + rows, mask=inside, other=0.0)[:, None]
    beaten = tl.zeros([ROWS], dtype=tl.int32)
    for start in range(0, N, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        there = columns < N
        dx = x - tl.load(points + columns, mask=there, other=0.0)[None, :]
        dy = y - tl.load(points + N + columns, mask=there, other=0.0)[None, :]
        dz = z - tl.load(points + 2 * N + columns, mask=there, other=0.0)[None, :]
        theirs = tl.load(confidence + columns, mask=there, other=-float("inf"))[None, :]
        by = (dx * dx + dy * dy + dz * dz < radius * radius) & (theirs > own)
        beaten = tl.maximum(beaten, tl.max(by.to(tl.int32), 1))
    tl.store(suppressed + problem * N + rows, beaten.to(tl.uint8), mask=inside)


@triton.jit
def _same(points, N, rows, columns, seen):
    """How many of some seen columns lie in the very place of each row, (rows,)."""
    a, b = rows < N, columns < N
    same = seen[None, :] & a[:, None]
    for axis in tl.static_range(3):
        x = tl.load(points + axis * N + rows, mask=a, other=0.0)
        same = same & (
            x[:, None] == tl.load(points + axis * N + columns, mask=b, other=0.0)[None, :]
        )
    return tl.sum(same.to(tl.int32), 1)


@triton.jit
def _crowd(points, mask, weights, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    problem = tl.program_id(0).to(tl.int64)
    points += problem * N * 6
    mask += problem * N
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    source = tl.zeros([ROWS], dtype=tl.int32)
    target = tl.zeros([ROWS], dtype=tl.int32)
    for start in range(0, N, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        seen = tl.load(mask + columns, mask=columns < N, other=0) != 0
        source += _same(points, N, rows, columns, seen)
        target += _same(points + 3 * N, N, rows, columns, seen)
    real = tl.load(mask + rows, mask=rows < N, other=0) != 0
    both = tl.maximum(source, 1).to(tl.float32) * tl.maximum(target, 1).to(tl.float32)
    weight = tl.where(real, 1.0 / tl.sqrt(both), 0.0)
    tl.store(weights + problem * N + rows, weight, mask=rows < N)


@triton.jit
def _spectral(
    features, points, members, valid, sigma, weights, N, K, kappa,
    D: tl.constexpr, SIZE: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    which = tl.program_id(0).to(tl.int64)
    points += (which // K) * N * 6
    features += (which // K) * N * D
    slot = tl.arange(0, SIZE)
    inside = slot < kappa
    row = tl.load(members + which * kappa + slot, mask=inside, other=0)
    there = tl.load(valid + which * kappa + slot, mask=inside, other=0) != 0
    d = tl.arange(0, D)
    f = tl.load(features + row[:, None] * D + d[None, :], mask=there[:, None], other=0.0)
    steepness = tl.load(sigma)
    alike = 1.0 - (1.0 - tl.dot(f, tl.trans(f), input_precision="tf32x3")) / (steepness * steepness)
    source = tl.zeros([SIZE, SIZE], dtype=tl.float32)
    target = tl.zeros([SIZE, SIZE], dtype=tl.float32)
    for axis in tl.static_range(3):
        x = tl.load(points + axis * N + row, mask=inside, other=0.0)
        source += (x[:, None] - x[None, :]) * (x[:, None] - x[None, :])
        y = tl.load(points + (axis + 3) * N + row, mask=inside, other=0.0)
        target += (y[:, None] - y[None, :]) * (y[:, None] - y[None, :])
    M = tl.minimum(tl.maximum(alike, 0.0), 1.0) * beta_of(source, target)
    pairs = there[:, None] & there[None, :] & (slot[:, None] != slot[None, :])
    M = tl.where(pairs, M, 0.0)
    w = there.to(tl.float32)
    for _ in range(ROUNDS):  # M is symmetric, so that its columns serve as rows
        w = tl.sum(M * w[:, None], 0)
        w = w / tl.maximum(tl.sqrt(tl.sum(w * w)), 1e-12)
        w = tl.sum(tl.where(slot[:, None] == slot[None, :], w[None, :], 0.0), 1)
    total = tl.maximum(tl.sum(w), 1.1754943508222875e-38)
    tl.store(weights + which * kappa + slot, w / total, mask=inside)


def crowd_weights(points: Tensor, mask: Tensor) -> Tensor:
    """Return the weights (B, N) float32 of points (B, 6, N) and mask (B, N)."""
    B, N = mask.shape
    out = torch.empty(B, N, dtype=torch.float32, device=mask.device)
    _crowd[(B, triton.cdiv(N, SUPPRESSED_ROWS))](
        points, mask.contiguous().view(torch.uint8), out, N,
        ROWS=SUPPRESSED_ROWS, COLUMNS=SUPPRESSED_COLUMNS, num_warps=4,
    )  # fmt: skip
    return out


def spectral_weights(
    features: Tensor, points: Tensor, members: Tensor, valid: Tensor, sigma: Tensor, rounds: int
) -> Tensor:
    """Return (B, K, kappa) of features (B, N, d) with rows of length 1, d a power of two >= 16."""
    B, K, kappa = members.shape
    out = torch.empty(B, K, kappa, dtype=torch.float32, device=members.device)
    _spectral[(B * K,)](
        features.contiguous(), points, members.contiguous(), valid.contiguous().view(torch.uint8),
        sigma, out, points.shape[-1], K, kappa, D=features.shape[-1],
        SIZE=max(16, triton.next_power_of_2(kappa)), ROUNDS=rounds, num_warps=4,
    )  # fmt: skip
    return out


def suppressed(confidence: Tensor, points: Tensor, radius: float) -> Tensor:
    """Tell (B, N) whether a more confident correspondence has its source within the radius.

    confidence (B, N), -inf for padding; points (B, 6, N) of `beta.coordinates`.
    """
    B, N = confidence.shape
    out = torch.empty(B, N, dtype=torch.uint8, device=confidence.device)
    _suppress[(B, triton.cdiv(N, SUPPRESSED_ROWS))](
        points, confidence.float().contiguous(), out, N, radius,
        ROWS=SUPPRESSED_ROWS, COLUMNS=SUPPRESSED_COLUMNS, num_warps=4,
    )  # fmt: skip
    return out.view(torch.bool)


def fit(points: Tensor, members: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Fit T (B, K, 4, 4), sound (B, K), to points (B, 6, N), members and weights (B, K, kappa)."""
    B, K, kappa = members.shape
    T = torch.empty(B, K, 4, 4, dtype=points.dtype, device=points.device)
    sound = torch.empty(B, K, dtype=torch.uint8, device=points.device)
    _fit[(B * K,)](
        points, members.contiguous(), weights.contiguous(), T, sound, points.shape[-1], K, kappa,
        100 * torch.finfo(points.dtype).eps, SIZE=triton.next_power_of_2(kappa), num_warps=1,
    )  # fmt: skip
    return T, sound.view(torch.bool)


def score(T: Tensor, points: Tensor, weights: Tensor) -> Tensor:
    """Score poses T (B, K, 4, 4) on points (B, 6, N) with weights (B, N) -> (B, K)."""
    B, K = T.shape[:2]
    out = torch.empty(B, K, dtype=torch.float32, device=T.device)
    _score[(B * K,)](
        points, weights.float().contiguous(), T.contiguous(), out, points.shape[-1], K,
        BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return out


def refine(
    T: Tensor, determined: Tensor, points: Tensor, mask: Tensor, rounds: int, settled: float
) -> tuple[Tensor, Tensor]:
    """Refine T (B, 4, 4) float64 and determined (B,) on points (B, 6, N) float64."""
    B = len(T)
    T, fixed = T.clone(), determined.to(torch.uint8)
    _refine[(B,)](
        points, mask.contiguous().view(torch.uint8), T, fixed, points.shape[-1], rounds, settled,
        MIN_EXTENT, BLOCK=BLOCK // 2, num_warps=8,
    )  # fmt: skip
    return T, fixed.view(torch.bool)
