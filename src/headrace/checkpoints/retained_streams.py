"""Retained streams, read from storage step by step, without the pipeline's code.

Committed steps are totally ordered, and what a step produced never changes. So a reader that notes
the last step that it has read can go on from there and misses and repeats nothing.

The newest head names the files of all steps that are kept. Steps that a bound (``hr.keep``) has
dropped can still be read while older manifests are there: their heads name the files. So a pin,
which keeps the manifests from a step on, keeps the productions that were there at that step, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.checkpoints.checkpoint import newest_of
from headrace.checkpoints.stored_types import columns_of
from headrace.errors import Damaged, Expired, NotFound, PipelineError, SchemaChanged
from headrace.eventtime.timestamps import FIRST_DATE_US, LAST_DATE_US
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import manifest_name
from headrace.ledger.retained import producer_of
from headrace.pipeline.streams import Stream
from headrace.runfiles.format import FileRef, RunReader
from headrace.schema import describe, value_type_of_schema
from headrace.schema.reserved import HASH, TIMESTAMP_COLUMN
from headrace.storage.base import Store

#: The column with the step that produced a row.
STEP = "_step"
#: The kind of the sections in which tasks write productions.
_PRODUCED = "output"
#: How many heads of earlier steps are kept in memory.
_MOST_HEADS = 16


class StreamColumns(msgspec.Struct, frozen=True):
    """What the columns of a retained stream are, as the stored schema describes them.

    Attributes:
        stream: the name of the stream.
        key: the types of the parts of its producer's key.
        values: the columns of its values: name → type.
    """

    stream: str
    key: list[str]
    values: dict[str, str]

    @classmethod
    def at(cls, head: Head, stream: str) -> StreamColumns:
        """Return the columns of a retained stream as of a head."""
        schema = head.stored_schema
        key = schema["computations"][producer_of(stream)]["key"]
        return cls(stream, key, schema["streams"][stream])

    @property
    def public(self) -> pa.Schema:
        """The columns as sinks get them, with ``_step`` behind them.

        If a column of the value has the name ``_step``, ours gets an underscore in front.

        Raises:
            Damaged: when the types cannot be read.
        """
        place = f"stream {self.stream!r}"
        values = value_type_of_schema(columns_of(self.values, place))
        key = tuple(
            field.with_nullable(False)
            for field in columns_of({f"key{n}": text for n, text in enumerate(self.key)}, place)
        )
        schema = Stream(_Alone(), self.stream, values, key).public_schema()
        step, taken = STEP, {name.lower() for name in schema.names}
        while step in taken:
            step = f"_{step}"
        return schema.append(pa.field(step, pa.int64(), nullable=False))

    def changes(self, now: StreamColumns) -> str:
        """Return in words how the columns have changed; an empty text if they have not."""
        found = []
        if self.key != now.key:
            found.append(f"its key was {', '.join(self.key)}, and is {', '.join(now.key)}")
        for name in dict.fromkeys([*self.values, *now.values]):
            before, after = self.values.get(name, ""), now.values.get(name, "")
            if not after:
                found.append(f"{name!r} ({before}) is gone")
            elif not before:
                found.append(f"{name!r} ({after}) is new")
            elif before != after:
                found.append(f"{name!r} was {before}, and is {after}")
        if not found and list(self.values) != list(now.values):
            found.append(f"the order of its columns is {', '.join(now.values)}")
        return "; ".join(found)

    def check_same(self, now: StreamColumns, place: str) -> None:
        """Check that the columns are still these.

        Raises:
            SchemaChanged: with the difference, when they are others.
        """
        changes = self.changes(now)
        if changes:
            raise SchemaChanged(
                f"stream {self.stream!r} has other columns than when the read began: {changes}",
                place=place,
                remedy="start a new query, with a checkpoint of its own",
            )


class _Alone:
    """The owner of a stream that has no side streams."""

    def side_streams(self, injector: str) -> Mapping[str, Stream]:
        return {}


class RetainedStream:
    """A retained stream in the storage of a pipeline, running or not.

    Args:
        store: the pipeline's storage.
        name: the stream, as ``computation.output``.

    Attributes:
        head: the pipeline as of the newest step that was seen.
    """

    head: Head

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self._ledger = Ledger(store)
        self._heads: dict[int, Head] = {}
        self._known: Head | None = None
        self.lineage = ""

    def refresh(self) -> Head:
        """Look for newer steps; return the head as of the newest one.

        Cost: a listing of manifests, and a read for each new one.

        Raises:
            NotFound: when no pipeline has run there.
            PipelineError: when the stream does not exist, or is not retained.
            Damaged, NewerFormat, StorageError: when a manifest cannot be read.
        """
        found = self._ledger.open(known=self._known)
        if found is None:
            raise NotFound(
                f"no pipeline has run on {self.store.location}",
                remedy="give the storage with which the pipeline is run",
            )
        if self._known is None or found.step > self._known.step:
            # The step may be visible before it is durable. After a power loss there could be
            # another one in its place.
            self.store.settle(manifest_name(found.step))
        if not self.lineage:
            self.lineage = self._ledger.lineage()
        check_retained(found, self.name, self.store.location)
        self.head = self._known = found
        return found

    @property
    def columns(self) -> StreamColumns:
        """The columns of the stream as of the newest step that was seen."""
        return StreamColumns.at(self.head, self.name)

    @property
    def first(self) -> int:
        """The first step whose productions the newest head names."""
        return self.head.stored_schema["retained"][self.name]

    def files(self, start: int, end: int) -> Iterator[tuple[int, list[FileRef]]]:
        """Yield the files of the steps in (start, end], in parts: up to a step, and these files.

        The files of a part are in ascending order of steps.

        Args:
            start: the last step before them.
            end: the last of them. It is not newer than the head.

        Cost: nothing for steps that the newest head names. For those that a bound has dropped, some
        older manifests are read.

        Raises:
            Expired: when the productions of a step are not kept any more.
        """
        at = start
        while at < end:
            head = self._head_with(at + 1, end)
            upto = min(end, head.step)
            files = [
                file
                for file in head.retained
                if at < file.step <= upto and self.name in file.owners
            ]
            yield upto, sorted(files, key=lambda file: (file.step, file.worker, file.name))
            at = upto

    def newest_with(self, step: int) -> int | None:
        """Return the newest step whose head names the productions of a step; None if none does."""
        try:
            return self._head_with(step, self.head.step).step
        except Expired:
            return None

    def _head_with(self, step: int, end: int) -> Head:
        """Return the newest head up to ``end`` that names the productions of a step, or a later one.

        Heads name ever later steps, so it is looked for by bisection: first among bases, which are
        read at once and at which bounds are applied.

        Raises:
            Expired: when there is none.
        """
        if self._keeps(self.head, step):
            return self.head
        low = max(self.head.boundary, step)
        if not self._keeps(self.head_at(low), step):
            raise self.expired(step)
        bases = [low, *(base for base in self.head.bases if low < base <= end)]
        at = self._last(bases, step)
        between = range(bases[at], bases[at + 1] if at + 1 < len(bases) else end + 1)
        if between and self._keeps(self.head_at(between[-1]), step):
            return self.head_at(between[-1])
        return self.head_at(between[self._last(between, step)] if between else low)

    def _last(self, steps: Sequence[int], wanted: int) -> int:
        """Return the position of the last step whose head names the wanted one. The first does."""
        low, high = 0, len(steps) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._keeps(self.head_at(steps[middle]), wanted):
                low = middle
            else:
                high = middle - 1
        return low

    def _keeps(self, head: Head, step: int) -> bool:
        first = head.stored_schema.get("retained", {}).get(self.name)
        return first is not None and first <= step

    def head_at(self, step: int) -> Head:
        """Return the head as of a step that is not newer than the newest one that was seen.

        Raises:
            Expired: when its manifest is not kept any more.
        """
        if step == self.head.step:
            return self.head
        if step not in self._heads:
            try:
                head = self._ledger.open(step)
            except Damaged:
                newest = newest_of(self.store)
                if newest is None or newest.boundary <= step:
                    raise
                raise self.expired(step) from None
            assert head is not None
            if len(self._heads) >= _MOST_HEADS:
                self._heads.pop(next(iter(self._heads)))
            self._heads[step] = head
        return self._heads[step]

    def expired(self, step: int) -> Expired:
        """Return the error for a step whose productions are not kept any more."""
        return not_kept(self.name, step, self.store.location, self.first)


def not_kept(stream: str, step: int, location: str, first: int | None = None) -> Expired:
    """Return the error for a step whose productions are not kept any more.

    Args:
        stream: the stream.
        step: the step.
        location: the storage.
        first: the first step that is kept, if it is known.
    """
    since = "" if first is None else f"; kept are those since step {first}"
    return Expired(
        f"what step {step} produced on {stream!r} is not kept any more{since}",
        place=f"{location}, step {step}",
        remedy="to go on without what is missing, start a new query with a checkpoint of its own; to "
        "keep steps for as long as a query needs them, give it option reader, or keep more "
        "(retain={…: hr.keep(…)})",
    )


def check_retained(head: Head, stream: str, location: str) -> None:
    """Check that a stream is there and is retained.

    Raises:
        PipelineError: when it is not; it says which streams are.
    """
    retained = sorted(head.stored_schema.get("retained", {}))
    if stream in retained:
        return
    computation, _, output = stream.partition(".")
    listed = ", ".join(map(repr, retained)) or "none"
    remedy = f"retained are: {listed}"
    if stream not in head.stored_schema.get("streams", {}):
        streams = sorted(head.stored_schema.get("streams", {}))
        what = f"the pipeline has no stream {stream!r}"
        remedy += f"; its streams are: {', '.join(map(repr, streams)) or 'none'}"
    elif output:
        what = f"stream {stream!r} is not retained"
        remedy += f'; for this one, say retain=["{output}"] where {computation!r} is drawn'
    else:
        what = f"stream {stream!r} comes from an injector, and is not retained"
        remedy += "; the outputs of computations can be (retain=)"
    raise PipelineError(what, place=location, remedy=remedy)


class Rows:
    """Reads the productions of one file.

    Args:
        store: the pipeline's storage.
        file: the file.
        columns: the columns with which the read began.
    """

    def __init__(self, store: Store, file: FileRef, columns: StreamColumns) -> None:
        self._store, self._file, self._columns = store, file, columns
        self._reader = RunReader(store.read, file)
        self._place = f"{store.location}, step {file.step}, {file.name}"

    def count(self) -> int:
        """Return the number of rows. Cost: reading the footer, or a small file whole."""
        with self._kept():
            section = self._reader.section(self._columns.stream, _PRODUCED)
        return 0 if section is None else sum(block.rows for block in section.blocks)

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows as sinks get them, with their step.

        Args:
            schema: their names and types, in the order of :attr:`StreamColumns.public`.

        Raises:
            Expired: when the file is gone because it is not kept any more.
            Damaged: when it has changed since it was written, or is gone.
            SchemaChanged: when it has other columns.
            PipelineError: for a value that the wanted type cannot hold.
        """
        with self._kept():
            section = self._reader.section(self._columns.stream, _PRODUCED)
        for block in [] if section is None else section.blocks:
            assert section is not None
            with self._kept():
                rows = self._reader.block(section, block)
            self._check(rows)
            yield self._public(rows, schema)

    def _check(self, rows: pa.RecordBatch) -> None:
        parts = sum(name.startswith("__key") for name in rows.schema.names)
        fields = [field for field in rows.schema if field.name not in (HASH, TIMESTAMP_COLUMN)]
        key = [str(field.type) for field in fields[:parts]]
        found = StreamColumns(self._columns.stream, key, describe(pa.schema(fields[parts:])))
        self._columns.check_same(found, self._place)

    def _public(self, rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        count = len(self._columns.key)
        micros = rows.column(TIMESTAMP_COLUMN).to_numpy()
        shown = np.clip(micros, FIRST_DATE_US, LAST_DATE_US)  # (the end of time has no date)
        times = pa.array(shown).cast(pa.timestamp("us", tz="UTC"))
        own = [
            rows.column(name) for name in rows.schema.names if name not in (HASH, TIMESTAMP_COLUMN)
        ]
        step = pa.array(np.full(rows.num_rows, self._file.step, dtype=np.int64))
        columns = [*own[:count], times, *own[count:], step]
        return pa.record_batch(
            [self._cast(c, field) for c, field in zip(columns, schema, strict=True)], schema=schema
        )

    def _cast(self, column: Any, field: pa.Field) -> Any:
        if column.type == field.type:
            return column
        try:
            return column.cast(field.type)  # (safe: it refuses to lose anything)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise PipelineError(
                f"column {field.name!r} of {self._columns.stream!r} has a value that {field.type} "
                f"cannot hold: {error}",
                place=self._place,
                remedy="give the output's field a type that can be read, such as "
                "timestamps of microseconds",
            ) from error

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Distinguish a file that is gone because it is not kept from one that should be there."""
        try:
            yield
        except NotFound as error:
            raise self._gone(error) from error

    def _gone(self, error: NotFound) -> Expired | Damaged:
        newest = newest_of(self._store)
        named = newest is not None and any(file.name == self._file.name for file in newest.retained)
        if newest is not None and not named:
            first = newest.stored_schema.get("retained", {}).get(self._columns.stream)
            return not_kept(self._columns.stream, self._file.step, self._store.location, first)
        return Damaged(
            f"a file of step {self._file.step} is missing: {error.what}",
            place=self._place,
            remedy="restore the file from a copy of the storage",
        )
