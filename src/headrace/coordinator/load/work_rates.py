"""How fast workers work, and how much comes in: what a policy reckons the number of workers by.

In memory, like all that is measured: a new driver measures anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.coordinator.load.decay import HALF_LIFE_US, ExponentialDecay
from headrace.protocol.plan import TaskReport

F64 = npt.NDArray[np.float64]

#: Phases of a task that are no work on what has come in.
_UPKEEP = ("read ahead",)
_USER_CODE = "user code"
#: When numbers of records differ by less than such a part, they do not tell what a step takes without any.
_LEAST_SPREAD = 0.1


class WorkRates:
    """How long workers are at work in a step, and for how many records.

    A worker's *true rate* (DS2, Kalavri et al., OSDI '18) is how many records a second it works on while it
    is at work. Here steps are small where little comes in, and any step takes some time; so what is
    asked for is what a further record takes: the slope of the line through (records, time) of the newest
    steps. It is at least the time in user code a record, and at most all time a record; where steps are
    too much alike to draw a line, it is the former.
    """

    def __init__(self, half_life_us: int = HALF_LIFE_US) -> None:
        self._fading = ExponentialDecay(half_life_us)
        # of each worker: steps, records, time, time in user code, records squared, records by time
        self._sums = np.zeros((6, 0))

    def note(self, workers: int, clock_us: int, tasks: Sequence[TaskReport]) -> None:
        """Note a step that was measured."""
        self._resize(workers)
        records, took, user = np.zeros(workers), np.zeros(workers), np.zeros(workers)
        for task in tasks:
            at = task.worker
            records[at] += sum(node.records for node in task.nodes.values())
            upkeep = sum(task.phases.get(name, 0.0) for name in _UPKEEP)
            opening = 0.0 if task.opened is None else task.opened.took_us + task.opened.relaid_us
            took[at] += (sum(task.phases.values()) - upkeep) * 1e6 - opening
            opened = 0.0 if task.opened is None else task.opened.took_us
            user[at] += max(0.0, task.phases.get(_USER_CODE, 0.0) * 1e6 - opened)
        gain = self._fading.gain(clock_us, self._sums)
        ones = np.ones(workers)
        self._sums += gain * np.array([ones, records, took, user, records**2, records * took])

    def busy_us(self, workers: int) -> F64:
        """Return how long each worker is at work in a step."""
        steps, _, took, *_ = self._of(workers)
        found: F64 = np.divide(took, steps, out=np.zeros(workers), where=steps > 0)
        return found

    def records(self, workers: int) -> F64:
        """Return how many records each worker works on in a step."""
        steps, records, *_ = self._of(workers)
        found: F64 = np.divide(records, steps, out=np.zeros(workers), where=steps > 0)
        return found

    def true_rates(self, workers: int) -> F64:
        """Return how many records a second each worker works on while it is at work; 0 if not known."""
        steps, records, took, user, squares, products = self._of(workers)
        known = (records > 0) & (took > 0)
        n, x = np.where(known, steps, 1.0), np.where(known, records, 1.0)
        least, most = user / x, took / x
        variance = squares / n - (x / n) ** 2
        covariance = products / n - (x / n) * (took / n)
        spread = variance > (_LEAST_SPREAD * x / n) ** 2
        slope = np.divide(covariance, variance, out=least.copy(), where=spread)
        each = np.clip(slope, least, most)
        known &= each > 0
        found: F64 = np.divide(1e6, each, out=np.zeros(workers), where=known)
        return found

    def _of(self, workers: int) -> F64:
        self._resize(workers)
        return self._sums

    def _resize(self, workers: int) -> None:
        there = self._sums.shape[1]
        if there < workers:
            self._sums = np.pad(self._sums, ((0, 0), (0, workers - there)))
        elif there > workers:
            self._sums = self._sums[:, :workers].copy()


#: A pause counts for at most so many half-lives: what came before it has faded by then, and a clock
#: that was wrong for one step is soon forgotten.
_LONGEST_PAUSE = 2


class Arrivals:
    """How many records come in, by the readings of the steps' clock; and what they lead to."""

    def __init__(self, half_life_us: int = HALF_LIFE_US) -> None:
        self._fading = ExponentialDecay(half_life_us)
        self._longest_us = _LONGEST_PAUSE * half_life_us
        self._sums = np.zeros(5)  # records read, time, records worked on, steps, steps behind
        self._last_us: int | None = None

    def note(self, clock_us: int, read: int, worked: int, *, more: bool) -> None:
        """Note a step of new input.

        Args:
            clock_us: its clock reading; what it read has come since the one before.
            read: how many records it took.
            worked: on how many computations worked.
            more: whether more was waiting than it took.
        """
        last, self._last_us = self._last_us, clock_us
        if last is None:
            return  # (nobody knows since when what it read had been coming)
        gain = self._fading.gain(clock_us, self._sums)
        span = self._span(last, clock_us)
        self._sums += gain * np.array([read, span, worked, 1.0, float(more)])

    def per_second(self, now_us: int) -> float:
        """Return how many records come in a second; not less than are read, where more is waiting."""
        return self._per_second(0, now_us)

    def steps_per_second(self, now_us: int) -> float:
        """Return how many steps are made in a second."""
        return self._per_second(3, now_us)

    def _per_second(self, at: int, now_us: int) -> float:
        if self._last_us is None:
            return 0.0
        since = self._fading.gain(now_us, self._sums) * self._span(self._last_us, now_us)
        span = float(self._sums[1]) + since
        return float(self._sums[at]) * 1e6 / span if span else 0.0

    def _span(self, since_us: int, until_us: int) -> int:
        return min(max(0, until_us - since_us), self._longest_us)

    @property
    def amplification(self) -> float:
        """On how many records computations work for each that comes in."""
        return float(self._sums[2] / self._sums[0]) if self._sums[0] else 1.0

    @property
    def saturated(self) -> bool:
        """Whether in most steps more was waiting than they took."""
        return bool(self._sums[4] > self._sums[3] / 2)
