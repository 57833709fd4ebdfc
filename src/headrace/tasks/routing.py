"""F: the end of a stage. Hash keys, find bin and worker *for this step*, pack an entry per worker.

The schema of each input of each computation is known to both sides from the pipeline, so entries
carry bare record batches, and only columns that the other side cannot make itself: event time, the
producer's hash (the order of produced records), the key where it is no column of the value, the value's
columns, and the hash where it costs more to compute than to send.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.computation.record_ids import RecordIds
from headrace.errors import BadInput
from headrace.eventtime.timestamps import FIRST_DATE_US, LAST_DATE_US
from headrace.keyspace.hashing import hash_columns, hash_is_key, hash_words
from headrace.keyspace.layout import Layout
from headrace.pipeline import Node, Pipeline, Salt, Stream
from headrace.protocol.parcels import Entry
from headrace.runfiles.batches import as_one_batch
from headrace.schema.columns import ColumnType
from headrace.schema.reserved import HASH, TIMESTAMP_COLUMN

#: The order of produced records is that of their producer's hash. Injected ones are in order where they
#: are read; where they come by way of a check of their ids it is that of their positions.
ORDER = "__order"
_DAY_US = 86_400_000_000
_ROW_BITS = 40
#: Up to so many workers, one pass over the owners for each is cheaper than a sort.
_FEW_WORKERS = 8


def key_names(node: Node) -> list[str]:
    """Return the columns that carry the key of a computation's input and output."""
    return [f"__key{i}" for i in range(len(node.key_fields))]


def stream_schema(stream: Stream) -> pa.Schema:
    """Return the columns of a stream's productions as they are staged: with the producer's key."""
    keys = [pa.field(f"__key{i}", field.type) for i, field in enumerate(stream.key_fields)]
    fields = [pa.field(HASH, pa.uint64()), pa.field(TIMESTAMP_COLUMN, pa.int64()), *keys]
    return pa.schema(fields + list(stream.values.schema))


def positions(split: int, rows: int) -> pa.Array:
    """Return the positions in a step's division of the rows of a split, as an order."""
    return pa.array(np.arange(rows, dtype=np.uint64) + np.uint64(split << _ROW_BITS))


def with_id(batch: pa.RecordBatch | pa.Table, check: Node) -> npt.NDArray[np.bool_]:
    """Say of each record whether it has an id: none of its parts is null."""
    there = np.ones(batch.num_rows, dtype=np.bool_)
    for name in check.key_columns[0] or ():
        column = batch.column(name)
        if column.null_count:
            there &= _flat(column).is_valid().to_numpy(zero_copy_only=False)
    return there


