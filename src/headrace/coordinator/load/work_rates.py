"""How fast workers work, and how much input arrives.

Policies compute the number of workers from this. It is kept in memory, so a new driver starts
measuring from nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.coordinator.load.decay import HALF_LIFE_US, ExponentialDecay
from headrace.protocol.plan import TaskReport

F64 = npt.NDArray[np.float64]

#: Phases of a task that are not work on its input.
_UPKEEP = ("read ahead",)
_USER_CODE = "user code"
#: If numbers of records vary by less than this share of their mean, no slope can be estimated from
#: them.
_LEAST_SPREAD = 0.1


class WorkRates:
    """How long workers work in a step, and on how many records.

    A worker's *true rate* (DS2, Kalavri et al., OSDI '18) is how many records a second it processes
    while it works. Here steps are small if little input arrives, and each step takes some fixed
    time. So the question is how much time one more record takes: the slope of the line through
    (records, time) of the newest steps. The slope is at least the time in user code for each
    record, and at most the whole time for each record. If steps are too similar to fit a line, it
    is the time in user code.
    """

    def __init__(self, half_life_us: int = HALF_LIFE_US) -> None:
        self._decay = ExponentialDecay(half_life_us)
        # For each worker: steps, records, time, time in user code, records squared, records times
        # time.
        self._sums = np.zeros((6, 0))

    def note(self, workers: int, clock_us: int, tasks: Sequence[TaskReport]) -> None:
        """Note a measured step."""
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
        gain = self._decay.gain(clock_us, self._sums)
        ones = np.ones(workers)
        self._sums += gain * np.array([ones, records, took, user, records**2, records * took])

    def busy_us(self, workers: int) -> F64:
        """Return how long each worker works in a step, in microseconds."""
        steps, _, took, *_ = self._of(workers)
        found: F64 = np.divide(took, steps, out=np.zeros(workers), where=steps > 0)
        return found

    def records(self, workers: int) -> F64:
        """Return how many records each worker processes in a step."""
        steps, records, *_ = self._of(workers)
        found: F64 = np.divide(records, steps, out=np.zeros(workers), where=steps > 0)
        return found

    def true_rates(self, workers: int) -> F64:
        """Return how many records a second each worker processes while it works; 0 if unknown."""
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


#: A pause counts for at most this many half-lives. What came before it has decayed by then, and a
#: clock that was wrong for one step is soon forgotten.
_LONGEST_PAUSE = 2


class Arrivals:
    """How many records arrive, by the clock of the steps, and how many are processed for them."""

    def __init__(self, half_life_us: int = HALF_LIFE_US) -> None:
        self._decay = ExponentialDecay(half_life_us)
        self._longest_us = _LONGEST_PAUSE * half_life_us
        # Records read, time, records processed, steps, steps that left input waiting.
        self._sums = np.zeros(5)
        self._last_us: int | None = None

    def note(self, clock_us: int, read: int, worked: int, *, more: bool) -> None:
        """Note a step with new input.

        Args:
            clock_us: its clock reading. What it read has arrived since the reading before.
            read: how many records it took.
            worked: how many records computations processed.
            more: whether more input was waiting than it took.
        """
        last, self._last_us = self._last_us, clock_us
        if last is None:
            return  # since when the records had been arriving is unknown
        gain = self._decay.gain(clock_us, self._sums)
        span = self._span(last, clock_us)
        self._sums += gain * np.array([read, span, worked, 1.0, float(more)])

    def per_second(self, now_us: int) -> float:
        """Return how many records arrive in a second.

        If input is waiting, this is the rate of reading, a lower bound.
        """
        return self._per_second(0, now_us)

    def steps_per_second(self, now_us: int) -> float:
        """Return how many steps are made in a second."""
        return self._per_second(3, now_us)

    def _per_second(self, at: int, now_us: int) -> float:
        if self._last_us is None:
            return 0.0
        since = self._decay.gain(now_us, self._sums) * self._span(self._last_us, now_us)
        span = float(self._sums[1]) + since
        return float(self._sums[at]) * 1e6 / span if span else 0.0

    def _span(self, since_us: int, until_us: int) -> int:
        return min(max(0, until_us - since_us), self._longest_us)

    @property
    def amplification(self) -> float:
        """How many records computations process for each record that arrives."""
        return float(self._sums[2] / self._sums[0]) if self._sums[0] else 1.0

    @property
    def saturated(self) -> bool:
        """Whether most steps left input waiting."""
        return bool(self._sums[4] > self._sums[3] / 2)
