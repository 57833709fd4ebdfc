"""The ends of transactions: which rows belong to each, and in which order they were committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import BadInput, PipelineError
from headrace.pipeline import Node, Stream
from headrace.runfiles.batches import one_array
from headrace.schema import ValueType, value_type_of
from headrace.schema.exact import entries_of, items_of
from headrace.schema.row_columns import as_row_type, row_type
from headrace.zsets.linear import field_of
from headrace.zsets.rows import I64

#: The column of the transaction's id, in all streams of a gate.
TRANSACTION = "_transaction"
#: The column of a row's number in its transaction.
NUMBER = "_number"
#: What a list of counts has for each table.
_NAME, _COUNT = "data_collection", "event_count"


@dataclass(frozen=True)
class Ends:
    """A stream of the ends of transactions: a record for each, in the order of their commits.

    Args:
        stream: the stream of an injector. Its source has one partition, since records of several have
            no order.
        id: the column of the transaction's id: a text or a whole number.
        counts: how many rows the transaction has in each table: a column of maps (table → number), a
            column of lists of structs (``data_collection``, ``event_count``), or the column of each
            table. A table that is not named has none.
        status: a column that says what a record is, if there are others than ends: those where it is
            ``"END"`` are. None if all are ends.

    Example::

        counted = {"orders": "orders", "payments": "payments"}
        streams = {"orders": orders, "payments": payments}
        ends = hr.zsets.Ends(commits, counts=counted)
        whole = hr.zsets.transactions("whole", streams, ends, transaction="order")
        whole.table("paid", "orders", key="id")
    """

    stream: Stream | Node
    id: str = "id"
    counts: str | Mapping[str, str] = "counts"
    status: str | None = None


class ReadEnds:
    """The ends of transactions as the computations of a gate read them.

    Args:
        ends: where they are.
        tables: the tables, as they are called there.
        place: the gate, for messages.

    Attributes:
        stream: the stream.
        id_type: the type of the ids.

    Raises:
        PipelineError: for columns that are not there, or are of another type.
    """

    def __init__(self, ends: Ends, tables: Sequence[str], place: str) -> None:
        self.stream = ends.stream.only_output() if isinstance(ends.stream, Node) else ends.stream
        schema = self.stream.values.schema
        where = f"{place}, stream {self.stream.name!r}"
        if self.stream.key_fields:
            raise PipelineError(
                "a computation produces the ends, so nothing says in which order they were committed",
                place=where,
                remedy="read them from an injector",
            )
        self.id_type = id_type(schema, ends.id, where)
        if ends.status is not None:
            field = field_of(schema, ends.status, where)
            if row_type(field.type) != pa.string():
                raise PipelineError(
                    f"status={ends.status!r}: the column is of type {field.type}",
                    place=where,
                    remedy='name a column of texts, of which "END" says that a transaction has ended',
                )
        self._ends, self._tables, self._where = ends, tuple(tables), where
        self._check_counts(schema)

    def _check_counts(self, schema: pa.Schema) -> None:
        counts = self._ends.counts
        if isinstance(counts, str):
            kind = field_of(schema, counts, self._where).type
            if not (_is_map(kind) or _is_list(kind)):
                raise PipelineError(
                    f"counts={counts!r}: the column is of type {kind}",
                    place=self._where,
                    remedy=f"name a column of maps, or of lists of structs of {_NAME} and {_COUNT}; "
                    'or say in which column the number of each table is: counts={"orders": "n"}',
                )
            return
        for table, column in counts.items():
            if table not in self._tables:
                raise PipelineError(
                    f"counts={{{table!r}: …}}: there is no such table",
                    place=self._where,
                    remedy=f"the tables are {', '.join(self._tables)}",
                )
            if not pa.types.is_integer(field_of(schema, column, self._where).type):
                raise PipelineError(f"column {column!r} is no whole number", place=self._where)

    def counted(self) -> Stream:
        """Return the ends with the number of rows in each table, in columns of :func:`column_of`."""
        return self.stream.rewritten(self._rewrite(self._tables), self.stream.name)

    def ids(self) -> Stream:
        """Return the ends with nothing but the ids."""
        return self.stream.rewritten(self._rewrite(()), self.stream.name)

    def _rewrite(self, tables: Sequence[str]) -> _EndsOnTheWay:
        ends = self._ends
        counts = ends.counts if isinstance(ends.counts, str) else tuple(ends.counts.items())
        return _EndsOnTheWay(ends.id, ends.status, counts, tuple(tables), self.id_type, self._where)


def column_of(number: int) -> str:
    """Return the column with the number of rows in a table."""
    return f"rows{number}"


def id_type(schema: pa.Schema, column: str, place: str) -> pa.DataType:
    """Return the type of the ids of transactions in a column.

    Raises:
        PipelineError: if it is neither text nor a whole number.
    """
    kind = row_type(field_of(schema, column, place).type)
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return pa.int64()
    if kind != pa.string():
        raise PipelineError(
            f"column {column!r} is of type {kind}, and the id of a transaction is a text or a whole "
            "number",
            place=place,
        )
    return kind


@dataclass(frozen=True)
class _EndsOnTheWay:
    """What becomes of ends where they are sent to a computation; see ``pipeline.streams.Rewrite``."""

    id: str
    status: str | None
    counts: str | tuple[tuple[str, str], ...]
    tables: tuple[str, ...]
    id_type: pa.DataType
    place: str

    def values(self) -> ValueType:
        fields = [pa.field(TRANSACTION, self.id_type, nullable=False)]
        fields += [
            pa.field(column_of(number), pa.int64(), nullable=False)
            for number in range(len(self.tables))
        ]
        return value_type_of(pa.schema(fields), place=self.place)

    def apply(self, batch: pa.RecordBatch | pa.Table) -> tuple[I64 | None, Mapping[str, pa.Array]]:
        at: I64 | None = None
        if self.status is not None:
            status = as_row_type(one_array(batch.column(self.status)), pa.string())
            is_end = pc.fill_null(pc.equal(status, "END"), False)
            at = np.flatnonzero(is_end.to_numpy(zero_copy_only=False))
            batch = batch.take(pa.array(at))
        ids = one_array(batch.column(self.id)).cast(self.id_type)
        if ids.null_count:
            raise BadInput(
                f"a transaction ends without an id: {self.id!r} is null",
                place=self.place,
                remedy="correct the source of the ends; nothing of this step was committed",
            )
        counted = self._counted(batch)
        named = {column_of(number): pa.array(of) for number, of in enumerate(counted)}
        return at, {TRANSACTION: ids, **named}

    def _counted(self, batch: Any) -> list[I64]:
        """Return the number of rows in each table."""
        if not self.tables:
            return []
        if isinstance(self.counts, str):
            return _from_nested(one_array(batch.column(self.counts)), self.tables)
        columns = dict(self.counts)
        none = np.zeros(batch.num_rows, dtype=np.int64)
        return [
            _numbers(one_array(batch.column(columns[table]))) if table in columns else none
            for table in self.tables
        ]


def _from_nested(column: pa.Array, tables: Sequence[str]) -> list[I64]:
    """Return the number of rows in each table, of maps or of lists of pairs."""
    if _is_map(column.type):
        offsets, names, numbers = entries_of(column)
    else:
        offsets, pairs = items_of(column)
        names, numbers = pc.struct_field(pairs, _NAME), pc.struct_field(pairs, _COUNT)
    rows = np.repeat(np.arange(len(column)), np.diff(offsets))
    names, numbers = as_row_type(names, pa.string()), _numbers(numbers)
    found = []
    for table in tables:
        here = pc.fill_null(pc.equal(names, table), False).to_numpy(zero_copy_only=False)
        counts = np.zeros(len(column), dtype=np.int64)
        np.add.at(counts, rows[here], numbers[here])
        found.append(counts)
    return found


def _numbers(column: pa.Array) -> I64:
    found: I64 = pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return found


def _is_map(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_map(kind)
        and row_type(kind.key_type) == pa.string()
        and pa.types.is_integer(kind.item_type)
    )


def _is_list(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    inner = kind.value_type
    return bool(
        pa.types.is_struct(inner)
        and inner.get_field_index(_NAME) >= 0
        and inner.get_field_index(_COUNT) >= 0
    )
