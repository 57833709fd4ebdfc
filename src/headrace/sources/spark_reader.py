"""A source that reads any PySpark ``DataSource`` with a stream reader.

PySpark's reader protocol fits steps: offsets are plain data, partitions are a function of (start,
end), and ``read(partition)`` depends on the partition alone. Spark's own execution of that protocol
(a process beside the driver, a query, a checkpoint) is not used.
"""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cloudpickle
import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.types import StructType

from headrace.errors import BadInput, HeadraceError, PipelineError, UserCodeError
from headrace.errors.user_code import is_from_outside, user_error
from headrace.eventtime.parsing import TimeUnit
from headrace.pipeline.source import Limit, Offer, Part, Position, Source, Split
from headrace.schema import NotExact, ValueType, value_type_of_schema
from headrace.sources.columns import Columns
from headrace.sources.names import derived_fields
from headrace.sources.partitions import checked_columns, with_partitions
from headrace.sources.spark_rows import arrow_schema_of, struct_of, table_of


class SparkReader(Source):
    """Records from a ``pyspark.sql.datasource.DataSource`` with a stream reader, simple or not.

    Args:
        source: the data source object, created with its options.
        event_time: the column that holds the event time.
        partition: the partition a record belongs to. By default each of the reader's partitions is
            one, named by its place in the list that ``partitions(start, end)`` returns: ``"0"``,
            ``"1"``, …. A reader whose list differs from call to call needs better names: a function
            of the reader's partition that returns a string, or one or more columns of the records.
            A simple reader has one partition unless columns name them.
        time_zone: the zone of times that do not name one.
        time_unit: the unit of numeric event times; microseconds by default.
        rereads: whether a second reader can read all from ``initialOffset()`` on beside the first
            one, whatever that has committed. Then added computations can begin at the beginning;
            they get all of it in one step.

    Each partition holds the watermark from the first division that lists it. If a column names
    partitions, each holds it from its first record; name those that are still to come in
    ``expect=``. A partition that is no longer listed still holds the watermark, unless the injector
    has ``idle_after=``. The reader decides when each partition is read, so ``skew_limit=`` is not
    available.

    Guarantees: those of the reader. A step is exactly-once if reading the same partition twice
        gives the same rows. ``commit(end)`` is called after a checkpoint that contains ``end`` has
        committed.

    Example::

        from headrace.nexmark.spark_source import NexmarkDataSource

        market = NexmarkDataSource({"kind": "bid", "events": "1000"})
        p.inject("market", hr.sources.SparkReader(market, event_time="date_time"))
    """

    source_kind = "a Spark reader"
    consumes = True

    def __init__(
        self,
        source: DataSource,
        *,
        event_time: str,
        partition: str | Sequence[str] | Callable[[Any], str] | None = None,
        time_zone: str = "UTC",
        time_unit: TimeUnit | None = None,
        rereads: bool = False,
    ) -> None:
        self.rereads = rereads
        name = type(source).__name__
        schema = struct_of(source.schema(), name)
        self._names = schema.names
        self._arrow = arrow_schema_of(schema, name)
        if event_time not in self._names:
            raise PipelineError(
                f"{name} has no column {event_time!r} for the event time",
                remedy=f"its columns are: {', '.join(self._names)}",
            )
        fields, names = derived_fields(pa.schema([_in_utc(field) for field in self._arrow]), name)
        self._values = value_type_of_schema(fields)
        self._zone = time_zone
        field = next(field for field, column in names.items() if column == event_time)
        self._columns = Columns(self._values, field, zone=time_zone, unit=time_unit, names=names)
        self._read_by = event_time, partition, time_zone, time_unit
        self._made_of: tuple[Any, ...] = source, schema
        self._reader: Any = _stream_reader(source, schema)
        self._name_of: Callable[[Any], str] | None = None
        self._by: list[str] = []  # the columns that name partitions
        if callable(partition):
            self._name_of = partition
        elif partition is not None:
            self._by = checked_columns(partition, self._arrow, name)
        self.partitioned = bool(self._by) or not isinstance(self._reader, _SimpleReader)
        self._divided: tuple[Any, list[Any]] | None = None

    def read_by(self) -> Any:
        return self._read_by

    def values(self) -> ValueType:
        return self._values

    def times_of(self, values: Sequence[Any]) -> list[int] | None:
        return self._columns.times_of(values)

    @property
    def _live(self) -> Any:
        """The reader. A new one is created if this source is used again after it was closed."""
        if self._reader is None:
            self._reader = _stream_reader(*self._made_of)
        return self._reader

    def for_tasks(self) -> Source:
        other = copy.copy(self)
        other._reader, other._made_of = self._live, ()
        other._divided, other._name_of = None, None
        return other

    def start(self) -> Position:
        return self._live.initialOffset()

    def now(self, position: Position) -> Any:
        return self._live.available_now(position)

    def again(self) -> Source:
        other = copy.copy(self)
        other._reader, other._divided = None, None
        return other

    def offer_until(self, position: Position, until: Position, limit: Limit) -> Offer | None:
        # Offsets are the reader's own, and have no order that is known here. So all of it is a step.
        return self.offer(position, msgspec.structs.replace(limit, until=[until]))

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        if limit.until is None:
            end = self._live.latestOffset(position, limit.rows)
        else:
            (end,) = limit.until
        if end == position:
            return None
        parts = {name: Part() for name in self._named(self._partitions(position, end)) if name}
        # The reader cannot say how much there is. Tasks read it, as they do in Spark.
        return Offer(end, limit.rows, limit.bytes, parts=parts)

    def splits(self, start: Position, end: Position) -> list[Split]:
        partitions = self._partitions(start, end)
        return [
            Split(
                [number],
                cloudpickle.dumps(partition),
                f"partition {number} of {start} to {end}",
                name,
            )
            for number, (partition, name) in enumerate(
                zip(partitions, self._named(partitions), strict=True)
            )
        ]

    def _partitions(self, start: Position, end: Position) -> list[Any]:
        """Return the reader's partitions of a division; those of the latest division are cached."""
        division = copy.deepcopy((start, end))
        if self._divided is None or self._divided[0] != division:
            self._divided = division, list(self._live.partitions(start, end))
        return self._divided[1]

    def _named(self, partitions: Sequence[Any]) -> list[str | None]:
        """Return the partition of each of the reader's partitions; None if records name theirs."""
        if self._by:
            return [None] * len(partitions)
        if not self.partitioned:
            return [""] * len(partitions)
        if self._name_of is None:
            return [str(number) for number in range(len(partitions))]
        return [_name_of(self._name_of, partition) for partition in partitions]

    def read(self, split: Split) -> pa.Table:
        def place_of(row: int) -> str:
            return f"{split.place}, row {row + 1}"

        rows = _given_by(self._live.read, pickle.loads(split.data), split.place)
        try:
            table = table_of(rows, self._arrow, self._zone)
        except NotExact as error:
            raise BadInput(
                f"the reader gave a row that is not of its schema: {error}",
                row=error.row,
                place=place_of(error.row),
                remedy="fix the data source: rows must match schema()",
            ) from error
        records = self._columns.finish(table, place_of)
        return with_partitions(records, table, self._by, place_of) if self._by else records

    def committed(self, position: Position) -> None:
        self._live.commit(position)

    def close(self) -> None:
        self._divided = None
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.stop()


