# ruff: noqa: N802  (it speaks PySpark's protocol)
"""Retained streams as DataFrames: ``spark.readStream.format("headrace")`` and ``spark.read``.

Spark's offsets are steps. A batch covers the steps after its start up to its end. What these steps
produced never changes, so Spark can plan and read a batch again after a crash: it gets the same
rows.

Spark plans in a Python process of its own, which knows the storage's location and nothing of a
running pipeline. Tasks read files of the storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.opening import pinned
from headrace.checkpoints.reader_pins import ReaderPins
from headrace.checkpoints.retained_streams import RetainedStream, Rows, StreamColumns
from headrace.checkpoints.spark_types import spark_schema
from headrace.errors import NotFound, PipelineError, SchemaChanged, WrongPipeline
from headrace.eventtime.durations import duration_micros
from headrace.ledger.pins import LONGEST_US
from headrace.runfiles.format import FileRef
from headrace.session.arrow_types import arrow_schema
from headrace.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT = "headrace"
_COMMON = ["storage", "stream", "parts", "pinFor"]
_BATCH = ["fromStep", "toStep"]
_STREAM = [
    "startingStep",
    "maxStepsPerTrigger",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "reader",
]
_EARLIEST, _LATEST = "earliest", "latest"
#: Default number of parts.
_PARTS = 16
#: A part has at least this many bytes of files, and at most so many, unless a file is larger.
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 64 << 20
#: Default number of bytes of files in a micro-batch.
_PER_TRIGGER = 1 << 30
_PIN_FOR = "1h"
#: If no step since the last batch has produced anything, an empty batch notes how far the query is
#: once these steps are one in this many of those that are kept. So its offset does not expire.
_SHARE = 4

Offset = dict[str, Any]


class _Request(msgspec.Struct, frozen=True):
    """The options of a read, parsed.

    Attributes:
        given: the names of the options that were given.
        pin_us: how long steps are kept for the read.
    """

    given: list[str]
    storage: str
    stream: str
    parts: int
    pin_us: int
    first: int | None = None
    last: int | None = None
    starting: str = _EARLIEST
    max_steps: int | None = None
    max_rows: int | None = None
    max_bytes: int | None = None
    reader: str | None = None

    def opened(self) -> RetainedStream:
        """Return the stream as of the newest step."""
        stream = RetainedStream(open_store(self.storage), self.stream)
        stream.refresh()
        return stream

    def refuse(self, names: list[str], where: str) -> None:
        """Refuse options that have no effect.

        Raises:
            PipelineError: when one of them was given.
        """
        for name in names:
            if name in self.given:
                raise PipelineError(
                    f"{FORMAT}: option {name!r} is not for {where}",
                    remedy=f"leave it out; {', '.join(_BATCH)} are for spark.read, and "
                    f"{', '.join(_STREAM)} for spark.readStream",
                )


class _Part(InputPartition):  # type: ignore[misc]
    """Some files, which a task reads in ascending order of their steps."""

    def __init__(self, columns: StreamColumns, files: list[FileRef]) -> None:
        self.columns = columns
        self.files = files


class StreamDataSource(DataSource):  # type: ignore[misc]
    """A retained stream of a pipeline, running or not: a stream of rows, or those of some steps.

    The columns are those that sinks get, and ``_step``. Options:

    - ``storage``: the pipeline's storage; also the argument of ``load``
    - ``stream``: ``computation.output``, of an output with ``retain=``
    - ``parts``: about how many tasks read a batch (16)
    - ``fromStep``, ``toStep``, for ``spark.read``: the first and the last step (all that are kept)
    - ``startingStep``, for ``spark.readStream``: ``earliest`` (the default), ``latest``, or a step
    - ``maxStepsPerTrigger``, ``maxRowsPerTrigger``, ``maxBytesPerTrigger``: how much a micro-batch
      reads at most; at least one step. By default it reads 1 GiB of files. Rows are counted by
      reading the footers of files when the batch is planned; bytes are known. Steps that produced
      nothing do not count.
    - ``reader``: a name for the query. The pipeline then keeps the steps that the query has not
      committed, for as long as ``pinFor`` after it last planned a batch. No two queries of a
      stream may use the same name.
    - ``pinFor``: how long steps are kept for the read (``1h``, at most a day; ``0s`` does not pin
      them). A streaming query pins them only with ``reader``.

    Guarantees: each row of each step is read once. A batch that is planned again has the same rows.
    Tasks return all rows of their files, verified, or fail. Spark promises no order, so sort by
    ``_step`` where it matters. Within a step, one task yields all rows of a key, in the order in
    which they were produced.

    Columns have their names in Python: names outside (``rename=``) are not stored.

    Raises:
        NotFound: when no pipeline has run there, or there is no such step yet.
        PipelineError: for wrong options, and for streams that do not exist or are not retained.
        Expired: when a step is not kept any more. Steps are never skipped.
        SchemaChanged: when the stream has other columns than when the query began.
        WrongPipeline: when the query has read from another storage.
        Damaged: when a file has changed since it was written.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return _schema_of(_request(self.options).opened().columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        request = _request(self.options)
        request.refuse(_STREAM, "spark.read")
        return _Reader(request, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        request = _request(self.options)
        request.refuse(_BATCH, "spark.readStream")
        if "pinFor" in request.given and request.reader is None:
            request.refuse(["pinFor"], "a query without option 'reader'")
        return _StreamReader(request, schema)


class _Reading:
    """What batches and streams have in common: tasks that read files."""

    def __init__(self, request: _Request, schema: StructType) -> None:
        self._request = request
        self._schema = schema

    def read(self, partition: _Part) -> Iterator[pa.RecordBatch]:
        store, schema = open_store(self._request.storage), arrow_schema(self._schema)
        for file in partition.files:
            yield from Rows(store, file, partition.columns).batches(schema)

    def _checked(self, columns: StreamColumns) -> None:
        """Check that the columns are those that Spark knows.

        Raises:
            SchemaChanged: with the difference, when they are others.
        """
        now, given = _schema_of(columns), self._schema
        alike = [(field.name, field.dataType) for field in now] == [
            (field.name, field.dataType) for field in given
        ]
        if alike and all(b.nullable or not a.nullable for a, b in zip(now, given, strict=True)):
            return
        raise SchemaChanged(
            f"stream {columns.stream!r} has other columns than the DataFrame",
            place=self._request.storage,
            remedy=f"load() the DataFrame again, without a schema() of your own. The DataFrame has "
            f"{_shown(given)}; the stream has {_shown(now)}",
        )


class _Reader(_Reading, DataSourceReader):  # type: ignore[misc]
    def partitions(self) -> list[_Part]:
        request, stream = self._request, self._request.opened()
        self._checked(stream.columns)
        if request.pin_us:
            pinned(Checkpoint(stream.store, stream.head), request.pin_us, FORMAT)
        first = stream.first if request.first is None else request.first
        last = stream.head.step if request.last is None else request.last
        _check_there(stream, "fromStep", first - 1)
        _check_there(stream, "toStep", last)
        files = [file for _, some in stream.files(first - 1, last) for file in some]
        return _parts(files, stream.columns, request.parts)


class _StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans the batches of a streaming query; see the call order of Spark 4.3.

    prepareForTriggerAvailableNow, getDefaultReadLimit, initialOffset (only in a new query),
    latestOffset, partitions, then latestOffset of the next batch, and only then commit of this one.
    The commit of a query's last batch comes first thing after its restart.
    """

    def __init__(self, request: _Request, schema: StructType) -> None:
        super().__init__(request, schema)
        self._stream: RetainedStream | None = None
        self._columns: StreamColumns | None = None
        self._pins: ReaderPins | None = None
        self._target: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what planning needs: tasks get the rest."""
        return {**self.__dict__, "_stream": None, "_pins": None}

    def initialOffset(self) -> Offset:
        stream, starting = self._refreshed(), self._request.starting
        if starting == _EARLIEST:
            return self._offset(stream, stream.first - 1)
        if starting == _LATEST:
            return self._offset(stream, stream.head.step)
        step = int(starting)
        _check_there(stream, "startingStep", step - 1)
        if step <= stream.head.step:
            next(stream.files(step - 1, step))  # (it is kept)
        return self._offset(stream, step - 1)

    def getDefaultReadLimit(self) -> ReadLimit:
        request = self._request
        if request.max_rows is not None:
            return ReadMaxRows(request.max_rows)
        if request.max_bytes is None and request.max_steps is not None:
            return ReadMaxFiles(request.max_steps)  # (Spark has no limit of steps)
        return ReadMaxBytes(request.max_bytes or _PER_TRIGGER)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._refreshed().head.step

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        stream = self._refreshed()
        begin = self._step_of(stream, start)
        self._keep(stream, begin)
        target = stream.head.step if self._target is None else self._target
        if isinstance(limit, ReadAllAvailable):
            return self._offset(stream, max(begin, target))
        return self._offset(stream, self._end(stream, begin, target))

    def reportLatestOffset(self) -> Offset | None:
        stream = self._stream
        return None if stream is None else self._offset(stream, stream.head.step)

    def partitions(self, start: Offset, end: Offset) -> list[_Part]:
        stream = self._stream
        if stream is None or end["step"] > stream.head.step:
            stream = self._refreshed()
        begin, upto = self._step_of(stream, start), self._step_of(stream, end)
        self._keep(stream, begin)
        files = [file for _, some in stream.files(begin, upto) for file in some]
        return _parts(files, stream.columns, self._request.parts)

    def commit(self, end: Offset) -> None:
        if self._request.reader is not None:
            stream = self._stream or self._refreshed()
            self._reader_pins(stream).committed(self._step_of(stream, end))

    def _end(self, stream: RetainedStream, begin: int, target: int) -> int:
        """Return the last step of a batch that begins after a step, within the limits."""
        budget = _Budget(self._request, stream)
        end = begin
        for upto, files in stream.files(begin, target):
            for step, of_step in groupby(files, key=lambda file: file.step):
                if not budget.takes(list(of_step)):
                    return end
                end = step
            if end > begin:
                end = upto
        if end > begin:
            return end
        # Nothing was produced since. A batch without rows is made only when it is needed.
        kept = stream.head.step - stream.first + 1
        due = self._target is not None or (target - begin) * _SHARE >= kept
        return max(begin, target) if due else begin

    def _refreshed(self) -> RetainedStream:
        """Return the stream as of the newest step, after checking that its columns are the same."""
        if self._stream is None:
            self._stream = self._request.opened()
        else:
            self._stream.refresh()
        columns = self._stream.columns
        if self._columns is None:
            self._checked(columns)
            self._columns = columns
        self._columns.check_same(columns, f"{self._request.storage}, step {self._stream.head.step}")
        return self._stream

    def _keep(self, stream: RetainedStream, begin: int) -> None:
        """Have the pipeline keep the steps that the query has not committed."""
        if self._request.reader is not None:
            self._reader_pins(stream).renew(begin)

    def _reader_pins(self, stream: RetainedStream) -> ReaderPins:
        if self._pins is None:
            name = f"{FORMAT} reader {self._request.reader} of {self._request.stream}"
            self._pins = ReaderPins(stream, name, self._request.pin_us)
        return self._pins

    def _offset(self, stream: RetainedStream, step: int) -> Offset:
        return {"step": step, "lineage": stream.lineage}

    def _step_of(self, stream: RetainedStream, offset: Offset) -> int:
        """Return the step of an offset.

        Raises:
            WrongPipeline: when it is an offset of another storage, or of a step that is not there.
        """
        step: int = offset["step"]
        if offset["lineage"] != stream.lineage:
            what = f"the query has read up to step {step} of another storage"
        elif step > stream.head.step:
            what = f"the query has read step {step}, and the newest there is {stream.head.step}"
        else:
            return step
        raise WrongPipeline(
            what,
            place=stream.store.location,
            remedy="give the storage that the query has read from. If it was deleted, or replaced by "
            "a copy, start a new query with a checkpoint of its own",
        )


class _Budget:
    """How much a micro-batch may still take. The first step is always taken."""

    def __init__(self, request: _Request, stream: RetainedStream) -> None:
        self._request, self._stream = request, stream
        self._steps = self._rows = self._bytes = 0

    def takes(self, files: list[FileRef]) -> bool:
        """Return whether a step with these files is taken, too."""
        request = self._request
        self._steps += 1
        self._bytes += sum(file.length for file in files)
        limits = [(self._steps, request.max_steps), (self._bytes, request.max_bytes)]
        if request.max_rows is not None:
            self._rows += sum(self._count(file) for file in files)
            limits.append((self._rows, request.max_rows))
        elif request.max_steps is None and request.max_bytes is None:
            limits.append((self._bytes, _PER_TRIGGER))
        return self._steps == 1 or all(most is None or n <= most for n, most in limits)

    def _count(self, file: FileRef) -> int:
        return Rows(self._stream.store, file, self._stream.columns).count()


def register(spark: SparkSession) -> None:
    """Register the format ``headrace`` with a session, for ``spark.readStream`` and ``spark.read``.

    Example::

        from headrace.spark_streams import register

        p.compute("totals", Visits(), keys={hits: "page"}, retain=["totals"])
        with hr.run(p, storage="state/totals", runner="inline") as job:
            job.drain()
        register(spark)
        reader = spark.readStream.format("headrace").option("stream", "totals.totals")
        query = reader.load("state/totals").writeStream.format("memory").queryName("totals")
        query.trigger(availableNow=True).start().awaitTermination()
        spark.table("totals").select("key", "value", "_step").show()
    """
    spark.dataSource.register(StreamDataSource)


def _schema_of(columns: StreamColumns) -> StructType:
    return spark_schema(columns.public, f"stream {columns.stream!r}")


def _shown(schema: StructType) -> str:
    return ", ".join(
        f"{field.simpleString()}{'' if field.nullable else ' not null'}" for field in schema
    )


def _check_there(stream: RetainedStream, option: str, step: int) -> None:
    """Check that a step has been committed.

    Raises:
        NotFound: when it has not.
    """
    if step > stream.head.step:
        raise NotFound(
            f"option {option!r} names a step that is not there yet: the newest is {stream.head.step}",
            place=stream.store.location,
            remedy=f"the steps that are kept are {stream.first} to {stream.head.step}",
        )


def _parts(files: list[FileRef], columns: StreamColumns, parts: int) -> list[_Part]:
    """Divide files into parts of about the same size, each of which a task reads."""
    size = sum(file.length for file in files) // parts
    most = min(max(size, _LEAST_BYTES), _MOST_BYTES)
    found: list[list[FileRef]] = []
    room = 0
    for file in files:
        if file.length > room:
            found.append([])
            room = most
        found[-1].append(file)
        room -= file.length
    return [_Part(columns, some) for some in found]


def _request(options: Mapping[str, str]) -> _Request:
    """Return the parsed options. Spark passes their names in lower case.

    Raises:
        PipelineError: for options that are missing, unknown, or not what they should be.
    """
    names = {name.lower(): name for name in [*_COMMON, *_BATCH, *_STREAM]}
    given = {name.lower(): value for name, value in options.items()}
    path = given.pop("path", None)
    if path is not None and given.setdefault("storage", path) != path:
        raise PipelineError(
            f"{FORMAT}: option 'storage' and the argument of load() are not the same",
            remedy="give one of them",
        )
    unknown = sorted(set(given) - set(names))
    missing = sorted({"storage", "stream"} - set(given))
    if unknown or missing:
        what = f"does not know option {unknown[0]!r}" if unknown else f"needs option {missing[0]!r}"
        raise PipelineError(
            f"{FORMAT} {what}", remedy=f"its options are: {', '.join(names.values())}"
        )
    pin_us = duration_micros(given.get("pinfor", _PIN_FOR), "pinFor")
    if not 0 <= pin_us <= LONGEST_US:
        raise PipelineError(
            f"{FORMAT}: option 'pinFor' is {given['pinfor']!r}", remedy="give at most '24h'"
        )
    if not pin_us and "reader" in given:
        raise PipelineError(
            f"{FORMAT}: a reader pins steps, and option 'pinFor' is {given['pinfor']!r}",
            remedy="say how long steps are kept while the query does not run, such as '1h'",
        )
    first, last = _number(given, "fromStep"), _number(given, "toStep")
    if first is not None and last is not None and first > last:
        raise PipelineError(
            f"{FORMAT}: option 'fromStep' is {first}, and 'toStep' {last}",
            remedy="give a range that does not end before it begins",
        )
    return _Request(
        [names[name] for name in given],
        # (executors may have another working directory)
        open_store(given["storage"]).location,
        given["stream"],
        _number(given, "parts", 1) or _PARTS,
        pin_us,
        first,
        last,
        _starting(given),
        _number(given, "maxStepsPerTrigger", 1),
        _number(given, "maxRowsPerTrigger", 1),
        _number(given, "maxBytesPerTrigger", 1),
        _reader(given),
    )


def _starting(options: Mapping[str, str]) -> str:
    text = options.get("startingstep", _EARLIEST)
    if text.lower() in (_EARLIEST, _LATEST):
        return text.lower()
    if not text.isdecimal():
        raise PipelineError(
            f"{FORMAT}: option 'startingStep' is {text!r}",
            remedy=f"give {_EARLIEST!r}, {_LATEST!r}, or the number of a step",
        )
    return text


def _reader(options: Mapping[str, str]) -> str | None:
    name = options.get("reader")
    if name is not None and not name.strip():
        raise PipelineError(f"{FORMAT}: option 'reader' is empty", remedy="give the query a name")
    return name


def _number(options: Mapping[str, str], name: str, least: int = 0) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.isdecimal() or int(text) < least:
        raise PipelineError(
            f"{FORMAT}: option {name!r} is {text!r}", remedy=f"give a number from {least} on"
        )
    return int(text)
