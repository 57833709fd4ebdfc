"""The checkpoints of a pipeline, and what each holds: components, partitions, rows.

In Heron's words (its stateful storage): a *checkpoint* is a retained step whose state can be opened; a
*component* is a computation with what describes it; a *partition* is a bin, with the exact stretches of
files that hold it, so that a reader takes just its part. It is all there in storage: nothing here knows
of drivers, workers or Spark, or needs the user's code. Reading fences nobody and changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.checkpoints.components import TIMERS, WORKERS, Component, components_of
from headrace.checkpoints.contents import (
    held_by_workers,
    readable,
    schema_of,
    stored_section,
)
from headrace.checkpoints.copying import Copied, copy_files, finish, take_place
from headrace.checkpoints.files import StateReaders, state_files
from headrace.checkpoints.partitions import Partition, partitions_of
from headrace.checkpoints.verifying import Finding, Verifier
from headrace.errors import Damaged, Expired, NewerFormat, NotFound, PipelineError
from headrace.keyspace.groups import Groups
from headrace.keyspace.layout import Bin, Layout
from headrace.keyspace.ranges import Ranges
from headrace.ledger.log import Ledger
from headrace.ledger.manifest import MANIFEST_FOLDER, Head, manifest_name, steps_of
from headrace.state.runs import FileRef, RunReader
from headrace.state.sections import whole_section
from headrace.state.sources import StateSources
from headrace.storage.base import Store

Bins = str | Bin | Iterable[str | Bin]


class Checkpoints:
    """The checkpoints of the pipeline in a store.

    Args:
        store: the pipeline's storage.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._ledger = Ledger(store)

    def versions(self) -> list[int]:
        """Return the steps that can be opened, ascending.

        These are the steps from the boundary on, below which files may be gone, of which all manifests back
        to a base are there, as far as names tell. A running driver may clean the oldest meanwhile.

        Cost: a listing, and reading the newest manifests back to a base.

        Raises:
            Damaged, NewerFormat: when no step can be opened at all.
        """
        head = self.newest()
        if head is None:
            return []
        there = set(steps_of(self.store.list(MANIFEST_FOLDER)))
        found: list[int] = []
        begins = {*head.bases, 0}
        for step in range(head.boundary, head.step + 1):
            is_there = step in there or self._exists(step)  # the list is only a hint
            if is_there and (step in begins or (found and found[-1] == step - 1)):
                found.append(step)
        return found

    def newest(self) -> Head | None:
        """Return the pipeline as of the newest step that can be opened; None where none has run."""
        try:
            return self._ledger.open()
        except Damaged:
            for step in reversed(steps_of(self.store.list(MANIFEST_FOLDER))):
                with contextlib.suppress(Damaged):
                    return self._ledger.open(step)
            raise

    def open(self, step: int | None = None) -> Checkpoint:
        """Return the checkpoint of a step; without one, of the newest.

        Cost: reading its manifests back to a base. Of its files nothing is read yet.

        Raises:
            NotFound: when there is no such step, or no pipeline has run here.
            Expired: when it is not kept any more.
            Damaged, NewerFormat: for manifests that cannot be read.
        """
        try:
            head = self._ledger.open(step)
        except Damaged as error:
            if step is None or self._exists(step):
                raise self._expired(step) or error from None
            raise self._not_there(step) from None
        if head is None:
            raise NotFound(f"no pipeline has run on {self.store.location}")
        return Checkpoint(self.store, head)

    def verify(self, step: int | None = None) -> Iterator[Finding]:
        """Yield what is wrong with the checkpoint of a step, or of every step that is kept.

        Each manifest and each file is read whole, and checked against the checksums in the manifests: the
        chain of manifests, lengths, footers, blocks, the Arrow data in them, the order of rows, and that
        they are in bins that their worker owned. Nothing is found when nothing is yielded. A running
        pipeline is not disturbed; what it cleans meanwhile is left out.

        Args:
            step: which one; None for all, and for what the next step would begin with.

        Cost: reading all files of the checkpoints once, a block at a time.

        Raises:
            StorageError: when the storage fails.
        """
        verifier = Verifier(self.store)
        if step is not None:
            yield from verifier.step(step)
            return
        try:
            head = self.newest()
        except (Damaged, NewerFormat):
            head = None
        boundary = 0 if head is None else head.boundary
        listed = [at for at in steps_of(self.store.list(MANIFEST_FOLDER)) if at >= boundary]
        for at in reversed(listed):
            for finding in verifier.step(at):
                if not self._cleaned(finding):
                    yield finding
        if head is not None:
            yield from verifier.pending(head)

    def copy(self, step: int | None, to: Store) -> Copied:
        """Copy one checkpoint to another store, where it is a pipeline that can go on from there.

        What is copied is verified. A crash leaves nothing that could be taken for a pipeline. Nobody else
        may use the target meanwhile.

        Args:
            step: which one; None for the newest.
            to: an empty store.

        Cost: reading all of the checkpoint's files, writing them, and reading them back, one at a time;
            the longest file fits in memory.

        Raises:
            PipelineError: when the target is not empty.
            NotFound, Expired: when there is no such step, or it is not kept any more.
            Damaged, NewerFormat: when something of it is not what was written.
            StorageError: when one of the stores fails.
        """
        checkpoint = self.open(step)
        at = checkpoint.step
        with checkpoint.kept():
            first, newest = self._ledger.read(0)[0], self._ledger.read(at)[0]
            before = self._ledger.open(at - 1) if newest.base is None and at else newest.base
            if at:
                take_place(first, at, to)
            files = checkpoint.files()
            nbytes = copy_files(files, self.store, to)
            if at:
                finish(newest, before, to)
            else:
                take_place(first, -1, to)
        return Copied(at, len(files), nbytes)

    def _cleaned(self, finding: Finding) -> bool:
        """Say whether something is missing because a running pipeline has cleaned it away meanwhile."""
        try:
            self.store.read(finding.file, 0, 1)
        except NotFound:
            head = self.newest()
            return head is not None and finding.step < head.boundary
        return False

    def _exists(self, step: int) -> bool:
        try:
            self.store.read(manifest_name(step), 0, 1)
        except NotFound:
            return False
        return True

    def _expired(self, step: int | None) -> Expired | None:
        """Return the error that a step is not kept any more, if that is so."""
        head = None if step is None else self.newest()
        if step is None or head is None or step >= head.boundary:
            return None
        return expired(step, head)

    def _not_there(self, step: int) -> NotFound | Expired:
        head = self.newest()
        if head is None:
            return NotFound(f"no pipeline has run on {self.store.location}")
        if 0 <= step < head.boundary:
            return expired(step, head)
        return NotFound(
            f"step {step} is not there",
            place=self.store.location,
            remedy=f"open a step from {head.boundary} to {head.step}",
        )


