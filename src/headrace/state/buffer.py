"""Records that wait for their time with the bin of their key: posts, and records to be ordered.

All work is vectorised. Rows are kept in a few *stretches*. Each is sorted by event time, and was at
least twice as long as the next when that was added. This gives the following costs:

- Taking due records costs their number.
- Adding records costs their number, times a logarithm.
- Reading a slice of the hash space costs its rows. In addition, each stretch is once sorted by
  hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ensure
from headrace.eventtime.domains import TimeDomain
from headrace.eventtime.timestamps import MAX_TIME
from headrace.keyspace.arrays import U64
from headrace.keyspace.layout import Layout
from headrace.keyspace.ordering import order_by_hash
from headrace.keyspace.ranges import Ranges
from headrace.runfiles import batches
from headrace.runfiles.batches import as_one_batch
from headrace.runfiles.format import LAST_TIMER
from headrace.runfiles.sections import COLUMN_PREFIX, DELETED, DUE, SUB_PREFIX
from headrace.schema.reserved import HASH, TIMESTAMP_COLUMN

I64 = npt.NDArray[np.int64]

#: The column that distinguishes the waiting records of a key. It ascends in order of arrival.
SEQUENCE = "__sequence"
_STORED_SEQUENCE = f"{SUB_PREFIX}sequence"
_NUMBER_BITS = 28
#: How often a stretch is scanned before it is sorted by hash.
_FEW_LOOKS = 8


def sequences(step: int, numbers: I64) -> I64:
    """Return the numbers that distinguish a key's records and give their order of arrival.

    Args:
        step: the step in which they came.
        numbers: the position of each record among its key's records in this step.
    """
    ensure(step < 1 << (63 - _NUMBER_BITS), "the steps' numbers are used up")
    ensure(int(numbers.max(initial=0)) < 1 << _NUMBER_BITS, "a key has too many records in a step")
    return np.int64(step << _NUMBER_BITS) + numbers


def sequence(step: int, number: int) -> int:
    """Return the same number for one record."""
    return (step << _NUMBER_BITS) + number


def ranks(group_starts: I64, length: int) -> I64:
    """Return the position of each row in its group.

    Args:
        group_starts: the first row of each group.
        length: the number of rows.
    """
    found: I64 = np.arange(length) - np.repeat(group_starts, np.diff(group_starts, append=length))
    return found


class _SortedRun:
    """Rows in ascending order of event time and, for equal times, of arrival."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows
        self.times: I64 = rows.column(TIMESTAMP_COLUMN).to_numpy()
        self.hashes: U64 = rows.column(HASH).to_numpy()
        self.nbytes = rows.nbytes
        self.gone: I64 = np.empty(0, dtype=np.int64)  # positions of forgotten rows, ascending
        self._looks = 0

    def __len__(self) -> int:
        return len(self.times)

    def left(self, first: int, end: int) -> pa.RecordBatch:
        """Return the rows between two positions, without forgotten ones."""
        low, high = np.searchsorted(self.gone, (first, end)).tolist()
        if low == high:
            return self.rows.slice(first, end - first)
        stays = np.ones(end - first, dtype=np.bool_)
        stays[self.gone[low:high] - first] = False
        return self.rows.slice(first, end - first).filter(pa.array(stays))

    def forgotten_from(self, first: int) -> int:
        """Return the number of forgotten rows from a position on."""
        return len(self.gone) - int(np.searchsorted(self.gone, first))

    def first_left(self, first: int) -> int:
        """Return the first position, from the given one on, whose row was not forgotten."""
        gone = self.gone[np.searchsorted(self.gone, first) :]
        apart = np.flatnonzero(gone != first + np.arange(len(gone)))
        return first + (int(apart[0]) if len(apart) else len(gone))

    def before(self, until: int) -> int:
        """Return the number of rows up to a time."""
        return int(np.searchsorted(self.times, until, side="right"))

    def rows_in(self, ranges: Ranges) -> I64:
        """Return the positions of the rows of some hashes, ascending, without forgotten ones.

        A young stretch soon becomes part of a longer one, so it is scanned. One that stays is
        sorted by hash once. From then on a call costs what it returns.
        """
        rows = self._rows_in(ranges)
        return rows[~np.isin(rows, self.gone)] if len(self.gone) else rows

    def _rows_in(self, ranges: Ranges) -> I64:
        self._looks += 1
        if self._looks <= _FEW_LOOKS:
            return np.flatnonzero(ranges.contain(self.hashes))
        order, hashes = self._by_hash
        lows = np.searchsorted(hashes, ranges.firsts, side="left").tolist()
        highs = np.searchsorted(hashes, ranges.lasts, side="right").tolist()
        parts = [order[low:high] for low, high in zip(lows, highs, strict=True)]
        return np.sort(np.concatenate(parts)) if parts else order[:0]

    @cached_property
    def _by_hash(self) -> tuple[I64, U64]:
        order = order_by_hash(self.hashes)
        return order, self.hashes[order]


