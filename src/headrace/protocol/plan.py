"""The plan of a step: all that a task needs to know, and all that the step may depend on."""

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
from headrace.ledger.records import Link
from headrace.ledger.retained import Retained
from headrace.pipeline.source import Split
from headrace.protocol.loads import BinLoads, OpenedState
from headrace.runfiles.format import FileRef
from headrace.storage.soft import is_soft

#: Who carries records between layers: the driver, files of the one host that all tasks run on, or Spark's
#: shuffle.
Exchange = Literal["driver", "host", "shuffle"]


class InjectorPlan(msgspec.Struct, frozen=True):
    """What one injector brings in this step.

    Attributes:
        before: what was known of it before, with what its source says of its partitions now.
        final: whether its input ends with this step, so that its watermark goes to the end.
        splits: the parts of its division, in order.
    """

    before: Frontiers
    final: bool
    splits: list[Split] = []


class ChainPlan(msgspec.Struct, frozen=True):
    """Which committed files the soft state of one (layer, worker) must stand for.

    Soft state is valid for a chain of adopted files, never for a step number: an abandoned try
    reached "step t" too.

    Attributes:
        digest: names the chain up to and with the last committed step.
        recent: the chain's last links, (digest before, file, digest after), oldest first; of light
            steps, whose files are soft, all since the last checkpoint.
    """

    digest: str
    recent: list[Link]

    @property
    def checkpoint(self) -> str:
        """Names the chain up to the last checkpoint; the next one goes on from there."""
        soft = self.soft
        return soft[0][0] if soft else self.digest

    @property
    def soft(self) -> list[Link]:
        """The links of light steps."""
        return [of for of in self.recent if is_soft(of[1].name)]


class Carried(msgspec.Struct, frozen=True):
    """State that no code of the run knows, and that is to be kept: of a computation that was removed.

    Attributes:
        name: the computation.
        dated: its cells that hold times, and their time domains.
        files: what holds its rows of the slice that is to be written.
    """

    name: str
    dated: dict[str, str]
    files: StateFiles


class SlicePlan(msgspec.Struct, frozen=True):
    """A slice of the hash space whose content the step is to write whole.

    Attributes:
        number, of: which slice, of how many.
        undeclared: computations of which storage has state that the code does not declare, so that
            memory does not have all there is.
        carried: computations that are not drawn, whose rows are taken over from file to file.
    """

    number: int
    of: int
    undeclared: list[str]
    carried: list[Carried] = []


class ReadAhead(msgspec.Struct, frozen=True, array_like=True):
    """What a worker is to read ahead, since it is to own it soon.

    Attributes:
        worker: who.
        ranges: what is wanted, as :meth:`headrace.keyspace.ranges.Ranges.to_wire` writes it.
        most_bytes: about how much it may read at a time; with 0 it keeps what it has up to date.
    """

    worker: int
    ranges: bytes
    most_bytes: int


class StepPlan(msgspec.Struct, frozen=True):
    """A step to be computed.

    The result of a step is a function of: the division (through the splits), the clock reading, the
    seed, the watermarks, and the committed state. The rest says who does what.

    Attributes:
        step: the step's number.
        epoch: the driver's reign.
        try_: which run of the step this is.
        clock_us: the clock reading that everybody uses.
        seed: of all randomness in the step.
        layout: bins and owners.
        lineage, layout_version, relocated: where the layout comes from, for soft state and readers of
            files; see ``LayoutNow``. Of what was relocated, the newest.
        ahead: what is read ahead, by workers that are to own it soon.
        per_worker: digests of what computations hold in workers, by ``"computation/worker"``.
        orphans: the workers that are no more, and whose per-worker state is still there, by computation.
        measured: whether reports are to tell which bins had how much to do.
        store: where the storage is.
        injectors: what comes in.
        watermarks: (input, output) of each computation after the step before.
        reached: of computations whose input has ended, the event time up to which they have worked it off.
        latest: the latest event time that the pipeline had worked with before the step.
        percentiles: the percentile watermark of what each computation produces, where it differs.
        resting: computations that do not work in this step, whatever comes to them.
        replays: whether the division is read again, for computations that are catching up.
        retained: the retained productions that they read again, in the place of a division.
        portions: how many portions of due timers computations have fired since all input has ended, if
            some are left; see :mod:`headrace.tasks.portions`.
        chains: what soft state must stand for, by ``"layer/worker"``.
        exchange: who carries records between layers. Which one it was leaves no trace in any result.
        cached_bytes: how much of a computation's state a worker may keep in memory.
        slice: the slice to be written whole, if any.
        light: whether what the step changes is left in soft files.
        timeout_us: how long its tasks may take; 0 for any time.
        checkpoint: the step as of which state is in storage; steps after it have left soft files.
        ledger: the newest committed step; its head says which files state is in. It is the step before,
            unless the step is computed once more.
    """

    step: int
    epoch: int
    try_: int
    clock_us: int
    seed: int
    layout: LayoutWire
    store: str
    injectors: dict[str, InjectorPlan]
    watermarks: dict[str, tuple[int, int]]
    chains: dict[str, ChainPlan]
    exchange: Exchange
    cached_bytes: int
    slice: SlicePlan | None = None
    percentiles: dict[str, int] = {}
    reached: dict[str, int] = {}
    latest: int = MIN_TIME
    resting: list[str] = []
    replays: bool = False
    retained: Retained | None = None
    lineage: str = ""
    layout_version: int = 0
    relocated: list[Relocated] = []
    ahead: list[ReadAhead] = []
    per_worker: dict[str, str] = {}
    orphans: dict[str, list[int]] = {}
    measured: bool = False
    light: bool = False
    checkpoint: int = -1
    ledger: int = -1
    timeout_us: int = 0
    portions: dict[str, int] = {}

    @property
    def readers(self) -> int:
        """How many tasks read the division; the driver alone counts as one."""
        return 1 if self.exchange == "driver" else self.layout.workers

    def injectors_after(
        self, seen: Mapping[str, Mapping[str, PartitionSeen]], rules: Mapping[str, Rules]
    ) -> dict[str, Frontiers]:
        """Return what is known of the injectors after the step.

        Args:
            seen: what the records that were read came to, by injector and partition.
            rules: by injector.
        """
        before = {name: of.before for name, of in self.injectors.items()}
        finals = [name for name, of in self.injectors.items() if of.final]
        return advance(before, seen, finals, rules, self.clock_us)

    def file_stem(self, layer: int, worker: int, attempt: str) -> str:
        """Return the name of a file of one attempt; no other attempt ever bears it."""
        return f"{self.step:012d}-e{self.epoch}-t{self.try_}-l{layer}-w{worker}-a{attempt}"


