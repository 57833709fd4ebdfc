"""Hot keys: aggregates in two phases, so that one key's records are worked on in many places."""

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
    """First phase: what the step's records of (key, salt) come to. Keeps nothing."""

    deterministic = True

    def __init__(
        self, aggregates: Mapping[str, Aggregate], key: tuple[str, ...], place: str
    ) -> None:
        self._asked = aggregates
        self._key = key
        self._place = place

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        self._aggregation = Aggregation(self._asked, inputs, self._place)
        schema = inputs[0].values.schema
        fields = [pa.field(f"key{i}", schema.field(n).type, False) for i, n in enumerate(self._key)]
        columns = self._aggregation.columns
        fields += [pa.field(name, kind, nullable=False) for name, kind in columns.items()]
        return {"out": Output(pa.schema(fields))}

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        key = {f"key{i}": batch.keys.to_arrow()[i] for i in range(len(self._key))}
        ctx.produce("out", batch.keys, {**key, **self._aggregation.of_groups(batch)})


class _Whole(ColumnarComputation):
    """Second phase: what the parts of a key have come to so far."""

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
    pipeline: Pipeline, name: str, stream: Stream | Node, *, key: str | Sequence[str],
    parts: int = 16, spread: str | Sequence[str] = (), **aggregates: Aggregate,
) -> Node:  # fmt: skip
    """Draw running aggregates for keys so hot that one worker cannot keep up with one of them.

    The first computation, ``<name>-parts``, aggregates the records of a step by (key, salt), the
    salt being one of ``parts`` numbers made of the record; the second, ``<name>``, combines at most
    ``parts`` partial results a key and step. Use it when a few keys have a large part of all
    records; where records are spread evenly :class:`Running` does the same with one exchange less.

    Args:
        pipeline: where it is drawn.
        name: the computation's name.
        stream: what is aggregated.
        key: the column or columns that are the key.
        parts: into how many keys each is divided in the first phase.
        spread: columns that tell records of one event time apart (a user, an order), for streams
            with many records of a key at each time. Event time itself always counts.
        aggregates: the result's name → what is asked.

    Returns:
        The second computation, whose ``out`` is that of ``Running(**aggregates)``.

    Guarantees: the last production of a key equals that of :class:`Running` (sums of floats up to
    rounding).
    State: none in the first phase; a row for each key, for ever, in the second.

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
