"""The record ids that a check remembers on one worker: exact rows, and a Bloom filter before storage.

An id is a row (hash, the id's columns, the newest event time it was seen at). Rows are added, or
their time goes up, and they are forgotten by time alone, so of two rows of one id the one with the
higher time is right, wherever they come from. That makes this state a *set* that can grow without being
at hand: ids may be added to a bin that is not loaded, and are united with what storage has when it is
loaded or written whole. What a bin that was let go has in storage is told by a filter in memory, and only
a bin for which the filter says "perhaps" is read again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.computation.record_ids import IDS, RecordIds
from headrace.eventtime.domains import TimeDomain
from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME
from headrace.keyspace.arrays import U64
from headrace.keyspace.distinct import distinct
from headrace.keyspace.layout import Layout
from headrace.keyspace.ranges import Ranges
from headrace.pipeline import Node
from headrace.runfiles.format import RunPart, RunReader
from headrace.runfiles.merging import merge
from headrace.runfiles.sections import COLUMN_PREFIX
from headrace.schema.columns import Column, ColumnType
from headrace.schema.reserved import HASH
from headrace.state.bins import BinnedState
from headrace.state.ids.bloom import Generations
from headrace.state.relayout import Carry
from headrace.state.tables.index import Slots
from headrace.state.tables.table import Table

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_TIME = ColumnType("time", pa.int64())
_TIME_COLUMN = COLUMN_PREFIX + _TIME.name
#: Fewer rows than that are not looked through for forgotten ones.
_FEW = 4_096


class IdState(BinnedState):
    """The ids of one injector on one worker.

    Args:
        node: the check in its pipeline.
        ids: what it goes by.
        layout: bins and owners.
        worker: whose bins these are.
    """

    def __init__(self, node: Node, ids: RecordIds, layout: Layout, worker: int) -> None:
        super().__init__(node, layout)
        self.key_types = [ColumnType(field.name, field.type) for field in node.key_fields]
        self._own = node.group.own(layout.ranges_of(worker))
        self._rows = Table(
            IDS, self.key_types, [], [_TIME], None, self._own, hash_is_key=node.hash_is_key
        )
        self._filter = Generations(ids.horizon_us)
        self._told: Mask = np.zeros(
            len(layout), dtype=np.bool_
        )  # bins that the filter knows all of
        self._remembered_from = MIN_TIME
        self._looked_through = 0  # how many rows there were after the last look for forgotten ones

    # -- a step -------------------------------------------------------------------------------

    def forget(self, before: int, watermark: int) -> None:
        """Forget the ids of earlier event times. Costs what was added since it last did."""
        self._remembered_from = before
        self._filter.forget(before, watermark)
        if self._rows.used > 2 * self._looked_through + _FEW:
            self._rows.keep_only(self._remembered())
            self._looked_through = self._rows.used

    def add(self, hashes: U64, columns: Sequence[Column], times: I64) -> Mask:
        """Remember ids; say for each whether it is new.

        Args:
            hashes: of the ids, ascending.
            columns: the parts of the ids, each id once.
            times: the newest event time of each, none of which is to be forgotten.
        """
        bins = self.layout.bins_of(hashes)
        self._last_use[bins] = self._step
        slots, known, last = self._find(hashes, columns)
        wanted = self._perhaps_stored(hashes, bins, known)
        if len(wanted):
            self._load(distinct(bins[wanted]))
            slots, known, last = self._find(hashes, columns)
        newer = np.flatnonzero(~known | (times > last))
        if not len(newer):
            return ~known
        ids = [column[newer] for column in columns]
        slots = self._rows.claim(slots[newer], hashes[newer], hashes[newer], ids)
        self._rows.put(slots, {0: times[newer]}, None)
        return ~known

    def _find(self, hashes: U64, columns: Sequence[Column]) -> tuple[Slots, Mask, I64]:
        """Return the slots of ids, which of them are at hand and remembered, and their times."""
        slots = self._rows.find(hashes, columns)
        live = self._rows.live(slots)
        times = self._rows.values(0, slots, live)
        return slots, live & (times >= self._remembered_from), times

    def _perhaps_stored(self, hashes: U64, bins: I64, known: Mask) -> I64:
        """Return the ids that are not at hand, and may be in storage."""
        if self._sources is None:
            return np.empty(0, dtype=np.int64)
        away = np.flatnonzero(~known & ~self._loaded[bins])
        perhaps = ~self._told[bins[away]] | self._filter.test(hashes[away])
        return away[perhaps]

    def changed_parts(self) -> list[RunPart]:
        """Return what the step added, to be written, and forget that it was added now."""
        batch = self._rows.take_changes()
        return [] if batch is None else [RunPart(self.node.name, IDS, batch)]

    # -- bins ---------------------------------------------------------------------------------

    @property
    def sections(self) -> list[str]:
        """One section: a row for each id."""
        return [IDS]

    def absorb(self, section: str, table: pa.Table) -> None:
        """Unite rows with those at hand: of one id, the row with the higher time."""
        hashes = table.column(HASH).to_numpy()
        times = table.column(_TIME_COLUMN).to_numpy()
        ids = [kind.from_arrow(table.column(kind.name)) for kind in self.key_types]
        _, known, last = self._find(hashes, ids)
        newer = (~known | (times > last)) & (times >= self._remembered_from)
        if newer.any():
            self._rows.absorb(table if newer.all() else table.filter(pa.array(newer)))

    def catch_up(self, reader: RunReader) -> None:
        """Take over a committed step that another process computed, whatever bins are loaded.

        (What was read of a bin before, and is kept in memory, must not be older than what storage has.)
        """
        if self._sources is not None:
            self._sources = self._sources.with_run(reader)
        table = reader.rows_in(self.node.name, IDS, self._own)
        if table is not None:
            self.absorb(IDS, table)

    def loaded_rows(self, ranges: Ranges) -> dict[str, pa.Table]:
        """Return the rows at hand in some ranges of hashes, also those of bins that are not loaded."""
        rows = self._rows.rows_in(self.node.group.own(ranges))
        return {} if rows is None else {IDS: pa.Table.from_batches([rows])}

    def united(self, stored: pa.Table, at_hand: pa.Table) -> pa.Table:
        """Return rows of storage and those at hand; what is at hand is never the older one."""
        rows = merge([(0, stored), (1, at_hand)])
        assert rows is not None
        return rows

    def whole(self, ranges: Ranges) -> dict[str, pa.Table]:
        """Return all ids of some hashes that are remembered; the others are not written again."""
        found = super().whole(ranges)
        if IDS in found:
            times = found[IDS].column(_TIME_COLUMN).to_numpy()
            stays = times >= self._remembered_from
            if not stays.all():
                found[IDS] = found[IDS].filter(pa.array(stays))
        return {section: table for section, table in found.items() if table.num_rows}

    def cached_bytes(self) -> int:
        """Return about how much memory the rows take. (The filter is what is left when they are gone.)"""
        return self._rows.nbytes

    def bytes_of_bins(self) -> npt.NDArray[np.int64]:
        """Return about how much memory the rows of each bin take."""
        return self._rows.bytes_by_bin(self.layout.bins_of, len(self.layout))

    def drop(self, bins: npt.NDArray[np.bool_]) -> dict[TimeDomain, I64]:
        """Let rows go to storage alone; the filter takes their hashes. Nothing of them is ever due."""
        hashes = self._rows.used_hashes()
        leaves = bins[self.layout.bins_of(hashes)]
        slots = np.flatnonzero(leaves & self._remembered()).astype(np.int32)
        self._filter.add(hashes[slots], self._times(slots))
        self._told |= bins & self._loaded  # what was never loaded is still not known in full
        self._rows.keep_only(~leaves)
        self._looked_through = min(self._looked_through, self._rows.used)
        return {domain: np.full(len(bins), MAX_TIME, dtype=np.int64) for domain in TimeDomain}

    def lose(self, bins: Mask) -> dict[TimeDomain, I64]:
        """Forget the ids of some bins, also such as were added while the bins were not loaded.

        The filter keeps what it has: it says "perhaps" of more than it needs to.
        """
        self._rows.forget(self.layout.ranges_of_bins(np.flatnonzero(bins)))
        self._looked_through = min(self._looked_through, self._rows.used)
        self._told &= ~bins
        return {domain: np.full(len(bins), MAX_TIME, dtype=np.int64) for domain in TimeDomain}

    def regroup(self, before: Layout) -> None:
        """Know of a bin that was merged what is known of both of its children."""
        self._told = Carry(before, self.layout).all(self._told)

    def expect(self, ranges: Ranges) -> None:
        """Say which hashes are the worker's from now on."""
        self._own = ranges
        self._rows.expect(ranges)

    def make_room(self, ranges: Ranges) -> None:
        """Say that the ids of bins which are not loaded are to come, to those that are at hand."""
        self._rows.make_room(ranges)

    def lowest_loaded(self, domain: TimeDomain) -> int:
        """Return that no id is ever due."""
        return MAX_TIME

    def _times(self, slots: Slots) -> I64:
        times: I64 = self._rows.values(0, slots, self._rows.live(slots))
        return times

    def _remembered(self) -> Mask:
        """Say for each slot whether it holds an id that is remembered."""
        slots = np.arange(len(self._rows.used_hashes()), dtype=np.int32)
        live = self._rows.live(slots)
        remembered: Mask = self._rows.values(0, slots, live) >= self._remembered_from
        return remembered & live
