"""Ranges of the timeline as Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import PipelineError
from headrace.nexmark.auctions import Auctions
from headrace.nexmark.bids import Bids
from headrace.nexmark.columns import TIME, EventColumns
from headrace.nexmark.people import People
from headrace.nexmark.timeline import ROUND, Kind, Timeline, blocks

#: Number of events made at once, such that their columns stay in the processor's cache.
BLOCK = ROUND * 1024
_KINDS: dict[Kind, type[EventColumns]] = {of.kind: of for of in (People, Auctions, Bids)}
_EVENT_TYPE = {Kind.PERSON: 0, Kind.AUCTION: 1, Kind.BID: 2}


def kind_of(name: str) -> Kind:
    """Return a kind of events by its name.

    Raises:
        PipelineError: when there is no such kind.
    """
    try:
        return Kind(name)
    except ValueError:
        known = ", ".join(Kind)
        raise PipelineError(
            f"nexmark: there are no events of kind {name!r}", remedy=f"there are: {known}"
        ) from None


def schema_of(kind: Kind) -> pa.Schema:
    """Return the columns of a kind.

    Events of all kinds have their number, their kind (0 a person, 1 an auction, 2 a bid) and their
    time. They also have a struct for each kind, which is null for the other kinds.
    """
    if kind != Kind.EVENT:
        return _KINDS[kind].schema
    return pa.schema(
        [
            pa.field("event", pa.int64(), nullable=False),
            pa.field("event_type", pa.int32(), nullable=False),
            pa.field("date_time", TIME, nullable=False),
            *(pa.field(one, pa.struct(list(_own(one)))) for one in _KINDS),
        ]
    )


def columns_of(kind: Kind, chosen: Sequence[str] | None) -> list[str]:
    """Return the names of the chosen columns of a kind; by default of all.

    Raises:
        PipelineError: when there is no such column.
    """
    known = schema_of(kind).names
    for name in chosen or []:
        if name not in known:
            raise PipelineError(
                f"nexmark: a {kind} has no column {name!r}",
                remedy=f"its columns are: {', '.join(known)}",
            )
    return list(known if chosen is None else chosen)


def read(
    timeline: Timeline, kind: Kind, first: int, last: int, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield, in parts, the events of a kind that arrive from ``first`` to before ``last``.

    Positions count events of all kinds. Cost: only the wanted columns are made. Events of other
    kinds cost nothing, unless events arrive out of order.
    """
    most = -(-BLOCK // timeline.disorder) * timeline.disorder
    for begin, end in blocks(first, last, most):
        yield _block(timeline, kind, begin, end, columns)


def _block(
    timeline: Timeline, kind: Kind, first: int, last: int, columns: Sequence[str]
) -> pa.Table:
    low, high = timeline.covering(first, last)
    if kind == Kind.EVENT:
        table = _all_kinds(timeline, low, high, columns)
        numbers = np.arange(low, high)
    else:
        some = _some(timeline, kind, low, high)
        table, numbers = some.table(columns), some.numbers
    if timeline.disorder == 1:
        return table
    places = np.full(high - low, -1)
    places[numbers - low] = np.arange(len(numbers))
    arrived = places[timeline.arrivals(first, last) - low]
    return table.take(pa.array(arrived[arrived >= 0]))


def _some(timeline: Timeline, kind: Kind, low: int, high: int) -> EventColumns:
    return _KINDS[kind](timeline, timeline.before(kind, low), timeline.before(kind, high))


def _own(kind: Kind) -> pa.Schema:
    """Return the columns that only events of this kind have."""
    schema = _KINDS[kind].schema
    return pa.schema([field for field in schema if field.name not in ("event", "date_time")])


def _all_kinds(timeline: Timeline, low: int, high: int, columns: Sequence[str]) -> pa.Table:
    """Return events of all kinds, in the order of their numbers."""
    some = [_some(timeline, kind, low, high) for kind in _KINDS]
    numbers = np.concatenate([one.numbers for one in some])
    table = pa.concat_tables(_as_event(one, columns) for one in some)
    return table.take(pa.array(np.argsort(numbers)))


def _as_event(some: EventColumns, columns: Sequence[str]) -> pa.Table:
    """Return events of one kind with the columns of ``Kind.EVENT``."""
    many = len(some.numbers)
    made: dict[str, Callable[[], Any]] = {
        "event": lambda: some.numbers,
        "event_type": lambda: np.full(many, _EVENT_TYPE[some.kind], np.int32),
        "date_time": some.make_date_time,
        some.kind: lambda: _struct(some),
    }
    fields = [schema_of(Kind.EVENT).field(name) for name in columns]
    arrays = [made[f.name]() if f.name in made else pa.nulls(many, f.type) for f in fields]
    return pa.table(arrays, schema=pa.schema(fields))


def _struct(some: EventColumns) -> pa.Array:
    own = _own(some.kind)
    columns = some.table(own.names).columns
    return pa.StructArray.from_arrays([one.combine_chunks() for one in columns], fields=list(own))
