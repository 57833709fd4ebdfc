"""How a new owner reads the state that comes to it, and how many calls of a store it waits for.

Workers read by these constants, and estimates reckon with them, so the two cannot differ. A test
counts the calls of real rounds by a simulated clock, and holds them against :func:`waited_calls`:
``tests/machine/migrations/test_calls_of_a_round.py``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

#: What a round is: the first of a target that has prepared nothing; a later one of such a target;
#: one that was prepared; or one in which workers appear, or leave.
RoundKind = Literal["first", "later", "prepared", "grow", "shrink"]

#: How many reads of a process run at a time. Those of all layers and computations share them.
READS_AT_ONCE = 32
#: How many more run at a time that no step waits for. What a step waits for does not queue behind
#: them.
AHEAD_AT_ONCE = 8
#: In any round that moves state, workers read the changes since what they have read before. The
#: plan names their files, which are small, and they are read side by side: this many reads follow
#: one another.
TAIL_CALLS = 1
#: Reading ahead has a budget of bytes for each step. Opening a file counts as at least this many of
#: them, however small the file is.
OPENING_BYTES = 256 << 10


class Files(msgspec.Struct, frozen=True):
    """The files that hold the state of one worker in one layer.

    A new owner of some of it opens all of them in its first round.

    Attributes:
        first: how many there are.
        layers: how many layers have state. They are read side by side.
        large: how many of the files are not read whole. Of these a first read finds the rows, and
            a second one reads them.
        nbytes: how many bytes are read when all of them are opened.
    """

    first: int = 0
    layers: int = 1
    large: int = 0
    nbytes: int = 0

    def times(self, givers: int) -> Files:
        """Return the files of several workers."""
        return Files(self.first * givers, self.layers, self.large * givers, self.nbytes * givers)


def waited_calls(kind: RoundKind, files: Files, at_once: int = READS_AT_ONCE) -> int:
    """Return for how many calls of the store a round waits, one after another.

    Args:
        kind: the kind of round.
        files: what is to be opened in a first round.
        at_once: how many reads run at a time.

    >>> waited_calls("first", Files(first=40, layers=2)), waited_calls("later", Files(first=40))
    (3, 1)
    """
    if kind in ("grow", "shrink"):
        return 0
    if kind != "first" or not files.first:
        return TAIL_CALLS
    reads = (files.first + files.large) * files.layers
    return max(-(-reads // at_once), 2 if files.large else 1)


def ahead_calls(ahead_bytes: int, layers: int) -> int:
    """Return how many calls follow one another while workers read ahead as much as a step may.

    A process reads ahead in one thread, so layers take turns.
    """
    return layers * -(-opened_ahead(ahead_bytes) // AHEAD_AT_ONCE)


def opened_ahead(ahead_bytes: int) -> int:
    """Return how many files are opened at a time by reading ahead, if a step may read some bytes.

    >>> opened_ahead(2 << 20)
    8
    """
    return max(1, ahead_bytes // OPENING_BYTES)
