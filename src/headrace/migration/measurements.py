"""What policies go by: how much each worker and bin has to do, and how much comes in."""

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
        now_us: when this was put together, by the clock of whoever did.
        changed_us: when the layout last changed, by the same clock; None where it never did.
        layout: the one in force.
        load: what each of its bins has.
        state_bytes: of each worker.
        records_per_s: that each worker worked on.
        busy_us: how long each worker was at work in a step.
        true_rates: how many records a second each worker works on while it is at work, not counting
            the time that it waits (DS2's *true processing rate*); 0 where that is not known.
        arrivals_per_s: records that come in; where more is waiting than is read, those that are read.
        backlog: records that wait, as far as that is known.
        amplification: on how many records computations work for each that comes in, as what one produces
            is worked on by others.
        places: how many workers can work at once; 0 where that is not known.
        known: whether enough was measured to tell bins apart.
        saturated: whether most steps leave input waiting, so that more may come in than is read.
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

    def __post_init__(self) -> None:
        columns = (self.state_bytes, self.records_per_s, self.busy_us, self.true_rates)
        ensure(
            all(len(column) == self.workers for column in columns),
            "measurements need one number a worker of their layout",
        )

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return self.layout.workers

    @property
    def since_change_us(self) -> float:
        """How long ago the layout changed; without end where it never did."""
        return float("inf") if self.changed_us is None else float(self.now_us - self.changed_us)
