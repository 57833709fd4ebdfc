"""The stored state and timers of single keys, as of a committed step.

Everything is read from the files that the head names, with the code that a worker runs after a
crash. So the result is what a restart would see. It costs reading the bins of the keys, from all
files that hold them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.computation.columnar import ColumnarComputation
from headrace.eventtime.domains import TimeDomain
from headrace.eventtime.timestamps import from_micros
from headrace.keyspace.hashing import hash_key
from headrace.keyspace.ranges import Ranges
from headrace.pipeline import Node
from headrace.runfiles.sections import DUE, SUB_PREFIX, is_column
from headrace.schema.keys import keys_of
from headrace.schema.reserved import HASH
from headrace.state.keyed.cell_types import CellType
from headrace.state.keyed.cells import KeyCells
from headrace.state.keyed.handles import MISSING
from headrace.state.keyed.keyed import KeyedState
from headrace.state.tables.table_set import TableSet


class PendingTimer(msgspec.Struct, frozen=True, order=True):
    """A timer that is set and has not fired. Timers sort by their times.

    Attributes:
        time_us: the time it is set for, in microseconds since 1970 UTC.
        name: the attribute that declares it.
        tag: the tag it was set with: a text, or an integer in a columnar computation.
        domain: event time or wall time.

    Example::

        with hr.testing.drive(p) as t:
            t.push("hits", Hit("/home", "ann", 12, at=0))
            t.run()
            print([(timer.name, timer.time) for timer in t.timers("visits", "/home")])
    """

    time_us: int
    name: str
    tag: Any
    domain: TimeDomain

    @property
    def time(self) -> Any:
        """The time that it is set for."""
        return from_micros(self.time_us)


def _by_sub(row: tuple[tuple[Any, ...], Any]) -> tuple[tuple[bool, Any], ...]:
    """Return what rows of a key are sorted by. Nulls, which a Z-set may hold, come last."""
    return tuple((value is None, value) for value in row[0])


class StoredKeys:
    """The stored keys of one computation, as of a committed step.

    Args:
        node: the computation in its pipeline.
        checkpoint: the step.
    """

    def __init__(self, node: Node, checkpoint: Checkpoint) -> None:
        self._node = node
        self._checkpoint = checkpoint
        self._layout = checkpoint.layout
        self._states: dict[int, KeyedState | TableSet] = {}  # by worker

    def all_keys(self) -> list[Any]:
        """Return every key for which anything is stored, in ascending order of its hash."""
        return [key for _, key in sorted(self._all_keys(), key=lambda pair: pair[0])]

    def state(self, key: Any) -> dict[str, Any]:
        """Return the content of each declared state of a key.

        Args:
            key: as ``ctx.key`` would be: a value, or a tuple of the parts.

        Returns:
            Name → content: a value (or its default), a list, or a dict. For a table, a dict of the
            row's columns, or None if there is no row. For a table with ``sub``, a dict from sub
            value to such a dict.
        """
        state, declared = self._of_key(key), self._node.declarations.states
        if isinstance(state, KeyedState):
            cells = self._cells(state, key)
            return {
                cell.attribute: _content(cell, cells)
                for cell in state.cells
                if cell.attribute in declared
            }
        return {
            name: self._rows(state, handle.table.section, key, with_sub=bool(handle.table.sub))
            for name, handle in state.states.items()
        }

    def timers(self, key: Any) -> list[PendingTimer]:
        """Return the pending timers of a key, ordered by their times."""
        state = self._of_key(key)
        if isinstance(state, KeyedState):
            cells = self._cells(state, key)
            return sorted(
                PendingTimer(time, cell.attribute, tag, cell.domain)
                for cell in state.cells
                if cell.domain is not None
                for tag, time in (cells.slots[cell.slot] or {}).items()
            )
        found = []
        for name, handle in state.timers.items():
            for row in self._table(state, handle.table.section, key):
                found.append(PendingTimer(row[DUE], name, row[f"{SUB_PREFIX}tag"], handle.domain))
        return sorted(found)

    # -- loading ------------------------------------------------------------------------------

    def _of_key(self, key: Any) -> KeyedState | TableSet:
        """Return the state of a key's worker, with the key's bin loaded."""
        hashes = np.array([self._place_of(key)], dtype=np.uint64)
        state = self._attached(int(self._layout.workers_of(hashes)[0]))
        state.load_bins_of(hashes)
        return state

    def _attached(self, worker: int) -> KeyedState | TableSet:
        """Return the state of a worker. What was loaded of it stays loaded."""
        if worker not in self._states:
            self._states[worker] = self._newly_attached(worker)
        return self._states[worker]

    def _newly_attached(self, worker: int) -> KeyedState | TableSet:
        node, layout = self._node, self._layout
        columnar = isinstance(node.computation, ColumnarComputation)
        state = TableSet(node, layout, worker) if columnar else KeyedState(node, layout)
        own = layout.ranges_of(worker)
        state.attach(lambda: self._checkpoint.sources(node.name, own), layout.owners == worker)
        return state

    def _all_keys(self) -> Iterator[tuple[int, Any]]:
        for worker in range(self._layout.workers):
            state = self._attached(worker)
            state.load_bins_of(self._layout.starts[self._layout.owners == worker])
            found: dict[Any, int] = {}
            for table in state.loaded_rows(self._layout.ranges_of(worker)).values():
                keys = self._keys_of(table)
                found.update(zip(keys, table.column(HASH).to_pylist(), strict=True))
            yield from ((hash_, key) for key, hash_ in found.items())

    def _keys_of(self, rows: pa.Table | pa.RecordBatch) -> list[Any]:
        return keys_of([rows.column(field.name) for field in self._node.key_fields])

    # -- reading ------------------------------------------------------------------------------

    def _place_of(self, key: Any) -> int:
        return self._node.group.place(hash_key(key))

    def _cells(self, state: KeyedState, key: Any) -> KeyCells:
        hash_ = self._place_of(key)
        bin_ = int(self._layout.starts_of(np.array([hash_], dtype=np.uint64))[0])
        return state.find(bin_, key, hash_)

    def _rows(self, state: TableSet, section: str, key: Any, *, with_sub: bool) -> Any:
        rows = [
            (
                tuple(value for name, value in row.items() if name.startswith(SUB_PREFIX)),
                {name.partition(":")[2]: value for name, value in row.items() if is_column(name)},
            )
            for row in self._table(state, section, key)
        ]
        if not with_sub:
            return rows[0][1] if rows else None
        return {
            sub if len(sub) > 1 else sub[0]: columns for sub, columns in sorted(rows, key=_by_sub)
        }

    def _table(self, state: TableSet, section: str, key: Any) -> list[dict[str, Any]]:
        """Return the live rows of a key in a section."""
        hash_ = self._place_of(key)
        batch = state.tables[section].rows_in(Ranges.of([(hash_, hash_)]))
        if batch is None:
            return []
        same = [known == key for known in self._keys_of(batch)]
        return [row for row, mine in zip(batch.to_pylist(), same, strict=True) if mine]


def _content(cell: CellType, cells: KeyCells) -> Any:
    content = cell.plain(cells.slots[cell.slot])
    if cell.kind == "value":
        return copy.deepcopy(cell.default) if content is MISSING else content
    if cell.kind == "list":
        return list(content or [])
    order = cell.order
    return {key: content[key] for key in sorted(content or {}, key=order)}
