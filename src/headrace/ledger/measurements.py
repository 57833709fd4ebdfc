"""Measurements as data: what the driver has measured, for controllers and commands in other processes.

Every so often the driver that runs a pipeline writes a file with all that its own policies go by, and
deletes the one before. It is soft: nothing durable depends on it, a new driver measures anew, and one
that has been fenced may leave a file behind. Who reads takes the newest.
"""

from __future__ import annotations

import contextlib

import msgspec
import numpy as np

from headrace.errors import AlreadyExists, Damaged, NewerFormat, NotFound
from headrace.keyspace.layout import Layout, LayoutWire
from headrace.ledger.envelope import Sealed
from headrace.ledger.migrations import Latency
from headrace.migration.loads import Load
from headrace.migration.measurements import Measurements
from headrace.migration.objective import OpeningRates
from headrace.storage.base import Store
from headrace.storage.bounds import Micros, StepNumber, WholeOrNot

FOLDER = "measurements/"


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest decision of a policy.

    Attributes:
        policy: its name.
        at_us: when, by the driver's clock.
        decided: what it decided, in words, with the reason.
        wants: whether that is a change.
        dry_run: whether it is only reported, not carried out.
        command: the command that follows from it; -1 for none.
    """

    policy: str
    at_us: Micros
    decided: str = msgspec.field(name="wish")
    wants: bool
    dry_run: bool = False
    command: int = -1


class Published(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was measured, as of a step. Columns have a number for each bin of the layout, or each worker.

    Attributes:
        step, epoch: of which step, in whose reign.
        now_us, changed_us, arrivals_per_s, backlog, amplification, saturated, places: as in
            ``Measurements``.
        layout: the one in force.
        known: whether enough records were looked at to tell bins apart.
        sizes: of each bin, bytes of state; None before that is known.
        records, busy_us: of each bin, records and microseconds of work in a step.
        state_bytes, records_per_s, worker_busy_us, true_rates: of each worker, as in ``Measurements``.
        steps: how long steps take while nothing moves.
        opening: how fast workers open state.
        decision: what the driver's policy wanted last.
    """

    step: StepNumber
    epoch: StepNumber
    now_us: Micros
    changed_us: int | None
    layout: LayoutWire
    known: bool
    sizes: list[WholeOrNot] | None
    records: list[float]
    busy_us: list[float]
    state_bytes: list[WholeOrNot]
    records_per_s: list[float]
    worker_busy_us: list[float]
    true_rates: list[float]
    arrivals_per_s: float
    backlog: int
    amplification: float
    saturated: bool
    places: int
    steps: Latency
    opening: OpeningRates
    decision: Decision | None = None

    @property
    def load(self) -> Load:
        """What each bin has."""
        layout = Layout.from_wire(self.layout)
        return Load.of(layout, sizes=self.sizes, records=self.records, cpu_us=self.busy_us)

    @property
    def measurements(self) -> Measurements:
        """The same as policies want it."""
        return Measurements(
            now_us=self.now_us,
            changed_us=self.changed_us,
            layout=Layout.from_wire(self.layout),
            load=self.load,
            state_bytes=np.array(self.state_bytes, dtype=np.int64),
            records_per_s=np.array(self.records_per_s),
            busy_us=np.array(self.worker_busy_us),
            true_rates=np.array(self.true_rates),
            arrivals_per_s=self.arrivals_per_s,
            backlog=self.backlog,
            amplification=self.amplification,
            saturated=self.saturated,
            known=self.known,
            places=self.places,
        )


PUBLISHED = Sealed("headrace-measurements", Published)


def name_of(published: Published) -> str:
    """Return the one name of a file of measurements."""
    return f"{FOLDER}{published.step:012d}-e{published.epoch}"


class Notices:
    """Writes measurements, and leaves only the newest.

    Args:
        store: the pipeline's storage.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._there: list[str] | None = None  # of what was written, what may be there

    def write(self, published: Published) -> None:
        """Let others see what was measured.

        Raises:
            StorageError: when it cannot be written; nothing depends on it.
        """
        name = name_of(published)
        if self._there == [name]:
            return
        old = self._store.list(FOLDER) if self._there is None else self._there
        self._there = [*old, name]  # even if that is not known
        with contextlib.suppress(AlreadyExists):  # it is of our epoch: by this very call
            self._store.create(name, PUBLISHED.encode(published))
        for other in old:
            if other != name:
                self._store.delete(other)
        self._there = [name]


def newest_measurements(store: Store) -> Published | None:
    """Return what was measured last; None where nothing was, or it is of another version."""
    for name in sorted(store.list(FOLDER), reverse=True):
        try:
            return PUBLISHED.read(store, name)
        except (NotFound, Damaged, NewerFormat, msgspec.ValidationError):
            continue  # a newer one has taken its place, or it is of another version
    return None