class Checkpoint:
    """One checkpoint: the state of all computations as of a committed step.

    Everything that is read is verified against the checksums in the manifest; a call returns all that was
    asked for, or raises.

    Args:
        store: where it is.
        head: the pipeline as of the step.
    """

    def __init__(self, store: Store, head: Head) -> None:
        self.store = store
        self.head = head
        self._files = state_files(head)
        self._opened: dict[str, RunReader] = {}

    @property
    def step(self) -> int:
        """The step."""
        return self.head.step

    @cached_property
    def layout(self) -> Layout:
        """Bins and owners."""
        return Layout.from_wire(self.head.layout)

    @cached_property
    def groups(self) -> Groups:
        """The groups of computations whose state moves on its own, if any are named."""
        return Groups(self.head.identity.get("groups", []))

    @cached_property
    def components(self) -> dict[str, Component]:
        """Its computations, by name; also those that were removed and whose state is kept."""
        return components_of(self.head)

    def component(self, name: str) -> Component:
        """Return a computation.

        Raises:
            PipelineError: when there is none of that name.
        """
        if name not in self.components:
            known = ", ".join(self.components) or "none"
            raise PipelineError(
                f"the pipeline has no computation {name!r}", remedy=f"it has: {known}"
            )
        return self.components[name]

    def files(self) -> list[FileRef]:
        """Return every file that the checkpoint needs, each once."""
        head = self.head
        found = [*head.runs, *(file for part in head.slices.values() for file in part.files)]
        found += [file for files in head.unreleased.values() for file in files]
        return list({file.name: file for file in [*found, *head.retained]}.values())

    def partitions(self, component: str) -> list[Partition]:
        """Return the bins of a computation, in the order of hashes, with what holds each.

        Cost: reading the footers of the files that hold its state.

        Raises:
            PipelineError: for a computation that is not there.
            Expired: when the checkpoint is not kept any more.
            Damaged: when a file is not what was written.
        """
        of = self.component(component)
        with self.kept():
            return partitions_of(self.sources(component), self.layout, self.groups, of.place)

    def read(
        self, component: str, section: str | None = None, *, bins: Bins | None = None,
        ranges: Ranges | None = None, key: Any = None,
    ) -> pa.Table:  # fmt: skip
        """Return live rows of a computation, in the order of hashes, without the user's code.

        Args:
            component: its name.
            section: one of ``Component.sections``; by default the one that holds its state. Per-record
                state is in ``state`` (values as JSON text, or the bytes of a codec of the user's own),
                timers in ``timers``, a table's rows in ``table:NAME``, and so on.
            bins: only keys in these: names such as ``"0110/4"``.
            ranges: only keys whose hash is in these.
            key: only this one: as ``ctx.key`` would be, a value or a tuple of the parts.

        Cost: reading what holds those hashes, from all files that do; one copy of it in memory.

        Raises:
            PipelineError: for names and keys that there are not.
            Expired: when the checkpoint is not kept any more.
            Damaged: when something is not what was written.
        """
        of = self.component(component)
        chosen = of.section(section)
        if chosen == WORKERS:
            return held_by_workers(of, self.head)
        where = self._where(of, bins, ranges, key)
        with self.kept():
            sources = self.sources(component, where)
            rows = sources.rows(stored_section(chosen), where)
        if rows is None:
            return self.schema(component, chosen).empty_table()
        table = readable(of, chosen, rows)
        return table if key is None else _of_key(table, of, key)

    def schema(self, component: str, section: str | None = None) -> pa.Schema:
        """Return the columns that :meth:`read` gives of a section.

        Cost: reading footers until one knows. Where no file has a row of a table, timer or buffer, the
        key's columns are all that is known.
        """
        of = self.component(component)
        chosen = of.section(section)
        stored = None
        if chosen not in (WORKERS, TIMERS):
            with self.kept():
                stored = _stored_schema(self.sources(component), stored_section(chosen))
        return schema_of(of, chosen, stored)

    def sources(self, component: str, ranges: Ranges | None = None) -> StateSources:
        """Return the files that hold a computation's state of some hashes; by default of all.

        They are opened when something of them is needed.
        """
        readers = StateReaders(self.store, self.layout, 0, self._files, opened=self._opened)
        return readers.sources(component, Ranges.everything() if ranges is None else ranges)

    def ranges(self, component: str, parts: int) -> list[Ranges]:
        """Return the hashes of a computation's keys in parts of about as many bins."""
        bins = np.flatnonzero(self.component(component).place.bins_in(self.layout))
        pieces = np.array_split(bins, max(1, min(parts, len(bins))))
        return [self.layout.ranges_of_bins(piece) for piece in pieces]

    def _where(self, of: Component, bins: Bins | None, ranges: Ranges | None, key: Any) -> Ranges:
        wanted = Ranges.everything() if ranges is None else ranges
        if bins is not None:
            named = Ranges.of([])
            for start, bits in self.groups.prefixes(bins):
                named = named.plus(Ranges.of([(start, Bin(start, bits).end)]))
            wanted = wanted.within(named)
        if key is not None:
            hash_ = of.hash_of(key)
            wanted = wanted.within(Ranges.of([(hash_, hash_)]))
        return wanted

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Tell a file that is gone because the checkpoint is, from one that is missing."""
        try:
            yield
        except NotFound as error:
            raise self._gone(error) from error

    def _gone(self, error: NotFound) -> Expired | Damaged:
        newest = Checkpoints(self.store).newest()
        if newest is not None and newest.boundary > self.step:
            return expired(self.step, newest)
        return Damaged(
            f"a file of step {self.step} is missing: {error.what}",
            place=error.place,
            remedy="restore the file from a copy of the storage, or open another step",
        )


def expired(step: int, newest: Head) -> Expired:
    """Return the error that a step is not kept any more."""
    return Expired(
        f"the checkpoint of step {step} is not kept any more",
        place=f"step {step}",
        remedy=f"open one from {newest.boundary} to {newest.step}; to keep them for longer, pin a step "
        "while it is read, or run with larger retain_steps or retain_us",
    )


def _of_key(table: pa.Table, of: Component, key: Any) -> pa.Table:
    """Return the rows of one key among those of its hash."""
    parts: Sequence[Any] = key if len(of.key) > 1 else [key]
    for name, kind, part in zip(of.key_names, of.key_types, parts, strict=True):
        table = table.filter(pc.equal(table.column(name), pa.scalar(part, kind)))
    return table


def _stored_schema(sources: StateSources, section: str) -> pa.Schema | None:
    for reader in sources.readers_in(Ranges.everything()):
        for kind in (section, whole_section(section)):
            found = reader.schema(sources.owner, kind)
            if found is not None:
                return found
    return None
