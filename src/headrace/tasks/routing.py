"""The end of a layer: hash the keys, find each record's bin and worker, pack an entry per worker.

Bins and owners are those of the step's layout.

Both sides know the schema of each input from the pipeline. So an entry carries a bare record batch,
with only those columns that the receiver cannot compute itself:

- the event time
- the producer's hash, which gives the order of produced records
- the key, if it is not a column of the value
- the columns of the value
- the hash, if it costs more to compute than to send
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.computation.record_ids import RecordIds
from headrace.errors import BadInput
from headrace.errors.user_code import raise_again
from headrace.eventtime.timestamps import DAY_US, FIRST_DATE_US, LAST_DATE_US
from headrace.keyspace.hashing import hash_columns, hash_is_key, hash_words
from headrace.keyspace.layout import Layout
from headrace.keyspace.row_hashing import hash_rows
from headrace.pipeline import Computed, Hashed, Node, Pipeline, Salt, Stream
from headrace.pipeline.streams import Rewrite
from headrace.protocol.parcels import Entry
from headrace.runfiles.batches import as_one_batch, one_array
from headrace.schema.columns import ColumnType
from headrace.schema.reserved import HASH, TIMESTAMP_COLUMN

#: The column that orders records. Produced records are ordered by their producer's hash. Injected
#: records arrive in order; if their ids are checked on the way, they are ordered by position.
ORDER = "__order"
_ROW_BITS = 40
#: With at most this many workers, one pass over the owners for each worker is cheaper than a sort.
_FEW_WORKERS = 8


def key_names(node: Node) -> list[str]:
    """Return the names of the columns that carry the key of a computation's input and output."""
    return [f"__key{i}" for i in range(len(node.key_fields))]


def stream_schema(stream: Stream) -> pa.Schema:
    """Return the schema of a stream's productions as they are staged, with the producer's key."""
    keys = [pa.field(f"__key{i}", field.type) for i, field in enumerate(stream.key_fields)]
    fields = [pa.field(HASH, pa.uint64()), pa.field(TIMESTAMP_COLUMN, pa.int64()), *keys]
    return pa.schema(fields + list(stream.values.schema))


def positions(split: int, rows: int) -> pa.Array:
    """Return the positions of a split's rows in the step's division, as values to order by."""
    return pa.array(np.arange(rows, dtype=np.uint64) + np.uint64(split << _ROW_BITS))


def with_id(batch: pa.RecordBatch | pa.Table, check: Node) -> npt.NDArray[np.bool_]:
    """Return for each record whether it has an id: no part of it is null."""
    there = np.ones(batch.num_rows, dtype=np.bool_)
    for name in check.key_columns[0] or ():
        column = batch.column(name)
        if column.null_count:
            there &= one_array(column).is_valid().to_numpy(zero_copy_only=False)
    return there