class InputFormat:
    """One input of one computation: how its records look at work, and how they travel.

    Attributes:
        schema: at work: hash, event time, order (not of what an injector reads), key, value.
        wire: what of that is sent.
        ordered_by: the column of the stream's records that their order is told by; None where they
            are in order as they come.
    """

    def __init__(self, node: Node, number: int) -> None:
        self.node = node
        self.number = number
        self.stream = node.inputs[number]
        self.keys = key_names(node)
        values = self.stream.values.schema
        self._is_check = isinstance(node.computation, RecordIds)
        self.ordered_by = ORDER if self._is_check or self.stream.checked else None
        if self.stream.key_fields:
            self.ordered_by = HASH
        #: Whether records lie where they lay for their producer: by its key, in its group.
        self._lies_there = node.key_columns[number] is None and self.stream.group == node.group
        fields = [pa.field(HASH, pa.uint64()), pa.field(TIMESTAMP_COLUMN, pa.int64())]
        if self.ordered_by is not None:
            fields.append(pa.field(ORDER, pa.uint64()))
        typed = zip(self.keys, node.key_fields, strict=True)
        fields += [pa.field(name, field.type) for name, field in typed]
        self.schema = pa.schema([*fields, *values])
        self._sources = self._columns_of_keys(values)
        spared = {key for key, column in zip(self.keys, self._sources, strict=True) if column}
        kinds = [field.type for field in node.key_fields]
        self._rehash = len(spared) == len(self.keys) and hash_is_key(kinds)
        if self._rehash:
            spared.add(HASH)
        self._sent = [i for i, name in enumerate(self.schema.names) if name not in spared]
        self.wire = pa.schema([self.schema.field(i) for i in self._sent])

    def _columns_of_keys(self, values: pa.Schema) -> list[str | None]:
        """Return for each part of the key the value column that is the same, if there is one."""
        chosen = self.node.key_columns[self.number]
        if chosen is None:
            return [None for _ in self.keys]
        pairs = zip(chosen, self.node.key_fields, strict=True)
        return [
            None if isinstance(c, Salt) or values.field(c).type != part.type else c
            for c, part in pairs
        ]

    # -- the sending side ---------------------------------------------------------------------

    def rows(self, batch: pa.RecordBatch | pa.Table, *, place: str) -> pa.RecordBatch:
        """Return a stream's records as this input wants them: with its own key and hash.

        Raises:
            BadInput: for a null in a key (but a record without an id is one too).
        """
        keys = self._keys(batch, place)
        columns = [batch.column(TIMESTAMP_COLUMN)]
        if self._lies_there:
            hashes = batch.column(HASH)
        elif self._is_check:
            hashes = pa.array(self._hashes_of_ids(batch, keys))
        else:
            hashes = pa.array(self._places(keys))
        if self.ordered_by is not None:
            columns.append(batch.column(self.ordered_by))
        columns += [*keys, *(batch.column(name) for name in self.stream.values.schema.names)]
        flat = [_flat(column) for column in [hashes, *columns]]
        return pa.RecordBatch.from_arrays(flat, schema=self.schema)

    def _places(self, keys: list[pa.Array]) -> npt.NDArray[np.uint64]:
        """Return where keys lie: their hashes, within the computation's group."""
        return self.node.group.places(hash_columns(keys))

    def _keys(self, batch: pa.RecordBatch | pa.Table, place: str) -> list[pa.Array]:
        chosen = self.node.key_columns[self.number]
        names = chosen if chosen is not None else tuple(self.keys)
        found = []
        for name, field in zip(names, self.node.key_fields, strict=True):
            if isinstance(name, Salt):
                found.append(_salt_of(batch, name))
                continue
            column = _flat(batch.column(name))
            if self._is_check:
                column = _filled(column, field.type)
            if column.null_count:
                row = int(np.flatnonzero(pc.is_null(column).to_numpy(zero_copy_only=False))[0])
                raise BadInput(
                    f"the key {name!r} of computation {self.node.name!r} is null",
                    place=self._place_of(batch, row, place),
                    remedy="filter such records out before, or key the stream by a column that is "
                    "always there; nothing of this step was committed",
                )
            if pa.types.is_timestamp(column.type) or pa.types.is_date32(column.type):
                self._check_dates(column, name, batch, place)
            found.append(column if column.type == field.type else column.cast(field.type))
        return found

    def _check_dates(
        self, column: pa.Array, name: str, batch: pa.RecordBatch | pa.Table, place: str
    ) -> None:
        """Check that keys are dates that Python has: several that it has not would be the same key.

        Raises:
            BadInput: for one that is none.
        """
        if pa.types.is_date32(column.type):
            at, unit, in_us = column.view(pa.int32()).to_numpy(), "days", _DAY_US
        else:
            micros = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
            at, unit, in_us = micros.cast(pa.int64()).to_numpy(), "microseconds", 1
        wrong = (at < FIRST_DATE_US // in_us) | (at > LAST_DATE_US // in_us)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise BadInput(
                f"the key {name!r} of computation {self.node.name!r} is no date: "
                f"{at[row]} {unit} since 1970",
                place=self._place_of(batch, row, place),
                remedy="give times of the years 1 to 9999 (is the unit right?), or key the stream by the "
                "number; nothing of this step was committed",
            )

    def _place_of(self, batch: pa.RecordBatch | pa.Table, row: int, place: str) -> str:
        """Return where a record comes from; what a check let on knows its place in the source."""
        if self.stream.checked:
            split, row = divmod(batch.column(ORDER)[row].as_py(), 1 << _ROW_BITS)
            place = f"part {split + 1} of the step's input"
        return f"{place}, record {row + 1} of stream {self.stream.name!r}"

    def _hashes_of_ids(
        self, batch: pa.RecordBatch | pa.Table, keys: list[pa.Array]
    ) -> npt.NDArray[np.uint64]:
        """Return the hashes of ids; records without one are spread evenly, by their position."""
        hashes = self._places(keys)
        without = ~with_id(batch, self.node)
        if without.any():
            order = _flat(batch.column(ORDER)).to_numpy()
            hashes[without] = self.node.group.places(hash_words(order[without]))
        return hashes

    def sent(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that are sent."""
        return pa.RecordBatch.from_arrays([rows.column(i) for i in self._sent], schema=self.wire)

    # -- the receiving side -------------------------------------------------------------------

    def unpack(self, bodies: list[pa.Buffer]) -> pa.RecordBatch:
        """Return what travelled, one batch after the other, with all its columns again."""
        sent = as_one_batch([pa.ipc.read_record_batch(body, self.wire) for body in bodies])
        there = dict(zip(self.wire.names, sent.columns, strict=True))
        for key, column in zip(self.keys, self._sources, strict=True):
            if column is not None:
                there[key] = there[column]
            if self._is_check:
                there[key] = _filled(there[key], there[key].type)
        if self._rehash:
            there[HASH] = pa.array(self._places([there[self.keys[0]]]))
        return pa.RecordBatch.from_arrays([there[n] for n in self.schema.names], schema=self.schema)


class Router:
    """The inputs of all computations of a pipeline, by what they read."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._formats = {
            (node.name, number): InputFormat(node, number)
            for node in pipeline.nodes.values()
            for number in range(len(node.inputs))
        }
        self._readers: Mapping[str, list[InputFormat]] = {
            address: [
                self._formats[node.name, number]
                for node, number in pipeline.consumers(address)
                if not node.chained
            ]
            for address in pipeline.streams()
        }

    def input(self, node: Node, number: int) -> InputFormat:
        """Return one input of a computation."""
        return self._formats[node.name, number]

    def inputs(self, node: Node) -> list[InputFormat]:
        """Return the inputs of a computation."""
        return [self._formats[node.name, number] for number in range(len(node.inputs))]

    def route(
        self,
        stream: Stream,
        batch: pa.RecordBatch | pa.Table,
        layout: Layout,
        outbox: OutgoingEntries,
        *,
        order: int,
        place: str,
    ) -> None:
        """Send a stream's records to all its consumers but the chained ones.

        Args:
            batch: for an injector's stream its event time and value columns, for a computation's
                the columns of :func:`stream_schema`.
            order: split number, or producing worker.
            place: where the records come from, for errors.
        """
        for reader in self._readers[stream.address]:
            _send(reader, batch, layout, outbox, order, place)

    def route_again(
        self, stream: Stream, batch: pa.RecordBatch | pa.Table, layout: Layout, outbox: OutgoingEntries,
        *, order: int, place: str, resting: Collection[str],
    ) -> None:  # fmt: skip
        """Send what was retained to those of its consumers that work; also to those that are chained.

        Args:
            batch, order, place: as for :meth:`route`.
            resting: computations that do not work in this step.
        """
        for reader in self._formats.values():
            if reader.stream.address == stream.address and reader.node.name not in resting:
                _send(reader, batch, layout, outbox, order, place)


