"""How long each function of a backend takes beside its readable form: why it has a second one.

    python benchmarks/backends.py                        # the backend of this machine's device
    python benchmarks/backends.py -o out                 # and write out/backends.csv
    python benchmarks/backends.py --device cpu -n 2000   # fewer matches, another device
    python benchmarks/backends.py --only vote refine     # some functions

One problem of made-up matches, as large as real ones (5000, an eighth of them right), in units of
the inlier threshold. Functions that see features are timed with the widths of both shipped
networks, `universal` and `fast`. Every number is the median of 5 runs after a warm-up, the device
synchronised; the two forms take turns, so that other work on the machine slows both. A ratio is the
readable form's time over the quick one's: above 1, the second form is worth its lines. Where a
backend takes the readable form, there is nothing to compare and the row is left out.

Choices within the backends follow: the search for neighbours by tree against that by grid (20,000
points), on a GPU that by all distances against the grid and against torch, and on a CPU the sparse
attention against the dense one.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from made_up import THRESHOLD, made_up_matches
from torch import Tensor

from vbreg import backends
from vbreg.backends import devices, neighbors
from vbreg.backends.plain import Backend
from vbreg.clouds import voxel_index
from vbreg.estimation import Estimate
from vbreg.frames import Matches
from vbreg.methods import mac
from vbreg.model import VBReg
from vbreg.network import Ends, NetworkOutput, VariationalNonLocalNetwork
from vbreg.refinement import MAX_POINTS, REACHES, exact_surfaces
from vbreg.surfaces import OrientedPoints, SurfacePair
from vbreg.voting import Electorate, HypotheticalInliers, Seeds, VotingConfig, select_seeds

NETWORKS = ("universal", "fast")
SEARCHED_POINTS, SEARCHED_NEIGHBORS = 20_000, 30  # as for normals and FPFH
ORDERED_VOXEL, ORDERED_RADIUS = 0.05, 0.2  # the cloud is one wide
JUDGED_POINTS, JUDGED_QUERIES = 8192, 20 * 512
ALIGNED_POINTS, ALIGNED_MATCHES = 5000, 2000
CELLS, CHANNELS, NEIGHBOURS = 30_000, 64, 0.35  # of a cloud, of a layer; the share that is there
RUNS = 5
COLUMNS = ("backend", "function", "plain_ms", "quick_ms", "ratio")

Work = Callable[[], object]


class Comparison(NamedTuple):
    """Two forms of the same function."""

    backend: str
    function: str
    plain: Work
    quick: Work


def matches_on(device: torch.device, n: int) -> Matches:
    matches = Matches.of_points(*([end] for end in made_up_matches(n)), THRESHOLD)
    return matches.map(lambda part: part.to(device))


@dataclass(frozen=True)
class Run:
    """What each function is given in the middle of a run, of one network."""

    matches: Matches
    network: VariationalNonLocalNetwork
    voting: VotingConfig

    @property
    def mask(self) -> Tensor:
        """Every match is real."""
        return self.matches.mask

    @cached_property
    def source(self) -> Tensor:
        """The source ends (1, N, 3) in single precision."""
        return self.matches.source.float()

    @cached_property
    def target(self) -> Tensor:
        """The target ends (1, N, 3) in single precision."""
        return self.matches.target.float()

    @cached_property
    def output(self) -> NetworkOutput:
        """What the network says, in the readable form."""
        found: NetworkOutput = self.network(self.source, self.target)
        return found

    @cached_property
    def ends(self) -> Ends:
        """Query, key and value of an iteration."""
        features = self.output.features[-1]
        return Backend().branches(self.network, features, None, None)(0, features)

    @cached_property
    def seeds(self) -> Seeds:
        """The correspondences that sets are gathered round."""
        radius, logits = self.voting.nms_radius, self.output.logits
        suppressed = Backend().suppressed(logits, self.source, self.mask, radius)
        return select_seeds(logits, suppressed, self.mask, self.voting)

    @cached_property
    def electorate(self) -> Electorate:
        """The features of all iterations."""
        return Electorate(self.output.features, self.network.sigma)

    @cached_property
    def members(self) -> HypotheticalInliers:
        """The hypothetical inliers of each seed."""
        return Backend().vote(
            self.electorate, self.source, self.target, self.seeds, self.mask, self.voting
        )

    @cached_property
    def weights(self) -> Tensor:
        """The weight of each member in its set."""
        return Backend().spectral_weights(
            self.output.features[-1], self.source, self.target, self.members, self.network.sigma
        )

    @cached_property
    def poses(self) -> Tensor:
        """The pose (1, K, 4, 4) of each set."""
        return Backend().hypotheses(self.source, self.target, self.members, self.weights)[0]

    @cached_property
    def estimate(self) -> Estimate:
        """A good pose, some way off."""
        score = Backend().inlier_score(self.poses, self.source, self.target, self.mask)
        T = self.poses[:, score[0].argmax()].double()
        T[:, :3, 3] += 0.1
        return Estimate(T, torch.ones(1, dtype=torch.bool, device=T.device))

    @cached_property
    def graph(self) -> Tensor:
        """The graph (N, N) of matches that agree as well as MAC asks for."""
        x, y = self.source[0], self.target[0]
        beta = Backend().compatibility(x, y, x, y).fill_diagonal_(0.0)
        return beta * (beta >= mac.strictness(len(self.source[0])))


def attend(backend: Backend, run: Run) -> object:
    """All iterations' attention, what is kept between them included."""
    attention = backend.attention(run.source, run.target, None)
    for _ in range(run.network.config.iterations):
        found = attention(*run.ends)
    return found


