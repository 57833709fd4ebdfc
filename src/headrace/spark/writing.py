"""``writeStream`` for the output of a processor: the parts of Spark's that make sense here."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryProgress

import headrace.job
from headrace.errors import AlreadyExists, HeadraceError, PipelineError
from headrace.job import Job
from headrace.pipeline import Pipeline, Stream
from headrace.pipeline.sink import Sink
from headrace.sinks import Calls, Files
from headrace.spark.progress import Progress
from headrace.spark.transform import Transformed
from headrace.storage import open_store

log = logging.getLogger("headrace")

_FILES = ("json", "csv", "parquet")
_FORMATS = (*_FILES, "console", "memory", "noop")
_NAMELESS = "transformed"
#: The options that mean something, in lower case, by format.
_ALWAYS = {"checkpointlocation"}
_OPTIONS = {
    "json": {"path", "compression"},
    "parquet": {"path", "compression"},
    "csv": {"path", "compression", "header"},
    "console": {"numrows", "truncate"},
}
#: What Spark calls compressions, and what files call them.
_COMPRESSIONS: dict[str, Any] = {"gzip": "gzip", "zstd": "zstd", "none": None, "uncompressed": None}


class StreamWriter:
    """Writes the output of a processor, as ``DataStreamWriter`` does a DataFrame.

    ``checkpointLocation`` is where the state is. Formats are ``json``, ``csv``, ``parquet``,
    ``console``, ``memory`` and ``noop``; anything else goes through ``foreachBatch``. Files have
    the columns of the output, as Spark's have. Their options are ``compression`` (``gzip``,
    ``zstd`` or ``none``) and, for ``csv``, ``header``; ``console`` has ``numRows`` and
    ``truncate``. An option without a meaning here is named in a warning.

    Example::

        words = spark.createDataFrame([("a",), ("b",), ("a",)], "word STRING")
        schema = "word STRING, count BIGINT"
        counted = hr.spark.transform_with_state(
            words.groupBy("word"), Count(), schema, "Update", "None"
        )
        writer = counted.writeStream.format("json").option("checkpointLocation", "checkpoint")
        writer.start("counts/").awaitTermination()
    """

    def __init__(self, of: Transformed) -> None:
        self._of = of
        self._options: dict[str, Any] = {}
        self._given_keys: dict[str, str] = {"path": "path"}
        self._format = ""
        self._name = ""
        self._trigger: dict[str, Any] = {}
        self._function: Callable[[Any, int], Any] | None = None

    def format(self, source: str) -> StreamWriter:
        """Choose the format."""
        if source not in _FORMATS:
            raise PipelineError(
                f"there is no format {source!r} here",
                remedy=f"use one of {', '.join(_FORMATS)}; foreachBatch(f), which can write anywhere; or "
                "pass pipeline= to transform_with_state(), and a sink of headrace.sinks",
            )
        self._format = source
        return self

    def option(self, key: str, value: Any) -> StreamWriter:
        """Set an option."""
        self._options[key.lower()] = value
        self._given_keys[key.lower()] = key
        return self

    def options(self, **options: Any) -> StreamWriter:
        """Set options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def outputMode(self, outputMode: str) -> StreamWriter:
        """Choose the output mode. The rows of each step leave, whatever it is."""
        if outputMode.lower() not in ("append", "update"):
            raise PipelineError(
                f"there is no output mode {outputMode!r} here",
                remedy='use "append" or "update": a processor yields the rows that leave',
            )
        return self

    def queryName(self, queryName: str) -> StreamWriter:
        """Name the query. The pipeline gets the name, too."""
        self._name = queryName
        return self

    def trigger(self, **trigger: Any) -> StreamWriter:
        """Choose when to read: ``availableNow``, ``once``, or ``processingTime``."""
        if len(trigger) != 1 or not {*trigger} <= {"availableNow", "once", "processingTime"}:
            raise PipelineError(
                f"there is no trigger {trigger!r} here",
                remedy='use availableNow=True, or processingTime="10 seconds"',
            )
        self._trigger = trigger
        return self

    def foreachBatch(self, func: Callable[[Any, int], Any]) -> StreamWriter:
        """Call a function with a DataFrame of each step that has rows, and the step's number.

        Numbers ascend. Unlike Spark's, they do not begin at 0, and some are left out: those of
        steps without rows, and one at each start. A step may come again after a crash, with the
        same number and rows.
        """
        self._function = func
        return self

    def partitionBy(self, *_: Any) -> StreamWriter:
        """Refused: files are not divided by columns here."""
        raise _refused("partitionBy")

    def foreach(self, *_: Any) -> StreamWriter:
        """Refused: use ``foreachBatch``."""
        raise _refused("foreach")

    def toTable(self, *_: Any, **__: Any) -> Any:
        """Refused: use ``foreachBatch``."""
        raise _refused("toTable")

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> Query:
        """Start, or go on from where the checkpoint is."""
        if format is not None:
            self.format(format)
        if outputMode is not None:
            self.outputMode(outputMode)
        self._name = queryName or self._name
        self.options(**options)
        if path is not None:
            self._options["path"] = path
        location = self._options.get("checkpointlocation")
        if not location:
            raise PipelineError(
                "the query has no checkpoint",
                remedy='say where its state is to be: .option("checkpointLocation", "state/…")',
            )
        pipeline = Pipeline(self._pipeline_name())
        trigger = {} if {"availableNow", "once"} & {*self._trigger} else self._trigger
        stream = self._of.add_to(
            pipeline, _NAMELESS, checkpoint=f"{location}/input", trigger=trigger or None
        )
        pipeline.sink("out", stream, self._sink(stream))
        self._name_options_without_effect()
        facts = {"id": _query_id(location), "runId": str(uuid.uuid4()), "name": self._name or None}
        progress = Progress(facts, _NAMELESS, self._sink_in_words())
        job = headrace.job.run(pipeline, storage=f"{location}/state", listeners=[progress.note])
        ends = not self._of.is_streaming or bool({"availableNow", "once"} & {*self._trigger})
        return Query(job, facts, progress, ends=ends, drains=not self._of.is_streaming)

    def _sink_in_words(self) -> str:
        return "foreachBatch" if self._function is not None else self._format or "console"

    def _name_options_without_effect(self) -> None:
        taken = _ALWAYS | _OPTIONS.get(self._sink_in_words(), set())
        if strange := sorted(self._options.keys() - taken):
            log.warning(
                "%s of writeStream has no effect here: %s",
                "an option" if len(strange) == 1 else "several options",
                ", ".join(self._given_keys[key] for key in strange),
            )

    def _pipeline_name(self) -> str:
        return self._name if self._name.isidentifier() else _NAMELESS

    def _sink(self, stream: Stream) -> Sink:
        if self._function is not None:
            return Calls(self._of_frame(self._function))
        if self._format in _FILES:
            return self._files(stream)
        if self._format == "memory":
            return Calls(_Memory(self._of, self._name))
        if self._format == "noop":
            return Calls(lambda step, rows: None)
        return Calls(self._of_frame(self._print))

    def _files(self, stream: Stream) -> Files:
        if "path" not in self._options:
            raise PipelineError("files need a path", remedy='say .start("out/")')
        kind = "jsonl" if self._format == "json" else self._format
        named = str(self._options.get("compression", "")).lower()
        if named and named not in _COMPRESSIONS and (kind, named) != ("parquet", "snappy"):
            raise PipelineError(
                f"there is no compression={named!r} of {self._format} here",
                remedy=f"use one of {', '.join(_COMPRESSIONS)}",
            )
        header = str(self._options.get("header", False)).lower() == "true"
        return Files(
            self._options["path"],
            format=kind,  # type: ignore[arg-type]
            compression=_COMPRESSIONS.get(named),
            columns=dict(zip(stream.values.schema.names, self._of.schema.names, strict=True)),
            suffix=self._format,
            header=header or kind != "csv",
        )

    def _print(self, frame: Any, step: int) -> None:
        truncate = self._options.get("truncate", False)
        if isinstance(truncate, str):
            truncate = int(truncate) if truncate.isdigit() else truncate.lower() == "true"
        frame.show(int(self._options.get("numrows", 20)), truncate=truncate)
        sys.stdout.flush()  # (one that is no terminal would hold it back)

    def _of_frame(self, function: Callable[[Any, int], Any]) -> Callable[[int, pa.Table], Any]:
        of = self._of

        def deliver(step: int, rows: pa.Table) -> Any:
            return function(frame_of(of, rows), step)

        return deliver


