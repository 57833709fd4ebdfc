"""Change events of Debezium become rows, and what happened to each."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, datetime
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from headrace.errors import PipelineError
from headrace.messages import (
    Avro,
    Debezium,
    DebeziumTransactions,
    Json,
    MessageFormat,
    Unreadable,
)
from headrace.messages.base import Wanted
from headrace.sources.formats.base import OpenedFile
from headrace.sources.formats.jsonl import JsonLines

ANN = {"id": 1, "name": "ann"}
BEN = {"id": 1, "name": "ben"}
ROW = {"id": pa.int64(), "name": pa.string()}
AT = datetime(2024, 5, 1, 12, tzinfo=UTC)
MS = int(AT.timestamp() * 1000)


class JsonReader(Json):
    """JSON as sources read it."""

    def decode(self, messages: pa.Array, wanted: Wanted) -> pa.Table:
        data = b"\n".join([*messages.to_pylist(), b""])
        return JsonLines().parse(OpenedFile("", io.BytesIO(), ""), data, wanted)


_VALUE = {
    "type": "record",
    "name": "Value",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
}
_SOURCE = {"type": "record", "name": "Source", "fields": [{"name": "ts_ms", "type": "long"}]}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", _VALUE], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": _SOURCE},
        {"name": "op", "type": "string"},
    ],
}


def event(op: Any, before: Any = None, after: Any = None) -> dict[str, Any]:
    return {"before": before, "after": after, "op": op, "source": {"ts_ms": MS}}


CHANGES = [
    event("r", None, ANN),
    event("c", None, ANN),
    event("u", ANN, BEN),
    event("u", None, BEN),
    event("d", BEN, None),
]


def in_json(*events: Any) -> pa.Array:
    return pa.array([json.dumps(of).encode() for of in events])


def in_avro(*events: Any) -> pa.Array:
    found = []
    for of in events:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, fastavro.parse_schema(ENVELOPE), of)
        found.append(buffer.getvalue())
    return pa.array(found)


BOTH = pytest.mark.parametrize(
    ("format", "written"),
    [(JsonReader(), in_json), (Avro(ENVELOPE), in_avro)],
    ids=["json", "avro"],
)


@BOTH
def test_a_change_is_the_row_that_it_is_about_and_what_happened(
    format: MessageFormat, written: Any
) -> None:
    reader = Debezium(format)
    wanted = {**ROW, "op": pa.string(), "changed_at": pa.timestamp("us", "UTC")}
    reader.check_can_hold(wanted)
    reader.open("t", "value", None)
    table = reader.decode(written(*CHANGES), wanted)
    assert table.column_names == [*wanted]
    assert table.drop_columns("changed_at").to_pylist() == [
        {**ANN, "op": "read"},
        {**ANN, "op": "insert"},
        {**BEN, "op": "update"},
        {**BEN, "op": "update"},
        {**BEN, "op": "delete"},
    ]
    assert table.column("changed_at").to_pylist() == [AT] * len(CHANGES)


@BOTH
def test_both_images_of_a_row_can_be_read(format: MessageFormat, written: Any) -> None:
    kind = pa.struct(list(ROW.items()))
    wanted = {"id": pa.int64(), "before": kind, "after": kind}
    table = Debezium(format).decode(written(*CHANGES), wanted)
    assert table.column("before").to_pylist() == [of["before"] for of in CHANGES]
    assert table.column("after").to_pylist() == [of["after"] for of in CHANGES]


def test_messages_may_have_their_schemas_beside_them() -> None:
    messages = in_json(*({"schema": {"type": "struct"}, "payload": of} for of in CHANGES))
    table = Debezium(JsonReader(), with_schemas=True).decode(messages, {"op": pa.string(), **ROW})
    assert table.column("op").to_pylist() == ["read", "insert", "update", "update", "delete"]
    assert table.column("name").to_pylist() == ["ann", "ann", "ben", "ben", "ben"]


@BOTH
@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (event("t"), "the table was emptied"),
        (event("m"), "message of the database's log"),
        (event("x", None, ANN), "no change event of Debezium"),
        (event("d"), "it deletes a row, and does not say which"),
        (event("u", ANN), "it has no row"),
    ],
)
def test_what_is_no_change_of_a_row_is_named(
    format: MessageFormat, written: Any, bad: Any, why: str
) -> None:
    with pytest.raises(Unreadable, match=why) as caught:
        Debezium(format).decode(written(CHANGES[0], bad, event("m")), ROW)
    assert caught.value.row == 1


def test_a_message_that_is_no_event_is_named() -> None:
    with pytest.raises(Unreadable, match="no change event of Debezium") as caught:
        Debezium(JsonReader()).decode(in_json(CHANGES[0], ANN), ROW)
    assert caught.value.row == 1


def test_the_columns_are_known_from_the_schema() -> None:
    known = Debezium(Avro(ENVELOPE)).columns()
    assert known is not None
    assert known.names == ["id", "name", "op", "changed_at", "before", "after"]
    table = Debezium(Avro(ENVELOPE)).decode(in_avro(*CHANGES), {of.name: of.type for of in known})
    assert table.schema.types == known.types
    assert Debezium(Json()).columns() is None


def test_a_column_of_the_row_may_have_the_name_of_ours() -> None:
    messages = in_json(event("c", None, {"op": "+", "id": 1}))
    wanted = {"op": pa.string(), "what": pa.string()}
    table = Debezium(JsonReader(), op="what").decode(messages, wanted)
    assert table.to_pylist() == [{"op": "+", "what": "insert"}]
    with pytest.raises(PipelineError, match="columns would be called"):
        Debezium(Json(), op="before")


def test_an_image_is_a_row() -> None:
    with pytest.raises(PipelineError, match="column 'before' is of type string, and is a row"):
        Debezium(Json()).check_can_hold({"before": pa.string()})


def test_change_events_are_not_written() -> None:
    with pytest.raises(PipelineError, match="Headrace reads them"):
        Debezium(Json()).open("t", "value", pa.schema(ROW))


def test_the_format_within_can_be_exchanged() -> None:
    reader = pickle.loads(pickle.dumps(Debezium(Json(), op="what"))).reading(JsonReader())
    assert reader.is_json and reader.is_text
    table = reader.decode(in_json(CHANGES[0]), {"what": pa.string()})
    assert table.to_pylist() == [{"what": "read"}]


# -- transactions ---------------------------------------------------------------------------------

IN_TRANSACTION: dict[str, Any] = {
    **ENVELOPE,
    "fields": [
        *ENVELOPE["fields"],
        {
            "name": "transaction",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "block",
                    "fields": [
                        {"name": "id", "type": "string"},
                        {"name": "total_order", "type": "long"},
                        {"name": "data_collection_order", "type": "long"},
                    ],
                },
            ],
            "default": None,
        },
    ],
}
BOUNDARY = {
    "type": "record",
    "name": "TransactionMetadataValue",
    "fields": [
        {"name": "status", "type": "string"},
        {"name": "id", "type": "string"},
        {"name": "event_count", "type": ["null", "long"], "default": None},
        {
            "name": "data_collections",
            "type": [
                "null",
                {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "event.collection",
                        "fields": [
                            {"name": "data_collection", "type": "string"},
                            {"name": "event_count", "type": "long"},
                        ],
                    },
                },
            ],
            "default": None,
        },
        {"name": "ts_ms", "type": "long"},
    ],
}


def in_avro_of(schema: Any, *events: Any) -> pa.Array:
    found = []
    for of in events:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), of)
        found.append(buffer.getvalue())
    return pa.array(found)


def of_transaction(id_: str | None) -> dict[str, Any]:
    block = None if id_ is None else {"id": id_, "total_order": 7, "data_collection_order": 1}
    return {**event("c", None, ANN), "transaction": block}


def boundary(status: Any, id_: Any, tables: dict[str, int] | None = None) -> dict[str, Any]:
    counted = None
    if tables is not None:
        counted = [{"data_collection": of, "event_count": n} for of, n in tables.items()]
    total = None if tables is None else sum(tables.values())
    found = {"status": status, "id": id_, "event_count": total, "data_collections": counted}
    return {**found, "ts_ms": MS}


IDS = [
    ("571:53195832", "571"),  # PostgreSQL: the transaction, and the place in its log
    ("file=mysql-bin.000003,pos=754", "file=mysql-bin.000003,pos=754"),
    ("0e4d5dcd-a33b-11ed-9a3d-0242ac110004:10", "0e4d5dcd-a33b-11ed-9a3d-0242ac110004:10"),
    ("00000025:00000d08:0025", "00000025:00000d08:0025"),
    ("6.9.809", "6.9.809"),
]


@pytest.mark.parametrize("in_json_", [True, False], ids=["json", "avro"])
def test_a_change_says_which_transaction_it_belongs_to(in_json_: bool) -> None:
    events = [of_transaction(given) for given, _ in [*IDS, (None, None)]]
    format = JsonReader() if in_json_ else Avro(IN_TRANSACTION)
    reader = Debezium(format, transaction="tx", transaction_order="number")
    wanted = {"id": pa.int64(), "tx": pa.string(), "number": pa.int64()}
    reader.check_can_hold(wanted)
    found = reader.decode(
        in_json(*events) if in_json_ else in_avro_of(IN_TRANSACTION, *events), wanted
    )
    assert found.column("tx").to_pylist() == [*(known for _, known in IDS), None]
    assert found.column("number").to_pylist() == [*([7] * len(IDS)), None]
    if not in_json_:
        known = reader.columns()
        assert known is not None
        assert {"tx", "number"} <= {*known.names}


def test_a_change_may_have_no_transaction_at_all() -> None:
    reader = Debezium(JsonReader(), transaction="tx", transaction_order="number")
    wanted = {"tx": pa.string(), "number": pa.int64()}
    found = reader.decode(in_json(CHANGES[0]), wanted)
    assert found.to_pylist() == [{"tx": None, "number": None}]


def test_without_being_asked_for_a_transaction_is_a_column_of_the_row() -> None:
    row = {"id": 1, "transaction": "mine"}
    messages = in_json({**event("c", None, row), "transaction": {"id": "571:1"}})
    table = Debezium(JsonReader()).decode(messages, {"transaction": pa.string()})
    assert table.to_pylist() == [{"transaction": "mine"}]


@pytest.mark.parametrize("in_json_", [True, False], ids=["json", "avro"])
def test_an_end_says_how_many_changes_there_are_in_each_table(in_json_: bool) -> None:
    events = [
        boundary("BEGIN", "571:1"),
        boundary("END", "571:3", {"public.a": 2, "public.b": 1}),
        boundary("END", "572:4", {}),
    ]
    format = JsonReader() if in_json_ else Avro(BOUNDARY)
    reader = DebeziumTransactions(format)
    known = reader.columns()
    assert known is not None
    wanted = {field.name: field.type for field in known}
    reader.check_can_hold(wanted)
    reader.open("t", "value", None)
    found = reader.decode(in_json(*events) if in_json_ else in_avro_of(BOUNDARY, *events), wanted)
    assert found.schema.types == known.types
    assert found.to_pylist() == [
        {"status": "BEGIN", "id": "571", "counts": []},
        {"status": "END", "id": "571", "counts": [("public.a", 2), ("public.b", 1)]},
        {"status": "END", "id": "572", "counts": []},
    ]


def test_boundaries_of_transactions_may_have_their_schemas_beside_them() -> None:
    reader = DebeziumTransactions(Json(), with_schemas=True)
    reader = pickle.loads(pickle.dumps(reader)).reading(JsonReader())
    messages = in_json({"schema": {}, "payload": boundary("END", "7", {"a": 1})})
    assert reader.decode(messages, {"id": pa.string()}).to_pylist() == [{"id": "7"}]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (boundary("COMMIT", "1"), "neither BEGIN nor END"),
        (boundary(None, "1"), "neither BEGIN nor END"),
        (boundary("END", None, {}), "it names no transaction"),
        ({"name": "ann"}, "neither BEGIN nor END"),
    ],
)
def test_what_is_no_boundary_of_a_transaction_is_named(bad: Any, why: str) -> None:
    good = boundary("END", "1", {})
    with pytest.raises(Unreadable, match=why) as caught:
        DebeziumTransactions(JsonReader()).decode(in_json(good, bad, bad), {"id": pa.string()})
    assert caught.value.row == 1


def test_columns_of_boundaries_have_types_of_their_own() -> None:
    with pytest.raises(PipelineError, match="column 'id' is declared as int64, and is string"):
        DebeziumTransactions(Json()).check_can_hold({"id": pa.int64()})
    with pytest.raises(PipelineError, match="Headrace reads it"):
        DebeziumTransactions(Json()).open("t", "value", pa.schema(ROW))