def all_branches(backend: Backend, run: Run) -> object:
    """All iterations' latent branches."""
    features = run.output.features[-1]
    branches = backend.branches(run.network, features, None, None)
    for k in range(run.network.config.iterations):
        found = branches(k, features)
    return found


def all_layers(backend: Backend, run: Run) -> object:
    """All iterations' message layers."""
    features = run.output.features[-1]
    for k in range(run.network.config.iterations):
        features = backend.normed_mlp(run.network.iteration(k).message, features, None, features)
    return features


WITH_FEATURES: dict[str, Callable[[Backend, Run], object]] = {
    "attention": attend,
    "branches": all_branches,
    "normed_mlp": all_layers,
    "vote": lambda b, r: b.vote(r.electorate, r.source, r.target, r.seeds, r.mask, r.voting),
    "spectral_weights": lambda b, r: b.spectral_weights(
        r.output.features[-1], r.source, r.target, r.members, r.network.sigma
    ),
}
WITHOUT_FEATURES: dict[str, Callable[[Backend, Run], object]] = {
    "compatibility": lambda b, r: b.compatibility(r.source, r.target, r.source, r.target),
    "triangle_weights": lambda b, r: b.triangle_weights(r.graph),
    "suppressed": lambda b, r: b.suppressed(r.output.logits, r.source, r.mask, r.voting.nms_radius),
    "hypotheses": lambda b, r: b.hypotheses(r.source, r.target, r.members, r.weights),
    "crowd_weights": lambda b, r: b.crowd_weights(r.source, r.target, r.mask),
    "inlier_score": lambda b, r: b.inlier_score(r.poses, r.source, r.target, r.mask),
    "refine": lambda b, r: b.refine(r.estimate, r.matches.source, r.matches.target, r.mask),
}


def of_backend(quick: Backend, runs: dict[str, Run]) -> Iterator[Comparison]:
    """Every function that the backend has a form of its own for."""
    plain = Backend()

    def compared(name: str, work: Callable[[Backend, Run], object], run: Run) -> Comparison:
        return Comparison(quick.name, name, lambda: work(plain, run), lambda: work(quick, run))

    for name, work in WITH_FEATURES.items():
        if getattr(type(quick), name) is not getattr(Backend, name):
            for network, run in runs.items():
                yield compared(f"{name} ({network})", work, run)
    for name, work in WITHOUT_FEATURES.items():
        if getattr(type(quick), name) is not getattr(Backend, name):
            yield compared(name, work, runs[NETWORKS[0]])


def whole_runs(
    quick: Backend, models: dict[str, VBReg], runs: dict[str, Run]
) -> Iterator[Comparison]:
    """From matches to pose; recorded where the device can."""
    for network, model in models.items():
        plain = VBReg(model.network, voting=model.voting, backend="plain")
        ends = (
            runs[network].matches.source[0].cpu().numpy() * THRESHOLD,
            runs[network].matches.target[0].cpu().numpy() * THRESHOLD,
        )
        forms = (
            lambda model=model, ends=ends: model.estimate(*ends, inlier_threshold=THRESHOLD)
            for model in (plain, model)
        )
        yield Comparison(quick.name, f"whole ({network})", *forms)


