"""A value is the same behind each border of a pipeline: source, output, post, state, sink, inbox, test."""

from __future__ import annotations

import enum
import math
from datetime import UTC, date, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import BadInput, HeadraceError, PipelineError, UserCodeError
from headrace.eventtime.timestamps import to_micros
from headrace.schema import NotExact, value_type_of
from headrace.schema.columns import in_micros
from headrace.sources.inbox import Inbox, Producer
from headrace.storage import MemoryStore
from headrace.testing import drive
from tests.support.values import Circle, Colour, Square, Typed, kinds, records, same


def holder(kind: Any) -> Any:
    """Return the type of records that hold a value, with a key and a time."""
    return msgspec.defstruct("Holder", [("who", str), ("at", int), ("held", kind)])


def passing_on(kind: Any, *, state: bool = True) -> hr.Computation:
    """Return a computation that keeps each value, posts it to itself, and sends it on."""

    class PassesOn(hr.Computation):
        now = hr.Posted(kind)
        later = hr.Posted(kind)
        sent, posted, waited = hr.Output(kind), hr.Output(kind), hr.Output(kind)
        if state:
            last = hr.ValueState(kind)
            all = hr.ListState(kind)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            if record.stream == "now":
                ctx.produce("posted", record.value)
            elif record.stream == "later":
                ctx.produce("waited", record.value)
            else:
                value = record.value.held
                ctx.produce("sent", value)
                ctx.post(record.timestamp_us, value, stream="now")
                ctx.post(record.timestamp_us + 10**9, value, stream="later")
                if state:
                    self.last.value = value
                    self.all.append(value)

    return PassesOn()