def frame_of(of: Transformed, rows: pa.Table) -> Any:
    """Return the rows of a delivery as a DataFrame of Spark, without the key and the time."""
    names = of.schema.names
    own = rows.select(range(rows.num_columns - len(names), rows.num_columns))
    return of.session.createDataFrame(own.rename_columns(names), schema=of.schema)


def _refused(name: str) -> PipelineError:
    return PipelineError(
        f"there is no writeStream.{name} here",
        remedy="use foreachBatch(f), where f gets a DataFrame of each step",
    )


def _query_id(location: str) -> str:
    """Return what identifies a query over restarts. It is kept with its checkpoint."""
    store = open_store(f"{location}/query")
    with contextlib.suppress(AlreadyExists):
        store.create("id", str(uuid.uuid4()).encode())
    return store.read("id").decode()


class _Memory:
    """Keeps all rows in the driver, as a temporary view."""

    def __init__(self, of: Transformed, name: str) -> None:
        if not name:
            raise PipelineError("format memory needs a name", remedy="call queryName() first")
        self._of, self._name, self._rows = of, name, {}  # type: ignore[var-annotated]
        of.session.createDataFrame([], of.schema).createOrReplaceTempView(name)

    def __call__(self, step: int, rows: pa.Table) -> None:
        self._rows[step] = rows
        whole = pa.concat_tables(self._rows.values())
        frame_of(self._of, whole).createOrReplaceTempView(self._name)