def gathered_products(quick: Backend, device: torch.device) -> Iterator[Comparison]:
    """What a convolution on cells is made of, with as many neighbours as on a surface."""
    generator = torch.Generator().manual_seed(0)
    N, C = CELLS, CHANNELS
    x = torch.randn(N, C, generator=generator).to(device)
    kernel = torch.randn(27, C, C, generator=generator).to(device)
    index = torch.randint(N, (N, 27), generator=generator)
    index[torch.rand(N, 27, generator=generator) > NEIGHBOURS] = N
    index = index.int().to(device)
    works: dict[str, Callable[[Backend], object]] = {
        "gathered_product": lambda b: b.gathered_product(x, index, kernel),
        "gathered_outer": lambda b: b.gathered_outer(x, index, x),
    }
    plain = Backend()
    for name, work in works.items():
        if getattr(type(quick), name) is not getattr(Backend, name):
            yield Comparison(
                quick.name,
                name,
                lambda w=work: w(plain),
                lambda w=work: w(quick),  # type: ignore[misc]
            )


def comparisons_of_distances(points: Tensor) -> Iterator[Comparison]:
    """All distances by the backend of a GPU, against its grid and against their readable form.

    As many are asked for as by the learned descriptor: a thousand patches, and every normal of a
    cloud. Points are in the order of voxels, as those of a cloud are.
    """
    points = points[voxel_index(points, ORDERED_VOXEL).argsort()]
    for among, queries, k in ((points, points[::20], 128), (points[::4], points[::4], 30)):
        given, size = (among, queries, ORDERED_RADIUS, k), f"{len(queries)} x {k}"
        real = torch.ones(1, len(among), dtype=torch.bool, device=points.device)
        batch = among[None], queries[None], real, k, ORDERED_RADIUS
        quick = partial(neighbors.neighbors_within, *given)
        grid = partial(neighbors.grid_radius_knn, *given)
        readable = partial(neighbors.nearest_by_distances, *batch)
        yield Comparison("neighbors", f"distances, against grid, {size}", grid, quick)
        yield Comparison("neighbors", f"distances, against torch's, {size}", readable, quick)


def steps_on_clouds(quick: Backend, device: torch.device) -> Iterator[Comparison]:
    """A step of a refinement on two samples of a corner, with as many points as of a room."""
    generator = torch.Generator().manual_seed(0)

    def walls(n: int) -> Tensor:
        """Points of three walls with their normals behind them (1, n, 6)."""
        normal = torch.eye(3)[torch.randint(3, (1, n), generator=generator)]
        points = 60 * torch.rand(1, n, 3, generator=generator) * (1 - normal)
        return torch.cat([points, normal], dim=-1).to(device)

    def surface(n: int) -> OrientedPoints:
        points, normals = walls(n).split(3, dim=-1)
        return OrientedPoints(points, normals, torch.ones_like(points[..., 0], dtype=torch.bool))

    matched = walls(ALIGNED_MATCHES)[..., :3]
    real = torch.ones_like(matched[..., 0], dtype=torch.bool)
    ends = surface(MAX_POINTS), surface(ALIGNED_POINTS)
    surfaces = exact_surfaces(SurfacePair(*ends, matched, matched, real))
    T = torch.eye(4, dtype=torch.float64, device=device)[None]
    T[:, :3, 3] += 0.5
    plain = Backend()
    for name in ("aligned", "alignment_gain"):
        if getattr(type(quick), name) is not getattr(Backend, name):
            yield Comparison(
                quick.name,
                name,
                partial(getattr(plain, name), surfaces, T, REACHES[0]),
                partial(getattr(quick, name), surfaces, T, REACHES[0]),
            )