class RecordBuffer:
    """The waiting records of one stream of one computation on one worker.

    Rows have the columns of ``schema``: hash, event time, sequence, key and values.

    Args:
        section: its section in run files.
        keys: the parts of the key, under their names in files.
        values: the columns of the records' values.
        defaults: for columns that were added later, the value that older records have there.
    """

    def __init__(
        self,
        section: str,
        keys: Sequence[pa.Field],
        values: pa.Schema,
        defaults: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.section = section
        self._defaults = {COLUMN_PREFIX + name: value for name, value in defaults.items()}
        at_work = [pa.field(f"__{field.name}", field.type) for field in keys]
        own = [
            pa.field(HASH, pa.uint64()),
            pa.field(TIMESTAMP_COLUMN, pa.int64()),
            pa.field(SEQUENCE, pa.int64()),
        ]
        self.schema = pa.schema([*own, *at_work, *values])
        self._naming = self.schema.names[: len(own) + len(at_work)]
        self._stored = _stored_schema(keys, values)
        self._sources = _sources(self._stored)
        self._runs: list[_SortedRun] = []
        self._passed: list[int] = []  # the number of rows that have left each stretch at its start
        self._added: list[pa.RecordBatch] = []
        self._taken: list[pa.RecordBatch] = []

    # -- a step -------------------------------------------------------------------------------

    def add(self, rows: pa.RecordBatch, numbered: I64) -> None:
        """Add records that are not due in this step.

        Args:
            rows: hash, event time, key and values by name, in any order. Other columns are ignored.
            numbered: see :func:`sequences`. No two records of a key have the same number.
        """
        if not rows.num_rows:
            return
        columns = [
            pa.array(numbered) if name == SEQUENCE else rows.column(name)
            for name in self.schema.names
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        self._push(batch)
        self._added.append(batch)

    def take(self, until: int) -> pa.RecordBatch | None:
        """Remove the records up to an event time and return them, or None if there are none.

        They ascend by event time. Records of one key and time are in order of arrival.
        """
        found = self._pop(until)
        if not found:
            return None
        rows = as_one_batch(found)
        self._taken.append(rows.select(self._naming))
        return rows if len(found) == 1 else by_time(rows)

    def take_changes(self) -> pa.RecordBatch | None:
        """Return what was added and taken since the last call, as stored rows sorted by hash."""
        parts = [self._as_stored(rows, gone=False) for rows in self._added]
        parts += [self._as_stored(rows, gone=True) for rows in self._taken]
        self._added, self._taken = [], []
        return _sorted_by_hash(as_one_batch(parts)) if parts else None

    def lowest(self) -> int:
        """Return the lowest event time of a waiting record, or ``MAX_TIME``."""
        return min(
            (int(s.times[n]) for s, n in zip(self._runs, self._passed, strict=True)),
            default=MAX_TIME,
        )

    def __len__(self) -> int:
        runs = zip(self._runs, self._passed, strict=True)
        return sum(len(s) - passed - s.forgotten_from(passed) for s, passed in runs)

    # -- stretches ----------------------------------------------------------------------------

    def _push(self, rows: pa.RecordBatch) -> None:
        parts = [rows]
        length = rows.num_rows
        while (
            self._runs
            and len(self._runs[-1]) - self._passed[-1] < 2 * length
            and self._runs[-1].nbytes + sum(part.nbytes for part in parts)
            <= batches.MOST_BYTES // 2
        ):
            run, passed = self._runs.pop(), self._passed.pop()
            last = run.left(passed, len(run))
            parts.insert(0, last)
            length += last.num_rows
        self._runs.append(_SortedRun(by_time(as_one_batch(parts))))
        self._passed.append(0)

    def _pop(self, until: int) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        left: list[tuple[_SortedRun, int]] = []
        for run, passed in zip(self._runs, self._passed, strict=True):
            end = max(run.before(until), passed)
            if end > passed:
                found.append(run.left(passed, end))
            left += self._kept(run, run.first_left(end))
        self._runs = [run for run, _ in left]
        self._passed = [passed for _, passed in left]
        return found

    def _kept(self, run: _SortedRun, passed: int) -> list[tuple[_SortedRun, int]]:
        """Return a stretch without the rows that have left.

        If most have, give back their memory.
        """
        gone = passed + run.forgotten_from(passed)
        if gone == len(run):
            return []
        if 2 * gone <= len(run):
            return [(run, passed)]
        stay = np.delete(np.arange(len(run)), run.gone)
        return [(_SortedRun(run.rows.take(pa.array(stay[stay >= passed]))), 0)]

    def forget(self, ranges: Ranges) -> tuple[U64, I64]:
        """Forget the records of some hashes. This does not count as a change.

        Costs what is forgotten.

        Returns:
            The hashes and event times of the forgotten records.
        """
        left: list[tuple[_SortedRun, int]] = []
        found = [(np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64))]
        for run, passed in zip(self._runs, self._passed, strict=True):
            rows = run.rows_in(ranges)
            rows = rows[rows >= passed]
            found.append((run.hashes[rows], run.times[rows]))
            if len(rows):
                run.gone = np.union1d(run.gone, rows)
                left += self._kept(run, run.first_left(passed))
            else:
                left.append((run, passed))
        self._runs = [run for run, _ in left]
        self._passed = [passed for _, passed in left]
        hashes, times = zip(*found, strict=True)
        return np.concatenate(hashes), np.concatenate(times)

    # -- storage ------------------------------------------------------------------------------

    def _as_stored(self, rows: pa.RecordBatch, *, gone: bool) -> pa.RecordBatch:
        """Return rows in stored form.

        Rows that are gone keep only the columns that identify them.
        """
        columns = []
        for field in self._stored:
            if field.name == DELETED:
                column = pa.array(np.full(rows.num_rows, gone))
            elif gone and field.name.startswith(COLUMN_PREFIX):
                column = pa.nulls(rows.num_rows, field.type)
            else:
                column = rows.column(self._sources[field.name])
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self._stored)

    def as_declared(self, table: pa.Table) -> pa.Table:
        """Return stored rows with today's columns. New columns have their defaults."""
        for name, default in self._defaults.items():
            value = pa.scalar(default, self._stored.field(name).type)
            if name not in table.column_names:
                table = table.append_column(name, pa.repeat(value, table.num_rows))
            elif value.is_valid and table.column(name).null_count:
                filled = pc.fill_null(table.column(name), value)
                table = table.set_column(table.column_names.index(name), name, filled)
        return table

    def apply_changes(self, table: pa.Table) -> None:
        """Apply stored rows to the waiting records.

        This does not count as a change of this step.
        """
        gone = table.column(DELETED).to_numpy()
        if gone.any():
            # A step takes all records that are due. So all up to the latest taken one are gone as
            # well.
            self._pop(int(table.column(DUE).to_numpy()[gone].max()))
            table = table.filter(pa.array(~gone))
        if not table.num_rows:
            return
        at_work = {name: stored for stored, name in self._sources.items()}
        columns = [table.column(at_work[name]).combine_chunks() for name in self.schema.names]
        self._push(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def rows_in(self, ranges: Ranges) -> pa.RecordBatch | None:
        """Return the waiting records of some hashes in stored form, sorted by hash, or None."""
        found = []
        for run, passed in zip(self._runs, self._passed, strict=True):
            rows = run.rows_in(ranges)
            rows = rows[rows >= passed]
            if len(rows):
                found.append(run.rows.take(pa.array(rows)))
        return _sorted_by_hash(self._as_stored(as_one_batch(found), gone=False)) if found else None

    # -- memory -------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """About how much memory the records take, in bytes."""
        return sum(run.nbytes + 16 * len(run) for run in self._runs)

    def bytes_of_bins(self, layout: Layout) -> I64:
        """Return about how much memory the records of each bin take."""
        sizes = np.zeros(len(layout), dtype=np.int64)
        for run in self._runs:
            each = run.nbytes // len(run) + 16
            sizes += np.bincount(layout.bins_of(run.hashes), minlength=len(sizes)) * each
        return sizes

    def drop(self, bins: npt.NDArray[np.bool_], layout: Layout) -> I64:
        """Forget the records of some bins. Return the lowest event time in each of them."""
        lowest = np.full(len(bins), MAX_TIME, dtype=np.int64)
        pairs = list(zip(self._runs, self._passed, strict=True))
        self._runs, self._passed = [], []
        for run, passed in pairs:
            rows = np.delete(np.arange(len(run)), run.gone)
            rows = rows[np.searchsorted(rows, passed) :]
            of = layout.bins_of(run.hashes[rows])
            goes = bins[of]
            np.minimum.at(lowest, of[goes], np.minimum(run.times[rows[goes]], LAST_TIMER))
            if not goes.all():
                self._runs.append(_SortedRun(run.rows.take(pa.array(rows[~goes]))))
                self._passed.append(0)
        return lowest


def by_time(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows in ascending order of event time. Rows of equal time keep their order."""
    times = rows.column(TIMESTAMP_COLUMN).to_numpy()
    if (times[1:] >= times[:-1]).all():
        return rows
    return rows.take(pa.array(np.argsort(times, kind="stable")))


def _sorted_by_hash(rows: pa.RecordBatch) -> pa.RecordBatch:
    hashes = rows.column(HASH).to_numpy()
    if (hashes[1:] >= hashes[:-1]).all():
        return rows
    return rows.take(pa.array(order_by_hash(hashes)))


def _stored_schema(keys: Sequence[pa.Field], values: pa.Schema) -> pa.Schema:
    """Return the columns of a section: those of a table whose rows are due at an event time."""
    return pa.schema(
        [
            pa.field(HASH, pa.uint64(), nullable=False),
            *keys,
            pa.field(_STORED_SEQUENCE, pa.int64(), nullable=False),
            *(pa.field(COLUMN_PREFIX + field.name, field.type) for field in values),
            pa.field(
                DUE, pa.int64(), nullable=False, metadata={"domain": TimeDomain.EVENT_TIME.value}
            ),
            pa.field(DELETED, pa.bool_(), nullable=False),
        ]
    )


def _sources(stored: pa.Schema) -> dict[str, str]:
    """Return, for each stored column, the column in memory from which it is made."""
    special = {HASH: HASH, _STORED_SEQUENCE: SEQUENCE, DUE: TIMESTAMP_COLUMN}
    return {
        name: special.get(name)
        or (name.removeprefix(COLUMN_PREFIX) if name.startswith(COLUMN_PREFIX) else f"__{name}")
        for name in stored.names
        if name != DELETED
    }
