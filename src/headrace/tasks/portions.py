"""How much of what is due fires in one step, and when timers that set one another are a loop.

A key's due timers fire in *portions*: however many they are, a step fires a bounded number of one key, and
the next steps go on where it stopped, before any new input. So the time and memory of a step are bounded,
and a key that was quiet for days catches up.

A *backlog* is told from a *loop* by what handlers set. Timers that come later and later get somewhere: to
the clock, where they wait. A loop does not: each timer is set at or before the time of what has set it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.errors import UserCodeError
from headrace.eventtime.domains import EVENT_TIME, TimeDomain
from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME

#: Timers and posts of one key that fire in a step, if more are due; those of a loop do not count.
MOST_OF_A_KEY = 100_000
#: Calls of a columnar computation's handlers in a step, for what earlier calls have set behind the clock.
MOST_ROUNDS = 20_000
#: Timers (or posts) one after the other that a key may set without getting any further.
LONGEST_STALL = 100_000
#: The same for a columnar computation, in calls.
LONGEST_STALL_IN_ROUNDS = 10_000
#: Portions in which a key's timers may still set one another once all input has ended.
MOST_PORTIONS_AT_THE_END = 100
#: Calls before a columnar computation is watched: nearly all have no more.
_UNWATCHED_ROUNDS = 100


class Endless(Exception):
    """Timers or posts of a key are a loop."""


class Stalled(NamedTuple):
    """How it came to a timer that was set behind the clock.

    Attributes:
        length: how many in a row, up to this one, did not get any further.
        event, wall: the latest times of those before it, in each time domain.
    """

    length: int
    event: int
    wall: int


_FRESH = Stalled(0, MIN_TIME, MIN_TIME)


class KeyPortion:
    """What has fired of one key in a step.

    Attributes:
        fired: how many timers and posts.
        is_over: whether something is left for the next step.
    """

    __slots__ = ("_cause", "_counted", "_set", "_ways", "fired", "is_over")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Move to a key."""
        self.fired = 0
        self.is_over = False
        self._counted = self._set = 0
        self._ways: dict[
            Any, Stalled
        ] = {}  # of what is due and was set in this step, if it matters
        self._cause: Stalled | None = None

    @property
    def is_without_end(self) -> bool:
        """Whether more has fired than in all portions that there may be at the end."""
        return self._counted > MOST_OF_A_KEY * MOST_PORTIONS_AT_THE_END

    @property
    def has_set_itself(self) -> bool:
        """Whether most of what has fired was set by what has fired before it, in this step."""
        return 2 * self._set > self.fired

    def takes(self, what: Any, *, must: bool = False) -> bool:
        """Say whether a timer (or post) that is due is for this step; it is then taken to fire.

        Args:
            what: names it within the key.
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
        """Note that what has just fired has set something behind the clock.

        Args:
            what: names it within the key.
            time, domain: what it is set for.
            by, by_domain: the time of what has fired.

        Raises:
            Endless: when a row of these gets no further.
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
    """The calls of a columnar computation's handlers in a step, for what is due."""

    def __init__(self) -> None:
        self.number = 0
        self._hashes: npt.NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
        self._best = _far_back(0)
        self._stalls: npt.NDArray[np.int64] = np.empty(0, dtype=np.int64)

    @property
    def is_watched(self) -> bool:
        """Whether :meth:`end` is to be told what has fired."""
        return self.number >= _UNWATCHED_ROUNDS

    def end(self, fired: Mapping[TimeDomain, list[tuple[Any, Any]]]) -> bool:
        """End a round; say whether there may be another one in this step.

        Every key fires all that it has due, so what it fires in the next round was set in this one: if
        all of that was later than its cause, then so is the first of the next round.

        Args:
            fired: the (hashes, times) that have fired, where :attr:`is_watched`.

        Raises:
            Endless: when a key gets no further, round after round.
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
    """Return the error that timers or posts of a key are a loop."""
    return UserCodeError(
        str(error),
        place=place,
        remedy="a handler sets a timer, or posts, again and again without getting further in time: let "
        "it set a later time, or stop",
    )


def without_end(fired: int, place: str) -> UserCodeError:
    """Return the error that a key's timers go on and on though all input has ended."""
    return UserCodeError(
        f"all input has ended, and timers of one key have set one another more than {fired} times since",
        place=place,
        remedy="a handler that sets its own timer again must stop when there is no more input: look at "
        "ctx.input_ended, or at the time up to which it has something to do",
    )
