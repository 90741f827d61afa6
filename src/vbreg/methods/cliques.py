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

STEPS = 2_000_000  # vertices looked at: a second or so


class Clique(NamedTuple):
    members: Int64  # ascending
    exact: bool  # no larger one exists


def core_numbers(adjacency: Bool) -> tuple[Int64, Int64]:
    """The core number of each vertex, and an order in which it has that many later neighbours.

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
    """One integer per row: bit j is set where entry j is."""
    packed = np.packbits(adjacency, axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def maximum_clique(adjacency: Bool, steps: int = STEPS) -> Clique:
    """The largest set of vertices that are all adjacent, or the largest found in so many steps.

    As TEASER++ does: a greedy search in the order of core numbers, then branch and bound on what a
    larger clique could lie in, bounded by greedy colouring.
    """
    core, peeled = core_numbers(adjacency)
    order = peeled[::-1]  # bit 0 is the vertex that was peeled last
    strength = core[order]
    rows = bitsets(adjacency[np.ix_(order, order)])
    best, left = _greedy_clique(rows, strength.tolist(), steps // 2)
    hopeful = int((strength >= len(best)).sum())  # a larger clique lies among these, the first
    inside = (1 << hopeful) - 1
    found, exact = _branch_and_bound([row & inside for row in rows[:hopeful]], best, left)
    return Clique(np.sort(order[found]), exact)


def maximal_cliques(
    adjacency: Bool, smallest: int = 3, steps: int = STEPS
) -> Iterator[tuple[int, ...]]:
    """Sets of vertices that are all adjacent and to which no vertex can be added.

    Bron & Kerbosch with pivots, from each vertex in the order of Eppstein et al., so that each
    clique comes once. Every vertex has an equal share of the steps, and one whose share runs out
    still gives the clique it is at.
    """
    order = core_numbers(adjacency)[1][::-1]
    rows = bitsets(adjacency[np.ix_(order, order)])
    for v, row in enumerate(rows):
        earlier = (1 << v) - 1
        share = steps // len(rows)
        for clique in _cliques_from(v, row & earlier, row & ~earlier, rows, share):
            if len(clique) >= smallest:
                yield tuple(int(order[u]) for u in clique)


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _members(bits: int) -> Iterator[int]:
    while bits:
        yield _lowest(bits)
        bits &= bits - 1


def _greedy_clique(rows: list[int], strength: list[int], steps: int) -> tuple[list[int], int]:
    """From each vertex, add the neighbour of the highest core number until none is left.

    Returns the largest clique, and the steps that are left.
    """
    best: list[int] = []
    for v, row in enumerate(rows):
        if strength[v] < len(best) or steps < 0:
            break  # strengths fall, so no later vertex lies in a larger clique either
        clique, rest = [v], row
        while rest:
            clique.append(_lowest(rest))
            rest &= rows[clique[-1]]
        steps -= len(clique)
        if len(clique) > len(best):
            best = clique
    return best, steps


def _colour(bits: int, rows: list[int], skip: int) -> tuple[list[int], list[int]]:
    """Vertices whose greedy colour is above `skip`, colours rising, and these colours.

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
    """A clique larger than `best` if there is one, by Tomita's scheme on bit sets; and whether the
    search came to its end."""
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
) -> Iterator[list[int]]:
    """Maximal cliques with v, others from `inside`, that no vertex of `outside` could join."""
    path = [v]
    stack = [(inside, outside, inside & ~rows[_pivot(inside, outside, rows)])] if inside else []
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
        if inner:
            steps -= inner.bit_count() + outer.bit_count()
            stack.append((inner, outer, inner & ~rows[_pivot(inner, outer, rows)]))
            continue
        if not outer:
            yield path
        path.pop()
        if steps < 0:
            return


def _pivot(inside: int, outside: int, rows: list[int]) -> int:
    """The vertex with most neighbours inside: cliques without it have one that is none of these."""
    best, most = -1, -1
    for u in _members(inside | outside):
        count = (inside & rows[u]).bit_count()
        if count > most:
            best, most = u, count
    return best
