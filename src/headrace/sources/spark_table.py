"""A source that reads a DataFrame which is no stream: all of it at once, in one step.

The DataFrame is computed in the driver when the pipeline first asks for it, and written to the
storage as an Arrow file. So the step reads the same rows again after a crash, even if the plan would
give others.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import AlreadyExists, Damaged, PipelineError, SourceChanged
from headrace.eventtime.parsing import TimeUnit
from headrace.keyspace.digests import digest_of
from headrace.pipeline.source import InTasks, Limit, Offer, Position, Source, Split
from headrace.schema import ValueType, value_type_of_schema
from headrace.schema.reserved import TIMESTAMP_COLUMN
from headrace.session import spark_session
from headrace.sources.columns import Columns
from headrace.sources.names import derived_fields
from headrace.sources.spark_rows import arrow_schema_of
from headrace.sources.spark_stream import AddedColumns, SparkStream, normal_field, to_bytes
from headrace.storage import open_store
from headrace.storage.arrow_messages import Unreadable, read_stream
from headrace.storage.base import Store

#: Most rows that one task reads.
_ROWS = 500_000


class SparkTable(Source):
    """The rows of a DataFrame that is no stream, such as a table that a pipeline begins with.

    Args:
        frame: the DataFrame, or a function of the session that returns it.
        event_time: the column that holds the event time. Without it, all rows have the time at
            which the DataFrame was read.
        time_zone: the zone of event times that do not name one.
        time_unit: the unit of numeric event times.

    Guarantees: each row once, whatever crashes. All rows are in the first step that reads it, and
        then the input has ended. Later changes of the table are not seen.

    Cost: the rows pass through the driver, and are in its memory once. If tasks can read the input
        themselves, use :class:`headrace.sources.Files`.

    Example::

        frame = spark.createDataFrame([("/", 120)], "page STRING, at LONG")
        p.inject("pages", hr.sources.SparkTable(frame, event_time="at", time_unit="s"))
    """

    source_kind = "a DataFrame"
    bounded = rereads = True

    def __init__(
        self,
        frame: DataFrame | Callable[[SparkSession], DataFrame],
        *,
        event_time: str | None = None,
        time_zone: str = "UTC",
        time_unit: TimeUnit | None = None,
    ) -> None:
        if not isinstance(frame, DataFrame):
            frame = frame(spark_session())
        if frame.isStreaming:
            raise PipelineError(
                "the DataFrame is a streaming one", remedy="use headrace.sources.SparkStream"
            )
        if event_time is not None and event_time not in frame.columns:
            raise PipelineError(
                f"the DataFrame has no column {event_time!r} for the event time",
                remedy=f"its columns are: {', '.join(frame.columns)}",
            )
        self._frame: DataFrame | None = frame
        place = "the DataFrame"
        fields = [normal_field(field) for field in arrow_schema_of(frame.schema, place)]
        named, names = derived_fields(pa.schema(fields), place)
        self._own = value_type_of_schema(named)
        of_time = next((field for field, column in names.items() if column == event_time), "")
        columns = Columns(self._own, of_time, zone=time_zone, unit=time_unit, names=names)
        self._reading = _Reading(self._own, columns, bool(of_time))
        self._read_by = event_time, time_zone, time_unit
        self._store: Store | None = None
        self._beside: SparkStream | None = None
        self._read_again: list[str] = []  # files that a backfill has made

    def come_with(self, stream: SparkStream) -> None:
        """Come in the step that takes the first batch of a stream, and not before."""
        self._beside = stream

    def add(self, columns: AddedColumns) -> None:
        """Add columns to all records, which are made of those that the DataFrame has."""
        values = value_type_of_schema(pa.schema([*self._own.schema, *columns.fields]))
        self._reading = _Reading(values, self._reading.columns, self._reading.has_times, columns)

    def read_by(self) -> Any:
        return self._read_by

    def values(self) -> ValueType:
        return self._reading.values()

    def times_of(self, values: Sequence[Any]) -> list[int] | None:
        return self._reading.columns.times_of(values) if self._reading.has_times else None

    def open(self, store: Store) -> None:
        self._store = store

    def start(self) -> Position:
        return {"file": None, "rows": 0, "at_us": 0}

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        if position["file"] is not None:
            return Offer(position, 0, 0, final=True, empty=True)
        if self._beside is not None and not self._beside.has_batch:
            if self._beside.is_over:
                return None
            return Offer(position, 0, 0, empty=True, pending=True)
        assert self._store is not None and self._frame is not None
        table = self._frame.toArrow()
        name = f"batches/table-{digest_of(table):016x}"
        with contextlib.suppress(AlreadyExists):
            self._store.create(name, to_bytes(table))
        end = {"file": name, "rows": table.num_rows, "at_us": time.time_ns() // 1_000}
        return Offer(end, table.num_rows, table.nbytes, final=True)

    def again(self) -> Source:
        other = copy.copy(self)
        other._beside, other._read_again = None, []
        return other

    def offer_until(self, position: Position, until: Position, limit: Limit) -> Offer | None:
        if position["file"] is not None or until["file"] is None:
            return None
        offer = self.offer(position, limit)
        assert offer is not None and self._store is not None
        self._read_again.append(offer.end["file"])
        if offer.end["file"] != until["file"]:
            raise SourceChanged(
                "the DataFrame has other rows now than when it was read",
                place=self._store.location,
                remedy="let the added computation begin now, or give the DataFrame its rows back",
            )
        return Offer(until, offer.rows, offer.bytes)

    def close(self) -> None:
        for name in self._read_again:
            assert self._store is not None
            self._store.delete(name)
        self._read_again = []

    def recover(self, start: Position, end: Position) -> bool:
        assert self._store is not None
        if end["file"] is not None and end["file"] not in self._store.list(end["file"]):
            raise SourceChanged(
                f"the rows that a step had begun to read are gone: {end['file']}",
                place=self._store.location,
                remedy="restore the file, or start anew with a new storage",
            )
        return True

    def splits(self, start: Position, end: Position) -> list[Split]:
        assert self._store is not None
        firsts = range(0, max(1, end["rows"]), _ROWS)
        return [
            Split(
                [self._store.location, end["file"], end["at_us"], first, _ROWS], b"", "a DataFrame"
            )
            for first in firsts
        ]

    def read(self, split: Split) -> pa.Table:
        return self._reading.read(split)

    def committed(self, position: Position) -> None:
        if position["file"] is not None and self._store is not None:
            self._store.delete(position["file"])

    def for_tasks(self) -> Source:
        return self._reading


class _Reading(InTasks):
    """The source as tasks see it: they read the file."""

    def __init__(
        self,
        values: ValueType,
        columns: Columns,
        has_times: bool,
        added: AddedColumns | None = None,
    ) -> None:
        super().__init__(values)
        self.columns, self.has_times, self._added = columns, has_times, added

    def read(self, split: Split) -> pa.Table:
        location, name, at_us, first, rows = split.spec
        data = open_store(location).read(name)
        try:
            table = read_stream(data)
        except Unreadable as error:
            raise Damaged("the rows of a DataFrame are damaged", place=name) from error
        if not name.endswith(f"{digest_of(table):016x}"):
            raise Damaged("the rows of a DataFrame have changed", place=name)
        table = table.slice(first, rows)

        def place_of(row: int) -> str:
            return f"a DataFrame, row {first + row + 1}"

        if self.has_times:
            records = self.columns.finish(table, place_of)
        else:
            times = pa.array([at_us], pa.int64()).take(pa.array([0] * table.num_rows, pa.int32()))
            records = self.columns.convert(table, place_of).add_column(0, TIMESTAMP_COLUMN, times)
        return records if self._added is None else self._added.to(records)
