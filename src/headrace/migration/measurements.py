"""What policies are based on: how much work each worker and bin has, and how much input arrives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.errors import ensure
from headrace.keyspace.layout import Layout
from headrace.migration.loads import Load

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Measurements:
    """What was measured of a pipeline over some recent time.

    Attributes:
        now_us: when this was put together, by the clock of the process that did it.
        changed_us: when the layout last changed, by the same clock; None if it never did.
        layout: the layout in force.
        load: the load of each of its bins.
        state_bytes: bytes of state of each worker.
        records_per_s: records a second that each worker processed.
        busy_us: how long each worker worked in a step.
        true_rates: how many records a second each worker processes while it works, not counting the
            time that it waits (DS2's *true processing rate*); 0 if unknown.
        arrivals_per_s: records a second that arrive; if more is waiting than is read, those that
            are read.
        backlog: records that wait, as far as that is known.
        amplification: how many records computations process for each that arrives, since some of
            them process what others produce.
        saturated: whether most steps leave input waiting, so that more may arrive than is read.
        known: whether enough was measured to know the loads of single bins.
        places: how many workers can work at once; 0 if unknown.
        drained: workers that own nothing until they are undrained.

    Example::

        class Calm:
            def decide(self, seen):
                if seen.backlog > 60 * seen.arrivals_per_s:
                    return hr.policies.Rescale(seen.workers + 1, f"{seen.backlog} records wait")
                return hr.policies.Nothing("nothing waits for long")
    """

    now_us: int
    changed_us: int | None
    layout: Layout
    load: Load
    state_bytes: I64
    records_per_s: F64
    busy_us: F64
    true_rates: F64
    arrivals_per_s: float
    backlog: int
    amplification: float = 1.0
    saturated: bool = False
    known: bool = True
    places: int = 0
    drained: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        columns = (self.state_bytes, self.records_per_s, self.busy_us, self.true_rates)
        ensure(
            all(len(column) == self.workers for column in columns),
            "measurements need one number a worker of their layout",
        )

    @property
    def workers(self) -> int:
        """The number of workers."""
        return self.layout.workers

    @property
    def sharing(self) -> int:
        """The number of workers that share the state: those that are not drained."""
        return max(self.workers - len(self.drained), 1)

    def workers_for(self, sharing: int) -> int:
        """Return the number of workers of which as many as given are not drained."""
        workers = sharing
        while workers - sum(worker < workers for worker in self.drained) < sharing:
            workers += 1
        return workers

    @property
    def since_change_us(self) -> float:
        """How long ago the layout changed; infinite if it never did."""
        return float("inf") if self.changed_us is None else float(self.now_us - self.changed_us)
