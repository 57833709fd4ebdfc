"""PySpark's own doors: its stateful code runs unchanged, on Headrace.

``hr.spark.transform_with_state(grouped, processor, …)`` takes the place of
``grouped.transformWithState(processor, …)``, and ``apply_in_pandas_with_state`` that of
``applyInPandasWithState``. ``hr.spark("10s")`` is the watermark strategy of
Spark's ``withWatermark``; see :func:`headrace.eventtime.watermark.spark`.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.eventtime.durations import DurationLike
from headrace.eventtime.watermark import LikeSpark, Strategy
from headrace.eventtime.watermark import spark as _strategy

if TYPE_CHECKING:
    from pyspark.sql import GroupedData
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType

    from headrace.pipeline import Node, Pipeline, Stream
    from headrace.pipeline.nodes import OnError
    from headrace.spark.group_state import Function
    from headrace.spark.rows_computation import Form
    from headrace.spark.transform import Transformed

__all__ = [
    "apply_in_pandas_with_state",
    "stateful_function",
    "stateful_processor",
    "transform_with_state",
    "transform_with_state_in_pandas",
]


def transform_with_state(
    grouped: GroupedData,
    statefulProcessor: StatefulProcessor,
    outputStructType: StructType | str,
    outputMode: str,
    timeMode: str,
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
    *,
    pipeline: Pipeline | None = None,
    name: str = "transformed",
    checkpoint: str | None = None,
    watermark: Strategy | None = None,
    partition: str | Sequence[str] | None = None,
) -> Transformed:
    """Let a ``StatefulProcessor`` read a grouped DataFrame, as ``transformWithState`` does.

    Args:
        grouped: what ``df.groupBy(…)`` returned. Columns with ``withWatermark`` have a watermark.
        statefulProcessor: an object of your class, unchanged. It gets and yields ``Row``.
        outputStructType: the schema of the rows that it yields, as a struct or DDL.
        outputMode: ``Append``, ``Update`` or ``Complete``.
        timeMode: ``None``, ``ProcessingTime`` or ``EventTime``.
        initialState: a grouped DataFrame, no stream, from which ``handleInitialState`` begins.
        eventTimeColumnName: the column of the output that holds its event time.
        pipeline: the pipeline to which it is added. By default it gets one of its own when it is
            written.
        name: the name of the computation in that pipeline.
        checkpoint: with ``pipeline``, where Spark keeps how far it has read the DataFrame.
        watermark: another watermark strategy, such as ``hr.bounded_delay("10s")``, in which timers
            fire a step earlier. By default ``hr.spark(delay)``, so that results are Spark's.
        partition: the column, or columns, that name a row's partition, such as
            ``("topic", "partition")`` for Kafka. Needs ``watermark``: it then waits for each
            partition. Spark's goes by the newest row of all.

    Returns:
        An object with ``stream``, for a pipeline, and ``writeStream``, as a DataFrame has it.

    Guarantees: state, timers and rows of a step are committed together, once. Results are Spark's,
        batch by batch, but for what ``docs/reference/transform-with-state.md`` lists.

    Example::

        words = spark.createDataFrame([("a",), ("b",), ("a",)], "word STRING")
        counted = hr.spark.transform_with_state(
            words.groupBy("word"), Count(), "word STRING, count BIGINT", "Update", "None"
        )
        assert counted.schema.names == ["word", "count"]

    Raises:
        PipelineError: for arguments that cannot be, and schemas that state cannot have.
    """
    from headrace.spark.transform import processor_code, transform

    return transform(
        grouped,
        processor_code(
            statefulProcessor, outputStructType, outputMode, timeMode, eventTimeColumnName, "row"
        ),
        initialState,
        pipeline=pipeline,
        name=name,
        checkpoint=checkpoint,
        watermark=watermark,
        partition=partition,
    )


def transform_with_state_in_pandas(
    grouped: GroupedData,
    statefulProcessor: StatefulProcessor,
    outputStructType: StructType | str,
    outputMode: str,
    timeMode: str,
    initialState: GroupedData | None = None,
    eventTimeColumnName: str = "",
    *,
    pipeline: Pipeline | None = None,
    name: str = "transformed",
    checkpoint: str | None = None,
    watermark: Strategy | None = None,
    partition: str | Sequence[str] | None = None,
) -> Transformed:
    """Let a ``StatefulProcessor`` read DataFrames of pandas, as ``transformWithStateInPandas`` does.

    All else is as in :func:`transform_with_state`. A DataFrame for each key costs some 50 µs, so the
    form with rows is faster where keys have few rows each.

    Example::

        words = spark.createDataFrame([("a",), ("b",), ("a",)], "word STRING")
        counted = hr.spark.transform_with_state_in_pandas(
            words.groupBy("word"), CountFrames(), "word STRING, count BIGINT", "Update", "None"
        )
        assert counted.schema.names == ["word", "count"]

    Raises:
        PipelineError: for arguments that cannot be, and schemas that state cannot have.
    """
    from headrace.spark.transform import processor_code, transform

    return transform(
        grouped,
        processor_code(
            statefulProcessor, outputStructType, outputMode, timeMode, eventTimeColumnName, "pandas"
        ),
        initialState,
        pipeline=pipeline,
        name=name,
        checkpoint=checkpoint,
        watermark=watermark,
        partition=partition,
    )


def stateful_processor(
    stream: Stream | Node,
    keys: str | Sequence[str],
    statefulProcessor: StatefulProcessor,
    outputStructType: StructType | str,
    outputMode: str,
    timeMode: str,
    eventTimeColumnName: str = "",
    *,
    name: str,
    in_pandas: bool = False,
    on_error: OnError = "stop",
) -> Node:
    """Let a ``StatefulProcessor`` read a stream of a pipeline, from any source, without Spark's JVM.

    So it can be tested: on the inline runner, or with :func:`headrace.testing.drive`.

    Args:
        stream: the stream. Its records become rows, with the columns that they have.
        keys: the column that is the key, or several.
        statefulProcessor, outputStructType, outputMode, timeMode, eventTimeColumnName: as in
            :func:`transform_with_state`.
        name: the name of the computation.
        in_pandas: whether the processor gets and yields DataFrames of pandas.
        on_error: what happens if a handler raises: see :meth:`headrace.Pipeline.compute`. All that
            the handler did for its key in this step is undone, and all rows of the key that it got
            are skipped, or become dead letters.

    Returns:
        The computation. Its only output has the rows that the processor yields.

    Example::

        counted = hr.spark.stateful_processor(
            hits, "page", Count(), "word STRING, count BIGINT", "Update", "None", name="counted"
        )
        p.sink("counts", counted, hr.sinks.Console())

    Raises:
        PipelineError: for arguments that cannot be, and schemas that state cannot have.
    """
    from headrace.spark.transform import on_stream, processor_code

    form: Form = "pandas" if in_pandas else "row"
    code = processor_code(
        statefulProcessor, outputStructType, outputMode, timeMode, eventTimeColumnName, form
    )
    return on_stream(stream, keys, name, on_error, code)


def apply_in_pandas_with_state(
    grouped: GroupedData,
    func: Function,
    outputStructType: StructType | str,
    stateStructType: StructType | str,
    outputMode: str,
    timeoutConf: str,
    *,
    pipeline: Pipeline | None = None,
    name: str = "applied",
    checkpoint: str | None = None,
    watermark: Strategy | None = None,
    partition: str | Sequence[str] | None = None,
) -> Transformed:
    """Let a function read a grouped streaming DataFrame, as ``applyInPandasWithState`` does.

    Args:
        grouped: what ``df.groupBy(…)`` returned. Columns with ``withWatermark`` have a watermark.
        func: your function of key, DataFrames of pandas and ``GroupState``, unchanged.
        outputStructType: the schema of the DataFrames that it yields, as a struct or DDL.
        stateStructType: the schema of a key's state.
        outputMode: ``Append`` or ``Update``.
        timeoutConf: ``NoTimeout``, ``ProcessingTimeTimeout`` or ``EventTimeTimeout``, from
            ``pyspark.sql.streaming.state.GroupStateTimeout``.
        pipeline, name, checkpoint, watermark, partition: as in :func:`transform_with_state`.

    Guarantees: as of :func:`transform_with_state`. ``GroupState`` is PySpark's own, and raises its
        errors.

    Example::

        import pandas as pd

        def count(key, frames, state):
            before = state.getOption or (0,)
            state.update((before[0] + sum(map(len, frames)),))
            yield pd.DataFrame({"word": [key[0]], "count": [state.get[0]]})

        logs = spark.readStream.schema("page STRING, at LONG").json("logs/").groupBy("page")
        schema = "word STRING, count BIGINT"
        counted = hr.spark.apply_in_pandas_with_state(
            logs, count, schema, "count BIGINT", "Update", "NoTimeout"
        )
        assert counted.schema.names == ["word", "count"]

    Raises:
        PipelineError: for arguments that cannot be, and schemas that state cannot have.
    """
    from headrace.spark.transform import function_code, transform

    code = function_code(func, outputStructType, stateStructType, outputMode, timeoutConf)
    return transform(
        grouped,
        code,
        None,
        pipeline=pipeline,
        name=name,
        checkpoint=checkpoint,
        watermark=watermark,
        partition=partition,
    )


def stateful_function(
    stream: Stream | Node,
    keys: str | Sequence[str],
    func: Function,
    outputStructType: StructType | str,
    stateStructType: StructType | str,
    outputMode: str,
    timeoutConf: str,
    *,
    name: str,
    on_error: OnError = "stop",
) -> Node:
    """Let a function of ``applyInPandasWithState`` read a stream of a pipeline, without Spark's JVM.

    Args:
        stream: the stream. Its records become rows, with the columns that they have.
        keys: the column that is the key, or several.
        func, outputStructType, stateStructType, outputMode, timeoutConf: as in
            :func:`apply_in_pandas_with_state`.
        name: the name of the computation.
        on_error: as in :func:`stateful_processor`.

    Returns:
        The computation. Its only output has the rows that the function yields.

    Example::

        import pandas as pd

        def count(key, frames, state):
            before = state.getOption or (0,)
            state.update((before[0] + sum(map(len, frames)),))
            yield pd.DataFrame({"word": [key[0]], "count": [state.get[0]]})

        counted = hr.spark.stateful_function(
            hits,
            "page",
            count,
            "word STRING, count BIGINT",
            "count BIGINT",
            "Update",
            "NoTimeout",
            name="counted",
        )
        p.sink("counts", counted, hr.sinks.Console())

    Raises:
        PipelineError: for arguments that cannot be, and schemas that state cannot have.
    """
    from headrace.spark.transform import function_code, on_stream

    code = function_code(func, outputStructType, stateStructType, outputMode, timeoutConf)
    return on_stream(stream, keys, name, on_error, code)


class Door(types.ModuleType):
    """This module as ``hr.spark``. It can be called, too: ``hr.spark("10s")``."""

    apply_in_pandas_with_state = staticmethod(apply_in_pandas_with_state)
    stateful_function = staticmethod(stateful_function)
    stateful_processor = staticmethod(stateful_processor)
    transform_with_state = staticmethod(transform_with_state)
    transform_with_state_in_pandas = staticmethod(transform_with_state_in_pandas)

    def __call__(self, delay: DurationLike) -> LikeSpark:
        """Return the watermark strategy of Spark's ``withWatermark``.

        See :func:`headrace.eventtime.watermark.spark`.
        """
        return _strategy(delay)


sys.modules[__name__].__class__ = Door
