"""NEXMark's events for Spark itself: ``spark.readStream.format("nexmark")``, or ``spark.read``.

They are the same events of the same timeline as those of :mod:`headrace.nexmark.source`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from headrace.errors import PipelineError
from headrace.nexmark.events import columns_of, kind_of, read, schema_of
from headrace.nexmark.pace import Pace, there
from headrace.nexmark.timeline import Kind, Timeline, cut

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT = "nexmark"
#: Options that are parameters of the timeline, as Spark spells them.
_FIELDS = {
    "events": "events", "seed": "seed", "rate": "rate", "inFlight": "in_flight",
    "hotSellers": "hot_sellers", "hotAuctions": "hot_auctions", "hotBidders": "hot_bidders",
    "disorder": "disorder", "baseMicros": "base_us",
}  # fmt: skip
_OTHERS = ["kind", "columns", "parts", "eventsPerTrigger", "eventsPerSecond", "beginMicros"]
_SOME = ["parts", "eventsPerTrigger", "eventsPerSecond"]
_PARTS = 2
_PER_TRIGGER = 1_000_000


class _Request(msgspec.Struct, frozen=True):
    """The options of a read, parsed."""

    timeline: Timeline
    kind: Kind
    columns: list[str]
    parts: int
    per_trigger: int
    per_second: int | None
    begin_us: int | None

    def cut(self, first: int, last: int) -> list[InputPartition]:
        """Return a range of arrivals, divided into parts that are read in parallel."""
        return [InputPartition(part) for part in cut(first, last, self.parts) if part[0] < part[1]]

    def rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the events of a part."""
        first, last = partition.value
        for table in read(self.timeline, self.kind, first, last, self.columns):
            yield from table.combine_chunks().to_batches()


class NexmarkDataSource(DataSource):  # type: ignore[misc]
    """NEXMark's events as a data source of Spark.

    Options: ``kind`` (``person``, ``auction``, ``bid``; by default ``event``, all of them, each in
    a struct), ``columns`` (names with commas between; by default all), the parameters of
    :class:`headrace.nexmark.timeline.Timeline` (``events``, ``seed``, ``rate``, ``inFlight``,
    ``hotSellers``, ``hotAuctions``, ``hotBidders``, ``disorder``, ``baseMicros``), ``parts`` (how
    many tasks read; 2), ``eventsPerTrigger`` (maximum number of events of the timeline in a
    micro-batch; 1 000 000), ``eventsPerSecond`` (events come by the clock, from ``beginMicros`` on,
    or from the first question; by default all are there at once).
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        request = _request(self.options)
        fields = [schema_of(request.kind).field(name) for name in request.columns]
        return from_arrow_schema(pa.schema(fields))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(_request(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader(_request(self.options))


class _Reader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, request: _Request) -> None:
        self._request = request

    def partitions(self) -> list[InputPartition]:
        last = self._request.timeline.events
        if last is None:
            raise PipelineError(f"{FORMAT}: a batch has an end", remedy='say .option("events", …)')
        return self._request.cut(0, last)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._request.rows(partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    def __init__(self, request: _Request) -> None:
        self._request = request
        self._pace = (
            Pace(request.per_second, begin_us=request.begin_us) if request.per_second else None
        )
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"events": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._request.per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = there(self._request.timeline, self._pace)
        if self._target is None:
            raise PipelineError(
                f"{FORMAT}: what is available now has no end", remedy='say .option("events", …)'
            )

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        come = self._target
        if come is None:
            come = there(self._request.timeline, self._pace)
        some = limit.max_rows if isinstance(limit, ReadMaxRows) else self._request.per_trigger
        if isinstance(limit, ReadAllAvailable) and come is not None:
            return {"events": max(come, start["events"])}
        end = start["events"] + some
        return {"events": max(start["events"], end if come is None else min(end, come))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return self._request.cut(start["events"], end["events"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._request.rows(partition)


def register(spark: SparkSession) -> None:
    """Register the format ``nexmark`` with a session, for ``spark.readStream.format``."""
    spark.dataSource.register(NexmarkDataSource)


def timeline_of(options: Mapping[str, str]) -> Timeline:
    """Return the timeline that the options of a read describe.

    Raises:
        PipelineError: for options that are unknown, or not the numbers they should be.
    """
    return _request(options).timeline


def _request(options: Mapping[str, str]) -> _Request:
    """Return the parsed options. Spark passes their names in lower case.

    Raises:
        PipelineError: for options that are unknown, or not the numbers they should be.
    """
    known = {name.lower(): name for name in [*_FIELDS, *_OTHERS]}
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        if name not in known:
            raise PipelineError(
                f"{FORMAT} does not know option {name!r}",
                remedy=f"its options are: {', '.join(known.values())}",
            )
    numbers = {
        known[name]: value
        for name, value in given.items()
        if known[name] not in ("kind", "columns")
    }
    request = {name: _number(name, value) for name, value in numbers.items()}
    if "beginMicros" in request and "eventsPerSecond" not in request:
        raise PipelineError(
            f"{FORMAT}: option 'beginMicros' says from when on events come by the clock, and none do",
            remedy='say .option("eventsPerSecond", …), too, or leave it out',
        )
    kind = kind_of(given.get("kind", Kind.EVENT))
    chosen = given["columns"].split(",") if "columns" in given else None
    fields_of: dict[str, Any] = {
        field: request[name] for name, field in _FIELDS.items() if name in request
    }
    return _Request(
        Timeline(**fields_of),
        kind,
        columns_of(kind, chosen),
        request.get("parts", _PARTS),
        request.get("eventsPerTrigger", _PER_TRIGGER),
        request.get("eventsPerSecond"),
        request.get("beginMicros"),
    )


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or (name in _SOME and not int(text)):
        raise PipelineError(
            f"{FORMAT}: option {name!r} is {text!r}",
            remedy=f"give a number{' from 1 on' if name in _SOME else ''}",
        )
    return int(text)
