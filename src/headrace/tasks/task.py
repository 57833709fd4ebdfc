"""The tasks of a step.

A task of layer 0 reads records of the input and routes them. A task of a later layer applies that
layer's computations on one worker and routes what they produce.

Spark and the inline runner call the same functions. All effects go through the arguments: the
store, the soft state of the process, and the attempt's name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pyarrow as pa

from headrace.errors import BadInput, HeadraceError, InvariantBroken, SchemaChanged, ensure
from headrace.errors.user_code import SOURCE_REMEDY, blamed, is_from_outside, said, whole_traceback
from headrace.eventtime.delays import delays_of
from headrace.eventtime.domains import EVENT_TIME, WALL_TIME
from headrace.eventtime.timestamps import (
    FIRST_DATE_US,
    LAST_DATE_US,
    MAX_TIME,
    MIN_TIME,
    OUTSIDE,
)
from headrace.eventtime.watermark import (
    Frontier,
    PartitionSeen,
    Watermarks,
    check_number_of_partitions,
    lowest,
    merged_seen,
)
from headrace.keyspace.digests import add_digests, digest_of
from headrace.keyspace.layout import Layout, LayoutWire
from headrace.keyspace.ranges import Ranges
from headrace.ledger.records import link
from headrace.ledger.retained import Retained
from headrace.pipeline import Injector, Node, Pipeline, Stream
from headrace.pipeline.sifting import BadRecord, Sifted
from headrace.pipeline.source import Source, Split
from headrace.protocol.failures import failure_of
from headrace.protocol.loads import OpenedState, loads_of
from headrace.protocol.parcels import (
    Parcel,
    ParcelHeader,
    ParcelLost,
    Spool,
    decode_parcel,
    encode_parcel,
    spool_large,
)
from headrace.protocol.plan import NodeReport, StepPlan, StreamReport, TaskReport
from headrace.runfiles.format import FileRef, RunPart, RunReader
from headrace.schema import describe
from headrace.schema.reserved import PARTITION_COLUMN, TIMESTAMP_COLUMN
from headrace.state.opening_cost import OpeningCost
from headrace.storage.base import Store
from headrace.storage.soft import WithSoftFiles, soft_folder
from headrace.tasks.inputs import input_batches
from headrace.tasks.per_worker import begin_per_worker, end_per_worker
from headrace.tasks.routing import ORDER, OutgoingEntries, Router, positions, stream_schema
from headrace.tasks.source_seen import I64, times_by_partition
from headrace.tasks.state_cache import SoftState, WorkerState
from headrace.tasks.user_code import wall_cause
from headrace.tasks.writing import (
    OUTPUT,
    AttemptFiles,
    drop_soft_files,
    note_changes,
    since_checkpoint,
    stage,
)


class TaskResult(msgspec.Struct):
    """What a task returns.

    Attributes:
        report: what it did.
        parcels: one for each consumer; none after the last layer.
    """

    report: TaskReport
    parcels: list[bytes]


class Worker:
    """Everything that a process needs to run a pipeline's tasks.

    Args:
        pipeline: the pipeline, built by the code that the driver sent.
        code: digest of that code.
        store: the storage.
        soft: the soft state of the process.
        spool: where large parcels go, if they do not travel through the engine.
        soft_files: where uncheckpointed steps leave their changes, shared by the host. In memory by
            default.
        timer: a monotonic clock that times the phases of the report. It never influences a result.
    """

    def __init__(
        self, pipeline: Pipeline, code: str, store: Store, soft: SoftState,
        spool: Spool | None = None, soft_files: Store | None = None,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self.pipeline = pipeline
        self.router = Router(pipeline)
        self.code = code
        self.store: Store = WithSoftFiles(store, soft_files)
        self.soft = soft
        self.spool = spool
        self._timer = timer
        self._layout: tuple[LayoutWire, Layout] | None = None

    def layout(self, plan: StepPlan) -> Layout:
        """Return the plan's layout. It is built only when it has changed."""
        if self._layout is None or self._layout[0] != plan.layout:
            self._layout = (plan.layout, Layout.from_wire(plan.layout))
        return self._layout[1]

    # -- layer 0 ------------------------------------------------------------------------------

    def read(self, plan: StepPlan, reader: int, attempt: str) -> TaskResult:
        """Read this reader's share of the division and route it.

        Splits are dealt out to the readers in turn. Which reader reads a split leaves no trace in
        the result.
        """
        report = TaskReport(layer=0, worker=reader, attempt=attempt)
        outbox = OutgoingEntries(plan.layout.workers)
        with self._guard(report):
            self.soft.foresee(self.code, plan, self.layout(plan), self.store)
            for name, injected in plan.injectors.items():
                for number, split in enumerate(injected.splits):
                    if number % plan.readers == reader:
                        self._read_split(plan, name, number, split, report, outbox)
            if plan.retained is not None:
                for number, file in enumerate(plan.retained.files):
                    if number % plan.readers == reader:
                        self._read_retained(plan, plan.retained, number, file, report, outbox)
        header = self._header(plan, report, {}, {})
        return self._result(plan, report, header, outbox)

    def _read_split(
        self,
        plan: StepPlan,
        name: str,
        number: int,
        split: Split,
        report: TaskReport,
        outbox: OutgoingEntries,
    ) -> None:
        injector = self.pipeline.injectors[name]
        with self._phase(report, "read"):
            table, bad = _read(injector, split)
        if bad:
            report.skipped[name] = report.skipped.get(name, 0) + len(bad)
            if injector.letters is not None:
                self._route_letters(plan, injector.letters, number, split, bad, outbox)
        if table is None or table.num_rows == 0:
            return
        with self._phase(report, "route"):
            for partition, times in times_by_partition(table, split.partition):
                self._see(plan, name, partition, split.place, times, report)
            check_number_of_partitions(len(report.seen[name]), f"injector {name!r}")
            if split.partition is None:
                table = table.drop_columns([PARTITION_COLUMN])
            report.read_rows[name] = report.read_rows.get(name, 0) + table.num_rows
            digest = add_digests(report.read_digests.get(name, 0), digest_of(table))
            report.read_digests[name] = digest
            if injector.check is not None:
                table = table.append_column(ORDER, positions(number, table.num_rows))
            self.router.route(
                injector.stream, table, self.layout(plan), outbox, order=number, place=split.place
            )

    def _route_letters(
        self, plan: StepPlan, letters: Node, number: int, split: Split, bad: list[BadRecord],
        outbox: OutgoingEntries,
    ) -> None:  # fmt: skip
        """Route the records that could not be read, at a time that is late for no reader."""
        (stream,) = letters.inputs
        _, reached = plan.watermarks[letters.name]
        time_us = wall_cause(reached, plan.latest, plan.clock_us).time_us
        columns = stream.values.to_columns(bad)
        times = pa.array([time_us] * len(bad), pa.int64())
        names = [TIMESTAMP_COLUMN, *stream.values.schema.names]
        table = pa.table([times, *columns], names=names)
        self.router.route(stream, table, self.layout(plan), outbox, order=number, place=split.place)

    def _read_retained(
        self, plan: StepPlan, retained: Retained, number: int, file: FileRef, report: TaskReport,
        outbox: OutgoingEntries,
    ) -> None:  # fmt: skip
        """Read what a worker produced on retained streams in an earlier step, and route it."""
        with self._phase(report, "read"):
            reader = RunReader(self.store.read, file)
        for name in retained.watermarks:
            with self._phase(report, "read"):
                table = reader.rows(name, OUTPUT, 0, 2**64 - 1)
            if table is None:
                continue
            with self._phase(report, "route"):
                stream = self.pipeline.streams()[name]
                place = f"step {retained.step}, {file.name}"
                _check_as_now(stream, table, place)
                report.read_rows[name] = report.read_rows.get(name, 0) + table.num_rows
                self.router.route_again(
                    stream, table, self.layout(plan), outbox, order=number, place=place,
                    resting=plan.resting,
                )  # fmt: skip

    def _see(
        self, plan: StepPlan, name: str, partition: str, place: str, times: I64, report: TaskReport
    ) -> None:
        """Note what a partition's records mean for the injector's watermark.

        Raises:
            BadInput: a record has an event time that no record can have.
        """
        seen = PartitionSeen(int(times.max()))
        lowest_us = int(times.min())
        if lowest_us < FIRST_DATE_US or seen.highest > LAST_DATE_US:
            wrong = lowest_us if lowest_us < FIRST_DATE_US else seen.highest
            raise BadInput(
                f"injector {name!r} has a record at {wrong} microseconds: {OUTSIDE}",
                place=place,
                remedy="mend the record, or say the unit of its time (time_unit=)",
            )
        if self.pipeline.injectors[name].rules.percentile is not None:
            before = plan.injectors[name].before.parts.get(partition, Frontier())
            seen = PartitionSeen(seen.highest, delays_of(times, before.highest))
        parts = report.seen.setdefault(name, {})
        parts[partition] = seen.plus(parts[partition]) if partition in parts else seen

    # -- layers of computations ---------------------------------------------------------------

    def apply(
        self, plan: StepPlan, layer: int, worker: int, attempt: str, payload: list[bytes]
    ) -> TaskResult:
        """Apply a layer's computations to this worker's records and due timers.

        Args:
            payload: a parcel from each task of the layer before, in any order.
        """
        report = TaskReport(layer=layer, worker=worker, attempt=attempt)
        with self._guard(report):
            self.soft.foresee(self.code, plan, self.layout(plan), self.store)
        with self._phase(report, "receive"):
            parcels = [decode_parcel(data) for data in payload]
            parcels.sort(key=lambda parcel: parcel.header.worker)
        report.consumed = [
            (parcel.header.layer, parcel.header.worker, parcel.header.attempt) for parcel in parcels
        ]
        outbox = OutgoingEntries(plan.layout.workers)
        known: dict[str, Watermarks] = {}
        local: dict[str, Watermarks] = {}
        latest = MIN_TIME
        with self._guard(report):
            _check_complete(plan, layer, parcels)
            known = self._known_watermarks(plan, layer, parcels)
            latest = _latest(plan, layer, parcels)
            if not any(parcel.header.failed for parcel in parcels):
                local = self._apply(plan, layer, worker, parcels, known, latest, report, outbox)
        header = self._header(plan, report, local, known)
        header.latest = latest
        header.failed |= any(parcel.header.failed for parcel in parcels)
        self._pass_on(layer, worker, parcels, outbox)
        return self._result(plan, report, header, outbox)

    def _apply(
        self, plan: StepPlan, layer: int, worker: int, parcels: list[Parcel],
        known: dict[str, Watermarks], latest: int, report: TaskReport, outbox: OutgoingEntries,
    ) -> dict[str, Watermarks]:  # fmt: skip
        """Run the layer's computations; return the output watermarks of each of their streams."""
        layout = self.layout(plan)
        with self._phase(report, "state"):
            entry, how = self.soft.take(
                self.pipeline, self.code, plan, layout, layer, worker, self.store
            )
        report.notes["soft_state"] = how
        opening = OpeningCost(self._timer)
        for visitor in entry.visitors.values():
            visitor.state.opening = opening
        relaid = report.phases["state"] if how.startswith("moved") else 0.0
        staged: dict[str, pa.RecordBatch] = {}
        local: dict[str, Watermarks] = {}
        produced: dict[str, pa.RecordBatch] = {}
        for node in self.pipeline.nodes_of(layer):
            outputs = self._run_node(
                plan, worker, node, entry, parcels, {**known, **local}, latest, produced, report
            )
            for name, stream in node.outputs.items():
                done = report.nodes[node.name]
                local[stream.name] = Watermarks(done.output_watermark, done.percentile)
                batch = outputs.get(name)
                if batch is None:
                    continue
                produced[stream.name] = batch
                if stream.name in self.pipeline.staged:
                    staged[stream.name] = batch
                with self._phase(report, "route"):
                    place = f"computation {node.name!r}"
                    self.router.route(stream, batch, layout, outbox, order=worker, place=place)
        if opening.bins or relaid:
            took_us = opening.seconds * 1e6
            report.opened = OpenedState(opening.bins, opening.nbytes, took_us, relaid * 1e6)
        self._write(plan, layer, worker, layout, entry, staged, report)
        self._read_ahead(plan, worker, entry, report, again=how == "hit")
        self.soft.give_back(self.code, plan, layer, worker, entry)
        return local

    def _read_ahead(
        self, plan: StepPlan, worker: int, entry: WorkerState, report: TaskReport, *, again: bool
    ) -> None:
        """Read ahead the hashes that this worker will own soon, and forget all others."""
        wanted = next((part for part in plan.ahead if part.worker == worker), None)
        if wanted is None and not (again and len(entry.ahead.prepared.ranges)):
            return
        with self._phase(report, "read ahead"):
            ranges = Ranges.of([]) if wanted is None else Ranges.from_wire(wanted.ranges)
            most = 0 if wanted is None else wanted.most_bytes
            report.unread = not entry.prepare(ranges, most, self.soft.reading)

    def _run_node(
        self, plan: StepPlan, worker: int, node: Node, entry: WorkerState, parcels: list[Parcel],
        watermarks: dict[str, Watermarks], latest: int, produced: dict[str, pa.RecordBatch],
        report: TaskReport,
    ) -> dict[str, pa.RecordBatch]:  # fmt: skip
        visitor = entry.visitors[node.name]
        before_in, before_out = plan.watermarks[node.name]
        if node.name in plan.resting:
            pending = visitor.state.lowest_timer(EVENT_TIME, entry.owned)
            report.nodes[node.name] = NodeReport(
                input_watermark=before_in,
                output_watermark=before_out,
                percentile=plan.percentiles.get(node.name, before_out),
                next_wall_timer=visitor.state.lowest_timer(WALL_TIME, entry.owned),
                oldest=max(before_out, pending),  # a lower bound only, if some bins are not loaded
            )
            return {}
        again = {} if plan.retained is None else plan.retained.watermarks
        with self._phase(report, "receive"):
            if node.chained and node.inputs[0].name not in again:
                batch = produced.get(node.inputs[0].name)
                own = self.router.input(node, 0)
                inputs = [None if batch is None else own.rows(batch, place=node.name)]
            else:
                entries = [
                    item for parcel in parcels for item in parcel.entries if item.node == node.name
                ]
                inputs = input_batches(self.router.inputs(node), entries, self.spool)
        # Retained productions are read while their producer rests, and it may be far ahead. What
        # counts is its watermark after the step that produced them.
        feeding = [
            Watermarks(*again[stream.name]) if stream.name in again else watermarks[stream.name]
            for stream in node.inputs
        ]
        percentile = min(of.percentile for of in feeding)
        low = percentile if node.by_percentile else min(of.low for of in feeding)
        late_before = before_in if before_in < MAX_TIME else plan.reached.get(node.name, before_in)
        held = visitor.per_worker
        spent = report.phases.get("user code", 0.0) - visitor.state.opening.seconds
        with self._phase(report, "user code"):
            if held.handles:
                begin_per_worker(held, node.name, plan, worker, entry.head, report)
            done = visitor.step(
                inputs, entry.owned, step=plan.step, late_before=late_before,
                watermark=max(before_in, low), output_before=before_out, clock_us=plan.clock_us,
                seed=plan.seed, latest=latest,
                portions=plan.portions.get(node.name, 0),
            )  # fmt: skip
            if held.handles:
                end_per_worker(held, node.name, report)
            before = plan.percentiles.get(node.name, MIN_TIME)
            early = MIN_TIME if node.waits or done.backlog else percentile
            done.percentile = max(before, done.output_watermark, early)
            report.nodes[node.name] = done
            outputs = visitor.take_outputs()
        if plan.measured:
            took = report.phases["user code"] - visitor.state.opening.seconds - spent
            found = loads_of(entry.layout, inputs, took * 1e6, plan.seed)
            report.loads += [] if found is None else [found]
        return outputs

    def _write(
        self, plan: StepPlan, layer: int, worker: int, layout: Layout, entry: WorkerState,
        staged: dict[str, pa.RecordBatch], report: TaskReport,
    ) -> None:  # fmt: skip
        """Write the attempt's files: state changes, the slice, staged and retained productions."""
        chain = plan.chains[f"{layer}/{worker}"]
        with self._phase(report, "state"):
            changes = [part for v in entry.visitors.values() for part in v.state.take_changes()]
            note_changes(changes, report)
        whole: list[RunPart] = []
        if plan.slice is not None:
            with self._phase(report, "slice"):
                whole = entry.slice_parts(plan.slice, plan.step, changes)
        with self._phase(report, "write"):
            folder = soft_folder(self.store, layer, worker) if plan.light else "runs/"
            if not plan.light and chain.soft:
                changes = since_checkpoint(changes, chain, self.store, self.pipeline)
            files = AttemptFiles(plan, layout, report)
            report.run = files.add(folder, [*changes, *whole])
            report.in_slice = bool(whole)
            report.slice_bytes = sum(part.batch.nbytes for part in whole)
            stage(staged, self.pipeline, files, report, light=plan.light)
            files.write(self.store)
            if not plan.light and chain.soft:
                drop_soft_files(plan, layer, worker, self.store)
        with self._phase(report, "digest"):
            for name, batch in staged.items():
                report.streams[name] = StreamReport(batch.num_rows, digest_of(batch))
        entry.digest = link(chain.digest if plan.light else chain.checkpoint, report.run)

    # -- watermarks, headers, parcels ---------------------------------------------------------

    def _known_watermarks(
        self, plan: StepPlan, layer: int, parcels: list[Parcel]
    ) -> dict[str, Watermarks]:
        """Return the output watermarks, over all workers, of each stream of earlier layers."""
        headers = [parcel.header for parcel in parcels]
        if layer == 1:
            rules = {name: injector.rules for name, injector in self.pipeline.injectors.items()}
            after = plan.injectors_after(merged_seen(header.seen for header in headers), rules)
            return {name: frontiers.watermarks for name, frontiers in after.items()}
        known = dict(headers[0].known)
        for stream in headers[0].local:
            found = [header.local[stream] for header in headers if stream in header.local]
            known[stream] = Watermarks(
                lowest(of.low for of in found), lowest(of.percentile for of in found)
            )
        return known

    def _header(
        self, plan: StepPlan, report: TaskReport,
        local: dict[str, Watermarks], known: dict[str, Watermarks],
    ) -> ParcelHeader:  # fmt: skip
        return ParcelHeader(
            report.layer, report.worker, report.attempt, plan.epoch, plan.step, plan.try_,
            local, known, report.seen, report.failure is not None,
        )  # fmt: skip

    def _pass_on(
        self, layer: int, worker: int, parcels: list[Parcel], outbox: OutgoingEntries
    ) -> None:
        """Pass on the entries for deeper layers. They are addressed to this worker number."""
        nodes = {node.name for node in self.pipeline.nodes_of(layer)}
        for parcel in parcels:
            for entry in parcel.entries:
                if entry.node not in nodes:
                    outbox.add(worker, entry)

    def _result(
        self, plan: StepPlan, report: TaskReport, header: ParcelHeader, outbox: OutgoingEntries
    ) -> TaskResult:
        if report.layer == self.pipeline.layers:
            return TaskResult(report, [])
        with self._phase(report, "send"):
            parcels = [Parcel(header, entries) for entries in outbox.entries]
            if self.spool is not None:
                stem = plan.file_stem(report.layer, report.worker, report.attempt)
                parcels = [
                    spool_large(parcel, f"{stem}-{consumer}", self.spool)
                    for consumer, parcel in enumerate(parcels)
                ]
            return TaskResult(report, [encode_parcel(parcel) for parcel in parcels])

    # -- helpers ------------------------------------------------------------------------------

    @contextmanager
    def _phase(self, report: TaskReport, name: str) -> Iterator[None]:
        begun = self._timer()
        try:
            yield
        finally:
            report.phases[name] = report.phases.get(name, 0.0) + self._timer() - begun

    @contextmanager
    def _guard(self, report: TaskReport) -> Iterator[None]:
        """Put an error into the report, so that the user's own error comes first and plain."""
        try:
            yield
        except HeadraceError as error:
            report.failure = failure_of(error)
        except ParcelLost:
            raise  # the engine's own: the task fails, and the step is attempted again
        except BaseException as error:
            if is_from_outside(error):
                raise
            wrapped = InvariantBroken(said(error))
            report.failure = msgspec.structs.replace(
                failure_of(wrapped), traceback=whole_traceback(error)
            )


