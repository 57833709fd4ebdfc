"""Edge colouring: which moves can take place at the same time without sharing a worker.

Workers are vertices and moves are edges. Moves of one colour have no worker in common. A worker
with d moves needs d colours, so the largest degree D is the least number that is possible.

* If workers can be divided into two sides with no move inside a side, D colours are enough (König
  1916), and D are used. This is so if some workers only give and the others only take.
* Otherwise up to 3/2 D can be needed (Shannon 1949; for instance three workers, each moving to the
  next). At most ``3 * ceil(D / 2)`` are used, and usually close to D.

Moves between the same two workers are one edge with a multiplicity, and are only separated at the
very end. So the cost depends on the number of pairs first, and on the number of moves last.
Everything is built of *Euler splits*, which halve the degree of each vertex (Gabow 1976). If the
degree is odd, a perfect matching is taken out first, found by Euler splits, too (Alon 2003, "A
simple algorithm for edge-coloring bipartite multigraphs"). 10^5 moves take half a second to one,
10^6 five.

Megaphone's published planner takes one matching after another, and forgets what a source has left
for another target, so that [0, 0] to [1, 2] loses a move. A colouring has a colour for each edge.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.errors import ensure
from headrace.migration.euler import directions, halves

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Spreads the edges that odd cycles give up over all vertices (Knuth's multiplicative hash).
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, eq=False)
class _Edges:
    """Edges of a multigraph: their ends, the number of each, and the pair that each stands for."""

    one: I64
    other: I64
    count: I64
    pair: I64

    def take(self, chosen: Mask | I64) -> _Edges:
        return _Edges(self.one[chosen], self.other[chosen], self.count[chosen], self.pair[chosen])

    def times(self, count: I64) -> _Edges:
        """Return the same edges with other counts, without those whose count is 0."""
        some = count > 0
        return _Edges(self.one[some], self.other[some], count[some], self.pair[some])

    def plus(self, more: _Edges) -> _Edges:
        return _Edges(
            np.concatenate([self.one, more.one]),
            np.concatenate([self.other, more.other]),
            np.concatenate([self.count, more.count]),
            np.concatenate([self.pair, more.pair]),
        )


@dataclass(frozen=True, eq=False)
class _Coloured:
    """Single edges with their colours."""

    edges: _Edges
    colours: I64

    def take(self, chosen: Mask | I64) -> _Coloured:
        return _Coloured(self.edges.take(chosen), self.colours[chosen])

    def plus(self, more: _Coloured) -> _Coloured:
        return _Coloured(self.edges.plus(more.edges), np.concatenate([self.colours, more.colours]))


def edge_colours(sources: npt.ArrayLike, targets: npt.ArrayLike) -> I64:
    """Return a colour for each move. Moves of one colour share no worker.

    Colours are numbered from 0, and each is used. Among moves between the same two workers, earlier
    ones get lower colours.

    >>> edge_colours([0, 0], [1, 2]).tolist()
    [0, 1]
    >>> sorted(edge_colours([0, 1, 2], [1, 2, 0]).tolist())
    [0, 1, 2]
    """
    ends = np.stack([np.asarray(sources, np.int64), np.asarray(targets, np.int64)])
    low, high = ends.min(axis=0), ends.max(axis=0)
    ensure(bool((low != high).all()), "a move must lead from one worker to another")
    if not len(low):
        return np.empty(0, dtype=np.int64)
    names, pair_of, counts = np.unique(
        low * (high.max() + 1) + high, return_inverse=True, return_counts=True
    )
    edges = _Edges(
        *np.divmod(names, high.max() + 1), counts.astype(np.int64), np.arange(len(names))
    )
    coloured = _colour(edges)
    colours = np.empty(len(low), dtype=np.int64)
    by_colour = np.lexsort((coloured.colours, coloured.edges.pair))
    colours[np.argsort(pair_of, kind="stable")] = coloured.colours[by_colour]
    return np.unique(colours, return_inverse=True)[1].astype(np.int64)


def _colour(edges: _Edges) -> _Coloured:
    """Colour a multigraph: bipartite parts exactly, the rest within Shannon's bound."""
    side = _sides(edges)
    two_sided = side[edges.one] >= 0
    bipartite, rest = edges.take(two_sided), edges.take(~two_sided)
    turned = side[bipartite.one] == 1
    left = np.where(turned, bipartite.other, bipartite.one)
    right = np.where(turned, bipartite.one, bipartite.other)
    found = _colour_bipartite(_Edges(left, right, bipartite.count, bipartite.pair))
    return found.plus(_colour_general(rest)) if len(rest.one) else found


