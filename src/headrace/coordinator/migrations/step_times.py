"""How long steps take before, during and after a migration. In memory: a new driver measures anew."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence
from statistics import median

import msgspec

from headrace.ledger.migrations import Latency

#: Where a backlog drains, each step is shorter than those before it, by more than this.
_SHORTER = 0.9
#: So many steps tell that.
LEVEL_STEPS = 3

#: So many steps before a migration tell how long steps usually take, and so many after it how they do then.
WINDOW = 64


class StepStats(msgspec.Struct, frozen=True):
    """What a step that was computed tells those who move state.

    Attributes:
        took_us: how long its tries took.
        more: whether more input was waiting than it took.
        usual: whether it took new input, or none; not what is read again for those that catch up.
        prepared: whether all is at hand that was to be prepared.
        workers: how many workers the runner is known to be ready for, if more are to come.
    """

    took_us: int
    more: bool = False
    usual: bool = True
    prepared: bool = True
    workers: int = 0


class RecentStepTimes:
    """The newest steps, and those of a migration.

    Attributes:
        more: whether more input used to wait than a step takes.
    """

    def __init__(self) -> None:
        self._quiet: deque[StepStats] = deque(maxlen=WINDOW)
        self._during: list[int] = []
        self._newest: deque[int] = deque(maxlen=LEVEL_STEPS)
        self._of = 0  # the migration that these are of
        self._since = Latency()  # what an earlier driver has noted of it
        self._after: list[int] = []
        self._settling = 0  # the migration that has ended last

    @property
    def before(self) -> Latency:
        """How long steps take while nothing moves."""
        return latency_of([told.took_us for told in self._quiet])

    @property
    def more(self) -> bool:
        """Whether more input waits than a step takes, in most steps while nothing moves."""
        return bool(self._quiet) and median(told.more for told in self._quiet) >= 1

    def quiet(self, told: StepStats) -> tuple[int, Latency] | None:
        """Note a step in which nothing moves; return how they are after a migration, once that is known."""
        if not told.usual:
            return None
        self._quiet.append(told)
        if not self._settling:
            return None
        self._after.append(told.took_us)
        return self.settled() if len(self._after) == WINDOW else None

    def settled(self) -> tuple[int, Latency] | None:
        """Return the migration that ended last, and how long steps took since; once."""
        if not self._settling or not self._after:
            return None
        found = self._settling, latency_of(self._after)
        self._settling, self._after = 0, []
        return found

    def moving(self, id_: int, told: StepStats, known: Latency, *, paused: bool = False) -> None:
        """Note a step of a migration, of which an earlier driver may have noted something.

        (Steps while it is paused are none of it, and there may be any number of them.)
        """
        if self._of != id_:
            self._of, self._since, self._during = id_, known, []
            self._newest.clear()
        if told.usual and not paused:
            insort(self._during, told.took_us)
            self._newest.append(told.took_us)

    @property
    def level(self) -> bool:
        """Whether a migration's newest steps do not get shorter any more, as while a backlog drains."""
        *before, newest = [0, *self._newest]
        return len(before) == LEVEL_STEPS and newest >= _SHORTER * min(before[1:])

    def during(self, id_: int) -> Latency:
        """Return how long the steps of a migration took, with what an earlier driver noted."""
        return joined(self._since, _latency(self._during)) if self._of == id_ else Latency()

    def ended(self, id_: int) -> None:
        """Note that a migration has ended with this step."""
        self._settling, self._after, self._during, self._of = id_, [], [], 0


def latency_of(took: Sequence[int]) -> Latency:
    """Return how long steps took."""
    return _latency(sorted(took))


def _latency(ascending: Sequence[int]) -> Latency:
    if not ascending:
        return Latency()

    def at(share: float) -> int:
        return ascending[min(len(ascending) - 1, int(share * len(ascending)))]

    return Latency(len(ascending), at(0.5), at(0.99), ascending[-1])


def joined(one: Latency, other: Latency) -> Latency:
    """Return how long the steps of two drivers took; percentiles are means by number of steps."""
    if not one.steps or not other.steps:
        return other if other.steps else one
    steps = one.steps + other.steps

    def mean(first: int, second: int) -> int:
        return round((first * one.steps + second * other.steps) / steps)

    return Latency(
        steps, mean(one.p50_us, other.p50_us), mean(one.p99_us, other.p99_us),
        max(one.max_us, other.max_us),
    )  # fmt: skip
