"""The files that hold a worker's committed state.

The state is that after the step before a plan. It may include state of computations that the code
no longer declares.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.checkpoints.state_files import StateFiles, StateReaders, state_files
from headrace.errors import ensure
from headrace.eventtime.domains import TimeDomain
from headrace.keyspace.layout import HASH_BITS, Layout
from headrace.keyspace.ranges import Ranges
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.ledger.records import Chain
from headrace.protocol.plan import Carried, ChainPlan, StepPlan
from headrace.runfiles.batches import combined
from headrace.runfiles.format import RunPart, RunReader
from headrace.runfiles.merging import Each, StateSources
from headrace.runfiles.portions import width_of
from headrace.runfiles.sections import due_rows, whole_section
from headrace.storage.base import Store
from headrace.storage.reading import Reading
from headrace.tasks.open_files import OpenFiles
from headrace.tasks.prefetch.prepared import Prepared
from headrace.tasks.readers import newest_runs

#: Of files that were read whole, this part of what may be remembered is kept.
_PART_OF_MEMORY = 8


class Heads:
    """Remembers the head of each storage, so that later only the manifests since are read.

    Args:
        reading: how manifests are read.
    """

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self._known: dict[str, Head] = {}

    def at(self, store: Store, step: int) -> Head:
        """Return the head as of a step."""
        known = self._known.get(store.location)
        head = Ledger(store, reading=self.reading).open(step, known)
        assert head is not None
        if known is None or known.step < step:
            self._known[store.location] = head
        return head

    def forget(self) -> None:
        """Forget all heads. This costs time and nothing else."""
        self._known.clear()


class CommittedFiles:
    """The files that hold a worker's state as of the step before a plan. They are opened on demand.

    Attributes:
        digest: digest of the chain of files that the state is in.
        cached_bytes: how much of a computation's state may be kept in memory.
        step: the step up to which state is in storage. Later changes are in soft files.
        since: digest that stands for the claim at which the chain starts. Empty until the ledger
            was read.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        layer: int,
        worker: int,
        plan: StepPlan,
        chain: ChainPlan,
        heads: Heads,
        opened: OpenFiles | None = None,
        at_hand: Mapping[str, RunReader] | None = None,
    ) -> None:
        self._at_hand = at_hand or {}
        self._opened = OpenFiles() if opened is None else opened
        self._chain = chain
        self.digest = chain.digest
        self.store = store
        self._layout = layout
        self._at = (layer, worker)
        self._plan = plan
        self._heads = heads
        self.step = plan.checkpoint
        self.cached_bytes = plan.cached_bytes
        self.since = ""
        self._files: StateFiles | None = None
        self._readers: StateReaders | None = None

    def again(self) -> CommittedFiles:
        """Return a copy that has opened nothing yet, for use in another thread.

        It knows the files that the process has open by now.
        """
        return CommittedFiles(
            self.store,
            self._layout,
            *self._at,
            self._plan,
            self._chain,
            self._heads,
            at_hand=dict(self._opened.by_name),
        )

    def lend(self, opened: dict[str, RunReader]) -> None:
        """Add readers of the files that the process has open, if the state is in them."""
        files = self.files()
        for ref in [*files.runs, *(ref for part in files.slices for ref in part.files)]:
            reader = self._at_hand.get(ref.name)
            if reader is not None and reader.is_open:
                opened.setdefault(ref.name, reader)

    def head(self) -> Head:
        """Return the head as of the newest committed step. It names the files that hold state."""
        return self._heads.at(self.store, self._plan.ledger)

    def files(self) -> StateFiles:
        """Return the files. The ledger is read once."""
        if self._files is None:
            head = self.head()
            ensure(
                head.chain_of(*self._at).digest == self._chain.checkpoint,
                "the ledger's chain of files is not the plan's",
            )
            self._files = self._with_soft(state_files(head))
            self.since = Chain.of_claim(head.chains_since).digest
        return self._files

    def knows_tail(self, prepared: Prepared) -> bool:
        """Return whether the plan alone names the runs since something was read ahead."""
        return self._relocated_after(prepared) is not None

    def _relocated_after(self, prepared: Prepared) -> StateFiles | None:
        return newest_runs(self._plan, self._at[0], prepared.as_of, prepared.since)

    def after(self, prepared: Prepared) -> StateFiles | None:
        """Return the runs since something was read ahead, or None if they cannot be had.

        Usually the plan names them, and the ledger need not be opened.
        """
        found = self._relocated_after(prepared)
        if found is not None:
            return found
        files = self.files()
        is_void = any(step > prepared.as_of for step in files.void.values())
        return None if is_void or files.floor > prepared.as_of else files

    def tail_of(self, prepared: Prepared) -> StateFiles:
        """Return the runs since something was read ahead, where they are known to exist.

        Raises:
            InvariantBroken: they cannot be had.
        """
        found = self.after(prepared)
        ensure(found is not None, "the tail of what was prepared is gone")
        assert found is not None
        return found

    def names_of_layer(self) -> tuple[str, ...]:
        """Return digests that identify the files of a layer's state as of the step before."""
        layer = f"{self._at[0]}/"
        chains = self._plan.chains.items()
        return tuple(chain.digest for at, chain in sorted(chains) if at.startswith(layer))

    def names(self, ranges: Ranges) -> bool:
        """Return whether the plan names all files that hold state of some hashes."""
        moved = self._plan.moved
        return moved is not None and not len(ranges.without(Ranges.from_wire(moved.ranges)))

    def named_bytes(self, layout: Layout, name: str, ranges: Ranges) -> float:
        """Return about how many bytes a computation has of some hashes in the files that are named.

        Args:
            layout: the bins and their owners.
            name: the computation.
            ranges: the hashes. The plan names their files.
        """
        usual = 2.0**HASH_BITS / layout.workers  # what a file's writer owned, more or less
        sources = self.named_readers(layout).sources(name, ranges)
        whole = sum(reader.ref.length for reader in set(sources.slices_in(ranges)))
        parts = (
            run.ref.length * (1.0 if extent is None else min(1.0, width_of(extent) / usual))
            for run, extent in zip(sources.runs, sources.extents, strict=True)
        )
        return whole + sum(parts)

    def named_readers(self, layout: Layout) -> StateReaders:
        """Return readers of the files that the plan names. No ledger is read for them.

        Args:
            layout: the bins and their owners, today's or before bins are merged.
        """
        moved = self._plan.moved
        assert moved is not None
        files = moved.files
        refs = [*files.runs, *(ref for part in files.slices for ref in part.files)]
        self._opened.note_use(refs, self._plan.cached_bytes // _PART_OF_MEMORY)
        return StateReaders(self.store, layout, self._at[1], files, self._opened.by_name, self.each)

    def readers(self) -> StateReaders:
        """Return readers of the files.

        If some of these files are gone, files of a later step are never read in their place. In
        that case another driver has claimed. This driver must find that out, and must not deliver
        results that come from other state.
        """
        if self._readers is None:
            _, worker = self._at
            files = self.files()
            every = [*files.runs, *(ref for part in files.slices for ref in part.files)]
            self._opened.keep(every, self._plan.cached_bytes // _PART_OF_MEMORY)
            self._readers = StateReaders(
                self.store, self._layout, worker, files, self._opened.by_name, self.each
            )
        return self._readers

    @property
    def each(self) -> Each:
        """Reads several files concurrently, since a step waits for them."""
        return self._heads.reading.each

    def sources(self, name: str) -> StateSources:
        """Return the files that hold one computation's state; see :meth:`StateReaders.sources`."""
        return self.readers().sources(name)

    def _with_soft(self, files: StateFiles) -> StateFiles:
        soft = [ref for _, ref, _ in self._chain.soft]
        return msgspec.structs.replace(files, runs=[*files.runs, *soft]) if soft else files

    def carried_parts(self, carried: list[Carried], ranges: Ranges) -> list[RunPart]:
        """Return the rows of computations that were removed, to be written again unchanged."""
        parts = []
        for item in carried:
            readers = StateReaders(self.store, self._layout, self._at[1], item.files)
            sources = readers.sources(item.name)
            dated = {name: TimeDomain(domain) for name, domain in item.dated.items()}
            for section in sources.sections:
                table = sources.rows(section, ranges)
                if table is None:
                    continue
                rows = combined(table)
                due = due_rows(rows, dated)
                parts.append(RunPart(item.name, whole_section(section), rows, due))
        return parts