class Failure(msgspec.Struct, frozen=True):
    """Why a task could not do its part; it travels in band, so that user errors come first."""

    kind: str
    what: str
    place: str = ""
    remedy: str = ""
    traceback: str = ""


class NodeReport(msgspec.Struct):
    """What one computation did on one worker.

    Attributes:
        records, late, skipped, keys, timers, produced: how many.
        input_watermark, output_watermark: after this step.
        percentile: the percentile watermark of what it produces.
        next_wall_timer: the lowest pending wall timer, or a bound below it.
        oldest: the lowest event time of work that is still to be done, or a bound below it.
        state_digest: of what it changed.
        duplicates, expired: records that a check of ids dropped: their id was seen; or they are so
            late that their id may be forgotten.
        backlog: whether timers or posts are left that are due, and fire in the next steps.
        reached: the watermark that would have made all event timers, posts and ordered records due that
            were due in this step; ``MIN_TIME`` for none.
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


class StreamReport(msgspec.Struct):
    """What was produced on one staged stream on one worker."""

    rows: int = 0
    digest: int = 0


class TaskReport(msgspec.Struct):
    """What one attempt did; the driver adopts attempts by these.

    Attributes:
        layer, worker, attempt: who it was; the attempt's name is unique for ever.
        consumed: the attempts (layer, worker, attempt) whose payloads it worked on.
        run: the file of its state changes and of its part of the slice, if there are any.
        outputs: the file of staged productions, if there are any.
        retained: the file of retained productions, if there are any.
        in_slice: whether the file of state holds rows of the slice.
        slice_bytes: how many bytes of them.
        nodes, streams: counts, watermarks and digests.
        seen: what the records that it read came to, by injector and partition.
        read_rows: records read, by injector.
        skipped: records that the source could not read, by injector.
        phases: seconds spent, by phase.
        unread: whether something is still to be read ahead.
        loads: what its bins gave each computation to do, if the step is measured.
        opened: what of its state it has opened; None for nothing.
        notes: facts for people: process, whether soft state was at hand.
        failure: why it failed.
        inline_outputs: copies of small staged productions, so that they need not be read.
        unstaged: small productions that only weak sinks receive, and that are in no file.
        per_worker: what computations hold in the worker, where that has changed.
        taken_in: workers that are no more, and whose per-worker state is in the worker's now.
    """

    layer: int
    worker: int
    attempt: str
    consumed: list[tuple[int, int, str]] = []
    run: FileRef | None = None
    outputs: FileRef | None = None
    retained: FileRef | None = None
    in_slice: bool = False
    slice_bytes: int = 0
    nodes: dict[str, NodeReport] = {}
    streams: dict[str, StreamReport] = {}
    seen: dict[str, dict[str, PartitionSeen]] = {}
    read_rows: dict[str, int] = {}
    skipped: dict[str, int] = {}
    read_digests: dict[str, int] = {}
    phases: dict[str, float] = {}
    unread: bool = False
    loads: list[BinLoads] = []
    opened: OpenedState | None = None
    notes: dict[str, Any] = {}
    failure: Failure | None = None
    inline_outputs: dict[str, bytes] = {}
    unstaged: dict[str, bytes] = {}
    per_worker: dict[str, Held] = {}
    taken_in: dict[str, list[int]] = {}