def drawn(source: Any, kind: Any, **how: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("borders")
    stream = pipeline.inject("in", source)
    pipeline.compute("it", passing_on(kind, **how), keys={stream: "who"})
    return pipeline


@settings(max_examples=15)
@given(st.data())
def test_a_value_is_the_same_behind_each_border(data: st.DataObject) -> None:
    passes_all_borders(data)


@pytest.mark.soak
@settings(max_examples=3_000)
@given(st.data())
def test_many_values_are_the_same_behind_each_border(data: st.DataObject) -> None:
    passes_all_borders(data)


def passes_all_borders(data: st.DataObject) -> None:
    typed: Typed = data.draw(records() | kinds())
    values: list[Any] = data.draw(st.lists(typed.values, min_size=1, max_size=3))
    holds = holder(typed.kind)
    items = [holds("a", n, value) for n, value in enumerate(values)]
    state = can_be_state(typed.kind, values)
    source = hr.sources.Iterable(items, holds, event_time="at")
    with drive(drawn(source, typed.kind, state=state)) as harness:
        harness.push_many("in", items)
        harness.step()
        harness.crash()
        harness.end()
        harness.run()
        for name in ("sent", "posted", "waited"):
            assert same([record.value for record in harness.outputs(f"it.{name}")], values)
        if state:
            kept = harness.state("it", "a")
            expected = [values[-1], values]  # (a dict in state is sorted)
            assert same([kept["last"], kept["all"]], expected, ordered=False)


def can_be_state(kind: Any, values: list[Any]) -> bool:
    """Say whether values can be state: a dict in state has texts for its keys."""
    try:
        for value in values:
            msgspec.msgpack.encode(value, order="deterministic")
            msgspec.msgpack.Decoder(kind)
    except TypeError:
        return False
    return True


@settings(max_examples=15)
@given(st.data())
def test_a_value_is_the_same_through_an_inbox(data: st.DataObject) -> None:
    typed: Typed = data.draw(records())
    values: list[Any] = data.draw(st.lists(typed.values, min_size=1, max_size=3))
    holds = holder(typed.kind)
    items = [holds("a", n, value) for n, value in enumerate(values)]
    store = MemoryStore()
    declared: Any = data.draw(st.sampled_from([holds, None]))
    Producer(store, "one", type=declared, event_time="at" if declared else None).append(items)
    inbox = Inbox(store, holds, event_time="at")
    assert same([value.held for value in read_all(inbox)], values)


def read_all(inbox: Inbox) -> list[Any]:
    """Return all values that an inbox has, in order."""
    inbox.open(MemoryStore())
    offer = inbox.offer(inbox.start(), hr.sources.Limit(rows=1000, bytes=1 << 30))
    assert offer is not None
    found: list[Any] = []
    tasks = inbox.for_tasks()
    for split in inbox.splits(inbox.start(), offer.end):
        table = tasks.read(split).combine_chunks()
        columns = [table.column(name).combine_chunks() for name in inbox.values().schema.names]
        found += inbox.values().to_python(columns)
    return found


# -- what is refused, and where ---------------------------------------------------------------

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
#: (declared type, a value that it does not have, what is said)
WRONG: list[Any] = [
    (int, 2.9, "2.9 is of type float, not int"),
    (int, 2.0, "2.0 is of type float, not int"),
    (int, True, "True is of type bool, not int"),
    (int, "2", "is of type str, not int"),
    (int, 2**63, "9223372036854775808 cannot be kept as int64"),
    (float, True, "True is of type bool, not float"),
    (float, 2**53 + 1, "it would become 9007199254740992.0"),
    (float, Decimal("0.5"), "is of type Decimal, not float"),
    (date, NOON, "is of type datetime, not date"),
    (datetime, date(2024, 1, 1), "is of type date, not datetime"),
    (timedelta, 1.5, "1.5 is of type float, not timedelta"),
    (timedelta, 3, "3 is of type int, not timedelta"),
    (timedelta, timedelta.max, "cannot be kept"),
    (bytes, "text", "is of type str, not bytes"),
    (str, b"text", "is of type bytes, not str"),
    (str, "\ud800", "not text that UTF-8 can write"),
    (bool, 1, "1 is of type int, not bool"),
    (str, None, "it is None, and may not be"),
    (Decimal, Decimal("1e-19"), "cannot be kept as decimal"),
    (Decimal, Decimal("NaN"), "cannot be kept as decimal"),
    (Decimal, 0.5, "is of type float, not Decimal"),
    (Colour, "green", "'green' is not a valid Colour"),
    (UUID, "seven", "badly formed"),
    (Literal["a", "b"], "c", "'c' is not one of"),
    (list[int], [1, 2.5], r"held\[1\]"),
    (list[int], [1, None], r"held\[1\]"),
    (list[list[int]], [[], [1, "x"]], r"held\[1\]\[1\]"),
    (dict[str, int], {"x": 1, "y": 2.5}, r"held\['y'\]"),
    (tuple[int, str], (1, 2), r"held\._2"),
    (tuple[int, str], (1, "x", 3), "is not of type"),
    (Circle | Square, Square(2.5), "Expected `int`, got `float`"),  # type: ignore[arg-type]
    (float | str, math.nan, "got `null`"),
]


@pytest.mark.parametrize(("kind", "wrong", "said"), WRONG, ids=lambda v: str(v)[:20])
def test_what_would_change_is_refused_with_field_and_place(
    kind: Any, wrong: Any, said: str
) -> None:
    holds = holder(kind)
    good: Any = {"who": "a", "at": 1}
    items = [holds("a", 0, wrong)]
    source = hr.sources.Iterable([*items], holds, event_time="at")
    with pytest.raises(BadInput, match=said) as caught:
        source.splits(0, 1)
    assert "held" in str(caught.value) and "item 1:" in str(caught.value)
    for appended in (items, [{**good, "held": wrong}]):
        with pytest.raises(BadInput, match=said) as caught:
            Producer(MemoryStore(), "p", type=holds, event_time="at").append(appended)
        assert "held" in str(caught.value) and "row 1 of what" in str(caught.value)
    with drive(drawn(source, kind, state=False)) as harness, pytest.raises(BadInput, match=said):
        harness.push("in", {"who": "a", "at": 1, "held": wrong})


class Sends(hr.Computation):
    """Sends what its records say that it is to send."""

    out = hr.Output(msgspec.defstruct("Sent", [("n", int), ("all", list[float])]))
    later = hr.Posted(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.stream == "later":
            return
        if record.value.what == "good":
            ctx.produce("out", self.out_type(1, [0.5]))
        if record.value.what == "output":
            ctx.produce("out", self.out_type(2.9, []))
        if record.value.what == "nested":
            ctx.produce("out", self.out_type(2, [0.5, "x"]))
        if record.value.what == "post":
            ctx.post(record.timestamp_us + 5, 2**70)

    out_type: Any = out.type


class CommandRequest(msgspec.Struct):
    who: str
    at: int
    what: str


def sending(**how: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("sends")
    stream = pipeline.inject("in", hr.sources.Iterable([], CommandRequest, event_time="at"))
    pipeline.compute("it", Sends(), keys={stream: "who"}, **how)
    return pipeline


@pytest.mark.parametrize(
    ("what", "said"),
    [("output", "field 'n' wants int: 2.9"), ("nested", r"'all\[1\]'"), ("post", "cannot be kept")],
)
def test_a_handler_that_sends_what_would_change_is_named_with_its_key(what: str, said: str) -> None:
    with drive(sending()) as harness:
        harness.push_many("in", [CommandRequest("a", 1, "good"), CommandRequest("b", 1, what)])
        with pytest.raises(UserCodeError, match=said) as caught:
            harness.step()
        assert "key 'b'" in str(caught.value)


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
def test_policies_for_errors_hold_for_what_would_change(on_error: Any) -> None:
    with drive(sending(on_error=on_error)) as harness:
        asked = ["good", "output", "nested", "post", "good"]
        harness.push_many("in", [CommandRequest("a", n, what) for n, what in enumerate(asked)])
        harness.run()
        assert [record.value.n for record in harness.outputs("it.out")] == [1, 1]
        if on_error == "dead_letter":
            errors = [record.value.error for record in harness.outputs("it.dead_letter")]
            assert [
                said in error for said, error in zip(["2.9", "'x'", "kept"], errors, strict=True)
            ]


# -- numbers of NumPy -------------------------------------------------------------------------


class Numbers(msgspec.Struct):
    who: str
    at: int
    n: int
    x: float
    many: list[float]
    sure: bool


class TakesNumbers(hr.Computation):
    """Uses NumPy's numbers wherever a handler gives one."""

    n, x = hr.ValueState(int), hr.ValueState(float)
    by, all = hr.MapState(int, float), hr.ListState(list[int])
    due, real = hr.Timer(hr.EVENT_TIME), hr.Timer(hr.WALL_TIME)
    later = hr.Posted(float)
    out, ints = hr.Output(Numbers), hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.stream == "later":
            ctx.produce("ints", np.int16(int(record.value)))
            return
        self.n.value = np.int64(7)
        self.x.value = np.float32(0.5)
        self.by[np.int64(3)] = np.float64(1.5)
        self.all.append([np.int8(1), 2])
        self.due.set(np.int64(record.timestamp_us + 5))
        ctx.post(np.int64(record.timestamp_us + 6), np.float64(9))
        value = Numbers(
            "a", np.int64(1), np.uint8(2), np.float32(0.25), [np.float64(1)], np.bool_(1)
        )
        ctx.produce("out", value, timestamp=np.int64(record.timestamp_us + 1))

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("ints", np.int64(timer.time_us))


def test_a_number_of_numpy_is_taken_wherever_a_number_is() -> None:
    pipeline = hr.Pipeline("numbers")
    items = [Numbers("a", np.int64(1), np.int32(4), np.float64(1), [np.float32(2)], np.bool_(0))]
    source = hr.sources.Iterable(items, Numbers, event_time="at")
    stream = pipeline.inject("in", source, watermark=hr.bounded_delay("0s"))
    pipeline.compute("it", TakesNumbers(), keys={stream: "who"})
    source.splits(0, 1)
    with drive(pipeline) as harness:
        harness.push_many("in", items)
        harness.end()
        harness.run()
        (sent,) = harness.outputs("it.out")
        assert sent.value == Numbers("a", 1, 2, 0.25, [1.0], True)
        assert sent.timestamp_us == 2
        assert [record.value for record in harness.outputs("it.ints")] == [6, 9]
        state = harness.state("it", np.str_("a"))
        assert (state["n"], state["x"], state["by"], state["all"]) == (7, 0.5, {3: 1.5}, [[1, 2]])
        assert [type(one) for one in (state["n"], state["x"], state["all"][0][0])] == [
            int,
            float,
            int,
        ]


def test_state_keeps_no_integer_as_another_float() -> None:
    from headrace.schema.codecs import StateCodec

    for kind, value in [
        (float, 2**53 + 1),
        (list[float], [0.5, 2**53 + 1]),
        (dict[str, float], {"x": 2**60 + 1}),
    ]:
        codec = StateCodec(kind, None, place="")
        with pytest.raises(TypeError, match="it would become"):
            codec.keep(value)
    assert StateCodec(list[float], None, place="").keep([1, math.nan, 2**60])[1][0] == 1.0


class Counts(msgspec.Struct):
    by: dict[int, set[str | int]]


@settings(max_examples=60)
@given(kinds(), st.data())
def test_state_keeps_dicts_with_keys_of_any_type_as_the_same_bytes_for_the_same(
    typed: Typed, data: st.DataObject
) -> None:
    from headrace.schema.codecs import StateCodec

    codec = StateCodec(typed.kind, None, place="")
    value = data.draw(typed.values)
    bytes_, kept = codec.keep(value)
    assert same(codec.decode(bytes_), kept)
    assert codec.encode(kept) == codec.encode_kept(kept) == bytes_


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (dict[int, str], {2: "b", 1: "a"}),
        (dict[tuple[int, str], list[int]], {(2, "b"): [1], (1, "a"): []}),
        (dict[str | int, int], {"b": 1, 2: 3}),
        (set[str | int], {"b", 1}),
        (dict[str, dict[date, int]], {"x": {date(2024, 5, 2): 1, date(2024, 5, 1): 2}}),
        (Counts, Counts({2: {"b", 1}, 1: set()})),
    ],
    ids=str,
)
def test_what_has_no_order_of_its_own_is_kept_in_one_order(kind: Any, value: Any) -> None:
    from headrace.schema.codecs import StateCodec

    codec = StateCodec(kind, None, place="")
    data, kept = codec.keep(value)
    assert kept == value
    assert codec.encode(_turned(value)) == data


def _turned(value: Any) -> Any:
    """Return a value with its dicts and sets filled from the other end."""
    if isinstance(value, dict):
        return {key: _turned(value[key]) for key in reversed(value)}
    if isinstance(value, set):
        return {*list(value)[::-1]}
    return Counts(_turned(value.by)) if isinstance(value, Counts) else value


#: What a dict of anything cannot hold: it would come back as something else.
CHANGED: list[Any] = [
    Decimal("1.5"),
    {1},
    (1, 2),
    UUID(int=1),
    Colour.RED,
    Circle(0.5),
    [Circle(0.5)],
    {"b": (1,)},
    2**70,
    date(2024, 5, 1),
    timedelta(1),
    b"x",
    {1: 2},
]


@pytest.mark.parametrize("value", CHANGED, ids=str)
def test_anything_is_what_json_has_and_nothing_turns_into_that(value: Any) -> None:
    with pytest.raises(NotExact, match="a"):
        value_type_of(dict[str, Any]).to_columns([{"a": value}])


@pytest.mark.parametrize("value", CHANGED[:-2], ids=str)
def test_state_of_anything_keeps_what_comes_back_and_refuses_what_would_not(value: Any) -> None:
    from headrace.schema.codecs import StateCodec

    codec = StateCodec(dict[str, Any], None, place="")
    with pytest.raises(TypeError):
        codec.keep({"a": value})
    good = {"a": [1, 2.5, None, "x", {"b": True}], "b": b"x", "c": {1: 2}}
    assert codec.keep(good)[1] == good


def test_a_time_in_a_union_names_its_zone() -> None:
    values = value_type_of(datetime | int)
    naive = datetime(2024, 5, 1)  # noqa: DTZ001
    with pytest.raises(NotExact, match="has no time zone"):
        values.to_columns([naive])
    (column,) = values.to_columns([naive.replace(tzinfo=UTC), 5])
    assert values.to_python([column]) == [naive.replace(tzinfo=UTC), 5]
    with pytest.raises(NotExact, match="has no time zone"):
        values.exact("value", pa.array(['"2024-05-01T12:00:00"']))


class Nowhere(tzinfo):
    """A zone that has no offset."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = utcoffset

    def tzname(self, _: datetime | None) -> str:
        return "nowhere"


def test_a_zone_without_an_offset_is_none() -> None:
    at = datetime(2024, 5, 1, tzinfo=Nowhere())
    values = value_type_of(datetime)
    with pytest.raises(NotExact, match="has no time zone"):
        values.to_columns([at])
    (column,) = values.to_columns([at], "Asia/Tokyo")
    assert values.to_python([column]) == [datetime(2024, 4, 30, 15, tzinfo=UTC)]
    with pytest.raises(ValueError, match="has no time zone"):
        to_micros(at)


class Shade(enum.Enum):
    """An enum that takes its values in any capitals."""

    RED, BLUE = "red", "blue"

    @classmethod
    def _missing_(cls, value: object) -> Any:
        found = str(value).lower()
        return cls(found) if found in ("red", "blue") and found != value else None


def test_however_a_member_of_an_enum_is_written_its_column_has_one_value() -> None:
    values = value_type_of(Shade)
    for texts in (["RED", None, "red", "Blue"], ["red", None, "red", "blue"]):
        kept = values.part("value").form.read(pa.array(texts))
        assert kept.to_pylist() == ["red", None, "red", "blue"]
    with pytest.raises(NotExact, match="green"):
        values.exact("value", pa.array(["red", "green"]))


@pytest.mark.parametrize("value", [True, 1.0, Colour.RED, np.float64(1)])
def test_what_is_equal_to_a_member_of_an_enum_is_none(value: Any) -> None:
    values = value_type_of(enum.IntEnum("One", ["FIRST"]))
    with pytest.raises(NotExact, match="One"):
        values.to_columns([value])
    assert values.to_columns([1, np.int64(1)])[0].to_pylist() == [1, 1]


# -- sinks ------------------------------------------------------------------------------------

Odd = msgspec.defstruct(
    "Odd",
    [("key", str), ("_key", int), ("timestamp", int), ("_timestamp", int), ("userId", int)],
    rename={"userId": "Key0"},
)


class SendsOdd(hr.Computation):
    out = hr.Output(Odd)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", Odd("mine", 1, 2, 3, 4))


def test_every_column_arrives_under_a_name_of_its_own() -> None:
    for keys, ours in ((("who",), ["__key"]), (("who", "at"), ["_key0", "key1"])):
        pipeline = hr.Pipeline("odd")
        stream = pipeline.inject("in", hr.sources.Iterable([], CommandRequest, event_time="at"))
        node = pipeline.compute("it", SendsOdd(), keys={stream: keys})
        seen: list[pa.Schema] = []

        class Checks(hr.sinks.Calls):
            def check(self, columns: pa.Schema) -> None:
                seen.append(columns)  # noqa: B023

        pipeline.sink("out", node, Checks(print))
        with drive(pipeline) as harness:
            harness.push("in", CommandRequest("a", 1, ""))
            harness.run()
            ((_, rows),) = harness.deliveries("out")
        assert rows.column_names == [
            *ours,
            "__timestamp",
            "key",
            "_key",
            "timestamp",
            "_timestamp",
            "Key0",
        ]
        assert seen[0].names == rows.column_names
        assert rows.column("key").to_pylist() == ["mine"]
        assert rows.column(ours[0]).to_pylist() == ["a"]


def test_columns_that_differ_in_capitals_alone_are_refused_where_readers_take_them_for_one() -> (
    None
):
    columns = pa.schema([("key", pa.string()), ("n", pa.int64()), ("N", pa.int64())])
    hr.sinks.Files("nowhere").check(columns)
    with pytest.raises(PipelineError, match="'n' and 'N' differ in capitals alone"):
        hr.sinks.Files("nowhere", format="parquet").check(columns)


class Camel(msgspec.Struct, rename="camel"):
    user_id: int
    inner_one: list[Square] = []


class SendsCamel(hr.Computation):
    out = hr.Output(Camel)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value)


def test_what_sinks_get_has_the_names_that_fields_have_outside() -> None:
    pipeline = hr.Pipeline("camel")
    event_time: Any = lambda item: item.user_id  # noqa: E731
    stream = pipeline.inject("in", hr.sources.Iterable([], Camel, event_time=event_time))
    pipeline.compute("it", SendsCamel(), keys={stream: "user_id"})
    with drive(pipeline) as harness:
        harness.push("in", Camel(1, [Square(2, "x")]), at=1)
        harness.push("in", {"userId": 3}, at=1)
        harness.run()
        rows = pa.concat_tables(rows for _, rows in harness.deliveries("it.out"))
        assert sorted(rows.select(["userId", "innerOne"]).to_pylist(), key=str) == [
            {"userId": 1, "innerOne": [{"sideLength": 2, "name": "x"}]},
            {"userId": 3, "innerOne": []},
        ]
        found = {r.value.user_id: r.value for r in harness.outputs("it.out", everything=True)}
        assert found == {1: Camel(1, [Square(2, "x")]), 3: Camel(3)}


def test_mappings_are_taken_by_the_names_outside_with_defaults_for_what_is_absent() -> None:
    store = MemoryStore()
    producer = Producer(store, "one", type=Camel, event_time=None)
    producer.append([{"userId": 1}, {"userId": 2, "innerOne": [{"sideLength": 3}]}])
    inbox = Inbox(store, Camel, event_time="user_id")
    assert read_all(inbox) == [Camel(1), Camel(2, [Square(3)])]
    for wrong, said in [
        ({"user_id": 1}, "outside it is called 'userId'"),
        ({"innerOne": []}, "'userId' is missing"),
        ({"userId": 1, "innerOne": [{"side": 3}]}, "Square has no field 'side'"),
    ]:
        with pytest.raises(BadInput, match=said):
            producer.append([wrong])
    table = pa.table({"userId": [5], "innerOne": [[{"sideLength": 6}]]})
    Producer(store, "two", type=Camel, event_time=None).append(table)
    Producer(store, "three").append(table)
    assert read_all(inbox)[2:] == [Camel(5, [Square(6)])] * 2


# -- NaN --------------------------------------------------------------------------------------


class SendsNaN(hr.Computation):
    out = hr.Output(msgspec.defstruct("N", [("x", float), ("all", list[float | None])]))

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", self.kind(math.nan, [math.nan, None, -0.0]))

    kind: Any = out.type


@pytest.mark.parametrize("point", ["between_steps", "before_commit", "before_release"])
def test_nan_is_a_value_as_any_other_when_a_step_is_delivered_again(point: Any) -> None:
    pipeline = hr.Pipeline("nan")
    stream = pipeline.inject("in", hr.sources.Iterable([], CommandRequest, event_time="at"))
    node = pipeline.compute("it", SendsNaN(), keys={stream: "who"}, weak=True)
    pipeline.sink("out", node, hr.sinks.Calls(lambda step, rows: None))
    with drive(pipeline) as harness:
        harness.push("in", CommandRequest("a", 1, ""))
        harness.crash(point)
        harness.run()
        (sent,) = harness.outputs("out", everything=True)
        assert math.isnan(sent.value.x) and math.isnan(sent.value.all[0])


class ChangesWhatItSent(hr.Computation):
    """Produces a value and then changes a part of it."""

    out = hr.Output(msgspec.defstruct("Free", [("any", Any)]))

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        value: Any = type(self).out.type({"n": [1]})
        ctx.produce("out", value)
        value.any["n"].append(2)


def test_what_was_sent_stays_as_it_was_however_it_is_changed_afterwards() -> None:
    pipeline = hr.Pipeline("changes")
    stream = pipeline.inject("in", hr.sources.Iterable([], CommandRequest, event_time="at"))
    pipeline.compute("it", ChangesWhatItSent(), keys={stream: "who"})
    with drive(pipeline) as harness:
        harness.push("in", CommandRequest("a", 1, ""))
        harness.run()
        assert [record.value.any for record in harness.outputs("it.out")] == [{"n": [1]}]


class Fails(hr.Computation):
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        raise ValueError("no")


def test_a_dead_letter_tells_numbers_that_json_has_no_name_for() -> None:
    holds = holder(list[float])
    pipeline = hr.Pipeline("letters")
    stream = pipeline.inject("in", hr.sources.Iterable([], holds, event_time="at"))
    pipeline.compute("it", Fails(), keys={stream: "who"}, on_error="dead_letter")
    with drive(pipeline) as harness:
        harness.push("in", holds("a", 1, [math.nan, -math.inf, 0.5]))
        harness.run()
        (letter,) = harness.outputs("it.dead_letter")
    assert '["NaN","-Infinity",0.5]' in letter.value.value


def test_a_table_has_no_column_that_may_not_hold_all_that_its_arrow_type_can() -> None:
    for kind in (Colour, UUID, int | str):

        class Keeps(hr.ColumnarComputation):
            table = hr.TableState({"c": kind})

            def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
                """Does nothing."""

        pipeline = hr.Pipeline("table")
        stream = pipeline.inject("in", hr.sources.Iterable([], CommandRequest, event_time="at"))
        with pytest.raises(PipelineError, match="which a table cannot have"):
            pipeline.compute("it", Keeps(), keys={stream: "who"})


def test_a_type_that_no_column_can_hold_is_refused_when_it_is_drawn() -> None:
    class Strange:
        pass

    for kind in (Strange, dict[str | None, int], int | Strange, list[Strange]):
        with pytest.raises(HeadraceError) as caught:
            drawn(hr.sources.Iterable([], holder(kind), event_time="at"), kind)
        assert isinstance(caught.value, PipelineError)
        assert "remedy" in str(caught.value)


class Holds(msgspec.Struct):
    pair: tuple[int, int | str] | None


def test_a_column_of_absent_structs_that_hold_json_goes_outside_as_it_is() -> None:
    values = value_type_of(Holds)
    (column,) = values.outward(values.to_columns([Holds(None), Holds(None)]))
    assert column.null_count == 2


def test_a_table_cuts_what_is_finer_than_a_microsecond_as_time_goes_on() -> None:
    for kind, unit in [
        (pa.timestamp("ns", tz="UTC"), pa.timestamp("us", tz="UTC")),
        (pa.duration("ns"), pa.duration("us")),
    ]:
        nanos = pa.array([-1, None, 1_999, -1_000]).view(kind)
        assert in_micros(nanos, unit).cast(pa.int64()).to_pylist() == [-1, None, 1, -1]
