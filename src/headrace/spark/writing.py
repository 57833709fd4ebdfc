"""``writeStream`` for the output of a processor: the parts of Spark's that make sense here."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import headrace.job
from headrace.errors import HeadraceError, PipelineError
from headrace.job import Job
from headrace.pipeline import Pipeline
from headrace.pipeline.sink import Sink
from headrace.sinks import Calls, Files
from headrace.spark.transform import Transformed

_FILES = ("json", "csv", "parquet")
_FORMATS = (*_FILES, "console", "memory", "noop")
_NAMELESS = "transformed"


class StreamWriter:
    """Writes the output of a processor, as ``DataStreamWriter`` does a DataFrame.

    ``checkpointLocation`` is where the state is. Formats are ``json``, ``csv``, ``parquet``,
    ``console``, ``memory`` and ``noop``; anything else goes through ``foreachBatch``.

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
        self._options[key] = value
        return self

    def options(self, **options: Any) -> StreamWriter:
        """Set options."""
        self._options.update(options)
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

        A step may come again after a crash, with the same number and rows.
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
        self._options.update(options)
        if path is not None:
            self._options["path"] = path
        location = self._options.get("checkpointLocation")
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
        pipeline.sink("out", stream, self._sink())
        job = headrace.job.run(pipeline, storage=f"{location}/state")
        ends = not self._of.is_streaming or bool({"availableNow", "once"} & {*self._trigger})
        return Query(job, self._name, ends=ends, drains=not self._of.is_streaming)

    def _pipeline_name(self) -> str:
        return self._name if self._name.isidentifier() else _NAMELESS

    def _sink(self) -> Sink:
        if self._function is not None:
            return Calls(self._of_frame(self._function))
        if self._format in _FILES:
            if "path" not in self._options:
                raise PipelineError("files need a path", remedy='say .start("out/")')
            kind = "jsonl" if self._format == "json" else self._format
            return Files(self._options["path"], format=kind)  # type: ignore[arg-type]
        if self._format == "memory":
            return Calls(_Memory(self._of, self._name))
        if self._format == "noop":
            return Calls(lambda step, rows: None)
        return Calls(self._of_frame(lambda frame, step: frame.show(truncate=False)))

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
        id: identifies the run.

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

    def __init__(self, job: Job, name: str, *, ends: bool, drains: bool) -> None:
        self.job, self.name, self.id = job, name or None, str(uuid.uuid4())
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
            self._error = error
        finally:
            self._done.set()

    @property
    def isActive(self) -> bool:
        """Whether it runs."""
        return not self._done.is_set()

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until it has ended, at most ``timeout`` seconds; return whether it has.

        Raises:
            HeadraceError: what it has failed for.
        """
        ended = self._done.wait(timeout)
        if self._error is not None:
            raise self._error
        return None if timeout is None else ended

    def processAllAvailable(self) -> None:
        """Wait until all input that is there now has been processed and has left. Then it ends.

        Unlike Spark's, the query does not go on after it: start it again for that.
        """
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
            self._error = self._error or error
        self._done.wait()

    @property
    def status(self) -> dict[str, Any]:
        """What it does now, in words and as facts."""
        active = self.isActive
        return {
            "message": self.job.describe() if active else "Stopped",
            "isDataAvailable": active,
            "isTriggerActive": active,
        }
