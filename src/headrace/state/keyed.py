"""The soft state of a per-record computation on one worker: keys, their cells, and their timers.

Work in a step follows the keys and bins touched, never those that exist.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.computation import EVENT_TIME, WALL_TIME, TimeDomain, hold_cell
from headrace.errors import UserCodeError, ensure
from headrace.eventtime.timestamps import MAX_TIME
from headrace.keyspace.layout import Layout
from headrace.keyspace.ranges import Ranges
from headrace.schema import column_to_python
from headrace.state.bins import BinnedState
from headrace.state.cells import (
    MISSING,
    Cursor,
    FrozenValueHandle,
    HoldingTimerHandle,
    KeyCells,
    ListHandle,
    MapHandle,
    TimerHandle,
    ValueHandle,
    Waiting,
)
from headrace.state.codecs import StateCodec
from headrace.state.mapkeys import MapKeyCodec
from headrace.state.relayout import changed_bins
from headrace.state.runs import HASH, LAST_TIMER, Part
from headrace.state.sections import CELL, CELLS, SUB, VALUE, VERSION
from headrace.state.upgrading import CellRows, ValueUpgrades
from headrace.topology import Node

#: A row of the section of cells: hash, key, slot, sub, value (None when it is gone).
CellRow = tuple[int, Any, int, bytes, bytes | None]

_ORDERED = (int, float, str, bytes, bool)
#: Cells of which each entry is a tag and a time.
_DATED = ("timer", "hold")
#: About what a key with its cells takes in memory, measured with small values.
KEY_BYTES = 512


class CellType:
    """One declaration of a computation: how its slot is stored."""

    def __init__(self, slot: int, name: str, declared: Any, place: str) -> None:
        self.slot = slot
        self.name = name
        self.version = declared.version
        self.upgrades: ValueUpgrades | None = None
        self.kind: str = declared.kind
        self.domain: TimeDomain | None = getattr(declared, "domain", None)
        self.default = getattr(declared, "default", None)
        if self.kind not in _DATED:
            self.codec = StateCodec(declared.type, declared.codec, place=f"{place}.{name}")
            self.keep = self.codec.keep
            if declared.version > 1:
                self.upgrades = ValueUpgrades(
                    self.codec, declared.version, declared.upgrades,
                    place=f"computation {place!r}, state {name!r}",
                )  # fmt: skip
        if self.kind == "map":
            self.sub_codec = MapKeyCodec(declared.key_type, place=f"{place}.{name}")
            natural = declared.key_type in _ORDERED
            self.order: Callable[[Any], Any] | None = None if natural else self.sub_codec.encode

    @property
    def empty(self) -> Any:
        """What the slot of a key without content holds."""
        return MISSING if self.kind == "value" else None

    def handle(self, cursor: Cursor) -> Any:
        """Return the handle through which user code sees the slot."""
        if self.kind == "value":
            of = FrozenValueHandle if self.codec.immutable else ValueHandle
            return of(cursor, self.slot, self.codec, self.default)
        if self.kind == "map":
            return MapHandle(cursor, self.slot, self.codec, self.order)
        if self.kind == "list":
            return ListHandle(cursor, self.slot, self.codec)
        return TimerHandle(cursor, self.slot)

    def changed_rows(self, content: Any, touched: Any) -> list[tuple[bytes, bytes | None]]:
        """Return (sub, value) of what was touched in a map or list; no value means deleted.

        What is kept in memory becomes what was written; see ``StateCodec.keep``.
        """
        if self.kind == "list":
            return self._list_rows(content or [], touched)
        return self._map_rows(content or {}, touched)

    def whole_rows(self, content: Any) -> list[tuple[bytes, bytes]]:
        """Return (sub, value) of all that a slot holds; it is what was kept before."""
        if content is self.empty or (self.kind != "value" and not content):
            return []
        if self.kind in _DATED:
            return [(tag.encode(), _time(time)) for tag, time in content.items()]
        encode = self.codec.encode_kept
        if self.kind == "value":
            return [(b"", encode(content))]
        if self.kind == "list":
            return [(_index(position), encode(value)) for position, value in enumerate(content)]
        return [(self.sub_codec.encode_kept(k), encode(value)) for k, value in content.items()]

    def _map_rows(self, content: Any, touched: Any) -> list[tuple[bytes, bytes | None]]:
        rows: list[tuple[bytes, bytes | None]] = []
        for key in touched:
            sub, kept_key = self.sub_codec.keep(key)
            if key not in content:
                rows.append((sub, None))
                continue
            encoded, kept = self.codec.keep(content.pop(key))
            content[kept_key] = kept
            rows.append((sub, encoded))
        return sorted(rows, key=lambda row: row[0])

    def _list_rows(self, content: Any, touched: Any) -> list[tuple[bytes, bytes | None]]:
        rows: list[tuple[bytes, bytes | None]] = []
        for position in touched.among(len(content)):
            encoded, content[position] = self.codec.keep(content[position])
            rows.append((_index(position), encoded))
        return rows + [(_index(at), None) for at in range(len(content), touched.stored)]

    def load(self, slots: list[Any], sub: bytes, value: bytes) -> None:
        """Put a stored row into its slot. Rows of a list come in ascending order."""
        if self.kind == "value":
            slots[self.slot] = self.codec.decode(value)
            return
        content = slots[self.slot]
        if content is None:
            content = slots[self.slot] = [] if self.kind == "list" else {}
        if self.kind == "map":
            content[self.sub_codec.decode(sub)] = self.codec.decode(value)
        elif self.kind == "list":
            ensure(len(content) == int.from_bytes(sub, "big"), "a list in storage has a gap")
            content.append(self.codec.decode(value))
        else:
            content[sub.decode()] = int.from_bytes(value, "little", signed=True)


def _keys_of(node: Node, table: pa.Table) -> list[Any]:
    parts = [
        column_to_python(table.column(field.name).combine_chunks()) for field in node.key_fields
    ]
    return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))


def _index(position: int) -> bytes:
    return position.to_bytes(8, "big")


def _time(micros: int) -> bytes:
    return micros.to_bytes(8, "little", signed=True)


class TimerQueue:
    """Keys with pending timers of one domain (or with holds), by the lowest of these.

    A key waits under one time, which is never after its lowest timer. A timer that is set to a later time
    leaves the queue alone: when the key's time comes it is looked at, and waits on. So a timer that
    every record puts off costs nothing, and the queue is about as long as there are keys.

    Args:
        place: the queue's position in ``KeyCells.queued``.
        slots: the slots of its timers.
    """

    def __init__(self, place: int, slots: list[int]) -> None:
        self._place = place
        self._slots = slots
        self._heap: list[Waiting] = []
        self._pushed = 0
        self._keys = 0

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, time: int, cells: KeyCells) -> None:
        """Let a key wait under a timer's time, unless it waits under an earlier one."""
        queued = cells.queued
        if queued is None:
            queued = cells.queued = [None, None, None]
        before = queued[self._place]
        if before is None:
            self._keys += 1
        elif time >= before[0]:
            return
        self._pushed += 1
        queued[self._place] = entry = (time, self._pushed, cells)
        heapq.heappush(self._heap, entry)
        self.tidy()

    def push_lowest(self, cells: KeyCells) -> None:
        """Let a key wait under its lowest timer, if it has one."""
        time = self._lowest_of(cells)
        if time is not None:
            self.push(time, cells)

    def _lowest_of(self, cells: KeyCells) -> int | None:
        tags = [tags for slot in self._slots if (tags := cells.slots[slot])]
        return min([min(times.values()) for times in tags], default=None)

    def _is_stale(self, entry: Waiting) -> bool:
        queued = entry[2].queued
        return queued is None or queued[self._place] is not entry

    def forget(self, cells: KeyCells) -> None:
        """Let a key wait no more; its entry goes with :meth:`drop_stale`."""
        if cells.queued is not None and cells.queued[self._place] is not None:
            cells.queued[self._place] = None
            self._keys -= 1

    def lowest(self) -> int:
        """Return the lowest pending time, or ``MAX_TIME``."""
        while self._heap:
            entry = self._heap[0]
            if self._is_stale(entry):
                heapq.heappop(self._heap)
                continue
            cells = entry[2]
            if self._lowest_of(cells) == entry[0]:
                return entry[0]
            self.forget(cells)
            self.push_lowest(cells)
        return MAX_TIME

    def bound(self) -> int:
        """Return a time that no pending one is before, at once.

        (To put :meth:`lowest` in its place at each step would make timers that are put off cost something.)
        """
        return self._heap[0][0] if self._heap else MAX_TIME

    def tidy(self) -> None:
        """Forget entries that stand for nothing any more, if most are like that."""
        if len(self._heap) > 2 * self._keys + _FEWEST_STALE:
            self.drop_stale()

    def drop_stale(self) -> None:
        """Forget entries that stand for nothing any more, and the keys that they hold on to."""
        self._heap = [entry for entry in self._heap if not self._is_stale(entry)]
        heapq.heapify(self._heap)

    def due_keys(self, until: int) -> list[KeyCells]:
        """Return the keys with timers up to a time, each once; they wait no more."""
        due: list[KeyCells] = []
        while self._heap and self._heap[0][0] <= until:
            entry = heapq.heappop(self._heap)
            if self._is_stale(entry):
                continue
            cells = entry[2]
            self.forget(cells)
            time = self._lowest_of(cells)
            if time is not None and time <= until:
                due.append(cells)
            elif time is not None:
                self.push(time, cells)
        return due


