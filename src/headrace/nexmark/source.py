"""NEXMark's events as a source of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.errors import PipelineError
from headrace.nexmark.events import columns_of, kind_of, read, schema_of
from headrace.nexmark.pace import Pace, there
from headrace.nexmark.timeline import Kind, Timeline, cut
from headrace.pipeline.source import InTasks, Limit, Offer, Part, Position, Source, Split
from headrace.schema import ValueType, value_type_of
from headrace.schema.reserved import TIMESTAMP_COLUMN

#: Assumed length of an event that comes from outside.
_EVENT_BYTES = 200
#: Another task must be worth at least this many events.
_WORTH_A_TASK = 20_000


class Events(Source):
    """A source of the events of one kind, in the order in which they arrive.

    Positions count events of all kinds. So injectors of people, auctions and bids with the same
    limits stay in step with each other. A step takes a range of the timeline, and from it the
    events of this kind.

    The source knows how far it is complete: give the injector ``watermark=hr.exact()``.

    Args:
        timeline: the parameters.
        kind: ``"person"``, ``"auction"``, ``"bid"``, or ``"event"`` for all of them, each in a
            struct.
        columns: the wanted columns; by default all. Other columns cost nothing.
        pace: when events are due; by default all at once.
        history: how many events there are before the clock starts. It starts once a step has read
            them.
        tasks: how many tasks read a step in parallel, at most.
    """

    source_kind = "NEXMark events"
    rereads = promises = True

    def __init__(
        self, timeline: Timeline, kind: str | Kind = Kind.EVENT, *,
        columns: Sequence[str] | None = None, pace: Pace | None = None, history: int = 0,
        tasks: int = 2,
    ) -> None:  # fmt: skip
        self.timeline, self.kind = timeline, kind_of(kind)
        self._columns = columns_of(self.kind, columns)
        self._pace = pace
        self._history = min(history, history if timeline.events is None else timeline.events)
        self._tasks = tasks
        self.bounded = pace is None

    def values(self) -> ValueType:
        schema = schema_of(self.kind)
        return value_type_of(pa.schema([schema.field(name) for name in self._columns]))

    def start(self) -> Position:
        return 0

    def now(self, position: Position) -> int:
        come = there(self.timeline, self._pace, self._history)
        if come is None:
            raise PipelineError(
                "nexmark: what is there now has no end", remedy="say how many events there are"
            )
        return come

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        filled = self._pace is None or position >= self._history
        come = there(self.timeline, self._pace, self._history) if filled else self._history
        if limit.until is not None:
            come = limit.until
        return self._offer(position, come, limit)

    def offer_until(self, position: Position, until: Position, limit: Limit) -> Offer | None:
        return self._offer(position, until, limit)

    def again(self) -> Source:
        return Events(self.timeline, self.kind, columns=self._columns, tasks=self._tasks)

    def _offer(self, position: int, until: int | None, limit: Limit) -> Offer | None:
        most = position + max(1, min(limit.rows, limit.bytes // _EVENT_BYTES))
        end = most if until is None else min(most, until)
        final = end == self.timeline.events and not limit.open_ended
        if end <= position and not final:
            return None
        part = Part(final, self.timeline.promise_us(end))
        rows = end - position
        return Offer(end, rows, rows * _EVENT_BYTES, final=final, empty=not rows, parts={"": part})

    def splits(self, start: Position, end: Position) -> list[Split]:
        tasks = min(self._tasks, max(1, (end - start) // _WORTH_A_TASK))
        return [
            Split([first, last], place=f"events {first} to {last - 1}")
            for first, last in cut(start, end, tasks)
        ]

    def read(self, split: Split) -> pa.Table:
        return _read(self.timeline, self.kind, self._columns, split)

    def for_tasks(self) -> Source:
        return _Made(self.values(), self.timeline, self.kind, self._columns)


class _Made(InTasks):
    """Makes the events of a split, inside a task."""

    def __init__(
        self, values: ValueType, timeline: Timeline, kind: Kind, columns: list[str]
    ) -> None:
        super().__init__(values)
        self._made_of = (timeline, kind, columns)

    def read(self, split: Split) -> pa.Table:
        return _read(*self._made_of, split)


def _read(timeline: Timeline, kind: Kind, columns: list[str], split: Split) -> pa.Table:
    first, last = split.spec
    timed = columns if "date_time" in columns else [*columns, "date_time"]
    tables = list(read(timeline, kind, first, last, timed))
    if not tables:
        fields = pa.schema([schema_of(kind).field(name) for name in timed])
        tables = [fields.empty_table()]
    table = pa.concat_tables(tables)
    times = table.column("date_time").cast(pa.int64())
    return table.select(columns).add_column(0, TIMESTAMP_COLUMN, times)