def neighbor_searches(device: torch.device) -> Iterator[Comparison]:
    """The tree against the grid, and all distances against either, where each is used."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(SEARCHED_POINTS, 3, generator=generator)
    # On average as many lie within the radius as are asked for.
    radius = float((SEARCHED_NEIGHBORS / (SEARCHED_POINTS * 4.19)) ** (1 / 3))
    there, k = points.to(device), SEARCHED_NEIGHBORS

    def tree() -> object:
        return neighbors.tree_radius_knn(points, points, radius, k)

    def grid() -> object:
        return neighbors.grid_radius_knn(there, there, radius, k)

    if devices.is_cpu(device):
        yield Comparison("neighbors", "tree, against grid", grid, tree)
    else:
        yield Comparison("neighbors", "grid, against the CPU's tree", tree, grid)
        yield from comparisons_of_distances(there)
    # The nearest surface of the keypoints that a judge looks at, under 20 candidate poses.
    queries = torch.rand(1, JUDGED_QUERIES, 3, generator=generator).to(device)
    cloud, real = there[None, :JUDGED_POINTS], torch.ones(1, JUDGED_POINTS).bool().to(device)
    searchable = neighbors.Searchable(cloud, real)
    yield Comparison(
        "neighbors",
        "nearest, against all distances",
        lambda: neighbors.nearest_by_distances(cloud, queries, real, 1),
        lambda: searchable.nearest(queries, torch.inf, 1),
    )


def attention_forms(runs: dict[str, Run]) -> Iterator[Comparison]:
    """The CPU's dense attention against its sparse one, on the share of pairs that matches have."""
    from vbreg.backends import cpu

    class Dense(Backend):
        def attention(self, source: Tensor, target: Tensor, mask: Tensor | None) -> Any:
            return cpu.dense_attention(source, target, mask)

    class Sparse(Backend):
        def attention(self, source: Tensor, target: Tensor, mask: Tensor | None) -> Any:
            return cpu.sparse_attention(source, target, mask, cpu.MAX_SPARSE_PAIRS)

    for network, run in runs.items():
        for factor in (1, 3):  # a wider scene has fewer compatible pairs
            wide = Run(
                run.matches.map(lambda p, f=factor: f * p if p.is_floating_point() else p),
                run.network,
                run.voting,
            )
            wide.__dict__["output"] = run.output  # the same features
            share = cpu._share(wide.source, wide.target)
            yield Comparison(
                "cpu",
                f"sparse attention, against dense, {share:.0%} of pairs ({network})",
                lambda wide=wide: attend(Dense(), wide),
                lambda wide=wide: attend(Sparse(), wide),
            )


def timed(compared: Comparison, device: torch.device) -> tuple[float, float]:
    """Milliseconds of both forms, which take turns."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(RUNS + 1):
        for work, taken in zip((compared.plain, compared.quick), seconds, strict=True):
            devices.wait(device)
            start = time.perf_counter()
            work()
            devices.wait(device)
            if turn > 0:  # the first is to warm up
                taken.append(time.perf_counter() - start)
    plain, quick = (1e3 * statistics.median(taken) for taken in seconds)
    return plain, quick


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("-n", "--matches", type=int, default=5000, help="default: %(default)s")
    made.add_argument("--device", default="auto", help="'auto', 'cpu' or 'cuda'")
    made.add_argument(
        "--only", nargs="+", metavar="FUNCTION", help="rows whose name begins with one of these"
    )
    made.add_argument("-o", "--output", type=Path, metavar="DIR", help="folder of backends.csv")
    return made


@torch.inference_mode()
def main() -> None:
    """Time both forms, print a table, write a file."""
    options = parser().parse_args()
    device = devices.choose_device(options.device)
    quick = backends.choose(device)
    print(
        f"{devices.device_name(device)}, backend {quick.name}, {options.matches} matches, "
        f"{torch.get_num_threads()} threads",
        flush=True,
    )
    models = {name: VBReg.from_pretrained(name, device=device) for name in NETWORKS}
    matches = matches_on(device, options.matches)
    runs = {name: Run(matches, model.network, model.voting) for name, model in models.items()}
    comparisons = [
        *of_backend(quick, runs),
        *(whole_runs(quick, models, runs) if quick.name != "plain" else ()),
        *gathered_products(quick, device),
        *steps_on_clouds(quick, device),
        *neighbor_searches(device),
        *(attention_forms(runs) if quick.name == "cpu" else ()),
    ]
    if options.only:
        wanted = tuple(options.only)
        comparisons = [c for c in comparisons if c.function.startswith(wanted)]
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
    width = max((len(c.function) for c in comparisons), default=0)
    print(f"{'backend':10} {'function':{width}} {'plain ms':>10} {'quick ms':>10} {'ratio':>7}")
    rows = []
    for done, compared in enumerate(comparisons, 1):
        plain, found = timed(compared, device)
        ratio = plain / found
        row = compared.backend, compared.function, f"{plain:.3f}", f"{found:.3f}", f"{ratio:.2f}"
        rows.append(row)
        print(
            f"{row[0]:10} {row[1]:{width}} {plain:10.2f} {found:10.2f} {ratio:6.2f}x"
            f"   [{done}/{len(comparisons)}]",
            flush=True,
        )
        if options.output:
            with (options.output / "backends.csv").open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([COLUMNS, *rows])
    if options.output:
        print(f"wrote {options.output / 'backends.csv'}")


if __name__ == "__main__":
    main()
