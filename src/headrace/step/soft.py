"""Soft state of a process: what it remembers of (layer, worker) pairs between steps.

An entry stands for a *chain of adopted files*, by digest, and for a version of the layout. At the next
step it is used as it is when the plan names the same; it follows live changes of layout, and catches up
when it is a few links behind; otherwise it is dropped, and bins are loaded from storage when they are
needed. Dropping it at any time costs time, never results.
"""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar import ColumnarComputation
from headrace.computation import Computation
from headrace.errors import NotFound, ensure
from headrace.keyspace.layout import Layout
from headrace.keyspace.ranges import Ranges
from headrace.ledger.manifest import slice_range
from headrace.recordids import RecordIds
from headrace.state.ids import IdState
from headrace.state.keyed import KeyedState
from headrace.state.prepared import Each, Prepared, Sections
from headrace.state.relayout import refined
from headrace.state.runs import HASH, Part, RunReader
from headrace.state.sections import due_rows, whole_section
from headrace.state.sources import rows_of
from headrace.state.tables import TableSet
from headrace.step.committed import Committed
from headrace.step.idcheck import IdCheck
from headrace.step.plan import ChainPlan, Plan, SlicePlan
from headrace.step.readers import StateReaders
from headrace.step.visit import Visitor
from headrace.step.visit_batch import BatchVisitor
from headrace.step.visit_timeline import TimelineVisitor
from headrace.storage.base import Store
from headrace.topology import Node, Pipeline


