"""Marks of the panes that a key has, so that no others are looked up.

A key may have records in only a few panes of a window, such as five of sixty. So its panes are
marked in words of ``SPAN`` bits. A window reads its words, and then only the panes that are marked
there.
"""

from __future__ import annotations

import numpy as np

from headrace.computation.batches import Keys
from headrace.computation.table_handles import TableHandle
from headrace.ops.columns import I64, Mask, spread

#: Number of panes that a word marks. A float represents this many bits exactly.
SPAN = 48
#: A number before that of any pane.
NONE = -(2**62)


def mark(table: TableHandle, keys: Keys, panes: I64) -> I64:
    """Mark new panes. Return for each the pane before it, or ``NONE`` if that is not close.

    Panes are close if their words are the same or neighbours.

    Args:
        table: the marks, with a sub column ``word``.
        keys: the key of each pane. The panes of a key are adjacent.
        panes: their numbers, ascending within a key. None is marked yet.
    """
    words, bits = np.divmod(panes, SPAN)
    runs = _Runs(keys, words)
    rows = table.at(keys[runs.starts], word=words[runs.starts])
    marks = rows["marks"] | np.bitwise_or.reduceat(1 << bits, runs.starts)
    rows.upsert(marks=marks)
    lower = marks[runs.of_row] & ((1 << bits) - 1)
    before = np.where(lower > 0, words * SPAN + _highest(lower), NONE)
    first = np.flatnonzero(lower == 0)
    earlier = table.at(keys[first], word=words[first] - 1)["marks"]
    before[first] = np.where(earlier > 0, (words[first] - 1) * SPAN + _highest(earlier), NONE)
    return before


def marked(table: TableHandle, keys: Keys, first: I64, count: int) -> tuple[I64, I64]:
    """Return the marked panes among ``count`` panes from ``first`` on, for each key.

    Args:
        table: the marks.
        keys: the keys.
        first: the number of the first pane, for each key.
        count: the number of panes.

    Returns:
        The position of the key, and the number of the pane, for each marked pane. Both ascend.
    """
    begin = first // SPAN
    at, number = spread((first + count - 1) // SPAN - begin + 1)
    words = begin[at] + number
    marks = table.at(keys[at], word=words)["marks"]
    row, bit = _bits(marks)
    of, panes = at[row], words[row] * SPAN + bit
    inside = (panes >= first[of]) & (panes < first[of] + count)
    return of[inside], panes[inside]


def unmark(table: TableHandle, keys: Keys, panes: I64) -> None:
    """Remove the marks of panes.

    Args:
        table: the marks.
        keys: the key of each pane. The panes of a key are adjacent.
        panes: their numbers, ascending within a key. Each is marked.
    """
    if not len(panes):
        return
    words, bits = np.divmod(panes, SPAN)
    runs = _Runs(keys, words)
    rows = table.at(keys[runs.starts], word=words[runs.starts])
    left = rows["marks"] & ~np.bitwise_or.reduceat(1 << bits, runs.starts)
    rows.upsert(marks=left)
    rows.delete(left == 0)


class _Runs:
    """Stretches of rows with the same key and word.

    Attributes:
        starts: the first row of each stretch.
        of_row: the stretch of each row.
    """

    def __init__(self, keys: Keys, words: I64) -> None:
        begins = np.zeros(len(words), dtype=bool)
        begins[keys.starts] = True
        begins[1:] |= words[1:] != words[:-1]
        self.starts = np.flatnonzero(begins)
        self.of_row = np.cumsum(begins) - 1


def _highest(marks: I64) -> I64:
    """Return the number of the highest bit in each word. Words without a bit have no meaning."""
    exponents: I64 = np.frexp(marks.astype(np.float64))[1].astype(np.int64)
    return exponents - 1


def _bits(marks: I64) -> tuple[I64, I64]:
    """Return all bits that are set: the position of the word, and the number of the bit."""
    some: Mask = marks != 0
    at = np.flatnonzero(some)
    each = np.unpackbits(marks[at].astype("<i8").view(np.uint8), bitorder="little")
    row, bit = np.divmod(np.flatnonzero(each), 64)
    return at[row], bit
