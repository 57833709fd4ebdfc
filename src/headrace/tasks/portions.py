"""Limits on how much fires in one step, and the detection of timers that set one another in a loop.

A key's due timers fire in *portions*. A step fires a bounded number of timers of one key, however
many are due. The next steps continue from there, before they take any new input. So the time and
memory of a step are bounded, and a key that was quiet for days catches up.

A *backlog* differs from a *loop* in the times that handlers set. Timers that are set later and
later make progress: they reach the clock, and wait there. In a loop, each timer is set at or before
the time of the timer that sets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.errors import UserCodeError
from headrace.eventtime.domains import EVENT_TIME, TimeDomain
from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME

#: Maximum number of timers and posts of one key that fire in a step. Stalled ones do not count.
MOST_OF_A_KEY = 100_000
#: Maximum number of rounds in a step in which a columnar computation handles what earlier rounds
#: have set behind the clock.
MOST_ROUNDS = 20_000
#: Maximum number of timers or posts in a row that a key may set without making progress.
LONGEST_STALL = 100_000
#: The same for a columnar computation, in rounds.
LONGEST_STALL_IN_ROUNDS = 10_000
#: Maximum number of portions in which a key's timers may set one another after all input has ended.
MOST_PORTIONS_AT_THE_END = 100
#: Rounds before a columnar computation is watched. Nearly all computations need fewer.
_UNWATCHED_ROUNDS = 100


class Endless(Exception):
    """The timers or posts of a key set one another in a loop."""


class Stalled(NamedTuple):
    """The chain of causes of a timer or post that was set behind the clock.

    Attributes:
        length: how many in a row made no progress, up to and with this one.
        event, wall: the latest time among its causes, in each time domain.
    """

    length: int
    event: int
    wall: int


_FRESH = Stalled(0, MIN_TIME, MIN_TIME)


class KeyPortion:
    """What has fired for one key in a step.

    Attributes:
        fired: number of timers and posts.
        is_over: whether something is left for the next step.
    """

    __slots__ = ("_cause", "_counted", "_set", "_ways", "fired", "is_over")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start over, for another key."""
        self.fired = 0
        self.is_over = False
        self._counted = self._set = 0
        self._ways: dict[
            Any, Stalled
        ] = {}  # for due items that were set in this step, where it matters
        self._cause: Stalled | None = None

    @property
    def is_without_end(self) -> bool:
        """Whether more has fired than in all portions allowed after the end of the input."""
        return self._counted > MOST_OF_A_KEY * MOST_PORTIONS_AT_THE_END

    @property
    def has_set_itself(self) -> bool:
        """Whether most of what has fired was set by timers or posts that fired in this step."""
        return 2 * self._set > self.fired

    def takes(self, what: Any, *, must: bool = False) -> bool:
        """Return whether a due timer or post fires in this step. If so, it counts as fired.

        Args:
            what: identifies it within the key.
            must: whether it cannot be left for the next step.
        """
        way = self._ways.pop(what, None) if self._ways else None
        if way is None or not way.length:
            if self._counted >= MOST_OF_A_KEY and not must:
                self.is_over = True
                return False
            self._counted += 1
        self.fired += 1
        self._cause = way
        return True

    def sets(
        self, what: Any, time: int, domain: TimeDomain, *, by: int, by_domain: TimeDomain
    ) -> None:
        """Note that what has just fired has set a timer or post behind the clock.

        Args:
            what: identifies the new one within the key.
            time, domain: when the new one is due.
            by, by_domain: the time of the one that has fired.

        Raises:
            Endless: too many in a row have made no progress.
        """
        self._set += 1
        cause = self._cause
        if cause is None and domain is by_domain and time > by:
            if self._ways:
                self._ways.pop(what, None)
            return
        cause = cause or _FRESH
        event, wall = cause.event, cause.wall
        if by_domain is EVENT_TIME:
            event = max(event, by)
        else:
            wall = max(wall, by)
        further = time > (event if domain is EVENT_TIME else wall)
        length = 0 if further else cause.length + 1
        if length > LONGEST_STALL:
            raise Endless(
                f"{length} timers (or posts) of one key were set one after the other at or before the "
                "time of the one before, all behind the clock"
            )
        self._ways[what] = Stalled(length, event, wall)


class HandlerRounds:
    """The rounds in which a columnar computation's handlers are called in a step."""

    def __init__(self) -> None:
        self.number = 0
        self._hashes: npt.NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
        self._best = _far_back(0)
        self._stalls: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)

    @property
    def is_watched(self) -> bool:
        """Whether :meth:`end` needs to know what has fired."""
        return self.number >= _UNWATCHED_ROUNDS

    def end(self, fired: Mapping[TimeDomain, list[tuple[Any, Any]]]) -> bool:
        """End a round, and return whether this step may have another.

        In each round, a key fires everything that it has due. So whatever it fires in the next
        round was set in this one. If all of this was set later than its cause, the first time of
        the next round is later than that of this round.

        Args:
            fired: the (hashes, times) that have fired. Needed only if :attr:`is_watched`.

        Raises:
            Endless: a key has made no progress for too many rounds.
        """
        if self.is_watched:
            self._watch(fired)
        self.number += 1
        return self.number < MOST_ROUNDS

    def _watch(self, fired: Mapping[TimeDomain, list[tuple[Any, Any]]]) -> None:
        every = [pair for pairs in fired.values() for pair in pairs]
        hashes = np.unique(np.concatenate([of for of, _ in every]))
        first = np.full((2, len(hashes)), MAX_TIME, dtype=np.int64)
        for at, domain in enumerate(TimeDomain):
            for of, times in fired.get(domain, []):
                np.minimum.at(first[at], np.searchsorted(hashes, of), times)
        best, stalls = _far_back(len(hashes)), np.zeros(len(hashes), dtype=np.int64)
        _, here, there = np.intersect1d(
            hashes, self._hashes, assume_unique=True, return_indices=True
        )
        best[:, here], stalls[here] = self._best[:, there], self._stalls[there]
        further = ((first > best) & (first < MAX_TIME)).any(axis=0)
        stalls = np.where(further, 0, stalls + 1)
        if len(stalls) and int(stalls.max()) > LONGEST_STALL_IN_ROUNDS:
            raise Endless(
                f"timers (or posts) of one key were set behind the clock {LONGEST_STALL_IN_ROUNDS} times, "
                "one after the other, and none was later than those before"
            )
        self._hashes, self._stalls = hashes, stalls
        self._best = np.maximum(best, np.where(first < MAX_TIME, first, MIN_TIME))


def _far_back(length: int) -> npt.NDArray[np.int64]:
    return np.full((2, length), MIN_TIME, dtype=np.int64)


def endless(error: Endless, place: str) -> UserCodeError:
    """Return the error for a key whose timers or posts are a loop."""
    return UserCodeError(
        str(error),
        place=place,
        remedy="a handler sets a timer, or posts, again and again without getting further in time: let "
        "it set a later time, or stop",
    )


def without_end(fired: int, place: str) -> UserCodeError:
    """Return the error for a key whose timers do not end, though all input has ended."""
    return UserCodeError(
        f"all input has ended, and timers of one key have set one another more than {fired} times since",
        place=place,
        remedy="a handler that sets its own timer again must stop when there is no more input: look at "
        "ctx.input_ended, or at the time up to which it has something to do",
    )
