"""Batches as columnar handlers see them: keys, records grouped by key, and timers that fired."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.eventtime.domains import TimeDomain
from headrace.keyspace.arrays import U64
from headrace.keyspace.hashing import canonical_key
from headrace.keyspace.ordering import order_by_hash
from headrace.schema import ValueType, column_to_python
from headrace.schema.columns import Column, ColumnType, in_micros, own
from headrace.schema.reserved import HASH, TIMESTAMP_COLUMN

I64 = npt.NDArray[np.int64]


class Keys:
    """The keys of a batch, by column.

    In a batch's ``keys`` each key occurs once, in ascending order of hashes. Index it like an
    array, with a mask, positions or a slice: ``batch.keys[counts > 10]``.

    Attributes:
        hashes: the 64-bit hash of each key.
        columns: the parts of the keys, as NumPy arrays.
        once: whether each key is known to occur only once.

    Example::

        def process_batch(self, ctx, batch):
            busy = batch.keys[batch.counts > 1]
            ctx.produce("slowest", busy, batch.max("ms")[batch.counts > 1])
    """

    def __init__(
        self,
        types: Sequence[ColumnType],
        hashes: U64,
        columns: Sequence[Column],
        times: Callable[[], tuple[I64, I64]],
        *,
        once: bool = False,
        once_with: Sequence[Column] = (),
    ) -> None:
        self.once = once
        self._once_with = once_with
        self._types = types
        self.hashes = own(hashes)
        self.columns = [own(column) for column in columns]
        self._times = times

    def __len__(self) -> int:
        return len(self.hashes)

    def __getitem__(self, at: Any) -> Keys:
        if isinstance(at, np.ndarray):
            at = at.copy()  # the caller may change it before times are looked up
        stays_once = isinstance(at, slice) or np.asarray(at).dtype == np.bool_
        return Keys(
            self._types,
            self.hashes[at],
            [column[at] for column in self.columns],
            lambda: (self.times_us[at], self.earliest_us[at]),
            once=self.once and stays_once,
        )

    def are_once_with(self, columns: Iterable[Any]) -> bool:
        """Return whether each key is known to occur only once with the same values in some columns.

        It is known for the columns by which the batch was divided; see :meth:`KeyedBatch.by`.
        """
        given = {id(column) for column in columns}
        return bool(self._once_with) and all(id(one) in given for one in self._once_with)

    @cached_property
    def _both(self) -> tuple[I64, I64]:
        latest, earliest = self._times()
        return own(latest), own(earliest)

    @property
    def times_us(self) -> I64:
        """The highest event time among each key's causes: its records, or its timer."""
        return self._both[0]

    @property
    def earliest_us(self) -> I64:
        """The lowest event time among each key's causes. Productions cannot be before it."""
        return self._both[1]

    @property
    def values(self) -> Column:
        """The keys themselves: an array of values or, if keys have several parts, of tuples."""
        if len(self.columns) == 1:
            return self.columns[0]
        tuples = np.empty(len(self), dtype=object)
        tuples[:] = list(zip(*(column.tolist() for column in self.columns), strict=True))
        return own(tuples)

    @property
    def starts(self) -> I64:
        """The positions at which the key differs from the one before, and 0.

        There must be a key.
        """
        differs = self.hashes[1:] != self.hashes[:-1]
        for column in self.columns:
            differs = differs | (column[1:] != column[:-1]).astype(bool)
        return _starts_of(differs)

    @property
    def types(self) -> Sequence[ColumnType]:
        """The types of the parts of the keys."""
        return self._types

    def part(self, number: int) -> Column:
        """Return one part of tuple keys."""
        return self.columns[number]

    def to_arrow(self) -> list[pa.Array]:
        """Return the parts of the keys as Arrow arrays."""
        return [kind.to_arrow(c) for kind, c in zip(self._types, self.columns, strict=True)]