class InputFormat:
    """One input of one computation: the schema of its records, and how they are sent.

    Attributes:
        schema: the columns that the computation works with: hash, event time, order, key, value. An
            injector's records have no order column, unless their ids were checked.
        wire: those columns of it that are sent.
        ordered_by: the column of the stream that gives the records their order. None if they arrive
            in order.
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
        #: Whether a record has the same place here as at its producer: same key, same group.
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
        """Return, for each part of the key, the value column that equals it, or None."""
        chosen = self.node.key_columns[self.number]
        if chosen is None:
            return [None for _ in self.keys]
        pairs = zip(chosen, self.node.key_fields, strict=True)
        return [
            None
            if isinstance(c, Salt | Hashed | Computed) or values.field(c).type != part.type
            else c
            for c, part in pairs
        ]

    # -- the sending side ---------------------------------------------------------------------

    def rows(self, batch: pa.RecordBatch | pa.Table, *, place: str) -> pa.RecordBatch:
        """Return a stream's records in this input's schema, with this input's key and hash.

        Raises:
            BadInput: a part of a key is null, or is a date that Python cannot represent. Where ids
                are checked, a record may lack an id.
        """
        if self.stream.rewrite is not None:
            batch = self._rewritten(batch, self.stream.rewrite, place)
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
        flat = [one_array(column) for column in [hashes, *columns]]
        return pa.RecordBatch.from_arrays(flat, schema=self.schema)

    def _rewritten(
        self, batch: pa.RecordBatch | pa.Table, rewrite: Rewrite, place: str
    ) -> pa.RecordBatch:
        """Return records as this input's reader gets them.

        Raises:
            UserCodeError: if the code fails that changes them.
        """
        try:
            at, values = rewrite.apply(batch)
        except BaseException as error:
            raise_again(
                error,
                f"computation {self.node.name!r}, {batch.num_rows} records of stream "
                f"{self.stream.name!r} on their way to it, {place}",
                "fix the function, or filter such records out before; nothing of this step was "
                "committed",
            )
        names = [TIMESTAMP_COLUMN]
        names += [] if self.ordered_by is None else [self.ordered_by]
        names += self.keys if self.node.key_columns[self.number] is None else []
        own = [one_array(batch.column(name)) for name in names]
        if at is not None:
            chosen = pa.array(at)
            own = [column.take(chosen) for column in own]
        return pa.RecordBatch.from_arrays([*own, *values.values()], names=[*names, *values])

    def _places(self, keys: list[pa.Array]) -> npt.NDArray[np.uint64]:
        """Return the places of keys: their hashes, moved into the group's part of the space."""
        return self.node.group.places(hash_columns(keys))

    def _keys(self, batch: pa.RecordBatch | pa.Table, place: str) -> list[pa.Array]:
        chosen = self.node.key_columns[self.number]
        names = chosen if chosen is not None else tuple(self.keys)
        found = []
        for part, field in zip(names, self.node.key_fields, strict=True):
            if isinstance(part, Salt):
                found.append(_salt_of(batch, part))
                continue
            if isinstance(part, Hashed):
                found.append(_hash_of(batch, part))
                continue
            if isinstance(part, Computed):
                name, column = "computed", self._computed(batch, part, field.type, place)
            else:
                name, column = part, one_array(batch.column(part))
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

    def _computed(
        self, batch: pa.RecordBatch | pa.Table, part: Computed, kind: pa.DataType, place: str
    ) -> pa.Array:
        """Return a part of the key as the user's function computes it.

        Raises:
            UserCodeError: if the function fails, or returns something else.
        """
        try:
            found = part.function(*[one_array(batch.column(name)) for name in part.columns])
            if isinstance(found, pa.ChunkedArray):
                found = one_array(found)
            column = found if isinstance(found, pa.Array) else pa.array(found)
            if len(column) != batch.num_rows:
                raise ValueError(f"it returned {len(column)} values for {batch.num_rows} records")
            if pa.types.is_null(column.type) and not len(column):
                return pa.array([], kind)
            if not _is_of_kind(column.type, kind):
                raise TypeError(f"it returned {column.type}, and the key is of type {kind}")
            return column
        except BaseException as error:
            raise_again(
                error,
                f"computation {self.node.name!r}, a computed key of stream {self.stream.name!r}, {place}",
                "fix the function: it returns a value of the declared type for each record; nothing of "
                "this step was committed",
            )

    def _check_dates(
        self, column: pa.Array, name: str, batch: pa.RecordBatch | pa.Table, place: str
    ) -> None:
        """Check that keys are dates that Python can represent.

        Several dates outside that range would be the same key.

        Raises:
            BadInput: a key is not such a date.
        """
        if pa.types.is_date32(column.type):
            at, unit, in_us = column.view(pa.int32()).to_numpy(), "days", DAY_US
        else:
            micros = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)
            at, unit, in_us = micros.cast(pa.int64()).to_numpy(), "microseconds", 1
        wrong = (at < FIRST_DATE_US // in_us) | (at > LAST_DATE_US // in_us)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise BadInput(
                f"the key {name!r} of computation {self.node.name!r} is not a date: "
                f"{at[row]} {unit} since 1970",
                place=self._place_of(batch, row, place),
                remedy="give times of the years 1 to 9999 (is the unit right?), or key the stream by the "
                "number; nothing of this step was committed",
            )

    def _place_of(self, batch: pa.RecordBatch | pa.Table, row: int, place: str) -> str:
        """Return where a record comes from; after a check of ids, its position in the input."""
        if self.stream.checked:
            split, row = divmod(batch.column(ORDER)[row].as_py(), 1 << _ROW_BITS)
            place = f"part {split + 1} of the step's input"
        return f"{place}, record {row + 1} of stream {self.stream.name!r}"

    def _hashes_of_ids(
        self, batch: pa.RecordBatch | pa.Table, keys: list[pa.Array]
    ) -> npt.NDArray[np.uint64]:
        """Return the hashes of ids. Records without an id are spread evenly, by their position."""
        hashes = self._places(keys)
        without = ~with_id(batch, self.node)
        if without.any():
            order = one_array(batch.column(ORDER)).to_numpy()
            hashes[without] = self.node.group.places(hash_words(order[without]))
        return hashes

    def sent(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that are sent."""
        return pa.RecordBatch.from_arrays([rows.column(i) for i in self._sent], schema=self.wire)

    # -- the receiving side -------------------------------------------------------------------

    def unpack(self, bodies: list[pa.Buffer]) -> pa.RecordBatch:
        """Return the records of several batches as one, with all columns restored."""
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
    """The inputs of all computations of a pipeline, by the stream that they read."""

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
                if number not in node.chained_inputs
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
        only: Collection[str] | None = None,
        without: Collection[str] = (),
    ) -> None:
        """Send a stream's records to all its consumers except the chained ones.

        Args:
            stream: the stream.
            batch: its records. For an injector's stream: event time and value columns. For a
                computation's stream: the columns of :func:`stream_schema`.
            layout: bins and owners.
            outbox: collects the entries.
            order: the split number, or the producing worker.
            place: where the records come from, for errors.
            only: the computations that get them; None for all.
            without: computations that do not get them.
        """
        for reader in self._readers[stream.address]:
            name = reader.node.name
            if name not in without and (only is None or name in only):
                _send(reader, batch, layout, outbox, order, place)

    def route_again(
        self,
        stream: Stream,
        batch: pa.RecordBatch | pa.Table,
        layout: Layout,
        outbox: OutgoingEntries,
        *,
        order: int,
        place: str,
        inactive: Collection[str],
    ) -> None:
        """Send retained records to those consumers that work in this step, chained ones included.

        Args:
            stream, batch, layout, outbox, order, place: as for :meth:`route`.
            inactive: computations that do nothing in this step.
        """
        for reader in self._formats.values():
            if reader.stream.address == stream.address and reader.node.name not in inactive:
                _send(reader, batch, layout, outbox, order, place)


def _send(
    reader: InputFormat,
    batch: pa.RecordBatch | pa.Table,
    layout: Layout,
    outbox: OutgoingEntries,
    order: int,
    place: str,
) -> None:
    rows = reader.rows(batch, place=place)
    owners = layout.workers_of(rows.column(0).to_numpy(zero_copy_only=False))
    for worker, part in _by_worker(reader.sent(rows), owners, layout.workers):
        body = part.serialize().to_pybytes()
        outbox.add(worker, Entry(reader.node.name, reader.number, order, part.num_rows, body))


def _salt_of(batch: pa.RecordBatch | pa.Table, salt: Salt) -> pa.Array:
    """Return the salt of each record's key: a number below ``salt.parts``. Nulls do not count."""
    hashes = np.zeros(batch.num_rows, dtype=np.uint64)
    for name in (TIMESTAMP_COLUMN, *salt.by):
        column = one_array(batch.column(name))
        there = column.is_valid().to_numpy(zero_copy_only=False)
        hashes[there] += hash_columns([column.drop_null()])
        hashes = hash_words(hashes)
    return pa.array((hashes % np.uint64(salt.parts)).astype(np.int64))


def _is_of_kind(given: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether values of a type are kept as they are in another type."""
    alike = (
        (pa.types.is_integer, pa.types.is_integer),
        (lambda of: pa.types.is_string(of) or pa.types.is_large_string(of), pa.types.is_string),
        (lambda of: pa.types.is_binary(of) or pa.types.is_large_binary(of), pa.types.is_binary),
        (pa.types.is_timestamp, pa.types.is_timestamp),
    )
    return given == kind or any(one(given) and other(kind) for one, other in alike)


def _hash_of(batch: pa.RecordBatch | pa.Table, part: Hashed) -> pa.Array:
    """Return the hash of each record's columns."""
    columns = [one_array(batch.column(name)) for name in part.columns]
    return pa.array(hash_rows(columns, batch.num_rows).view(np.int64))


class OutgoingEntries:
    """Entries to be sent, by the worker that receives them."""

    def __init__(self, workers: int) -> None:
        self.entries: list[list[Entry]] = [[] for _ in range(workers)]

    def add(self, worker: int, entry: Entry) -> None:
        """Add an entry for a worker."""
        self.entries[worker].append(entry)


def _filled(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column with a default in place of nulls; the same column if it has none."""
    if not column.null_count:
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    type_ = ColumnType("", kind)
    return column.cast(kind).fill_null(type_.to_arrow(type_.new(1))[0])


def _by_worker(
    rows: pa.RecordBatch, owners: npt.NDArray[np.int32], workers: int
) -> list[tuple[int, pa.RecordBatch]]:
    """Divide rows among workers. Rows of a worker keep their order."""
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
