"""State as a Spark DataFrame: ``spark.read.format("headrace-state")``, without the pipeline's code.

Bins are read in parallel, a part of them in each task. The step is chosen and pinned once, when the
read is planned. So all parts are of one step, and it is kept while they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.checkpoints.catalog import Checkpoints
from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.contents import conformed
from headrace.checkpoints.opening import open_state, pinned
from headrace.errors import PipelineError
from headrace.eventtime.durations import duration_micros
from headrace.keyspace.ranges import Ranges
from headrace.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_FORMAT = "headrace-state"
#: Default number of parts.
_PARTS = 16
_PIN_FOR = "1h"
#: Spark has no unsigned integers. Types whose values may not fit into a signed one become decimals.
_UNSIGNED = pa.decimal128(20, 0)
_OPTIONS = ("path", "computation", "step", "section", "parts", "pinfor")


class _Request(msgspec.Struct, frozen=True):
    """The options of a read, parsed."""

    path: str
    computation: str
    section: str | None
    step: int | None
    parts: int
    pin_us: int

    def opened(self) -> Checkpoint:
        return Checkpoints(open_store(self.path)).open(self.step)


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
        request = _request(self.options)
        columns = request.opened().schema(request.computation, request.section)
        return from_arrow_schema(_for_spark(columns.empty_table()).schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(_request(self.options))


class _Reader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, request: _Request) -> None:
        self._request = request

    def partitions(self) -> list[_Part]:
        request = self._request
        checkpoint = open_state(request.path, request.step)
        if request.pin_us:
            checkpoint = pinned(checkpoint, request.pin_us, _FORMAT)
        if request.section == "workers":
            return [_Part(checkpoint.step, Ranges.everything().pairs())]
        parts = checkpoint.ranges(request.computation, request.parts)
        return [_Part(checkpoint.step, ranges.pairs()) for ranges in parts]

    def read(self, partition: _Part) -> Iterator[pa.RecordBatch]:
        request = msgspec.structs.replace(self._request, step=partition.step)
        ranges = Ranges.of(partition.pairs)
        checkpoint = request.opened()
        rows = checkpoint.read(request.computation, request.section, ranges=ranges)
        columns = checkpoint.schema(request.computation, request.section)
        yield from _for_spark(conformed(rows, columns)).to_batches()


def register(spark: SparkSession) -> None:
    """Register the format ``headrace-state`` with a session, for ``spark.read.format``.

    Example::

        from headrace.spark_state import register

        register(spark)
        reader = spark.read.format("headrace-state").option("computation", "visits")
        reader.load("state/visits").select("key", "value").show()
    """
    spark.dataSource.register(StateDataSource)


def _request(options: Mapping[str, str]) -> _Request:
    """Return the parsed options. Spark passes their names in lower case.

    Raises:
        PipelineError: for options that are missing, unknown, or not the numbers they should be.
    """
    known = {name.lower(): value for name, value in options.items()}
    unknown = sorted(set(known) - set(_OPTIONS))
    missing = sorted({"path", "computation"} - set(known))
    if unknown or missing:
        what = f"does not know option {unknown[0]!r}" if unknown else f"needs option {missing[0]!r}"
        raise PipelineError(
            f"{_FORMAT} {what}",
            remedy="its options are: path, computation, section, step, parts, pinFor",
        )
    pin_us = duration_micros(known.get("pinfor", _PIN_FOR), "pinFor")
    step = _number(known, "step")
    return _Request(
        # (executors may have another working directory)
        open_store(known["path"]).location,
        known["computation"],
        known.get("section"),
        step,
        _number(known, "parts") or _PARTS,
        pin_us,
    )


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is not None and not text.isdecimal():
        raise PipelineError(f"{_FORMAT}: option {name!r} is {text!r}", remedy="give a number")
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