class Query:
    """A running query, as ``StreamingQuery`` is one.

    Attributes:
        job: the job that runs it, for moves, status and all else that Headrace has.
        name: its name.
        id: identifies the query, also after a restart from its checkpoint.
        runId: identifies this run of it.

    Example::

        words = spark.createDataFrame([("a",), ("b",), ("a",)], "word STRING")
        schema = "word STRING, count BIGINT"
        counted = hr.spark.transform_with_state(
            words.groupBy("word"), Count(), schema, "Update", "None"
        )
        writer = counted.writeStream.foreachBatch(lambda frame, step: frame.show())
        query = writer.option("checkpointLocation", "checkpoint").start()
        query.awaitTermination()
        assert not query.isActive
    """

    def __init__(
        self, job: Job, facts: dict[str, Any], progress: Progress, *, ends: bool, drains: bool
    ) -> None:
        self.job, self._progress = job, progress
        self.name: str | None = facts["name"]
        self.id: str = facts["id"]
        self.runId: str = facts["runId"]
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._ends, self._drains = ends, drains
        job.__enter__()
        self._thread = threading.Thread(target=self._run, name="headrace-query", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            if self._drains:
                self.job.drain()
            elif self._ends:
                self.job.catch_up()
            else:
                self.job.wait()
        except BaseException as error:
            self._error = self._as_spark_s(error)
        finally:
            self._done.set()

    def _as_spark_s(self, error: BaseException) -> BaseException:
        """Return an error as the one that ``StreamingQuery`` raises, with ours as its cause."""
        if not isinstance(error, Exception):
            return error
        failed: Exception = StreamingQueryException(
            f"[STREAM_FAILED] Query [id = {self.id}, runId = {self.runId}] terminated with "
            f"exception: {error}",
            errorClass="STREAM_FAILED",
            messageParameters={"id": self.id, "runId": self.runId, "message": str(error)},
        )
        failed.__cause__ = error
        return failed

    @property
    def isActive(self) -> bool:
        """Whether it runs."""
        return not self._done.is_set()

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until it has ended, at most ``timeout`` seconds; return whether it has.

        Raises:
            StreamingQueryException: what it has failed for. Its cause is an error of Headrace.
        """
        ended = self._done.wait(timeout)
        if self._done.is_set() and self._error is not None:
            raise self._error
        return None if timeout is None else ended

    def processAllAvailable(self) -> None:
        """Wait until all input that is there now has been processed and has left. Then it ends.

        Unlike Spark's, the query does not go on after it: start it again for that.
        """
        with contextlib.suppress(HeadraceError):  # awaitTermination() raises it, as Spark does
            self.job.catch_up()
        self.awaitTermination()

    def exception(self) -> BaseException | None:
        """Return what it has failed for, or None."""
        return self._error if self._done.is_set() else None

    def stop(self) -> None:
        """Stop after the running step. Its results have been committed, and leave."""
        try:
            self.job.stop()
        except HeadraceError as error:
            self._error = self._error or self._as_spark_s(error)
        self._done.wait()

    def explain(self, extended: bool = False) -> None:
        """Print what runs. ``extended`` changes nothing here."""
        print(self.job.pipeline.describe())

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """A report for each of the newest steps of this run, at most 100.

        What Headrace does not count in each step is None, such as ``numRowsTotal`` of the state;
        ``headrace status`` shows what is known. ``sources`` is empty.
        """
        return self._progress.recent

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """The report of the newest step of this run; None before the first."""
        recent = self._progress.recent
        return recent[-1] if recent else None

    @property
    def status(self) -> dict[str, Any]:
        """What it does now: ``message``, ``isDataAvailable`` and ``isTriggerActive``."""
        works = self.isActive and not self.job.waiting
        return {"message": self._message(), "isDataAvailable": works, "isTriggerActive": works}

    def _message(self) -> str:
        if not self.isActive:
            return "Stopped" if self._error is None else f"Terminated with exception: {self._error}"
        return "Waiting for data to arrive" if self.job.waiting else "Processing new data"
