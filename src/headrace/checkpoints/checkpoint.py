"""One checkpoint and its content: components, partitions, rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.checkpoints.components import TIMERS, WORKERS, Component, components_of
from headrace.checkpoints.contents import (
    held_by_workers,
    identity_of,
    readable,
    schema_of,
    stored_section,
)
from headrace.checkpoints.describing import html_of, text_of
from headrace.checkpoints.partitions import Partition, partitions_of
from headrace.checkpoints.state_files import StateReaders, catalogs_of_head, state_files
from headrace.errors import Damaged, Expired, NotFound, PipelineError
from headrace.eventtime.timestamps import LAST_DATE_US, MIN_TIME
from headrace.keyspace.groups import Groups
from headrace.keyspace.layout import Bin, Layout
from headrace.keyspace.ranges import Ranges
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import MANIFEST_FOLDER, steps_of
from headrace.runfiles.format import FileRef, RunReader
from headrace.runfiles.merging import StateSources
from headrace.runfiles.sections import CELLS, whole_section
from headrace.storage.base import Store

Bins = str | Bin | Iterable[str | Bin]


class Checkpoint:
    """One checkpoint: the state of all computations as of a committed step.

    Everything that is read is verified against the checksums in the manifest. A call returns all
    that was asked for, or raises.

    Args:
        store: the storage that holds it.
        head: the head as of the step.
        unpin: removes its pin, if it has one.
    """

    def __init__(self, store: Store, head: Head, unpin: Callable[[], None] = lambda: None) -> None:
        self.store = store
        self.head = head
        self._unpin = unpin
        self._files = state_files(head)
        self._opened: dict[str, RunReader] = {}

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove its pin, if it has one. It can still be read for as long as the step is kept."""
        self._unpin()

    @property
    def step(self) -> int:
        """The step."""
        return self.head.step

    def describe(self) -> str:
        """Return as text what the checkpoint holds. A notebook shows the same as a table."""
        return text_of(self.head)

    def _repr_html_(self) -> str:
        return html_of(self.head)

    @cached_property
    def layout(self) -> Layout:
        """The bins and their owners."""
        return Layout.from_wire(self.head.layout)

    @cached_property
    def groups(self) -> Groups:
        """The groups of computations whose state moves together, if any are named."""
        return Groups(self.head.stored_schema.get("groups", []))

    @cached_property
    def components(self) -> dict[str, Component]:
        """Its computations, by name. Removed ones are included while their state is kept."""
        return components_of(self.head)

    def component(self, name: str) -> Component:
        """Return a computation.

        Raises:
            PipelineError: when there is no computation of that name.
        """
        if name not in self.components:
            known = ", ".join(self.components) or "none"
            raise PipelineError(
                f"the pipeline has no computation {name!r}", remedy=f"it has: {known}"
            )
        return self.components[name]

    def watermarks(self) -> pa.Table:
        """Return the low watermarks of all computations: ``computation``, ``input`` and ``output``.

        A watermark is null before anything is known. For a computation that receives nothing more
        it is the end of the year 9999.
        """
        found = self.components.values()
        columns = {
            "input": [of.input_watermark for of in found],
            "output": [of.output_watermark for of in found],
        }
        return pa.table(
            {"computation": pa.array([of.name for of in found], pa.string())}
            | {name: _as_times(micros) for name, micros in columns.items()}
        )

    def files(self) -> list[FileRef]:
        """Return every file that the checkpoint needs, each once."""
        return list({file.name: file for file in self.head.files}.values())

    def catalogs(self) -> list[str]:
        """Return the catalogs, which list what its sources have read if the manifest does not."""
        return catalogs_of_head(self.head)

    def partitions(self, component: str) -> list[Partition]:
        """Return the bins of a computation, in the order of hashes, with the files that hold each.

        Cost: reading the footers of the files that hold its state.

        Raises:
            PipelineError: when there is no such computation.
            Expired: when the checkpoint is no longer kept.
            Damaged: when a file has changed since it was written.
        """
        of = self.component(component)
        with self.kept():
            return partitions_of(self.sources(component), self.layout, self.groups, of.place)

    def read(
        self,
        component: str,
        section: str | None = None,
        *,
        bins: Bins | None = None,
        ranges: Ranges | None = None,
        key: Any = None,
    ) -> pa.Table:
        """Return live rows of a computation, in the order of hashes, without the user's code.

        Args:
            component: its name.
            section: one of ``Component.sections``; by default the one that holds its state.
                Per-record state is in ``state``, with values as JSON text, or as bytes if the
                user's own codec wrote them. Timers are in ``timers``, the rows of a table in
                ``table:NAME``, and so on.
            bins: only keys in these bins: names such as ``"0110/4"``.
            ranges: only keys whose hash is in these ranges.
            key: only this key, as ``ctx.key`` would be: a value, or a tuple of its parts.

        Cost: reading those hashes from all files that hold them; one copy of the rows in memory.

        Raises:
            PipelineError: for names and keys that do not exist.
            Expired: when the checkpoint is no longer kept.
            Damaged: when something has changed since it was written.
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
        """Return the columns that :meth:`read` returns for a section.

        If the schema of the state has changed, :meth:`read` may leave some of them out when it
        reads a part.

        Cost: reading the footers of all files. If no file has a row of a table, timer or buffer,
        only the key's columns are known.
        """
        of = self.component(component)
        chosen = of.section(section)
        return schema_of(of, chosen, self._stored_schema(component, chosen))

    def identity(self, component: str, section: str | None = None) -> list[str]:
        """Return the columns that identify a row within a section. Cost: as :meth:`schema`."""
        of = self.component(component)
        chosen = of.section(section)
        return identity_of(of, chosen, self._stored_schema(component, chosen))

    def _stored_schema(self, component: str, section: str) -> pa.Schema | None:
        """Return the columns of a section in files; None if not needed, or if no file has it."""
        if section in (WORKERS, CELLS, TIMERS):
            return None
        with self.kept():
            return _stored_schema(self.sources(component), section)

    def sources(self, component: str, ranges: Ranges | None = None) -> StateSources:
        """Return the files that hold a computation's state, for some hashes or by default all.

        They are opened when something in them is needed.
        """
        readers = StateReaders(self.store, self.layout, 0, self._files, opened=self._opened)
        return readers.sources(component, Ranges.everything() if ranges is None else ranges)

    def ranges(self, component: str, parts: int) -> list[Ranges]:
        """Return the hashes of a computation's keys, in parts of about equally many bins."""
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
        """Distinguish, for a file or manifest that is gone, an expired checkpoint from damage.

        Raises:
            Expired: when it is gone because the checkpoint is no longer kept.
            Damaged: when it should be there.
        """
        try:
            yield
        except (NotFound, Damaged) as error:
            raise self._gone(error) from error

    def _gone(self, error: NotFound | Damaged) -> Expired | Damaged:
        newest = newest_of(self.store)
        if newest is not None and newest.boundary > self.step:
            return expired(self.step, newest)
        if isinstance(error, Damaged):
            return error
        return Damaged(
            f"a file of step {self.step} is missing: {error.what}",
            place=error.place,
            remedy="restore the file from a copy of the storage, or open another step",
        )


def newest_of(store: Store) -> Head | None:
    """Return a pipeline's head as of the newest step that can be opened; None if none has run.

    Raises:
        Damaged, NewerFormat: when no step can be opened at all.
    """
    ledger = Ledger(store)
    try:
        return ledger.open()
    except Damaged:
        for step in reversed(steps_of(store.list(MANIFEST_FOLDER))):
            with contextlib.suppress(Damaged):
                return ledger.open(step)
        raise


def _as_times(micros: list[int]) -> pa.Array:
    shown = [None if at == MIN_TIME else min(at, LAST_DATE_US) for at in micros]
    return pa.array(shown, pa.int64()).cast(pa.timestamp("us", tz="UTC"))


def expired(step: int, newest: Head) -> Expired:
    """Return the error for a step that is no longer kept."""
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
    """Return the columns that a section has in any of the files; None if no file has it."""
    kinds = (section, whole_section(section))
    readers = {reader.ref.name: reader for reader in sources.readers_in(Ranges.everything())}
    schemas = [reader.schema(sources.owner, kind) for reader in readers.values() for kind in kinds]
    found = [schema for schema in schemas if schema is not None]
    return pa.unify_schemas(found) if found else None
