"""Published measurements: the driver's measurements, for policies and commands elsewhere.

Other processes read them. The driver writes a file at regular intervals, with all the values that
its own policies use, and deletes the one before. Measurements are soft: nothing durable depends on
them. A new driver measures afresh, and a fenced driver may leave a file behind. Readers take the
newest file.
"""

from __future__ import annotations

import contextlib

import msgspec
import numpy as np

from headrace.errors import AlreadyExists, Damaged, NewerFormat, NotFound
from headrace.keyspace.layout import Layout, LayoutWire
from headrace.ledger.envelope import Sealed
from headrace.ledger.migrations import Latency
from headrace.migration.costs import OpeningRates, RoundFactors, Scatter, Starting, StoreTimes
from headrace.migration.loads import Load
from headrace.migration.measurements import Measurements
from headrace.storage.base import Store
from headrace.storage.bounds import HashText, Micros, StepNumber, Whole, WholeOrNot, WorkerNumber

FOLDER = "measurements/"
#: A bin with more than this many times the mean load is hot.
HOT_BIN = 4.0


class Decision(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest decision of a policy.

    Attributes:
        policy: name of the policy.
        at_us: when it decided, by the driver's clock.
        decided: the decision in words, with the reason.
        wants: whether the decision is to change something.
        dry_run: whether it is only reported, not carried out.
        command: number of the command that follows from it; -1 for none.
    """

    policy: str
    at_us: Micros
    decided: str = msgspec.field(name="wish")
    wants: bool
    dry_run: bool = False
    command: int = -1


class HotKey(msgspec.Struct, frozen=True, array_like=True):
    """A key with a large share of a computation's records, as estimated from a sample.

    Attributes:
        computation: the computation.
        key: the parts of the key, as ``headrace state get`` takes them. Long parts are shortened.
        hash: its hash in hexadecimal, which says which bin it is in.
        share: its share of the records of the computation, 0 to 1, lately.
        at_least, at_most: the share is between these, with a certainty of 95 %.
    """

    computation: str
    key: list[str]
    hash: HashText
    share: float
    at_least: float
    at_most: float


class Published(msgspec.Struct, frozen=True, omit_defaults=True):
    """Measurements as of a step. Lists have one number for each bin of the layout, or worker.

    Attributes:
        step, epoch: the step, and the epoch of the driver.
        now_us, changed_us, arrivals_per_s, backlog, amplification, saturated, places: as in
            ``Measurements``.
        layout: the layout in force.
        known: whether enough records were measured to compare bins.
        sizes: bytes of state of each bin; None before they are known.
        records, busy_us: records and microseconds of work in a step, of each bin.
        state_bytes, records_per_s, worker_busy_us, true_rates: of each worker, as in
            ``Measurements``.
        steps: how long steps take while no state moves.
        opening: how fast workers open state.
        scatter: how the times of steps scatter while no state moves.
        store: how long the storage takes to answer.
        rounds: what the rounds of migrations have taught.
        starting: how new workers come.
        busy: the share of the time that records take on the workers; None if not known.
        ahead_bytes: how many bytes a worker may read ahead in a step.
        decision: the newest decision of the driver's policy.
        computations_us: by computation: microseconds of work in a step, on each worker.
        hot_keys: the busiest keys.
        memory_bytes, pids: of the process in which each worker ran last: its resident memory, and
            its id; -1 while unknown. Several workers may share a process.
        drained: as in ``Measurements``.
        hot_since_us: since when the busiest bin has had ``HOT_BIN`` times the mean load, by the clock
            of the driver that measures; None if it has not.
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
    computations_us: dict[str, list[float]] = {}
    hot_keys: list[HotKey] = []
    memory_bytes: list[WholeOrNot] = []
    pids: list[WholeOrNot] = []
    drained: list[WorkerNumber] = []
    hot_since_us: Micros | None = None
    scatter: Scatter = Scatter()
    store: StoreTimes = StoreTimes()
    rounds: RoundFactors = RoundFactors()
    starting: Starting = Starting()
    busy: float | None = None
    ahead_bytes: Whole = 2 << 20

    @property
    def load(self) -> Load:
        """The load of each bin."""
        layout = Layout.from_wire(self.layout)
        return Load.of(layout, sizes=self.sizes, records=self.records, cpu_us=self.busy_us)

    @property
    def measurements(self) -> Measurements:
        """The measurements in the form that policies use."""
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
            drained=tuple(self.drained),
        )


PUBLISHED = Sealed("headrace-measurements", Published)


def name_of(published: Published) -> str:
    """Return the name of a file of measurements."""
    return f"{FOLDER}{published.step:012d}-e{published.epoch}"


class Notices:
    """Writes measurements and keeps only the newest.

    Args:
        store: the pipeline's storage.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._there: list[str] | None = None  # files that may be there; None: not listed yet

    def write(self, published: Published) -> None:
        """Publish measurements.

        Raises:
            StorageError: when they cannot be written. Nothing depends on them.
        """
        name = name_of(published)
        if self._there == [name]:
            return
        old = self._store.list(FOLDER) if self._there is None else self._there
        self._there = [*old, name]  # even if the create fails: it may have taken effect
        with contextlib.suppress(AlreadyExists):  # the epoch is ours, so this very call created it
            self._store.create(name, PUBLISHED.encode(published))
        for other in old:
            if other != name:
                self._store.delete(other)
        self._there = [name]


def newest_measurements(store: Store) -> Published | None:
    """Return the newest measurements; None if there are none, or only of another version."""
    for name in sorted(store.list(FOLDER), reverse=True):
        try:
            return PUBLISHED.read(store, name)
        except (NotFound, Damaged, NewerFormat, msgspec.ValidationError):
            continue  # replaced by a newer file, damaged, or of another version
    return None
