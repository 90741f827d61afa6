"""Cliques of a graph of matches: the largest one, and the maximal ones.

A row of the adjacency matrix is a Python integer, one bit per vertex, so that a set of thousands of
vertices is intersected in one operation and no compiled package is needed. Both searches take
exponential time on some graphs. They stop after a number of steps, not of seconds, so that the same
graph gives the same cliques on any machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from vbreg.types import Bool, Int64

MAX_VERTICES = (
    500_000  # vertices looked at: half a second or so; four times as many find no more poses
)


class Clique(NamedTuple):
    """Vertices of a graph that are all joined to each other."""

    members: Int64  # ascending
    exact: bool  # no larger one exists


def core_numbers(adjacency: Bool) -> tuple[Int64, Int64]:
    """Return core numbers, and an order in which a vertex has at most so many later neighbours.

    The k-core is what is left when vertices with fewer than k neighbours are taken away until there
    are none; a clique of k + 1 vertices lies in it.
    """
    degree = adjacency.sum(1)
    core = np.zeros(len(adjacency), dtype=np.int64)
    alive = np.ones(len(adjacency), dtype=bool)
    order: list[Int64] = []
    k = 0
    while alive.any():
        k = max(k, int(degree[alive].min()))
        loose = np.flatnonzero(alive & (degree <= k))
        core[loose], alive[loose] = k, False
        order.append(loose)
        degree = degree - adjacency[loose].sum(0)
    return core, np.concatenate(order) if order else np.zeros(0, dtype=np.int64)


def bitsets(adjacency: Bool) -> list[int]:
    """Return one integer per row: bit j is set where entry j is."""
    packed = np.packbits(adjacency, axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def maximum_clique(adjacency: Bool, steps: int = MAX_VERTICES) -> Clique:
    """Find the largest set of vertices that are all adjacent, or the largest in so many steps.

    A greedy search in the order of core numbers is followed, as in TEASER++, by branch and bound on
    what a larger clique could lie in, bounded by greedy colouring.
    """
    core, peeled = core_numbers(adjacency)
    order = peeled[::-1]  # bit 0 is the vertex that was peeled last
    strength = core[order]
    rows = bitsets(adjacency[np.ix_(order, order)])
    half = steps // 2
    best, left = _greedy_clique(rows, strength.tolist(), half)
    hopeful = int((strength >= len(best)).sum())  # a larger clique lies among these, the first
    inside = (1 << hopeful) - 1
    rows = [row & inside for row in rows[:hopeful]]
    found, exact = _branch_and_bound(rows, best, left + steps - half)
    return Clique(np.sort(order[found]), exact)


def maximal_cliques(
    adjacency: Bool, smallest: int = 3, steps: int = MAX_VERTICES
) -> Iterator[tuple[int, ...]]:
    """Yield sets of vertices, all adjacent, to which no vertex can be added, each once.

    Bron & Kerbosch's scheme runs from each vertex in the order of Eppstein et al. Every vertex has
    an equal share of the steps, and what it does not need goes to those after it, which have more
    neighbours. One whose share runs out completes the clique it is at and stops, so that every
    vertex gets one at least.
    """
    order = core_numbers(adjacency)[1][::-1]
    rows = bitsets(adjacency[np.ix_(order, order)])
    seen: set[tuple[int, ...]] = set()
    for v in reversed(range(len(rows))):
        share = steps // (v + 1)
        inside = rows[v] & ((1 << v) - 1)  # peeled later than v
        found, unused = _cliques_from(v, inside, rows[v] ^ inside, rows, share)
        steps -= share - unused
        for clique in found:
            members = tuple(sorted(order[clique].tolist()))
            if len(members) >= smallest and members not in seen:
                seen.add(members)
                yield members


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _members(bits: int) -> Iterator[int]:
    while bits:
        yield _lowest(bits)
        bits &= bits - 1


def _completed(path: list[int], common: int, rows: list[int]) -> list[int]:
    """Return the path made maximal, always by the common neighbour that was peeled last."""
    path = path.copy()
    while common:
        path.append(_lowest(common))
        common &= rows[path[-1]]
    return path


def _greedy_clique(rows: list[int], strength: list[int], steps: int) -> tuple[list[int], int]:
    """Find the largest clique completed from some one vertex; return it and the steps left."""
    best: list[int] = []
    for v, row in enumerate(rows):
        if strength[v] < len(best) or steps < 0:
            break  # strengths fall, so no later vertex lies in a larger clique either
        clique = _completed([v], row, rows)
        steps -= len(clique)
        if len(clique) > len(best):
            best = clique
    return best, steps


def _colour(bits: int, rows: list[int], skip: int) -> tuple[list[int], list[int]]:
    """Return vertices whose greedy colour is above `skip`, colours rising, and these colours.

    A clique has at most one vertex of each colour, so one among vertices up to the last of colour c
    has at most c.
    """
    vertices: list[int] = []
    colours: list[int] = []
    colour = 0
    while bits:
        colour += 1
        open_ = bits
        while open_:
            v = _lowest(open_)
            bits ^= 1 << v
            open_ &= ~(rows[v] | 1 << v)
            if colour > skip:
                vertices.append(v)
                colours.append(colour)
    return vertices, colours


class _Branch(NamedTuple):
    inside: list[int]  # one integer: the vertices that may still be added
    vertices: list[int]  # to try, the last first
    colours: list[int]  # bounds on what each can lead to


def _branch_and_bound(rows: list[int], best: list[int], steps: int) -> tuple[list[int], bool]:
    """Find a clique larger than `best` if there is one, by Tomita's scheme on bit sets.

    Whether the search came to its end is returned with it.
    """
    everything = (1 << len(rows)) - 1
    stack = [_Branch([everything], *_colour(everything, rows, len(best)))]
    path: list[int] = []
    while stack:
        if steps < 0:
            return best, False
        branch = stack[-1]
        if not branch.vertices or len(path) + branch.colours[-1] <= len(best):
            stack.pop()
            if path:
                path.pop()
            continue
        v = branch.vertices.pop()
        branch.colours.pop()
        path.append(v)
        inner = branch.inside[0] & rows[v]
        branch.inside[0] ^= 1 << v
        if inner:
            stack.append(_Branch([inner], *_colour(inner, rows, len(best) - len(path))))
            steps -= inner.bit_count()
        else:
            if len(path) > len(best):
                best = path.copy()
            path.pop()
    return best, True


def _cliques_from(
    v: int, inside: int, outside: int, rows: list[int], steps: int
) -> tuple[list[list[int]], int]:
    """Find the maximal cliques of v and some of `inside` that no vertex of `outside` could join.

    The steps that are left are returned with them.
    """
    found: list[list[int]] = []
    path = [v]
    steps -= (inside | outside).bit_count()
    if steps < 0:
        return [_completed(path, inside | outside, rows)], 0
    if not inside:
        return [path] * (not outside), steps
    stack = [(inside, outside, inside & ~rows[_pivot(inside, outside, rows)])]
    while stack:
        inside, outside, branches = stack.pop()
        if not branches:
            path.pop()
            continue
        u = _lowest(branches)
        bit = 1 << u
        stack.append((inside ^ bit, outside | bit, branches ^ bit))
        path.append(u)
        inner, outer = inside & rows[u], outside & rows[u]
        steps -= (inner | outer).bit_count()
        if steps < 0:
            found.append(_completed(path, inner | outer, rows))
            return found, 0
        if inner:
            stack.append((inner, outer, inner & ~rows[_pivot(inner, outer, rows)]))
            continue
        if not outer:
            found.append(path.copy())
        path.pop()
    return found, steps


def _pivot(inside: int, outside: int, rows: list[int]) -> int:
    """Return the vertex with most neighbours inside.

    A clique of its neighbours alone can be joined by it, so that only the others need to be
    branched on.
    """
    best, most = -1, -1
    for candidates, enough in ((outside, inside.bit_count()), (inside, inside.bit_count() - 1)):
        for u in _members(candidates):
            count = (inside & rows[u]).bit_count()
            if count > most:
                best, most = u, count
            if most >= enough:
                return best
    return best
