"""A keyed table in memory: rows in slots, found through an index, changed many at a time.

A slot is a row's place. A row that is deleted keeps its slot and is not *live* until that has been
written; then its slot is *free*, and given to the next row. So a table in which rows come and go neither
grows nor has to be tidied up, and every method costs what it is given, never what there is (but for
growing, which each row pays for a bounded number of times, and for compacting, when rows are a small part
of what they were).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.eventtime.domains import TimeDomain
from headrace.eventtime.timestamps import MAX_TIME
from headrace.keyspace.arrays import U64
from headrace.keyspace.distinct import distinct
from headrace.keyspace.hashing import hash_columns, hash_words
from headrace.keyspace.ordering import order_by_hash
from headrace.keyspace.ranges import Ranges
from headrace.runfiles.format import LAST_TIMER
from headrace.runfiles.sections import DELETED, DUE, SUB_PREFIX, VERSION, column_name
from headrace.schema.columns import Column, ColumnType
from headrace.schema.reserved import HASH
from headrace.state.tables.due import DueRows, Times
from headrace.state.tables.index import NO_SLOT, Slots
from headrace.state.tables.segments import SlotIndex
from headrace.state.tables.slots import FEW, SlotPool
from headrace.state.tables.sorted_runs import SortedRuns

Mask = npt.NDArray[np.bool_]
#: Says for hashes which bins they are in.
BinsOf = Callable[[U64], npt.NDArray[np.int64]]
_NO_SLOTS: Slots = np.empty(0, dtype=np.int32)
_NEVER_DUE: Times = np.full(1, MAX_TIME, dtype=np.int64)
_OBJECT_BYTES = 64
_FEWEST_SLOTS = 1_024


class Table:
    """Rows of one table (or timer) of a columnar computation.

    Args:
        section: its section in run files.
        keys: the parts of the key.
        sub: what tells rows of one key apart.
        columns: the other columns.
        domain: what rows are due by, if they are.
        ranges: the hash ranges of the keys that are expected.
        hash_is_key: whether keys of one hash are one key; where not, they are compared.
        version: of its columns.
    """

    def __init__(
        self, section: str, keys: Sequence[ColumnType], sub: Sequence[ColumnType],
        columns: Sequence[ColumnType], domain: TimeDomain | None,
        ranges: Ranges | None = None, *, hash_is_key: bool = False, version: int = 1,
    ) -> None:  # fmt: skip
        self.section = section
        self.version = version
        self._names = [column_name(kind.name, version) for kind in columns]
        self.keys, self.sub, self.columns = keys, sub, columns
        self.domain = domain
        self.due = DueRows(self._pending)
        self._hash_is_key = hash_is_key and not sub
        self._ranges = ranges
        self._index = SlotIndex(None if sub else ranges)
        # Rows with subs are indexed by a hash of both; their keys' hashes are put in order beside it.
        self._by_hash = SortedRuns(np.uint64) if sub else None
        self._slots = SlotPool()
        self._dead = 0  # slots that hold no row, free or not
        self._loose: list[Slots] = []  # slots that may hold no row, and of which nothing is written
        self._text_bytes = 0  # of texts and bytes in all columns
        self._hashes: U64 = np.empty(0, dtype=np.uint64)
        self._row_hashes: U64 = np.empty(0, dtype=np.uint64)
        self._live: Mask = np.empty(0, dtype=np.bool_)
        self._due: Times = _NEVER_DUE[:0]
        self._identity: list[Column] = [c.new(0) for c in (*keys, *sub)]
        self._content: list[Column] = [c.new(0) for c in columns]
        self._dirty: list[Slots] = []
        self._journal: list[tuple[Slots, Mask, Times, list[Column]]] | None = None

    def __len__(self) -> int:
        """How many rows there are."""
        return self._slots.reach - self._dead

    # -- finding ------------------------------------------------------------------------------

    def row_hashes(self, hashes: U64, sub: Sequence[Column]) -> U64:
        """Return what rows are found by: the key's hash, or that and the sub columns'."""
        if not self.sub:
            return hashes
        columns = [c.to_arrow(values) for c, values in zip(self.sub, sub, strict=True)]
        return hash_words(hashes + hash_columns(columns))

    def find(self, row_hashes: U64, identity: Sequence[Column]) -> Slots:
        """Return the slot of each row, or ``NO_SLOT``; a slot may hold a row that is gone."""

        def same(at: npt.NDArray[np.int64], slots: Slots) -> Mask:
            equal: Mask = self._row_hashes[slots] == row_hashes[at]
            if not self._hash_is_key and equal.any():
                hit = np.flatnonzero(equal)
                for stored, wanted in zip(self._identity, identity, strict=True):
                    equal[hit] &= (stored[slots[hit]] == wanted[at[hit]]).astype(np.bool_)
            return equal

        return self._index.find(row_hashes, same)

    def claim(
        self, found: Slots, hashes: U64, row_hashes: U64, identity: Sequence[Column], *,
        once: bool = False,
    ) -> Slots:  # fmt: skip
        """Return the slots of rows, giving those that were not found a slot of their own.

        Args:
            found: where they are, as :meth:`find` says it.
            hashes, row_hashes, identity: of their keys, and of them.
            once: whether it is certain that each comes once.
        """
        missing = np.flatnonzero(found == NO_SLOT)
        if not len(missing):
            return found
        slots = found.copy()
        wanted = row_hashes[missing]
        if not once and len(wanted) > 1 and not (wanted[1:] > wanted[:-1]).all():
            missing, same_as = _distinct(missing, wanted, identity)
        else:
            same_as = None
        fresh = self._append(
            hashes[missing], row_hashes[missing], [column[missing] for column in identity]
        )
        if same_as is None:
            slots[missing] = fresh
        else:
            slots[found == NO_SLOT] = fresh[same_as]
        return slots

    def _append(self, hashes: U64, row_hashes: U64, identity: list[Column]) -> Slots:
        before = self._slots.reach
        slots = self._slots.take(len(hashes))
        if self._slots.reach > len(self._live):
            self._grow(self._slots.reach)
        self._dead += self._slots.reach - before
        self._live[slots] = False
        self._hashes[slots] = hashes
        if self._by_hash is not None:
            self._row_hashes[slots] = row_hashes
            self._push_hashes(hashes, slots)
        for column, values in zip(self._identity, identity, strict=True):
            column[slots] = values
            if column.dtype == object:
                self._text_bytes += _text_bytes(values)
        for kind, column in zip(self.columns, self._content, strict=True):
            column[slots] = kind.empty
        if self.domain is not None:
            self._due[slots] = MAX_TIME
        if not self._index.add(row_hashes, slots, self._row_hashes):
            self._index_anew(self._slots.reach // 8)
        return slots

    def _push_hashes(self, hashes: U64, slots: Slots) -> None:
        """Note where keys are, in order; begin anew when most entries are of rows that are gone."""
        assert self._by_hash is not None
        if len(self._by_hash) > 2 * self.used + _FEWEST_SLOTS:
            self._by_hash = SortedRuns(np.uint64)
            slots = self._slots.in_use()
            slots = slots[order_by_hash(self._hashes[slots])]
            hashes = self._hashes[slots]
        self._by_hash.push(hashes, slots)

    def _index_anew(self, more: int) -> None:
        slots = self._slots.in_use()
        hashes = self._row_hashes[slots]
        self._index.rebuild(None if self.sub else self._ranges, hashes, slots, more)

    def _grow(self, least: int) -> None:
        # (Columns grow in place, mostly; so a step is not made to wait for room that others will need.)
        capacity = max(_FEWEST_SLOTS, least + least // 8)
        if not self.sub:
            del self._row_hashes  # (the same column once more)
        for name in self._columns_of_slots:
            setattr(self, name, grow([vars(self).pop(name)], capacity)[0])
        if not self.sub:
            self._row_hashes = self._hashes
        if self.domain is None:
            self._due = _never_due(capacity)
        self._identity = grow(self._identity, capacity)
        self._content = grow(self._content, capacity)

    @property
    def _columns_of_slots(self) -> list[str]:
        """What there is for each slot besides identity and content, by name."""
        there = {
            "_hashes": True,
            "_row_hashes": bool(self.sub),
            "_live": True,
            "_due": self.domain is not None,
        }
        return [name for name, is_there in there.items() if is_there]

    # -- reading ------------------------------------------------------------------------------

    def live(self, slots: Slots) -> Mask:
        """Say for each slot whether it holds a row; ``NO_SLOT`` holds none."""
        if not self._slots.reach:
            return np.zeros(len(slots), dtype=np.bool_)
        live: Mask = self._live[slots] & (slots != NO_SLOT)
        return live

    def values(self, number: int, slots: Slots, live: Mask) -> Column:
        """Return a column of some rows; rows that are not there read as empty."""
        kind = self.columns[number]
        if not self._slots.reach:
            return kind.new(len(slots))
        taken: Column = self._content[number][slots]
        taken[~live] = kind.empty
        return taken

    def due_times(self, slots: Slots, live: Mask) -> Times:
        """Return the time that each row is due at; ``MAX_TIME`` for those that are not there."""
        if not self._slots.reach:
            return np.full(len(slots), MAX_TIME, dtype=np.int64)
        return np.where(live, self._due[slots], MAX_TIME)

    def keys_at(self, slots: Slots) -> tuple[U64, list[Column]]:
        """Return the hashes of rows, and the columns of their keys and subs."""
        return self._hashes[slots], [column[slots] for column in self._identity]

    # -- changing -----------------------------------------------------------------------------

    def put(self, slots: Slots, content: dict[int, Column], due: Times | None) -> None:
        """Let rows (each once) exist; columns that are not given keep what they were."""
        self._keep(slots)
        live = self._live[slots]
        if not live.all():
            fresh = slots[~live]
            for number, kind in enumerate(self.columns):
                if number not in content:
                    self._content[number][fresh] = kind.empty
            self._live[fresh] = True
            self._dead -= len(fresh)
        for number, values in content.items():
            column = self._content[number]
            if column.dtype == object:
                self._text_bytes += _text_bytes(values) - _text_bytes(column[slots])
            column[slots] = values
        if due is not None:
            self._due[slots] = due
            self._push_due(self._due[slots], slots)
        self._dirty.append(slots)

    def _pending(self, slots: Slots, times: Times) -> Mask:
        pending: Mask = self._live[slots] & (self._due[slots] == times)
        return pending

    def _push_due(self, times: Times, slots: Slots) -> None:
        """Note when rows are due; begin anew when most entries are stale."""
        if len(self.due) > 2 * len(self) + _FEWEST_SLOTS:
            self.due = DueRows(self._pending)
            slots = np.flatnonzero(self._live[: self._slots.reach]).astype(np.int32)
            times = self._due[slots]
        self.due.push(times, slots)

    def remove(self, slots: Slots) -> None:
        """Let rows (each once) be gone; those that are already are left alone."""
        slots = slots[self.live(slots)]
        if not len(slots):
            return
        self._keep(slots)
        self._live[slots] = False
        self._dead += len(slots)
        self._dirty.append(slots)

    def pop_due(self, until: int) -> Slots:
        """Return the slots of live rows that are due by a time, in no particular order.

        They are not pending any more, unless they are put again.
        """
        slots = self.due.pop_due(until)
        if len(slots):
            slots = slots[self._live[slots] & (self._due[slots] <= until)]
        return slots

    # -- undoing ------------------------------------------------------------------------------

    def _keep(self, slots: Slots) -> None:
        if self._journal is not None:
            content = [column[slots] for column in self._content]
            self._journal.append((slots, self._live[slots], self._due[slots], content))

    def begin(self) -> int:
        """Remember from now on what is changed; return a mark for :meth:`undo`."""
        self._journal = []
        return len(self._dirty)

    def keep(self) -> None:
        """Stop remembering."""
        self._journal = None

    def undo(self, mark: int) -> None:
        """Bring back what was there at :meth:`begin`."""
        for slots, live, due, content in reversed(self._journal or []):
            self._dead += int(self._live[slots].sum()) - int(live.sum())
            self._live[slots] = live
            for column, values in zip(self._content, content, strict=True):
                if column.dtype == object:
                    self._text_bytes += _text_bytes(values) - _text_bytes(column[slots])
                column[slots] = values
            if self.domain is not None:
                self._due[slots] = due
                self._push_due(due[live], slots[live])
        self._journal = None
        self._loose += self._dirty[mark:]
        del self._dirty[mark:]

    # -- storage ------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """The columns of its section in run files."""
        fields = [pa.field(HASH, pa.uint64(), nullable=False)]
        fields += [pa.field(kind.name, kind.arrow, nullable=False) for kind in self.keys]
        names = [*(SUB_PREFIX + kind.name for kind in self.sub), *self._names]
        for name, kind in zip(names, (*self.sub, *self.columns), strict=True):
            fields.append(pa.field(name, kind.arrow, nullable=False))
        if self.domain is not None:
            fields.append(
                pa.field(DUE, pa.int64(), nullable=False, metadata={"domain": self.domain.value})
            )
        fields.append(pa.field(DELETED, pa.bool_(), nullable=False))
        return pa.schema([*fields, *([pa.field(VERSION, pa.uint16())] if self.version > 1 else [])])

    def take_changes(self) -> pa.RecordBatch | None:
        """Return the rows that were changed since the last time, sorted by hash, and forget it."""
        if not self._dirty:
            self._free_up(self._loose)
            return None
        slots = self._dirty[0] if len(self._dirty) == 1 else np.concatenate(self._dirty)
        self._dirty = []
        hashes = self._hashes[slots]
        if len(slots) > 1 and not (hashes[1:] > hashes[:-1]).all():
            slots = distinct(slots)
            slots = slots[order_by_hash(self._hashes[slots])]
            hashes = self._hashes[slots]
        batch = self._batch(slots, hashes)
        self._free_up([slots, *self._loose])
        return batch

    def _free_up(self, some: list[Slots]) -> None:
        """Let the slots of some rows that are gone be given to others. Costs the rows that are gone."""
        gone = [slots[~(self._live[slots] | self._slots.free[slots])] for slots in some]
        self._loose = []
        self._release(gone[0] if len(gone) == 1 else distinct(np.concatenate([*gone, _NO_SLOTS])))
        if self._slots.outgrown(len(self), _FEWEST_SLOTS):
            self.compact()

    def _release(self, slots: Slots) -> None:
        """Take slots (each once) that hold no row, or one that is forgotten, out of the index."""
        if not len(slots):
            return
        self._slots.release(slots)
        self._index.remove(self._row_hashes[slots], self._slots.free, self._row_hashes)
        kinds = (*self.keys, *self.sub, *self.columns)
        for kind, column in zip(kinds, (*self._identity, *self._content), strict=True):
            if column.dtype == object:
                self._text_bytes -= _text_bytes(column[slots])
                column[slots] = kind.empty

    def _batch(self, slots: Slots, hashes: U64) -> pa.RecordBatch:
        live = self._live[slots]
        columns = [pa.array(hashes)]
        for kind, column in zip((*self.keys, *self.sub), self._identity, strict=True):
            columns.append(kind.to_arrow(column[slots]))
        for number, kind in enumerate(self.columns):
            columns.append(kind.to_arrow(self.values(number, slots, live)))
        if self.domain is not None:
            columns.append(pa.array(self.due_times(slots, live)))
        columns.append(pa.array(~live))
        if self.version > 1:
            columns.append(pa.array(np.full(len(slots), self.version, dtype=np.uint16)))
        return pa.record_batch(columns, schema=self.schema)

    def rows_in(self, ranges: Ranges) -> pa.RecordBatch | None:
        """Return the live rows of some hashes, sorted by hash; None when there are none.

        Costs what it returns: rows are found in the index, which is in order of hashes, or by a list of
        slots that is.
        """
        slots = self._slots_of(ranges)
        slots = slots[self._live[slots]]
        if not len(slots):
            return None
        slots = slots[order_by_hash(self._hashes[slots])]
        return self._batch(slots, self._hashes[slots])

    def _slots_of(self, ranges: Ranges) -> Slots:
        """Return the slots of some hashes, also of rows that are gone and not written yet."""
        if self._by_hash is None:
            slots = self._index.near(ranges)
            return slots[ranges.contain(self._hashes[slots])]
        slots = self._by_hash.between(ranges.firsts, ranges.lasts)
        stays = ranges.contain(self._hashes[slots]) & ~self._slots.free[slots]
        return distinct(slots[stays])  # (a slot that was given again is there more than once)

    def absorb(self, table: pa.Table) -> None:
        """Take rows of a section over what is there; they count as no change of this step."""
        changed = len(self._dirty)
        names = [kind.name for kind in self.keys] + [SUB_PREFIX + kind.name for kind in self.sub]
        identity = [
            kind.from_arrow(table.column(name))
            for kind, name in zip((*self.keys, *self.sub), names, strict=True)
        ]
        hashes = table.column(HASH).to_numpy()
        row_hashes = self.row_hashes(hashes, identity[len(self.keys) :])
        gone = table.column(DELETED).to_numpy()
        slots = self.find(row_hashes, identity)
        self.remove(slots[gone])
        stays = ~gone
        if gone.any():
            slots, hashes, row_hashes = slots[stays], hashes[stays], row_hashes[stays]
            identity = [column[stays] for column in identity]
        slots = self.claim(slots, hashes, row_hashes, identity)
        content = {
            number: kind.from_arrow(table.column(self._names[number]))[stays]
            for number, kind in enumerate(self.columns)
        }
        due = None if self.domain is None else table.column(DUE).to_numpy()[stays]
        self.put(slots, content, due)
        self._loose += self._dirty[changed:]
        del self._dirty[changed:]

    # -- memory -------------------------------------------------------------------------------

    @property
    def row_bytes(self) -> int:
        """About how much memory a row takes, with its part of the index."""
        kinds = [*self.keys, *self.sub, *self.columns]
        own = sum(_OBJECT_BYTES if kind.dtype == object else kind.dtype.itemsize for kind in kinds)
        due = 8 if self.domain is not None else 0
        return own + 8 + (16 if self.sub else 0) + due + 1 + 12

    @property
    def nbytes(self) -> int:
        """About how much memory the table takes."""
        return self._slots.reach * self.row_bytes + self._text_bytes + len(self.due) * 12

    @property
    def used(self) -> int:
        """How many slots rows have, also such as are gone when that has not been written yet."""
        return len(self._slots)

    @property
    def given(self) -> int:
        """How often a slot was given to a row that was not there."""
        return self._slots.given

    def bytes_by_bin(self, bins_of: BinsOf, bins: int) -> npt.NDArray[np.int64]:
        """Return about how much memory the rows of each bin take."""
        live = self._live[: self._slots.reach]
        rows = np.bincount(bins_of(self._hashes[: self._slots.reach][live]), minlength=bins)
        return rows * (self.nbytes // max(self._slots.reach, 1))

    @property
    def sparse(self) -> bool:
        """Whether a quarter of its memory or more holds no row."""
        return self._dead > _FEWEST_SLOTS and 4 * self._dead > self._slots.reach

    def compact(self) -> None:
        """Give back the memory of all slots that hold no row. Costs all rows."""
        self.keep_only(np.ones(self._slots.reach, dtype=np.bool_))

    def keep_only(self, stays: Mask) -> None:
        """Forget all rows but some (by slot), and give all slots anew. Costs all rows."""
        slots = np.flatnonzero(stays & self._live[: self._slots.reach])
        hashes, row_hashes = self._hashes[slots], self._row_hashes[slots]
        due = _never_due(len(slots)) if self.domain is None else self._due[slots]
        self._identity = [column[slots] for column in self._identity]
        self._content = [column[slots] for column in self._content]
        self._hashes = hashes
        self._row_hashes = row_hashes if self.sub else hashes
        self._due, self._live = due, np.ones(len(slots), dtype=np.bool_)
        self._slots.begin(len(slots))
        self._dead, self._loose = 0, []
        self._index_anew(len(slots) // 8)
        if self._by_hash is not None:
            self._by_hash = SortedRuns(np.uint64)
            self._by_hash.push(hashes, np.arange(len(slots), dtype=np.int32))
        texts = [c for c in (*self._identity, *self._content) if c.dtype == object]
        self._text_bytes = sum(_text_bytes(column) for column in texts)
        self.due = DueRows(self._pending)
        if self.domain is not None:
            self.due.push(due, np.arange(len(slots), dtype=np.int32))

    def forget(self, ranges: Ranges) -> tuple[U64, Times]:
        """Forget the rows of some hashes, which counts as no change; costs what is forgotten.

        Their memory is there for others; it is given back when most of the table is forgotten.

        Returns:
            The hashes of the rows that were there, and when each was due.
        """
        slots = self._slots_of(ranges)
        there = slots[self._live[slots]]
        hashes, due = self._hashes[there], self._due[there]
        self._live[there] = False
        self._dead += len(there)
        self._release(slots)
        if self.domain is not None:
            self._push_due(_NEVER_DUE[:0], slots[:0])
        if self._dead > _FEWEST_SLOTS and len(self) < FEW * self._slots.reach:
            self.compact()
        return hashes, due

    def expect(self, ranges: Ranges) -> None:
        """Say which hashes are expected from now on. Costs no row that is there (but see ``SlotIndex``)."""
        self._ranges = ranges
        if not self.sub and not self._index.expect(ranges, self._row_hashes):
            self._index_anew(self._slots.reach // 8)

    def make_room(self, ranges: Ranges) -> None:
        """Say that all rows of some hashes are to come, of which few are there, or none. Costs these.

        (They would crowd in an index that was made for those which are there.)
        """
        if self.sub:
            return
        there = self._slots_of(ranges)
        gone = np.zeros(len(self._live), dtype=np.bool_)
        gone[there] = True
        if not self._index.make_room(ranges, there, gone, self._row_hashes):
            self._index_anew(self._slots.reach // 8)

    def lowest_by_bin(self, bins_of: BinsOf, bins: int) -> Times:
        """Return the lowest pending time of each bin."""
        lowest = np.full(bins, MAX_TIME, dtype=np.int64)
        live = self._live[: self._slots.reach]
        due = np.minimum(self._due[: self._slots.reach][live], LAST_TIMER)
        np.minimum.at(lowest, bins_of(self._hashes[: self._slots.reach][live]), due)
        return lowest

    def used_hashes(self) -> U64:
        """The hashes of all slots that have ever been given, also of those that hold no row."""
        return self._hashes[: self._slots.reach]


def _text_bytes(values: Column) -> int:
    return sum(map(len, values.tolist()))


def _never_due(count: int) -> Times:
    """Return one number, seen as many: rows without a clock spend no memory on it."""
    return np.broadcast_to(_NEVER_DUE, count)


def grow(columns: list[Column], capacity: int) -> list[Column]:
    """Return columns with more room; takes them out of the list: what nobody else holds grows in place.

    (A copy of a column of objects looks at each of them, twice.)
    """
    grown = []
    columns.reverse()
    while columns:
        column = columns.pop()
        try:
            column.resize(capacity)
        except ValueError:  # somebody holds it, or it is part of another one
            old, column = column, np.empty(capacity, dtype=column.dtype)
            column[: len(old)] = old
        grown.append(column)
    return grown


def rows_are_distinct(
    at: npt.NDArray[np.int64], row_hashes: U64, identity: Sequence[Column]
) -> bool:
    """Say whether some rows are all different."""
    wanted = row_hashes[at]
    if len(at) < 2 or (wanted[1:] > wanted[:-1]).all():
        return True
    chosen, _ = _distinct(at, wanted, identity)
    return len(chosen) == len(at)


def _distinct(
    missing: npt.NDArray[np.int64], wanted: U64, identity: Sequence[Column]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the first of each row among those missing, and which of them each one is."""
    _, first, same_as = np.unique(wanted, return_index=True, return_inverse=True)
    chosen = missing[first]
    for column in identity:
        if not (column[missing] == column[chosen[same_as]]).all():
            break
    else:
        return chosen, same_as
    # Different rows of one hash: rare enough for a walk in Python.
    numbers: dict[tuple[Any, ...], int] = {}
    parts = zip(*(column[missing].tolist() for column in identity), strict=True)
    which = np.array([numbers.setdefault(part, len(numbers)) for part in parts])
    _, first = np.unique(which, return_index=True)
    return missing[first], which
