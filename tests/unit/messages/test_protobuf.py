"""Protobuf: what is decoded is what Google's library says, and what is encoded it can read."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, duration_pb2, struct_pb2, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import PipelineError
from headrace.messages import Protobuf, Unreadable
from tests.unit.messages.protobuf_values import F, class_of, held, messages, new_file, shown


def read(format: Protobuf, data: list[bytes], *names: str) -> pa.Table:
    wanted = {of.name: of.type for of in format.columns() if not names or of.name in names}
    table = format.decode(pa.array(data, pa.binary()), wanted)
    table.validate(full=True)
    assert table.schema == pa.schema([of for of in format.columns() if of.name in wanted])
    return table


@settings(max_examples=200)
@given(messages())
def test_messages_are_read_as_google_reads_them(drawn: tuple[Any, list[Any]]) -> None:
    cls, values = drawn
    table = read(Protobuf(cls), [of.SerializePartialToString() for of in values])
    found = table.to_pylist(maps_as_pydicts="strict")
    assert [shown(of) for of in found] == [shown(held(of)) for of in values]


@settings(max_examples=200)
@given(messages())
def test_what_is_written_is_what_google_writes(drawn: tuple[Any, list[Any]]) -> None:
    cls, values = drawn
    format = Protobuf(cls)
    there = [of.SerializeToString(deterministic=True) for of in values]
    table = read(format, there)
    format.open("t", "value", table.schema)
    assert format.encode(table).to_pylist() == there
    for start in range(len(values)):
        assert format.encode(table.slice(start, 2)).to_pylist() == there[start : start + 2]


@settings(max_examples=100)
@given(messages(), st.data())
def test_damaged_messages_are_read_as_google_reads_them(
    drawn: tuple[Any, list[Any]], data: st.DataObject
) -> None:
    cls, values = drawn
    damaged, bad, there = [], None, []
    for row, value in enumerate(values):
        whole = value.SerializeToString()
        at = data.draw(st.integers(0, len(whole)))
        message = whole[:at] + data.draw(st.binary(max_size=3)) + whole[at:]
        damaged.append(message)
        try:
            there.append(shown(held(cls.FromString(message))))
        except Exception:  # (its errors have several classes; a time may be none)
            bad = row if bad is None else bad
    try:
        table = read(Protobuf(cls), damaged)
    except Unreadable as error:
        assert bad is None or error.row <= bad
        return
    assert bad is None
    assert [shown(of) for of in table.to_pylist(maps_as_pydicts="strict")] == there


# -- single cases -----------------------------------------------------------------------------


def order(**options: Any) -> Any:
    file = new_file()
    message = file.message_type.add(name="Order")
    message.oneof_decl.add(name="payment")
    for number, (name, kind) in enumerate(
        [
            ("id", F.TYPE_INT64),
            ("card", F.TYPE_STRING),
            ("cash", F.TYPE_BOOL),
            ("kind", F.TYPE_ENUM),
        ]
    ):
        made = message.field.add(name=name, number=number + 1, label=1, type=kind)
        if name in ("card", "cash"):
            made.oneof_index = 0
        if kind == F.TYPE_ENUM:
            made.type_name = f".{file.package}.Kind"
    at = message.field.add(name="inner", number=9, label=1, type=F.TYPE_MESSAGE)
    at.type_name = f".{file.package}.Order"
    return class_of(file, "Order")


def test_the_last_member_of_a_oneof_counts() -> None:
    table = read(Protobuf(order()), [b"\x12\x01a\x18\x01"])
    assert table.select(["card", "cash"]).to_pylist() == [{"card": None, "cash": True}]


def test_two_members_of_a_oneof_are_not_written() -> None:
    rows = pa.table({"card": ["a", "b"], "cash": [None, True]})
    with pytest.raises(
        Unreadable, match=r"only one of card and cash can be there \(payment\)"
    ) as e:
        Protobuf(order()).encode(rows)
    assert e.value.row == 1


@pytest.mark.parametrize(("number", "text"), [(1, "SOME"), (7, "7"), (-5, "BELOW")])
def test_a_number_that_an_enum_does_not_name_is_itself(number: int, text: str) -> None:
    cls = order()
    data = cls(kind=number).SerializeToString()
    table = read(Protobuf(cls), [data], "kind")
    assert table.to_pydict() == {"kind": [text]}
    assert Protobuf(cls).encode(table).to_pylist() == [data]


@pytest.mark.parametrize("text", ["some", "1", "07", "2147483648", ""])
def test_a_text_that_is_no_name_of_an_enum_is_not_written(text: str) -> None:
    with pytest.raises(Unreadable, match="is not one of NONE, SOME, BELOW") as caught:
        Protobuf(order()).encode(pa.table({"kind": ["NONE", text]}))
    assert caught.value.row == 1


def test_a_null_where_a_field_cannot_be_absent_is_not_written() -> None:
    with pytest.raises(Unreadable, match="null") as caught:
        Protobuf(order()).encode(pa.table({"id": [1, None]}))
    assert caught.value.row == 1


def test_zeros_keep_their_sign() -> None:
    file = new_file()
    file.message_type.add(name="D").field.add(name="d", number=1, label=1, type=F.TYPE_DOUBLE)
    cls = class_of(file, "D")
    data = [cls(d=-0.0).SerializeToString(), cls(d=0.0).SerializeToString()]
    table = read(Protobuf(cls), data)
    assert str(table.column("d").to_pylist()) == "[-0.0, 0.0]"
    assert Protobuf(cls).encode(table).to_pylist() == data


@pytest.mark.parametrize("kind", [F.TYPE_DOUBLE, F.TYPE_FLOAT])
def test_zeros_in_maps_and_lists_keep_their_sign(kind: Any) -> None:
    file = new_file()
    message = file.message_type.add(name="D")
    message.field.add(name="m", number=1, label=3, type=F.TYPE_MESSAGE, type_name="MEntry")
    entry = message.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=F.TYPE_INT32)
    entry.field.add(name="value", number=2, label=1, type=kind)
    message.field.add(name="l", number=2, label=3, type=kind)
    value = class_of(file, "D")(m={0: -0.0, 1: 0.0}, l=[-0.0, 0.0])
    data = [value.SerializeToString(deterministic=True)]
    table = read(Protobuf(type(value)), data)
    assert str(sorted(table.to_pylist()[0]["m"])) == "[(0, -0.0), (1, 0.0)]"
    assert Protobuf(type(value)).encode(table).to_pylist() == data


def test_the_first_message_that_cannot_be_read_is_named() -> None:
    for bad in (b"\xff", b"\x12\x01\xff", b"\x08"):
        with pytest.raises(Unreadable, match="not of its type") as caught:
            read(Protobuf(order()), [b"", bad, b"\xff"])
        assert caught.value.row == 1


def span(**of: Any) -> tuple[Any, bytes]:
    file = new_file()
    message = file.message_type.add(name="Span")
    for number, name in enumerate(["Timestamp", "Duration"], 1):
        made = message.field.add(name=name, number=number, label=1, type=F.TYPE_MESSAGE)
        made.type_name = f".google.protobuf.{name}"
    cls = class_of(file, "Span")
    inner = {name: {"seconds": value[0], "nanos": value[1]} for name, value in of.items()}
    return cls, cls(**inner).SerializeToString()


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("Timestamp", (253_402_300_800, 0), "years 1 to 9999"),
        ("Timestamp", (-62_135_596_801, 0), "years 1 to 9999"),
        ("Timestamp", (0, -1), "years 1 to 9999"),
        ("Timestamp", (2**62, 0), "years 1 to 9999"),
        ("Duration", (0, 1), "finer than a microsecond"),
        ("Duration", (1, -1000), "is not a duration"),
        ("Duration", (315_576_000_001, 0), "is not a duration"),
    ],
)
def test_a_time_that_is_none_is_refused(name: str, value: tuple[int, int], why: str) -> None:
    cls, message = span(**{name: value})
    with pytest.raises(Unreadable, match=f"{name}: .*{why}") as caught:
        read(Protobuf(cls), [b"", message])
    assert caught.value.row == 1


def test_what_is_finer_than_a_microsecond_is_cut_of_a_point_in_time() -> None:
    cls, message = span(Timestamp=(-1, 1_999))
    (at,) = read(Protobuf(cls), [message]).column("Timestamp").cast(pa.int64()).to_pylist()
    assert at == -1_000_000 + 1


def test_a_message_within_itself_has_no_column() -> None:
    format = Protobuf(order())
    assert format.columns().names == ["id", "card", "cash", "kind"]
    with pytest.raises(PipelineError, match=r"column 'inner' .*Order is a message within itself"):
        format.check_can_hold({"inner": pa.string()})
    with pytest.raises(PipelineError, match="column 'fields'"):
        Protobuf(struct_pb2.Struct).check_can_hold({"fields": pa.string()})


def test_columns_must_be_fields_of_fitting_types() -> None:
    format = Protobuf(order())
    with pytest.raises(PipelineError, match="no field 'other'"):
        format.open("t", "value", pa.schema([("other", pa.int64())]))
    for kind in (pa.string(), pa.duration("us"), pa.list_(pa.int64())):
        with pytest.raises(PipelineError, match=r"column 'id' is of type .*, and of type int64"):
            format.open("t", "value", pa.schema([("id", kind)]))


def test_a_message_may_be_given_by_its_name() -> None:
    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    format = Protobuf("google.protobuf.Timestamp", descriptors=files.SerializeToString())
    data = timestamp_pb2.Timestamp(seconds=5).SerializeToString()
    assert read(format, [data]).to_pylist() == [{"seconds": 5, "nanos": 0}]
    with pytest.raises(PipelineError, match="is not in descriptors="):
        Protobuf("google.protobuf.Other", descriptors=files.SerializeToString())
    with pytest.raises(PipelineError, match="nothing says what the message"):
        Protobuf("google.protobuf.Timestamp")


@pytest.mark.parametrize("message", [7, str, timestamp_pb2])
def test_what_is_no_message_is_refused(message: Any) -> None:
    with pytest.raises(PipelineError, match="no message of Protobuf"):
        Protobuf(message)


def test_a_format_can_be_pickled_after_it_was_used() -> None:
    format = Protobuf(duration_pb2.Duration)
    data = [duration_pb2.Duration(seconds=5).SerializeToString()]
    first = read(format, data)
    assert read(pickle.loads(pickle.dumps(format)), data) == first