class KeyedBatch:
    """The step's records of one input stream on one worker, grouped by key.

    Groups are in ascending order of their keys' hashes. Within a group, records are in the order
    that the step defines.

    Attributes:
        stream: the name of the input stream.
        starts: the first row of each group.
        sub: for a batch that was divided further (see :meth:`by`), the values that each group has
            in common.
        positions: for such a batch, the position of each record in the original batch.

    Example::

        def process_batch(self, ctx, batch):
            mean = batch.sum("ms") / batch.counts  # for each key
            behind = batch["ms"] > mean[batch.group_of_row]  # for each record
            if behind.any():
                ctx.produce("seen", batch.where(behind).row_keys, {"page": batch["page"][behind]})
    """

    positions: I64

    def __init__(
        self,
        stream: str,
        values: ValueType,
        rows: pa.RecordBatch,
        order: I64 | None,
        starts: I64,
        key_types: Sequence[ColumnType],
        key_names: Sequence[str],
        sub: dict[str, Column] | None = None,
    ) -> None:
        self.stream = stream
        self.starts = starts
        self.sub = sub or {}
        self._values = values
        self._rows = rows  # in order of arrival
        # Positions of the grouped rows among these. None if the rows are grouped already.
        self._order = order
        self._key_types = key_types
        self._key_names = key_names
        self._columns: dict[str, Column] = {}
        self._arrow: dict[str, pa.Array] = {}

    def __len__(self) -> int:
        return int(self._rows.num_rows if self._order is None else len(self._order))

    # -- keys ---------------------------------------------------------------------------------

    @cached_property
    def keys(self) -> Keys:
        """The key of each group. Each key occurs once, unless the batch was divided further."""
        at = self.first_rows
        chosen = pa.array(at)
        columns = [
            kind.from_arrow(self._rows.column(name).take(chosen))
            for kind, name in zip(self._key_types, self._key_names, strict=True)
        ]
        hashes = self._rows.column(HASH).to_numpy()[at]
        return Keys(
            self._key_types,
            hashes,
            columns,
            self._group_times,
            once=not self.sub,
            once_with=list(self.sub.values()),
        )

    @property
    def first_rows(self) -> I64:
        """The position of each group's first record in the order of arrival."""
        return self.starts if self._order is None else self._order[self.starts]

    @cached_property
    def row_keys(self) -> Keys:
        """The key of each record."""

        def times() -> tuple[I64, I64]:
            return self.timestamps_us, self.timestamps_us

        return Keys(
            self._key_types,
            self.keys.hashes[self.group_of_row],
            [column[self.group_of_row] for column in self.keys.columns],
            times,
        )

    def _group_times(self) -> tuple[I64, I64]:
        """Return the latest and the earliest time of each group, whose records keep their order."""
        arrived: I64 = self._rows.column(TIMESTAMP_COLUMN).to_numpy()
        # (Of a small part of a batch, not all of the batch is looked at.)
        whole = len(arrived) <= 2 * len(self)
        if whole and self._order is not None and (arrived[1:] >= arrived[:-1]).all():
            last = self._order[self.starts + self.counts - 1]
            return arrived[last], arrived[self.first_rows]
        times = self.timestamps_us
        ascends = times[1:] >= times[:-1]
        ascends[self.starts[1:] - 1] = True
        if ascends.all():  # as in most streams: then two records of each key are enough
            return times[self.starts + self.counts - 1], times[self.starts]
        return np.maximum.reduceat(times, self.starts), np.minimum.reduceat(times, self.starts)

    @cached_property
    def counts(self) -> I64:
        """The number of records in each group."""
        return own(np.diff(self.starts, append=len(self)))

    @cached_property
    def group_of_row(self) -> I64:
        """For each record, the position of its key in ``keys``."""
        return own(np.repeat(np.arange(len(self.starts)), self.counts))

    def by(self, **sub: Column) -> KeyedBatch:
        """Return the same records with each key's group divided by further values, ascending.

        For tables with sub columns, such as one row for each key and window::

            parts = batch.by(minute=batch.timestamps_us // 60_000_000)
            rows = self.counts.at(parts.keys, minute=parts.sub["minute"])
            rows.upsert(count=rows["count"] + parts.counts)

        Args:
            sub: name → array with a value for each record.
        """
        codes = [_codes(np.asarray(values)) for values in sub.values()]
        group = self.group_of_row
        order: I64 = np.arange(len(self))
        if not _ascending([group, *codes]):
            order = np.lexsort([*reversed(codes), group])
        changed = np.zeros(len(self), dtype=bool)
        changed[0] = True
        for values in (group, *codes):
            ordered = values[order]
            changed[1:] |= ordered[1:] != ordered[:-1]
        starts = np.flatnonzero(changed)
        rows = order if self._order is None else self._order[order]
        parts = {name: np.asarray(values)[order[starts]] for name, values in sub.items()}
        divided = KeyedBatch(
            self.stream,
            self._values,
            self._rows,
            rows,
            starts,
            self._key_types,
            self._key_names,
            parts,
        )
        divided.positions = own(order)
        return divided

    def where(self, chosen: npt.NDArray[np.bool_]) -> KeyedBatch:
        """Return some of the records, in the same groups.

        Args:
            chosen: a mask over the records. It must choose at least one.
        """
        rows = np.flatnonzero(chosen)
        groups = self.group_of_row[rows]
        starts = _starts_of(groups[1:] != groups[:-1])
        parts = {name: values[groups[starts]] for name, values in self.sub.items()}
        return KeyedBatch(
            self.stream,
            self._values,
            self._rows,
            rows if self._order is None else self._order[rows],
            starts,
            self._key_types,
            self._key_names,
            parts,
        )

    @property
    def ranks(self) -> I64:
        """The position of each record within its group, from 0."""
        return np.arange(len(self)) - np.repeat(self.starts, self.counts)

    # -- columns ------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Column:
        """Return a value column of the records, grouped, as NumPy.

        A null reads as zero or empty, so that the type is the same for all batches. :meth:`nulls`
        shows where the nulls are.
        """
        if name not in self._columns:
            column = self.arrow(name)
            kind = _plain_type(name, column.type)
            if kind is None:
                values = np.empty(len(column), dtype=object)
                values[:] = column_to_python(column)
            else:
                values = kind.from_arrow(_without_nulls(column, kind))
            self._columns[name] = own(values)
        return self._columns[name]

    def nulls(self, name: str) -> npt.NDArray[np.bool_]:
        """Return a mask of the records in which a value column is null."""
        found: npt.NDArray[np.bool_] = self.arrow(name).is_null().to_numpy(zero_copy_only=False)
        return own(found)

    def arrow(self, name: str) -> pa.Array:
        """Return a value column of the records, grouped, as Arrow."""
        if name not in self._arrow:
            column = self._rows.column(name)
            grouped = column if self._order is None else column.take(pa.array(self._order))
            self._arrow[name] = grouped
        return self._arrow[name]

    @cached_property
    def records(self) -> pa.RecordBatch:
        """All value columns of the records, grouped, as Arrow."""
        names = self._values.schema.names
        return pa.record_batch([self.arrow(n) for n in names], schema=self._values.schema)

    @cached_property
    def timestamps_us(self) -> I64:
        """The event time of each record, in microseconds since 1970 UTC."""
        times: I64 = self._rows.column(TIMESTAMP_COLUMN).to_numpy()
        return own(times if self._order is None else times[self._order])

    def values(self) -> list[Any]:
        """Return the records' values as Python objects of the stream's type.

        Meant for small batches.
        """
        return self._values.to_python(list(self.records.columns))

    # -- by key -------------------------------------------------------------------------------

    def _of_rows(self, column: str | Column) -> Column:
        return self[column] if isinstance(column, str) else np.asarray(column)

    def sum(self, column: str | Column) -> Column:
        """Return the sum of a column for each group.

        Floats are added pairwise. So the sum depends only on the group's values and their order,
        but it may differ from adding them one after another.

        Args:
            column: a column's name, or an array with a value for each record.
        """
        values = self._of_rows(column)
        if values.dtype.kind in "fu":
            sums: Column = np.add.reduceat(values, self.starts)
            return sums
        if values.dtype.kind in "b":
            values = values.astype(np.int64)
        totals: Column = np.add.reduceat(values, self.starts, dtype=np.int64)
        return totals

    def min(self, column: str | Column) -> Column:
        """Return the least value of a column for each group."""
        found: Column = np.minimum.reduceat(self._of_rows(column), self.starts)
        return found

    def max(self, column: str | Column) -> Column:
        """Return the greatest value of a column for each group."""
        found: Column = np.maximum.reduceat(self._of_rows(column), self.starts)
        return found

    def first(self, column: str | Column) -> Column:
        """Return the value of each group's first record."""
        return self._of_rows(column)[self.starts]

    def last(self, column: str | Column) -> Column:
        """Return the value of each group's last record."""
        last: Column = self._of_rows(column)[self.starts + self.counts - 1]
        return last

    # -- cutting ------------------------------------------------------------------------------

    def groups(self, first: int, last: int) -> KeyedBatch:
        """Return the records of some groups, by position."""
        end = int(self.starts[last]) if last < len(self.starts) else len(self)
        return self._cut(int(self.starts[first]), end, self.starts[first:last])

    def rows(self, first: int, last: int) -> KeyedBatch:
        """Return some records, by position. All must have the same key."""
        return self._cut(first, last, np.array([first]))

    def _cut(self, first: int, last: int, starts: I64) -> KeyedBatch:
        order = np.arange(first, last) if self._order is None else self._order[first:last]
        return KeyedBatch(
            self.stream,
            self._values,
            self._rows,
            order,
            starts - first,
            self._key_types,
            self._key_names,
        )


