"""The soft state of a columnar computation on one worker: tables, timers, and their handles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.computation.batches import FiredBatch, Keys
from headrace.computation.columnar import TableState
from headrace.computation.declarations import Timer as TimerDeclaration
from headrace.computation.declarations import stored_name
from headrace.computation.zset_state import ZSetState
from headrace.eventtime.domains import EVENT_TIME, WALL_TIME, TimeDomain
from headrace.eventtime.timestamps import LAST_DATE_US, MAX_TIME, MIN_TIME
from headrace.eventtime.units import check_unit, doubtful, first_misread
from headrace.keyspace.arrays import U64
from headrace.keyspace.distinct import distinct
from headrace.keyspace.layout import Layout
from headrace.keyspace.ranges import Ranges
from headrace.pipeline import Node
from headrace.runfiles.format import LAST_TIMER, RunPart
from headrace.runfiles.sections import due_rows, table_section, timer_section
from headrace.schema.columns import Column, ColumnType
from headrace.state.bins import BinnedState
from headrace.state.tables.due import Times
from headrace.state.tables.index import NO_SLOT, Slots
from headrace.state.tables.table import Mask, Table, rows_are_distinct
from headrace.state.tables.zset import BoundZSet
from headrace.state.upgrading import StoredTableRows

_TAG = "tag"


class StepClock:
    """The clock reading of the current step, for rows that live by wall time.

    Attributes:
        now_us: the clock reading.
        fired_us: the earliest of the wall timers that a handler was called for; None for other
            causes.
    """

    def __init__(self) -> None:
        self.now_us = 0
        self.fired_us: int | None = None

    @property
    def cause_us(self) -> int:
        """The wall time that caused the handler's call."""
        return self.now_us if self.fired_us is None else self.fired_us


class BoundRows:
    """Rows of a table in memory; see :class:`headrace.computation.table_handles.TableRows`."""

    def __init__(
        self, handle: BoundTable, keys: Keys, sub: list[Column], *, once: bool = False
    ) -> None:
        self._handle, self._once = handle, once
        self._table = handle.table
        self._keys = keys
        self._identity = [*keys.columns, *sub]
        self._row_hashes = self._table.row_hashes(keys.hashes, sub)
        self._slots = self._table.find(self._row_hashes, self._identity)
        self._seen = self._table.given

    def __len__(self) -> int:
        return len(self._slots)

    def _current(self) -> Slots:
        """Return the current slots.

        If the table has grown, look again for rows that were missing.
        """
        if self._seen != self._table.given:
            missing = np.flatnonzero(self._slots == NO_SLOT)
            identity = [column[missing] for column in self._identity]
            self._slots[missing] = self._table.find(self._row_hashes[missing], identity)
            self._seen = self._table.given
        return self._slots

    @property
    def exists(self) -> Mask:
        """Whether each of the rows exists."""
        return self._table.live(self._current())

    def __getitem__(self, name: str) -> Column:
        """Return a column of the rows; zero or empty for rows that do not exist."""
        slots = self._current()
        return self._table.values(self._handle.number_of(name), slots, self._table.live(slots))

    def upsert(self, **columns: Any) -> None:
        """Write the rows: create those that do not exist, and change the others.

        Args:
            columns: an array, or one value for all rows, for each column to be written. Other
                columns keep their values.

        Raises:
            ValueError: if a row occurs twice among the keys.
            TypeError: for a column that the table does not have, or values of another type.
        """
        handle, table = self._handle, self._table
        content = {}
        for name, values in columns.items():
            number = handle.number_of(name)
            content[number] = table.columns[number].coerced(values, len(self))
        if not len(self):
            return
        slots = self._current()
        if not self._once:
            handle.check_once(slots, self._row_hashes, self._identity)
        slots = table.claim(slots, self._keys.hashes, self._row_hashes, self._identity, once=True)
        table.put(slots, content, handle.lives_until(self._keys, slots))
        self._slots, self._seen = slots, table.given

    def delete(self, where: Mask | None = None) -> None:
        """Delete all of the rows, or some. Rows that do not exist are ignored."""
        slots = self._current()
        self._table.remove(distinct(slots if where is None else slots[where]))


