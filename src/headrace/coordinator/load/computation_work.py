"""How long each computation works on each worker in a step, added up from measured steps.

It is kept in memory, so a new driver starts measuring from nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from headrace.coordinator.load.decay import HALF_LIFE_US, ExponentialDecay
from headrace.protocol.plan import TaskReport

F64 = npt.NDArray[np.float64]

#: At most this many numbers are published: those of the computations that work most.
MOST_CELLS = 1 << 14


class ComputationWork:
    """Adds up the time of each computation on each worker."""

    def __init__(self, half_life_us: int = HALF_LIFE_US) -> None:
        self._half_life_us = half_life_us
        self._begin(0)

    def _begin(self, workers: int) -> None:
        self._workers = workers
        self._decay = ExponentialDecay(self._half_life_us)
        self._steps = np.zeros(1)
        self._took: dict[str, F64] = {}

    def note(self, workers: int, clock_us: int, tasks: Sequence[TaskReport]) -> None:
        """Note a measured step. With another number of workers, measuring starts from nothing."""
        if workers != self._workers:
            self._begin(workers)
        gain = self._decay.gain(clock_us, self._steps, *self._took.values())
        self._steps += gain
        there = {name for task in tasks for name in task.nodes}
        self._took = {name: self._took.get(name, np.zeros(workers)) for name in sorted(there)}
        for task in tasks:
            for name, of in task.nodes.items():
                self._took[name][task.worker] += gain * of.took_us

    @property
    def computations(self) -> list[str]:
        """The computations of the newest measured step."""
        return list(self._took)

    def busy_us(self) -> dict[str, list[float]]:
        """Return by computation: microseconds of work in a step, on each worker."""
        steps = float(self._steps[0])
        if not steps:
            return {}
        means = {name: took / steps for name, took in self._took.items()}
        most = sorted(means, key=lambda name: -float(means[name].sum()))
        shown = set(most[: max(1, MOST_CELLS // max(1, self._workers))])
        return {name: mean.round(1).tolist() for name, mean in means.items() if name in shown}
