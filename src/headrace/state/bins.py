"""The bins of a computation's state on a worker: loading, catching up and evicting them.

State in memory is a cache: all of it can be read from the run files. A bin is loaded when a record
or a due timer first needs it. Bins that nothing needs are never read. The subclass decides what a
bin contains: cells of keys, or rows of tables. Waiting records are handled here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import NotFound, ensure
from headrace.eventtime.domains import EVENT_TIME, WALL_TIME, TimeDomain
from headrace.eventtime.timestamps import MAX_TIME
from headrace.keyspace.arrays import U64
from headrace.keyspace.distinct import distinct
from headrace.keyspace.layout import Layout
from headrace.keyspace.ordering import order_by_hash
from headrace.keyspace.ranges import MAX_HASH, Ranges
from headrace.pipeline import Node
from headrace.runfiles import batches
from headrace.runfiles.batches import as_one_batch
from headrace.runfiles.format import LAST_TIMER, RunPart, RunReader
from headrace.runfiles.in_memory import RowsInMemory
from headrace.runfiles.merging import StateSources, lower_by_facts, rows_of
from headrace.runfiles.portions import bytes_between, columns_of, portions, portions_of_sizes
from headrace.runfiles.sections import as_one, due_rows, post_section, together, waiting_section
from headrace.schema import ValueType, defaults_of
from headrace.schema.reserved import HASH
from headrace.state.buffer import RecordBuffer
from headrace.state.memory import give_back_memory
from headrace.state.opening_cost import OpeningCost
from headrace.state.relayout import Carry

T = TypeVar("T")
Bins = npt.NDArray[np.int64]
#: Files that are together no larger than this, in bytes, are small.
_SMALL = 16 << 20
#: Bins are read in portions of this part of what may be remembered.
_PORTIONS = 8
_LEAST_PORTION = 64 << 10
#: Loading stops to make room at this part of what may be remembered. What a step adds needs some.
_FULL = 3 / 4
_UNBOUNDED = 1 << 62
#: The step of changes that were set aside. All files are older.
SET_ASIDE = 1 << 62
#: After so many steps that loaded keys, bins are tried again.
_BINS_AGAIN = 64
#: From one portion of keys to the next, as many times more bins may be looked through.
_FASTER = 4


class Needs(NamedTuple):
    """What a step needs of a computation's state.

    Attributes:
        owned: which bins of the layout are the worker's.
        touched: which of them have keys with records.
        hashes: the hashes of the keys that have records, ascending and distinct.
        until: the clocks of the step. Bins in which something may be due are needed whole.
    """

    owned: npt.NDArray[np.bool_]
    touched: npt.NDArray[np.bool_]
    hashes: U64
    until: Mapping[TimeDomain, int]


class BinnedState(ABC):
    """One computation's state on one worker, divided into bins.

    Args:
        node: the computation in its pipeline.
        layout: bins and owners. :meth:`relayout` follows live changes.

    Attributes:
        posts: the waiting posts, by the name of their stream.
        waiting: for an ordered computation, the waiting records of each input.
        opening: adds up what loading bins costs. Replace it to measure that.
    """

    def __init__(self, node: Node, layout: Layout) -> None:
        self.node = node
        self.layout = layout
        fields = node.key_fields
        self.posts = {
            name: _buffer(post_section(node.stored_name(name)), fields, stream.values)
            for name, stream in node.posts.items()
        }
        self.waiting = [
            _buffer(waiting_section(stream.name), fields, stream.values)
            for stream in (node.inputs if node.ordered else ())
        ]
        self._buffers = {b.section: b for b in (*self.posts.values(), *self.waiting)}
        self._step = 0
        self._last_use = np.zeros(len(layout), dtype=np.int64)  # the last step that needed each bin
        self._sources: StateSources | None = None
        self._reopen: Callable[[], StateSources] | None = None
        self._opened_bytes = 0  # of files that were read whole
        self._most = _UNBOUNDED  # how many bytes may be remembered
        self._aside: list[RunPart] = []  # changes of bins that were evicted in this step
        self._is_stale = False  # whether the sources lack what steps have changed since
        self._are_current = False  # whether they are as of the step before
        self._unloaded: dict[TimeDomain, npt.NDArray[np.int64]] = {}
        self._loaded = np.ones(len(layout), dtype=bool)
        self._partly = np.zeros(len(layout), dtype=bool)  # of these, only the keys of this step
        self._at_once: npt.NDArray[np.bool_] | None = None  # bins that are loaded together
        self._keys_loaded = Ranges.of([])
        self._memory_of_a_byte = 0.0  # what a byte of files takes in memory; 0 if it is not known
        self._steps_by_key = 0
        self._thinness = 1.0  # how many times more whole bins have than the keys of a step
        self.opening = OpeningCost()

    # -- the content of a bin, which the subclass keeps ---------------------------------------

    @property
    @abstractmethod
    def sections(self) -> Iterable[str]:
        """The sections of run files that hold this state."""

    def as_declared(self, section: str, table: pa.Table) -> pa.Table:
        """Return stored rows as today's code declares them: upgraded, and with all columns.

        Raises:
            UserCodeError: if an upgrade function of the user fails.
        """
        return table

    @abstractmethod
    def apply_changes(self, section: str, table: pa.Table) -> None:
        """Apply rows to the state in memory: a loaded bin's content, or a missed step's changes."""

    @abstractmethod
    def loaded_rows(self, ranges: Ranges) -> dict[str, pa.Table]:
        """Return the live rows of loaded bins in some ranges, by section, sorted by hash."""

    @abstractmethod
    def cached_bytes(self) -> int:
        """Return about how much memory the content of loaded bins takes. Cheap."""

    @abstractmethod
    def bytes_of_bins(self) -> npt.NDArray[np.int64]:
        """Return about how much memory the content of each bin takes."""

    @abstractmethod
    def drop(self, bins: npt.NDArray[np.bool_]) -> dict[TimeDomain, npt.NDArray[np.int64]]:
        """Evict some bins. Return the lowest pending time in each bin of the layout."""

    @abstractmethod
    def evict(self, bins: npt.NDArray[np.bool_]) -> dict[TimeDomain, npt.NDArray[np.int64]]:
        """Evict some bins like :meth:`drop`, at a cost proportional to what leaves.

        Memory is given back once most of it is unused.
        """

    def regroup(self, before: Layout) -> None:
        """Move content that is kept by bin from the bins of an earlier layout to those of today."""

    def expect(self, ranges: Ranges) -> None:
        """Note which hashes are the worker's from now on."""

    def make_room(self, ranges: Ranges) -> None:
        """Prepare for the content of bins that are about to be loaded."""

    def compact(self) -> None:
        """Give back memory that is unused, if it is much."""

    @abstractmethod
    def lowest_loaded(self, domain: TimeDomain) -> int:
        """Return the lowest pending time in loaded bins, or ``MAX_TIME``."""

    @abstractmethod
    def changed_parts(self) -> list[RunPart]:
        """Return what the step changed, to be written. Then forget that it changed."""

    # -- bins ---------------------------------------------------------------------------------

    def attach(self, reopen: Callable[[], StateSources], owned: npt.NDArray[np.bool_]) -> None:
        """Note where the content of bins that are not loaded can be read.

        If the files are small, all bins are loaded at once when one is needed. Reading one bin then
        costs as much as reading all, and each slice to be written would read them again.

        Args:
            reopen: returns the files that hold the newest committed state. It is called again if
                clean-up has removed files that newer ones replaced.
            owned: which bins are the worker's.
        """
        own = self.node.group.bins_in(self.layout)
        self._loaded = ~own  # bins of other groups are always empty here
        self._at_once = np.zeros(len(self.layout), dtype=bool)
        self._look_up(owned & own, reopen)

    def begin_step(
        self, most: int, owned: npt.NDArray[np.bool_], reopen: Callable[[], StateSources]
    ) -> None:
        """Start a step. If too much is cached, evict the bins that were not needed for longest.

        Nothing is lost: what is cached is committed, and can be read again from ``reopen()``. Half
        of the bound is freed at once, so that the ledger is rarely opened for this.

        Args:
            most: how many bytes may be cached.
            owned: which bins are the worker's.
            reopen: returns the files that hold the state as of the previous step.
        """
        self._step += 1
        self._most = most
        if self._sources is not None:
            self._reopen = reopen  # (what earlier steps knew of soft files is not all there is now)
        if self._is_stale:
            self._sources, self._is_stale = reopen(), False
        self._are_current = False
        if most < _SMALL:
            self._at_once = None
        if self._sources is not None and self._opened_bytes > most // _PORTIONS:
            self._note_opened()
        if self._sources is not None and self._loaded[owned].all():
            self._sources = self._reopen = None  # they hold on to files that may be gone
            self._unloaded = {}
        if self.bytes_at_hand() > most:
            self.compact()
        cached = self.bytes_at_hand()
        if cached <= most:
            return
        self._bound_all()
        self._reopen = reopen
        self._evict_first(cached - most // 2, np.argsort(self._last_use, kind="stable"))

    def _evict_first(self, freed: int, order: Bins) -> None:
        """Evict loaded bins in an order, until some bytes are free. They have not changed."""
        self._bound_all()
        self._make_current()
        sizes = self.bytes_of_bins()
        for buffer in self._buffers.values():
            sizes += buffer.bytes_of_bins(self.layout)
        enough = int(np.searchsorted(np.cumsum(sizes[order]), freed)) + 1
        victims = np.zeros(len(self.layout), dtype=bool)
        victims[order[:enough]] = True
        self._drop(victims & self.node.group.bins_in(self.layout))

    def _make_current(self) -> None:
        """Open the files as of the step before. Until then, they lack what loaded bins changed."""
        assert self._reopen is not None
        if not self._are_current:
            self._sources, self._are_current = self._reopen(), True

    def _drop(self, bins: npt.NDArray[np.bool_]) -> None:
        """Evict bins. What they hold can be read from the sources."""
        self._at_once = None
        before = self.cached_bytes()
        self._lower(self.drop(bins))
        for buffer in self._buffers.values():
            event = self._unloaded[EVENT_TIME]
            np.minimum(event, buffer.drop(bins, self.layout), out=event)
        self._loaded[bins] = self._partly[bins] = False
        give_back_memory(before - self.cached_bytes())

    def bytes_at_hand(self) -> int:
        """Return about how much memory all of it takes, with waiting records and open files."""
        opened = 0 if self._sources is None else self._opened_bytes
        buffers = sum(buffer.nbytes for buffer in self._buffers.values())
        return self.cached_bytes() + buffers + opened

    def catch_up(self, reader: RunReader) -> None:
        """Apply a committed step that another process computed."""
        if self._sources is not None:
            self._sources = self._sources.with_run(reader)
        for section in self.stored_sections:
            table = reader.rows_in(self.node.name, section, Ranges.everything())
            if table is None:
                continue
            if self._sources is not None:
                self._note_unloaded(reader, section)
            loaded = self._loaded[self.layout.bins_of(table.column(HASH).to_numpy())]
            if loaded.all():
                self._apply_changes(section, table)
            elif loaded.any():
                self._apply_changes(section, table.filter(pa.array(loaded)))

    @property
    def stored_sections(self) -> list[str]:
        """The sections of run files that hold the content of bins, including waiting records."""
        return [*self.sections, *self._buffers]

    def _apply_changes(self, section: str, table: pa.Table) -> None:
        table = self.stored_as_declared(section, table)
        if section in self._buffers:
            self._buffers[section].apply_changes(table)
        else:
            self.apply_changes(section, table)

    def _note_unloaded(self, reader: RunReader, section: str) -> None:
        facts = reader.lowest_timers(self.node.name, section)
        if facts is None:
            return
        lower_by_facts(self._unloaded, self.layout, facts)
        for lowest in self._unloaded.values():
            lowest[self._loaded] = MAX_TIME

    def _bound_all(self) -> None:
        """Start to keep lower bounds of pending times for bins that are not loaded."""
        if not self._unloaded:
            for domain in TimeDomain:
                self._unloaded[domain] = np.full(len(self.layout), MAX_TIME, dtype=np.int64)

    def _lower(self, bounds: Mapping[TimeDomain, npt.NDArray[np.int64]]) -> None:
        for domain, lowest in bounds.items():
            np.minimum(self._unloaded[domain], lowest, out=self._unloaded[domain])

    def load_bins_of(self, hashes: npt.NDArray[np.uint64]) -> None:
        """Load the bins of these hashes, unless they are loaded."""
        if not len(hashes):
            return
        bins = self.layout.bins_of(hashes)
        self._last_use[bins] = self._step
        if self._sources is not None:
            self._check_loaded(hashes, bins)
            missing = bins[~self._loaded[bins]]
            if len(missing):
                self._load(distinct(missing))

    def load_due(self, domain: TimeDomain, until: int, owned: npt.NDArray[np.bool_]) -> None:
        """Load owned bins that may have something due up to a time."""
        if self._sources is None:
            return
        until = min(until, LAST_TIMER)
        bins = np.flatnonzero((self._unloaded[domain] <= until) & owned & ~self._loaded)
        if len(bins):
            self._load(bins)

    def _load(self, bins: Bins) -> None:
        if self._at_once is not None and self._at_once[bins].any():
            bins = np.union1d(bins, np.flatnonzero(self._at_once & ~self._loaded))
        self._last_use[bins] = self._step
        self._fetch(bins)
        self._note_opened()

    def _note_opened(self) -> None:
        """Note how much of files is in memory. Drop it if that is much."""
        assert self._sources is not None
        self._opened_bytes = self._sources.opened_bytes
        if self._opened_bytes > self._most // _PORTIONS:
            self._sources.release()
            self._opened_bytes = 0

    def _fetch(self, bins: Bins) -> None:
        """Read bins in portions, so that what is read does not take as much memory again."""
        self._begin_taking(bins)
        for part in self._portions(bins, self._portion):
            begun = self.opening.timer()
            tables = self._read(part)
            self._apply_all(tables)
            self.opening.note(0, tables, begun)
        self.opening.bins += len(bins)

    @property
    def _portion(self) -> int:
        """How many bytes of files are read together."""
        most = max(self._most // _PORTIONS, _LEAST_PORTION)
        return max(1, min(most, batches.MOST_BYTES // 4))

    def _portions(self, bins: Bins, most: int) -> Iterator[Ranges]:
        """Yield the hashes of bins in portions of about a given size."""
        assert self._sources is not None
        ranges = self.layout.ranges_of_bins(bins)
        if self._sources.nbytes_in(ranges) <= most:
            yield ranges
            return
        sizes = self._stored_bytes(bins)
        for first, last in portions_of_sizes(sizes, most):
            part = self.layout.ranges_of_bins(bins[first:last])
            if last - first == 1 and sizes[first] > 2 * most:
                yield from self._from_sources(partial(self._portions_of_bin, part, most))
            else:
                yield part

    def _portions_within(self, ranges: Ranges) -> Iterable[Ranges]:
        assert self._sources is not None
        if self._sources.nbytes_in(ranges) <= self._portion:
            return [ranges]
        return self._from_sources(partial(self._portions_of_bin, ranges, self._portion))

    def _portions_of_bin(self, ranges: Ranges, most: int, sources: StateSources) -> list[Ranges]:
        return [*portions(sources, self.stored_sections, ranges, most)]

    def _stored_bytes(self, bins: Bins) -> npt.NDArray[np.float64]:
        """Return about how many bytes each of some bins has in files."""
        ranges = self.layout.ranges_of_bins(bins)
        blocks = self._from_sources(
            lambda of: columns_of(of.blocks_in(ranges, self.stored_sections))
        )
        return bytes_between(blocks, self.layout.starts[bins], self.layout.ends[bins])

    def _take(self, bins: Bins, tables: Iterable[tuple[str, pa.Table]]) -> None:
        """Apply the content of bins. They are loaded from then on."""
        self._begin_taking(bins)
        self._apply_all(tables)

    def _begin_taking(self, bins: Bins) -> None:
        self._loaded[bins] = True
        for lowest in self._unloaded.values():
            lowest[bins] = MAX_TIME
        self.make_room(self.node.group.own(self.layout.ranges_of_bins(bins)))

    def _apply_all(self, tables: Iterable[tuple[str, pa.Table]]) -> None:
        for section, table in tables:
            self._apply_changes(section, table)

    # -- a step on more state than fits into memory -------------------------------------------

    def fill(self, first: int, needs: Needs) -> int:
        """Load what a step needs, from one bin on, as far as memory allows; at least one bin.

        If it fits, whole bins are loaded, for this step and later ones. Otherwise only the keys of
        this step are. Bins behind them are evicted if that makes room. They must not have changed
        in this step.

        Args:
            first: the first bin that may be loaded.
            needs: what the step needs.

        Returns:
            The first bin that is needed and does not fit, or the number of bins. In the former case
            no bin from there on is loaded.
        """
        if self._sources is None:
            return len(self.layout)
        full = int(self._most * _FULL)
        follow = np.arange(len(self.layout)) >= first
        sizes: npt.NDArray[np.float64] | None = None
        by_key, needed = False, needs.touched
        while True:
            due = needs.owned & self.due_bins(needs.until)
            needed = needed | due  # (evicting a bin may add it)
            missing = np.flatnonzero(needed & follow & ~self._loaded)
            if not len(missing):
                return len(self.layout)
            if self.bytes_at_hand() >= full and not self._makes_room(full, int(missing[0]), needed):
                end = int(missing[0])
                if needed[first:end].any():
                    return end
            if self._at_once is not None and self._at_once[missing].any():
                self._load(missing)
                continue
            if sizes is None or not sizes[missing].all():
                sizes = np.zeros(len(needed))
                sizes[missing] = np.maximum(self._stored_bytes(missing), 1.0)
                by_key = by_key or self._goes_by_key(full, float(sizes.sum()))
            if by_key:
                self._load_keys(missing, sizes, due[missing], needs.hashes)
            else:
                self._load_measured(self._next(missing, sizes[missing]), sizes)

    def _next(self, missing: Bins, sizes: npt.NDArray[np.float64]) -> Bins:
        """Return the first of some bins, as many as a portion has."""
        return missing[: max(1, int(np.searchsorted(np.cumsum(sizes), self._most // _PORTIONS)))]

    def _load_measured(self, bins: Bins, sizes: npt.NDArray[np.float64]) -> None:
        """Load whole bins, and note what they take in memory."""
        before = self.cached_bytes()
        self._load(bins)
        stored = float(sizes[bins].sum())
        if stored:
            self._memory_of_a_byte = (self.cached_bytes() - before) / stored

    def _goes_by_key(self, full: int, stored: float) -> bool:
        """Return whether bins with some bytes in files do not fit, so that keys are loaded alone.

        What bins take is measured when they are loaded. That is tried again from time to time.
        """
        # (Records that wait belong to a bin, and are due for keys without records.)
        if self._buffers or not self._memory_of_a_byte:
            return False
        if self.bytes_at_hand() + stored * self._memory_of_a_byte <= full:
            return False
        self._steps_by_key += 1
        if self._steps_by_key % _BINS_AGAIN == 0:
            self._memory_of_a_byte = 0.0
            return False
        return True

    def _load_keys(
        self,
        missing: Bins,
        sizes: npt.NDArray[np.float64],
        is_due: npt.NDArray[np.bool_],
        hashes: U64,
    ) -> None:
        """Load a portion of a step's keys, in the first of some bins.

        Args:
            missing: the bins.
            sizes: about how many bytes each bin of the layout has in files.
            is_due: which of the missing bins have something that may be due. They are loaded whole.
            hashes: those of the step's keys.
        """
        weights = np.where(is_due, sizes[missing], sizes[missing] / self._thinness)
        bins = self._next(missing, weights)
        is_due = is_due[: len(bins)]
        if is_due.any():
            self._load(bins[is_due])
        bins = bins[~is_due]
        if not len(bins):
            return
        whole = float(sizes[bins].sum())
        read = self._fetch_keys(bins, hashes)
        most = whole / max(1, read) / 2
        self._thinness = float(np.clip(most, 1.0, _FASTER * self._thinness))

    def _fetch_keys(self, bins: Bins, hashes: U64) -> int:
        """Read the keys of some hashes in bins that are not loaded. Return how many bytes came.

        What is pending in these bins stays known as a lower bound.
        """
        ranges = self.layout.ranges_of_bins(bins)
        hashes = hashes[ranges.contain(hashes)]
        self._last_use[bins] = self._step
        self._loaded[bins] = self._partly[bins] = True
        self.make_room(self.node.group.own(ranges))
        read = 0
        for part in self._portions(bins, int(self._portion * self._thinness)):
            begun = self.opening.timer()
            own = hashes[part.contain(hashes)]
            tables = self._read(Ranges(own, own))
            read += sum(table.nbytes for _, table in tables)
            self._apply_all(tables)
            self.opening.note(0, tables, begun)
        self.opening.bins += len(bins)
        self._keys_loaded = self._keys_loaded.plus(Ranges(hashes, hashes))
        self._note_opened()
        return read

    def _check_loaded(self, hashes: U64, bins: Bins) -> None:
        """Check that keys are loaded which are in bins that are loaded in part."""
        if self._partly.any():
            known = self._keys_loaded.contain(hashes) | ~self._partly[bins]
            ensure(bool(known.all()), "a step looks at keys that it has no records of")

    @property
    def is_partly_loaded(self) -> bool:
        """Whether of some bins only the keys of the step are loaded. Set it aside after the step."""
        return bool(self._partly.any())

    def _makes_room(self, full: int, end: int, needed: npt.NDArray[np.bool_]) -> bool:
        """Evict what the step does not need, and then what it needs last. Return if that helps."""
        places = np.arange(len(needed))
        spare = self._loaded & self.node.group.bins_in(self.layout) & (~needed | (places > end))
        if not spare.any():
            return False
        order = np.flatnonzero(spare)
        by_use = np.where(needed[order], self._step + len(needed) - order, self._last_use[order])
        before = self.bytes_at_hand()
        self._evict_first(max(1, before - full // 2), order[np.argsort(by_use, kind="stable")])
        return self.bytes_at_hand() < before

    @property
    def is_loaded(self) -> bool:
        """Whether all bins are in memory."""
        return self._sources is None

    def due_bins(self, until: Mapping[TimeDomain, int]) -> npt.NDArray[np.bool_]:
        """Return which bins that are not loaded may have something due, by the clocks of a step."""
        due = np.zeros(len(self.layout), dtype=bool)
        for domain, lowest in self._unloaded.items():
            due |= ~self._loaded & (lowest <= min(until[domain], LAST_TIMER))
        return due

    def set_aside(self) -> None:
        """Evict all bins, with what the step has changed in them, and keep the changes.

        They are written with the step. Until then, they count as a file.
        """
        self._bound_all()
        self._make_current()
        assert self._sources is not None
        parts = self._step_parts()
        if parts:
            name = f"set aside {len(self._aside)}"
            self._sources = self._sources.with_run(RowsInMemory(parts, SET_ASIDE, name))
            self._aside += parts
        self._is_stale = True
        self._drop(self._loaded & self.node.group.bins_in(self.layout))
        self._keys_loaded = Ranges.of([])

    def _read(self, ranges: Ranges) -> list[tuple[str, pa.Table]]:
        """Return the stored content of some ranges of hashes."""
        most = self._portion
        return self._from_sources(
            lambda sources: rows_of(sources, self.stored_sections, ranges, most)
        )

    def _from_sources(self, read: Callable[[StateSources], T]) -> T:
        """Read from storage. If files are gone, read from the newer files that replaced them."""
        assert self._sources is not None and self._reopen is not None
        try:
            return read(self._sources)
        except NotFound:
            aside = [run for run in self._sources.runs if run.ref.step == SET_ASIDE]
            self._sources = self._reopen()
            for run in aside:
                self._sources = self._sources.with_run(run)
            return read(self._sources)

    def whole(self, ranges: Ranges) -> dict[str, pa.Table]:
        """Return all current live rows of some ranges of hashes, by section, sorted by hash.

        Rows of loaded bins come from memory, and others from storage: bins that are not loaded have
        not changed. Costs what is returned, and what is read for it.
        """
        if not len(ranges):
            return {}
        parts = [self._whole(part) for part in self._parts_at_hand(ranges)]
        if len(parts) == 1:
            return parts[0]
        names = dict.fromkeys(name for part in parts for name in part)
        return {name: pa.concat_tables([of[name] for of in parts if name in of]) for name in names}

    def _parts_at_hand(self, ranges: Ranges) -> list[Ranges]:
        """Cut ranges at borders of bins, so that what is in memory of each part fits a batch."""
        most = batches.MOST_BYTES // 4
        if self.bytes_at_hand() <= most:
            return [ranges]
        sizes = self.bytes_of_bins()
        for buffer in self._buffers.values():
            sizes += buffer.bytes_of_bins(self.layout)
        part_of = np.cumsum(sizes) // most
        edges = np.flatnonzero(np.diff(part_of, prepend=-1))
        lasts = [*(self.layout.starts[edges[1:]] - np.uint64(1)).tolist(), MAX_HASH]
        spans = zip(self.layout.starts[edges].tolist(), lasts, strict=True)
        parts = (ranges.within(Ranges.of([span])) for span in spans)
        return [part for part in parts if len(part)]

    def _whole(self, ranges: Ranges) -> dict[str, pa.Table]:
        found = self.loaded_rows(ranges)
        for section, buffer in self._buffers.items():
            rows = buffer.rows_in(ranges)
            if rows is not None:
                found[section] = pa.Table.from_batches([rows])
        if self._sources is None:
            return found
        firsts, lasts = self.layout.bins_of(ranges.firsts), self.layout.bins_of(ranges.lasts)
        bins = distinct(
            np.concatenate([np.arange(a, b + 1) for a, b in zip(firsts, lasts, strict=True)])
        )
        missing = self.layout.ranges_of_bins(bins[~self._loaded[bins]]).within(ranges)
        stored: dict[str, list[pa.Table]] = {}
        for part in self._portions_within(missing) if len(missing) else ():
            for section, rows in self._read(part):
                stored.setdefault(section, []).append(self.stored_as_declared(section, rows))
        for section, tables in stored.items():
            whole = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
            at_hand = found.get(section)
            found[section] = whole if at_hand is None else self.united(whole, at_hand)
        return found

    def stored_as_declared(self, section: str, table: pa.Table) -> pa.Table:
        """Return stored rows of any section as today's code declares them."""
        if section in self._buffers:
            return self._buffers[section].as_declared(table)
        return self.as_declared(section, table)

    def united(self, stored: pa.Table, at_hand: pa.Table) -> pa.Table:
        """Return the stored rows of unloaded bins together with rows in memory, sorted by hash."""
        table = as_one([at_hand, stored])
        return batches.taken(table, order_by_hash(table.column(HASH).to_numpy()))

    def lowest_timer(self, domain: TimeDomain, owned: npt.NDArray[np.bool_]) -> int:
        """Return the lowest pending time of a domain on this worker.

        A lower bound for unloaded bins.
        """
        lowest = self.lowest_loaded(domain)
        if domain is EVENT_TIME:
            lowest = min([lowest, *(buffer.lowest() for buffer in self._buffers.values())])
        if self._sources is not None and owned.any():
            lowest = min(lowest, int(self._unloaded[domain][owned].min()))
        return lowest

    # -- changes of the layout ----------------------------------------------------------------

    def relayout(
        self,
        layout: Layout,
        owned: npt.NDArray[np.bool_],
        moved: Ranges,
        coming: Ranges,
        reopen: Callable[[], StateSources],
    ) -> None:
        """Follow a live change of the layout, between steps.

        Bins that have moved, whether away, here, or away and back, are evicted. All others stay as
        they are, loaded or not. So nothing happens if only another group's bins moved. Costs what
        moved, and the number of bins.

        Args:
            layout: bins and owners from now on. Bins that are to be merged appear as their
                children; see :func:`headrace.state.relayout.refined` and :meth:`merge`.
            owned: which bins are the worker's.
            moved: the hashes that came or left in any of the changes.
            coming: those of them whose content :meth:`take_over` will bring before anything is
                computed.
            reopen: returns the files that hold the state as of the previous step.
        """
        self._carry_to(layout)
        changed = self.node.group.own(moved).overlapping(layout.starts, layout.ends)
        self.evict(changed)
        for buffer in self._buffers.values():
            buffer.forget(layout.ranges_of_bins(np.flatnonzero(changed)))
        self._loaded &= ~changed
        if self._at_once is not None:
            self._at_once = self._at_once & ~changed
        self.expect(self.node.group.own(layout.ranges_of_bins(np.flatnonzero(owned))))
        given = coming.overlapping(layout.starts, layout.ends)
        sought = changed & owned & ~given
        for lowest in self._unloaded.values():
            lowest[changed] = MAX_TIME
        if sought.any():
            self._look_up(sought, reopen)

    def _look_up(self, bins: npt.NDArray[np.bool_], reopen: Callable[[], StateSources]) -> None:
        """Read from file footers what unloaded bins may have pending.

        If the bins are small, note that they are to be loaded at once.
        """
        self._bound_all()
        self._reopen, self._sources = reopen, reopen()
        ranges = self.layout.ranges_of_bins(np.flatnonzero(bins))
        event, wall = self._from_sources(lambda of: of.lowest_timers(self.layout, ranges))
        for domain, lowest in ((EVENT_TIME, event), (WALL_TIME, wall)):
            self._unloaded[domain][bins] = lowest[bins]
        self._note_opened()
        if self._sources.nbytes_in(ranges) <= _SMALL:
            self._at_once = bins if self._at_once is None else self._at_once | bins

    def take_over(self, ranges: Ranges, tables: Iterable[tuple[str, pa.Table]]) -> None:
        """Take the content of whole bins that are not loaded, as of the previous step."""
        bins = np.flatnonzero(ranges.overlapping(self.layout.starts, self.layout.ends))
        self._take(bins, tables)

    def merge(
        self, layout: Layout, owned: npt.NDArray[np.bool_], reopen: Callable[[], StateSources]
    ) -> None:
        """Merge bins, between steps.

        If one child is loaded and the other is not, the loaded one is evicted. That needs no file
        now, and perhaps never. Reading the other would load a bin that nothing has asked for.

        Args:
            layout: the layout in which they are merged.
            owned: which of its bins are the worker's.
            reopen: returns the files that hold the state as of the previous step.
        """
        carry = Carry(self.layout, layout)
        torn = owned & carry.any(self._loaded) & ~carry.all(self._loaded)
        if torn.any():
            self._evict(torn[layout.bins_of(self.layout.starts)] & self._loaded, reopen)
        self._carry_to(layout)

    def _evict(self, bins: npt.NDArray[np.bool_], reopen: Callable[[], StateSources]) -> None:
        """Evict loaded bins, at a cost proportional to what leaves."""
        self._bound_all()
        self._reopen, self._sources = reopen, reopen()
        self._lower(self.evict(bins))
        ranges = self.layout.ranges_of_bins(np.flatnonzero(bins))
        event = self._unloaded[EVENT_TIME]
        for buffer in self._buffers.values():
            hashes, times = buffer.forget(ranges)
            np.minimum.at(event, self.layout.bins_of(hashes), np.minimum(times, LAST_TIMER))
        self._loaded &= ~bins

    def _carry_to(self, layout: Layout) -> None:
        """Switch to another layout of the same hashes, in which bins were split or merged."""
        before, self.layout = self.layout, layout
        if np.array_equal(before.bits, layout.bits):
            return
        carry = Carry(before, layout)
        self._partly = np.zeros(len(layout), dtype=bool)  # (a step has set them aside)
        self._last_use = carry.highest(self._last_use)
        self._loaded = carry.all(self._loaded)
        if self._at_once is not None:
            self._at_once = carry.any(self._at_once)
        self._unloaded = {of: carry.lowest(lowest) for of, lowest in self._unloaded.items()}
        self.regroup(before)

    def take_changes(self) -> list[RunPart]:
        """Return what the step changed, including waiting records, to be written.

        Then forget that it changed.
        """
        aside, self._aside = self._aside, []
        return _joined([*aside, *self._step_parts()]) if aside else self._step_parts()

    def _step_parts(self) -> list[RunPart]:
        parts = self.changed_parts()
        for section, buffer in self._buffers.items():
            batch = buffer.take_changes()
            if batch is not None:
                parts.append(RunPart(self.node.name, section, batch, due_rows(batch, {})))
        return parts


def _buffer(section: str, keys: Sequence[pa.Field], values: ValueType) -> RecordBuffer:
    return RecordBuffer(section, keys, values.schema, defaults_of(values))


def _joined(parts: Sequence[RunPart]) -> list[RunPart]:
    """Return parts with those of one section joined. Their hashes ascend from one to the next."""
    by_kind: dict[str, list[RunPart]] = {}
    for part in parts:
        by_kind.setdefault(part.kind, []).append(part)
    return [
        RunPart(
            found[0].owner,
            kind,
            as_one_batch([part.batch for part in found]),
            together(
                zip(
                    accumulate((part.batch.num_rows for part in found), initial=0),
                    (part.timer_rows for part in found),
                    strict=False,
                )
            ),
        )
        for kind, found in by_kind.items()
    ]
