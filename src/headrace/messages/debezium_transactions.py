"""Debezium's messages about transactions: that one begins or has ended, and which tables it changed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import PipelineError
from headrace.messages.base import MessageFormat, Unreadable, Wanted
from headrace.messages.debezium_messages import DebeziumMessages
from headrace.messages.lines import BESIDE

_STATUS, _ID, _COUNTS = "status", "id", "counts"
_TABLES, _NAME, _COUNT = "data_collections", "data_collection", "event_count"
_EVENT: Wanted = {
    _STATUS: pa.string(),
    _ID: pa.string(),
    _TABLES: pa.list_(pa.struct([(_NAME, pa.string()), (_COUNT, pa.int64())])),
}
_COLUMNS = pa.schema(
    [
        pa.field(_STATUS, pa.string(), nullable=False),
        pa.field(_ID, pa.string(), nullable=False),
        pa.field(_COUNTS, pa.map_(pa.string(), pa.int64()), nullable=False),
    ]
)
#: An id of PostgreSQL: that of the transaction, and the place of the event in the log.
_WITH_PLACE = r"^([0-9]+):[0-9]+$"


def transaction_ids(ids: pa.Array) -> pa.Array:
    """Return ids of transactions, as Debezium writes them, without what differs within one of them.

    For PostgreSQL it writes ``571:53195832``: the transaction, and where the event is in the log.
    """
    return pc.replace_substring_regex(ids, _WITH_PLACE, r"\1")


class DebeziumTransactions(DebeziumMessages):
    """Messages of Debezium's topic of transactions (``provide.transaction.metadata=true``).

    Args:
        format: how they are written: :class:`Json` or :class:`Avro`.
        with_schemas: whether messages have a ``schema`` beside their ``payload``; see
            :class:`Debezium`.

    The columns are:

    - ``status``: ``"BEGIN"`` or ``"END"``
    - ``id``: the transaction, as :class:`Debezium` has it in the column ``transaction``. For PostgreSQL
      it is the number of the transaction, without the place in the log, which differs from event to
      event.
    - ``counts``: how many events the transaction has in each table, at its end; empty at its begin

    :class:`headrace.zsets.Ends` reads them, with ``status="status"``.

    Example::

        hr.messages.DebeziumTransactions(hr.messages.Json())
    """

    name = "debezium-transactions"
    not_written = ("Debezium writes of transactions, and Headrace reads it", "")

    def __init__(self, format: MessageFormat, *, with_schemas: bool = False) -> None:
        super().__init__(format, with_schemas=with_schemas)

    def columns(self) -> pa.Schema | None:
        return _COLUMNS

    def check_can_hold(self, wanted: Wanted) -> None:
        for name, kind in wanted.items():
            known = _COLUMNS.field(name).type if name in _COLUMNS.names else None
            if known is not None and known != kind:
                raise PipelineError(
                    f"column {name!r} is declared as {kind}, and is {known}",
                    remedy="leave the declaration out: the messages have columns of their own",
                )
        beside = {of: kind for of, kind in wanted.items() if of.startswith(BESIDE)}
        self.format.check_can_hold({**self._in_message(_EVENT), **beside})

    def _decoded(self, messages: pa.Array, wanted: Wanted) -> pa.Table:
        event = self._events(messages, _EVENT)
        length = len(messages)
        found = {of: event.get(of, pa.nulls(length, kind)) for of, kind in _EVENT.items()}
        known = pc.is_in(found[_STATUS], pa.array(["BEGIN", "END"]))
        _check_all(known, "it is no message of a transaction: its status is neither BEGIN nor END")
        _check_all(found[_ID].is_valid(), "it names no transaction (id)")
        columns = {
            _STATUS: found[_STATUS],
            _ID: transaction_ids(found[_ID]),
            _COUNTS: _counts(found[_TABLES]),
        }
        return pa.table({name: columns[name] for name in wanted if name in columns})


def _counts(column: pa.Array) -> pa.Array:
    """Return lists of pairs as maps. One that is not there is empty."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    inner = pc.list_flatten(column)
    names, numbers = pc.struct_field(inner, _NAME), pc.struct_field(inner, _COUNT)
    return pa.MapArray.from_arrays(pa.array(offsets), names, pc.fill_null(numbers, 0))


def _check_all(mask: pa.Array, why: str) -> None:
    """Check that something holds for all messages.

    Raises:
        Unreadable: for the first for which it does not.
    """
    wrong = np.flatnonzero(~pc.fill_null(mask, False).to_numpy(zero_copy_only=False))
    if len(wrong):
        raise Unreadable(int(wrong[0]), why)
