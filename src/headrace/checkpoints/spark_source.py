"""State and views as Spark DataFrames, without the pipeline's code.

Bins are read in parallel, a part of them in each task. The step is chosen and pinned once, when the
read is planned. So all parts are of one step, and it is kept while they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.checkpoints.catalog import Checkpoints
from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.contents import conformed
from headrace.checkpoints.opening import open_state, pinned
from headrace.checkpoints.views import read_view, view_schema
from headrace.errors import PipelineError
from headrace.eventtime.durations import duration_micros
from headrace.keyspace.ranges import Ranges
from headrace.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_FORMAT = "headrace-state"
_FORMAT_OF_VIEWS = "headrace-view"
#: Default number of parts.
_PARTS = 16
_PIN_FOR = "1h"
#: Spark has no unsigned integers. Types whose values may not fit into a signed one become decimals.
_UNSIGNED = pa.decimal128(20, 0)
_OPTIONS = ("path", "computation", "step", "section", "parts", "pinFor")
_OPTIONS_OF_VIEWS = ("path", "view", "step", "parts", "pinFor")


class _Request(msgspec.Struct, frozen=True):
    """The options of a read, parsed."""

    format: str
    path: str
    computation: str
    section: str | None
    step: int | None
    parts: int
    pin_us: int

    def opened(self) -> Checkpoint:
        return Checkpoints(open_store(self.path)).open(self.step)

    def schema(self) -> pa.Schema:
        checkpoint = self.opened()
        if self.format == _FORMAT_OF_VIEWS:
            return view_schema(checkpoint, self.computation)
        return checkpoint.schema(self.computation, self.section)

    def rows(self, ranges: Ranges) -> pa.Table:
        checkpoint = self.opened()
        if self.format == _FORMAT_OF_VIEWS:
            return read_view(checkpoint, self.computation, ranges=ranges)
        rows = checkpoint.read(self.computation, self.section, ranges=ranges)
        return conformed(rows, checkpoint.schema(self.computation, self.section))


class _Part(InputPartition):  # type: ignore[misc]
    """Some ranges of hashes, as of a step."""

    def __init__(self, step: int, pairs: list[tuple[int, int]]) -> None:
        self.step = step
        self.pairs = pairs


class StateDataSource(DataSource):  # type: ignore[misc]
    """The state of a computation, as of a committed step.

    Options: ``path`` (the pipeline's storage; also the argument of ``load``), ``computation``,
    ``section`` (by default its state), ``step`` (by default the newest), ``parts`` (how many tasks
    read; 16), ``pinFor`` (how long the step is kept for the read; ``1h``, at most a day; ``0s``
    does not pin it).

    Guarantees: all rows are of one step. Each task returns all rows of its bins, verified, or
    fails. The pin stays until it expires, because Spark does not report when a read has ended.
    """

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def schema(self) -> StructType:
        columns = self._request().schema()
        return from_arrow_schema(_for_spark(columns.empty_table()).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self._request())

    def _request(self) -> _Request:
        return _request(self.options, _FORMAT, "computation", _OPTIONS)


class ViewDataSource(StateDataSource):
    """The rows of a view, as of a committed step: what its query gives over the tables at that step.

    Options: ``path`` (the pipeline's storage; also the argument of ``load``), ``view`` (its name, or
    that of a table that keeps its rows), and ``step``, ``parts`` and ``pinFor`` as for
    :class:`StateDataSource`.

    Guarantees: all rows are of one step, each as often as it is there. Views that are read at one
    ``step`` agree.
    """

    @classmethod
    def name(cls) -> str:
        return _FORMAT_OF_VIEWS

    def _request(self) -> _Request:
        return _request(self.options, _FORMAT_OF_VIEWS, "view", _OPTIONS_OF_VIEWS)


class _Reader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, request: _Request) -> None:
        self._request = request

    def partitions(self) -> list[_Part]:
        request = self._request
        checkpoint = open_state(request.path, request.step)
        if request.pin_us:
            checkpoint = pinned(checkpoint, request.pin_us, request.format)
        if request.section == "workers":
            return [_Part(checkpoint.step, Ranges.everything().pairs())]
        parts = checkpoint.ranges(request.computation, request.parts)
        return [_Part(checkpoint.step, ranges.pairs()) for ranges in parts]

    def read(self, partition: _Part) -> Iterator[pa.RecordBatch]:
        request = msgspec.structs.replace(self._request, step=partition.step)
        yield from _for_spark(request.rows(Ranges.of(partition.pairs))).to_batches()


def register(spark: SparkSession) -> None:
    """Register the formats ``headrace-state`` and ``headrace-view`` with a session.

    Example::

        from headrace.spark_state import register

        register(spark)
        reader = spark.read.format("headrace-state").option("computation", "visits")
        reader.load("state/visits").select("key", "value").show()
    """
    spark.dataSource.register(StateDataSource)
    spark.dataSource.register(ViewDataSource)


def read_views(
    spark: SparkSession, storage: str, *names: str, step: int | None = None
) -> list[DataFrame]:
    """Return views as DataFrames of one step, so that they agree, however often they are computed.

    Args:
        spark: the session.
        storage: the pipeline's storage.
        names: the views.
        step: a committed step that is kept; by default the newest.

    Raises:
        PipelineError: if there is no view of that name.

    Example::

        from headrace.spark_state import read_views

        rows = hr.zsets.table("rows", hits)
        rows.group("counts", "page", n=hr.zsets.Count()).view("counted", key="page")
        rows.group("sums", "page", ms=hr.zsets.Sum("ms")).view("summed", key="page")
        with hr.testing.drive(p, storage="state/pages") as t:
            t.push("hits", Hit("/home", "ann", 12, at=0))
            t.run()
        counted, summed = read_views(spark, "state/pages", "counted", "summed")
        counted.join(summed, "page").show()
    """
    register(spark)
    checkpoint = open_state(storage, step)
    reader = spark.read.format(_FORMAT_OF_VIEWS).option("step", checkpoint.step)
    for name in names:
        view_schema(checkpoint, name)
    return [reader.option("view", name).load(checkpoint.store.location) for name in names]


def _request(options: Mapping[str, str], format_: str, what: str, names: Sequence[str]) -> _Request:
    """Return the parsed options. Spark passes their names in lower case.

    Args:
        options: the options.
        format_: the format.
        what: the option that says what is read.
        names: the options that there are.

    Raises:
        PipelineError: for options that are missing, unknown, or not the numbers they should be.
    """
    known = {name.lower(): value for name, value in options.items()}
    unknown = sorted(set(known) - {name.lower() for name in names})
    missing = sorted({"path", what} - set(known))
    if unknown or missing:
        why = f"does not know option {unknown[0]!r}" if unknown else f"needs option {missing[0]!r}"
        raise PipelineError(f"{format_} {why}", remedy=f"its options are: {', '.join(names)}")
    pin_us = duration_micros(known.get("pinfor", _PIN_FOR), "pinFor")
    return _Request(
        format_,
        # (executors may have another working directory)
        open_store(known["path"]).location,
        known[what],
        known.get("section"),
        _number(known, "step", format_),
        _number(known, "parts", format_) or _PARTS,
        pin_us,
    )


def _number(options: Mapping[str, str], name: str, format_: str) -> int | None:
    text = options.get(name)
    if text is not None and not text.isdecimal():
        raise PipelineError(f"{format_}: option {name!r} is {text!r}", remedy="give a number")
    return None if text is None else int(text)


def _for_spark(rows: pa.Table) -> pa.Table:
    """Return rows in types that Spark has."""
    for at, field in enumerate(rows.schema):
        kind = _spark_type(field.type)
        if kind != field.type:
            rows = rows.set_column(at, field.with_type(kind), rows.column(at).cast(kind))
    return rows


_WIDER: list[tuple[Callable[[Any], bool], pa.DataType]] = [
    (pa.types.is_uint64, _UNSIGNED),
    (pa.types.is_uint32, pa.int64()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_uint8, pa.int16()),
]


def _spark_type(kind: pa.DataType) -> pa.DataType:
    return next((wider for is_it, wider in _WIDER if is_it(kind)), kind)
