"""PySpark's own doors: a ``StatefulProcessor`` runs unchanged, on Headrace.

``hr.spark.transform_with_state(grouped, processor, …)`` takes the place of
``grouped.transformWithState(processor, …)``. ``hr.spark("10s")`` is the watermark strategy of
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
    from headrace.spark.transform import Transformed

__all__ = ["stateful_processor", "transform_with_state", "transform_with_state_in_pandas"]


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
    from headrace.spark.transform import transform

    return transform(
        grouped,
        statefulProcessor,
        outputStructType,
        outputMode,
        timeMode,
        initialState,
        eventTimeColumnName,
        "row",
        pipeline=pipeline,
        name=name,
        checkpoint=checkpoint,
        watermark=watermark,
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
    from headrace.spark.transform import transform

    return transform(
        grouped,
        statefulProcessor,
        outputStructType,
        outputMode,
        timeMode,
        initialState,
        eventTimeColumnName,
        "pandas",
        pipeline=pipeline,
        name=name,
        checkpoint=checkpoint,
        watermark=watermark,
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
    from headrace.spark.transform import on_stream

    return on_stream(
        stream,
        keys,
        statefulProcessor,
        outputStructType,
        outputMode,
        timeMode,
        eventTimeColumnName,
        "pandas" if in_pandas else "row",
        name,
        on_error,
    )


class Door(types.ModuleType):
    """This module as ``hr.spark``. It can be called, too: ``hr.spark("10s")``."""

    stateful_processor = staticmethod(stateful_processor)
    transform_with_state = staticmethod(transform_with_state)
    transform_with_state_in_pandas = staticmethod(transform_with_state_in_pandas)

    def __call__(self, delay: DurationLike) -> LikeSpark:
        """Return the watermark strategy of Spark's ``withWatermark``.

        See :func:`headrace.eventtime.watermark.spark`.
        """
        return _strategy(delay)


sys.modules[__name__].__class__ = Door