#: So many stale entries are not worth a walk.
_FEWEST_STALE = 1_024


class KeyedState(BinnedState):
    """The keys of one per-record computation on one worker.

    Args:
        node: the computation in its pipeline.
        layout: bins and owners; the state belongs to one layout.
    """

    def __init__(self, node: Node, layout: Layout) -> None:
        super().__init__(node, layout)
        self.cursor = Cursor()
        declared = node.shape.cells
        self.cells = [
            CellType(i, name, item, node.name) for i, (name, item) in enumerate(declared.items())
        ]
        self._slots = {cell.name: cell.slot for cell in self.cells}
        self.handles = {c.name: self._handle(c) for c in self.cells if c.kind != "hold"}
        self.queues = {
            domain: TimerQueue(place, [c.slot for c in self.cells if c.domain is domain])
            for place, domain in enumerate(TimeDomain)
        }
        self.holds = TimerQueue(len(self.queues), [c.slot for c in self.cells if c.kind == "hold"])
        self._all_queues = [*self.queues.values(), self.holds]
        self._empty = [cell.empty for cell in self.cells]
        self._schema = state_schema(node)
        self._versions = pa.array([cell.version for cell in self.cells], pa.uint16())
        upgrades = {cell.name: cell.upgrades for cell in self.cells if cell.upgrades is not None}
        # (nothing here refers back to this object: a process that drops it has no collector that sees it)
        self._stored = CellRows(upgrades, lambda row: f", key {_keys_of(node, row)[0]!r}")
        self._bins: dict[int, dict[Any, KeyCells]] = {}  # by the bin's first hash
        self._cached = 0  # how many keys are in _bins
        self._delta: list[CellRow] = []

    def _handle(self, cell: CellType) -> Any:
        holds = self._slots.get(hold_cell(cell.name))
        if holds is not None:
            return HoldingTimerHandle(self.cursor, cell.slot, holds)
        return cell.handle(self.cursor)

    # -- bins ---------------------------------------------------------------------------------

    @property
    def sections(self) -> tuple[str, ...]:
        """One section holds all cells."""
        return (CELLS,)

    def cached_bytes(self) -> int:
        """Return about how much memory the keys take."""
        return self._cached * KEY_BYTES

    def bytes_of_bins(self) -> npt.NDArray[np.int64]:
        """Return about how much memory the keys of each bin take."""
        sizes = np.zeros(len(self.layout), dtype=np.int64)
        lengths = np.array([len(keys) for keys in self._bins.values()], dtype=np.int64)
        starts = np.array(list(self._bins), dtype=np.uint64)
        sizes[self.layout.bins_of(starts)] = lengths * KEY_BYTES
        return sizes

    def drop(self, bins: npt.NDArray[np.bool_]) -> dict[TimeDomain, npt.NDArray[np.int64]]:
        """Forget the keys of some bins; return the lowest of their timers, by bin."""
        lowest = self.lose(bins)
        for queue in self._all_queues:
            queue.drop_stale()
        return lowest

    def lose(self, bins: npt.NDArray[np.bool_]) -> dict[TimeDomain, npt.NDArray[np.int64]]:
        """Do the same; costs what leaves. Queues forget the keys when they come to them, or are most."""
        lowest = {d: np.full(len(bins), MAX_TIME, dtype=np.int64) for d in TimeDomain}
        timers = [cell for cell in self.cells if cell.kind in _DATED]
        for at, bin_ in self._bins_among(bins):
            keys = self._bins.pop(bin_)
            self._cached -= len(keys)
            for cells in keys.values():
                for cell in timers:
                    times = cells.slots[cell.slot]
                    if times:
                        of = lowest[cell.domain or EVENT_TIME]
                        of[at] = min(int(of[at]), LAST_TIMER, *times.values())
                for queue in self._all_queues:
                    queue.forget(cells)
                cells.slots = []  # (entries in queues may hold on to them for some time)
        for queue in self._all_queues:
            queue.tidy()
        return lowest

    def _bins_among(self, bins: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
        """Return (position, first hash) of those of some bins that have keys at hand."""
        found = np.flatnonzero(bins)
        starts = self.layout.starts[found].tolist()
        return [pair for pair in zip(found.tolist(), starts, strict=True) if pair[1] in self._bins]

    def regroup(self, before: Layout) -> None:
        """Put the keys of bins that were split or merged where they belong now."""
        for bin_ in before.starts[changed_bins(before, self.layout)].tolist():
            keys = self._bins.pop(bin_, None)
            if not keys:
                continue
            hashes = np.array([cells.hash for cells in keys.values()], dtype=np.uint64)
            starts = self.layout.starts_of(hashes).tolist()
            for start, (key, cells) in zip(starts, keys.items(), strict=True):
                self._bins.setdefault(start, {})[key] = cells

    def lowest_loaded(self, domain: TimeDomain) -> int:
        """Return the lowest pending timer of the keys at hand; in event time a bound below it.

        A hold is something that is pending in event time.
        """
        queue = self.queues[domain]
        if domain is WALL_TIME:
            return queue.lowest()
        return min(queue.bound(), self.lowest_hold())

    def lowest_hold(self) -> int:
        """Return the lowest hold, or ``MAX_TIME``; exact once what is due has been loaded."""
        return self.holds.lowest()

    def lowest_due(self) -> int:
        """Return the lowest event timer or post that is pending, of the keys at hand."""
        return min(
            [self.queues[EVENT_TIME].lowest(), *(post.lowest() for post in self.posts.values())]
        )

    def as_declared(self, section: str, table: pa.Table) -> pa.Table:
        """Return rows of storage with the values of older versions upgraded."""
        return self._stored.as_declared(table)

    def absorb(self, section: str, table: pa.Table) -> None:
        """Take rows over what is there: a loaded bin's content, or a missed step's changes."""
        by_name = {cell.name: cell for cell in self.cells}
        hashes = table.column(HASH).to_numpy()
        bins = self.layout.starts_of(hashes).tolist()
        keys = _keys_of(self.node, table)
        columns = [table.column(name).to_pylist() for name in (CELL, SUB, VALUE)]
        hash_list = hashes.tolist()
        changed: set[tuple[KeyCells, int]] = set()
        for hash_, bin_, key, name, sub, value in zip(hash_list, bins, keys, *columns, strict=True):
            cell = by_name.get(name)
            if cell is None:
                continue  # a declaration that the code no longer has; kept in storage
            cells = self.find(bin_, key, hash_)
            if value is None:
                _remove(cell, cells, sub)
            elif cell.kind == "list":
                _put_element(cell, cells, sub, value)
            else:
                cell.load(cells.slots, sub, value)
            if cell.kind in _DATED and value is not None:
                changed.add((cells, cell.slot))
        for cells, slot in changed:
            self._queue(slot).push_lowest(cells)

    def _queue(self, slot: int) -> TimerQueue:
        domain = self.cells[slot].domain
        return self.holds if domain is None else self.queues[domain]

    # -- a step -------------------------------------------------------------------------------

    def set_clocks(self, until: Mapping[TimeDomain, int]) -> None:
        """Say where the clocks stand in this step."""
        for cell in self.cells:
            if cell.domain is not None:
                self.handles[cell.name].due_until = until[cell.domain]

    def hold_from(self, time: int, cause: Callable[[], int]) -> None:
        """Say how far the output watermark has come, before which no hold begins.

        Args:
            time: the output watermark of the step before.
            cause: returns the event time of what a handler was called for.
        """
        for name in self.node.shape.holding:
            self.handles[name].earliest, self.handles[name].cause = time, cause

    def release(self, timer: str, tag: str) -> int | None:
        """Take back the hold of a timer of the key at hand; return it, if there is one."""
        handle = self.handles[timer]
        return handle.release(tag) if isinstance(handle, HoldingTimerHandle) else None

    def wait_on(self, cells: KeyCells) -> None:
        """Let a key that was due wait for the timers that it has left."""
        for queue in self._all_queues:
            queue.push_lowest(cells)

    def find(self, bin_: int, key: Any, hash_: int) -> KeyCells:
        """Return the cells of a key in a loaded bin, named by its first hash; a new key starts empty."""
        keys = self._bins.get(bin_)
        if keys is None:
            keys = self._bins[bin_] = {}
        cells = keys.get(key)
        if cells is None:
            cells = keys[key] = KeyCells(hash_, key, self._empty.copy())
            self._cached += 1
        return cells

    def stand_on(self, cells: KeyCells) -> None:
        """Turn the handles to a key."""
        self.cursor.slots = cells.slots
        self.cursor.touched = {}

    def leave(self, cells: KeyCells) -> None:
        """Note what was touched of the key at hand, to be written with the step.

        Raises:
            UserCodeError: when a value is not of its declared type.
        """
        slots, hash_, key = cells.slots, cells.hash, cells.key
        delta = self._delta
        for slot, touched in self.cursor.touched.items():
            cell = self.cells[slot]
            content = slots[slot]
            if cell.kind in _DATED:
                self._leave_timer(cells, slot, touched)
                continue
            try:
                if cell.kind == "value":
                    encoded = None
                    if content is not MISSING:
                        encoded, slots[slot] = cell.keep(content)
                    delta.append((hash_, key, slot, b"", encoded))
                    continue
                rows = cell.changed_rows(content, touched)
            except TypeError as error:
                raise UserCodeError(
                    f"state {cell.name!r} was given a value that it cannot keep: {error}",
                    place=f"computation {self.node.name!r}, key {cells.key!r}",
                    remedy=f"set values of the declared type of {cell.name!r}",
                ) from error
            for sub, value in rows:
                delta.append((hash_, key, slot, sub, value))

    def _leave_timer(self, cells: KeyCells, slot: int, touched: set[str]) -> None:
        content = cells.slots[slot] or {}
        queue = self._queue(slot)
        for tag in touched if len(touched) == 1 else sorted(touched):
            time = content.get(tag)
            row = (tag.encode(), None) if time is None else (tag.encode(), _time(time))
            self._delta.append((cells.hash, cells.key, slot, *row))
            if time is not None:
                queue.push(time, cells)

    def loaded_rows(self, ranges: Ranges) -> dict[str, pa.Table]:
        """Return what the keys at hand have, in some ranges of hashes."""
        keys = sorted(self._keys_in(ranges), key=lambda cells: cells.hash)
        rows = [
            (cells.hash, cells.key, cell.slot, sub, value)
            for cells in keys
            for cell in self.cells
            for sub, value in cell.whole_rows(cells.slots[cell.slot])
        ]
        return {CELLS: pa.Table.from_batches([self._batch(rows)])} if rows else {}

    def _keys_in(self, ranges: Ranges) -> Iterator[KeyCells]:
        for first, last in ranges.pairs():
            edges = np.array([first, last], dtype=np.uint64)
            low, high = self.layout.bins_of(edges).tolist()
            for bin_ in self.layout.starts[low : high + 1].tolist():
                for cells in self._bins.get(bin_, {}).values():
                    if first <= cells.hash <= last:
                        yield cells

    def check_touched(self) -> None:
        """Check that what was touched by the handler at hand can be kept.

        Raises:
            TypeError: when it cannot.
        """
        for slot, touched in self.cursor.touched.items():
            cell, content = self.cells[slot], self.cursor.slots[slot]
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

    def changed_parts(self) -> list[Part]:
        """Return what the step changed, to be written, and forget it."""
        delta, self._delta = self._delta, []
        if not delta:
            return []
        return [Part(self.node.name, CELLS, self._batch(delta), self._due(delta))]

    def _due(self, rows: list[CellRow]) -> Any:
        """Return (row indices, times, is_wall) of the rows that set a timer."""
        dated = self.node.shape.dated_cells
        domains = {cell.slot: dated[cell.name] for cell in self.cells if cell.kind in _DATED}
        if not domains:
            return None
        found = [
            (number, row[4], domains[row[2]] == TimeDomain.WALL_TIME)
            for number, row in enumerate(rows)
            if row[2] in domains and row[4] is not None
        ]
        if not found:
            return None
        numbers, values, walls = zip(*found, strict=True)
        return np.array(numbers), np.frombuffer(b"".join(values), dtype="<i8"), np.array(walls)

    def _batch(self, rows: Sequence[CellRow]) -> pa.RecordBatch:
        hashes, keys, slots, subs, values = zip(*rows, strict=True)
        names = pa.array([cell.name for cell in self.cells], pa.string())
        parts = [keys] if len(self.node.key_fields) == 1 else list(zip(*keys, strict=True))
        version = [self._versions.take(pa.array(slots))] if VERSION in self._schema.names else []
        return pa.record_batch(
            [
                pa.array(hashes, pa.uint64()),
                *(
                    pa.array(part, field.type)
                    for part, field in zip(parts, self.node.key_fields, strict=True)
                ),
                names.take(pa.array(slots, pa.int64())),
                pa.array(subs, pa.binary()),
                pa.array(values, pa.binary()),
                *version,
            ],
            schema=self._schema,
        )


def state_schema(node: Node) -> pa.Schema:
    """Return the columns of a computation's state in a run file."""
    versioned = any(item.version > 1 for item in node.shape.cells.values())
    return pa.schema(
        [
            pa.field(HASH, pa.uint64(), nullable=False),
            *node.key_fields,
            pa.field(CELL, pa.string(), nullable=False),
            pa.field(SUB, pa.binary(), nullable=False),
            pa.field(VALUE, pa.binary()),
            *([pa.field(VERSION, pa.uint16())] if versioned else []),
        ]
    )


def _remove(cell: CellType, cells: KeyCells, sub: bytes) -> None:
    content = cells.slots[cell.slot]
    if cell.kind == "value":
        cells.slots[cell.slot] = MISSING
    elif content is None:
        return
    elif cell.kind == "list":
        del content[int.from_bytes(sub, "big") :]
    elif cell.kind == "map":
        content.pop(cell.sub_codec.decode(sub), None)
    else:
        content.pop(sub.decode(), None)


def _put_element(cell: CellType, cells: KeyCells, sub: bytes, value: bytes) -> None:
    elements = cells.slots[cell.slot]
    position = int.from_bytes(sub, "big")
    if elements is not None and position < len(elements):
        elements[position] = cell.codec.decode(value)
    else:
        cell.load(cells.slots, sub, value)
