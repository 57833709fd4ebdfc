"""Soft state: what a process remembers of workers' state between steps.

A process has an entry for each (layer, worker) that it runs. An entry stands for a *chain of
adopted files*, by digest, and for a version of the layout. The plan of the next step names the
chain and the layout that the task must have:

- If they are the same, the entry is used as it is.
- If the layout has changed live, the entry follows the change.
- If the entry is a few links of the chain behind, the files of the missed steps are applied.
- Otherwise the entry is dropped, and bins are loaded from storage when they are needed.

Soft state may be dropped at any time. This costs time and never changes a result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.checkpoints.state_files import StateReaders
from headrace.computation.columnar import ColumnarComputation
from headrace.computation.computation import Computation
from headrace.computation.grouped import GroupedComputation
from headrace.computation.record_ids import RecordIds
from headrace.errors import NotFound
from headrace.keyspace.layout import Layout
from headrace.keyspace.ranges import Ranges
from headrace.ledger.head import Head
from headrace.ledger.records import slice_range
from headrace.pipeline import Node, Pipeline
from headrace.protocol.plan import ChainPlan, SlicePlan, StepPlan
from headrace.runfiles.batches import combined
from headrace.runfiles.format import RunPart, RunReader
from headrace.runfiles.sections import due_rows, whole_section
from headrace.schema.reserved import HASH
from headrace.state.ids.ids import IdState
from headrace.state.keyed.keyed import KeyedState
from headrace.state.opening_cost import OpeningCost
from headrace.state.relayout import refined
from headrace.state.tables.table_set import TableSet
from headrace.storage.base import Store
from headrace.storage.reading import InTurn, Reading
from headrace.tasks.committed_files import CommittedFiles, Heads
from headrace.tasks.deduplication import IdCheck
from headrace.tasks.open_files import OpenFiles
from headrace.tasks.prefetch.arriving import Arrival, Rows, gathered
from headrace.tasks.prefetch.kept import Sections
from headrace.tasks.prefetch.requests import Ahead, Wanted
from headrace.tasks.run_columnar import BatchVisitor
from headrace.tasks.run_grouped import GroupVisitor
from headrace.tasks.run_keyed import Visitor
from headrace.tasks.run_ordered import TimelineVisitor

#: A worker reads all that comes to it at once if it is about this many bytes of a computation's
#: files, or less, and at most this part of what it may remember. Of more, it reads the bins that are
#: needed when they are needed.
_MOST_AT_ONCE = 64 << 20
_PART_AT_ONCE = 8
#: A storage's entries are dropped when it was not used for this long. Spark keeps idle Python
#: processes for the same time.
_IDLE_S = 60.0


class Coming(NamedTuple):
    """Whole bins that come to a worker, as hashes, and whose content is taken over at the switch.

    Attributes:
        ranges: all of them.
        unread: those that were not read ahead. They are read now, from the files that the plan
            names.
    """

    ranges: Ranges = Ranges.of([])
    unread: Ranges = Ranges.of([])


class WorkerState:
    """What a process remembers of one (layer, worker).

    Attributes:
        digest: digest of the chain of adopted files that it stands for.
        layer, worker: whose state it is.
        layout, version: its bins and owners, and the number of live changes that led to them.
        visitors: the objects that run the computations and hold their state, by name.
        owned: for each bin of the layout whether the worker owns it.
        ahead: what was read ahead for hashes that the worker will own.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        layout: Layout,
        layer: int,
        worker: int,
        digest: str,
        version: int = 0,
    ) -> None:
        self.digest = digest
        self.layer = layer
        self.worker = worker
        self.version = version
        self.ahead = Ahead()
        self._coming = Coming()
        # What comes, as of which files, and whether it is little. It is asked twice in a step.
        self._judged: tuple[tuple[str, int, bytes], bool] | None = None
        self._committed: CommittedFiles | None = None
        self._go_by(layout)
        self.visitors = {
            node.name: visitor_of(node, layout, worker) for node in pipeline.nodes_of(layer)
        }

    def _go_by(self, layout: Layout) -> None:
        self.layout = layout
        self.owned: npt.NDArray[np.bool_] = layout.owners == self.worker
        self._ranges = layout.ranges_of(self.worker)

    def attach(self, readers: StateReaders) -> None:
        """Set the readers from which bins are loaded when they are needed."""
        for name, visitor in self.visitors.items():
            visitor.state.attach(partial(readers.sources, name), self.owned)

    def moved_until(self, plan: StepPlan, layout: Layout) -> Ranges | None:
        """Return the hashes that moved to or from this worker between its layout and a plan's.

        Returns:
            The hashes. None if they are not known, or do not explain the difference between the
            layouts.
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
        # An abandoned attempt may have had another change under the same number.
        return None if len(differs.without(moved)) else moved

    def relayout(
        self, layout: Layout, version: int, moved: Ranges, committed: CommittedFiles
    ) -> None:
        """Follow live changes of the layout. Bins that are to be merged wait for :meth:`settle`.

        Args:
            layout: the new bins and owners.
            version: the number of live changes that led to them.
            moved: the hashes that came to this worker or left it in any of these changes.
            committed: the files as of the step before.
        """
        before_merges = refined(self.layout, layout)
        self._go_by(before_merges)
        self.version = version
        self._coming = self._coming_bins(before_merges, moved, committed)
        coming = self._coming.ranges
        for name, visitor in self.visitors.items():
            visitor.state.relayout(
                before_merges, self.owned, moved, coming, partial(committed.sources, name)
            )

    def read_ahead(
        self, plan: StepPlan, layout: Layout, committed: CommittedFiles, reading: Reading
    ) -> None:
        """Start gathering rows that a plan's layout gives to this worker.

        This is done before the task that takes them over arrives. It changes no state. If the
        hashes that arrive are not known, it does nothing.

        Args:
            plan: the plan.
            layout: its bins and owners.
            committed: the files as of the step before, for use in another thread.
            reading: how files are read.
        """
        self.ahead.collect()
        moved = self.moved_until(plan, layout)
        if moved is None or not len(moved):
            return
        bins = refined(self.layout, layout)
        coming = self._coming_bins(bins, moved, committed, at_hand=True)
        arrival = self._arrival(coming, committed)
        if arrival.ranges:
            gather = partial(
                gathered,
                arrival,
                self._sections,
                self.ahead.prepared.copy(),
                committed,
                bins,
                self.worker,
            )
            self.ahead.arriving.begin(arrival, gather, reading)

    def _coming_bins(
        self, layout: Layout, moved: Ranges, committed: CommittedFiles, *, at_hand: bool = False
    ) -> Coming:
        """Return the bins that arrive and whose content is taken over at the switch.

        Args:
            layout: the bins, and the owners from now on.
            moved: the hashes that came to this worker or left it.
            committed: the files as of the step before.
            at_hand: whether only bins count whose files are known without a look at the ledger.
        """
        comes = (layout.owners == self.worker) & moved.overlapping(layout.starts, layout.ends)
        prepared = np.zeros_like(comes)
        ahead = self.ahead.prepared
        if len(ahead.ranges) and comes.any():
            left = layout.ranges_of_bins(np.flatnonzero(comes))
            of_plan = at_hand or committed.names(left)
            if committed.knows_tail(ahead) if of_plan else committed.after(ahead) is not None:
                rest = Ranges.everything().without(ahead.ranges)
                prepared = comes & ~rest.overlapping(layout.starts, layout.ends)
        unread = layout.ranges_of_bins(np.flatnonzero(comes & ~prepared))
        if self._takes_at_once(unread, layout, committed):
            return Coming(layout.ranges_of_bins(np.flatnonzero(comes)), unread)
        return Coming(layout.ranges_of_bins(np.flatnonzero(prepared)))

    def _takes_at_once(self, ranges: Ranges, layout: Layout, committed: CommittedFiles) -> bool:
        """Return whether the plan names the files of some bins, and their content is not large."""
        if not len(ranges) or not committed.names(ranges):
            return False
        at = (committed.digest, committed.step, ranges.to_wire())
        if self._judged is None or self._judged[0] != at:
            most = min(_MOST_AT_ONCE, committed.cached_bytes // _PART_AT_ONCE)
            own = self._own(ranges).items()
            few = all(committed.named_bytes(layout, name, of) <= most for name, of in own)
            self._judged = at, few
        return self._judged[1]

    def _own(self, ranges: Ranges) -> dict[str, Ranges]:
        """Return the hashes of each computation that are in some ranges, if there are any."""
        own = {name: of.node.group.own(ranges) for name, of in self.visitors.items()}
        return {name: found for name, found in own.items() if len(found)}

    def _arrival(self, coming: Coming, committed: CommittedFiles) -> Arrival:
        names = committed.names_of_layer()
        return Arrival(self._own(coming.ranges), self._own(coming.unread), names)

    def settle(self, layout: Layout, committed: CommittedFiles) -> None:
        """Finish what :meth:`relayout` started, after the files of missed steps were applied.

        Raises:
            NotFound: files with changes since the read-ahead are gone.
        """
        if len(self._coming.ranges):
            self._take_over(committed)
        if self.layout is layout:
            return
        self._go_by(layout)
        for name, visitor in self.visitors.items():
            visitor.state.merge(layout, self.owned, partial(committed.sources, name))

    def begin_opening(self, ahead: Ahead, opening: OpeningCost | None) -> None:
        """Set what was read ahead, and what adds up the cost of opening bins."""
        self.ahead = ahead
        for visitor in self.visitors.values():
            visitor.state.opening = opening or OpeningCost()

    def _take_over(self, committed: CommittedFiles) -> None:
        arrival = self._arrival(self._coming, committed)
        opening = next(iter(self.visitors.values())).state.opening
        begun = opening.timer()
        rows = self.ahead.arriving.take(arrival)
        if rows is None:
            rows = gathered(
                arrival, self._sections, self.ahead.prepared, committed, self.layout, self.worker
            )
        for name, own in arrival.ranges.items():
            self.visitors[name].state.take_over(own, rows[name])
        if arrival.unread:
            self._note_opened(opening, arrival, rows, begun)
        self._coming = Coming()

    def _note_opened(
        self, opening: OpeningCost, arrival: Arrival, rows: Rows, begun: float
    ) -> None:
        """Note what it took to read bins that were not read ahead."""
        starts, ends = self.layout.starts, self.layout.ends
        for name, own in arrival.unread.items():
            bins = int(own.overlapping(starts, ends).sum())
            opening.note(bins, rows[name], begun)
            begun = opening.timer()

    def prepare(self, ranges: Ranges, budget_bytes: int, reading: Reading) -> bool:
        """Read ahead all rows of hashes that this worker will own, concurrently with the steps.

        Call this in any part of a step. Each call continues from what was read before. Hashes that
        are no longer asked for are forgotten, so a call without ranges forgets everything. Asking
        again for rows that are in memory costs nothing.

        Args:
            ranges: all the hashes that are wanted.
            budget_bytes: about how many bytes may be read at a time; see :class:`Wanted`.
            reading: how files are read.

        Returns:
            Whether everything is in memory, except a tail of changes that the next plan will name.
        """
        assert self._committed is not None
        wanted = Wanted(
            ranges.without(self._ranges), self._sections, self.layout, self.worker, budget_bytes
        )
        return self.ahead.ask(wanted, self._committed, self._committed.again, reading)

    def head(self) -> Head:
        """Return the head as of the newest committed step. The ledger is read for it."""
        assert self._committed is not None
        return self._committed.head()

    def forget_prepared(self) -> None:
        """Forget read-ahead rows of hashes that the worker owns by now."""
        prepared = self.ahead.prepared
        if len(prepared.ranges):
            prepared.keep(prepared.ranges.without(self._ranges))

    @property
    def _sections(self) -> Sections:
        return {name: visitor.state.stored_sections for name, visitor in self.visitors.items()}

    def catch_up(self, reader: RunReader, after: str) -> None:
        """Apply the file of a step that another process computed.

        Args:
            reader: reads the file.
            after: digest of the chain up to and with it.
        """
        for visitor in self.visitors.values():
            visitor.state.catch_up(reader)
        self.digest = after

    def begin_step(self, plan: StepPlan, committed: CommittedFiles) -> None:
        """Start a step. If the state takes too much memory, evict bins."""
        self._committed = committed
        for name, visitor in self.visitors.items():
            visitor.state.begin_step(
                plan.cached_bytes, self.owned, partial(committed.sources, name)
            )

    def slice_parts(self, slice_: SlicePlan, step: int, changes: list[RunPart]) -> list[RunPart]:
        """Return this worker's rows of a slice, as of a step, as sections to be written.

        Args:
            slice_: which slice.
            step: the step. It has been computed.
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
                if not table.num_rows:
                    continue  # all of it was deleted
                rows = combined(table)
                due = due_rows(rows, node.declarations.dated_cells)
                parts.append(RunPart(node.name, whole_section(section), rows, due))
        if self.layer == 1 and slice_.carried:
            assert self._committed is not None
            parts += self._committed.carried_parts(slice_.carried, ranges)
        return parts

    def _whole_from_files(
        self, node: Node, ranges: Ranges, step: int, changes: list[RunPart]
    ) -> dict[str, pa.Table]:
        """Return rows of a slice from files and the step's changes.

        These include state that the code does not declare, which is not in memory.
        """
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
                found[section] = self._as_declared(node, section, table)
        return found

    def _as_declared(self, node: Node, section: str, table: pa.Table) -> pa.Table:
        """Return rows of a section as the code declares it; unchanged if the code does not."""
        state = self.visitors[node.name].state
        declared = section in state.stored_sections
        return state.stored_as_declared(section, table) if declared else table