def _sides(edges: _Edges) -> I64:
    """Return the side (0 or 1) of each vertex, or -1 if an odd cycle makes two sides impossible."""
    vertices = int(max(edges.one.max(), edges.other.max())) + 1
    neighbours: list[list[int]] = [[] for _ in range(vertices)]
    for one, other in zip(edges.one.tolist(), edges.other.tolist(), strict=True):
        neighbours[one].append(other)
        neighbours[other].append(one)
    side = [-2] * vertices
    for root in range(vertices):
        if side[root] == -2:
            _sides_from(root, neighbours, side)
    return np.array(side, dtype=np.int64)


def _sides_from(root: int, neighbours: list[list[int]], side: list[int]) -> None:
    """Set the side of each vertex that can be reached from one vertex."""
    side[root], seen, queue, odd = 0, [root], deque([root]), False
    while queue:
        at = queue.popleft()
        for next_ in neighbours[at]:
            if side[next_] == -2:
                side[next_] = 1 - side[at]
                seen.append(next_)
                queue.append(next_)
            odd = odd or side[next_] == side[at]
    if odd:
        for vertex in seen:
            side[vertex] = -1


# -- bipartite: as many colours as the largest degree ---------------------------------------------


def _colour_bipartite(edges: _Edges) -> _Coloured:
    """Colour a bipartite multigraph with as many colours as its largest degree.

    The graph is first made regular. Vertices of small degree are joined, since a colouring of fewer
    vertices is valid for more. Dummy edges add what is missing. The result is at most three times
    as large.
    """
    if not len(edges.one):
        return _Coloured(edges, np.empty(0, dtype=np.int64))
    left, right = _degrees(edges.one, edges.count), _degrees(edges.other, edges.count)
    degree = int(max(left.max(), right.max()))
    left_group, right_group = _packed(left, degree), _packed(right, degree)
    joined = _Edges(
        left_group[edges.one], right_group[edges.other], edges.count, np.arange(len(edges.one))
    )
    size = int(max(left_group.max(), right_group.max())) + 1
    found = _colour_regular(joined.plus(_fill(joined, size, degree)), size, degree, 0)
    real = found.take(found.edges.pair >= 0)
    single = edges.take(real.edges.pair)
    return _Coloured(single.times(np.ones(len(real.colours), dtype=np.int64)), real.colours)


def _degrees(vertices: I64, counts: I64) -> I64:
    degrees = np.zeros(int(vertices.max()) + 1, dtype=np.int64)
    np.add.at(degrees, vertices, counts)
    return degrees


def _packed(degrees: I64, most: int) -> I64:
    """Return a group for each vertex. A group's degree is at most ``most``.

    Two neighbouring groups together exceed it.
    """
    groups, group, filled = [], 0, 0
    for degree in degrees.tolist():
        if filled + degree > most:
            group, filled = group + 1, 0
        filled += degree
        groups.append(group)
    return np.array(groups, dtype=np.int64)


def _fill(edges: _Edges, size: int, degree: int) -> _Edges:
    """Return the dummy edges that give each vertex the same degree."""
    missing = [np.full(size, degree) for _ in range(2)]
    for lacks, vertices in zip(missing, (edges.one, edges.other), strict=True):
        np.subtract.at(lacks, vertices, edges.count)
    left, right = np.cumsum(missing[0]), np.cumsum(missing[1])
    cuts = np.union1d(left, right)
    cuts = cuts[cuts > 0]
    dummies = np.full(len(cuts), -1, dtype=np.int64)
    counts = np.diff(cuts, prepend=0)
    return _Edges(np.searchsorted(left, cuts), np.searchsorted(right, cuts), counts, dummies)