class StepBatches(Mapping[str, KeyedBatch]):
    """The step's records of all input streams on one worker: a batch for each stream that has some.

    Attributes:
        records: the number of records.

    Example::

        class Kept(hr.StepComputation):
            visits = hr.TableState({"n": int})
            out = hr.Output(int)

            def process_step(self, ctx, batches):
                for batch in batches.values():
                    rows = self.visits.at(batch.keys)
                    rows.upsert(n=rows["n"] + batch.counts)
                keys = batches.keys_of_all  # each key of the step, once
                ctx.produce("out", keys, self.visits.at(keys)["n"])
    """

    def __init__(self, batches: Mapping[str, KeyedBatch]) -> None:
        self._batches = dict(batches)
        self.records = sum(map(len, self._batches.values()))

    def __getitem__(self, stream: str) -> KeyedBatch:
        return self._batches[stream]

    def __iter__(self) -> Iterator[str]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    @cached_property
    def keys_of_all(self) -> Keys:
        """Each key that has a record in any of the streams, once, in ascending order of hashes.

        Its causes are the key's records in all streams.
        """
        return self._united[0]

    def positions_of(self, stream: str) -> I64:
        """Return the position in ``keys_of_all`` of each key of a stream's batch."""
        return self._united[1][stream]

    @cached_property
    def _united(self) -> tuple[Keys, dict[str, I64]]:
        parts = {stream: batch.keys for stream, batch in self._batches.items()}
        if len(parts) == 1:
            ((stream, keys),) = parts.items()
            return keys, {stream: own(np.arange(len(keys)))}
        keys, positions = _united([*parts.values()])
        return keys, dict(zip(parts, positions, strict=True))

    def within(self, first: int, last: int) -> StepBatches:
        """Return the records of some keys, by their position in ``keys_of_all``."""
        keys = self.keys_of_all[first:last]
        wanted = set(zip(keys.hashes.tolist(), keys.values.tolist(), strict=True))
        found = {}
        for stream, batch in self._batches.items():
            own = zip(batch.keys.hashes.tolist(), batch.keys.values.tolist(), strict=True)
            chosen = np.fromiter((key in wanted for key in own), np.bool_, len(batch.keys))
            if chosen.any():
                found[stream] = batch.where(chosen[batch.group_of_row])
        return StepBatches(found)


