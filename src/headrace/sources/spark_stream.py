"""A source that reads any streaming DataFrame: its micro-batches become divisions of steps.

A Structured Streaming query runs beside the pipeline. Its ``foreachBatch`` function hands over each
micro-batch, and returns only after the step that took the batch has committed. Then Spark records
the batch as done. After a crash in between Spark repeats the batch, which is recognised by (query
id, batch id).

Running a query plan again may give other rows. So the batch is written to the storage as an Arrow
file before it is offered. A batch whose plan is declared repeatable is not written.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import AlreadyExists, Damaged, PipelineError, SourceChanged
from headrace.eventtime.parsing import TimeUnit
from headrace.keyspace.digests import digest_of
from headrace.pipeline.source import Limit, Offer, Position, Source, Split
from headrace.schema import ValueType, value_type_of_schema
from headrace.session import spark_session
from headrace.session.private_api import (
    delete_left_over,
    gateway_of_process,
    without_messages,
)
from headrace.sources.columns import Columns
from headrace.sources.names import derived_fields
from headrace.sources.partitions import checked_columns, with_partitions
from headrace.sources.spark_rows import arrow_schema_of
from headrace.storage import open_store
from headrace.storage.arrow_messages import Unreadable, read_stream
from headrace.storage.base import Store

_LOOK_EVERY_S = 0.2
#: What a query says of itself (``StreamingQuery.status``) while there is no input.
_QUIET = "Waiting for data to arrive"


_STOPPED = "the pipeline stopped before it took this batch"


class AddedColumns(Protocol):
    """Columns that are made of those that a DataFrame has."""

    @property
    def fields(self) -> Sequence[Any]:
        """The names and types of the columns."""
        ...

    def to(self, records: pa.Table) -> pa.Table:
        """Return records with the columns behind their own."""
        ...


class _Stopped(Exception):
    """The pipeline stopped before it took a batch. Spark gives the batch again at the next start."""


class _WithoutStops(logging.Filter):
    """Drops what Py4J logs of a batch that was not taken because the pipeline stopped."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], _Stopped))


_without_stops = _WithoutStops()


class _Batch:
    """A micro-batch on its way into a step."""

    def __init__(self, query: str, number: int, table: pa.Table) -> None:
        self.query = query
        self.number = number
        self.table = table
        self.committed = threading.Event()


