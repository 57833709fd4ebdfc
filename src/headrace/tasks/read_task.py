"""A task of layer 0: it reads its share of the step's input, and routes the records."""

from __future__ import annotations

import pyarrow as pa

from headrace.errors import BadInput, SchemaChanged
from headrace.errors.user_code import SOURCE_REMEDY, blamed
from headrace.eventtime.delays import delays_of
from headrace.eventtime.timestamps import FIRST_DATE_US, LAST_DATE_US, OUTSIDE
from headrace.eventtime.watermark import Frontier, PartitionSeen, check_number_of_partitions
from headrace.keyspace.digests import add_digests, digest_of
from headrace.ledger.retained import Retained
from headrace.pipeline import Injector, Node, Stream
from headrace.pipeline.sifting import BadRecord, Sifted
from headrace.pipeline.source import Limit, Source, Split
from headrace.protocol.plan import SeedPlan, StepPlan
from headrace.runfiles.format import OUTPUT, FileRef, RunReader
from headrace.schema import describe
from headrace.schema.reserved import PARTITION_COLUMN, TIMESTAMP_COLUMN
from headrace.tasks.routing import ORDER, positions, stream_schema
from headrace.tasks.source_seen import I64, times_by_partition
from headrace.tasks.task import Process, Task, TaskResult
from headrace.tasks.user_code import wall_cause


class ReadTask(Task):
    """Reads a reader's share of the division.

    Splits are dealt out to the readers in turn, but for partitions that have one of their own.
    Which reader reads a split leaves no trace in the result.
    """

    def __init__(self, process: Process, plan: StepPlan, reader: int, task_attempt: str) -> None:
        super().__init__(process, plan, 0, reader, task_attempt)

    def run(self) -> TaskResult:
        """Read the share, and return the result of the task."""
        plan = self.plan
        with self.guard():
            self.foresee()
            for name, injected in plan.injectors.items():
                for number, split in enumerate(injected.splits):
                    if plan.reader_of(name, number, split.partition) == self.worker:
                        self._read_split(name, number, split)
            if plan.retained is not None:
                for number, file in enumerate(plan.retained.files):
                    if number % plan.readers == self.worker:
                        self._read_retained(plan.retained, number, file)
            if plan.seeds is not None and self.worker == 0:
                for name in plan.seeds.constants:
                    self._read_constant(plan.seeds, name)
        return self.result(self.header({}, {}))

    def _read_split(self, name: str, number: int, split: Split) -> None:
        report = self.report
        injector = self.pipeline.injectors[name]
        with self.phase("read"):
            table, bad = _read(injector, split)
        if bad:
            report.skipped[name] = report.skipped.get(name, 0) + len(bad)
            if injector.letters is not None:
                self._route_letters(injector.letters, number, split, bad)
        if table is None or table.num_rows == 0:
            return
        with self.phase("route"):
            for partition, times in times_by_partition(table, split.partition):
                self._see(name, partition, split.place, times)
            check_number_of_partitions(len(report.seen[name]), f"injector {name!r}")
            if split.partition is None:
                table = table.drop_columns([PARTITION_COLUMN])
            report.read_rows[name] = report.read_rows.get(name, 0) + table.num_rows
            digest = add_digests(report.read_digests.get(name, 0), digest_of(table))
            report.read_digests[name] = digest
            if injector.check is not None:
                table = table.append_column(ORDER, positions(number, table.num_rows))
            self.router.route(
                injector.stream,
                table,
                self.layout,
                self.outbox,
                order=number,
                place=split.place,
                without=self.plan.seeded_readers(name),
            )

    def _read_constant(self, seeds: SeedPlan, name: str) -> None:
        """Give the records of an injector that are always the same to new computations."""
        source: Source = self.pipeline.injectors[name].source
        start = source.start()
        offer = source.offer(start, Limit(2**62, 2**62))
        stream = self.pipeline.injectors[name].stream
        for number, split in enumerate([] if offer is None else source.splits(start, offer.end)):
            table = source.read(split)
            if table is not None:
                self.router.route(
                    stream,
                    table,
                    self.layout,
                    self.outbox,
                    order=number,
                    place=split.place,
                    only=seeds.names,
                )

    def _route_letters(
        self, letters: Node, number: int, split: Split, bad: list[BadRecord]
    ) -> None:
        """Route the records that could not be read, at a time that is late for no reader."""
        plan, (stream,) = self.plan, letters.inputs
        _, reached = plan.watermarks[letters.name]
        time_us = wall_cause(reached, plan.latest, plan.clock_us).time_us
        columns = stream.values.to_columns(bad)
        times = pa.array([time_us] * len(bad), pa.int64())
        names = [TIMESTAMP_COLUMN, *stream.values.schema.names]
        table = pa.table([times, *columns], names=names)
        self.router.route(stream, table, self.layout, self.outbox, order=number, place=split.place)

    def _read_retained(self, retained: Retained, number: int, file: FileRef) -> None:
        """Read what a worker produced on retained streams in an earlier step, and route it."""
        report = self.report
        with self.phase("read"):
            reader = RunReader(self._process.store.read, file)
        for name in retained.watermarks:
            with self.phase("read"):
                table = reader.rows(name, OUTPUT, 0, 2**64 - 1)
            if table is None:
                continue
            with self.phase("route"):
                stream = self.pipeline.streams()[name]
                place = f"step {retained.step}, {file.name}"
                _check_as_now(stream, table, place)
                report.read_rows[name] = report.read_rows.get(name, 0) + table.num_rows
                self.router.route_again(
                    stream,
                    table,
                    self.layout,
                    self.outbox,
                    order=number,
                    place=place,
                    inactive=self.plan.inactive,
                )

    def _see(self, name: str, partition: str, place: str, times: I64) -> None:
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
                remedy="fix the record, or say the unit of its time (time_unit=)",
            )
        if self.pipeline.injectors[name].rules.percentile is not None:
            before = self.plan.injectors[name].before.parts.get(partition, Frontier())
            seen = PartitionSeen(seen.highest, delays_of(times, before.highest))
        parts = self.report.seen.setdefault(name, {})
        parts[partition] = seen.plus(parts[partition]) if partition in parts else seen


def _read(injector: Injector, split: Split) -> Sifted:
    """Return a split's records, without the bad ones if the injector's ``on_error`` says so."""
    source: Source = injector.source
    with blamed(f"injector {injector.name!r}, {split.place}", SOURCE_REMEDY):
        if injector.on_error == "stop" or not source.sifts:
            return Sifted(source.read(split), [])
        return source.sift(split)


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
            remedy="headrace remove the computation that begins at the beginning, or build its producer "
            "as it was; nothing of this step was committed",
        )