class BoundTable:
    """A ``TableState`` over the table that a worker has in memory."""

    def __init__(self, name: str, declared: TableState, state: TableSet, place: str) -> None:
        self.name = name
        sub, columns = declared.column_types(place=f"{place}.{name}")
        domain = None if declared.ttl_us is None else declared.ttl_domain
        self.table = Table(
            table_section(stored_name(name, declared)),
            state.key_types,
            sub,
            columns,
            domain,
            state.ranges,
            hash_is_key=state.node.hash_is_key,
            version=declared.version,
        )
        self.stored = StoredTableRows(
            sub,
            columns,
            declared.version,
            declared.upgrades,
            place=f"computation {place!r}, table {name!r}",
        )
        self._schema = self.table.schema
        self._ttl_us = declared.ttl_us
        self._clock = state.clock
        self._numbers = {kind.name: number for number, kind in enumerate(columns)}

    def as_declared(self, table: pa.Table) -> pa.Table:
        """Return stored rows upgraded, and with today's columns."""
        return self.stored.as_declared(table, self._schema)

    def at(self, keys: Keys, **sub: Any) -> BoundRows:
        """Return the rows of some keys.

        Args:
            keys: keys from the batch.
            sub: an array, or one value for all keys, for each sub column of a table with ``sub``.

        Raises:
            TypeError: if the sub columns are not the declared ones.
        """
        kinds = self.table.sub
        if set(sub) != {kind.name for kind in kinds}:
            wanted = ", ".join(kind.name for kind in kinds) or "none"
            raise TypeError(f"table {self.name!r} has these sub columns: {wanted}")
        once = keys.once or keys.are_once_with(sub.values())
        columns = [kind.coerced(sub[kind.name], len(keys)) for kind in kinds]
        return BoundRows(self, keys, columns, once=once)

    def number_of(self, name: str) -> int:
        """Return the position of a column.

        Raises:
            TypeError: if the table has no column of that name.
        """
        try:
            return self._numbers[name]
        except KeyError:
            raise TypeError(
                f"table {self.name!r} has no column {name!r}; it has: {', '.join(self._numbers)}"
            ) from None

    def check_once(self, slots: Slots, row_hashes: U64, identity: Sequence[Column]) -> None:
        """Check that one call does not write a row twice, which would lose a change.

        Raises:
            ValueError: if it does.
        """
        there = slots[slots != NO_SLOT]
        new = np.flatnonzero(slots == NO_SLOT)
        if len(distinct(there)) == len(there) and rows_are_distinct(new, row_hashes, identity):
            return
        raise ValueError(
            f"table {self.name!r}: a row comes twice in one upsert; "
            "use batch.keys (each key once), or reduce the records to one a row first"
        )

    def lives_until(self, keys: Keys, slots: Slots) -> Times | None:
        """Return when rows that are written now will expire, or None without a time to live."""
        if self._ttl_us is None:
            return None
        table = self.table
        since = keys.times_us if table.domain is EVENT_TIME else self._clock.now_us
        since = np.minimum(np.full(len(slots), since, dtype=np.int64), MAX_TIME - self._ttl_us)
        until = since + self._ttl_us
        live = table.live(slots)
        return np.where(live, np.maximum(until, table.due_times(slots, live)), until)


def bound(name: str, declared: TableState, state: TableSet, place: str) -> BoundTable | BoundZSet:
    """Return the handle of a table, or of a Z-set."""
    if isinstance(declared, ZSetState):
        return BoundZSet(name, declared, state, place)
    return BoundTable(name, declared, state, place)


