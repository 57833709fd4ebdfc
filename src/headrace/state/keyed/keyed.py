"""The soft state of a per-record computation on one worker: keys, their cells, and their timers.

The work of a step is proportional to the keys and bins that it touches, not to those that exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.computation.declarations import hold_cell
from headrace.errors import UserCodeError
from headrace.eventtime.domains import EVENT_TIME, WALL_TIME, TimeDomain
from headrace.eventtime.timestamps import MAX_TIME
from headrace.keyspace.layout import Layout
from headrace.keyspace.ordering import order_by_hash
from headrace.keyspace.ranges import Ranges
from headrace.pipeline import Node
from headrace.runfiles.format import LAST_TIMER, RunPart
from headrace.runfiles.sections import (
    CELL,
    CELLS,
    EXPIRES,
    EXPIRES_WALL,
    SUB,
    VALUE,
    VERSION,
    due_rows,
)
from headrace.schema.keys import keys_of
from headrace.schema.reserved import HASH
from headrace.state.bins import BinnedState
from headrace.state.keyed.cell_types import DATED, CellType, put_element, remove_row
from headrace.state.keyed.cells import KeyCells
from headrace.state.keyed.changes import CellChanges
from headrace.state.keyed.expiring import (
    NEVER,
    Clocks,
)
from headrace.state.keyed.handles import (
    MISSING,
    BoundHoldingTimer,
    Cursor,
)
from headrace.state.keyed.queues import ExpiryQueue, TimerQueue
from headrace.state.keyed.weights import FEW, KEY_BYTES, Weights
from headrace.state.relayout import changed_bins
from headrace.state.upgrading import CellRows


def _keys_of(node: Node, table: pa.Table) -> list[Any]:
    return keys_of([table.column(field.name).combine_chunks() for field in node.key_fields])


class KeyedState(BinnedState):
    """The keys of one per-record computation on one worker.

    Args:
        node: the computation in its pipeline.
        layout: bins and owners. :meth:`relayout` follows live changes.
    """

    def __init__(self, node: Node, layout: Layout) -> None:
        super().__init__(node, layout)
        self.cursor = Cursor()
        declared = node.declarations.cells
        attributes = node.declarations.attributes
        self.cells = [
            CellType(i, name, item, node.name, attributes.get(name, ""))
            for i, (name, item) in enumerate(declared.items())
        ]
        self._slots = {cell.name: cell.slot for cell in self.cells}
        self._clocks = Clocks()
        self.handles = {c.attribute: self._handle(c) for c in self.cells if c.kind != "hold"}
        self.queues = {
            domain: TimerQueue(place, [c.slot for c in self.cells if c.domain is domain])
            for place, domain in enumerate(TimeDomain)
        }
        self.holds = TimerQueue(len(self.queues), [c.slot for c in self.cells if c.kind == "hold"])
        self._expiring = {
            domain: [cell for cell in self.cells if cell.ttl_domain is domain]
            for domain in TimeDomain
        }
        self.expiry = {
            domain: ExpiryQueue(place, self._expiring[domain])
            for place, domain in enumerate(TimeDomain, len(self.queues) + 1)
            if self._expiring[domain]
        }
        self._all_queues = [*self.queues.values(), self.holds, *self.expiry.values()]
        self._queues_of = {
            c.slot: self.holds if c.domain is None else self.queues[c.domain]
            for c in self.cells
            if c.kind in DATED
        }
        self._empty = [cell.empty for cell in self.cells]
        self._schema = state_schema(node)
        upgrades = {cell.name: cell.upgrades for cell in self.cells if cell.upgrades is not None}
        # Nothing here refers back to this object. A process that drops it frees it by reference
        # counting, since the garbage collector does not see it.
        self._stored = CellRows(upgrades, lambda row: f", key {_keys_of(node, row)[0]!r}")
        self._bins: dict[int, dict[Any, KeyCells]] = {}  # by the bin's first hash
        self._cached = 0  # the number of keys in _bins
        self._weights = Weights(len(self.cells))
        self._changes = [cell.no_changes() for cell in self.cells]
        self._is_unordered = False

    def _handle(self, cell: CellType) -> Any:
        clocks, holds = self._clocks, self._slots.get(hold_cell(cell.name))
        if holds is not None:
            handle = BoundHoldingTimer(self.cursor, cell.slot, holds)
        else:
            handle = cell.handle(self.cursor, clocks)
        if cell.kind == "timer":
            by_wall = cell.domain is WALL_TIME
            handle.near = clocks.read_wall if by_wall else clocks.read_cause
        return handle

    # -- bins ---------------------------------------------------------------------------------

    @property
    def sections(self) -> tuple[str, ...]:
        """One section, which holds all cells."""
        return (CELLS,)

    def cached_bytes(self) -> int:
        """Return about how much memory the keys take, in bytes."""
        return self._cached * KEY_BYTES + self._weights.nbytes

    def bytes_of_bins(self) -> npt.NDArray[np.int64]:
        """Return about how much memory the keys of each bin take, in bytes."""
        sizes = np.zeros(len(self.layout), dtype=np.int64)
        lengths = np.array([len(keys) for keys in self._bins.values()], dtype=np.int64)
        starts = np.array(list(self._bins), dtype=np.uint64)
        sizes[self.layout.bins_of(starts)] = lengths * KEY_BYTES
        if self._weights:
            hashes, more = self._weights.by_key()
            np.add.at(sizes, self.layout.bins_of(hashes), more)
        return sizes

    def drop(self, bins: npt.NDArray[np.bool_]) -> dict[TimeDomain, npt.NDArray[np.int64]]:
        """Evict the keys of some bins. Return the lowest pending time in each bin of the layout."""
        lowest = self.evict(bins)
        for queue in self._all_queues:
            queue.drop_stale()
        return lowest

    def evict(self, bins: npt.NDArray[np.bool_]) -> dict[TimeDomain, npt.NDArray[np.int64]]:
        """Evict the keys of some bins like :meth:`drop`, at the cost of the keys that leave.

        Queues forget these keys when they come to them, or when most of their entries are stale.
        """
        lowest = {d: np.full(len(bins), MAX_TIME, dtype=np.int64) for d in TimeDomain}
        timers = [cell for cell in self.cells if cell.kind in DATED]
        for at, bin_ in self._bins_among(bins):
            keys = self._bins.pop(bin_)
            self._cached -= len(keys)
            for cells in keys.values():
                for domain, waiting in self.expiry.items():
                    first = waiting.lowest_of(cells)
                    if first is not None:
                        lowest[domain][at] = min(int(lowest[domain][at]), LAST_TIMER, first)
                for cell in timers:
                    times = cells.slots[cell.slot]
                    if times:
                        of = lowest[cell.domain or EVENT_TIME]
                        of[at] = min(int(of[at]), LAST_TIMER, *times.values())
                for queue in self._all_queues:
                    queue.forget(cells)
                self._weights.forget(cells)
                cells.slots = []  # entries of queues may refer to the cells for some time
        for queue in self._all_queues:
            queue.tidy()
        return lowest

    def _bins_among(self, bins: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
        """Return (position, first hash) of those of some bins that have keys in memory."""
        found = np.flatnonzero(bins)
        starts = self.layout.starts[found].tolist()
        return [pair for pair in zip(found.tolist(), starts, strict=True) if pair[1] in self._bins]

    def regroup(self, before: Layout) -> None:
        """Move the keys of bins that were split or merged to their new bins."""
        for bin_ in before.starts[changed_bins(before, self.layout)].tolist():
            keys = self._bins.pop(bin_, None)
            if not keys:
                continue
            hashes = np.array([cells.hash for cells in keys.values()], dtype=np.uint64)
            starts = self.layout.starts_of(hashes).tolist()
            for start, (key, cells) in zip(starts, keys.items(), strict=True):
                self._bins.setdefault(start, {})[key] = cells

    def lowest_loaded(self, domain: TimeDomain) -> int:
        """Return the lowest pending time of the keys in memory. In event time, a lower bound of it.

        A hold counts as pending in event time.
        """
        queue = self.queues[domain]
        if domain is WALL_TIME:
            expiry = self.expiry.get(domain)
            return queue.lowest() if expiry is None else min(queue.lowest(), expiry.lowest())
        return min(queue.bound(), self.lowest_hold())

    def lowest_hold(self) -> int:
        """Return the lowest hold, or ``MAX_TIME``.

        Exact once all bins that are due have been loaded.
        """
        return self.holds.lowest()

    def lowest_due(self) -> int:
        """Return the lowest pending event timer or post of the keys in memory."""
        return min(
            [self.queues[EVENT_TIME].lowest(), *(post.lowest() for post in self.posts.values())]
        )

    def as_declared(self, section: str, table: pa.Table) -> pa.Table:
        """Return stored rows with values of older versions upgraded."""
        return self._stored.as_declared(table)

    def apply_changes(self, section: str, table: pa.Table) -> None:
        """Apply rows to the state in memory: a loaded bin's content, or a missed step's changes."""
        by_name = {cell.name: cell for cell in self.cells}
        hashes = table.column(HASH).to_numpy()
        bins = self.layout.starts_of(hashes).tolist()
        keys = _keys_of(self.node, table)
        columns = [table.column(name).to_pylist() for name in (CELL, SUB, VALUE)]
        hash_list = hashes.tolist()
        changed: set[tuple[KeyCells, int]] = set()
        if self.expiry:
            self._apply_expiring(table, bins, keys, columns)
        container: tuple[KeyCells, int] | None = None
        containers: list[tuple[KeyCells, int]] = []
        for hash_, bin_, key, name, sub, value in zip(hash_list, bins, keys, *columns, strict=True):
            cell = by_name.get(name)
            if cell is None or cell.expiring is not None:
                continue  # not declared any longer, and kept in storage; or expiring, see above
            cells = self.find(bin_, key, hash_)
            if value is None:
                remove_row(cell, cells, sub)
            elif cell.kind == "list":
                put_element(cell, cells, sub, value)
            else:
                cell.load(cells.slots, sub, value)
            if cell.kind in DATED and value is not None:
                changed.add((cells, cell.slot))
            if cell.kind != "value" and container != (cells, cell.slot):
                container = cells, cell.slot
                containers.append(container)
        for cells, slot in changed:
            self._queues_of[slot].push_lowest(cells)
        for cells, slot in containers:
            count = len(cells.slots[slot] or ())
            if count > FEW or self._weights:
                self._weights.note(cells, slot, count, ())
        self._weigh_loaded(bins, keys, columns)

    def _apply_expiring(
        self, table: pa.Table, bins: list[int], keys: list[Any], columns: list[list[Any]]
    ) -> None:
        """Apply rows of states with a time to live to the state in memory."""
        by_name = {cell.name: cell for cells in self._expiring.values() for cell in cells}
        never: list[Any] = [None] * table.num_rows
        untils = {
            domain: table.column(name).to_pylist() if name in table.column_names else never
            for domain, name in _EXPIRES.items()
        }
        hashes = table.column(HASH).to_pylist()
        changed: set[KeyCells] = set()
        for row, (name, sub, value) in enumerate(zip(*columns, strict=True)):
            cell = by_name.get(name)
            if cell is None or cell.expiring is None or cell.ttl_domain is None:
                continue
            cells = self.find(bins[row], keys[row], hashes[row])
            if value is None:
                cell.expiring.remove(cells.slots, cell.slot, sub)
                continue
            until = untils[cell.ttl_domain][row]
            cell.load(cells.slots, sub, value, NEVER if until is None else until)
            changed.add(cells)
        for cells in changed:
            for queue in self.expiry.values():
                queue.push_lowest(cells)

    def _weigh_loaded(self, bins: list[int], keys: list[Any], columns: list[list[Any]]) -> None:
        """Note the large rows among those that were applied."""
        names, subs, values = columns
        by_name = {c.name: c for c in self.cells if c.kind not in DATED and c.can_be_large}
        for name, cell in by_name.items():
            stored = [value for of, value in zip(names, values, strict=True) if of == name]
            self._weights.measure(cell.slot, stored, cell.codec.decode)
        for row, (name, value) in enumerate(zip(names, values, strict=True)):
            cell_ = by_name.get(name)
            if cell_ is None or (not self._weights and value is None):
                continue
            if self._weights or len(value) > self._weights.small[cell_.slot]:
                cells = self._bins.get(bins[row], {}).get(keys[row])
                if cells is not None:
                    entries = cell_.entries_of(cells.slots[cell_.slot])
                    self._weights.note(cells, cell_.slot, entries, [(subs[row], value)])

    # -- a step -------------------------------------------------------------------------------

    def set_clocks(self, until: Mapping[TimeDomain, int]) -> None:
        """Set the clocks of this step, by domain."""
        self._clocks.now_us = until[WALL_TIME]
        for cell in self.cells:
            if cell.domain is not None:
                self.handles[cell.attribute].due_until = until[cell.domain]

    @contextmanager
    def fires_at(self, wall_us: int) -> Iterator[None]:
        """Let handlers know in a ``with`` block that a wall timer of this time has fired."""
        self._clocks.fired_us = wall_us
        try:
            yield
        finally:
            self._clocks.fired_us = None

    def hold_from(self, time: int, cause: Callable[[], int]) -> None:
        """Set the output watermark, before which no hold can begin.

        Args:
            time: the output watermark of the previous step.
            cause: returns the event time of the record or timer that a handler was called for.
        """
        self._clocks.cause = cause
        for name in self.node.declarations.holding:
            self.handles[name].earliest, self.handles[name].cause = time, cause

    def release(self, timer: str, tag: str) -> int | None:
        """Remove the hold of a timer of the key at hand, and return it, or None for no hold."""
        handle = self.handles[timer]
        return handle.release(tag) if isinstance(handle, BoundHoldingTimer) else None

    def wait_on(self, cells: KeyCells) -> None:
        """Queue a key that was due for the timers that it has left."""
        for queue in self._all_queues:
            queue.push_lowest(cells)

    def find(self, bin_: int, key: Any, hash_: int) -> KeyCells:
        """Return the cells of a key in a loaded bin, given the bin's first hash.

        A new key starts empty.
        """
        keys = self._bins.get(bin_)
        if keys is None:
            keys = self._bins[bin_] = {}
        cells = keys.get(key)
        if cells is None:
            cells = keys[key] = KeyCells(hash_, key, self._empty.copy())
            self._cached += 1
        return cells

    def set_key(self, cells: KeyCells) -> None:
        """Move the handles to a key."""
        self.cursor.slots = cells.slots
        self.cursor.touched = {}

    def flush_key(self, cells: KeyCells) -> None:
        """Note what was touched of the key at hand, to be written with the step.

        Raises:
            UserCodeError: if a value is not of its declared type.
        """
        slots = cells.slots
        for slot, touched in self.cursor.touched.items():
            cell, changes = self.cells[slot], self._changes[slot]
            if cell.is_special:
                if cell.expiring is None:
                    self._flush_timer(cells, slot, touched)
                else:
                    self._flush_expiring(cells, cell, touched)
                continue
            content = slots[slot]
            try:
                if cell.kind == "value":  # (its weight is noted with all rows of the step)
                    encoded = None
                    if content is not MISSING:
                        encoded, slots[slot] = cell.keep(content)
                    changes.hashes.append(cells.hash)
                    changes.keys.append(cells.key)
                    changes.values.append(encoded)
                    continue
                rows = cell.changed_rows(content, touched)
            except TypeError as error:
                raise self._cannot_keep(cell, cells.key, error) from error
            small, has_large = self._weights.small[slot], False
            for sub, value in rows:
                changes.add(cells, sub, value)
                if value is not None and len(sub) + len(value) > small:
                    has_large = True
            if has_large or self._weights or (content is not None and len(content) > FEW):
                self._weights.note(cells, slot, len(content or ()), rows)
        if self.cursor.puts:
            self.cursor.puts.clear()  # values in memory were decoded again, so nothing shares them

    def _cannot_keep(self, cell: CellType, key: Any, error: TypeError) -> UserCodeError:
        return UserCodeError(
            f"state {cell.attribute!r} was given a value that it cannot keep: {error}",
            place=f"computation {self.node.name!r}, key {key!r}",
            remedy=f"set values of the declared type of {cell.attribute!r}",
        )

    def _flush_expiring(self, cells: KeyCells, cell: CellType, touched: Any) -> None:
        assert cell.expiring is not None and cell.ttl_domain is not None
        try:
            rows = cell.expiring.changed(cells.slots, cell.slot, touched)
        except TypeError as error:
            raise self._cannot_keep(cell, cells.key, error) from error
        lowest = NEVER
        for row in rows:
            self._changes[cell.slot].add_expiring(cells, *row)
            lowest = min(lowest, row[2])
        self._weights.note(cells, cell.slot, cell.entries_of(cells.slots[cell.slot]), rows)
        if lowest != NEVER:
            self.expiry[cell.ttl_domain].push(lowest, cells)

    def expire(self, domain: TimeDomain, until: int) -> None:
        """Delete entries that expire up to a time. Costs these, and the keys that have some."""
        queue = self.expiry.get(domain)
        if queue is None:
            return
        for cells in queue.due_keys(until):
            for cell in self._expiring[domain]:
                assert cell.expiring is not None
                gone = cell.expiring.take_expired(cells.slots, cell.slot, until)
                for sub in gone:
                    self._changes[cell.slot].add_expiring(cells, sub, None, NEVER)
                    self._is_unordered = True
                if gone and self._weights:
                    left = cell.entries_of(cells.slots[cell.slot])
                    self._weights.note(cells, cell.slot, left, [(sub, None) for sub in gone])
            queue.push_lowest(cells)
            if not any(self.cells[n].has(content) for n, content in enumerate(cells.slots)):
                self._drop_key(cells)

    def returns_to_keys(self) -> None:
        """Note that keys are visited again, so that their changes do not come in their order."""
        self._is_unordered = True

    def _drop_key(self, cells: KeyCells) -> None:
        """Forget a key that has no content left."""
        (bin_,) = self.layout.starts_of(np.array([cells.hash], dtype=np.uint64)).tolist()
        if self._bins.get(bin_, {}).pop(cells.key, None) is not None:
            self._cached -= 1
        self._weights.forget(cells)
        for queue in self._all_queues:
            queue.forget(cells)

    def _flush_timer(self, cells: KeyCells, slot: int, touched: set[str]) -> None:
        content = cells.slots[slot] or {}
        changes, queue = self._changes[slot], self._queues_of[slot]
        for tag in touched if len(touched) == 1 else sorted(touched):
            time = content.get(tag)
            changes.hashes.append(cells.hash)
            changes.keys.append(cells.key)
            changes.subs.append(tag)
            changes.values.append(time)
            if time is not None:
                queue.push(time, cells)
        if len(content) > FEW or self._weights:
            self._weights.note(cells, slot, len(content), ())

    def loaded_rows(self, ranges: Ranges) -> dict[str, pa.Table]:
        """Return the content of the keys in memory in some ranges of hashes."""
        keys = sorted(self._keys_in(ranges), key=lambda cells: cells.hash)
        whole = [cell.no_changes() for cell in self.cells]
        for cell, rows in zip(self.cells, whole, strict=True):
            for cells in keys:
                content = cells.slots[cell.slot]
                if cell.expiring is not None:
                    for row in cell.expiring.whole(content):
                        rows.add_expiring(cells, *row)
                    continue
                for sub, value in cell.whole_rows(content):
                    rows.add(cells, sub, value)
        batch = self._batch(whole)
        return {} if batch is None else {CELLS: pa.Table.from_batches([batch])}

    def _keys_in(self, ranges: Ranges) -> Iterator[KeyCells]:
        for first, last in ranges.pairs():
            edges = np.array([first, last], dtype=np.uint64)
            low, high = self.layout.bins_of(edges).tolist()
            for bin_ in self.layout.starts[low : high + 1].tolist():
                for cells in self._bins.get(bin_, {}).values():
                    if first <= cells.hash <= last:
                        yield cells

    def check_touched(self) -> None:
        """Check that what the handler at hand has touched can be stored.

        Raises:
            TypeError: if it cannot.
        """
        for slot, touched in self.cursor.touched.items():
            cell, content = self.cells[slot], self.cursor.slots[slot]
            if cell.expiring is not None:
                cell.expiring.check(content, touched)
                continue
            if cell.kind == "value":
                values = [] if content is MISSING else [content]
            elif cell.kind == "list":
                values = [content[at] for at in touched.among(len(content or []))]
            elif cell.kind == "map":
                values = [content[key] for key in touched if key in (content or {})]
                for key in touched:
                    cell.sub_codec.encode(key)
            else:
                continue
            for value in values:
                cell.codec.encode(value)

    def changed_parts(self) -> list[RunPart]:
        """Return what the step changed, to be written. Then forget that it changed."""
        if self._is_unordered:
            for changes in self._changes:
                changes.keep_newest()
            self._is_unordered = False
        self._weigh_changes()
        batch = self._batch(self._changes)
        for changes in self._changes:
            changes.clear()
        if batch is None:
            return []
        due = due_rows(batch, self.node.declarations.dated_cells)
        return [RunPart(self.node.name, CELLS, batch, due)]

    def _weigh_changes(self) -> None:
        """Note what the values that were set in this step take in memory. Measure a few of them."""
        measures = self._weights.measures_now()
        for cell, changes in zip(self.cells, self._changes, strict=True):
            if not changes or cell.kind in DATED:
                continue
            if measures and cell.can_be_large:
                self._weights.measure(cell.slot, changes.values, cell.codec.decode)
            if cell.kind == "value" and cell.expiring is None and cell.can_be_large:
                self._weigh_values(cell, changes)

    def _weigh_values(self, cell: CellType, changes: CellChanges) -> None:
        small = self._weights.small[cell.slot]
        if self._weights:
            rows = [*range(len(changes.keys))]
        else:
            lengths = [0 if value is None else len(value) for value in changes.values]
            if max(lengths) <= small:
                return
            rows = [row for row, length in enumerate(lengths) if length > small]
        hashes = np.array([changes.hashes[row] for row in rows], dtype=np.uint64)
        for row, bin_ in zip(rows, self.layout.starts_of(hashes).tolist(), strict=True):
            cells = self._bins.get(bin_, {}).get(changes.keys[row])
            if cells is not None:
                self._weights.note(cells, cell.slot, 0, [(b"", changes.values[row])])

    def _batch(self, changes: Sequence[CellChanges]) -> pa.RecordBatch | None:
        """Return the rows of all cells, by hash. Each cell's are by hash already."""
        found = [
            self._rows_of(of, cell) for cell, of in zip(self.cells, changes, strict=True) if of
        ]
        if len(found) <= 1:
            return found[0] if found else None
        table = pa.Table.from_batches(found).combine_chunks()
        order = order_by_hash(table.column(HASH).to_numpy())
        (batch,) = table.take(pa.array(order)).combine_chunks().to_batches()
        return batch

    def _rows_of(self, changes: CellChanges, cell: CellType) -> pa.RecordBatch:
        """Return the rows of one cell."""
        count = len(changes.keys)
        columns = [
            *changes.key_columns(self.node.key_fields),
            pa.repeat(cell.name, count),
            changes.sub_column(),
            changes.value_column(),
        ]
        if VERSION in self._schema.names:
            columns.append(pa.repeat(pa.scalar(cell.version, pa.uint16()), count))
        never = pa.nulls(count, pa.int64())
        columns += [
            changes.until_column() if cell.ttl_domain is domain else never for domain in self.expiry
        ]
        return pa.record_batch(columns, schema=self._schema)


def state_schema(node: Node) -> pa.Schema:
    """Return the columns of a computation's state in a run file."""
    versioned = any(item.version > 1 for item in node.declarations.cells.values())
    return pa.schema(
        [
            pa.field(HASH, pa.uint64(), nullable=False),
            *node.key_fields,
            pa.field(CELL, pa.string(), nullable=False),
            pa.field(SUB, pa.binary(), nullable=False),
            pa.field(VALUE, pa.binary()),
            *([pa.field(VERSION, pa.uint16())] if versioned else []),
            *(pa.field(_EXPIRES[domain], pa.int64()) for domain in _ttl_domains(node)),
        ]
    )


#: Names of the columns of expiry times.
_EXPIRES = {EVENT_TIME: EXPIRES, WALL_TIME: EXPIRES_WALL}


def _ttl_domains(node: Node) -> list[TimeDomain]:
    """Return the domains in which a computation has state with a time to live."""
    states = node.declarations.states.values()
    found = {item.ttl_domain for item in states if getattr(item, "ttl_us", None) is not None}
    return [domain for domain in TimeDomain if domain in found]