class WorkerState:
    """All that a process remembers of one (layer, worker).

    Attributes:
        digest: the chain of adopted files that it stands for.
        layout, version: bins and owners that it goes by, and how many live changes led to them.
        visitors: a computation each.
        owned: which bins of the layout are the worker's.
        prepared: what was read ahead of hashes that it is to own.
    """

    def __init__(
        self, pipeline: Pipeline, layout: Layout, layer: int, worker: int, digest: str,
        version: int = 0,
    ) -> None:  # fmt: skip
        self.digest = digest
        self.layer = layer
        self.worker = worker
        self.version = version
        self.prepared = Prepared()
        self._coming = Ranges.of([])
        self._committed: Committed | None = None
        self._go_by(layout)
        self.visitors = {
            node.name: visitor_of(node, layout, worker) for node in pipeline.nodes_of(layer)
        }

    def _go_by(self, layout: Layout) -> None:
        self.layout = layout
        self.owned: npt.NDArray[np.bool_] = layout.owners == self.worker
        self._ranges = layout.ranges_of(self.worker)

    def attach(self, readers: StateReaders) -> None:
        """Say where the content of bins is that are not loaded."""
        for name, visitor in self.visitors.items():
            visitor.state.attach(partial(readers.sources, name), self.owned)

    def moved_until(self, plan: Plan, layout: Layout) -> Ranges | None:
        """Return what came to this worker, or left it, between its layout and a plan's.

        Returns:
            The hashes; None when that is not known, or not how the one layout came of the other.
        """
        if plan.layout_version == self.version:
            same = layout is self.layout or layout == self.layout
            return Ranges.of([]) if same else None
        changes = [change for change in plan.relocated if change.version > self.version]
        needed = range(self.version + 1, plan.layout_version + 1)
        if not needed or [change.version for change in changes] != list(needed):
            return None
        moves = [m for change in changes for m in change.moves if self.worker in m[2:]]
        firsts, lasts = (np.array([m[at] for m in moves], dtype=np.uint64) for at in (0, 1))
        moved = Ranges.of([]).plus(Ranges(firsts, lasts))
        own = layout.ranges_of(self.worker)
        differs = own.without(self._ranges).plus(self._ranges.without(own))
        # (a try that was abandoned may have had another change under the same number)
        return None if len(differs.without(moved)) else moved

    def relayout(self, layout: Layout, version: int, moved: Ranges, committed: Committed) -> None:
        """Follow live changes of layout; bins that are to be merged wait for :meth:`settle`.

        Args:
            layout: bins and owners from now on.
            version: how many live changes led to them.
            moved: the hashes that came to this worker or left it in any of them.
            committed: the files as of the step before.
        """
        before_merges = refined(self.layout, layout)
        self._go_by(before_merges)
        self.version = version
        self._coming = self._prepared_bins(moved, committed)
        for name, visitor in self.visitors.items():
            visitor.state.relayout(
                before_merges, self.owned, moved, self._coming, partial(committed.sources, name)
            )

    def _prepared_bins(self, moved: Ranges, committed: Committed) -> Ranges:
        """Return the bins that came and that were read ahead in full, if the tail can be had as well."""
        if not len(self.prepared.ranges) or committed.after(self.prepared) is None:
            return Ranges.of([])
        starts, ends = self.layout.starts, self.layout.ends
        rest = Ranges.everything().without(self.prepared.ranges)
        came = self.owned & moved.overlapping(starts, ends) & ~rest.overlapping(starts, ends)
        return self.layout.ranges_of_bins(np.flatnonzero(came))

    def settle(self, layout: Layout, committed: Committed) -> None:
        """End what :meth:`relayout` began, once the chain of files has been caught up with.

        Raises:
            NotFound: when files are not there any more that what was read ahead goes on with.
        """
        if len(self._coming):
            self._take_prepared(committed)
        if self.layout is layout:
            return
        self._go_by(layout)
        for name, visitor in self.visitors.items():
            visitor.state.merge(layout, self.owned, partial(committed.sources, name))

    def _take_prepared(self, committed: Committed) -> None:
        files = committed.after(self.prepared)
        ensure(files is not None, "the tail of what was prepared is gone")
        assert files is not None
        readers = StateReaders(committed.store, self.layout, self.worker, files)
        for name, visitor in self.visitors.items():
            sources = self.prepared.sources(name, readers.sources(name, self._coming))
            tables = rows_of(sources, visitor.state.stored_sections, self._coming)
            visitor.state.take_over(self._coming, tables)
        self._coming = Ranges.of([])

    def prepare(self, ranges: Ranges, budget_bytes: int, each: Each = map) -> tuple[int, bool]:
        """Read ahead all rows of hashes that this worker is to own, as of the step before; go on with it.

        To be called in a step, after the state was written or before; each call follows the steps since
        the last, and reads some more. What is not asked for any more is forgotten, so a call without
        ranges forgets everything; to ask twice for what is there costs nothing.

        Args:
            ranges: all the hashes that are wanted.
            budget_bytes: about how many bytes may be read in this call.
            each: opens files, perhaps several at once; ``map`` of a pool of threads, say.

        Returns:
            How many bytes were read; whether all is at hand as of the step before.
        """
        prepared, committed = self.prepared, self._committed
        ranges = ranges.without(self._ranges)
        prepared.keep(ranges)
        if committed is None or not len(ranges):
            prepared.clear()
            return 0, True
        try:
            done = self._follow(committed, each)
            missing = ranges.without(prepared.ranges)
            if not len(missing):
                prepared.opened.clear()
                return done, True
            if done >= budget_bytes:
                return done, False
            readers = StateReaders(
                committed.store, self.layout, self.worker, committed.files(), None, prepared.opened
            )
            files = {name: readers.sources(name, missing) for name in self.visitors}
            prepared.as_of, prepared.since = committed.step, committed.since
            more, is_done = prepared.read(
                ranges, files, self._sections, self.layout, budget_bytes - done, each
            )
            return done + more, is_done
        except NotFound:
            prepared.clear()  # it took so long that files were cleaned away meanwhile
            return 0, False

    def forget_prepared(self) -> None:
        """Forget what was read ahead of hashes that are the worker's by now, and committed as such."""
        if len(self.prepared.ranges):
            self.prepared.keep(self.prepared.ranges.without(self._ranges))

    def _follow(self, committed: Committed, each: Each) -> int:
        """Bring what was read ahead up to the step before; forget it if that cannot be done."""
        prepared = self.prepared
        if not len(prepared.ranges) or prepared.as_of == committed.step:
            return 0
        files = committed.after(prepared)
        if files is None:
            prepared.clear()
            return 0
        readers = StateReaders(committed.store, self.layout, self.worker, files)
        newer = {name: readers.sources(name, prepared.ranges) for name in self.visitors}
        prepared.since = committed.since or prepared.since
        return prepared.follow(newer, self._sections, self.layout, committed.step, each)

    @property
    def _sections(self) -> Sections:
        return {name: visitor.state.stored_sections for name, visitor in self.visitors.items()}

    def catch_up(self, reader: RunReader, after: str) -> None:
        """Take over a link of the chain that another process computed."""
        for visitor in self.visitors.values():
            visitor.state.catch_up(reader)
        self.digest = after

    def begin_step(self, plan: Plan, committed: Committed) -> None:
        """Begin a step, keeping to the bound on what is remembered."""
        self._committed = committed
        for name, visitor in self.visitors.items():
            visitor.state.begin_step(
                plan.cached_bytes, self.owned, partial(committed.sources, name)
            )

    def slice_parts(self, slice_: SlicePlan, step: int, changes: list[Part]) -> list[Part]:
        """Return this worker's rows of a slice as of a step, as sections to be written.

        Args:
            slice_: which slice.
            step: the step, which has been computed.
            changes: what it changed.
        """
        ranges = self._ranges.within(Ranges.of([slice_range(slice_.number, slice_.of)]))
        parts = []
        for visitor in self.visitors.values():
            node = visitor.node
            if node.name in slice_.undeclared:
                found = self._whole_from_files(node, ranges, step, changes)
            else:
                found = visitor.state.whole(ranges)
            for section, table in found.items():
                batches = table.combine_chunks().to_batches()
                ensure(len(batches) == 1, "a slice is too large for one batch")
                due = due_rows(batches[0], node.shape.dated_cells)
                parts.append(Part(node.name, whole_section(section), batches[0], due))
        if self.layer == 1 and slice_.carried:
            assert self._committed is not None
            parts += self._committed.carried_parts(slice_.carried, ranges)
        return parts

    def _whole_from_files(
        self, node: Node, ranges: Ranges, step: int, changes: list[Part]
    ) -> dict[str, pa.Table]:
        """Return the same from files and the step's changes, with what memory does not know of."""
        assert self._committed is not None
        changed = {part.kind: part.batch for part in changes if part.owner == node.name}
        sources = self._committed.readers().sources(node.name)
        found = {}
        for section in sorted({*sources.sections, *changed}):
            newer = []
            if section in changed:
                batch = changed[section]
                inside = ranges.contain(batch.column(HASH).to_numpy())
                newer = [(step, pa.Table.from_batches([batch.filter(pa.array(inside))]))]
            table = sources.rows(section, ranges, newer)
            if table is not None:
                found[section] = table
        return found


