"""A timeline in Parquet files, for who runs as fast as it goes: both sides read the same files.

A *piece* is a range of the timeline, with a file for each kind of events. A step, or a micro-batch, takes
some pieces whole.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

import headrace as hr
from headrace.nexmark.events import read, schema_of
from headrace.nexmark.queries.market import Market
from headrace.nexmark.queries.spark_market import SparkMarket
from headrace.nexmark.source import Events
from headrace.nexmark.timeline import Kind, Timeline
from headrace.pipeline.source import InTasks, Limit, Offer, Position, Source, Split
from headrace.pipeline.streams import Stream
from headrace.schema import ValueType
from headrace.schema.reserved import TIMESTAMP_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KINDS = [Kind.PERSON, Kind.AUCTION, Kind.BID]


class Recorded(msgspec.Struct, frozen=True):
    """What is in files.

    Attributes:
        folder: where.
        timeline: what of; it has an end, at the end of a piece.
        piece: how many events of the timeline are in each.
    """

    folder: str
    timeline: Timeline
    piece: int

    def file(self, kind: Kind, number: int) -> str:
        """Return where a piece's events of a kind are."""
        return f"{self.folder}/{kind.value}/{number:06d}.parquet"

    def write(self) -> None:
        """Write all pieces; Spark takes files in the order of their times."""
        for kind in KINDS:
            Path(self.folder, kind.value).mkdir(parents=True)
            for number in range(self.pieces):
                first = number * self.piece
                names = schema_of(kind).names
                made = list(read(self.timeline, kind, first, first + self.piece, names))
                table = pa.concat_tables(made) if made else schema_of(kind).empty_table()
                pyarrow.parquet.write_table(table, self.file(kind, number))
                os.utime(self.file(kind, number), (1_600_000_000 + number,) * 2)

    @property
    def pieces(self) -> int:
        """How many there are."""
        assert self.timeline.events is not None
        return self.timeline.events // self.piece


class RecordedEvents(Events):
    """The events of a kind, from files; positions are those of :class:`~headrace.nexmark.source.Events`."""

    def __init__(self, recorded: Recorded, kind: Kind, columns: Sequence[str] | None) -> None:
        super().__init__(recorded.timeline, kind, columns=columns)
        self._recorded = recorded

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        piece = self._recorded.piece
        return super().offer(position, Limit(max(piece, limit.rows // piece * piece), limit.bytes))

    def splits(self, start: Position, end: Position) -> list[Split]:
        pieces = range(start // self._recorded.piece, end // self._recorded.piece)
        return [Split(number, place=f"piece {number}") for number in pieces]

    def read(self, split: Split) -> pa.Table:
        return self.for_tasks().read(split)

    def for_tasks(self) -> Source:
        return _FromFiles(self.values(), self._recorded, self.kind)


class _FromFiles(InTasks):
    """Reads pieces, in a task."""

    def __init__(self, values: ValueType, recorded: Recorded, kind: Kind) -> None:
        super().__init__(values)
        self._recorded, self._kind = recorded, kind

    def read(self, split: Split) -> pa.Table:
        names = self.values().schema.names
        asked = [*names, *({"date_time"} - set(names))]
        file = pa.parquet.ParquetFile(self._recorded.file(self._kind, split.spec))
        table = file.read(columns=asked, use_threads=False)
        times = pc.cast(table.column("date_time"), pa.int64())
        return table.select(names).add_column(0, TIMESTAMP_COLUMN, times)


class RecordedMarket(Market):
    """Brings recorded events into a pipeline."""

    def __init__(self, pipeline: hr.Pipeline, recorded: Recorded) -> None:
        super().__init__(pipeline, recorded.timeline)
        self._recorded = recorded

    def _inject(self, name: str, kind: Kind, columns: tuple[str, ...]) -> Stream:
        source = RecordedEvents(self._recorded, kind, columns or None)
        return self.pipeline.inject(name, source, watermark=hr.exact())


class RecordedSparkMarket(SparkMarket):
    """Reads recorded events as streams.

    Args:
        pieces: how many a micro-batch takes.
    """

    def __init__(self, spark: SparkSession, recorded: Recorded, pieces: int) -> None:
        super().__init__(spark, {})
        self.longest_open_us = recorded.timeline.longest_open_us
        self._recorded, self._pieces = recorded, pieces

    def _read(self, kind: str, columns: tuple[str, ...], by: str = "date_time") -> DataFrame:
        folder = str(Path(self._recorded.file(Kind(kind), 0)).parent)
        schema = self.spark.read.parquet(self._recorded.file(Kind(kind), 0)).schema
        reader = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", self._pieces)
        found = reader.parquet(folder).select(*(columns or schema.names))
        return found.withWatermark(by, self.delay) if by in columns else found
