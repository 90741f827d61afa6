import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vbreg.errors import VBRegError
from vbreg.sparse import (
    Cells,
    Neighbours,
    SparseConvolution,
    TiedConvolution,
    convolve,
    occupied,
    offsets,
    tied_classes,
)

SIDE = 8


def blob(seed: int = 0, share: float = 0.3) -> Tensor:
    """Cells (N, 3) of a cube, some of them occupied."""
    every = torch.cartesian_prod(*[torch.arange(SIDE)] * 3)
    kept = torch.rand(len(every), generator=torch.Generator().manual_seed(seed)) < share
    return every[kept]


def values(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def strided(cells: Cells) -> tuple[Cells, Neighbours]:
    """Cells of twice the size, and what a convolution of stride 2 sees."""
    coarse, corners = cells.coarser()
    return coarse, cells.neighbours(3, corners)


def as_dense(x: Tensor, cells: Cells, side: int = SIDE) -> Tensor:
    """The features (1, C, side, side, side) of a cube with zeros where no cell is."""
    dense = x.new_zeros(1, x.shape[1], side, side, side)
    i, j, k = cells.at[:, 1:].unbind(1)
    dense[0, :, i, j, k] = x.T
    return dense


def as_dense_kernel(kernel: Tensor) -> Tensor:
    """A kernel (K, Cin, Cout) as conv3d takes it; ours has its first axis running fastest."""
    k = round(len(kernel) ** (1 / 3))
    return kernel.view(k, k, k, *kernel.shape[1:]).permute(4, 3, 2, 1, 0)


def at_cells(dense: Tensor, cells: Cells) -> Tensor:
    i, j, k = cells.at[:, 1:].unbind(1)
    return dense[0, :, i, j, k].T


def test_the_first_axis_runs_fastest() -> None:
    table = offsets(3, 3)
    for (z, y, x), row in zip(itertools.product((-1, 0, 1), repeat=3), table.tolist(), strict=True):
        assert row == [x, y, z]
    assert offsets(3, 3)[13].tolist() == [0, 0, 0]


@pytest.mark.parametrize("kernel", [0, 2, 9])
def test_a_kernel_that_cannot_be(kernel: int) -> None:
    with pytest.raises(VBRegError, match="odd number"):
        offsets(kernel, 3)


@pytest.mark.parametrize("kernel", [3, 5, 7])
def test_it_is_the_dense_one(kernel: int) -> None:
    cells, _ = occupied(blob())
    x, w = values(len(cells), 4), values(kernel**3, 4, 5, seed=1)
    found = convolve(x, w, cells.neighbours(kernel))
    dense = F.conv3d(as_dense(x, cells), as_dense_kernel(w), padding=kernel // 2)
    torch.testing.assert_close(found, at_cells(dense, cells))


def test_stride_two_is_the_dense_one() -> None:
    cells, _ = occupied(blob())
    coarse, down = strided(cells)
    assert {tuple(c) for c in coarse.at.tolist()} == {
        (b, x // 2, y // 2, z // 2) for b, x, y, z in cells.at.tolist()
    }
    x, w = values(len(cells), 4), values(27, 4, 5, seed=1)
    dense = F.conv3d(as_dense(x, cells), as_dense_kernel(w), padding=1, stride=2)
    torch.testing.assert_close(convolve(x, w, down), at_cells(dense, coarse))


def test_the_way_back_is_the_dense_one() -> None:
    """Values of coarse cells c go to the finer cells 2 c + offset, as in conv_transpose3d."""
    cells, _ = occupied(blob())
    coarse, down = strided(cells)
    x, w = values(len(coarse), 4), values(27, 4, 5, seed=1)
    found = convolve(x, w, down.turned)
    kernel = as_dense_kernel(w).transpose(0, 1)  # (Cin, Cout, k, k, k)
    dense = F.conv_transpose3d(
        as_dense(x, coarse, SIDE // 2), kernel, stride=2, padding=1, output_padding=1
    )
    torch.testing.assert_close(found, at_cells(dense, cells))
    back = down.turned.turned
    assert torch.equal(back.index, down.index)


@pytest.mark.parametrize("shift", [(2, -4, 6), (-10, 0, 2)])
def test_shifted_by_whole_cells_nothing_changes(shift: tuple[int, ...]) -> None:
    """By multiples of the stride where there is one; cells may be negative."""
    here, there = blob(), blob() + torch.tensor(shift)
    w = values(27, 1, 3, seed=1)
    found = []
    for cells in (occupied(here)[0], occupied(there)[0]):
        x = torch.ones(len(cells), 1, dtype=torch.float64)
        coarse, down = strided(cells)
        fine, less = convolve(x, w, cells.neighbours(3)), convolve(x, w, down)
        found.append((fine, less, coarse.at[:, 1:] - torch.tensor(shift) // 2 * (len(found) > 0)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_shifted_by_an_odd_number_a_stride_sees_something_else() -> None:
    counts = [len(occupied(blob() + k)[0].coarser()[0]) for k in (0, 1)]
    assert counts[0] != counts[1]


def test_six_dimensions_as_a_naive_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    at = torch.randint(-2, 3, (60, 6), generator=generator)
    cells, row = occupied(at)
    assert torch.equal(cells.at[row, 1:], at)
    x, w = values(len(cells), 2), values(3**6, 2, 3, seed=1)
    found = convolve(x, w, cells.neighbours(3))
    place = {tuple(c): n for n, c in enumerate(cells.at[:, 1:].tolist())}
    naive = torch.zeros_like(found)
    for n, c in enumerate(cells.at[:, 1:].tolist()):
        for k, step in enumerate(offsets(3, 6).tolist()):
            other = place.get(tuple(a + b for a, b in zip(c, step, strict=True)))
            if other is not None:
                naive[n] += x[other] @ w[k]
    torch.testing.assert_close(found, naive)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("turned", [False, True])
def test_gradients(stride: int, turned: bool) -> None:
    cells, _ = occupied(blob(share=0.05))
    neighbours = strided(cells)[1] if stride == 2 else cells.neighbours(3)
    neighbours = neighbours.turned if turned else neighbours
    x = values(neighbours.inputs, 2).requires_grad_()
    w = values(27, 2, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: convolve(a, b, neighbours), (x, w))


def test_clouds_do_not_see_each_other() -> None:
    clouds = [blob(0), blob(1), blob(2) + 100]
    number = torch.cat([torch.full((len(c),), k) for k, c in enumerate(clouds)])
    together, _ = occupied(torch.cat(clouds), number)
    w = values(27, 1, 3, seed=1)

    def run(cells: Cells) -> Tensor:
        x = convolve(torch.ones(len(cells), 1, dtype=torch.float64), w, cells.neighbours(3))
        return convolve(x[:, :1], w, strided(cells)[1])

    found = run(together)
    alone = torch.cat([run(occupied(cloud)[0]) for cloud in clouds])
    torch.testing.assert_close(found, alone)


@pytest.mark.parametrize("dimension", [2, 3, 4])
@pytest.mark.parametrize("kernel", [1, 3, 5, 7])
@pytest.mark.parametrize("listed", [True, False])
def test_neighbours_as_a_naive_search(
    dimension: int, kernel: int, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an array of all keys, and among the sorted ones."""
    monkeypatch.setattr("vbreg.sparse.cells.MAX_SOUGHT", 1000)
    monkeypatch.setattr("vbreg.sparse.cells.MAX_LISTED", 2**26 if listed else 0)
    generator = torch.Generator().manual_seed(dimension)
    cells, _ = occupied(torch.randint(-4, 5, (80, dimension), generator=generator))
    place = {tuple(c): n for n, c in enumerate(cells.at[:, 1:].tolist())}
    around = cells.at[:, None, 1:] + offsets(kernel, dimension)
    naive = [[place.get(tuple(c), len(cells)) for c in row] for row in around.tolist()]
    assert cells.neighbours(kernel).index.tolist() == naive


def test_parts_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, _ = occupied(blob())
    w = values(27, 2, 3, seed=1).requires_grad_()
    found = []
    for most in (2**20, 100):
        monkeypatch.setattr("vbreg.backends.gathered.MAX_GATHERED", most)
        x = values(len(cells), 2).requires_grad_()
        y = convolve(x, w, cells.neighbours(3))
        found.append((y, *torch.autograd.grad(y.square().sum(), (x, w))))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_cells_that_occur_twice_are_one() -> None:
    at = torch.cat([blob(), blob()[:20]])
    cells, row = occupied(at)
    assert len(cells) == len(blob())
    assert torch.equal(cells.at[row, 1:], at)


def test_what_has_no_table_is_told() -> None:
    with pytest.raises(VBRegError, match="no cells"):
        occupied(torch.empty(0, 3, dtype=torch.int64))
    with pytest.raises(VBRegError, match="too wide"):
        occupied(torch.tensor([[0, 0, 0], [2**30, 2**30, 2**30]]))


def test_a_layer_is_named_as_in_minkowski_engine() -> None:
    layer = SparseConvolution(4, 5, 3)
    assert {k: tuple(v.shape) for k, v in layer.state_dict().items()} == {"kernel": (27, 4, 5)}
    one = SparseConvolution(4, 5, 1, bias=True)
    assert {k: tuple(v.shape) for k, v in one.state_dict().items()} == {
        "kernel": (4, 5),
        "bias": (1, 5),
    }
    x = torch.randn(7, 4)
    alone = Neighbours(torch.arange(7, dtype=torch.int32).unsqueeze(1), 7)
    torch.testing.assert_close(one(x), convolve(x, one.kernel.unsqueeze(0), alone) + one.bias)


# --- few neighbours of many: lists of edges


def pairs(seed: int = 0, count: int = 150) -> Tensor:
    """Cells (count, 6) of made-up matches, dense enough that some have neighbours."""
    return torch.randint(-3, 4, (count, 6), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dimension", [3, 6])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_list_holds_what_the_table_holds(dimension: int, stride: int) -> None:
    number = torch.arange(150) % 2
    cells, _ = occupied(pairs()[:, :dimension], number)
    at = cells.coarser()[1] if stride == 2 else None
    table, edges = cells.neighbours(3, at), cells.edges(3, at)
    listed = {*zip(edges.output.tolist(), edges.kind.tolist(), edges.input.tolist(), strict=True)}
    assert len(listed) == len(edges.output)
    rows, columns = (table.index < len(cells)).nonzero().unbind(1)
    there = table.index[rows, columns]
    assert listed == {*zip(rows.tolist(), columns.tolist(), there.tolist(), strict=True)}
    assert (edges.outputs, edges.inputs) == (len(table.index), len(cells))
    assert edges.kinds == 3**dimension


@pytest.mark.parametrize("turned", [False, True])
def test_tied_offsets_share_a_matrix(turned: bool) -> None:
    """As the general convolution with the shared matrices written out."""
    cells, _ = occupied(pairs())
    coarse, corners = cells.coarser()
    edges = cells.edges(3, corners).in_classes(tied_classes())
    table = cells.neighbours(3, corners)
    edges, table = (edges.turned, table.turned) if turned else (edges, table)
    layer = TiedConvolution(4, 5).double()
    x = values(len(coarse) if turned else len(cells), 4).requires_grad_()
    found = layer(x, edges)
    naive = convolve(x, layer.kernel[tied_classes()], table)
    torch.testing.assert_close(found, naive)
    weights = values(*found.shape, seed=2)
    parts = [torch.autograd.grad((y * weights).sum(), (x, layer.kernel)) for y in (found, naive)]
    for a, b in zip(*parts, strict=True):
        torch.testing.assert_close(a, b)


def test_classes_do_not_change_where_axes_are_swapped_or_mirrored() -> None:
    classes, every = tied_classes(), offsets(3, 6)
    assert classes.unique().tolist() == list(range(16))
    changed = every[:, [1, 0, 2, 3, 5, 4]] * torch.tensor([1, -1, 1, -1, 1, 1])
    row = ((changed + 1) * 3 ** torch.arange(6)).sum(1)
    assert torch.equal(classes[row], classes)
