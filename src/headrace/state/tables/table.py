"""A keyed table in memory: rows in slots, found through an index, changed many at a time.

A slot is the place of a row. A deleted row keeps its slot, and is not *live*, until the deletion
has been written. Then its slot is *free*, and is given to the next new row. So a table in which
rows come and go neither grows nor has to be compacted.

The cost of each method depends on its arguments, not on the number of rows, with two exceptions.
Growing costs all rows, and each row pays for it a bounded number of times. Compacting costs all
rows, once they are a small part of what they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
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
#: Returns the bin of each hash.
BinsOf = Callable[[U64], npt.NDArray[np.int64]]
_NO_SLOTS: Slots = np.empty(0, dtype=np.int32)
_NEVER_DUE: Times = np.full(1, MAX_TIME, dtype=np.int64)
_OBJECT_BYTES = 64
#: About how many bytes a character takes in a text that is not all ASCII, with the encoded form that
#: Python keeps of it.
_WIDE_CHARACTER = 4
_FEWEST_SLOTS = 1_024


class Table:
    """The rows of one table, or of one timer, of a columnar computation.

    Args:
        section: its section in run files.
        keys: the parts of the key.
        sub: the columns that distinguish the rows of one key.
        columns: the other columns.
        domain: the clock by which rows are due, or None.
        ranges: the hash ranges of the expected keys.
        hash_is_key: whether equal hashes mean equal keys. If not, keys are compared.
        version: version of the columns.
    """

    def __init__(
        self,
        section: str,
        keys: Sequence[ColumnType],
        sub: Sequence[ColumnType],
        columns: Sequence[ColumnType],
        domain: TimeDomain | None,
        ranges: Ranges | None = None,
        *,
        hash_is_key: bool = False,
        version: int = 1,
    ) -> None:
        self.section = section
        self.version = version
        self._names = [column_name(kind.name, version) for kind in columns]
        self.keys, self.sub, self.columns = keys, sub, columns
        self.domain = domain
        self.due = DueRows(self._pending)
        self._hash_is_key = hash_is_key and not sub
        self._hash_is_one_key = hash_is_key
        self._ranges = ranges
        self._index = SlotIndex(None if sub else ranges)
        # Rows with subs are indexed by a hash of key and subs. So their keys' hashes are also kept
        # in order.
        self._by_hash = SortedRuns(np.uint64) if sub else None
        self._slots = SlotPool()
        self._dead = 0  # the number of slots without a row, free or not
        self._loose: list[Slots] = []  # slots that may have no row, and no change to be written
        self._text_bytes = 0  # size of texts and bytes in all columns
        self._hashes: U64 = np.empty(0, dtype=np.uint64)
        self._row_hashes: U64 = np.empty(0, dtype=np.uint64)
        self._live: Mask = np.empty(0, dtype=np.bool_)
        self._due: Times = _NEVER_DUE[:0]
        self._identity: list[Column] = [c.new(0) for c in (*keys, *sub)]
        self._content: list[Column] = [c.new(0) for c in columns]
        self._dirty: list[Slots] = []
        self._journal: list[tuple[Slots, Mask, Times, list[Column]]] | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._slots.reach - self._dead

    # -- finding ------------------------------------------------------------------------------

    def row_hashes(self, hashes: U64, sub: Sequence[Column]) -> U64:
        """Return the hashes by which rows are found: of the key or, with subs, of key and subs."""
        if not self.sub:
            return hashes
        columns = [c.to_arrow(values) for c, values in zip(self.sub, sub, strict=True)]
        return hash_words(hashes + hash_columns(columns))

    def find(self, row_hashes: U64, identity: Sequence[Column]) -> Slots:
        """Return the slot of each row, or ``NO_SLOT``. A slot may hold a deleted row."""

        def same(at: npt.NDArray[np.int64], slots: Slots) -> Mask:
            equal: Mask = self._row_hashes[slots] == row_hashes[at]
            if not self._hash_is_key and equal.any():
                hit = np.flatnonzero(equal)
                for stored, wanted in zip(self._identity, identity, strict=True):
                    equal[hit] &= (stored[slots[hit]] == wanted[at[hit]]).astype(np.bool_)
            return equal

        return self._index.find(row_hashes, same)

    def claim(
        self,
        found: Slots,
        hashes: U64,
        row_hashes: U64,
        identity: Sequence[Column],
        *,
        once: bool = False,
    ) -> Slots:
        """Return the slots of rows. Rows that were not found get new slots.

        Args:
            found: the slots, as :meth:`find` returned them.
            hashes: hashes of the keys.
            row_hashes: hashes of the rows.
            identity: the columns of keys and subs.
            once: whether each row is known to occur once.
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
            self._rebuild_index(self._slots.reach // 8)
        return slots

    def _push_hashes(self, hashes: U64, slots: Slots) -> None:
        """Note where keys are, in order of hashes.

        Start over if most entries are of deleted rows.
        """
        assert self._by_hash is not None
        if len(self._by_hash) > 2 * self.used + _FEWEST_SLOTS:
            self._by_hash = SortedRuns(np.uint64)
            slots = self._slots.in_use()
            slots = slots[order_by_hash(self._hashes[slots])]
            hashes = self._hashes[slots]
        self._by_hash.push(hashes, slots)

    def _rebuild_index(self, more: int) -> None:
        slots = self._slots.in_use()
        hashes = self._row_hashes[slots]
        self._index.rebuild(None if self.sub else self._ranges, hashes, slots, more)

    def _grow(self, least: int) -> None:
        # Columns mostly grow in place, so that no step waits while all rows are copied.
        capacity = max(_FEWEST_SLOTS, least + least // 8)
        if not self.sub:
            del self._row_hashes  # the same array as _hashes
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
        """Names of the arrays with an entry for each slot, other than identity and content."""
        there = {
            "_hashes": True,
            "_row_hashes": bool(self.sub),
            "_live": True,
            "_due": self.domain is not None,
        }
        return [name for name, is_there in there.items() if is_there]

    # -- reading ------------------------------------------------------------------------------

    def live(self, slots: Slots) -> Mask:
        """Return for each slot whether it holds a row. ``NO_SLOT`` does not."""
        if not self._slots.reach:
            return np.zeros(len(slots), dtype=np.bool_)
        live: Mask = self._live[slots] & (slots != NO_SLOT)
        return live

    def values(self, number: int, slots: Slots, live: Mask) -> Column:
        """Return a column of some rows. Rows that do not exist read as empty."""
        kind = self.columns[number]
        if not self._slots.reach:
            return kind.new(len(slots))
        taken: Column = self._content[number][slots]
        taken[~live] = kind.empty
        return taken

    def due_times(self, slots: Slots, live: Mask) -> Times:
        """Return the time at which each row is due; ``MAX_TIME`` for rows that do not exist."""
        if not self._slots.reach:
            return np.full(len(slots), MAX_TIME, dtype=np.int64)
        return np.where(live, self._due[slots], MAX_TIME)

    def keys_at(self, slots: Slots) -> tuple[U64, list[Column]]:
        """Return the hashes of rows, and the columns of their keys and subs."""
        return self._hashes[slots], [column[slots] for column in self._identity]

    def rows_of_keys(
        self, hashes: U64, keys: Sequence[Column]
    ) -> tuple[npt.NDArray[np.int64], Slots]:
        """Return the rows of some keys, in no particular order, in a table with subs.

        Costs these rows, and for each key a look-up in a few sorted runs.

        Args:
            hashes: the hashes of the keys, each key once.
            keys: the columns of the keys.

        Returns:
            For each row the position of its key, and the slot.
        """
        assert self._by_hash is not None
        at, slots = self._by_hash.located(hashes)
        stays = self._live[slots] & (self._hashes[slots] == hashes[at])
        at, slots = at[stays], slots[stays]
        if not self._hash_is_one_key:
            same = np.ones(len(at), dtype=np.bool_)
            for stored, wanted in zip(self._identity, keys, strict=False):
                same &= (stored[slots] == wanted[at]).astype(np.bool_)
            at, slots = at[same], slots[same]
        once = self._seen_first(slots)
        return (at, slots) if once.all() else (at[once], slots[once])

    def ordered_rows_of_keys(
        self, hashes: U64, keys: Sequence[Column]
    ) -> tuple[npt.NDArray[np.int64], Slots]:
        """Return the rows of some keys, as :meth:`rows_of_keys` does, by key and hash of the row."""
        at, slots = self.rows_of_keys(hashes, keys)
        order = np.lexsort((self._row_hashes[slots], at))
        return at[order], slots[order]

    def sub_at(self, number: int, slots: Slots) -> Column:
        """Return one of the columns that distinguish the rows of a key, for some slots."""
        return self._identity[len(self.keys) + number][slots]

    def _seen_first(self, slots: Slots) -> Mask:
        """Return one place of each slot: a slot that was reused for its key occurs again."""
        if not len(slots):
            return np.ones(0, dtype=np.bool_)
        last = np.empty(int(slots.max()) + 1, dtype=np.int64)
        numbers = np.arange(len(slots))
        last[slots] = numbers
        first: Mask = last[slots] == numbers
        return first

    # -- changing -----------------------------------------------------------------------------

    def put(self, slots: Slots, content: dict[int, Column], due: Times | None) -> None:
        """Create or change rows, each once. Columns that are not given keep their values."""
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
        """Note when rows are due. Start over if most entries are stale."""
        if len(self.due) > 2 * len(self) + _FEWEST_SLOTS:
            self.due = DueRows(self._pending)
            slots = np.flatnonzero(self._live[: self._slots.reach]).astype(np.int32)
            times = self._due[slots]
        self.due.push(times, slots)

    def remove(self, slots: Slots) -> None:
        """Delete rows, each once. Rows that do not exist are ignored."""
        slots = slots[self.live(slots)]
        if not len(slots):
            return
        self._keep(slots)
        self._live[slots] = False
        self._dead += len(slots)
        self._dirty.append(slots)

    def pop_due(self, until: int) -> Slots:
        """Return the slots of live rows that are due up to a time, in no particular order.

        They are no longer pending, unless they are put again.
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
        """Start to log changes. Return a mark for :meth:`undo`."""
        self._journal = []
        return len(self._dirty)

    def keep(self) -> None:
        """Keep the changes since :meth:`begin`."""
        self._journal = None

    def undo(self, mark: int) -> None:
        """Undo the changes since :meth:`begin`."""
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

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of its section in run files."""
        fields = [pa.field(HASH, pa.uint64(), nullable=False)]
        fields += [pa.field(kind.name, kind.arrow, nullable=False) for kind in self.keys]
        names = [*(SUB_PREFIX + kind.name for kind in self.sub), *self._names]
        for name, kind in zip(names, (*self.sub, *self.columns), strict=True):
            fields.append(pa.field(name, kind.arrow, nullable=kind.nullable))
        if self.domain is not None:
            fields.append(
                pa.field(DUE, pa.int64(), nullable=False, metadata={"domain": self.domain.value})
            )
        fields.append(pa.field(DELETED, pa.bool_(), nullable=False))
        return pa.schema([*fields, *([pa.field(VERSION, pa.uint16())] if self.version > 1 else [])])

    def take_changes(self) -> pa.RecordBatch | None:
        """Return the rows changed since the last call, sorted by hash.

        Then forget that they changed.
        """
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
        """Free the slots of deleted rows among some. Costs the deleted rows."""
        gone = [slots[~(self._live[slots] | self._slots.free[slots])] for slots in some]
        self._loose = []
        self._release(gone[0] if len(gone) == 1 else distinct(np.concatenate([*gone, _NO_SLOTS])))
        if self._slots.outgrown(len(self), _FEWEST_SLOTS):
            self.compact()

    def _release(self, slots: Slots) -> None:
        """Remove slots, each once, from the index. They hold no row, or one that is forgotten."""
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
        """Return the live rows of some hashes, sorted by hash, or None if there are none.

        Costs what is returned. The rows are found through the index, which is in order of hashes,
        or through a list of slots in that order.
        """
        slots = self._slots_of(ranges)
        slots = slots[self._live[slots]]
        if not len(slots):
            return None
        slots = slots[order_by_hash(self._hashes[slots])]
        return self._batch(slots, self._hashes[slots])

    def _slots_of(self, ranges: Ranges) -> Slots:
        """Return the slots of some hashes, including deletions that are not written yet."""
        if self._by_hash is None:
            slots = self._index.near(ranges)
            return slots[ranges.contain(self._hashes[slots])]
        slots = self._by_hash.between(ranges.firsts, ranges.lasts)
        stays = ranges.contain(self._hashes[slots]) & ~self._slots.free[slots]
        return distinct(slots[stays])  # a slot that was reused occurs more than once

    def apply_changes(self, table: pa.Table) -> None:
        """Apply rows of a section. They do not count as changes of this step."""
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
        """About how much memory a row takes with its part of the index, in bytes."""
        kinds = [*self.keys, *self.sub, *self.columns]
        own = sum(_OBJECT_BYTES if kind.dtype == object else kind.dtype.itemsize for kind in kinds)
        due = 8 if self.domain is not None else 0
        return own + 8 + (16 if self.sub else 0) + due + 1 + 12

    @property
    def nbytes(self) -> int:
        """About how much memory the table takes, in bytes."""
        return self._slots.reach * self.row_bytes + self._text_bytes + len(self.due) * 12

    @property
    def used(self) -> int:
        """The number of slots in use, including those of deletions that are not written yet."""
        return len(self._slots)

    @property
    def given(self) -> int:
        """How often a slot was given to a new row."""
        return self._slots.given

    def bytes_by_bin(self, bins_of: BinsOf, bins: int) -> npt.NDArray[np.int64]:
        """Return about how much memory the rows of each bin take, in bytes."""
        slots = np.flatnonzero(self._live[: self._slots.reach])
        at = bins_of(self._hashes[slots])
        sizes = np.bincount(at, minlength=bins) * self.row_bytes
        for column in (*self._identity, *self._content):
            if column.dtype == object:
                np.add.at(sizes, at, _text_sizes(column[slots]))
        return sizes

    @property
    def sparse(self) -> bool:
        """Whether a quarter of its slots or more hold no row."""
        return self._dead > _FEWEST_SLOTS and 4 * self._dead > self._slots.reach

    def compact(self) -> None:
        """Give back the memory of all slots without a row. Costs all rows."""
        self.keep_only(np.ones(self._slots.reach, dtype=np.bool_))

    def keep_only(self, stays: Mask) -> None:
        """Forget all rows but some, given by slot, and renumber the slots. Costs all rows."""
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
        self._rebuild_index(len(slots) // 8)
        if self._by_hash is not None:
            self._by_hash = SortedRuns(np.uint64)
            self._by_hash.push(hashes, np.arange(len(slots), dtype=np.int32))
        texts = [c for c in (*self._identity, *self._content) if c.dtype == object]
        self._text_bytes = sum(_text_bytes(column) for column in texts)
        self.due = DueRows(self._pending)
        if self.domain is not None:
            self.due.push(due, np.arange(len(slots), dtype=np.int32))

    def forget(self, ranges: Ranges) -> tuple[U64, Times]:
        """Forget the rows of some hashes. This does not count as a change.

        Costs what is forgotten. The memory is reused for other rows. It is given back if most of
        the table is forgotten.

        Returns:
            The hashes of the forgotten rows, and when each was due.
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
        """Set the hashes that are expected from now on.

        Costs nothing for existing rows, unless :class:`SlotIndex` is rebuilt.
        """
        self._ranges = ranges
        if not self.sub and not self._index.expect(ranges, self._row_hashes):
            self._rebuild_index(self._slots.reach // 8)

    def make_room(self, ranges: Ranges) -> None:
        """Prepare for all rows of some hashes, of which few exist yet, or none. Costs these few.

        In an index that was made for the existing rows they would crowd.
        """
        if self.sub:
            return
        there = self._slots_of(ranges)
        gone = np.zeros(len(self._live), dtype=np.bool_)
        gone[there] = True
        if not self._index.make_room(ranges, there, gone, self._row_hashes):
            self._rebuild_index(self._slots.reach // 8)

    def lowest_by_bin(self, bins_of: BinsOf, bins: int) -> Times:
        """Return the lowest pending time in each bin."""
        lowest = np.full(bins, MAX_TIME, dtype=np.int64)
        live = self._live[: self._slots.reach]
        due = np.minimum(self._due[: self._slots.reach][live], LAST_TIMER)
        np.minimum.at(lowest, bins_of(self._hashes[: self._slots.reach][live]), due)
        return lowest

    def used_hashes(self) -> U64:
        """Return the hashes of all slots that were ever used, including those without a row."""
        return self._hashes[: self._slots.reach]


def _text_bytes(values: Column) -> int:
    there = [*filter(None, values.tolist())]  # (a column of rows may hold None)
    total = sum(map(len, there))
    if there and type(there[0]) is str and not all(map(str.isascii, there)):
        total += (_WIDE_CHARACTER - 1) * sum(len(text) for text in there if not text.isascii())
    return total


def _text_sizes(values: Column) -> npt.NDArray[np.int64]:
    """Return about how many bytes each text takes."""
    texts = values.tolist()
    sizes = (_WIDE_CHARACTER * len(t) if _is_wide(t) else len(t or ()) for t in texts)
    return np.fromiter(sizes, np.int64, len(texts))


def _is_wide(text: Any) -> bool:
    return isinstance(text, str) and not text.isascii()


def _never_due(count: int) -> Times:
    """Return ``MAX_TIME`` for a number of rows, without using memory for each."""
    return np.broadcast_to(_NEVER_DUE, count)


def grow(columns: list[Column], capacity: int) -> list[Column]:
    """Return columns with more room, and empty the list that is passed.

    A column to which nothing else refers grows in place. Copying a column of objects would look at
    each object twice.
    """
    grown = []
    columns.reverse()
    while columns:
        column = columns.pop()
        try:
            column.resize(capacity)
        except ValueError:  # something else refers to it, or it is a view
            old, column = column, np.empty(capacity, dtype=column.dtype)
            column[: len(old)] = old
        grown.append(column)
    return grown


def rows_are_distinct(
    at: npt.NDArray[np.int64], row_hashes: U64, identity: Sequence[Column]
) -> bool:
    """Return whether some rows are all different."""
    wanted = row_hashes[at]
    if len(at) < 2 or (wanted[1:] > wanted[:-1]).all():
        return True
    chosen, _ = _distinct(at, wanted, identity)
    return len(chosen) == len(at)


def _distinct(
    missing: npt.NDArray[np.int64], wanted: U64, identity: Sequence[Column]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the first of each different row among the missing, and which one each row equals."""
    _, first, same_as = np.unique(wanted, return_index=True, return_inverse=True)
    chosen = missing[first]
    for column in identity:
        if not (column[missing] == column[chosen[same_as]]).all():
            break
    else:
        return chosen, same_as
    # Different rows have the same hash: rare enough for a loop in Python.
    numbers: dict[tuple[Any, ...], int] = {}
    parts = zip(*(column[missing].tolist() for column in identity), strict=True)
    which = np.array([numbers.setdefault(part, len(numbers)) for part in parts])
    _, first = np.unique(which, return_index=True)
    return missing[first], which