def _read(injector: Injector, split: Split) -> Sifted:
    """Return a split's records, without the bad ones if the injector's ``on_error`` says so."""
    source: Source = injector.source
    with blamed(f"injector {injector.name!r}, {split.place}", SOURCE_REMEDY):
        if injector.on_error == "stop" or not source.sifts:
            return Sifted(source.read(split), [])
        return source.sift(split)


def _latest(plan: StepPlan, layer: int, parcels: list[Parcel]) -> int:
    """Return the latest event time that the pipeline has worked with, up to and with this step."""
    if layer > 1:
        return parcels[0].header.latest
    seen = merged_seen(parcel.header.seen for parcel in parcels)
    return max([plan.latest, *(of.highest for parts in seen.values() for of in parts.values())])


def _check_as_now(stream: Stream, table: pa.Table, place: str) -> None:
    """Check that a retained table has the columns that its stream has now.

    Raises:
        SchemaChanged: it has others.
    """
    wanted = stream_schema(stream)
    if not table.schema.equals(wanted):
        raise SchemaChanged(
            f"what was retained of stream {stream.name!r} is ({describe(table.schema)}), "
            f"but the stream is ({describe(wanted)}) now",
            place=place,
            remedy="headrace remove the computation that begins at the beginning, or draw its producer "
            "as it was; nothing of this step was committed",
        )


def _check_complete(plan: StepPlan, layer: int, parcels: list[Parcel]) -> None:
    """Check that each producer has sent one parcel, and that it is of this very attempt.

    Raises:
        InvariantBroken: a parcel is missing, or is of another layer.
        ParcelLost: a parcel of another attempt is in its place.
    """
    expected = list(range(plan.readers if layer == 1 else plan.layout.workers))
    producers = [parcel.header.worker for parcel in parcels]
    ensure(producers == expected, f"layer {layer} got parcels from {producers}, not {expected}")
    for parcel in parcels:
        head = parcel.header
        ensure(head.layer == layer - 1, "a parcel of another layer arrived")
        if (head.epoch, head.step, head.try_) != (plan.epoch, plan.step, plan.try_):
            raise ParcelLost("a parcel of another try is in its place")
