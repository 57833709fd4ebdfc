"""Reading the output of a step for sinks, and writing to files what is in none."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from headrace.coordinator.step_output import StepOutput
from headrace.eventtime.timestamps import FIRST_DATE_US, LAST_DATE_US
from headrace.keyspace.layout import Layout
from headrace.keyspace.ordering import order_by_hash
from headrace.pipeline import Stream
from headrace.protocol.plan import StepPlan
from headrace.runfiles.batches import halves, taken
from headrace.runfiles.format import OUTPUT, FileRef, RunPart, RunReader, write_run
from headrace.schema.reserved import HASH, TIMESTAMP_COLUMN
from headrace.storage.base import Store
from headrace.tasks.routing import stream_schema

#: Largest output file in bytes. A text column of an Arrow batch can hold 2 GiB.
_FILE_BYTES = 1 << 30


def table_of(output: StepOutput, stream: Stream, store: Store) -> pa.Table | None:
    """Return the records of an output on a stream, in an order that is the same for any layout.

    None if there are none.
    """
    rows = rows_of(output, stream, store)
    return None if rows is None else public_rows(rows, stream)


def rows_of(output: StepOutput, stream: Stream, store: Store) -> pa.Table | None:
    """Return the rows of an output on a stream as they are staged, by the hash of their keys.

    None if there are none.
    """
    schema, name = stream_schema(stream), stream.name
    holding = [file for file in output.files if name in file.owners]
    copies = output.copies.get(name, {})
    tables = [_table(data, schema) for data in output.unstaged.get(name, [])]
    for file in holding:
        if file.name in copies:
            tables.append(_table(copies[file.name], schema))
        else:
            found = RunReader(store.read, file).rows(name, OUTPUT, 0, 2**64 - 1)
            tables += [] if found is None else [found]
    return in_hash_order(pa.concat_tables(tables)) if tables else None


def write_outputs(
    plan: StepPlan, output: StepOutput, streams: Mapping[str, Stream], store: Store
) -> FileRef:
    """Write unstaged output as an output file of its step. Return the file."""
    (file,) = _written(plan, "driver", output, streams, store)
    return file  # unstaged output is small, so there is one file


def stage(
    plan: StepPlan, step: int, output: StepOutput, streams: Mapping[str, Stream], store: Store
) -> list[FileRef]:
    """Write the output of an earlier step that is in no named file, as files of a checkpoint.

    Args:
        plan: the checkpoint's plan. Its manifest will name the files.
        step: the earlier step.
        output: its output.
        streams: the streams by name.
        store: where to write.
    """
    return _written(plan, f"driver{step}", output, streams, store)


def _written(
    plan: StepPlan,
    task_attempt: str,
    output: StepOutput,
    streams: Mapping[str, Stream],
    store: Store,
) -> list[FileRef]:
    """Write output as files of a plan's step, each small enough for Arrow batches."""
    parts: list[list[RunPart]] = []
    for stream in (streams[name] for name in output.streams):
        rows = rows_of(output, stream, store)
        pieces = [] if rows is None else list(halves(rows, _FILE_BYTES))
        parts += [[] for _ in pieces[len(parts) :]]
        for of_file, piece in zip(parts, pieces, strict=False):
            (batch,) = piece.combine_chunks().to_batches()
            of_file.append(RunPart(stream.name, OUTPUT, batch))
    files = []
    for number, of_file in enumerate(parts or [[]]):
        data, checksum = write_run(of_file, Layout.from_wire(plan.layout))
        own = task_attempt if number == 0 else f"{task_attempt}.{number}"
        name = f"outputs/{plan.file_stem(0, 0, own)}"
        store.write(name, data)
        owners = [part.owner for part in of_file]
        files.append(FileRef(name, len(data), checksum, plan.step, 0, 0, owners, plan.lineage))
    return files


def in_hash_order(table: pa.Table) -> pa.Table:
    """Return rows ordered by the hash of their keys. Rows of one key keep their order."""
    hashes = table.column(HASH).to_numpy()
    if not (hashes[1:] < hashes[:-1]).any():
        return table
    return taken(table, order_by_hash(hashes))


def public_rows(table: pa.Table, stream: Stream) -> pa.Table:
    """Return staged output as sinks see it; see :meth:`Stream.public_schema`."""
    parts = len(stream.key_fields)
    micros = table.column(TIMESTAMP_COLUMN).to_numpy()
    shown = np.clip(micros, FIRST_DATE_US, LAST_DATE_US)  # the end of time has no date
    times = pa.array(shown).cast(pa.timestamp("us", tz="UTC"))
    keys = [table.column(f"__key{i}") for i in range(parts)]
    values = table.select(range(2 + parts, table.num_columns))
    if values.schema.names == stream.values.schema.names and values.schema.types == [
        part.form.arrow for part in stream.values.parts
    ]:
        columns, names = stream.values.outward(values.columns), stream.public_schema().names
    else:  # produced by an earlier version of the code, and shown as it left them
        columns, names = values.columns, stream.public_names(values.column_names)
    return pa.table([*keys, times, *columns], names=names)


def _table(data: bytes, schema: pa.Schema) -> pa.Table:
    batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    return pa.Table.from_batches([batch], schema)