class SparkStream(Source):
    """Records from a streaming DataFrame (``spark.readStream…``).

    Args:
        frame: the streaming DataFrame, or a function of the session that returns it.
        event_time: the column that holds the event time.
        checkpoint: the query's checkpoint directory. It must survive restarts.
        partition: the column, or columns, that name a record's partition, such as
            ``("topic", "partition")`` for Kafka. By default the stream is one partition.
        repeatable: whether running the same batch again gives the same rows in the same order. If
            so, batches are not logged.
        trigger: arguments of ``DataStreamWriter.trigger``. With ``{"availableNow": True}`` the
            input ends when everything that is there has been read, and a run that drains then
            declares the end of time. A run that only catches up (``job.catch_up()``,
            ``--available-now``) does not end the input, and does not need this trigger.
        time_zone: the zone of event times that do not name one.
        time_unit: the unit of numeric event times.

    A partition holds the watermark from its first record; name those that are still to come in
    ``expect=``. The query decides how much of each partition a batch takes, so ``skew_limit=``
    cannot be combined with ``partition=``.

    Guarantees: exactly once. A repeated batch is recognised. A query other than the one that the
        state was built from is refused, as after its checkpoint was deleted. So is a query that has
        given batches to another storage: then the state is older than the checkpoint, as a copy is.
        Between batches, timers and other injectors continue.

    Cost: every batch passes through the driver. If tasks can read the input themselves, use files
        or a ``SparkReader``.

    Example::

        frame = spark.readStream.schema("page STRING, at LONG").json("logs/")
        logs = hr.sources.SparkStream(frame, event_time="at", checkpoint="state/logs")
        p.inject("logs", logs)
    """

    source_kind = "a streaming DataFrame"
    consumes = True

    def __init__(
        self,
        frame: DataFrame | Callable[[SparkSession], DataFrame],
        *,
        event_time: str,
        checkpoint: str,
        partition: str | Sequence[str] | None = None,
        repeatable: bool = False,
        trigger: dict[str, Any] | None = None,
        time_zone: str = "UTC",
        time_unit: TimeUnit | None = None,
    ) -> None:
        if not isinstance(frame, DataFrame):
            frame = frame(spark_session())
        if not frame.isStreaming:
            raise PipelineError(
                "the DataFrame is not a streaming one",
                remedy="make it with spark.readStream; for files use headrace.sources.Files",
            )
        if event_time not in frame.columns:
            raise PipelineError(
                f"the DataFrame has no column {event_time!r} for the event time",
                remedy=f"its columns are: {', '.join(frame.columns)}",
            )
        self._frame: DataFrame | None = frame
        self._checkpoint = checkpoint
        self._trigger = trigger
        self._ends = bool({"availableNow", "once"} & set(trigger or {}))
        self._repeatable = repeatable
        self._added: AddedColumns | None = None
        place = "the streaming DataFrame"
        fields = [normal_field(field) for field in arrow_schema_of(frame.schema, place)]
        named, names = derived_fields(pa.schema(fields), place)
        self._values = value_type_of_schema(named)
        field = next(field for field, column in names.items() if column == event_time)
        self._columns = Columns(self._values, field, zone=time_zone, unit=time_unit, names=names)
        self._read_by = event_time, partition, time_zone, time_unit
        self._by: list[str] = []  # the columns that name partitions
        if partition is not None:
            self._by = checked_columns(partition, pa.schema(fields), place)
        self.partitioned = bool(self._by)
        self._waiting: queue.Queue[_Batch] = queue.Queue()
        self._current: _Batch | None = None
        self._query: Any = None
        self._started = threading.Event()
        self._closing = False
        self._bounded = self._ends  # whether the query ends by itself
        self._last_done = -1  # the last batch that the query had taken for done when it was started
        self._store: Store | None = None

    def add(self, columns: AddedColumns) -> None:
        """Add columns to all records, which are made of those that the query gives."""
        self._added = columns
        self._values = value_type_of_schema(pa.schema([*self._values.schema, *columns.fields]))

    # -- the query's side ---------------------------------------------------------------------

    def open(self, store: Store) -> None:
        assert self._frame is not None
        self._store = store
        self._bounded = self._ends
        self._last_done = _last_done(self._frame.sparkSession, self._checkpoint)
        self._start(self._trigger)

    def _tidy(self) -> None:
        """Delete what a query left that was interrupted while it noted its first batch.

        Spark refuses to start a query that has files and no batch.
        """
        gateway = gateway_of_process()
        if self._last_done < 0 and gateway is not None:
            for folder in ("offsets", "commits"):
                delete_left_over(
                    gateway, f"{self._checkpoint.rstrip('/')}/{folder}", ".[0-9]*.*.tmp"
                )

    def _start(self, trigger: dict[str, Any] | None) -> None:
        assert self._frame is not None
        for py4j in ("py4j.clientserver", "py4j.java_gateway"):
            logging.getLogger(py4j).addFilter(_without_stops)
        self._waiting, self._current = queue.Queue(), None
        self._started.clear()
        self._closing = False
        self._tidy()
        writer = self._frame.writeStream.foreachBatch(self._take_batch)
        writer = writer.option("checkpointLocation", self._checkpoint)
        if trigger:
            writer = writer.trigger(**trigger)
        self._query = writer.start()
        self._started.set()

    def now(self, position: Position) -> Any:
        """Restart the query with ``availableNow``: it reads what is there now, and ends."""
        if not self._bounded:
            self.close()
            self._bounded = True
            self._start({"availableNow": True})
        return None

    def has_more(self, position: Position) -> str:
        while self._current is None:
            self._current = self._next(position)
            if self._current is not None:
                break
            if not self._bounded:
                return "nothing yet, but its query waits for more now"
            if self._end_of_query(position) is not None:
                return ""
            time.sleep(_LOOK_EVERY_S / 10)
        return f"{self._current.table.num_rows:,} or more records"

    def _take_batch(self, frame: DataFrame, number: int) -> None:
        """Hand a batch over, and return once its step has committed. Runs in the query's thread.

        Raises:
            _Stopped: if the pipeline stops before. Then Spark does not take the batch for done.
        """
        self._started.wait()
        try:
            batch = _Batch(str(self._query.id), number, frame.toArrow())
        except Exception:
            if self._closing:  # the query was stopped while it computed the batch
                raise _Stopped(_STOPPED) from None
            raise
        self._waiting.put(batch)
        while not batch.committed.wait(_LOOK_EVERY_S):
            if self._closing:
                raise _Stopped(_STOPPED)

    @property
    def has_batch(self) -> bool:
        """Whether a batch is there that no step has taken yet."""
        return self._current is not None

    @property
    def is_over(self) -> bool:
        """Whether the query has ended, and all of its batches have been taken."""
        ended = self._query is None or not self._query.isActive
        return ended and self._current is None and self._waiting.empty()

    # -- the pipeline's side ------------------------------------------------------------------

    def read_by(self) -> Any:
        return self._read_by

    def values(self) -> ValueType:
        return self._values

    def times_of(self, values: Sequence[Any]) -> list[int] | None:
        return self._columns.times_of(values)

    def reads_the_same(self, other: Source) -> bool:
        return isinstance(other, SparkStream) and other._checkpoint == self._checkpoint

    def start(self) -> Position:
        return {"query": None, "batch": -1, "file": None}

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        if self._current is None:
            self._current = self._next(position)
        batch = self._current
        if batch is None:
            over = self._end_of_query(position)
            if over is None and (limit.open_ended or not self._is_quiet()):
                return Offer(position, 0, 0, empty=True, pending=True)
            return over
        rows, size = batch.table.num_rows, batch.table.nbytes
        end = {"query": batch.query, "batch": batch.number, "file": self._log(batch)}
        return Offer(end, rows, size)

    def recover(self, start: Position, end: Position) -> bool:
        if end["file"] is not None:
            return True
        if self._current is None:
            self._current = self._next(start)  # the query gives the same batch again
        if self._current is None and self._end_of_query(start) is not None:
            raise SourceChanged(
                f"the streaming query ended without giving batch {end['batch']} again",
                place=self._checkpoint,
                remedy="restore the query's checkpoint and its input: the batch was seen already",
            )
        if self._current is not None:
            self._check_query(end, self._current)
        return self._current is not None

    def _next(self, position: Position) -> _Batch | None:
        """Return the next batch that is new; acknowledge those that have been seen before."""
        if self._last_done > position["batch"]:  # it will not give that one again
            raise self._not_seen(self._last_done, position)
        while True:
            try:
                batch = self._waiting.get_nowait()
            except queue.Empty:
                return None
            self._check_query(position, batch)
            if batch.number > position["batch"]:
                self._check_order(position, batch)
                return batch
            batch.committed.set()

    def _check_query(self, position: Position, batch: _Batch) -> None:
        if position["query"] not in (None, batch.query):
            raise SourceChanged(
                f"the streaming query is {batch.query}, but the state was made with query "
                f"{position['query']}: its checkpoint was deleted or replaced",
                place=self._checkpoint,
                remedy="restore that checkpoint; or start over with a new storage directory and a new "
                "checkpoint, since which rows this query has given before cannot be known",
            )

    def _check_order(self, position: Position, batch: _Batch) -> None:
        """Check that no batch is missing before this one: Spark numbers them without gaps."""
        if batch.number != position["batch"] + 1:
            raise self._not_seen(batch.number, position)

    def _not_seen(self, at: int, position: Position) -> SourceChanged:
        return SourceChanged(
            f"the streaming query is at batch {at}, but batch {position['batch'] + 1} was not seen here: "
            "the query has given it to another storage, or to a later state of this one",
            place=self._checkpoint,
            remedy="restore the checkpoint that the query had at this state of the storage; or start "
            "anew with a new storage directory and a new checkpoint",
        )

    def _end_of_query(self, position: Position) -> Offer | None:
        query = self._query
        if query is None or query.isActive or not self._waiting.empty():
            return None
        error = query.exception()
        if error is not None:
            raise SourceChanged(
                f"the streaming query failed: {str(error).splitlines()[0]}",
                place=self._checkpoint,
                remedy="see to the query; nothing was lost, start again to go on",
            )
        if not self._bounded:
            raise SourceChanged(
                "the streaming query was stopped from outside",
                place=self._checkpoint,
                remedy="let the pipeline stop it; nothing was lost, start again to go on",
            )
        return Offer(position, 0, 0, final=True, empty=True)

    def _is_quiet(self) -> bool:
        """Return whether the query has looked for input, and found none."""
        return self._query is None or self._query.status["message"] == _QUIET

    def _log(self, batch: _Batch) -> str | None:
        """Write a batch to the storage and return the file's name; None if repeatable."""
        if self._repeatable:
            return None
        assert self._store is not None
        name = f"batches/{batch.query}-{batch.number:012d}-{digest_of(batch.table):016x}"
        with contextlib.suppress(AlreadyExists):
            self._store.create(name, to_bytes(batch.table))
        return name

    def splits(self, start: Position, end: Position) -> list[Split]:
        place = f"batch {end['batch']} of streaming query {end['query']}"
        whose = None if self._by else ""
        assert self._store is not None
        if end["file"] is not None:
            return [Split([self._store.location, end["file"]], b"", place, whose)]
        assert self._current is not None
        return [Split([], to_bytes(self._current.table), place, whose)]

    def read(self, split: Split) -> pa.Table:
        data = split.data
        if split.spec:
            location, name = split.spec
            data = open_store(location).read(name)
        try:
            table = read_stream(data)
        except Unreadable as error:
            raise Damaged(f"the log of {split.place} is damaged", place=str(split.spec)) from error
        if split.spec and not split.spec[1].endswith(f"{digest_of(table):016x}"):
            raise Damaged(f"the log of {split.place} has changed", place=str(split.spec))

        def place_of(row: int) -> str:
            return f"{split.place}, row {row + 1}"

        records = self._columns.finish(table, place_of)
        if self._added is not None:
            records = self._added.to(records)
        return with_partitions(records, table, self._by, place_of) if self._by else records

    @property
    def replays(self) -> bool:  # type: ignore[override]
        """Whether batches can be read again. Logged ones can; the query repeats only the last."""
        return not self._repeatable

    def taken(self, position: Position) -> None:
        batch, self._current = self._current, None
        if batch is not None:
            batch.committed.set()

    def committed(self, position: Position) -> None:
        if position["file"] is not None and self._store is not None:
            # This also deletes what drivers that ended before their commit left of these batches.
            # Until now an intent could have named it.
            folder = f"batches/{position['query']}-"
            for name in self._store.list(folder):
                if int(name.removeprefix(folder).partition("-")[0]) <= position["batch"]:
                    self._store.delete(name)

    def for_tasks(self) -> Source:
        return _LoggedBatches(self._values, self._columns, self._by, self._added)

    def close(self) -> None:
        self._closing = True
        if self._query is not None:
            ends = rf".*runId = {self._query.runId}\] terminated with error.*"
            with without_messages(gateway_of_process(), ends):  # (it would show our _Stopped)
                self._query.stop()
            self._query = None


class _LoggedBatches(SparkStream):
    """The source as tasks see it: batches come from the log, or travel with the plan."""

    def __init__(
        self, values: ValueType, columns: Columns, by: list[str], added: AddedColumns | None
    ) -> None:
        self._values = values
        self._columns = columns
        self._by = by
        self._added = added


def _last_done(spark: SparkSession, checkpoint: str) -> int:
    """Return the number of the last batch that a query has taken for done; -1 if there is none."""
    files = spark.read.format("binaryFile").option("pathGlobFilter", "[0-9]*")
    # Twice: for a single folder that is not there yet, Spark logs a stack trace of Java.
    commits = [f"{checkpoint.rstrip('/')}/commits"] * 2
    try:
        found = files.load(commits).select("path").collect()
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return -1
        raise
    return max((int(row.path.rpartition("/")[2]) for row in found), default=-1)


def to_bytes(table: pa.Table) -> bytes:
    """Return a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def normal_field(field: pa.Field) -> pa.Field:
    """Return a column with its points in time in UTC."""
    kind = field.type
    if pa.types.is_timestamp(kind):
        kind = pa.timestamp("us", tz="UTC")
    return pa.field(field.name, kind, field.nullable)
