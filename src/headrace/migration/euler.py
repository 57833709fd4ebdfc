"""Euler splits: dividing the edges of a graph into two halves that are equal at each vertex.

If each vertex has an even number of edges, its edges can be paired in any way. The pairs join all
edges into closed walks. Along a walk, vertices are entered and left in turn: that is Euler's whole
argument. Here it is done for all walks at once by pointer doubling, with a few NumPy calls for each
power of two in the length of the longest walk.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.errors import ensure

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def halves(left: I64, right: I64) -> Mask:
    """Divide the edges of a bipartite graph into halves that are equal at each vertex.

    Args:
        left, right: the vertices of each edge, numbered on either side. Each has an even degree.

    Returns:
        For each edge, whether it is in the second half.
    """
    by_left, by_right = _paired(left), _paired(right)
    walk = _orbits(by_right[by_left])  # every second edge of the closed walk
    return walk > walk[by_left]


def directions(one: I64, other: I64) -> Mask:
    """Give each edge of a graph a direction, so that each vertex is left as often as it is entered.

    Args:
        one, other: the vertices of each edge. Each has an even degree.

    Returns:
        For each edge, whether it goes from ``other`` to ``one``.
    """
    edges = len(one)
    ends = np.concatenate([one, other])  # end e + edges is the other end of e
    opposite = np.concatenate([np.arange(edges, 2 * edges), np.arange(edges)])
    walk = _orbits(_paired(ends)[opposite])  # each walk appears twice, once in each direction
    return walk[:edges] > walk[edges:]


def _paired(vertices: I64) -> I64:
    """Return for each edge its partner at its vertex."""
    order = np.argsort(vertices, kind="stable")
    one, other = order[0::2], order[1::2]
    ensure(
        len(one) == len(other) and bool((vertices[one] == vertices[other]).all()),
        "an Euler split needs an even number of edges at each vertex",
    )
    partner = np.empty(len(order), dtype=np.int64)
    partner[one], partner[other] = other, one
    return partner


def _orbits(following: I64) -> I64:
    """Return for each element of a permutation the least element of its cycle."""
    least = np.arange(len(following), dtype=np.int64)
    jump = following
    while True:
        further = np.minimum(least, least[jump])
        if np.array_equal(further, least):
            return least
        least, jump = further, jump[jump]