def _united(parts: Sequence[Keys]) -> tuple[Keys, list[I64]]:
    """Return the keys of several batches, each once, and where each batch's keys are among them."""
    hashes = np.concatenate([keys.hashes for keys in parts])
    columns = [np.concatenate(of) for of in zip(*(keys.columns for keys in parts), strict=True)]
    order = np.lexsort((*map(_codes, reversed(columns)), hashes))
    hashes, columns = hashes[order], [column[order] for column in columns]
    differs = hashes[1:] != hashes[:-1]
    for column in columns:
        differs = differs | (column[1:] != column[:-1]).astype(bool)
    starts = _starts_of(differs)

    def times() -> tuple[I64, I64]:
        latest = np.concatenate([keys.times_us for keys in parts])[order]
        earliest = np.concatenate([keys.earliest_us for keys in parts])[order]
        return np.maximum.reduceat(latest, starts), np.minimum.reduceat(earliest, starts)

    marks = np.zeros(len(order), dtype=np.int64)
    marks[starts] = 1
    positions = np.empty(len(order), dtype=np.int64)
    positions[order] = np.cumsum(marks) - 1
    edges = np.cumsum([len(keys) for keys in parts])[:-1]
    united = Keys(
        parts[0].types, hashes[starts], [column[starts] for column in columns], times, once=True
    )
    return united, [own(of) for of in np.split(positions, edges)]


def _codes(values: Column) -> Column:
    """Return values that sort in the same order: for objects (texts) their ranks."""
    if values.dtype != object:
        return values
    _, ranks = np.unique(values, return_inverse=True)
    return ranks


def _ascending(columns: list[Column]) -> bool:
    """Return whether rows ascend by the first column, within it by the second, and so on."""
    same = np.ones(max(len(columns[0]) - 1, 0), dtype=bool)
    for column in columns:
        if (same & (column[1:] < column[:-1])).any():
            return False
        same &= column[1:] == column[:-1]
    return True


