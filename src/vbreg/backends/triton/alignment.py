"""One step of a refinement on the clouds, in two kernels and double precision.

Computes what `vbreg.alignment` does. The first kernel finds the partners of some source points and
leaves a tile of sums, and a tile for some matches; the second has a program for each pair that adds
the tiles up, solves for the small motion and makes it. No program waits for another, and sums are
always added in the same order.

A row of normal equations is that of a plane: (arm x normal, normal, distance). A match counts as
three planes, along the axes. Arms are measured from where the pose puts the middle of the source;
the sums are carried over to the middle of the weighted points once that is known.

A tile is 8 x 8: the weighted products of rows (7 x 7), an empty column, and in the last row
the weighted arm (3), its square, the weight, and the numbers of planes, gain and rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vbreg.alignment import MATCHES_WEIGHT, MIN_COSINE, MIN_PARTNERS, Surfaces
from vbreg.backends.triton.nearest import nearest_of
from vbreg.scale import INLIER_THRESHOLD

ROWS, WARPS = 16, 8  # of a program that sums; twice the rows take more registers than there are
POINTS = 512  # of the target that are compared at a time
TILES, STEP_WARPS = 32, 4  # of a program that steps; tiles that are added up at a time


@triton.jit
def _vectors(x, rows, mask):
    """Return the coordinates of some rows of x (n, 3)."""
    x += 3 * rows
    first = tl.load(x, mask=mask, other=0.0).to(tl.float64)
    second = tl.load(x + 1, mask=mask, other=0.0).to(tl.float64)
    third = tl.load(x + 2, mask=mask, other=0.0).to(tl.float64)
    return first, second, third


@triton.jit
def _turned(T, x, y, z):
    """Return vectors turned by the pose at T."""
    a = tl.load(T) * x + tl.load(T + 1) * y + tl.load(T + 2) * z
    b = tl.load(T + 4) * x + tl.load(T + 5) * y + tl.load(T + 6) * z
    c = tl.load(T + 8) * x + tl.load(T + 9) * y + tl.load(T + 10) * z
    return a, b, c


@triton.jit
def _moved(T, x, y, z):
    """Return points moved by the pose at T."""
    a, b, c = _turned(T, x, y, z)
    return a + tl.load(T + 3), b + tl.load(T + 7), c + tl.load(T + 11)


@triton.jit
def _moved_middle(T, middle):
    """Return where the pose at T puts the middle of the source."""
    return _moved(T, tl.load(middle), tl.load(middle + 1), tl.load(middle + 2))


@triton.jit
def _columns(a, b, c, d, e, f, g, h):
    """Return vectors (n,) side by side (n, 8)."""
    k = tl.arange(0, 8)[None, :]
    first = tl.where(k == 0, a[:, None], tl.where(k == 1, b[:, None], c[:, None]))
    second = tl.where(k == 3, d[:, None], tl.where(k == 4, e[:, None], f[:, None]))
    third = tl.where(k == 6, g[:, None], h[:, None])
    return tl.where(k < 3, first, tl.where(k < 6, second, third))


@triton.jit
def _products(weight, ax, ay, az, nx, ny, nz, left):
    """Return the weighted products (8, 8) of the rows of planes."""
    row = _columns(
        ay * nz - az * ny, az * nx - ax * nz, ax * ny - ay * nx, nx, ny, nz, left,
        tl.zeros_like(left),
    )  # fmt: skip
    return tl.sum((weight[:, None] * row)[:, :, None] * row[:, None, :], 0)


@triton.jit
def _store_tile(tile, products, weight, ax, ay, az, hit, gain, real):
    """Write the products, and the other sums in the last row."""
    square = ax * ax + ay * ay + az * az
    other = tl.sum(
        _columns(
            weight * ax, weight * ay, weight * az, weight * square, weight, hit, gain,
            real.to(tl.float64),
        ), 0,
    )  # fmt: skip
    i, j = tl.arange(0, 8)[:, None], tl.arange(0, 8)[None, :]
    tl.store(tile + 8 * i + j, tl.where(i == 7, other[None, :], products))


@triton.jit
def _sum_planes(
    tile, source, normals, source_real, target, target_normals, target_real, T, px, py, pz,
    rows, n, M, REACH: tl.constexpr, MIN_COSINE: tl.constexpr,
    ROWS: tl.constexpr, POINTS: tl.constexpr,
):  # fmt: skip
    """Write the sums of some source points with partners in the target."""
    inside = rows < n
    x, y, z = _vectors(source, rows, inside)
    x, y, z = _moved(T, x, y, z)
    near, distance2 = nearest_of(
        target, target_real, M, x.to(tl.float32), y.to(tl.float32), z.to(tl.float32), ROWS, POINTS
    )
    real = tl.load(source_real + rows, mask=inside, other=0) != 0
    found = real & (distance2 <= REACH * REACH)
    u, v, w = _vectors(normals, rows, inside)
    u, v, w = _turned(T, u, v, w)
    nx, ny, nz = _vectors(target_normals, near, found)
    cosine = u * nx + v * ny + w * nz
    hit = found & (tl.abs(cosine) > MIN_COSINE)
    sign = tl.where(cosine < 0, -1.0, tl.full([ROWS], 1.0, dtype=tl.float64))
    nx, ny, nz = nx + sign * u, ny + sign * v, nz + sign * w
    length = tl.maximum(tl.sqrt(nx * nx + ny * ny + nz * nz), 1e-12)
    nx, ny, nz = nx / length, ny / length, nz / length
    qx, qy, qz = _vectors(target, near, found)
    left = (qx - x) * nx + (qy - y) * ny + (qz - z) * nz
    part = 2.0 * left / REACH
    part *= part
    weight = tl.where(hit, 1.0 / ((1.0 + part) * (1.0 + part)), 0.0)
    gain = tl.where(hit, tl.maximum(1.0 - part, 0.0), 0.0)
    x, y, z = x - px, y - py, z - pz
    products = _products(weight, x, y, z, nx, ny, nz, left)
    _store_tile(tile, products, weight, x, y, z, hit.to(tl.float64), gain, real)


@triton.jit
def _sum_matches(tile, source, target, real, T, px, py, pz, rows, N, THRESHOLD: tl.constexpr):
    """Write the sums of some matches."""
    inside = rows < N
    x, y, z = _vectors(source, rows, inside)
    x, y, z = _moved(T, x, y, z)
    dx, dy, dz = _vectors(target, rows, inside)
    dx, dy, dz = dx - x, dy - y, dz - z
    real = tl.load(real + rows, mask=inside, other=0) != 0
    d2 = (dx * dx + dy * dy + dz * dz) / (THRESHOLD * THRESHOLD)
    weight = tl.where(real & (d2 < 1.0), 1.0 / (1.0 + d2), 0.0)
    gain = tl.where(real, tl.maximum(1.0 - d2, 0.0), 0.0)
    x, y, z = x - px, y - py, z - pz
    none = tl.zeros_like(d2)
    one = none + 1.0
    products = _products(weight, x, y, z, one, none, none, dx)
    products += _products(weight, x, y, z, none, one, none, dy)
    products += _products(weight, x, y, z, none, none, one, dz)
    _store_tile(tile, products, weight, x, y, z, none, gain, real)


@triton.jit(do_not_specialize=["n", "M", "N", "blocks"])
def _sums(
    source, source_normals, source_real, target, target_normals, target_real,
    matched_source, matched_target, matched_real, middle, T, tiles, n, M, N, blocks,
    REACH: tl.constexpr, MIN_COSINE: tl.constexpr, THRESHOLD: tl.constexpr,
    ROWS: tl.constexpr, POINTS: tl.constexpr,
):  # fmt: skip
    pair, block = tl.program_id(1).to(tl.int64), tl.program_id(0)
    tile = tiles + (pair * tl.num_programs(0) + block) * 64
    T += 16 * pair
    px, py, pz = _moved_middle(T, middle + 3 * pair)
    if block < blocks:
        _sum_planes(
            tile, source + 3 * n * pair, source_normals + 3 * n * pair, source_real + n * pair,
            target + 3 * M * pair, target_normals + 3 * M * pair, target_real + M * pair,
            T, px, py, pz, block * ROWS + tl.arange(0, ROWS), n, M,
            REACH, MIN_COSINE, ROWS, POINTS,
        )  # fmt: skip
    else:
        _sum_matches(
            tile, matched_source + 3 * N * pair, matched_target + 3 * N * pair,
            matched_real + N * pair, T, px, py, pz,
            (block - blocks) * ROWS + tl.arange(0, ROWS), N, THRESHOLD,
        )  # fmt: skip


@triton.jit
def _added(tiles, first, last, TILES: tl.constexpr):
    """Return the sum (8, 8) of some tiles."""
    i, j = tl.arange(0, 8)[None, :, None], tl.arange(0, 8)[None, None, :]
    total = tl.zeros([TILES, 8, 8], dtype=tl.float64)
    for start in range(first, last, TILES):
        k = (start + tl.arange(0, TILES))[:, None, None]
        total += tl.load(tiles + 64 * k + 8 * i + j, mask=k < last, other=0.0)
    return tl.sum(total, 0)


@triton.jit
def _entry(matrix, row, column):
    """Return one entry of a matrix (8, 8)."""
    i, j = tl.arange(0, 8)[:, None], tl.arange(0, 8)[None, :]
    return tl.sum(tl.sum(tl.where((i == row) & (j == column), matrix, 0.0), 1), 0)


@triton.jit
def _about(products, mx, my, mz, size):
    """Return products of rows whose arms are measured from elsewhere, and in another length."""
    i, j = tl.arange(0, 8)[:, None], tl.arange(0, 8)[None, :]
    change = tl.where((i == j) & (i < 7), 1.0, tl.zeros([8, 8], dtype=tl.float64))
    change = tl.where((i == 0) & (j == 4), mz, tl.where((i == 0) & (j == 5), -my, change))
    change = tl.where((i == 1) & (j == 3), -mz, tl.where((i == 1) & (j == 5), mx, change))
    change = tl.where((i == 2) & (j == 3), my, tl.where((i == 2) & (j == 4), -mx, change))
    change = tl.where(i < 3, change / size, change)
    half = tl.sum(change[:, :, None] * products[None, :, :], 1)
    return tl.sum(half[:, None, :] * change[None, :, :], 2)


@triton.jit
def _solved(H):
    """Return what is left of normal equations (6, 6), and their right side behind, when solved.

    Each unknown is the entry of its row on the right by that on the diagonal.
    """
    i, j = tl.arange(0, 8)[:, None], tl.arange(0, 8)[None, :]
    diagonal = (i == j) & (i < 6)
    trace = tl.sum(tl.sum(tl.where(diagonal, H, 0.0), 1), 0)
    H += tl.where(diagonal, 1e-6 * trace + 1e-12, 0.0)
    for k in tl.static_range(6):
        row = tl.sum(tl.where(i == k, H, 0.0), 0)[None, :]
        column = tl.sum(tl.where((j == k) & (i != k), H, 0.0), 1)[:, None]
        H -= column / _entry(H, k, k) * row
    return H


@triton.jit
def _stored_step(T, after, changed, wx, wy, wz, sx, sy, sz, mx, my, mz):
    """Write the pose at T after a turn about w through m, and a shift s; or as it is."""
    square = wx * wx + wy * wy + wz * wz
    angle = tl.sqrt(square)
    some = tl.where(angle > 0, angle, 1.0)
    a = tl.where(angle > 0, tl.sin(some) / some, 1.0)
    half = tl.where(angle > 0, tl.sin(0.5 * some) / (0.5 * some), 1.0)
    b = 0.5 * half * half  # Rodrigues
    r00, r01, r02 = 1 - b * (square - wx * wx), b * wx * wy - a * wz, b * wx * wz + a * wy
    r10, r11, r12 = b * wx * wy + a * wz, 1 - b * (square - wy * wy), b * wy * wz - a * wx
    r20, r21, r22 = b * wx * wz - a * wy, b * wy * wz + a * wx, 1 - b * (square - wz * wz)
    sx += mx - (r00 * mx + r01 * my + r02 * mz)
    sy += my - (r10 * mx + r11 * my + r12 * mz)
    sz += mz - (r20 * mx + r21 * my + r22 * mz)
    for k in tl.static_range(4):
        x, y, z, one = tl.load(T + k), tl.load(T + 4 + k), tl.load(T + 8 + k), tl.load(T + 12 + k)
        tl.store(after + k, tl.where(changed, r00 * x + r01 * y + r02 * z + sx * one, x))
        tl.store(after + 4 + k, tl.where(changed, r10 * x + r11 * y + r12 * z + sy * one, y))
        tl.store(after + 8 + k, tl.where(changed, r20 * x + r21 * y + r22 * z + sz * one, z))
        tl.store(after + 12 + k, one)


@triton.jit(do_not_specialize=["blocks", "programs"])
def _step(
    tiles, middle, T, after, gains, blocks, programs,
    MATCHES_WEIGHT: tl.constexpr, MIN_PARTNERS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    tiles += pair * programs * 64
    T += 16 * pair
    planes, matches = _added(tiles, 0, blocks, TILES), _added(tiles, blocks, programs, TILES)
    partners = _entry(planes, 7, 5)
    gain = _entry(planes, 7, 6) / tl.maximum(_entry(planes, 7, 7), 1.0)
    agreeing = _entry(matches, 7, 6) / tl.maximum(_entry(matches, 7, 7), 1.0)
    tl.store(gains + pair, gain + MATCHES_WEIGHT * agreeing)
    weight = tl.maximum(_entry(planes, 7, 4), 1e-9)
    products = planes / weight
    products += MATCHES_WEIGHT * (matches / tl.maximum(_entry(matches, 7, 4), 1e-9))
    mx, my, mz = (
        _entry(planes, 7, 0) / weight,
        _entry(planes, 7, 1) / weight,
        _entry(planes, 7, 2) / weight,
    )
    spread = _entry(planes, 7, 3) / weight - (mx * mx + my * my + mz * mz)
    size = tl.maximum(tl.sqrt(tl.maximum(spread, 0.0)), 1e-6)
    H = _solved(_about(products, mx, my, mz, size))
    wx = _entry(H, 0, 6) / _entry(H, 0, 0) / size
    wy = _entry(H, 1, 6) / _entry(H, 1, 1) / size
    wz = _entry(H, 2, 6) / _entry(H, 2, 2) / size
    sx = _entry(H, 3, 6) / _entry(H, 3, 3)
    sy = _entry(H, 4, 6) / _entry(H, 4, 4)
    sz = _entry(H, 5, 6) / _entry(H, 5, 5)
    px, py, pz = _moved_middle(T, middle + 3 * pair)
    enough = partners >= MIN_PARTNERS
    _stored_step(
        T, after + 16 * pair, enough, wx, wy, wz, sx, sy, sz, px + mx, py + my, pz + mz
    )  # fmt: skip


def step(surfaces: Surfaces, T: Tensor, reach: float) -> tuple[Tensor, Tensor]:
    """Return poses (B, 4, 4) after a step, and how well the clouds lay before it (B,).

    T (B, 4, 4) float64.
    """
    (B, n), M = surfaces.source_real.shape, surfaces.target.real.shape[1]
    N = surfaces.matched_real.shape[1]
    blocks = triton.cdiv(n, ROWS)
    programs = blocks + triton.cdiv(N, ROWS)
    T = T.contiguous()
    tiles = T.new_empty(B, programs, 8, 8)
    after, gains = torch.empty_like(T), T.new_empty(B)
    middle = surfaces.middle.contiguous()
    _sums[(programs, B)](
        surfaces.source.contiguous(), surfaces.source_normals.contiguous(),
        _bytes(surfaces.source_real),
        surfaces.target.points.float().contiguous(), surfaces.target_normals.contiguous(),
        _bytes(surfaces.target.real),
        surfaces.matched_source.contiguous(), surfaces.matched_target.contiguous(),
        _bytes(surfaces.matched_real),
        middle, T, tiles, n, M, N, blocks,
        REACH=reach, MIN_COSINE=MIN_COSINE, THRESHOLD=INLIER_THRESHOLD,
        ROWS=ROWS, POINTS=POINTS, num_warps=WARPS,
    )  # fmt: skip
    _step[(B,)](
        tiles, middle, T, after, gains, blocks, programs,
        MATCHES_WEIGHT=MATCHES_WEIGHT, MIN_PARTNERS=MIN_PARTNERS,
        TILES=TILES, num_warps=STEP_WARPS,
    )  # fmt: skip
    return after, gains


def _bytes(real: Tensor) -> Tensor:
    return real.contiguous().view(torch.uint8)