def visitor_of(node: Node, layout: Layout, worker: int) -> Visitor | BatchVisitor | IdCheck:
    """Return what runs a computation: key by key, or all keys at once; or the engine's own."""
    own = copy.copy(node.computation)
    if isinstance(own, RecordIds):
        return IdCheck(node, own, IdState(node, own, layout, worker))
    if isinstance(own, ColumnarComputation):
        return BatchVisitor(node, own, TableSet(node, layout, worker))
    assert isinstance(own, Computation)
    kind = TimelineVisitor if node.posts or node.ordered else Visitor
    return kind(node, own, KeyedState(node, layout))


class SoftState:
    """Everything that one process remembers, for any number of pipelines."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str, int, int], WorkerState] = {}
        self._prepared: dict[
            tuple[str, str, int, int], Prepared
        ] = {}  # a failed try does not end it

    def take(
        self, pipeline: Pipeline, code: str, plan: Plan, layout: Layout, layer: int, worker: int,
        store: Store,
    ) -> tuple[WorkerState, str]:  # fmt: skip
        """Return what the plan's chain stands for, and how it was had; the caller gives it back.

        Until it is given back nothing is remembered: a step that fails leaves nothing half-changed.
        """
        at = (plan.store, code, layer, worker)
        chain = plan.chains[f"{layer}/{worker}"]
        entry = self._entries.pop(at, None)
        committed = Committed(store, layout, layer, worker, plan, chain)
        prepared = self._prepared.setdefault(at, Prepared())
        how = ""
        if entry is not None:
            entry.prepared = prepared
            how = _brought_up(entry, plan, layout, chain, committed)
        if entry is None or not how:
            how, entry = "cold", self._cold(pipeline, plan, layout, layer, worker, committed)
            entry.prepared = prepared
        if how == "hit":
            entry.forget_prepared()
        entry.begin_step(plan, committed)
        return entry, how

    def give_back(self, code: str, plan: Plan, layer: int, worker: int, entry: WorkerState) -> None:
        """Remember an entry under the digest that it now stands for."""
        self._entries[(plan.store, code, layer, worker)] = entry

    def drop_older(self, store: str, code: str) -> None:
        """Drop what belongs to other code on a storage: a drawing that was changed, or an older run."""
        for remembered in (self._entries, self._prepared):
            for at in [at for at in remembered if at[0] == store and at[1] != code]:
                del remembered[at]

    def forget(self) -> None:
        """Drop everything. Costs time at the next step, and nothing else."""
        self._entries.clear()
        self._prepared.clear()

    def _cold(
        self, pipeline: Pipeline, plan: Plan, layout: Layout, layer: int, worker: int,
        committed: Committed,
    ) -> WorkerState:  # fmt: skip
        version = plan.layout_version
        entry = WorkerState(pipeline, layout, layer, worker, committed.digest, version)
        files = committed.files()
        if files.runs or files.slices:
            entry.attach(committed.readers())
        return entry


def _brought_up(
    entry: WorkerState, plan: Plan, layout: Layout, chain: ChainPlan, committed: Committed
) -> str:
    """Bring an entry to the plan's layout and chain; say how, or nothing when what it needs is not at hand.

    First the layout, so that the files of missed steps are taken for bins only that stayed all the time.
    """
    known = [before for before, _, _ in chain.recent] + [chain.digest]
    moved = entry.moved_until(plan, layout)
    if moved is None or entry.digest not in known:
        return ""
    links = chain.recent[known.index(entry.digest) :]
    how = "hit"
    try:
        if entry.version != plan.layout_version:
            how = "moved"
            entry.relayout(layout, plan.layout_version, moved, committed)
        for _, run, after in links:
            entry.catch_up(RunReader(committed.store.read, run), after)
        entry.settle(layout, committed)
    except NotFound:
        return ""  # superseded by slices, and cleaned away
    caught_up = entry.digest == chain.digest
    if not caught_up or not links:
        return how if caught_up else ""
    return "caught up" if how == "hit" else "moved, caught up"