def _colour_regular(edges: _Edges, size: int, degree: int, first: int) -> _Coloured:
    """Colour a regular bipartite multigraph, with colours from ``first`` on.

    The graph is split in two halves, and one half is coloured in the same way. Some of its colours
    then join the other half, so that the degree of that becomes a power of two and splits alone can
    colour it (Gabow 1976).
    """
    if degree & (degree - 1) == 0:
        return _colour_by_splits(edges, size, degree, first)
    if degree % 2:
        matched = _perfect_matching(edges, size, degree)
        single = edges.take(matched).times(np.ones(size, dtype=np.int64))
        left = edges.count.copy()
        left[matched] -= 1
        rest = _colour_regular(edges.times(left), size, degree - 1, first + 1)
        return rest.plus(_Coloured(single, np.full(size, first)))
    one, other = _split(edges)
    half = degree // 2
    power = 1 << (half - 1).bit_length()
    kept = first + 2 * half - power
    coloured = _colour_regular(one, size, half, first)
    joins = coloured.colours >= kept
    by_splits = _colour_by_splits(other.plus(coloured.edges.take(joins)), size, power, kept)
    return coloured.take(~joins).plus(by_splits)


def _split(edges: _Edges) -> tuple[_Edges, _Edges]:
    """Divide a multigraph whose degrees are even into two of half the degree."""
    second = _second_half(edges)
    return edges.times(edges.count - second), edges.times(second)


def _second_half(edges: _Edges) -> I64:
    """Return how many of each edge go to the second half. Only an odd count needs a decision."""
    odd = np.flatnonzero(edges.count & 1)
    second = edges.count >> 1
    second[odd[halves(edges.one[odd], edges.other[odd])]] += 1
    return second


def _colour_by_splits(edges: _Edges, size: int, degree: int, first: int) -> _Coloured:
    """Colour a multigraph whose degree is a power of two.

    All parts are split at once until the degree is one.
    """
    part = np.zeros(len(edges.one), dtype=np.int64)
    while degree > 1:
        inside = _Edges(part * size + edges.one, part * size + edges.other, edges.count, part)
        second = _second_half(inside)
        first_half = edges.count - second
        part = np.concatenate([2 * part[first_half > 0], 2 * part[second > 0] + 1])
        edges = edges.times(first_half).plus(edges.times(second))
        degree //= 2
    return _Coloured(edges, part + first)


def _perfect_matching(edges: _Edges, size: int, degree: int) -> I64:
    """Return the positions of edges that meet each vertex of a regular bipartite multigraph once.

    Alon 2003: multiply the edges and add a few bad ones, so that the degree is a power of two. Then
    split again and again, and keep the half with fewer bad edges. In the end no bad edge is left.
    """
    rounds = (degree * size - 1).bit_length()
    often, few = divmod(1 << rounds, degree)
    vertices = np.arange(size)
    bad = _Edges(vertices, vertices, np.full(size, few), np.full(size, -1))
    positions = np.arange(len(edges.one))
    now = _Edges(edges.one, edges.other, edges.count * often, positions).plus(bad)
    for _ in range(rounds):
        parts = _split(now)
        now = min(parts, key=lambda half: int(half.count[half.pair < 0].sum()))
    ensure(bool((now.pair >= 0).all()) and len(now.pair) == size, "a matching is not perfect")
    return now.pair


# -- not bipartite: within Shannon's bound --------------------------------------------------------


