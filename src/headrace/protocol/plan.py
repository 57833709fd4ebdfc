"""The plan of a step, which the driver sends to the tasks, and the reports that they send back.

A plan holds everything that a task needs to know, and everything that the step may depend on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from headrace.checkpoints.state_files import StateFiles
from headrace.computation.per_worker import Held
from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME
from headrace.eventtime.watermark import Frontiers, PartitionSeen, Rules, advance
from headrace.keyspace.layout import LayoutWire
from headrace.keyspace.updates import Relocated
from headrace.ledger.records import HeavyBin, Link
from headrace.ledger.retained import Retained
from headrace.pipeline.source import Split
from headrace.protocol.key_loads import KeyLoads
from headrace.protocol.loads import BinLoads, OpenedState
from headrace.runfiles.format import FileRef
from headrace.storage.soft import is_soft
from headrace.storage.timed import ReadTimes

#: How records travel between layers: through the driver, through files on the one host that runs
#: all tasks, or through Spark's shuffle.
Exchange = Literal["driver", "host", "shuffle"]


class InjectorPlan(msgspec.Struct, frozen=True):
    """What one injector brings in this step.

    Attributes:
        before: what was known of it before, with what its source says of its partitions now.
        final: whether its input ends with this step, so that its watermark goes to the end of time.
        splits: the parts of its division, in order.
    """

    before: Frontiers
    final: bool
    splits: list[Split] = []


class ChainPlan(msgspec.Struct, frozen=True):
    """Which committed files the soft state of one (layer, worker) must stand for.

    Soft state is valid for a chain of adopted files, never for a step number: an abandoned attempt
    reached "step t", too.

    Attributes:
        digest: names the chain up to and including the last committed step.
        recent: the last links of the chain, oldest first, as (digest before, file, digest after).
            Links of uncheckpointed steps, whose files are soft, are all included.
    """

    digest: str
    recent: list[Link]

    @property
    def checkpoint(self) -> str:
        """The name of the chain up to the last checkpoint.

        The next checkpoint continues that chain.
        """
        soft = self.soft
        return soft[0][0] if soft else self.digest

    @property
    def soft(self) -> list[Link]:
        """The links of uncheckpointed steps."""
        return [of for of in self.recent if is_soft(of[1].name)]


class Carried(msgspec.Struct, frozen=True):
    """State of a removed computation, which no code of the run knows, but which must be kept.

    Attributes:
        name: the computation.
        dated: its cells that hold times, with their time domains.
        files: the files with its rows of the slice that is being written.
    """

    name: str
    dated: dict[str, str]
    files: StateFiles


class SlicePlan(msgspec.Struct, frozen=True):
    """A slice of the hash space that the step writes whole.

    Attributes:
        number, of: the number of the slice, and the number of slices.
        undeclared: computations with stored state that the code does not declare, so that memory
            does not hold all of it.
        carried: removed computations whose rows are copied from file to file.
    """

    number: int
    of: int
    undeclared: list[str]
    carried: list[Carried] = []


class ReadAhead(msgspec.Struct, frozen=True, array_like=True):
    """What a worker reads ahead because it will own it soon.

    Attributes:
        worker: the worker.
        ranges: the hashes, as written by :meth:`headrace.keyspace.ranges.Ranges.to_wire`.
        most_bytes: about how many bytes it may read at a time. With 0, it keeps what it has up to
            date.
    """

    worker: int
    ranges: bytes
    most_bytes: int


class MovedState(msgspec.Struct, frozen=True, array_like=True):
    """The files with the state of hashes whose owner is new in this step.

    A new owner reads them without a look at the ledger.

    Attributes:
        ranges: the hashes, as written by :meth:`headrace.keyspace.ranges.Ranges.to_wire`.
        files: all files that hold state of these hashes, of all layers. They leave out the layout,
            which is the plan's.
    """

    ranges: bytes
    files: StateFiles


class SeedPlan(msgspec.Struct, frozen=True):
    """The rows of tables that new computations begin with, in one step.

    Attributes:
        names: the new computations.
        tables: the streams of the tables. Others that they read are as usual.
        first: how far the tables have been read. Of these keys, the changes of the step count.
        end: how far this step reads. Of the keys between, the rows after the step count.
        constants: the tables that are injectors of constant records, if they are given in this step.
    """

    names: list[str]
    tables: list[str]
    first: int
    end: int
    constants: list[str] = []


class StepPlan(msgspec.Struct, frozen=True):
    """A step to be computed.

    The result of a step is a function of the division (through the splits), the clock reading, the
    seed, the watermarks, and the committed state. The rest says which task does what.

    Attributes:
        step: the number of the step.
        epoch: the driver's epoch.
        attempt: the number of the attempt.
        clock_us: the clock reading that all tasks use.
        highest_clock_us: the highest clock reading of any step so far, this one included.
        seed: seed of all randomness in the step.
        layout: bins and owners.
        lineage, layout_version, relocated: where the layout comes from, for soft state and readers
            of files; see ``LayoutNow``. Only the newest relocations are named.
        moved: the files with the state of what has new owners in this step; None if nothing has, or
            if the files are too many for a plan.
        ahead: what workers read ahead because they will own it soon.
        per_worker: digests of what computations hold in workers, by ``"computation/worker"``.
        orphans: workers that no longer exist but still have per-worker state, by computation.
        measured: whether reports include the loads of bins.
        store: where the storage is.
        injectors: what comes in.
        watermarks: (input, output) of each computation after the step before.
        reached: for computations whose input has ended, the event time up to which they have
            processed it.
        latest: the latest event time that the pipeline had processed before the step.
        percentiles: the percentile watermark of what each computation produces, where it differs.
        inactive: computations that do not run in this step, whatever reaches them.
        is_backfill: whether this is a step of a backfill, so that the division is read again.
        retained: the retained productions that a backfill reads in place of a division.
        seeds: the rows that tables give to new computations; None if none are.
        portions: how many portions of due timers each computation has fired since all input has
            ended, if some are left; see :mod:`headrace.tasks.portions`.
        chains: what soft state must stand for, by ``"layer/worker"``.
        exchange: how records travel between layers. No result depends on it.
        resident: whether workers may be resident tasks. No result depends on it.
        cached_bytes: how much of a computation's state a worker may keep in memory.
        packed_bytes: the size up to which a file goes into the manifest.
        slice: the slice to be written whole, if any.
        uncheckpointed: whether the step is uncheckpointed, so that its changes stay in soft files.
        timeout_us: how long its tasks may take; 0 for no limit.
        checkpoint: the step as of which state is in storage. Later steps have left soft files.
        ledger: the newest committed step, whose head says which files hold state. It is the step
            before, except in a replay.
        drained: workers that read nothing.
        reading: by injector and partition, the worker that reads it.
    """

    step: int
    epoch: int
    attempt: int = msgspec.field(name="try_")
    clock_us: int
    seed: int
    layout: LayoutWire
    store: str
    injectors: dict[str, InjectorPlan]
    watermarks: dict[str, tuple[int, int]]
    chains: dict[str, ChainPlan]
    exchange: Exchange
    cached_bytes: int
    packed_bytes: int = 0
    slice: SlicePlan | None = None
    percentiles: dict[str, int] = {}
    reached: dict[str, int] = {}
    latest: int = MIN_TIME
    inactive: list[str] = msgspec.field(default_factory=list, name="resting")
    is_backfill: bool = msgspec.field(default=False, name="replays")
    retained: Retained | None = None
    seeds: SeedPlan | None = None
    lineage: str = ""
    layout_version: int = 0
    relocated: list[Relocated] = []
    moved: MovedState | None = None
    ahead: list[ReadAhead] = []
    per_worker: dict[str, str] = {}
    orphans: dict[str, list[int]] = {}
    measured: bool = False
    uncheckpointed: bool = msgspec.field(default=False, name="light")
    checkpoint: int = -1
    ledger: int = -1
    timeout_us: int = 0
    portions: dict[str, int] = {}
    resident: bool = False
    drained: list[int] = []
    reading: dict[str, dict[str, int]] = {}
    highest_clock_us: int = 0

    def seeded_readers(self, stream: str) -> list[str]:
        """Return the computations that receive a stream as a table whose rows they are given."""
        return self.seeds.names if self.seeds is not None and stream in self.seeds.tables else []

    def reader_of(self, injector: str, number: int, partition: str | None) -> int:
        """Return the task that reads a split.

        Splits are dealt out in turn to the workers that are not drained, unless their partition has
        a worker of its own.

        Args:
            injector: the injector.
            number: the split's place in the division.
            partition: the split's partition; None if each record names its own.
        """
        mine = self.reading.get(injector, {}).get(partition or "", -1)
        if partition is not None and 0 <= mine < self.readers and mine not in self.drained:
            return mine
        in_turn = [worker for worker in range(self.readers) if worker not in self.drained]
        return in_turn[number % len(in_turn)] if in_turn else number % self.readers

    @property
    def readers(self) -> int:
        """The number of tasks that read the division. The driver alone counts as one."""
        return 1 if self.exchange == "driver" else self.layout.workers

    def injectors_after(
        self, seen: Mapping[str, Mapping[str, PartitionSeen]], rules: Mapping[str, Rules]
    ) -> dict[str, Frontiers]:
        """Return what is known of the injectors after the step.

        Args:
            seen: what the records that were read amount to, by injector and partition.
            rules: by injector.
        """
        before = {name: of.before for name, of in self.injectors.items()}
        finals = [name for name, of in self.injectors.items() if of.final]
        return advance(before, seen, finals, rules, self.clock_us)

    def file_stem(self, layer: int, worker: int, task_attempt: str) -> str:
        """Return the name of an attempt's file, without its folder.

        No other attempt ever uses it.
        """
        return f"{self.step:012d}-e{self.epoch}-t{self.attempt}-l{layer}-w{worker}-a{task_attempt}"


class Failure(msgspec.Struct, frozen=True):
    """Why a task failed.

    It is sent in band, so that an error of user code is reported before its consequences.
    """

    kind: str
    what: str
    place: str = ""
    remedy: str = ""
    traceback: str = ""


class NodeReport(msgspec.Struct):
    """What one computation did on one worker.

    Attributes:
        records, late, skipped, keys, timers, produced: the number of each.
        input_watermark, output_watermark: the watermarks after this step.
        percentile: the percentile watermark of what it produces.
        next_wall_timer: the lowest pending wall timer, or a bound below it.
        oldest: the lowest event time of work that is still to be done, or a bound below it.
        state_digest: the digest of what it changed.
        duplicates, expired: records that a check of ids dropped, because their id was seen, or
            because they are so late that their id may be forgotten.
        backlog: whether due timers or posts are left for the next steps.
        reached: the watermark at which all event timers, posts and ordered records of this step
            were due; ``MIN_TIME`` if there were none.
        counters: what its code has added to its own counters.
        took_us: how long its code ran, in microseconds, without opening state.
    """

    records: int = 0
    late: int = 0
    skipped: int = 0
    keys: int = 0
    timers: int = 0
    produced: int = 0
    input_watermark: int = 0
    output_watermark: int = 0
    percentile: int = MIN_TIME
    next_wall_timer: int = 0
    oldest: int = MAX_TIME
    state_digest: int = 0
    duplicates: int = 0
    expired: int = 0
    backlog: bool = False
    reached: int = MIN_TIME
    counters: dict[str, int] = {}
    took_us: int = 0


class StreamReport(msgspec.Struct):
    """What was produced on one staged stream on one worker."""

    rows: int = 0
    digest: int = 0


class TaskReport(msgspec.Struct):
    """What one attempt of a task did. The driver adopts attempts by these reports.

    Attributes:
        layer, worker, task_attempt: the task, and the name of the attempt, which is never used
            again.
        consumed: the attempts (layer, worker, attempt) whose parcels it processed.
        run: the file of its state changes and of its part of the slice, if there are any.
        outputs: the file of staged productions, if there are any.
        retained: the file of retained productions, if there are any.
        in_slice: whether the file of state holds rows of the slice.
        slice_bytes: the size of these rows.
        slice_heavy: the bins that have much of it.
        nodes, streams: counts, watermarks and digests.
        seen: what the records that it read amount to, by injector and partition.
        read_rows: the number of records read, by injector.
        skipped: the number of records that the source could not read, by injector.
        read_digests: the digest of the records read, by injector.
        phases: seconds by phase.
        unread: whether something is still to be read ahead.
        loads: the load of its bins for each computation, if the step is measured.
        keys: the busiest keys of each computation, if the step is measured.
        opened: how much state it has opened; None if none.
        reads: how long its process waited for the storage since its report before.
        notes: facts for people: the process, its memory if the step is measured, and whether soft
            state was at hand.
        failure: why it failed.
        packed: the bytes of its small files, by name. They are in no storage yet, and go into the
            manifest of the step.
        inline_outputs: copies of small staged productions, so that their files need not be read.
        unstaged: small productions that are in no output file: those that only weak sinks receive
            and, in an uncheckpointed step, those of all sinks.
        per_worker: what computations hold in the worker, where that has changed.
        taken_in: workers that no longer exist, and whose per-worker state this worker has taken
            over.
    """

    layer: int
    worker: int
    task_attempt: str = msgspec.field(name="attempt")
    consumed: list[tuple[int, int, str]] = []
    run: FileRef | None = None
    outputs: FileRef | None = None
    retained: FileRef | None = None
    in_slice: bool = False
    slice_bytes: int = 0
    slice_heavy: list[HeavyBin] = []
    nodes: dict[str, NodeReport] = {}
    streams: dict[str, StreamReport] = {}
    seen: dict[str, dict[str, PartitionSeen]] = {}
    read_rows: dict[str, int] = {}
    skipped: dict[str, int] = {}
    read_digests: dict[str, int] = {}
    phases: dict[str, float] = {}
    unread: bool = False
    loads: list[BinLoads] = []
    keys: list[KeyLoads] = []
    opened: OpenedState | None = None
    reads: ReadTimes | None = None
    notes: dict[str, Any] = {}
    failure: Failure | None = None
    packed: dict[str, bytes] = {}
    inline_outputs: dict[str, bytes] = {}
    unstaged: dict[str, bytes] = {}
    per_worker: dict[str, Held] = {}
    taken_in: dict[str, list[int]] = {}