class TimersHandle:
    """A ``Timer`` of a columnar computation, which is set and cancelled for many keys at once."""

    def __init__(self, name: str, declared: TimerDeclaration, state: TableSet) -> None:
        self.name = name
        self.domain = declared.domain
        tag = ColumnType(_TAG, pa.int64())
        section = timer_section(stored_name(name, declared))
        self.table = Table(section, state.key_types, [tag], [], declared.domain)
        self._tag = tag
        self._clock = state.clock
        # (An ordered computation waits until the watermark has passed a time with all its timers.)
        self.passed = declared.passed and not state.node.ordered

    def _check_units(self, keys: Keys, times: Times) -> None:
        """Check that no time is obviously in a wrong unit.

        Raises:
            ValueError: if one probably is.
        """
        if not doubtful(times).any():
            return
        by_wall = self.domain is WALL_TIME
        near = np.full(len(keys), self._clock.cause_us) if by_wall else keys.times_us
        row = first_misread(times, near)
        if row is not None:
            check_unit(int(times[row]), int(near[row]))

    def _found(self, keys: Keys, tags: Any) -> tuple[Any, list[Column], Slots]:
        identity = [*keys.columns, self._tag.coerced(tags, len(keys))]
        row_hashes = self.table.row_hashes(keys.hashes, identity[len(keys.columns) :])
        return row_hashes, identity, self.table.find(row_hashes, identity)

    def set(self, keys: Keys, times_us: Any, *, tags: Any = 0) -> None:
        """Set a timer for each key.

        A timer that is already set with the same (name, tag) is replaced.

        Args:
            keys: a key may occur more than once; its last time then counts.
            times_us: microseconds since 1970 UTC: an array, or one time for all keys.
            tags: integers that distinguish a key's timers of one name.

        Raises:
            ValueError: for a time that is obviously in a wrong unit.
        """
        times = _TIME.coerced(times_us, len(keys))
        if not len(keys):
            return
        self._check_units(keys, times)
        row_hashes, identity, found = self._found(keys, tags)
        slots = self.table.claim(found, keys.hashes, row_hashes, identity)
        if len(slots) > 1 and not (slots[1:] > slots[:-1]).all():
            slots, at = np.unique(slots[::-1], return_index=True)
            times = times[::-1][at]
        self.table.put(slots, {}, times)

    def cancel(self, keys: Keys, *, tags: Any = 0) -> Mask:
        """Remove timers, and return for each whether it was set."""
        _, _, found = self._found(keys, tags)
        was_set = self.table.live(found)
        self.table.remove(distinct(found))
        return was_set

    def when_us(self, keys: Keys, *, tags: Any = 0) -> Times:
        """Return the time for which each timer is set, in microseconds; 2^63 - 1 if not set."""
        _, _, found = self._found(keys, tags)
        return self.table.due_times(found, self.table.live(found))

    def due_until(self, until: int) -> int:
        """Return the time up to which timers are due, if their clock has got to a given time."""
        return until - 1 if self.passed and MIN_TIME < until < MAX_TIME else until

    def fire(self, until: int, cause: tuple[int, int]) -> FiredBatch | None:
        """Remove the timers that are due at a time, and return them in order, or None.

        Args:
            until: the time that their clock has reached.
            cause: the default and the earliest event time of productions. An event timer has its
                own time instead, unless that is too late for a record.
        """
        table = self.table
        slots = table.pop_due(self.due_until(until))
        if not len(slots):
            return None
        hashes, identity = table.keys_at(slots)
        times = table.due_times(slots, np.ones(len(slots), dtype=np.bool_))
        tags = identity[-1]
        order = np.lexsort((tags, times, *_sortable(identity[-2::-1]), hashes))
        table.remove(np.sort(slots))
        hashes, times, tags = hashes[order], times[order], tags[order]
        columns = [column[order] for column in identity[:-1]]
        causes = self._causes(times, cause)
        keys = Keys(table.keys, hashes, columns, lambda: causes)
        return FiredBatch(self.name, self.domain, keys, times, tags)

    def _causes(self, times: Times, cause: tuple[int, int]) -> tuple[Times, Times]:
        """Return the default and the earliest event time of each timer's productions."""
        if self.domain is EVENT_TIME and int(times.max()) <= LAST_DATE_US:
            set_for = times.copy()
            return set_for, set_for
        own: Mask = (times <= LAST_DATE_US) & (self.domain is EVENT_TIME)
        return np.where(own, times, cause[0]), np.where(own, times, cause[1])


_TIME = ColumnType("times_us", pa.int64())


def _sortable(columns: Sequence[Column]) -> list[Column]:
    """Return columns by which rows of one hash sort in the same order everywhere."""
    return [
        np.unique(column, return_inverse=True)[1] if column.dtype == object else column
        for column in columns
    ]