def _send(
    reader: InputFormat, batch: pa.RecordBatch | pa.Table, layout: Layout, outbox: OutgoingEntries,
    order: int, place: str,
) -> None:  # fmt: skip
    rows = reader.rows(batch, place=place)
    owners = layout.workers_of(rows.column(0).to_numpy(zero_copy_only=False))
    for worker, part in _by_worker(reader.sent(rows), owners, layout.workers):
        body = part.serialize().to_pybytes()
        outbox.add(worker, Entry(reader.node.name, reader.number, order, part.num_rows, body))


def _salt_of(batch: pa.RecordBatch | pa.Table, salt: Salt) -> pa.Array:
    """Return the number that each record's key is divided by; nulls count as empty."""
    hashes = np.zeros(batch.num_rows, dtype=np.uint64)
    for name in (TIMESTAMP_COLUMN, *salt.by):
        column = _flat(batch.column(name))
        there = column.is_valid().to_numpy(zero_copy_only=False)
        hashes[there] += hash_columns([column.drop_null()])
        hashes = hash_words(hashes)
    return pa.array((hashes % np.uint64(salt.parts)).astype(np.int64))


class OutgoingEntries:
    """Entries on their way, by consuming worker."""

    def __init__(self, workers: int) -> None:
        self.entries: list[list[Entry]] = [[] for _ in range(workers)]

    def add(self, worker: int, entry: Entry) -> None:
        """Add an entry for a worker."""
        self.entries[worker].append(entry)


def _filled(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column with something in place of nulls; as it is where there are none."""
    if not column.null_count:
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    type_ = ColumnType("", kind)
    return column.cast(kind).fill_null(type_.to_arrow(type_.new(1))[0])


def _flat(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _by_worker(
    rows: pa.RecordBatch, owners: npt.NDArray[np.int32], workers: int
) -> list[tuple[int, pa.RecordBatch]]:
    """Divide rows among workers, keeping their order."""
    if rows.num_rows == 0:
        return []
    if workers == 1 or (owners == owners[0]).all():
        return [(int(owners[0]), rows)]
    if workers > _FEW_WORKERS:
        return _by_many_workers(rows, owners)
    found = []
    for worker in np.flatnonzero(np.bincount(owners, minlength=workers)).tolist():
        own: npt.NDArray[np.int64] = np.flatnonzero(owners == worker)
        found.append((worker, rows.take(pa.array(own))))
    return found


def _by_many_workers(
    rows: pa.RecordBatch, owners: npt.NDArray[np.int32]
) -> list[tuple[int, pa.RecordBatch]]:
    by_owner = np.argsort(owners.astype(np.uint16), kind="stable")  # 16 bits: a radix sort
    owners = owners[by_owner]
    rows = rows.take(pa.array(by_owner))
    edges: npt.NDArray[np.int64] = np.flatnonzero(np.diff(owners, prepend=-1, append=-1))
    return [
        (int(owners[first]), rows.slice(first, last - first))
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
