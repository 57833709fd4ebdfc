"""Which panes of a key there are: marks, so that nobody looks for panes that are not there.

A key may have records in a few of the panes of a window only: in five of sixty, say. Its panes are
therefore marked in words of ``SPAN`` panes each, and a window reads its words and the panes marked there.
"""

from __future__ import annotations

import numpy as np

from headrace.computation.batches import Keys
from headrace.computation.table_handles import TableHandle
from headrace.ops.columns import I64, Mask, spread

#: So many panes a word marks; so many bits a float tells exactly.
SPAN = 48
#: Before any pane.
NONE = -(2**62)


def mark(table: TableHandle, keys: Keys, panes: I64) -> I64:
    """Mark panes that are new; return for each the one before it, or ``NONE`` if it is not close.

    Close is what the word before that of the pane has, at the farthest.

    Args:
        table: the marks, with a sub column ``word``.
        keys: of each pane; the panes of a key lie side by side.
        panes: their numbers, ascending within a key; none is marked.
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
    """Return which of ``count`` panes from ``first`` on there are of each key: (of which key, which pane).

    Both ascend.
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
        keys: of each pane; the panes of a key lie side by side.
        panes: their numbers, ascending within a key; each is marked.
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
    """Stretches of rows that have a key and a word in common.

    Attributes:
        starts: where each begins.
        of_row: for each row, in which it is.
    """

    def __init__(self, keys: Keys, words: I64) -> None:
        begins = np.zeros(len(words), dtype=bool)
        begins[keys.starts] = True
        begins[1:] |= words[1:] != words[:-1]
        self.starts = np.flatnonzero(begins)
        self.of_row = np.cumsum(begins) - 1


def _highest(marks: I64) -> I64:
    """Return the number of the highest bit of each word that has one."""
    exponents: I64 = np.frexp(marks.astype(np.float64))[1].astype(np.int64)
    return exponents - 1


def _bits(marks: I64) -> tuple[I64, I64]:
    """Return all bits that are set: of which word, and which."""
    some: Mask = marks != 0
    at = np.flatnonzero(some)
    each = np.unpackbits(marks[at].astype("<i8").view(np.uint8), bitorder="little")
    row, bit = np.divmod(np.flatnonzero(each), 64)
    return at[row], bit
