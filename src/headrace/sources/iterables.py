"""A source of Python objects, from any iterable that can be created again."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Iterable as AnyIterable
from datetime import date, datetime
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import BadInput, Damaged, PipelineError, SourceChanged
from headrace.errors.user_code import goes_on, shown, words_of
from headrace.eventtime.timestamps import checked_micros
from headrace.pipeline.sifting import (
    BadRecord,
    Sifted,
    by_halves,
    reason_of,
    text_of,
    together,
    with_times_in_range,
)
from headrace.pipeline.source import InTasks, Limit, Offer, Part, Position, Source, Split
from headrace.schema import NotExact, ValueType, value_type_of
from headrace.schema.declared import type_name
from headrace.schema.forms import shortened
from headrace.schema.memory import memory_of
from headrace.schema.numbers import plain_number
from headrace.schema.reserved import PARTITION_COLUMN, TIMESTAMP_COLUMN
from headrace.storage.base import Store
from headrace.storage.bounds import MOST_COUNTED

_encode = msgspec.msgpack.Encoder().encode
#: Items are taken from an iterator in groups of about this many bytes, and so many items at most.
_TOGETHER = 64 << 10
_MOST_AT_ONCE = 1_024


class ItemSizes:
    """Says how many bytes records have as they travel.

    Args:
        columns: their columns.
    """

    def __init__(self, columns: pa.Schema) -> None:
        fixed = [field.type for field in columns if pa.types.is_primitive(field.type)]
        texts = [field.name for field in columns if _is_text(field.type)]
        self._fixed = 8 + sum(-(-int(kind.bit_width) // 8) for kind in fixed)
        self._texts = [attrgetter(name) for name in texts]
        self._is_flat = len(fixed) + len(texts) == len(columns)

    def of(self, items: list[Any]) -> int:
        """Return about how many bytes some records have."""
        if self._is_flat:
            try:
                return self._fixed * len(items) + sum(
                    _length_of(list(map(get, items))) for get in self._texts
                )
            except (AttributeError, TypeError):  # of scalars, or with values that are missing
                pass
        try:
            return len(_encode(items))
        except (TypeError, ValueError, OverflowError, RecursionError):  # of the user's own types
            return sum(map(memory_of, items))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _length_of(values: list[Any]) -> int:
    if values and type(values[0]) is str and not all(map(str.isascii, values)):
        return sum(len(text.encode(errors="replace")) for text in values)
    return sum(map(len, values))


class Iterable(Source):
    """Records from a list, or from a function that returns an iterable.

    Args:
        items: a list or tuple, or a function without arguments that returns an iterable. Each call
            must give the same items in the same order, because a restart iterates from the
            beginning and skips what was committed. Between runs, items may be appended.
        type: the type of the items (struct, dataclass or scalar).
        event_time: the name of the field that holds the event time (an aware ``datetime``, or an
            integer of microseconds since 1970 UTC), or a function of the item.
        partition: the partition of an item: the name of a field, or a function of the item. Its
            value is a string, an integer, a boolean or a date. By default all items are in one
            partition.

    The partitions of a list are known from the start: each holds the watermark until its last item
    has been read. The partitions of a function's items become known as the items arrive; name those
    that are still to come in ``expect=``. Items are read in order, so ``skew_limit=`` cannot be
    combined with ``partition=``.

    A step takes as many items as its limit allows, and blocks while a slow iterable produces them.
    The input ends with the last item. A run that only catches up has no "now" for a function whose
    items never end.

    Cost: items are read in the driver, one at a time.

    Example::

        made = [Hit("/home", "ann", 12, at=0), Hit("/about", "bob", 7, at=1_000_000)]
        p.inject("made", hr.sources.Iterable(made, Hit, event_time="at"))
    """

    source_kind = "an iterable"
    bounded = True
    rereads = sifts = True

    def __init__(
        self,
        items: AnyIterable[Any] | Callable[[], AnyIterable[Any]],
        type: Any,
        *,
        event_time: str | Callable[[Any], Any],
        partition: str | Callable[[Any], Any] | None = None,
    ) -> None:
        if callable(items):
            self._make: Callable[[], AnyIterable[Any]] = items
        elif isinstance(items, list | tuple):
            self._make = lambda: items
        else:
            raise PipelineError(
                "an iterator can be read only once, and a restart must read it again",
                remedy="pass a list, or a function that returns the iterable",
            )
        self._values = value_type_of(type)
        self._event_time = event_time
        self._partition = partition
        self.partitioned = partition is not None
        self._list = items if isinstance(items, list | tuple) else None
        self._lasts: dict[str, int] = {}  # position after the last item of each partition of a list
        self._named = 0  # number of a list's items whose partitions are in _lasts
        if isinstance(partition, str) and partition not in self._values.schema.names:
            raise PipelineError(
                f"the items have no field {partition!r} to name partitions",
                remedy=f"their fields are: {', '.join(self._values.schema.names)}",
            )
        self._iterator: Iterator[Any] | None = None
        self._is_over = False  # whether the iterator has no more items
        self._at_once = 1  # how many items are taken from it together
        self._sizes = ItemSizes(self._values.schema)
        self._read = 0  # number of items taken from the iterator
        self._window: list[Any] = []  # items from _window_start on; they may be requested again
        self._ends = np.zeros(1)  # the bytes of the window's items, added up
        self._window_start = 0

    def read_by(self) -> Any:
        return self._event_time, self._partition

    def values(self) -> ValueType:
        return self._values

    def start(self) -> Position:
        return 0

    def open(self, store: Store) -> None:
        self._iterator, self._window = None, []  # there may be more items than in the previous run
        self._read, self._window_start, self._ends = 0, 0, np.zeros(1)
        self._is_over = False

    def now(self, position: Position) -> Any:
        items = self._make()
        return len(items) if isinstance(items, list | tuple) else None

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        self._seek(position)
        most = position + limit.rows
        if limit.until is not None:
            most = max(position, min(most, limit.until))
        self._read_to(most, most_bytes=self._bytes_before(position) + limit.bytes)
        end = max(position, min(self._read, most, self._last_within(position, limit.bytes)))
        is_all = self._is_over or (limit.until is not None and end >= limit.until)
        final = is_all and end == self._read and end < position + limit.rows
        rows = end - position
        parts = self._parts(end, goes_on=limit.open_ended)
        size = self._bytes_before(end) - self._bytes_before(position)
        return Offer(end, rows, size, final=final, empty=rows == 0, parts=parts)

    def _bytes_before(self, position: int) -> int:
        """Return the bytes of the window's items up to a position."""
        return int(self._ends[min(position - self._window_start, len(self._ends) - 1)])

    def _last_within(self, position: int, most: int) -> int:
        """Return up to where items have no more than some bytes together; at least one item."""
        room = self._bytes_before(position) + most
        return max(
            position + 1,
            self._window_start + int(np.searchsorted(self._ends, room, side="right")) - 1,
        )

    def _parts(self, end: int, *, goes_on: bool) -> dict[str, Part]:
        """Return what is known of the partitions after ``end`` items."""
        if self._list is None or self._partition is None:
            return {}
        for number, name in enumerate(self._names(self._list[self._named :], self._named)):
            self._lasts[name] = self._named + number + 1
        self._named = len(self._list)
        return {name: Part(final=last <= end and not goes_on) for name, last in self._lasts.items()}

    def _read_to(self, end: int, *, most_bytes: int | None = None) -> None:
        """Take items from the iterator up to a position, to its last item, or to a size.

        Args:
            end: the position.
            most_bytes: stop when all of the window's items have this many bytes.
        """
        total = float(self._ends[-1])
        found = [self._ends]
        while self._read < end and (most_bytes is None or total < most_bytes):
            assert self._iterator is not None
            wanted = min(end - self._read, self._at_once)
            fresh = list(itertools.islice(self._iterator, wanted))
            self._window += fresh
            self._read += len(fresh)
            if fresh:
                found.append(total + np.cumsum(self._sizes_of(fresh)))
                total = float(found[-1][-1])
            if len(fresh) < wanted:
                self._is_over = True
                break
        self._ends = np.concatenate(found)

    def _sizes_of(self, items: list[Any]) -> npt.NDArray[np.float64]:
        """Return the sizes of items. Large ones are looked at one by one, small ones together."""
        total = self._sizes.of(items)
        each = total / len(items)
        self._at_once = int(min(_MOST_AT_ONCE, 2 * self._at_once, max(1, _TOGETHER / max(each, 1))))
        if total > 2 * _TOGETHER and len(items) > 1:
            return np.array([self._sizes.of([item]) for item in items], dtype=np.float64)
        return np.full(len(items), each)

    def again(self) -> Source:
        other = copy.copy(self)
        other._iterator, other._window, other._lasts = None, [], {}
        other._read = other._window_start = other._named = 0
        other._ends, other._is_over = np.zeros(1), False
        return other

    def offer_until(self, position: Position, until: Position, limit: Limit) -> Offer | None:
        offer = self.offer(position, limit)
        if offer is None or offer.end <= until:
            return offer
        if until <= position:
            return None
        size = self._bytes_before(until) - self._bytes_before(position)
        parts = self._parts(until, goes_on=limit.open_ended)
        return Offer(until, until - position, size, parts=parts)

    def _seek(self, position: int) -> None:
        if type(position) is not int or not 0 <= position <= MOST_COUNTED:
            raise Damaged(
                f"an iterable was not read up to where the manifests say: {position!r:.80}",
                remedy="restore the manifests from one copy of the storage",
            )
        if self._iterator is None or position < self._window_start:
            self._iterator = iter(self._make())
            skipped = sum(1 for _ in itertools.islice(self._iterator, position))
            if skipped < position:
                raise SourceChanged(
                    f"{position} items were read before, but now there are only {skipped}",
                    remedy="give the function that was given when the pipeline was started",
                )
            self._read = self._window_start = position
            self._window, self._ends, self._is_over = [], np.zeros(1), False

    def splits(self, start: Position, end: Position) -> list[Split]:
        items = self._items(start, end)
        return [self._split(start, end, self._table(items, start), [])]

    def _items(self, start: int, end: int) -> list[Any]:
        """Return the items of a division."""
        self._seek(start)
        self._read_to(end)  # an earlier driver may have offered it
        if end > self._read:
            raise SourceChanged(
                f"items up to {end} were read before, but now there are only {self._read}",
                remedy="give the function that was given when the pipeline was started",
            )
        return self._window[start - self._window_start : end - self._window_start]

    def splits_to_sift(self, start: Position, end: Position) -> list[Split]:
        items = self._items(start, end)
        try:
            return [self._split(start, end, self._table(items, start), [])]
        except BadInput as error:
            reason_of(error)  # raises the error again if it is not about one record
        found = by_halves(
            len(items),
            lambda first, last: with_times_in_range(self._table(items[first:last], start + first)),
        )
        bad = [
            BadRecord(f"item {start + row + 1}", text_of(items[row]), why) for row, why in found.bad
        ]
        return [self._split(start, end, together([table for _, _, table in found.good]), bad)]

    def _split(self, start: int, end: int, table: pa.Table | None, bad: list[BadRecord]) -> Split:
        whose = "" if self._partition is None else None
        place = f"items {start + 1} to {end}"
        return Split([start, end], _as_stream(table), place, whose, bad)

    def read(self, split: Split) -> pa.Table:
        return pa.ipc.open_stream(split.data).read_all()

    def sift(self, split: Split) -> Sifted:
        return _sift(split)

    def committed(self, position: Position) -> None:
        done = position - self._window_start
        if done > 0:
            del self._window[:done]
            known = min(done, len(self._ends) - 1)  # more, if another driver has read them
            self._ends = self._ends[known:] - self._ends[known]
            self._window_start = position

    def for_tasks(self) -> Source:
        return _Carried(self._values)

    def times_of(self, values: Sequence[Any]) -> list[int]:
        return self._times(values, 0)

    def _times(self, items: Sequence[Any], start: int) -> list[int]:
        times = []
        for number, item in enumerate(items):
            try:
                times.append(checked_micros(self._time_of(item)))
            except BaseException as error:
                if goes_on(error):
                    raise
                raise BadInput(
                    f"the event time of an item cannot be read: {words_of(error)}",
                    row=number,
                    place=f"item {start + number + 1}: {shown(item)}",
                    remedy="give an aware datetime, or microseconds since 1970 UTC as an integer",
                ) from error
        return times

    def _table(self, items: list[Any], start: int) -> pa.Table:
        times = self._times(items, start)
        try:
            columns = self._values.to_columns(items)
        except NotExact as error:
            raise BadInput(
                f"an item is not a {type_name(self._values.python_type)}: {error}",
                row=error.row,
                place=f"item {start + error.row + 1}: {shortened(items[error.row])}",
                remedy="give items of the declared type, or declare the type that they have",
            ) from error
        names = [TIMESTAMP_COLUMN, *self._values.schema.names]
        table = pa.table([pa.array(times, pa.int64()), *columns], names=names)
        if self._partition is None:
            return table
        return table.append_column(
            PARTITION_COLUMN, pa.array(self._names(items, start), pa.string())
        )

    def _names(self, items: Sequence[Any], start: int) -> list[str]:
        """Return the name of each item's partition.

        Raises:
            BadInput: for the first item that does not name its partition.
        """
        names = []
        for number, item in enumerate(items):
            try:
                names.append(_name(self._name_of(item)))
            except BaseException as error:
                if goes_on(error):
                    raise
                raise BadInput(
                    f"an item does not name its partition: {words_of(error)}",
                    row=number,
                    place=f"item {start + number + 1}: {shown(item)}",
                    remedy="name it by a text that is not empty, a whole number, a boolean or a date",
                ) from error
        return names

    def _name_of(self, item: Any) -> Any:
        if callable(self._partition):
            return self._partition(item)
        assert self._partition is not None
        return item if self._values.is_scalar else getattr(item, self._partition)

    def _time_of(self, item: Any) -> Any:
        if callable(self._event_time):
            return self._event_time(item)
        return item if self._values.is_scalar else getattr(item, self._event_time)


def _name(name: Any) -> str:
    """Return the name of a partition, written as for a column of such values."""
    name = plain_number(name, strict=False)
    match name:
        case bool():
            return "true" if name else "false"
        case int():
            return str(name)
        case date() if not isinstance(name, datetime):
            return name.isoformat()
        case str() if name:
            name.encode()  # raises if the name is not valid Unicode and so cannot be stored
            return name
    raise TypeError(f"{name!r} is not a name")


class _Carried(InTasks):
    """The source as tasks see it: splits carry their records, as only the driver can read."""

    sifts = True

    def read(self, split: Split) -> pa.Table:
        return pa.ipc.open_stream(split.data).read_all()

    def sift(self, split: Split) -> Sifted:
        return _sift(split)


def _as_stream(table: pa.Table | None) -> bytes:
    if table is None:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _sift(split: Split) -> Sifted:
    table = pa.ipc.open_stream(split.data).read_all() if split.data else None
    return Sifted(table, split.bad)
