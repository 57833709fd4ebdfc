"""Which files hold what a worker owns, as of a step; after live changes of layout, too."""

from __future__ import annotations

from collections.abc import Callable

from headrace.keyspace.layout import Layout
from headrace.keyspace.owners import PastOwners
from headrace.keyspace.ranges import Ranges
from headrace.ledger.manifest import Head, Slice
from headrace.state.runs import FileRef, RunReader
from headrace.state.sources import SlicePart, StateSources
from headrace.step.plan import Plan, StateFiles
from headrace.storage.base import Store
from headrace.storage.soft import is_soft


class StateReaders:
    """Opens the files that hold a worker's state.

    Args:
        store: where they are.
        layout: bins and owners.
        worker: whose state is wanted.
        files: slices and runs as of the last committed step.
        newest: returns them as of now; asked when clean-up has removed some of ``files``.
        opened: files that are open already, by name; those that are opened here are noted there, too.
    """

    def __init__(
        self, store: Store, layout: Layout, worker: int, files: StateFiles,
        newest: Callable[[], StateFiles] | None = None,
        opened: dict[str, RunReader] | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._layout = layout
        self._worker = worker
        self._files = files
        self._newest = newest
        self._then = layout  # as of the files
        self._readers = {} if opened is None else opened
        self._asked: set[str] = set()

    def sources(self, owner: str, ranges: Ranges | None = None) -> StateSources:
        """Return the files that hold one computation's state; asked again, the newest files.

        Files are opened when something of them is needed: of a few bins, those of their owners only.

        Args:
            owner: the computation.
            ranges: the hashes that are wanted; by default the worker's own.
        """
        if owner in self._asked and self._newest is not None:
            self._files = self._newest()
        self._asked.add(owner)
        files = self._files
        wanted = self._layout.ranges_of(self._worker) if ranges is None else ranges
        self._then = self._layout if files.layout is None else Layout.from_wire(files.layout)
        past = PastOwners(wanted, self._then, files.relocated)
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
        # (a soft file is always the worker's own: a step that is computed again has today's owners)
        if is_soft(file.name) or file.layout != (self._files.lineage or self._then.digest):
            return False, None
        return True, past.held(file.worker, file.step)

    def _reader(self, ref: FileRef) -> RunReader:
        if ref.name not in self._readers:
            self._readers[ref.name] = RunReader(self._store.read, ref)
        return self._readers[ref.name]


def _have_common(one: Ranges, other: Ranges) -> bool:
    return bool(one.overlapping(other.firsts, other.lasts).any())


def state_files(head: Head) -> StateFiles:
    """Return the files that hold all state as of a head."""
    slices = [head.slices[number] for number in sorted(head.slices)]
    return files_of(head, slices, head.runs)


def files_of(head: Head, slices: list[Slice], runs: list[FileRef]) -> StateFiles:
    """Return some of the files that a head names, with what tells whose rows are in them."""
    void = head.identity.get("void", {})
    return StateFiles(slices, runs, void, head.lineage, head.relocated, head.layout)


def newest_runs(plan: Plan, layer: int, after: int, since: str) -> StateFiles | None:
    """Return the runs of a layer between a step and a plan's, from the plan alone.

    Args:
        plan: the plan.
        layer: which layer.
        after: the step; its changes are not wanted.
        since: names the claim under which it was made.

    Returns:
        The runs; None when the plan does not reach back so far.
    """
    told = plan.relocated
    if told and told[0].version > 1 and after + 1 < told[0].step:
        return None  # nobody says who owned what
    runs = []
    for at, chain in plan.chains.items():
        if at.partition("/")[0] != str(layer):
            continue
        links = chain.recent
        if chain.soft:
            return None  # what has changed since the last checkpoint is not for others to read
        begins = links[0][0] if links else chain.digest
        if begins != since and (not links or links[0][1].step > after):
            return None
        runs += [run for _, run, _ in links if run.step > after]
    runs.sort(key=lambda run: run.step)
    return StateFiles([], runs, {}, plan.lineage, told)