class _Reader:
    """A ``DataSourceStreamReader``, whichever signature its ``latestOffset`` has."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._limited = len(inspect.signature(reader.latestOffset).parameters) >= 2

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_reader":
            raise AttributeError(name)
        return getattr(self._reader, name)

    def available_now(self, start: Any) -> Any:
        """Return a one-element list with the current end of the input, or None.

        None is for a reader that itself stops at the current end, and for one whose
        ``latestOffset`` takes a limit but that cannot do so. The latter has caught up at its first
        offer without records.
        """
        if hasattr(self._reader, "prepareForTriggerAvailableNow"):
            self._reader.prepareForTriggerAvailableNow()
            return None
        return None if self._limited else [self._reader.latestOffset()]

    def latestOffset(self, start: Any, rows: int) -> Any:
        if not self._limited:
            return self._reader.latestOffset()
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return self._reader.latestOffset(start, ReadMaxRows(rows))


class _SimpleReader:
    """A ``SimpleDataSourceStreamReader`` as the other kind: one partition between two offsets."""

    def __init__(self, reader: SimpleDataSourceStreamReader) -> None:
        self._reader = reader

    def initialOffset(self) -> Any:
        return self._reader.initialOffset()

    def available_now(self, start: Any) -> Any:
        """Return a one-element list with the current end of the input."""
        return [self.latestOffset(start, 0)]

    def latestOffset(self, start: Any, rows: int) -> Any:
        _, end = self._reader.read(start)
        return end

    def partitions(self, start: Any, end: Any) -> list[Any]:
        return [(start, end)]

    def read(self, partition: Any) -> Iterator[Any]:
        rows: Iterator[Any] = self._reader.readBetweenOffsets(*partition)
        return rows

    def commit(self, end: Any) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        return


def _given_by(read: Callable[[Any], Any], partition: Any, place: str) -> Iterator[Any]:
    """Yield the rows of a user's reader.

    Raises:
        UserCodeError: if the reader raises.
    """
    try:
        yield from read(partition)
    except (HeadraceError, GeneratorExit):  # GeneratorExit: the consumer has stopped reading
        raise
    except BaseException as error:
        if is_from_outside(error):
            raise
        raise user_error(
            error,
            place,
            "fix the data source, or what it reads from, and start again: the step was not "
            "committed, nothing is lost",
            "the reader failed",
        ) from error


def _name_of(function: Callable[[Any], str], partition: Any) -> str:
    """Return the name that a user's function gives to one of the reader's partitions.

    Raises:
        UserCodeError: if the function raises, or does not return a valid name.
    """
    place, remedy = (
        f"partition= of a SparkReader, for {partition!r}",
        "return a text, not an empty one",
    )
    try:
        name = function(partition)
    except BaseException as error:
        if is_from_outside(error):
            raise
        what = "the function that names partitions failed"
        raise user_error(error, place, remedy, what) from error
    if not isinstance(name, str) or not name:
        raise UserCodeError(f"{name!r} is not a name of a partition", place=place, remedy=remedy)
    return name


def _stream_reader(source: DataSource, schema: StructType) -> Any:
    for method, wrapper in (("streamReader", _Reader), ("simpleStreamReader", _SimpleReader)):
        if getattr(type(source), method) is not getattr(DataSource, method):
            return wrapper(getattr(source, method)(schema))
    raise PipelineError(
        f"{type(source).__name__} cannot be read as a stream",
        remedy="give it a streamReader or a simpleStreamReader",
    )


def _in_utc(field: pa.Field) -> pa.Field:
    if pa.types.is_timestamp(field.type):
        return pa.field(field.name, pa.timestamp("us", tz="UTC"), field.nullable)
    return field
