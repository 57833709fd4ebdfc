"""Which bins to split because they are too heavy, and which to merge again.

A bin with much of the work can be moved but not shared, until it is split in two. Bins with little
work cost space in layouts and reports, and are merged. Between the two bounds nothing happens. A
bin that was just split has, with its sibling, more work than a merge allows, and a bin that was
just merged has less than a split requires. So splits and merges do not alternate.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import PipelineError
from headrace.keyspace.layout import HASH_BITS, Layout
from headrace.keyspace.updates import MAX_DEPTH
from headrace.migration.moves import Prefixes

F64 = npt.NDArray[np.float64]


class SplitRule(msgspec.Struct, frozen=True):
    """When bins are split and merged.

    Attributes:
        split_above: a bin with more than this share of all work is split.
        merge_below: two siblings of one owner that together have less than this share are merged.
            At most half of ``split_above``, so that work may vary.
        deepest: bins of this depth are not split; at most 48. A single hot key stays in one bin
            however often that is split, so a bound is needed.
        shallowest: bins of this depth are not merged.
    """

    split_above: float
    merge_below: float = 0.0
    deepest: int = 32
    shallowest: int = 0

    def __post_init__(self) -> None:
        if not 0 <= 2 * self.merge_below <= self.split_above <= 1:
            raise PipelineError(
                f"bins split above {self.split_above} and merged below {self.merge_below} "
                "of the work would be split and merged in turns",
                place="SplitRule",
                remedy="use shares of the work, the one for merges at most half of that for splits",
            )
        if not 0 <= self.shallowest <= self.deepest <= MAX_DEPTH:
            raise PipelineError(
                f"bins cannot be between {self.shallowest} and {self.deepest} bits deep",
                place="SplitRule",
                remedy=f"use depths from 0 to {MAX_DEPTH}, the shallowest first",
            )


class Reshaping(NamedTuple):
    """Bins to split and to merge, as a configuration update names them.

    Attributes:
        splits: bins that become their two children.
        merges: parents whose two children become one, level by level: all children before any
            parent. Each level is an update of its own.
    """

    splits: Prefixes
    merges: list[Prefixes]


def reshape(layout: Layout, work: F64, rule: SplitRule) -> Reshaping:
    """Return which bins to split and which siblings to merge.

    A bin is split once, however heavy it is, because the work of its halves is known only when they
    have been measured. Merges go as far up as the rule allows, because the work of bins together is
    known now.

    Args:
        layout: the layout in force.
        work: what each of its bins costs, as ``Load.work`` computes it.
        rule: when to split and to merge.

    >>> found = reshape(Layout([1, 2, 2], [0, 0, 0], 1), np.array([98.0, 1, 1]), SplitRule(0.5, 0.1))
    >>> found.splits.pairs(), [level.pairs() for level in found.merges]
    ([(0, 1)], [[(9223372036854775808, 1)]])
    """
    share = work / work.sum() if work.any() else np.zeros(len(layout))
    heavy = (share > rule.split_above) & (layout.bits < rule.deepest)
    splits = Prefixes(layout.starts[heavy], layout.bits[heavy])
    return Reshaping(splits, _merges(layout, share, rule))


#: After so many splits that left this share of a bin's weight in one of its parts, it is one key's.
_VAIN_SPLITS = 3
_ALL_BUT = 0.75


def one_keys(layout: Layout, weights: F64) -> npt.NDArray[np.bool_]:
    """Return which bins have so many splits behind them in vain that one key must be heavy.

    A part of a key cannot move. Of a bin whose keys are alike, three splits leave an eighth in each
    part.

    Args:
        layout: the layout in force.
        weights: the work or the bytes of each of its bins.

    >>> layout = Layout([1, 2, 3, 4, 4], [0, 0, 0, 0, 0], 1)
    >>> one_keys(layout, np.array([1.0, 0, 0, 0, 98.0])).tolist()
    [False, False, False, False, True]
    """
    bits = layout.bits.astype(np.int64)
    above = bits - _VAIN_SPLITS
    found = above >= int(bits.min())
    if not found.any():
        return found
    width = np.where(above > 0, np.uint64(HASH_BITS) - above.astype(np.uint64), np.uint64(0))
    firsts = np.where(above > 0, (layout.starts >> width) << width, np.uint64(0))
    lasts = np.where(above > 0, firsts | ((np.uint64(1) << width) - np.uint64(1)), ~np.uint64(0))
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    low = np.searchsorted(layout.starts, firsts)
    high = np.searchsorted(layout.starts, lasts, side="right")
    around = sums[high] - sums[low]
    heavy: npt.NDArray[np.bool_] = found & (around > 0) & (weights >= _ALL_BUT * around)
    return heavy


def _merges(layout: Layout, share: F64, rule: SplitRule) -> list[Prefixes]:
    """Return the parents whose children become one, level by level from the bottom."""
    starts, bits, owners = layout.starts, layout.bits, layout.owners
    levels: list[Prefixes] = []
    while len(starts) > 1:
        half = np.uint64(1) << (np.uint64(HASH_BITS) - bits[:-1])
        siblings = (
            (bits[:-1] == bits[1:])
            & (owners[:-1] == owners[1:])
            & (starts[:-1] & half == 0)  # the first of two children
            & (share[:-1] + share[1:] < rule.merge_below)
            & (bits[:-1] > rule.shallowest)
        )
        low = np.flatnonzero(siblings)
        if not len(low):
            break
        levels.append(Prefixes(starts[low], bits[low] - np.uint8(1)))
        share, bits = share.copy(), bits.copy()
        share[low] += share[low + 1]
        bits[low] -= np.uint8(1)
        kept = np.ones(len(starts), dtype=np.bool_)
        kept[low + 1] = False
        starts, bits, owners, share = starts[kept], bits[kept], owners[kept], share[kept]
    return levels