class FiredBatch:
    """Timers of one name that fired, in ascending order of (hash of the key, time, tag).

    Attributes:
        name: the name of the timer's declaration.
        domain: the clock by which its times are measured.
        keys: the key of each timer. A key occurs once for each of its tags.
        times_us: the time for which each timer was set, in microseconds since 1970 UTC.
        tags: the tag with which each timer was set.

    Example::

        def process_timers(self, ctx, fired):
            rows = self.counts.at(fired.keys)
            ctx.produce("new", fired.keys, rows["visits"])
            rows.delete()
    """

    def __init__(self, name: str, domain: TimeDomain, keys: Keys, times_us: I64, tags: I64) -> None:
        self.name = name
        self.domain = domain
        self.keys = keys
        self.times_us = own(times_us)
        self.tags = own(tags)

    def __len__(self) -> int:
        return len(self.times_us)

    def __getitem__(self, at: Any) -> FiredBatch:
        return FiredBatch(self.name, self.domain, self.keys[at], self.times_us[at], self.tags[at])


def _without_nulls(column: pa.Array, kind: ColumnType) -> pa.Array:
    """Return a column with nulls replaced by the empty value of its type."""
    if not column.null_count:
        return column
    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        column = in_micros(column, kind.arrow).view(pa.int64())
    elif pa.types.is_date32(column.type):
        column = column.view(pa.int32())
    return pc.fill_null(column, pa.scalar(kind.empty, column.type))


def _plain_type(name: str, kind: pa.DataType) -> ColumnType | None:
    """Return how handlers get a value column. None for nested types, which come as objects."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_timestamp(kind):
        kind = pa.timestamp("us", tz=kind.tz)
    if pa.types.is_duration(kind):
        kind = pa.duration("us")
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        kind = pa.string() if pa.types.is_large_string(kind) else pa.binary()
    if pa.types.is_decimal(kind):
        return None
    try:
        return ColumnType(name, kind)
    except TypeError:
        return None


def grouped(
    stream: str,
    values: ValueType,
    rows: pa.RecordBatch,
    key_types: Sequence[ColumnType],
    key_names: Sequence[str],
    *,
    hash_is_key: bool = False,
) -> KeyedBatch:
    """Return the records of an input, grouped by key.

    Args:
        stream: the name of the input stream.
        values: the type of its values.
        rows: the records, in order of arrival.
        key_types: the parts of the key.
        key_names: the columns of ``rows`` that hold them.
        hash_is_key: whether equal hashes mean equal keys. If not, keys of equal hashes are
            compared.
    """
    hashes = rows.column(HASH).to_numpy()
    order: I64 | None = None
    if len(hashes) > 1 and not (hashes[1:] >= hashes[:-1]).all():
        order = order_by_hash(hashes)
        hashes = hashes[order]
    if hash_is_key:
        starts = _starts_of(hashes[1:] != hashes[:-1])
        return KeyedBatch(stream, values, rows, order, starts, key_types, key_names)
    columns = [rows.column(name) for name in key_names]
    if order is not None:
        columns = [column.take(pa.array(order)) for column in columns]
    apart, starts = keys_apart(hashes, columns)
    if apart is not None:
        order = apart if order is None else order[apart]
    return KeyedBatch(stream, values, rows, order, starts, key_types, key_names)


def keys_apart(hashes: U64, columns: Sequence[pa.Array]) -> tuple[I64 | None, I64]:
    """Return the order in which rows ascend by (hash, key), and each key's first row in that order.

    Args:
        hashes: hashes of the keys, ascending.
        columns: the parts of the keys, in the same order.

    Returns:
        The order is None if the rows are in it already. Rows of one key keep their order.
    """
    same_hash = hashes[1:] == hashes[:-1]
    same_key = same_hash.copy()
    for column in columns:
        same_key &= pc.equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    collided = np.flatnonzero(same_hash & ~same_key)
    if not len(collided):
        return None, _starts_of(~same_key)
    order = np.arange(len(hashes))
    for hash_ in np.unique(hashes[collided]):
        first = int(np.searchsorted(hashes, hash_, side="left"))
        last = int(np.searchsorted(hashes, hash_, side="right"))
        parts = zip(*(column[first:last].to_pylist() for column in columns), strict=True)
        keys = [canonical_key(part) for part in parts]
        ranked = sorted(range(last - first), key=keys.__getitem__)
        order[first:last] = first + np.array(ranked)
        neighbours = zip(ranked[1:], ranked[:-1], strict=True)
        same_key[first : last - 1] = [keys[a] == keys[b] for a, b in neighbours]
    return order, _starts_of(~same_key)


def _starts_of(begins: npt.NDArray[np.bool_]) -> I64:
    """Return the first row of each group.

    Args:
        begins: whether a group starts at a row, for each row but the first.
    """
    return np.concatenate([np.zeros(1, dtype=np.int64), np.flatnonzero(begins) + 1])
