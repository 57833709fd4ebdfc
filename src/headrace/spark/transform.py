"""``transformWithState`` and its like on Headrace: stateful code of PySpark reads a grouped DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.functions import current_timestamp
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from headrace.errors import PipelineError
from headrace.eventtime.watermark import LikeSpark, Strategy
from headrace.pipeline import Node, Pipeline, Stream
from headrace.pipeline.nodes import OnError
from headrace.sources.spark_stream import SparkStream
from headrace.sources.spark_table import SparkTable
from headrace.spark.group_state import Function, FunctionComputation
from headrace.spark.keys import GroupingKey
from headrace.spark.processor import ProcessorComputation
from headrace.spark.rows_computation import Form, RowsComputation

if TYPE_CHECKING:
    from headrace.spark.writing import StreamWriter

#: Where Spark says in a schema that a column has a watermark, and how far records may be behind.
_DELAY = "spark.watermarkDelayMs"
_ARRIVED = "headrace_arrived"
#: A delay that no watermark outlasts: it stays at 1970, as Spark's does without a watermark.
_NEVER = LikeSpark(10**17)


class Grouped(NamedTuple):
    """A grouped DataFrame, as stateful code sees it.

    Attributes:
        key: its grouping columns.
        schemas: its schema, and that of initial state if there is any.
        zone: the session's time zone.
        is_batch: whether it is a table.
        has_watermark: whether a column has a watermark.
    """

    key: GroupingKey
    schemas: list[StructType]
    zone: str
    is_batch: bool
    has_watermark: bool


#: Makes the computation of what is known of its input.
CodeOf = Callable[[Grouped], RowsComputation]


class Transformed:
    """What a processor yields: a stream of a pipeline, which can be written as a DataFrame is.

    Attributes:
        schema: the schema of its rows.

    Example::

        words = spark.createDataFrame([("a",), ("b",), ("a",)], "word STRING")
        schema = "word STRING, count BIGINT"
        own = hr.Pipeline("words")
        counted = hr.spark.transform_with_state(
            words.groupBy("word"), Count(), schema, "Update", "None", pipeline=own
        )
        own.sink("counts", counted.stream, hr.sinks.Files("counts/"))
        with hr.run(own, storage="state/words", runner="inline") as job:
            job.drain()
    """

    def __init__(
        self,
        grouped: GroupedData,
        initial: GroupedData | None,
        watermark: Strategy | None,
        partition: str | Sequence[str] | None,
        code_of: CodeOf,
    ) -> None:
        self._frame, self._names = grouped_by(grouped)
        self._initial = None if initial is None else grouped_by(initial)
        self._watermark, self._partition = watermark, partition
        self._check_partition()
        inputs = [self._frame.schema]
        if self._initial is not None:
            inputs.append(self._initial[0].schema)
            self._check_initial(self._initial)
        self._key = GroupingKey(self._names, self._frame.schema)
        self._code = code_of(
            Grouped(
                self._key,
                inputs,
                self._frame.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC",
                not self._frame.isStreaming,
                watermark_of(self._frame)[0] is not None,
            )
        )
        self.schema: StructType = self._code.output_schema
        self._node: Node | None = None

    # -- a part of a pipeline -----------------------------------------------------------------

    def add_to(
        self, pipeline: Pipeline, name: str, *, checkpoint: str | None, trigger: Any = None
    ) -> Stream:
        """Add the DataFrame and the processor to a pipeline. Return the processor's output.

        Args:
            pipeline: the pipeline.
            name: the name of the computation. The input gets the same with ``_input`` behind it.
            checkpoint: where Spark keeps how far it has read a streaming DataFrame.
            trigger: arguments of ``DataStreamWriter.trigger`` for the reading query.

        Raises:
            PipelineError: if the pipeline has these names already, or ``checkpoint`` is missing.
        """
        source = self._source(checkpoint, trigger)
        watermark = self._strategy()
        keys = {pipeline.inject(f"{name}_input", source, watermark=watermark): self._key_columns}
        if self._initial is not None:
            frame, names = self._initial
            key = GroupingKey(names, frame.schema)
            table = SparkTable(frame)
            table.add(key)
            if isinstance(source, SparkStream):
                table.come_with(source)
            stream = pipeline.inject(f"{name}_initial", table)
            keys[stream] = tuple(field.name for field in key.fields)
        self._node = pipeline.compute(name, self._code, keys=keys)
        return self.stream

    @property
    def stream(self) -> Stream:
        """The output as a stream of the pipeline, for sinks and further computations.

        Raises:
            PipelineError: if it is in no pipeline yet.
        """
        if self._node is None:
            raise PipelineError(
                "the processor is in no pipeline yet",
                remedy="pass pipeline= and checkpoint= to transform_with_state(), or use writeStream",
            )
        return self._node.only_output()

    @property
    def writeStream(self) -> StreamWriter:
        """Writes the output as ``DataFrame.writeStream`` does; see :class:`.StreamWriter`."""
        from headrace.spark.writing import StreamWriter

        return StreamWriter(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(DataFrame, name):
            raise AttributeError(name)
        raise PipelineError(
            f"the output of stateful code has no {name}: it is no DataFrame, but a stream of "
            "a pipeline",
            remedy="use writeStream.foreachBatch(f), where f gets a DataFrame of each step; or pass "
            "pipeline= and go on from .stream; or read it with spark.readStream.format('headrace')",
        )

    @property
    def _key_columns(self) -> tuple[str, ...]:
        return tuple(field.name for field in self._key.fields)

    @property
    def session(self) -> Any:
        """The Spark session of the input."""
        return self._frame.sparkSession

    @property
    def is_streaming(self) -> bool:
        """Whether the input is a streaming DataFrame."""
        return bool(self._frame.isStreaming)

    def _strategy(self) -> Strategy:
        if not self._frame.isStreaming:
            return _NEVER
        if self._watermark is not None:
            return self._watermark
        _, delay_us = watermark_of(self._frame)
        return _NEVER if delay_us is None else LikeSpark(delay_us)

    def _source(self, checkpoint: str | None, trigger: Any) -> SparkStream | SparkTable:
        frame = self._frame
        if not frame.isStreaming:
            table = SparkTable(frame)
            table.add(self._key)
            return table
        column, _ = watermark_of(frame)
        if column is None:
            column = _ARRIVED
            frame = frame.withColumn(column, current_timestamp())
        if checkpoint is None:
            raise PipelineError(
                "a streaming DataFrame needs a checkpoint",
                remedy="pass checkpoint=, a directory where Spark keeps how far it has read",
            )
        source = SparkStream(
            frame,
            event_time=column,
            checkpoint=checkpoint,
            partition=self._partition,
            trigger=trigger,
        )
        source.add(self._key)
        return source

    def _check_partition(self) -> None:
        """Check that partitions, if there are any, make a difference.

        Raises:
            PipelineError: if they do not, since the watermark is Spark's, or there is none.
        """
        if self._partition is None:
            return
        if not self._frame.isStreaming:
            raise PipelineError(
                "partition= was given for a DataFrame that is no stream: it has no watermark",
                remedy="leave partition= out",
            )
        if self._watermark is None or isinstance(self._watermark, LikeSpark):
            raise PipelineError(
                "partition= was given with Spark's watermark, which goes by the newest record of all "
                "partitions",
                remedy='pass a watermark that knows partitions, such as watermark=hr.bounded_delay("10s"), '
                "or leave partition= out",
            )

    def _check_initial(self, initial: tuple[DataFrame, list[str]]) -> None:
        """Check that initial state has the key of the input.

        Raises:
            PipelineError: if it has another one.
        """
        frame, names = initial
        theirs = [frame.schema[name].dataType for name in names]
        ours = [self._frame.schema[name].dataType for name in self._names]
        if theirs != ours:
            raise PipelineError(
                f"initialState is grouped by {[t.simpleString() for t in theirs]}, and the input by "
                f"{[t.simpleString() for t in ours]}",
                remedy="group both by columns of the same types",
            )
        if frame.isStreaming:
            raise PipelineError(
                "initialState is a streaming DataFrame", remedy="give one that is no stream"
            )


def grouped_by(grouped: GroupedData) -> tuple[DataFrame, list[str]]:
    """Return the DataFrame that is grouped, and the names of the columns by which it is.

    Raises:
        PipelineError: if it is not grouped, or grouped by nothing, or by an expression.
    """
    if not isinstance(grouped, GroupedData):
        raise PipelineError(
            f"a {type(grouped).__name__} was given, and not what groupBy() returns",
            remedy='group it by the columns of the key: df.groupBy("user")',
        )
    frame: DataFrame = grouped._df
    names = grouped.count().columns[:-1]
    if not names:
        raise PipelineError(
            "the DataFrame is grouped by nothing", remedy='name columns: df.groupBy("user")'
        )
    strange = [name for name in names if name not in frame.columns]
    if strange:
        raise PipelineError(
            f"the DataFrame is grouped by {strange[0]!r}, which is none of its columns",
            remedy="make a column of it with withColumn(), and group by that",
        )
    return frame, names


def watermark_of(frame: DataFrame) -> tuple[str | None, int | None]:
    """Return the column with a watermark, and its delay in microseconds; None without one."""
    found: list[tuple[str, int]] = [
        (field.name, int(field.metadata[_DELAY]) * 1_000)
        for field in frame.schema.fields
        if _DELAY in (field.metadata or {})
    ]
    if len(found) > 1:
        raise PipelineError(
            f"several columns have a watermark: {', '.join(name for name, _ in found)}",
            remedy="call withWatermark() for one of them",
        )
    return found[0] if found else (None, None)


def processor_code(
    processor: StatefulProcessor,
    output: StructType | str,
    output_mode: str,
    time_mode: str,
    event_time_column: str,
    form: Form,
) -> CodeOf:
    """Return what makes a computation of a processor.

    Raises:
        PipelineError: if it is no processor.
    """
    if not isinstance(processor, StatefulProcessor):
        raise PipelineError(
            f"{processor!r} is no StatefulProcessor",
            remedy="subclass pyspark.sql.streaming.StatefulProcessor, and pass an object",
        )

    def code_of(of: Grouped) -> RowsComputation:
        return ProcessorComputation(
            processor,
            output,
            time_mode,
            output_mode,
            form,
            of.key,
            of.schemas,
            event_time_column=event_time_column,
            zone=of.zone,
            is_batch=of.is_batch,
        )

    return code_of


def function_code(
    function: Function,
    output: StructType | str,
    state: StructType | str,
    output_mode: str,
    timeout: str,
) -> CodeOf:
    """Return what makes a computation of a function of ``applyInPandasWithState``.

    Raises:
        PipelineError: if it is no function.
    """
    if not callable(function):
        raise PipelineError(
            f"{function!r} is no function", remedy="pass a function of key, DataFrames and state"
        )

    def code_of(of: Grouped) -> RowsComputation:
        if of.is_batch:
            raise PipelineError(
                "applyInPandasWithState needs a streaming DataFrame, in Spark as well",
                remedy="make it with spark.readStream; for a table use applyInPandas",
            )
        return FunctionComputation(
            function,
            output,
            state,
            output_mode,
            timeout,
            of.key,
            of.schemas[0],
            zone=of.zone,
            has_watermark=of.has_watermark,
        )

    return code_of


def transform(
    grouped: GroupedData,
    code_of: CodeOf,
    initial: GroupedData | None,
    *,
    pipeline: Pipeline | None,
    name: str,
    checkpoint: str | None,
    watermark: Strategy | None,
    partition: str | Sequence[str] | None,
) -> Transformed:
    """Return what stateful code yields for a grouped DataFrame."""
    made = Transformed(grouped, initial, watermark, partition, code_of)
    if pipeline is not None:
        made.add_to(pipeline, name, checkpoint=checkpoint)
    return made


def on_stream(
    stream: Stream | Node,
    keys: str | Sequence[str],
    name: str,
    on_error: OnError,
    code_of: CodeOf,
) -> Node:
    """Add stateful code of PySpark that reads a stream of a pipeline."""
    of = stream.only_output() if isinstance(stream, Node) else stream
    schema = from_arrow_schema(of.values.schema)
    names = [keys] if isinstance(keys, str) else list(keys)
    key = GroupingKey(names, schema, as_it_is=True)
    code = code_of(Grouped(key, [schema], "UTC", is_batch=False, has_watermark=True))
    pipeline: Any = of.pipeline
    node: Node = pipeline.compute(name, code, keys={of: tuple(names)}, on_error=on_error)
    return node
