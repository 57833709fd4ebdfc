"""Hot keys: aggregates in two phases, so that several workers share the records of one key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headrace.computation.batches import KeyedBatch
from headrace.computation.columnar import BatchContext, ColumnarComputation, TableState
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration, Output
from headrace.computation.table_handles import TableHandle
from headrace.ops.aggregates import Aggregate, Aggregation
from headrace.pipeline import Node, Pipeline, Salt, Stream


class _Parts(ColumnarComputation):
    """First phase: aggregates of the step's records for each (key, salt). It keeps no state."""

    deterministic = True

    def __init__(
        self, aggregates: Mapping[str, Aggregate], key: tuple[str, ...], place: str
    ) -> None:
        self._requested = aggregates
        self._key = key
        self._place = place

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        self._aggregation = Aggregation(self._requested, inputs, self._place)
        schema = inputs[0].values.schema
        fields = [pa.field(f"key{i}", schema.field(n).type, False) for i, n in enumerate(self._key)]
        columns = self._aggregation.columns
        fields += [pa.field(name, kind, nullable=False) for name, kind in columns.items()]
        return {"out": Output(pa.schema(fields))}

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        key = {f"key{i}": batch.keys.to_arrow()[i] for i in range(len(self._key))}
        ctx.produce("out", batch.keys, {**key, **self._aggregation.of_groups(batch)})


class _Whole(ColumnarComputation):
    """Second phase: aggregates of each key so far, combined from its parts."""

    deterministic = True

    totals: TableHandle

    def __init__(self, aggregation: Aggregation) -> None:
        self._aggregation = aggregation

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        return {
            "totals": TableState(self._aggregation.columns),
            "out": Output(pa.schema(self._aggregation.fields)),
        }

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        rows = self.totals.at(batch.keys)
        step = self._aggregation.combined(self._aggregation.read(batch), batch.starts)
        now = self._aggregation.merged(self._aggregation.read(rows), step)
        rows.upsert(**now)
        ctx.produce("out", batch.keys, self._aggregation.results(now))


def two_phase(
    pipeline: Pipeline,
    name: str,
    stream: Stream | Node,
    *,
    key: str | Sequence[str],
    parts: int = 16,
    spread: str | Sequence[str] = (),
    **aggregates: Aggregate,
) -> Node:
    """Add running aggregates for keys that are too hot for one worker.

    Use it if a few keys have a large part of all records. For evenly spread keys, :class:`Running`
    gives the same with one exchange less.

    The first computation, ``<name>-parts``, aggregates the records of a step by (key, salt). The
    salt is one of ``parts`` numbers, computed from the record. The second computation, ``<name>``,
    combines at most ``parts`` partial results for each key and step.

    Args:
        pipeline: the pipeline to which they are added.
        name: the computation's name.
        stream: the stream to be aggregated.
        key: the column or columns that are the key.
        parts: the number of keys into which each key is divided in the first phase.
        spread: columns that distinguish records of one event time, such as a user or an order. Use
            it for streams with many records of a key at each time. The event time itself always
            counts.
        aggregates: the aggregates, by the name of their result.

    Returns:
        The second computation. Its ``out`` is that of ``Running(**aggregates)``.

    Guarantees: the last production of a key equals that of :class:`Running`, sums of floats up to
    rounding.

    State: none in the first phase. In the second, a row for each key, which is never removed.

    Example::

        pages = hr.ops.two_phase(p, "pages", hits, key="page", visits=hr.ops.Count())

    Raises:
        PipelineError: for wrong columns or names.
    """
    columns = (key,) if isinstance(key, str) else tuple(key)
    salt = Salt(parts, (spread,) if isinstance(spread, str) else tuple(spread))
    place = f"ops.two_phase {name!r}"
    first = _Parts(aggregates, columns, place)
    node = pipeline.compute(f"{name}-parts", first, keys={stream: (*columns, salt)})
    aggregation = Aggregation(aggregates, node.inputs, place)
    found = tuple(f"key{number}" for number in range(len(columns)))
    return pipeline.compute(name, _Whole(aggregation), keys={node: found})
