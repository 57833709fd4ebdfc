"""Dividing hashes into portions of about equal size, by the blocks of the files that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.keyspace.ranges import Ranges
from headrace.runfiles.format import Block
from headrace.runfiles.merging import StateSources

#: Blocks count as at least this wide in hashes, because widths are computed with floats.
_FINEST = 4_096.0
#: A portion has at least one in this many of the hashes.
_LEAST_PART = 256


def portions(
    sources: StateSources, sections: Sequence[str], ranges: Ranges, most: int
) -> Iterator[Ranges]:
    """Yield the hashes of some ranges, ascending, in portions of about a given size.

    All rows of a hash are in one portion, however large they are. Files are opened for this.

    Args:
        sources: the files that hold the rows.
        sections: the sections that are wanted.
        ranges: the hashes.
        most: about how many bytes of files a portion has.
    """
    blocks = columns_of(sources.blocks_in(ranges, sections))
    least = max(1.0, width_of(ranges) / _LEAST_PART)
    left = ranges
    while len(left):
        part = affordable(blocks, left, most, least)
        yield part
        left = left.without(part)


def portions_of_sizes(sizes: npt.NDArray[np.float64], most: int) -> Iterator[tuple[int, int]]:
    """Yield stretches (first, end) of things that have about a given size together.

    Each has one thing at least. One that is larger than the given size is alone.
    """
    first, ends = 0, np.cumsum(sizes)
    while first < len(sizes):
        before = ends[first - 1] if first else 0.0
        end = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield first, end
        first = end


def bytes_between(
    blocks: Any, firsts: npt.NDArray[np.uint64], lasts: npt.NDArray[np.uint64]
) -> npt.NDArray[np.float64]:
    """Return about how many bytes of some blocks lie in each of some ranges of hashes.

    Args:
        blocks: see :func:`columns_of`. Their bytes are taken to be spread evenly.
        firsts, lasts: the ranges.
    """
    begins, ends, nbytes = blocks
    ends = np.maximum(ends, begins + _FINEST)
    slopes = nbytes / (ends - begins)

    def before(edges: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        found = np.zeros(len(edges))
        for corners, sign in ((begins, 1.0), (ends, -1.0)):
            order = np.argsort(corners)
            slope = np.concatenate([[0.0], np.cumsum(slopes[order])])
            offset = np.concatenate([[0.0], np.cumsum(slopes[order] * corners[order])])
            at = np.searchsorted(corners[order], edges)
            found += sign * (slope[at] * edges - offset[at])
        return found

    between: npt.NDArray[np.float64] = before(lasts.astype(np.float64)) - before(
        firsts.astype(np.float64)
    )
    return np.maximum(between, 0.0)


def columns_of(blocks: Iterable[Block], least: int = 0) -> Any:
    """Return first hash, last hash and bytes of some blocks, as columns.

    Args:
        blocks: the blocks.
        least: each block counts as at least this many bytes.
    """
    rows = [(block.first, block.last, max(block.length, least)) for block in blocks]
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    return [np.array(column, dtype=np.float64) for column in columns]


def width_of(ranges: Ranges) -> float:
    """Return the number of hashes in some ranges."""
    return float((ranges.lasts - ranges.firsts).astype(np.float64).sum()) + len(ranges)


def affordable(blocks: Any, ranges: Ranges, budget: int, least: float) -> Ranges:
    """Return the first part of some ranges that holds about a given number of bytes.

    Args:
        blocks: first hash, last hash and bytes of each block, as columns. Bytes are taken to be
            spread evenly over a block.
        ranges: the hashes; not empty.
        budget: about how many bytes.
        least: at least this many hashes are returned, if there are as many.
    """
    firsts, lasts, nbytes = blocks
    ends = np.maximum(lasts, firsts + _FINEST)
    starts = ranges.firsts.astype(np.float64)
    widths = (ranges.lasts - ranges.firsts).astype(np.float64) + 1
    before = np.concatenate([[0.0], np.cumsum(widths)])

    def width_below(edges: Any) -> Any:
        """Return how many hashes of the ranges are below some edges."""
        at = np.searchsorted(starts, edges, side="right") - 1
        inside = np.clip(edges - starts[at], 0, widths[at]) + before[at]
        return np.where(at >= 0, inside, 0.0)

    def bytes_in_first(width: float) -> float:
        share = np.minimum(width_below(ends), width) - np.minimum(width_below(firsts), width)
        return float((nbytes * share / (ends - firsts)).sum())

    total = float(before[-1])
    if least >= total or bytes_in_first(total) <= budget:
        return ranges
    low, high = max(least, 1.0), total
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if bytes_in_first(middle) <= budget else (low, middle)
    at = int(np.searchsorted(before, low, side="right")) - 1
    most = int(ranges.lasts[at]) - int(ranges.firsts[at])
    last = int(ranges.firsts[at]) + min(most, int(low - before[at]))
    return ranges.within(Ranges.of([(0, last)]))