def visitor_of(
    node: Node, layout: Layout, worker: int
) -> Visitor | BatchVisitor | GroupVisitor | IdCheck:
    """Return the object that runs a computation on a worker and holds its state."""
    own = copy.copy(node.computation)
    if isinstance(own, RecordIds):
        return IdCheck(node, own, IdState(node, own, layout, worker))
    if isinstance(own, ColumnarComputation):
        return BatchVisitor(node, own, TableSet(node, layout, worker))
    if isinstance(own, GroupedComputation):
        return GroupVisitor(node, own, KeyedState(node, layout))
    assert isinstance(own, Computation)
    kind = TimelineVisitor if node.posts or node.ordered else Visitor
    return kind(node, own, KeyedState(node, layout))


class SoftState:
    """What one process remembers, of any number of pipelines.

    Args:
        reading: how files are read.

    Attributes:
        has_evicted: whether anything may have been dropped. Whoever reads this resets it.
    """

    def __init__(self, reading: Reading | None = None) -> None:
        self.reading = reading or InTurn()
        self.has_evicted = False
        self._heads = Heads(self.reading)
        self._entries: dict[tuple[str, str, int, int], WorkerState] = {}
        self._ahead: dict[tuple[str, str, int, int], Ahead] = {}  # survives a failed attempt
        self._opened: dict[str, OpenFiles] = {}  # by storage
        self._used_s: dict[str, float] = {}  # storage -> time of its last use

    def take(
        self,
        pipeline: Pipeline,
        code: str,
        plan: StepPlan,
        layout: Layout,
        layer: int,
        worker: int,
        store: Store,
        opening: OpeningCost | None = None,
    ) -> tuple[WorkerState, str]:
        """Take the entry of a (layer, worker), brought up to the plan's chain and layout.

        Until the caller gives it back, nothing is remembered for this worker. So a step that fails
        leaves nothing half-changed.

        Args:
            pipeline, code: the pipeline, and the digest of its code.
            plan: the plan.
            layout: its bins and owners.
            layer, worker: whose state is wanted.
            store: the storage.
            opening: adds up what opening bins costs, now and during the step.

        Returns:
            The entry, and how it was obtained: ``"hit"``, ``"caught up"``, ``"moved"``, ``"moved,
            caught up"`` or ``"cold"``.
        """
        at = (plan.store, code, layer, worker)
        chain = plan.chains[f"{layer}/{worker}"]
        entry = self._entries.pop(at, None)
        if entry is None:
            entry = self._newcomer(pipeline, plan, layout, layer, worker)
        committed = self._committed(plan, layout, chain, layer, worker, store)
        ahead = self._ahead.setdefault(at, Ahead())
        ahead.collect()
        how = ""
        if entry is not None:
            entry.begin_opening(ahead, opening)
            how = _brought_up_to_date(entry, plan, layout, chain, committed)
        if entry is None or not how:
            how, entry = "cold", self._cold(pipeline, plan, layout, layer, worker, committed)
            entry.begin_opening(ahead, opening)
        if how == "hit":
            entry.forget_prepared()
        ahead.arriving.forget()
        entry.begin_step(plan, committed)
        return entry, how

    def read_ahead(
        self,
        pipeline: Pipeline,
        code: str,
        plan: StepPlan,
        layout: Layout,
        worker: int,
        store: Store,
    ) -> None:
        """Start gathering rows that a plan's layout gives to workers of this process, in all layers.

        Call this as soon as the plan is known. Rows that are being gathered are not gathered twice.

        Args:
            pipeline, code: the pipeline, and the digest of its code.
            plan: the plan.
            layout: its bins and owners.
            worker: the worker whose task is about to run. It may be new. The others are those that
                this process remembers.
            store: the storage.
        """
        for layer in range(1, pipeline.layers + 1):
            at = (plan.store, code, layer, worker)
            if at not in self._entries:
                entry = self._newcomer(pipeline, plan, layout, layer, worker)
                if entry is not None:
                    entry.ahead = self._ahead.setdefault(at, Ahead())
                    self._entries[at] = entry
        # Another task of this process may give back an entry meanwhile.
        for (of_store, of_code, layer, of_worker), entry in list(self._entries.items()):
            if (of_store, of_code) != (plan.store, code) or entry.version == plan.layout_version:
                continue
            chain = plan.chains.get(f"{layer}/{of_worker}")
            if chain is not None:
                committed = self._committed(plan, layout, chain, layer, of_worker, store)
                entry.read_ahead(plan, layout, committed, self.reading)

    def give_back(
        self, code: str, plan: StepPlan, layer: int, worker: int, entry: WorkerState
    ) -> None:
        """Remember an entry, which stands for another digest by now."""
        self._entries[(plan.store, code, layer, worker)] = entry

    def drop_older(self, store: str, code: str) -> None:
        """Drop entries of other code on a storage: of another topology, or of an earlier run."""
        self._drop(lambda of, its_code, _: of == store and its_code != code)

    def forget_others(self, store: str, workers: Collection[int]) -> None:
        """Drop entries of workers that another process serves by now.

        Args:
            store: the location of the storage.
            workers: the workers that this process serves.
        """
        self._drop(lambda of, _, worker: of == store and worker not in workers)

    def use(self, store: str, now_s: float) -> None:
        """Note that a storage is in use, and drop entries of storages that were idle for a while.

        A run that ends does not notify each process. A run that comes back later reads its state
        again.

        Args:
            store: the location of the storage.
            now_s: seconds on a monotonic clock.
        """
        self._used_s[store] = now_s
        idle = {of for of, used_s in self._used_s.items() if now_s - used_s > _IDLE_S}
        if idle:
            self._used_s = {of: at for of, at in self._used_s.items() if of not in idle}
            self._drop(lambda of, _, __: of in idle)
            for of in idle:
                self._opened.pop(of, None)

    def _drop(self, whether: Callable[[str, str, int], bool]) -> None:
        """Drop entries, by their storage, code and worker."""
        for remembered in (self._entries, self._ahead):
            for at in [at for at in remembered if whether(at[0], at[1], at[3])]:
                del remembered[at]
                self.has_evicted = True

    def forget(self) -> None:
        """Drop everything. This costs time in the next step and nothing else."""
        self._entries.clear()
        self._ahead.clear()
        self._opened.clear()
        self._heads.forget()

    def _cold(
        self,
        pipeline: Pipeline,
        plan: StepPlan,
        layout: Layout,
        layer: int,
        worker: int,
        committed: CommittedFiles,
    ) -> WorkerState:
        self.has_evicted = True  # the earlier entry, or one that was not given back
        version = plan.layout_version
        entry = WorkerState(pipeline, layout, layer, worker, committed.digest, version)
        if not entry.owned.any():
            return entry  # there is nothing to read
        files = committed.files()
        if files.runs or files.slices:
            entry.attach(committed.readers())
        return entry

    def _newcomer(
        self,
        pipeline: Pipeline,
        plan: StepPlan,
        layout: Layout,
        layer: int,
        worker: int,
    ) -> WorkerState | None:
        """Return an entry of a worker that owned nothing before this step, as of the step before.

        Such an entry is complete without a file. It then follows the change of the layout as others
        do.

        Returns:
            The entry; None if the worker owned something, or if that is not known.
        """
        chain = plan.chains.get(f"{layer}/{worker}")
        if chain is None or not plan.relocated or not 0 <= worker < layout.workers:
            return None
        newest = plan.relocated[-1]
        came = Ranges.of((first, last) for first, last, _, to in newest.moves if to == worker)
        own = layout.ranges_of(worker)
        is_new = newest.version == plan.layout_version and newest.step == plan.step
        if not (is_new and len(own) and layout.workers > 1) or len(own.without(came)):
            return None
        owners = np.where(layout.owners == worker, (worker + 1) % layout.workers, layout.owners)
        before = Layout(layout.bits, owners, layout.workers)
        return WorkerState(pipeline, before, layer, worker, chain.digest, plan.layout_version - 1)

    def _committed(
        self,
        plan: StepPlan,
        layout: Layout,
        chain: ChainPlan,
        layer: int,
        worker: int,
        store: Store,
    ) -> CommittedFiles:
        opened = self._opened.setdefault(plan.store, OpenFiles())
        return CommittedFiles(store, layout, layer, worker, plan, chain, self._heads, opened)


def _brought_up_to_date(
    entry: WorkerState, plan: StepPlan, layout: Layout, chain: ChainPlan, committed: CommittedFiles
) -> str:
    """Bring an entry to the plan's layout and chain.

    The layout comes first. So files of missed steps are applied only to bins that stayed all the
    time.

    Returns:
        How it was done; empty if the entry cannot be brought up.
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
        return ""  # superseded by slices, and cleaned up
    caught_up = entry.digest == chain.digest
    if not caught_up or not links:
        return how if caught_up else ""
    return "caught up" if how == "hit" else "moved, caught up"
