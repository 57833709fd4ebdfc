"""Soft state of a process: what it remembers of (layer, worker) pairs between steps.

An entry stands for a *chain of adopted files*, by digest. At the next step it is used as it is when the
plan names the same digest; it catches up when it is a few links behind; otherwise it is dropped, and
bins are loaded from storage when they are needed. Dropping it at any time costs time, never results.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.columnar import ColumnarComputation
from headrace.computation import EVENT_TIME, Computation, TimeDomain, hold_cell
from headrace.errors import NotFound, ensure
from headrace.keyspace.layout import Layout
from headrace.keyspace.owners import PastOwners
from headrace.keyspace.ranges import Ranges
from headrace.ledger.log import Ledger
from headrace.ledger.manifest import Head, Slice, slice_range
from headrace.recordids import RecordIds
from headrace.state.ids import IdState
from headrace.state.keyed import KeyedState
from headrace.state.runs import HASH, FileRef, Part, RunReader
from headrace.state.sections import due_rows, whole_section
from headrace.state.sources import SlicePart, StateSources
from headrace.state.tables import TableSet
from headrace.step.idcheck import IdCheck
from headrace.step.plan import Carried, ChainPlan, Plan, SlicePlan, StateFiles
from headrace.step.visit import Visitor
from headrace.step.visit_batch import BatchVisitor
from headrace.step.visit_timeline import TimelineVisitor
from headrace.storage.base import Store
from headrace.topology import Node, Pipeline


class WorkerState:
    """All that a process remembers of one (layer, worker).

    Attributes:
        digest: the chain of adopted files that it stands for.
        visitors: a computation each.
        owned: which bins of the layout are the worker's.
    """

    def __init__(
        self, pipeline: Pipeline, layout: Layout, layer: int, worker: int, digest: str
    ) -> None:
        self.digest = digest
        self.layer = layer
        self.steps_behind = 0
        self._committed: _Committed | None = None
        self._ranges = layout.ranges_of(worker)
        self.owned: npt.NDArray[np.bool_] = layout.owners == worker
        self.visitors = {
            node.name: visitor_of(node, layout, worker) for node in pipeline.nodes_of(layer)
        }

    def attach(self, readers: StateReaders) -> None:
        """Say where the content of bins is that are not loaded."""
        for visitor in self.visitors.values():
            name = visitor.node.name
            visitor.state.attach(
                lambda name=name: readers.sources(name),  # type: ignore[misc]
                self.owned,
            )

    def catch_up(self, reader: RunReader, after: str) -> None:
        """Take over a link of the chain that another process computed."""
        for visitor in self.visitors.values():
            visitor.state.catch_up(reader)
        self.digest = after
        self.steps_behind += 1

    def begin_step(self, plan: Plan, committed: _Committed) -> None:
        """Begin a step, keeping to the bound on what is remembered."""
        self.steps_behind = 0
        self._committed = committed
        for visitor in self.visitors.values():
            name = visitor.node.name
            visitor.state.begin_step(
                plan.cached_bytes,
                self.owned,
                lambda name=name: committed.readers().sources(name),  # type: ignore[misc]
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


class StateReaders:
    """Opens the files that hold a worker's state.

    Args:
        store: where they are.
        layout: bins and owners.
        worker: whose state is wanted.
        files: slices and runs as of the last committed step.
        newest: returns them as of now; asked when clean-up has removed some of ``files``.
    """

    def __init__(
        self, store: Store, layout: Layout, worker: int, files: StateFiles,
        newest: Callable[[], StateFiles] | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._layout = layout
        self._worker = worker
        self._files = files
        self._newest = newest
        self._readers: dict[str, RunReader] = {}
        self._opened: set[str] = set()

    def sources(self, owner: str, ranges: Ranges | None = None) -> StateSources:
        """Return the files that hold one computation's state; asked again, the newest files.

        Files are opened when something of them is needed: of a few bins, those of their owners only.

        Args:
            owner: the computation.
            ranges: the hashes that are wanted; by default the worker's own.
        """
        if owner in self._opened and self._newest is not None:
            self._files = self._newest()
        self._opened.add(owner)
        files = self._files
        wanted = self._layout.ranges_of(self._worker) if ranges is None else ranges
        past = PastOwners(wanted, self._layout, files.relocated)
        covered = Ranges.of(part.range for part in files.slices)
        overlap = wanted.overlapping(covered.firsts, covered.lasts)
        slices = []
        void = files.void.get(owner, -1)
        for part, is_wanted in zip(files.slices, overlap.tolist(), strict=True):
            if is_wanted:
                slices.append(self._slice(owner, part, past, void))
        runs, extents = self._runs(owner, past, void)
        return StateSources(owner, slices, [self._reader(run) for run in runs], extents)

    def _slice(self, owner: str, part: Slice, past: PastOwners, void: int) -> SlicePart:
        holding = part.files if part.as_of > void else []
        span = Ranges.of([part.range])
        readers = []
        for file in holding:
            known, extent = self._extent(file, past)
            if owner in file.owners and (
                not known or (extent is not None and _have_common(span, extent))
            ):
                readers.append(self._reader(file))
        return SlicePart(*part.range, part.as_of, readers)

    def _runs(
        self, owner: str, past: PastOwners, void: int
    ) -> tuple[list[FileRef], list[Ranges | None]]:
        """Return the runs that may hold some hashes, and which of these each may hold.

        Of this lineage these are the runs of who owned them then; of others, all.
        """
        runs: list[FileRef] = []
        extents: list[Ranges | None] = []
        for run in self._files.runs:
            if owner in run.owners and run.step > void:
                known, extent = self._extent(run, past)
                if not known or extent is not None:
                    runs.append(run)
                    extents.append(extent)
        return runs, extents

    def _extent(self, file: FileRef, past: PastOwners) -> tuple[bool, Ranges | None]:
        """Return whether it is known who owned what when a file was written, and what its writer did."""
        if file.layout != (self._files.lineage or self._layout.digest):
            return False, None
        return True, past.held(file.worker, file.step)

    def _reader(self, ref: FileRef) -> RunReader:
        if ref.name not in self._readers:
            self._readers[ref.name] = RunReader(self._store.read, ref)
        return self._readers[ref.name]


def _have_common(one: Ranges, other: Ranges) -> bool:
    return bool(one.overlapping(other.firsts, other.lasts).any())


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
        how = "hit"
        if entry is None or (entry.digest != chain.digest and not _caught_up(entry, chain, store)):
            how = "cold"
            entry = self._cold(pipeline, plan, layout, layer, worker, chain, store)
        elif entry.steps_behind:
            how = "caught up"
        entry.begin_step(plan, _Committed(store, layout, layer, worker, plan, chain))
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
        chain: ChainPlan, store: Store,
    ) -> WorkerState:  # fmt: skip
        entry = WorkerState(pipeline, layout, layer, worker, chain.digest)
        committed = _Committed(store, layout, layer, worker, plan, chain)
        files = committed.files()
        if files.runs or files.slices:
            entry.attach(committed.readers())
        return entry


class _Committed:
    """The files that hold a worker's state as of the step before a plan's; opened when asked for."""

    def __init__(
        self, store: Store, layout: Layout, layer: int, worker: int, plan: Plan, chain: ChainPlan
    ) -> None:
        self._store = store
        self._layout = layout
        self._at = (layer, worker)
        self._step = plan.step - 1
        self._chain = chain
        self._files: StateFiles | None = None
        self._readers: StateReaders | None = None

    def files(self) -> StateFiles:
        """Return the files; the ledger is read once."""
        if self._files is None:
            head = Ledger(self._store).open(self._step)
            assert head is not None
            ensure(
                head.chain_of(*self._at).digest == self._chain.digest,
                "the ledger's chain of files is not the plan's",
            )
            self._files = state_files(head)
        return self._files

    def readers(self) -> StateReaders:
        """Return readers of the files, or of the newest ones once some have been cleaned away."""
        if self._readers is None:
            _, worker = self._at
            self._readers = StateReaders(
                self._store, self._layout, worker, self.files(), self._newest
            )
        return self._readers

    def _newest(self) -> StateFiles:
        head = Ledger(self._store).open()
        assert head is not None
        return state_files(head)

    def carried_parts(self, carried: list[Carried], ranges: Ranges) -> list[Part]:
        """Return the rows of computations that were removed, to be written again as they are."""
        parts = []
        for item in carried:
            readers = StateReaders(self._store, self._layout, self._at[1], item.files)
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
            files = _files_of(head, [] if old is None else [old], runs)
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


def state_files(head: Head) -> StateFiles:
    """Return the files that hold all state as of a head."""
    slices = [head.slices[number] for number in sorted(head.slices)]
    return _files_of(head, slices, head.runs)


def _files_of(head: Head, slices: list[Slice], runs: list[FileRef]) -> StateFiles:
    return StateFiles(slices, runs, head.identity.get("void", {}), head.lineage, head.relocated)


def _caught_up(entry: WorkerState, chain: ChainPlan, store: Store) -> bool:
    """Bring an entry up to the plan's chain by the links that the plan carries, if they reach."""
    known = [before for before, _, _ in chain.recent]
    if entry.digest not in known:
        return False
    try:
        for _, run, after in chain.recent[known.index(entry.digest) :]:
            entry.catch_up(RunReader(store.read, run), after)
    except NotFound:
        return False  # superseded by slices, and cleaned away
    return entry.digest == chain.digest
