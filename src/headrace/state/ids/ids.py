"""The record ids that a check remembers on one worker: exact rows, and a Bloom filter.

An id is a row (hash, the id's columns, the newest event time at which it was seen). Rows are added,
their times rise, and they are forgotten by time alone. So of two rows of one id, the one with the
higher time is right, wherever they come from.

That makes this state a *set* that can grow without being loaded. Ids may be added to a bin that is
not loaded. They are united with the stored ids when the bin is loaded or written whole. The filter
in memory covers the ids of evicted bins. A bin is read again only if the filter says "perhaps".
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
from headrace.runfiles.newest_rows import merge
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
#: With fewer rows than this, forgotten ones are not searched for.
_FEW = 4_096


class IdState(BinnedState):
    """The ids of one injector on one worker.

    Args:
        node: the check in its pipeline.
        ids: the declaration of the ids.
        layout: bins and owners.
        worker: the worker that owns the bins.
    """

    def __init__(self, node: Node, ids: RecordIds, layout: Layout, worker: int) -> None:
        super().__init__(node, layout)
        self.key_types = [ColumnType(field.name, field.type) for field in node.key_fields]
        self._own = node.group.own(layout.ranges_of(worker))
        self._rows = Table(
            IDS, self.key_types, [], [_TIME], None, self._own, hash_is_key=node.hash_is_key
        )
        self._filter = Generations(ids.horizon_us)
        self._filtered: Mask = np.zeros(
            len(layout), dtype=np.bool_
        )  # bins that the filter covers in full
        self._remembered_from = MIN_TIME
        self._looked_through = 0  # the number of rows after the last search for forgotten ones

    # -- a step -------------------------------------------------------------------------------

    def forget(self, before: int, watermark: int) -> None:
        """Forget the ids of earlier event times. Costs what was added since the last time."""
        self._remembered_from = before
        self._filter.forget(before, watermark)
        if self._rows.used > 2 * self._looked_through + _FEW:
            self._rows.keep_only(self._remembered())
            self._looked_through = self._rows.used

    def add(self, hashes: U64, columns: Sequence[Column], times: I64) -> Mask:
        """Remember ids, and return for each whether it is new.

        Args:
            hashes: hashes of the ids, ascending.
            columns: the parts of the ids. Each id occurs once.
            times: the newest event time of each id. None of these is to be forgotten.
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
        """Return the positions of ids that are not in memory and may be in storage."""
        if self._sources is None:
            return np.empty(0, dtype=np.int64)
        away = np.flatnonzero(~known & ~self._loaded[bins])
        perhaps = ~self._filtered[bins[away]] | self._filter.test(hashes[away])
        return away[perhaps]

    def changed_parts(self) -> list[RunPart]:
        """Return what the step added, to be written. Then forget that it is new."""
        batch = self._rows.take_changes()
        return [] if batch is None else [RunPart(self.node.name, IDS, batch)]

    # -- bins ---------------------------------------------------------------------------------

    @property
    def sections(self) -> list[str]:
        """One section, with a row for each id."""
        return [IDS]

    def apply_changes(self, section: str, table: pa.Table) -> None:
        """Unite rows with those in memory. Of one id, the row with the higher time stays."""
        hashes = table.column(HASH).to_numpy()
        times = table.column(_TIME_COLUMN).to_numpy()
        ids = [kind.from_arrow(table.column(kind.name)) for kind in self.key_types]
        _, known, last = self._find(hashes, ids)
        newer = (~known | (times > last)) & (times >= self._remembered_from)
        if newer.any():
            self._rows.apply_changes(table if newer.all() else table.filter(pa.array(newer)))

    def catch_up(self, reader: RunReader) -> None:
        """Apply a committed step that another process computed, for loaded and unloaded bins alike.

        Rows of an unloaded bin that are in memory must not be older than the stored ones.
        """
        if self._sources is not None:
            self._sources = self._sources.with_run(reader)
        table = reader.rows_in(self.node.name, IDS, self._own)
        if table is not None:
            self.apply_changes(IDS, table)

    def loaded_rows(self, ranges: Ranges) -> dict[str, pa.Table]:
        """Return the rows in memory in some ranges of hashes, including those of unloaded bins."""
        rows = self._rows.rows_in(self.node.group.own(ranges))
        return {} if rows is None else {IDS: pa.Table.from_batches([rows])}

    def united(self, stored: pa.Table, at_hand: pa.Table) -> pa.Table:
        """Return stored rows together with those in memory.

        A row in memory is never the older one.
        """
        rows = merge([(0, stored), (1, at_hand)])
        assert rows is not None
        return rows

    def whole(self, ranges: Ranges) -> dict[str, pa.Table]:
        """Return all ids of some hashes that are remembered. The others are not written again."""
        found = super().whole(ranges)
        if IDS in found:
            times = found[IDS].column(_TIME_COLUMN).to_numpy()
            stays = times >= self._remembered_from
            if not stays.all():
                found[IDS] = found[IDS].filter(pa.array(stays))
        return {section: table for section, table in found.items() if table.num_rows}

    def cached_bytes(self) -> int:
        """Return about how much memory the rows take, in bytes.

        The filter does not count, since it remains when the rows are evicted.
        """
        return self._rows.nbytes

    def bytes_of_bins(self) -> npt.NDArray[np.int64]:
        """Return about how much memory the rows of each bin take, in bytes."""
        return self._rows.bytes_by_bin(self.layout.bins_of, len(self.layout))

    def drop(self, bins: npt.NDArray[np.bool_]) -> dict[TimeDomain, I64]:
        """Evict the rows of some bins, after adding their hashes to the filter.

        Nothing is ever due.
        """
        hashes = self._rows.used_hashes()
        leaves = bins[self.layout.bins_of(hashes)]
        slots = np.flatnonzero(leaves & self._remembered()).astype(np.int32)
        self._filter.add(hashes[slots], self._times(slots))
        self._filtered |= (
            bins & self._loaded
        )  # the filter does not cover bins that were never loaded
        self._rows.keep_only(~leaves)
        self._looked_through = min(self._looked_through, self._rows.used)
        return {domain: np.full(len(bins), MAX_TIME, dtype=np.int64) for domain in TimeDomain}

    def evict(self, bins: Mask) -> dict[TimeDomain, I64]:
        """Forget the ids of some bins, including ids that were added to unloaded bins.

        The filter keeps their hashes. So it says "perhaps" more often than it has to.
        """
        self._rows.forget(self.layout.ranges_of_bins(np.flatnonzero(bins)))
        self._looked_through = min(self._looked_through, self._rows.used)
        self._filtered &= ~bins
        return {domain: np.full(len(bins), MAX_TIME, dtype=np.int64) for domain in TimeDomain}

    def regroup(self, before: Layout) -> None:
        """Note that the filter covers a merged bin if it covers both of its children."""
        self._filtered = Carry(before, self.layout).all(self._filtered)

    def expect(self, ranges: Ranges) -> None:
        """Note which hashes are the worker's from now on."""
        self._own = ranges
        self._rows.expect(ranges)

    def make_room(self, ranges: Ranges) -> None:
        """Prepare for the ids of bins that are about to be loaded, beside those in memory."""
        self._rows.make_room(ranges)

    def lowest_loaded(self, domain: TimeDomain) -> int:
        """Return ``MAX_TIME``: ids are never due."""
        return MAX_TIME

    def _times(self, slots: Slots) -> I64:
        times: I64 = self._rows.values(0, slots, self._rows.live(slots))
        return times

    def _remembered(self) -> Mask:
        """Return for each slot whether it holds an id that is remembered."""
        slots = np.arange(len(self._rows.used_hashes()), dtype=np.int32)
        live = self._rows.live(slots)
        remembered: Mask = self._rows.values(0, slots, live) >= self._remembered_from
        return remembered & live
