"""Hot keys: aggregates in two phases, so that several workers share the records of one key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headrace.computation.batches import KeyedBatch
from headrace.computation.columnar import BatchContext, ColumnarComputation, TableState
from headrace.computation.computation import InputStream, Late
from headrace.computation.declarations import Declaration, Output
from headrace.computation.table_handles import TableHandle
from headrace.errors import PipelineError
from headrace.eventtime.durations import DurationLike
from headrace.ops.aggregates import Aggregate, Aggregation, Partial
from headrace.ops.windows import WINDOW, Sliding
from headrace.pipeline import Node, Pipeline, Salt, Stream
from headrace.pipeline.nodes import OnError


class _Parts(ColumnarComputation):
    """First phase: aggregates of the step's records for each (key, salt). It keeps no state."""

    deterministic = True

    def __init__(
        self, aggregates: Mapping[str, Aggregate], key: tuple[str, ...], place: str
    ) -> None:
        self._requested = aggregates
        self._key = key
        self._place = place

    def _reserved(self) -> tuple[str, ...]:
        """Return the names that the second phase produces beside the aggregates."""
        return ()

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        self._aggregation = Aggregation(self._requested, inputs, self._place, self._reserved())
        schema = inputs[0].values.schema
        fields = [pa.field(f"key{i}", schema.field(n).type, False) for i, n in enumerate(self._key)]
        columns = self._aggregation.columns
        fields += [pa.field(name, kind, nullable=False) for name, kind in columns.items()]
        return {"out": Output(pa.schema(fields))}

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        self._produce(ctx, batch)

    def _produce(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        """Produce a partial result for each group of a batch, at the latest time of its records."""
        key = {f"key{i}": batch.keys.to_arrow()[i] for i in range(len(self._key))}
        ctx.produce("out", batch.keys, {**key, **self._aggregation.of_groups(batch)})


class _PaneParts(_Parts):
    """First phase with windows: aggregates for each (key, salt, pane).

    The latest time of a pane's records lies in the pane. So the second phase knows the pane by it.
    """

    default_late = "process"  # lateness is that of windows
    judges_late = True

    def __init__(
        self,
        aggregates: Mapping[str, Aggregate],
        key: tuple[str, ...],
        place: str,
        windows: Sliding,
    ) -> None:
        super().__init__(aggregates, key, place)
        self._windows = windows

    def _reserved(self) -> tuple[str, ...]:
        return WINDOW

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        on_time = self._windows.on_time(ctx, batch)
        if on_time is not None:
            self._produce(ctx, self._windows.in_panes(on_time))


class _Whole(ColumnarComputation):
    """Second phase: aggregates of each key so far, combined from its parts."""

    deterministic = True

    default_late = "process"  # the first phase has judged
    judges_late = True

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


class _WholeWindows(Sliding):
    """Second phase with windows: panes are combined from their parts."""

    def __init__(
        self,
        aggregation: Aggregation,
        size: DurationLike,
        every: DurationLike,
        *,
        offset: DurationLike,
        allowed_lateness: DurationLike,
    ) -> None:
        super().__init__(size, every, offset=offset, allowed_lateness=allowed_lateness)
        self._given = aggregation

    def _aggregation_of(self, inputs: Sequence[InputStream]) -> Aggregation:
        return self._given

    def _partial_of(self, panes: KeyedBatch) -> Partial:
        return self._aggregation.combined(self._aggregation.read(panes), panes.starts)


def two_phase(
    pipeline: Pipeline,
    name: str,
    stream: Stream | Node,
    *,
    key: str | Sequence[str],
    parts: int = 16,
    spread: str | Sequence[str] = (),
    size: DurationLike | None = None,
    every: DurationLike | None = None,
    offset: DurationLike = "0s",
    allowed_lateness: DurationLike = "0s",
    late: Late | None = None,
    on_error: OnError = "stop",
    group: str | None = None,
    **aggregates: Aggregate,
) -> Node:
    """Add aggregates for keys that are too hot for one worker: so far, or in windows.

    Use it if a few keys have a large part of all records. For evenly spread keys, :class:`Running`
    and :class:`Sliding` give the same with one exchange less.

    The first computation, ``<name>-parts``, aggregates the records of a step by (key, salt), and
    with windows by pane. The salt is one of ``parts`` numbers, computed from the record. The second
    computation, ``<name>``, combines at most ``parts`` partial results for each key (and pane) and
    step.

    Args:
        pipeline: the pipeline to which they are added.
        name: the computation's name.
        stream: the stream to be aggregated.
        key: the column or columns that are the key.
        parts: the number of keys into which each key is divided in the first phase.
        spread: columns that distinguish records of one event time, such as a user or an order. Use
            it for streams with many records of a key at each time. The event time itself always
            counts.
        size: the length of windows; None for aggregates of all records so far.
        every: the distance between the starts of windows, as for :class:`Sliding`; by default
            ``size``, as for :class:`Tumbling`.
        offset: the start of one of the windows, counted from 1970 UTC.
        allowed_lateness: how late records may be: that of the windows, as for :class:`Sliding`; or
            without windows, that of ``compute``.
        late: what happens to records behind the watermark, as for ``compute``. By default
            windows decide for themselves. With ``"side"``, late records are on the stream ``late``
            of ``<name>-parts``: ``p.nodes["<name>-parts"]["late"]``.
        on_error: what happens if a handler raises, in both phases, as for ``compute``.
        group: the group with which the state of both moves, as for ``compute``.
        aggregates: the aggregates, by the name of their result.

    Returns:
        The second computation. Its ``out`` is that of ``Running(**aggregates)``, or of ``Sliding``.

    Guarantees: the last production of a key equals that of :class:`Running`, and those of windows
    equal those of :class:`Sliding`; sums of floats up to rounding, and of ``First``, ``Last`` and
    ``Collect`` up to the order of records at equal times.

    State: none in the first phase. In the second, a row for each key, which is never removed, or
    what :class:`Sliding` keeps.

    Example::

        pages = hr.ops.two_phase(p, "pages", hits, key="page", visits=hr.ops.Count())
        hot = hr.ops.two_phase(p, "hot", hits, key="page", size="1m", visits=hr.ops.Count())

    Raises:
        PipelineError: for wrong columns, names or durations.
    """
    columns = (key,) if isinstance(key, str) else tuple(key)
    salt = Salt(parts, (spread,) if isinstance(spread, str) else tuple(spread))
    place = f"ops.two_phase {name!r}"
    if size is None and (every is not None or offset != "0s"):
        raise PipelineError(
            "every= and offset= are for windows, and there is no size=",
            place=place,
            remedy='give size="1m", or leave them out',
        )
    found = tuple(f"key{number}" for number in range(len(columns)))
    if size is None:
        first = _Parts(aggregates, columns, place)
        node = pipeline.compute(
            f"{name}-parts",
            first,
            keys={stream: (*columns, salt)},
            late=late,
            allowed_lateness=allowed_lateness,
            on_error=on_error,
            group=group,
        )
        whole = _Whole(Aggregation(aggregates, node.inputs, place))
        return pipeline.compute(name, whole, keys={node: found}, on_error=on_error, group=group)
    step = size if every is None else every
    windows = Sliding(size, step, offset=offset, allowed_lateness=allowed_lateness)
    node = pipeline.compute(
        f"{name}-parts",
        _PaneParts(aggregates, columns, place, windows),
        keys={stream: (*columns, salt)},
        late=late,
        on_error=on_error,
        group=group,
    )
    aggregation = Aggregation(aggregates, node.inputs, place, WINDOW)
    return pipeline.compute(
        name,
        _WholeWindows(aggregation, size, step, offset=offset, allowed_lateness=allowed_lateness),
        keys={node: found},
        on_error=on_error,
        group=group,
    )