class TableSet(BinnedState):
    """The tables and timers of one columnar computation on one worker."""

    def __init__(self, node: Node, layout: Layout, worker: int) -> None:
        super().__init__(node, layout)
        self.ranges = node.group.own(layout.ranges_of(worker))
        self.clock = StepClock()
        self.key_types = [ColumnType(field.name, field.type) for field in node.key_fields]
        declarations = node.declarations
        self.states = {
            name: bound(name, declared, self, node.name)
            for name, declared in declarations.states.items()
        }
        self.timers = {
            name: TimersHandle(name, declared, self)
            for name, declared in declarations.timers.items()
        }
        self.handles: dict[str, Any] = {**self.states, **self.timers}
        self.tables = {handle.table.section: handle.table for handle in self.handles.values()}
        self._stored = {of.table.section: of.as_declared for of in self.states.values()}

    # -- bins ---------------------------------------------------------------------------------

    @property
    def sections(self) -> list[str]:
        """One section for each table and each timer."""
        return list(self.tables)

    def as_declared(self, section: str, table: pa.Table) -> pa.Table:
        """Return stored rows upgraded, and with today's columns."""
        stored = self._stored.get(section)
        return table if stored is None else stored(table)

    def apply_changes(self, section: str, table: pa.Table) -> None:
        """Apply rows to the state in memory: a loaded bin's content, or a missed step's changes."""
        self.tables[section].apply_changes(table)

    def loaded_rows(self, ranges: Ranges) -> dict[str, pa.Table]:
        """Return the rows in memory in some ranges of hashes."""
        ranges = self.node.group.own(ranges)  # ranges may be joined with those of another group
        found = {section: table.rows_in(ranges) for section, table in self.tables.items()}
        return {
            name: pa.Table.from_batches([rows]) for name, rows in found.items() if rows is not None
        }

    def cached_bytes(self) -> int:
        """Return about how much memory the rows take, in bytes."""
        return sum(table.nbytes for table in self.tables.values())

    def bytes_of_bins(self) -> npt.NDArray[np.int64]:
        """Return about how much memory the rows of each bin take, in bytes."""
        sizes = np.zeros(len(self.layout), dtype=np.int64)
        for table in self.tables.values():
            sizes += table.bytes_by_bin(self.layout.bins_of, len(sizes))
        return sizes

    def drop(self, bins: npt.NDArray[np.bool_]) -> dict[TimeDomain, Times]:
        """Evict the rows of some bins. Return the lowest pending time in each bin of the layout."""
        lowest = {d: np.full(len(bins), MAX_TIME, dtype=np.int64) for d in TimeDomain}
        for table in self.tables.values():
            if table.domain is not None:
                times = table.lowest_by_bin(self.layout.bins_of, len(bins))
                times[~bins] = MAX_TIME
                np.minimum(lowest[table.domain], times, out=lowest[table.domain])
            table.keep_only(~bins[self.layout.bins_of(table.used_hashes())])
        return lowest

    def evict(self, bins: npt.NDArray[np.bool_]) -> dict[TimeDomain, Times]:
        """Evict the rows of some bins like :meth:`drop`, at the cost of the rows that leave."""
        lowest = {d: np.full(len(bins), MAX_TIME, dtype=np.int64) for d in TimeDomain}
        ranges = self.layout.ranges_of_bins(np.flatnonzero(bins))
        for table in self.tables.values():
            hashes, due = table.forget(ranges)
            if table.domain is not None:
                times = np.minimum(due, LAST_TIMER)
                np.minimum.at(lowest[table.domain], self.layout.bins_of(hashes), times)
        return lowest

    def expect(self, ranges: Ranges) -> None:
        """Note which hashes are the worker's from now on."""
        self.ranges = ranges
        for table in self.tables.values():
            table.expect(ranges)

    def make_room(self, ranges: Ranges) -> None:
        """Prepare for the rows of bins that are about to be loaded."""
        for table in self.tables.values():
            table.make_room(ranges)

    def compact(self) -> None:
        """Give back the memory of deleted rows, in tables where these are many."""
        for table in self.tables.values():
            if table.sparse:
                table.compact()

    def lowest_loaded(self, domain: TimeDomain) -> int:
        """Return a lower bound of the pending times in loaded bins.

        In event time only timers count.
        """
        if domain is EVENT_TIME:  # rows that expire in event time do not count as work
            timers = [timer.table for timer in self.timers.values()]
            return min((t.due.bound() for t in timers if t.domain is domain), default=MAX_TIME)
        pending = [t.due.lowest() for t in self.tables.values() if t.domain is domain]
        return min(pending, default=MAX_TIME)

    # -- a step -------------------------------------------------------------------------------

    def expire(self, domain: TimeDomain, until: int) -> None:
        """Delete the rows whose time to live has ended.

        Rows of Z-sets stay at the end of the input. If that is taken back, more may touch them.
        """
        for handle in self.states.values():
            table = handle.table
            if isinstance(handle, BoundZSet) and until >= MAX_TIME:
                continue
            if table.domain is domain:
                table.remove(np.sort(table.pop_due(until)))

    def begin(self) -> list[int]:
        """Start to log changes. Return a mark for :meth:`undo`."""
        return [table.begin() for table in self.tables.values()]

    def keep(self) -> None:
        """Keep the changes since :meth:`begin`."""
        for table in self.tables.values():
            table.keep()

    def undo(self, marks: list[int]) -> None:
        """Undo the changes since :meth:`begin`."""
        for table, mark in zip(self.tables.values(), marks, strict=True):
            table.undo(mark)

    def changed_parts(self) -> list[RunPart]:
        """Return what the step changed, to be written. Then forget that it changed."""
        parts = []
        for section, table in self.tables.items():
            batch = table.take_changes()
            if batch is not None:
                due = due_rows(batch, {})
                parts.append(RunPart(self.node.name, section, batch, due))
        return parts