def _colour_general(edges: _Edges) -> _Coloured:
    """Colour any multigraph with at most 3 * ceil(D / 2) colours.

    Edges get directions, so that each vertex is left and entered at most ceil(D / 2) times. With
    leaving on one side and entering on the other, the graph is bipartite. Each of its colours is a
    set of paths and cycles, for which two colours are enough, except for one edge of each odd
    cycle. These edges are then coloured again, or those of each colour get a third colour,
    whichever takes fewer colours.
    """
    found = _colour_bipartite(_directed(edges))
    tails, heads, classes = found.edges.one, found.edges.other, found.colours
    turn, over = _alternate(tails, heads, classes)
    kept = _Coloured(found.edges.take(~over), 2 * classes[~over] + turn[~over])
    if not over.any():
        return kept
    left = found.edges.take(over)
    thirds, third_of = np.unique(classes[over], return_inverse=True)
    again = _colour(left) if len(thirds) > 1 else _Coloured(left, third_of)
    if int(again.colours.max()) + 1 >= len(thirds):
        again = _Coloured(left, third_of.astype(np.int64))
    return kept.plus(_Coloured(again.edges, again.colours + 2 * (int(classes.max()) + 1)))


def _directed(edges: _Edges) -> _Edges:
    """Give each edge a direction.

    A vertex of degree d is left, and entered, at most ceil(d/2) times.
    """
    odd = np.flatnonzero(edges.count & 1)
    one, other = edges.one[odd], edges.other[odd]
    vertices = np.arange(int(max(edges.one.max(), edges.other.max())) + 1)
    loose = vertices[np.bincount(np.concatenate([one, other]), minlength=len(vertices)) % 2 == 1]
    hub = np.full(len(loose), len(vertices))  # dummies join vertices of odd degree
    back = directions(np.concatenate([one, loose]), np.concatenate([other, hub]))[: len(odd)]
    there = edges.count >> 1
    there[odd[~back]] += 1
    turned = _Edges(edges.other, edges.one, edges.count, edges.pair)
    return edges.times(there).plus(turned.times(edges.count - there))


def _alternate(tails: I64, heads: I64, classes: I64) -> tuple[I64, Mask]:
    """Colour paths and cycles with two alternating colours.

    Args:
        tails, heads: the ends of single directed edges.
        classes: the class of each edge. Within a class, each vertex is left, and entered, at most
            once.

    Returns:
        The turn of each edge, 0 or 1; and which edges are one too many in an odd cycle.
    """
    edges = len(tails)
    following = _following(tails, heads, classes)
    least = _least_of_cycles(following)
    lasts = np.flatnonzero(
        least == np.arange(edges)
    )  # one edge of each cycle, which becomes its last
    jump = np.append(following, edges)
    jump[lasts] = edges
    to_end = np.where(jump < edges, 1, 0)
    while (jump < edges).any():
        to_end, jump = to_end + to_end[jump], jump[jump]
    over = np.zeros(edges, dtype=np.bool_)
    over[lasts[to_end[following[lasts]] % 2 == 0]] = True  # the first would have the same turn
    return to_end[:edges] % 2, over


def _following(tails: I64, heads: I64, classes: I64) -> I64:
    """Return for each edge the edge of its class that leaves where it enters.

    If there is none, return the number of edges.
    """
    edges = len(tails)
    size = int(max(tails.max(), heads.max())) + 1
    leaving = classes * size + tails
    order = np.argsort(leaving, kind="stable")
    wanted = classes * size + heads
    at = np.minimum(np.searchsorted(leaving[order], wanted), edges - 1)
    return np.where(leaving[order[at]] == wanted, order[at], edges)


def _least_of_cycles(following: I64) -> I64:
    """Return for each edge on a cycle an edge that its whole cycle agrees on; -1 on paths."""
    edges = len(following)
    rank = np.argsort(np.arange(edges, dtype=np.uint64) * _SPREAD)  # any well-mixed order will do
    least = np.append(np.empty(edges, dtype=np.int64), -1)
    least[rank] = np.arange(edges)
    jump = np.append(following, edges)
    while True:
        further = np.minimum(least, least[jump])
        if np.array_equal(further, least):
            break
        least, jump = further, jump[jump]
    return np.where(least[:edges] >= 0, rank[np.maximum(least[:edges], 0)], -1)
