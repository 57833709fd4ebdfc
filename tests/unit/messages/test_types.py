"""Every type of the project's table comes back from every format, or is refused by its column's name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import PipelineError
from headrace.messages import Avro, MessageFormat, Protobuf, Unreadable
from headrace.schema import value_type_of
from headrace.schema.table import TABLE, Row
from headrace.sources.formats.records import FileRecords
from tests.support.values import Typed, records, same
from tests.unit.messages.protobuf_values import F, class_of, new_file

TIME = pa.field("kafka.timestamp", pa.timestamp("us", "UTC"))


def rows_of(kind: Any, *drawn: Any) -> pa.Table:
    values = value_type_of(kind)
    return pa.table(values.outward(values.to_columns(list(drawn))), schema=values.outside_schema)


def through(writer: MessageFormat, reader: MessageFormat, kind: Any, *drawn: Any) -> list[Any]:
    """Return values after they were messages.

    Raises:
        PipelineError: if they cannot be.
    """
    table = rows_of(kind, *drawn)
    writer.check_can_hold({field.name: field.type for field in table.schema})
    writer.open("t", "value", table.schema)
    messages = writer.encode(table)
    reader.open("t", "value", None)
    read: Any = FileRecords(
        reader,  # type: ignore[arg-type]  # what it needs of a format of files, messages have
        kind,
        TIME.name,
        infer=lambda _: pa.schema([TIME]),
        place="",
    )
    wanted = {name: of for name, of in read.wanted.items() if name != TIME.name}
    found = reader.decode(messages, wanted)
    found.validate(full=True)
    finished = read.finish(found.append_column(TIME, pa.array([0] * len(drawn), TIME.type)), str)
    values = value_type_of(kind)
    return values.to_python([finished.column(of).combine_chunks() for of in values.schema.names])


def avro_of(kind: Any) -> MessageFormat:
    """Return a reader of what a stream of a type writes without a schema of its own."""
    writer = Avro()
    schema = value_type_of(kind).outside_schema
    writer.open("t", "value", schema)
    assert writer._ours is not None
    return Avro(writer._ours[0])


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_avro_holds_the_table_of_types(row: Row) -> None:
    make: Any = value_type_of({"it": row.kind}).python_type
    value = make(row.example)
    if row.kind is timedelta:
        with pytest.raises(
            PipelineError, match=r"column 'it' is of type duration\[us\], which Avro"
        ):
            through(Avro(), Avro(), {"it": row.kind}, value)
        with pytest.raises(PipelineError, match="column 'it'"):
            Avro().check_can_hold({"it": pa.duration("us")})
        return
    kind = {"it": row.kind}
    assert [of.it for of in through(Avro(), avro_of(kind), kind, value)] == [row.example]


@settings(max_examples=60)
@given(st.data())
def test_records_come_back_from_avro_or_a_column_is_refused(data: st.DataObject) -> None:
    typed: Typed = data.draw(records())
    drawn: list[Any] = data.draw(st.lists(typed.values, min_size=1, max_size=3))
    try:
        reader = avro_of(typed.kind)
    except PipelineError as error:
        assert "column '" in error.what
        return
    assert same(through(Avro(), reader, typed.kind, *drawn), drawn)


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint64(),
        pa.time64("ns"),
        pa.duration("us"),
        pa.map_(pa.int64(), pa.string()),
        pa.list_(pa.duration("us")),
        pa.struct([("a", pa.month_day_nano_interval())]),
    ],
    ids=str,
)
def test_avro_refuses_a_type_that_it_cannot_hold_by_the_column(kind: pa.DataType) -> None:
    schema = pa.schema([("n", pa.int64()), ("note", kind)])
    with pytest.raises(PipelineError, match=r"column 'note.*which Avro cannot hold"):
        Avro().open("t", "value", schema)
    with pytest.raises(PipelineError, match=r"column 'note.*which Avro cannot hold"):
        Avro().check_can_hold({of.name: of.type for of in schema})


def test_avro_refuses_a_name_that_it_does_not_allow() -> None:
    with pytest.raises(PipelineError, match=r"column 'n\.a-b' has a name"):
        Avro().open("t", "value", pa.schema([("n", pa.struct([("a-b", pa.int64())]))]))


# -- Protobuf ---------------------------------------------------------------------------------

#: The table's types that Protobuf has no type for.
NOT_IN_PROTOBUF = ("date", "time", "Decimal")


def protobuf_of(row: Row) -> MessageFormat:
    """Return a format whose message has the field that is nearest to a type of the table."""
    file = new_file()
    message = file.message_type.add(name="Row")
    made = message.field.add(name="it", number=1, label=1, type=F.TYPE_STRING)
    plain = {
        "int": F.TYPE_INT64,
        "float": F.TYPE_DOUBLE,
        "bool": F.TYPE_BOOL,
        "bytes": F.TYPE_BYTES,
    }
    if row.name in plain:
        made.type = plain[row.name]
    elif row.name in ("datetime", "timedelta"):
        made.type = F.TYPE_MESSAGE
        made.type_name = {
            "datetime": ".google.protobuf.Timestamp",
            "timedelta": ".google.protobuf.Duration",
        }[row.name]
    elif row.name == "int | None":
        made.type, made.proto3_optional, made.oneof_index = F.TYPE_INT64, True, 0
        message.oneof_decl.add(name="_it")
    elif row.name == "list[int]":
        made.type, made.label = F.TYPE_INT64, 3
    elif row.name.startswith("dict"):
        made.type, made.label, made.type_name = F.TYPE_MESSAGE, 3, "ItEntry"
        entry = message.nested_type.add(name="ItEntry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=1, type=F.TYPE_STRING)
        entry.field.add(name="value", number=2, label=1, type=F.TYPE_INT64)
    elif row.name in ("tuple[int, str]", "Struct, dataclass"):
        made.type, made.type_name = F.TYPE_MESSAGE, "In"
        inner = message.nested_type.add(name="In")
        names = ("_1", "_2") if row.name.startswith("tuple") else ("fromLeft", "note")
        inner.field.add(name=names[0], number=1, label=1, type=F.TYPE_INT64)
        second = inner.field.add(name=names[1], number=2, label=1, type=F.TYPE_STRING)
        second.proto3_optional, second.oneof_index = True, 0
        inner.oneof_decl.add(name=f"_{names[1]}")
    return Protobuf(class_of(file, "Row"))


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_protobuf_holds_the_table_of_types_or_refuses_the_column(row: Row) -> None:
    kind, format = {"it": row.kind}, protobuf_of(row)
    value = value_type_of(kind).python_type(row.example)
    if row.name in NOT_IN_PROTOBUF:
        with pytest.raises(PipelineError, match="column 'it' is of type"):
            through(format, format, kind, value)
    elif row.name.startswith("dict"):
        with pytest.raises(Unreadable, match="it is null, and may not be"):
            through(format, format, kind, value)
        whole = value_type_of(kind).python_type({"x": 1})
        assert [of.it for of in through(format, format, kind, whole)] == [{"x": 1}]
    else:
        assert [of.it for of in through(format, format, kind, value)] == [row.example]
