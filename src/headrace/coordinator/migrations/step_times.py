"""How long steps take before, during and after a migration.

They are kept in memory, so a new driver starts from nothing.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from statistics import median

import msgspec

from headrace.ledger.migrations import Latency
from headrace.migration.costs import Scatter

#: While a backlog drains, each step takes less than this share of the time of those before it.
_SHORTER = 0.9
#: The number of steps that show whether a backlog drains.
LEVEL_STEPS = 3

#: A step is slow if it takes more than this many times as long as most.
SLOW = 1.2
#: The share of steps that are no longer than what objectives start from.
_HIGH = 0.9
#: The number of steps before a migration that say how long steps usually take, and after it how
#: long they take then.
WINDOW = 64
#: The first steps of a driver start processes and read state. As soon as others are known, they do
#: not say how long steps usually take.
COLD_STEPS = 5


class StepStats(msgspec.Struct, frozen=True):
    """Statistics of a computed step, for migrations.

    Attributes:
        took_us: how long its attempt took. The controller adds the commit of the step before.
        more: whether more input was waiting than it took.
        usual: whether it took new input or none; false for a step of a backfill.
        prepared: whether everything to be read ahead is at hand.
        workers: how many workers the runner is known to be ready for, if more are to come.
    """

    took_us: int
    more: bool = False
    usual: bool = True
    prepared: bool = True
    workers: int = 0


class RecentStepTimes:
    """The times of the newest steps, and of those of a migration."""

    def __init__(self) -> None:
        self._quiet: deque[StepStats] = deque(maxlen=WINDOW)
        self._noted = 0  # how many steps there have been in which nothing moved
        self._during: list[int] = []
        self._newest: deque[int] = deque(maxlen=LEVEL_STEPS)
        self._of = 0  # the migration that these steps belong to
        self._since = Latency()  # what an earlier driver has noted of it
        self._after: list[int] = []
        self._settling = 0  # the migration that has ended last

    @property
    def before(self) -> Latency:
        """How long steps take while nothing moves."""
        return latency_of(self._usual)

    @property
    def scatter(self) -> Scatter:
        """How the times of steps scatter while nothing moves."""
        took = sorted(self._usual)
        if not took:
            return Scatter()
        high = took[min(len(took) - 1, int(_HIGH * len(took)))]
        usual = took[len(took) // 2]
        return Scatter(high, sum(one > SLOW * usual for one in took) / len(took))

    @property
    def _usual(self) -> list[int]:
        took = [stats.took_us for stats in self._quiet]
        cold = max(0, COLD_STEPS - (self._noted - len(took)))
        return took[cold:] if len(took) > 2 * COLD_STEPS else took

    @property
    def more(self) -> bool:
        """Whether more input waits than a step takes, in most steps while nothing moves."""
        return bool(self._quiet) and median(stats.more for stats in self._quiet) >= 1

    def quiet(self, stats: StepStats) -> tuple[int, Latency] | None:
        """Note a step in which nothing moves.

        Return the last migration and how long steps took after it, once that is known.
        """
        if not stats.usual:
            return None
        self._quiet.append(stats)
        self._noted += 1
        if not self._settling:
            return None
        self._after.append(stats.took_us)
        return self.settled() if len(self._after) == WINDOW else None

    def settled(self) -> tuple[int, Latency] | None:
        """Return the migration that ended last, and how long steps took since; only once."""
        if not self._settling or not self._after:
            return None
        found = self._settling, latency_of(self._after)
        self._settling, self._after = 0, []
        return found

    def moving(self, id_: int, stats: StepStats, known: Latency, *, paused: bool = False) -> None:
        """Note a step of a migration, of which an earlier driver may have noted something.

        Steps while the migration is paused do not count: there may be any number of them.
        """
        if self._of != id_:
            self._of, self._since, self._during = id_, known, []
            self._newest.clear()
        if stats.usual and not paused:
            insort(self._during, stats.took_us)
            self._newest.append(stats.took_us)

    @property
    def level(self) -> bool:
        """Whether a migration's steps no longer get shorter, as they do while a backlog drains."""
        *before, newest = [0, *self._newest]
        return len(before) == LEVEL_STEPS and newest >= _SHORTER * min(before[1:])

    def during(self, id_: int) -> Latency:
        """Return how long a migration's steps took, including those an earlier driver noted."""
        return joined(self._since, _latency(self._during)) if self._of == id_ else Latency()

    def ended(self, id_: int) -> None:
        """Note that a migration has ended with this step."""
        self._settling, self._after, self._during, self._of = id_, [], [], 0


def latency_of(took: Sequence[int]) -> Latency:
    """Return the percentiles of some step times."""
    return _latency(sorted(took))


def _latency(ascending: Sequence[int]) -> Latency:
    if not ascending:
        return Latency()

    def at(share: float) -> int:
        return ascending[min(len(ascending) - 1, int(share * len(ascending)))]

    return Latency(len(ascending), at(0.5), at(0.99), ascending[-1])


def joined(one: Latency, other: Latency) -> Latency:
    """Return the latency over the steps of two drivers.

    Percentiles are means, weighted by number of steps.
    """
    if not one.steps or not other.steps:
        return other if other.steps else one
    steps = one.steps + other.steps

    def mean(first: int, second: int) -> int:
        return round((first * one.steps + second * other.steps) / steps)

    return Latency(
        steps,
        mean(one.p50_us, other.p50_us),
        mean(one.p99_us, other.p99_us),
        max(one.max_us, other.max_us),
    )
