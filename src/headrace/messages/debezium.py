"""Change events of Debezium: the rows of a database's tables, as they are inserted, updated and deleted."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import PipelineError
from headrace.messages.base import MessageFormat, Unreadable, Wanted
from headrace.messages.debezium_messages import DebeziumMessages, fields_of, parts_of
from headrace.messages.debezium_transactions import transaction_ids
from headrace.messages.lines import BESIDE
from headrace.schema.exact import family_of

#: What Debezium calls a change → what it is.
_OPERATIONS = {"c": "insert", "u": "update", "d": "delete", "r": "read"}
_OTHERS = {"t": "the table was emptied (truncate)", "m": "it is a message of the database's log"}
_BEFORE, _AFTER, _OP, _SOURCE, _TIME = "before", "after", "op", "source", "ts_ms"
_TRANSACTION, _ID, _ORDER = "transaction", "id", "total_order"


class Debezium(DebeziumMessages):
    """Messages that are change events of Debezium.

    Args:
        format: how they are written: :class:`Json` or :class:`Avro`.
        op: the name of the column that says what happened.
        changed_at: the name of the column with the time of the change.
        transaction: the name of the column with the id of the transaction, if there is to be one. The
            connector writes it with ``provide.transaction.metadata=true``.
        transaction_order: the name of the column with the number of the change in its transaction
            (``transaction.total_order``), if there is to be one.
        with_schemas: whether messages have a ``schema`` beside their ``payload``, as Kafka Connect's
            converter of JSON writes them, unless ``schemas.enable=false``.

    A message is read as the row that it is about: as it is after the change, or as it was before it was
    deleted. Further columns are:

    - ``op``: ``"insert"``, ``"update"``, ``"delete"``, or ``"read"`` for a row of the first snapshot
    - ``changed_at``: when the database made the change (``source.ts_ms``); null if it is not said
    - ``transaction``, if it is asked for: the transaction to which the change belongs, as a text; null for
      a row of a snapshot. See :class:`DebeziumTransactions`.
    - ``transaction_order``, if it is asked for: the number of the change in its transaction, from 1
    - ``before`` and ``after``: the row before and after the change, as structs; null if there is none

    Read them by declaring fields of these names. A row's own column of such a name is read if the column
    here gets another one. What the database does not say of a row before its change is null: in
    PostgreSQL, ``REPLICA IDENTITY FULL`` lets it say all. That a table was emptied is no change of a row,
    and cannot be read.

    A tombstone, which follows a deletion, is a message without a value, as any other of Kafka.

    Values are read as the connector writes them. Let it write decimals as texts
    (``decimal.handling.mode=string``), and times in JSON as texts (``time.precision.mode=isostring``).

    Example::

        hr.messages.Debezium(hr.messages.Json())

    Raises:
        PipelineError: if two columns would have one name.
    """

    name = "debezium"
    not_written = (
        "Debezium writes change events, and Headrace reads them",
        "write rows in the format that is within: Json(), Avro(…)",
    )

    def __init__(
        self,
        format: MessageFormat,
        *,
        op: str = "op",
        changed_at: str = "changed_at",
        transaction: str | None = None,
        transaction_order: str | None = None,
        with_schemas: bool = False,
    ) -> None:
        requested = [of for of in (transaction, transaction_order) if of is not None]
        names = [op, changed_at, _BEFORE, _AFTER, *requested]
        if len({*names}) < len(names):
            raise PipelineError(
                f"columns would be called {', '.join(names)}", remedy="give each another name"
            )
        super().__init__(format, with_schemas=with_schemas)
        self._op, self._changed_at = op, changed_at
        self._transaction, self._order = transaction, transaction_order

    # -- columns ------------------------------------------------------------------------------

    def columns(self) -> pa.Schema | None:
        event = self._known()
        if event is None:
            return None
        own = self._own(event.get(_AFTER))
        row = [
            pa.field(of, kind) for of, kind in fields_of(event.get(_AFTER)).items() if of not in own
        ]
        return pa.schema([*row, *(pa.field(of, kind) for of, kind in own.items())])

    def _own(self, row: pa.DataType | None) -> dict[str, pa.DataType]:
        """Return the columns beside those of a row."""
        images = {} if row is None else {_BEFORE: row, _AFTER: row}
        own = {self._op: pa.string(), self._changed_at: pa.timestamp("ms", "UTC")}
        if self._transaction is not None:
            own[self._transaction] = pa.string()
        if self._order is not None:
            own[self._order] = pa.int64()
        return {**own, **images}

    def check_can_hold(self, wanted: Wanted) -> None:
        for name in (_BEFORE, _AFTER):
            if name in wanted and family_of(wanted[name]) != "struct":
                raise PipelineError(
                    f"column {name!r} is of type {wanted[name]}, and is a row",
                    remedy="declare it as a class or a struct, which may be null",
                )
        beside = {of: kind for of, kind in wanted.items() if of.startswith(BESIDE)}
        plain = {of: kind for of, kind in wanted.items() if of not in beside}
        self.format.check_can_hold({**self._in_message(self._event(plain)), **beside})

    def _event(self, wanted: Wanted) -> Wanted:
        """Return the columns of an event from which columns are made."""
        known = {self._op, self._changed_at, self._transaction, self._order, _BEFORE, _AFTER}
        row = {of: kind for of, kind in wanted.items() if of not in known}
        event: Wanted = {_OP: pa.string()}
        for name in (_BEFORE, _AFTER):
            fields = fields_of(wanted.get(name)) | row
            if fields:
                event[name] = pa.struct(list(fields.items()))
        if self._changed_at in wanted:
            event[_SOURCE] = pa.struct([(_TIME, pa.int64())])
        requested = [(_ID, pa.string())] if self._transaction in wanted else []
        requested += [(_ORDER, pa.int64())] if self._order in wanted else []
        if requested:
            event[_TRANSACTION] = pa.struct(requested)
        return event

    # -- reading ------------------------------------------------------------------------------

    def _decoded(self, messages: pa.Array, wanted: Wanted) -> pa.Table:
        event = self._events(messages, self._event(wanted))
        return self._unwrapped(event, wanted, len(messages))

    def _unwrapped(self, event: dict[str, pa.Array], wanted: Wanted, length: int) -> pa.Table:
        codes = event.get(_OP, pa.nulls(length, pa.string()))
        op = _operations(codes)
        deleted = pc.equal(op, "delete")
        before, after = (event.get(of) for of in (_BEFORE, _AFTER))
        _check_there(deleted, before, "it deletes a row, and does not say which (before)")
        _check_there(pc.invert(deleted), after, "it has no row (after)")
        rows = [{} if of is None else parts_of(of) for of in (before, after)]
        columns: dict[str, pa.Array] = {}
        for name, kind in wanted.items():
            if name == self._op:
                columns[name] = op
            elif name == self._changed_at:
                columns[name] = _time(event.get(_SOURCE), length)
            elif name == self._transaction:
                ids = _of_block(event.get(_TRANSACTION), _ID, pa.string(), length)
                columns[name] = transaction_ids(ids)
            elif name == self._order:
                columns[name] = _of_block(event.get(_TRANSACTION), _ORDER, pa.int64(), length)
            elif name in (_BEFORE, _AFTER):
                columns[name] = event.get(name, pa.nulls(length, kind))
            elif any(name in row for row in rows):
                columns[name] = _chosen(deleted, *(row.get(name) for row in rows))
        return pa.table(columns)


def _operations(codes: pa.Array) -> pa.Array:
    found: list[str] = []
    for row, code in enumerate(codes.to_pylist()):
        known = _OPERATIONS.get(code)
        if known is None:
            why = _OTHERS.get(
                code, "it is no change event of Debezium: its op is none of c, u, d, r"
            )
            raise Unreadable(row, why)
        found.append(known)
    return pa.array(found, pa.string())


def _check_there(mask: pa.Array, image: pa.Array | None, why: str) -> None:
    """Check that there is a row where there must be one.

    Raises:
        Unreadable: for the first event without.
    """
    if image is None:
        return  # (nobody asks for it)
    missing = pc.and_(mask, image.is_null())
    if pc.any(missing).as_py():
        raise Unreadable(int(np.flatnonzero(missing.to_numpy(zero_copy_only=False))[0]), why)


def _chosen(deleted: pa.Array, before: pa.Array | None, after: pa.Array | None) -> pa.Array:
    """Return the values before the change where rows were deleted, and those after it elsewhere."""
    (kind,) = {of.type for of in (before, after) if of is not None}
    there = [pa.nulls(len(deleted), kind) if of is None else of for of in (before, after)]
    at, gone = np.arange(len(deleted)), deleted.to_numpy(zero_copy_only=False)
    return pa.concat_arrays(there).take(pa.array(np.where(gone, at, len(deleted) + at)))


def _time(source: pa.Array | None, length: int) -> pa.Array:
    kind = pa.timestamp("ms", "UTC")
    if source is None or _TIME not in parts_of(source):
        return pa.nulls(length, kind)
    return parts_of(source)[_TIME].cast(pa.int64()).cast(kind)


def _of_block(block: pa.Array | None, part: str, kind: pa.DataType, length: int) -> pa.Array:
    """Return a part of what events say of their transaction."""
    found = {} if block is None else parts_of(block)
    return found[part].cast(kind) if part in found else pa.nulls(length, kind)
