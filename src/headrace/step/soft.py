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
from headrace.computation import EVENT_TIME, Computation, TimeDomain, hold_cell
from headrace.errors import NotFound, ensure
from headrace.keyspace.layout import Layout
from headrace.keyspace.ranges import Ranges
from headrace.ledger.log import Ledger
from headrace.ledger.manifest import Head, slice_range
from headrace.recordids import RecordIds
from headrace.state.ids import IdState
from headrace.state.keyed import KeyedState
from headrace.state.relayout import refined
from headrace.state.runs import HASH, Part, RunReader
from headrace.state.sections import due_rows, whole_section
from headrace.state.sources import StateSources
from headrace.state.tables import TableSet
from headrace.step.idcheck import IdCheck
from headrace.step.plan import Carried, ChainPlan, Plan, SlicePlan, StateFiles
from headrace.step.readers import StateReaders, files_of, state_files
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
    """

    def __init__(
        self, pipeline: Pipeline, layout: Layout, layer: int, worker: int, digest: str,
        version: int = 0,
    ) -> None:  # fmt: skip
        self.digest = digest
        self.layer = layer
        self.worker = worker
        self.version = version
        self._committed: _Committed | None = None
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

    def relayout(self, layout: Layout, version: int, moved: Ranges, committed: _Committed) -> None:
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
        for name, visitor in self.visitors.items():
            visitor.state.relayout(
                before_merges, self.owned, moved, Ranges.of([]), partial(committed.sources, name)
            )

    def settle(self, layout: Layout, committed: _Committed) -> None:
        """End what :meth:`relayout` began, once the chain of files has been caught up with."""
        if self.layout is layout:
            return
        self._go_by(layout)
        for name, visitor in self.visitors.items():
            visitor.state.merge(layout, self.owned, partial(committed.sources, name))

    def catch_up(self, reader: RunReader, after: str) -> None:
        """Take over a link of the chain that another process computed."""
        for visitor in self.visitors.values():
            visitor.state.catch_up(reader)
        self.digest = after

    def begin_step(self, plan: Plan, committed: _Committed) -> None:
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
        committed = _Committed(store, layout, layer, worker, plan, chain)
        how = "" if entry is None else _brought_up(entry, plan, layout, chain, committed)
        if entry is None or not how:
            how, entry = "cold", self._cold(pipeline, plan, layout, layer, worker, committed)
        entry.begin_step(plan, committed)
        return entry, how

    def give_back(self, code: str, plan: Plan, layer: int, worker: int, entry: WorkerState) -> None:
        """Remember an entry under the digest that it now stands for."""
        self._entries[(plan.store, code, layer, worker)] = entry

    def drop_older(self, store: str, code: str) -> None:
        """Drop what belongs to other code on a storage: a drawing that was changed, or an older run."""
        for at in [at for at in self._entries if at[0] == store and at[1] != code]:
            del self._entries[at]

    def forget(self) -> None:
        """Drop everything. Costs time at the next step, and nothing else."""
        self._entries.clear()

    def _cold(
        self, pipeline: Pipeline, plan: Plan, layout: Layout, layer: int, worker: int,
        committed: _Committed,
    ) -> WorkerState:  # fmt: skip
        version = plan.layout_version
        entry = WorkerState(pipeline, layout, layer, worker, committed.digest, version)
        files = committed.files()
        if files.runs or files.slices:
            entry.attach(committed.readers())
        return entry


class _Committed:
    """The files that hold a worker's state as of the step before a plan's; opened when asked for."""

    def __init__(
        self, store: Store, layout: Layout, layer: int, worker: int, plan: Plan, chain: ChainPlan
    ) -> None:
        self.digest = chain.digest
        self.store = store
        self._layout = layout
        self._at = (layer, worker)
        self._step = plan.step - 1
        self._files: StateFiles | None = None
        self._readers: StateReaders | None = None

    def files(self) -> StateFiles:
        """Return the files; the ledger is read once."""
        if self._files is None:
            head = Ledger(self.store).open(self._step)
            assert head is not None
            ensure(
                head.chain_of(*self._at).digest == self.digest,
                "the ledger's chain of files is not the plan's",
            )
            self._files = state_files(head)
        return self._files

    def readers(self) -> StateReaders:
        """Return readers of the files, or of the newest ones once some have been cleaned away."""
        if self._readers is None:
            _, worker = self._at
            self._readers = StateReaders(
                self.store, self._layout, worker, self.files(), self._newest
            )
        return self._readers

    def sources(self, name: str) -> StateSources:
        """Return the files that hold one computation's state; see :meth:`StateReaders.sources`."""
        return self.readers().sources(name)

    def _newest(self) -> StateFiles:
        head = Ledger(self.store).open()
        assert head is not None
        return state_files(head)

    def carried_parts(self, carried: list[Carried], ranges: Ranges) -> list[Part]:
        """Return the rows of computations that were removed, to be written again as they are."""
        parts = []
        for item in carried:
            readers = StateReaders(self.store, self._layout, self._at[1], item.files)
            sources = readers.sources(item.name)
            dated = {name: TimeDomain(domain) for name, domain in item.dated.items()}
            for section in sources.sections:
                table = sources.rows(section, ranges)
                if table is None:
                    continue
                (batch,) = table.combine_chunks().to_batches()
                due = due_rows(batch, dated)
                parts.append(Part(item.name, whole_section(section), batch, due))
        return parts


def carried(head: Head, number: int) -> list[Carried]:
    """Return what of a slice belongs to computations that were removed, and which files hold it.

    Nothing of it has changed since its computation was removed, so what is needed is the slice as it
    was last written, and changes up to then.
    """
    found = []
    for name, since in head.identity.get("removed", {}).items():
        facts = head.identity["computations"].get(name)
        if facts is None:
            continue  # its state was given up
        old = head.slices.get(number)
        slices = [old] if old is not None and any(name in f.owners for f in old.files) else []
        after = -1 if old is None else old.as_of
        runs = [run for run in head.runs if after < run.step < since and name in run.owners]
        if slices or runs:
            files = files_of(head, [] if old is None else [old], runs)
            found.append(Carried(name, _dated(facts["cells"]), files))
    return found


def _dated(cells: dict[str, str]) -> dict[str, str]:
    """Return the cells that hold times, as ``Shape.dated_cells`` does, from what storage knows of them."""
    found = {}
    for name, kind in cells.items():
        if kind.startswith("timer "):
            found[name] = kind.split()[1]
            if kind.endswith(" with holds"):
                found[hold_cell(name)] = EVENT_TIME.value
    return found


def _brought_up(
    entry: WorkerState, plan: Plan, layout: Layout, chain: ChainPlan, committed: _Committed
) -> str:
    """Bring an entry to the plan's layout and chain; say how, or nothing when what it needs is not at hand.

    First the layout, so that the files of missed steps are taken for bins only that stayed all the time.
    """
    known = [before for before, _, _ in chain.recent] + [chain.digest]
    moved = entry.moved_until(plan, layout)
    if moved is None or entry.digest not in known:
        return ""
    how = "hit"
    if entry.version != plan.layout_version:
        how = "moved"
        entry.relayout(layout, plan.layout_version, moved, committed)
    links = chain.recent[known.index(entry.digest) :]
    try:
        for _, run, after in links:
            entry.catch_up(RunReader(committed.store.read, run), after)
    except NotFound:
        return ""  # superseded by slices, and cleaned away
    entry.settle(layout, committed)
    caught_up = entry.digest == chain.digest
    if not caught_up or not links:
        return how if caught_up else ""
    return "caught up" if how == "hit" else "moved, caught up"
