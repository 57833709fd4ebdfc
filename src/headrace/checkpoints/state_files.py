"""The files that hold some state as of a step, also after live changes of the layout."""

from __future__ import annotations

import msgspec

from headrace.keyspace.layout import Layout, LayoutWire
from headrace.keyspace.owners import PastOwners
from headrace.keyspace.ranges import Ranges
from headrace.keyspace.updates import Relocated
from headrace.ledger.head import Head
from headrace.ledger.records import Slice
from headrace.runfiles.format import FileRef, RunReader
from headrace.runfiles.merging import Each, SlicePart, StateSources
from headrace.sources.files.position import catalogs_of
from headrace.storage.base import Store
from headrace.storage.soft import is_soft


class StateFiles(msgspec.Struct, frozen=True):
    """Files that hold state: slices, each whole as of a step, and runs in ascending order of steps.

    Attributes:
        slices: the slices.
        runs: the runs.
        void: computations whose state was given up. Files up to the given step say nothing of them.
        lineage, relocated, layout: the owners of hashes when a file was written; see ``LayoutNow``.
            They are as of the newest file. The layout of a plan may be newer. If ``layout`` is
            None, it is the same as the plan's.
    """

    slices: list[Slice]
    runs: list[FileRef]
    void: dict[str, int] = {}
    lineage: str = ""
    relocated: list[Relocated] = []
    layout: LayoutWire | None = None

    @property
    def floor(self) -> int:
        """Changes up to this step are in slices only; -1 for none."""
        if not self.slices or len(self.slices) < self.slices[0].of:
            return -1
        return min(part.as_of for part in self.slices)


class StateReaders:
    """Opens the files that hold a worker's state.

    Args:
        store: the store that holds them.
        layout: the bins and their owners.
        worker: the worker.
        files: slices and runs as of a step.
        opened: files that are open already, by name. Files that are opened here are added.
        each: how several files are read.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        worker: int,
        files: StateFiles,
        opened: dict[str, RunReader] | None = None,
        each: Each = map,
    ) -> None:
        self._store, self._each = store, each
        self._layout = layout
        self._worker = worker
        self._files = files
        self._then = layout  # the layout as of the files
        self._readers = {} if opened is None else opened
        self._known: tuple[StateFiles, Ranges | None, Ranges, PastOwners] | None = None

    def sources(self, owner: str, ranges: Ranges | None = None) -> StateSources:
        """Return the files that hold a computation's state.

        Files are opened when something in them is needed. For a few bins, only the files of their
        owners are opened.

        Args:
            owner: the computation.
            ranges: the wanted hashes; by default those that the worker owns.
        """
        files = self._files
        wanted, past = self._wanted(ranges)
        covered = Ranges.of(part.range for part in files.slices)
        overlap = wanted.overlapping(covered.firsts, covered.lasts)
        slices = []
        void = files.void.get(owner, -1)
        for part, is_wanted in zip(files.slices, overlap.tolist(), strict=True):
            if is_wanted:
                slices.append(self._slice(owner, part, past, void))
        runs, extents = self._runs(owner, past, void)
        readers = [self._reader(run) for run in runs]
        return StateSources(owner, slices, readers, extents, self._each)

    def _wanted(self, ranges: Ranges | None) -> tuple[Ranges, PastOwners]:
        """Return the wanted hashes and their past owners, cached for the next computation."""
        files, known = self._files, self._known
        if known is None or known[0] is not files or known[1] is not ranges:
            wanted = self._layout.ranges_of(self._worker) if ranges is None else ranges
            self._then = self._layout if files.layout is None else Layout.from_wire(files.layout)
            known = files, ranges, wanted, PastOwners(wanted, self._then, files.relocated)
            self._known = known
        return known[2], known[3]

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
        """Return the runs that may hold wanted hashes, and which of these hashes each may hold.

        Within this lineage these are the runs of the hashes' owners at the time. Of other lineages,
        all runs are returned.
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
        """Return whether owners are known as of a file, and the hashes that its writer owned."""
        # (A soft file is always the worker's own: a step that is computed again has today's
        # owners.)
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
    """Return some files of a head, with the information on whose rows are in them."""
    void = head.stored_schema.get("void", {})
    return StateFiles(slices, runs, void, head.lineage, head.relocated, head.layout)


def catalogs_of_head(head: Head) -> list[str]:
    """Return the catalogs that list the files read by a pipeline's sources."""
    backfill = {} if head.backfill is None else head.backfill.positions
    return catalogs_of([*head.positions.values(), *backfill.values()])
