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
from headrace.messages import Avro, Debezium, Json, MessageFormat, Unreadable
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
