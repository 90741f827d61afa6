import math

import numpy as np
import pytest
import torch

from vbreg import geometry
from vbreg.geometry import apply, from_rotation_translation, inverse, procrustes


def random_pose(*batch: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    R = geometry.random_rotation(*batch, generator=generator, dtype=dtype)
    return from_rotation_translation(R, torch.randn(*batch, 3, generator=generator, dtype=dtype))


def naive_procrustes(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """One problem, loops and the textbook formula."""
    total = sum(w)
    mx = sum(wi * xi for wi, xi in zip(w, x, strict=True)) / total
    my = sum(wi * yi for wi, yi in zip(w, y, strict=True)) / total
    H = sum(wi * np.outer(xi - mx, yi - my) for wi, xi, yi in zip(w, x, y, strict=True))
    U, _, Vt = np.linalg.svd(H)
    D = np.diag([1, 1, np.sign(np.linalg.det(Vt.T @ U.T))])
    T = np.eye(4)
    T[:3, :3] = Vt.T @ D @ U.T
    T[:3, 3] = my - T[:3, :3] @ mx
    return T


def test_inverse_and_compose_cancel() -> None:
    T = random_pose(5)
    identity = torch.eye(4, dtype=T.dtype).expand(5, 4, 4)
    torch.testing.assert_close(T @ inverse(T), identity)


def test_rows_are_those_of_a_loop() -> None:
    x = torch.randn(2, 5, 3)
    index = torch.tensor([[4, 0], [1, 1]])
    expected = torch.stack([torch.stack([x[b, n] for n in index[b]]) for b in range(2)])
    assert torch.equal(geometry.take_rows(x, index), expected)


def test_apply_composes() -> None:
    T_a_b, T_b_c = random_pose(4, seed=1), random_pose(4, seed=2)
    points = torch.randn(4, 7, 3, dtype=torch.float64)
    expected = apply(T_a_b, apply(T_b_c, points))
    torch.testing.assert_close(apply(T_a_b @ T_b_c, points), expected)


def test_random_rotations_are_proper_and_uniform_in_angle() -> None:
    R = geometry.random_rotation(4000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.linalg.det(R), torch.ones(4000))
    # Over SO(3) the mean angle is pi/2 + 2/pi.
    assert abs(float(geometry.rotation_angle(R).mean()) - (math.pi / 2 + 2 / math.pi)) < 0.03


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-3, 1.0, math.pi - 1e-6, math.pi])
def test_rotation_angle_is_accurate_everywhere(angle: float) -> None:
    c, s = math.cos(angle), math.sin(angle)
    R = torch.tensor([[c, -s, 0], [s, c, 0], [0, 0, 1]], dtype=torch.float64)
    assert float(geometry.rotation_angle(R)) == pytest.approx(angle, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_procrustes_recovers_the_pose(dtype: torch.dtype, batch: tuple[int, ...]) -> None:
    T = random_pose(*batch, dtype=dtype)
    x = torch.randn(*batch, 10, 3, dtype=dtype)
    found, sound = procrustes(x, apply(T, x), torch.rand(*batch, 10, dtype=dtype) + 0.1)
    assert sound.all()
    assert found.dtype == dtype
    torch.testing.assert_close(found, T, atol=1e-4 if dtype == torch.float32 else 1e-9, rtol=0)


def test_procrustes_agrees_with_its_naive_twin() -> None:
    rng = np.random.default_rng(0)
    x, y, w = rng.normal(size=(20, 8, 3)), rng.normal(size=(20, 8, 3)), rng.random((20, 8))
    found, _ = procrustes(*(torch.from_numpy(a) for a in (x, y, w)))
    for n in range(20):  # random pairs: half of them would be reflections without the sign
        np.testing.assert_allclose(found[n], naive_procrustes(x[n], y[n], w[n]), atol=1e-9)


def test_procrustes_ignores_rows_without_weight() -> None:
    T = random_pose()
    x = torch.randn(10, 3, dtype=torch.float64)
    y = apply(T, x)
    y[6:] = 100.0
    found, sound = procrustes(x, y, (torch.arange(10) < 6).double())
    assert sound
    torch.testing.assert_close(found, T)


def test_procrustes_gradient() -> None:
    x = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    y = (apply(random_pose(2), x.detach()) + 0.1 * torch.randn(2, 6, 3)).requires_grad_()
    w = (torch.rand(2, 6, dtype=torch.float64) + 0.5).requires_grad_()
    assert torch.autograd.gradcheck(lambda *a: procrustes(*a)[0], (x, y, w))


@pytest.mark.parametrize(
    ("points", "weights"),
    [
        (torch.zeros(5, 3), torch.ones(5)),  # one place
        (torch.arange(15.0).reshape(5, 3), torch.ones(5)),  # a line
        (torch.randn(5, 3), torch.zeros(5)),  # no weight
        (torch.randn(5, 3), torch.tensor([1.0, 1, 0, 0, 0])),  # two points
    ],
)
def test_degenerate_sets_give_a_finite_unsound_pose(
    points: torch.Tensor, weights: torch.Tensor
) -> None:
    T, sound = procrustes(points, points + 1, weights)
    assert not sound
    assert torch.isfinite(T).all()
    torch.testing.assert_close(torch.linalg.det(T[:3, :3]), torch.tensor(1.0))


def test_a_plane_is_sound() -> None:
    x = torch.rand(20, 3) * torch.tensor([1.0, 1.0, 0.0])
    T, sound = procrustes(x, x, torch.ones(20))
    assert sound
    torch.testing.assert_close(T, torch.eye(4), atol=1e-5, rtol=0)


# --- upright


def unit(*batch: int, seed: int) -> torch.Tensor:
    v = torch.randn(*batch, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return v / torch.linalg.vector_norm(v, dim=-1, keepdim=True)


@pytest.mark.parametrize("seed", range(4))
def test_an_upright_pose_is_recovered(seed: int) -> None:
    """A turn about any axis between any two frames, in a batch."""
    a, b = unit(seed=seed), unit(seed=seed + 10)
    R_upright = geometry.turn_between(a, b)
    angle = torch.tensor([0.3, 3.1, -2.0], dtype=torch.float64)[:, None, None]
    turn = torch.linalg.matrix_exp(angle * geometry.cross_matrix(b))
    T = from_rotation_translation(turn @ R_upright, torch.randn(3, 3, dtype=torch.float64))
    x = torch.randn(3, 20, 3, dtype=torch.float64)
    found, sound = geometry.upright_procrustes(
        x, apply(T, x), torch.ones(3, 20).to(x), R_upright, b
    )
    torch.testing.assert_close(found, T)
    assert sound.all()


def test_the_upright_pose_is_the_best_of_all_angles() -> None:
    """Points and weights at random: no other turn about up has a smaller error."""
    up = unit(seed=1)
    x, y = torch.randn(2, 15, 3, generator=torch.Generator().manual_seed(0)).double()
    w = torch.rand(15, generator=torch.Generator().manual_seed(1)).double()
    found, _ = geometry.upright_procrustes(x, y, w, torch.eye(3).to(x), up)
    torch.testing.assert_close(found[:3, :3] @ up, up)
    error = (w * (apply(found, x) - y).square().sum(-1)).sum()
    mean_x, mean_y = ((w[:, None] * p).sum(0) / w.sum() for p in (x, y))
    for angle in torch.linspace(0, 2 * math.pi, 50).double():
        R = torch.linalg.matrix_exp(angle * geometry.cross_matrix(up))
        other = (w * ((x - mean_x) @ R.T + mean_y - y).square().sum(-1)).sum()
        assert error <= other + 1e-12


def test_points_above_each_other_do_not_fix_a_turn() -> None:
    up = torch.tensor([0.0, 0.0, 1.0]).double()
    pole = torch.linspace(0, 1, 6).double()[:, None] * up
    eye = torch.eye(3).double()
    for w in (torch.ones(6).double(), torch.zeros(6).double()):
        T, sound = geometry.upright_procrustes(pole, pole + 1, w, eye, up)
        assert not sound
        assert torch.isfinite(T).all()


def test_the_smallest_turn_between_directions() -> None:
    a, b = unit(seed=1), unit(seed=2)
    for end in (b, a, -a):
        R = geometry.turn_between(a, end)
        torch.testing.assert_close(R @ a, end)
        torch.testing.assert_close(R @ R.T, torch.eye(3).double())
        assert float(torch.linalg.det(R)) == pytest.approx(1.0)
        torch.testing.assert_close(geometry.rotation_angle(R), torch.acos((a @ end).clamp(-1, 1)))


@pytest.mark.parametrize("angle", [0.0, 1e-6, 0.3, 3.0])
def test_a_vector_turns_about_itself_by_its_length(angle: float) -> None:
    axis = torch.tensor([0.6, -0.48, 0.64], dtype=torch.float64)
    R = geometry.rotation_of_vector(angle * axis)
    torch.testing.assert_close(R, torch.matrix_exp(geometry.cross_matrix(angle * axis)))
    torch.testing.assert_close(geometry.rotation_angle(R), torch.tensor(angle).double())


@pytest.mark.parametrize("angle", [0.0, 1e-6, 0.3, 3.0, math.pi - 1e-6, math.pi])
def test_a_rotation_is_that_of_its_vector(angle: float) -> None:
    generator = torch.Generator().manual_seed(0)
    axis = torch.randn(20, 3, dtype=torch.float64, generator=generator)
    axis /= axis.norm(dim=-1, keepdim=True)
    R = geometry.rotation_of_vector(angle * axis)
    v = geometry.vector_of_rotation(R)
    torch.testing.assert_close(v.norm(dim=-1), torch.full((20,), angle).double())
    torch.testing.assert_close(geometry.rotation_of_vector(v), R)
    if angle < math.pi:  # at pi the opposite vector is as good
        torch.testing.assert_close(v, angle * axis)
