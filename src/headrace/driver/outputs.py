"""A step's productions on their way to sinks: from reports and staged files to tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from headrace.coordinator.adoption import Adopted
from headrace.coordinator.results import Result
from headrace.eventtime.timestamps import FIRST_DATE_US, LAST_DATE_US
from headrace.keyspace.layout import Layout
from headrace.keyspace.ordering import order_by_hash
from headrace.ledger.records import Origin
from headrace.pipeline import Stream
from headrace.protocol.plan import StepPlan
from headrace.runfiles.format import FileRef, RunPart, RunReader, write_run
from headrace.schema.reserved import HASH, TIMESTAMP_COLUMN
from headrace.storage.base import Store
from headrace.tasks.routing import stream_schema
from headrace.tasks.writing import OUTPUT

#: A column of texts can have 2 GiB in one batch.
_FILE_BYTES = 1 << 30


class StepOutput(msgspec.Struct, frozen=True):
    """What a step has produced, and where it is.

    Attributes:
        step: the step.
        origin: what sinks are told of it.
        files: staged outputs.
        inline: copies of staged outputs, by stream; they count only if they stand for all files.
        unstaged: outputs that are in no file.
        committed: whether the step is.
    """

    step: int
    origin: Origin
    files: list[FileRef]
    inline: dict[str, list[bytes]] = {}
    unstaged: dict[str, list[bytes]] = {}
    committed: bool = True

    def table(self, stream: Stream, store: Store) -> pa.Table | None:
        """Return what was produced on a stream, in the order that is the same for any layout."""
        made = OutputLocation(self.files, self.inline, self.unstaged)
        rows = made.rows(stream, store)
        return None if rows is None else public_rows(rows, stream)


class OutputLocation(NamedTuple):
    """Where productions are: in files, in copies that stand for all files, and in no file."""

    files: list[FileRef]
    inline: dict[str, list[bytes]]
    unstaged: dict[str, list[bytes]]

    @property
    def streams(self) -> list[str]:
        """Those of which there may be some."""
        return sorted({*self.unstaged, *(name for file in self.files for name in file.owners)})

    def rows(self, stream: Stream, store: Store) -> pa.Table | None:
        """Return what was produced on a stream, as it is staged: by the hash of its keys."""
        schema, name = stream_schema(stream), stream.name
        holding = [file for file in self.files if name in file.owners]
        inline = self.inline.get(name, [])
        tables = [_table(data, schema) for data in self.unstaged.get(name, [])]
        if len(inline) == len(holding):
            tables += [_table(data, schema) for data in inline]
        else:
            readers = [RunReader(store.read, file) for file in holding]
            found = [reader.rows(name, OUTPUT, 0, 2**64 - 1) for reader in readers]
            tables += [table for table in found if table is not None]
        return in_hash_order(pa.concat_tables(tables)) if tables else None


def checkpoint(plan: StepPlan, adopted: Adopted, streams: list[Stream], store: Store) -> FileRef:
    """Write what is in no file, on some streams, as an output file of the step; return that."""
    (file,) = _written(plan, "driver", OutputLocation([], {}, adopted.unstaged), streams, store)
    return file  # (what is in no file is little)


def stage(
    plan: StepPlan, step: int, result: Result, streams: Mapping[str, Stream], store: Store
) -> list[FileRef]:
    """Write what a step before has produced, and is in no file that is named, as files of a checkpoint.

    Args:
        plan: the checkpoint's, whose manifest will name the file.
        step: the step before.
        result: what it has produced.
        streams: by name.
        store: where to.
    """
    adopted = result.adopted
    made = OutputLocation([], {}, adopted.unstaged)
    if result.again:
        made = OutputLocation(adopted.outputs, adopted.inline_outputs, adopted.unstaged)
    return _written(plan, f"driver{step}", made, [streams[name] for name in made.streams], store)


def _written(
    plan: StepPlan, attempt: str, made: OutputLocation, streams: list[Stream], store: Store
) -> list[FileRef]:
    """Write productions as output files of a plan's step, each of which Arrow can hold as batches."""
    parts: list[list[RunPart]] = []
    for stream in streams:
        rows = made.rows(stream, store)
        pieces = [] if rows is None else list(_pieces(rows))
        parts += [[] for _ in pieces[len(parts) :]]
        for of_file, piece in zip(parts, pieces, strict=False):
            (batch,) = piece.combine_chunks().to_batches()
            of_file.append(RunPart(stream.name, OUTPUT, batch))
    files = []
    for number, of_file in enumerate(parts or [[]]):
        data, checksum = write_run(of_file, Layout.from_wire(plan.layout))
        name = f"outputs/{plan.file_stem(0, 0, attempt if number == 0 else f'{attempt}.{number}')}"
        store.write(name, data)
        owners = [part.owner for part in of_file]
        files.append(FileRef(name, len(data), checksum, plan.step, 0, 0, owners, plan.lineage))
    return files


def _pieces(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield rows in pieces of which none is larger than a file may be, if it has more than a row."""
    if rows.nbytes <= _FILE_BYTES or rows.num_rows < 2:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _pieces(rows.slice(0, half))
    yield from _pieces(rows.slice(half))


def in_hash_order(table: pa.Table) -> pa.Table:
    """Return rows by the hash of their keys; those of one key as they are."""
    hashes = table.column(HASH).to_numpy()
    if not (hashes[1:] < hashes[:-1]).any():
        return table
    order = pa.array(order_by_hash(hashes))
    if table.nbytes <= _FILE_BYTES:
        return table.take(order)
    # (What is taken is put together first, and so is wider than what a batch can hold.)
    taken = table.cast(pa.schema([_widened(field) for field in table.schema])).take(order)
    copies = (piece.take(np.arange(piece.num_rows)) for piece in _pieces(taken))
    return pa.concat_tables(copy.cast(table.schema) for copy in copies)


def _widened(field: pa.Field) -> pa.Field:
    wider = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return field.with_type(wider.get(field.type, field.type))


def public_rows(table: pa.Table, stream: Stream) -> pa.Table:
    """Return staged productions as the outside sees them; see :meth:`Stream.public_schema`."""
    parts = len(stream.key_fields)
    micros = table.column(TIMESTAMP_COLUMN).to_numpy()
    shown = np.clip(micros, FIRST_DATE_US, LAST_DATE_US)  # "the end of time" has no date
    times = pa.array(shown).cast(pa.timestamp("us", tz="UTC"))
    keys = [table.column(f"__key{i}") for i in range(parts)]
    values = table.select(range(2 + parts, table.num_columns))
    if values.schema.names == stream.values.schema.names and values.schema.types == [
        part.form.arrow for part in stream.values.parts
    ]:
        columns, names = stream.values.outward(values.columns), stream.public_schema().names
    else:  # an earlier version of the code has produced them: they are shown as it left them
        columns, names = values.columns, stream.public_names(values.column_names)
    return pa.table([*keys, times, *columns], names=names)


def _table(data: bytes, schema: pa.Schema) -> pa.Table:
    batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    return pa.Table.from_batches([batch], schema)
