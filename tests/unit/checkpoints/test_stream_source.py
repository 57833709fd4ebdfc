"""How retained streams are planned and read for Spark, without a session: offsets, parts, pins, errors."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructField, StructType

import headrace as hr
from headrace.checkpoints import stream_source
from headrace.checkpoints.reader_pins import ReaderPins
from headrace.checkpoints.retained_streams import RetainedStream, Rows, StreamColumns
from headrace.checkpoints.spark_types import spark_schema
from headrace.checkpoints.stored_types import columns_of
from headrace.checkpoints.stream_source import StreamDataSource
from headrace.errors import (
    Damaged,
    Expired,
    HeadraceError,
    NotFound,
    PipelineError,
    SchemaChanged,
    WrongPipeline,
)
from headrace.ledger.ledger import Ledger
from headrace.ledger.pins import Pins
from headrace.runfiles.format import FileRef
from headrace.schema import describe
from headrace.session.arrow_types import arrow_schema
from headrace.storage import LocalStore

SECOND = 1_000_000
#: Bases, and with them clean-up, every few steps.
FEW: dict[str, Any] = {"base_every": 4, "slices": 2, "retain_steps": 1}


class Item(msgspec.Struct):
    user: str
    n: int
    at: int


class Sums(hr.Computation):
    """Produces what it has added up so far; nothing for numbers below 0."""

    deterministic = True
    total = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record[Item]) -> None:
        if record.value.n >= 0:
            self.total.value += record.value.n
            ctx.produce("out", self.total.value)


class Texts(Sums):
    """The same, as text."""

    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record[Item]) -> None:
        ctx.produce("out", str(record.value.n))


def drawn(retain: Any = ("out",), computation: Any = None, key: Any = "user") -> hr.Pipeline:
    pipeline = hr.Pipeline("sums")
    source = hr.sources.Iterable([], Item, event_time="at")
    items = pipeline.inject("items", source, watermark=hr.bounded_delay("300s"))
    sums = pipeline.compute("sums", computation or Sums(), keys={items: key}, retain=retain)
    pipeline.sink("sums", sums, hr.sinks.Calls(lambda step, rows: None))
    return pipeline


def driven(storage: Path, retain: Any = ("out",), **settings: Any) -> hr.testing.Harness:
    return hr.testing.drive(
        drawn(retain), bins=8, storage=LocalStore(storage), settings=hr.Settings(**settings)
    )


def steps(t: hr.testing.Harness, count: int, *, n: int = 1) -> None:
    """Make some steps of two records each. The clock goes on, since pins are judged by it."""
    t.clock(max(datetime.now(UTC), t.now))
    for _ in range(count):
        at = t.current().step * SECOND
        t.push_many("items", [Item("a", n, at), Item("b", n, at)])
        t.step()


def source(storage: Path, **options: Any) -> StreamDataSource:
    texts = {name: str(value) for name, value in options.items()}
    return StreamDataSource({"storage": str(storage), "stream": "sums.out", **texts})


def batch(storage: Path, **options: Any) -> Any:
    of = source(storage, **options)
    return of.reader(of.schema())


def query(storage: Path, **options: Any) -> Any:
    of = source(storage, **options)
    return of.streamReader(of.schema())


def numbers(reader: Any, parts: Any) -> list[int]:
    """Return the steps of the rows of some parts."""
    batches = [rows for part in parts for rows in reader.read(part)]
    return sorted(step for rows in batches for step in rows.column("_step").to_pylist())


def run(reader: Any, start: Any = None, *, batches: int = 100) -> tuple[list[int], Any]:
    """Do what Spark does until there is nothing new; return the steps of the rows, and the offset."""
    at, found = start or reader.initialOffset(), []
    before = None
    for _ in range(batches):
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        if before is not None:
            reader.commit(before)
        if end == at:
            break
        found += numbers(reader, reader.partitions(at, end))
        before = at = end
    return found, at


# -- batches of a query -----------------------------------------------------------------------------


def test_a_batch_covers_the_steps_after_its_start_up_to_its_end(tmp_path: Path) -> None:
    with driven(tmp_path) as t:
        steps(t, 4)
        reader = query(tmp_path)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert (start["step"], end["step"]) == (-1, t.current().step)
        assert numbers(reader, reader.partitions(start, end)) == [1, 1, 2, 2, 3, 3, 4, 4]
        assert reader.partitions(end, end) == []
        between = {**start, "step": 2}, {**start, "step": 3}
        assert numbers(reader, reader.partitions(*between)) == [3, 3]
        assert reader.reportLatestOffset() == end


def test_a_batch_that_is_planned_again_in_another_process_is_the_same(tmp_path: Path) -> None:
    with driven(tmp_path) as t:
        steps(t, 3)
        first = query(tmp_path)
        start = first.initialOffset()
        end = first.latestOffset(start, ReadAllAvailable())
        rows = [rows for part in first.partitions(start, end) for rows in first.read(part)]
        steps(t, 3)
        t.resume(workers=3)
        again = query(tmp_path)
        assert [r for part in again.partitions(start, end) for r in again.read(part)] == rows


def test_what_is_available_now_is_fixed_when_the_query_begins(tmp_path: Path) -> None:
    with driven(tmp_path) as t:
        steps(t, 3)
        reader = query(tmp_path, maxStepsPerTrigger=2)
        reader.prepareForTriggerAvailableNow()
        steps(t, 3)
        found, end = run(reader)
        assert sorted(set(found)) == [1, 2, 3]
        assert end["step"] == 3
        assert reader.latestOffset(end, ReadAllAvailable()) == end


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"maxStepsPerTrigger": 3}, [3, 6]),
        ({"maxRowsPerTrigger": 5}, [2, 4, 6]),
        ({"maxRowsPerTrigger": 1}, [1, 2, 3, 4, 5, 6]),
        ({"maxBytesPerTrigger": 1}, [1, 2, 3, 4, 5, 6]),
        ({"maxRowsPerTrigger": 100, "maxStepsPerTrigger": 4}, [4, 6]),
        ({}, [6]),
    ],
)
def test_limits_cut_between_steps_and_take_one_at_least(
    tmp_path: Path, options: dict[str, Any], expected: list[int]
) -> None:
    with driven(tmp_path) as t:
        steps(t, 6)
    reader = query(tmp_path, **options)
    at, ends = reader.initialOffset(), []
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        ends.append(end["step"])
        at = end
    assert ends == expected


@pytest.mark.parametrize(
    ("starting", "step"), [("earliest", -1), ("LATEST", 4), ("3", 2), ("5", 4)]
)
def test_a_new_query_begins_where_it_is_asked_to(tmp_path: Path, starting: str, step: int) -> None:
    with driven(tmp_path) as t:
        steps(t, 4)
    assert query(tmp_path, startingStep=starting).initialOffset()["step"] == step


def test_steps_without_productions_make_no_batch_until_they_are_many(tmp_path: Path) -> None:
    with driven(tmp_path) as t:
        steps(t, 8)
        reader = query(tmp_path)
        _, at = run(reader)
        steps(t, 2, n=-1)
        assert run(reader, at) == ([], at)
        steps(t, 1)
        found, at = run(reader, at)
        assert (found, at["step"]) == ([11, 11], 11)
        steps(t, 40, n=-1)
        found, after = run(reader, at)
        assert (found, after["step"]) == ([], 51), "so that the offset does not expire"


def test_a_query_on_a_stream_that_has_produced_nothing_waits(tmp_path: Path) -> None:
    with driven(tmp_path) as t:
        reader = query(tmp_path)
        assert reader._schema.simpleString() == (
            "struct<key:string,timestamp:timestamp,value:bigint,_step:bigint>"
        )
        found, at = run(reader)
        assert found == []
        steps(t, 2)
        assert run(reader, at)[0] == [1, 1, 2, 2]


def test_steps_that_are_not_checkpointed_are_read_like_others(tmp_path: Path) -> None:
    with driven(tmp_path, checkpoint_steps=8) as t:
        steps(t, 5)
        assert t.current().is_behind
        found, at = run(query(tmp_path))
        t.crash()
        steps(t, 3)
        assert found + run(query(tmp_path), at)[0] == sorted(
            o.step for o in t.outputs("sums", everything=True)
        )


# -- steps that are not kept ------------------------------------------------------------------------


def test_a_step_that_is_dropped_before_it_is_planned_is_an_error(tmp_path: Path) -> None:
    with driven(tmp_path, {"out": hr.keep(steps=3)}, **FEW) as t:
        steps(t, 2)
        reader = query(tmp_path)
        _, at = run(reader)
        steps(t, 30)
        with pytest.raises(
            Expired, match=r"what step 3 produced on 'sums.out' is not kept"
        ) as error:
            run(reader, at)
        assert str(tmp_path) in error.value.place and "step 3" in error.value.place
        assert "since step" in error.value.what and "option reader" in error.value.remedy
        with pytest.raises(Expired):
            query(tmp_path, startingStep=1).initialOffset()
        with pytest.raises(Expired):
            batch(tmp_path, fromStep=3).partitions()


def test_a_step_that_is_dropped_between_planning_and_reading_is_an_error(tmp_path: Path) -> None:
    with driven(tmp_path, {"out": hr.keep(steps=3)}, **FEW) as t:
        steps(t, 4)
        reader = query(tmp_path)
        start = reader.initialOffset()
        parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
        steps(t, 30)
        with pytest.raises(Expired, match=r"what step 1 produced on 'sums.out' is not kept"):
            numbers(reader, parts)


def test_a_file_that_should_be_there_is_damage(tmp_path: Path) -> None:
    with driven(tmp_path) as t:
        steps(t, 2)
    reader = batch(tmp_path)
    parts = reader.partitions()
    for file in (tmp_path / "streams").iterdir():
        file.unlink()
    with pytest.raises(Damaged, match="a file of step 1 is missing"):
        numbers(reader, parts)


def test_dropped_steps_are_still_read_while_older_manifests_are_kept(tmp_path: Path) -> None:
    with driven(tmp_path, {"out": hr.keep(steps=3)}, **{**FEW, "retain_steps": 100}) as t:
        steps(t, 30)
        stream = RetainedStream(LocalStore(tmp_path), "sums.out")
        stream.refresh()
        assert stream.first > 20, "the newest head does not name the others"
        reader = batch(tmp_path, fromStep=2, toStep=29)
        assert numbers(reader, reader.partitions()) == sorted([*range(2, 30)] * 2)


def test_a_batch_pins_its_steps_while_it_is_read(tmp_path: Path) -> None:
    with driven(tmp_path, {"out": hr.keep(steps=3)}, **FEW) as t:
        steps(t, 4)
        reader, without = batch(tmp_path, pinFor="10m"), batch(tmp_path, pinFor="0s")
        without.partitions()
        assert Pins(LocalStore(tmp_path)).known() == {}
        parts = reader.partitions()
        (pin,) = Pins(LocalStore(tmp_path)).known().values()
        assert pin is not None and (pin.step, pin.by) == (4, "headrace")
        steps(t, 30)
        assert sorted(set(numbers(reader, parts))) == [1, 2, 3, 4]


# -- registered readers -----------------------------------------------------------------------------


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins are renewed whenever a batch is planned, and are surely seen at once."""
    monkeypatch.setattr("headrace.checkpoints.reader_pins._EVERY_S", 0.0)
    monkeypatch.setattr("headrace.checkpoints.reader_pins._SURE_S", 0.0)


@pytest.mark.usefixtures("often")
def test_a_registered_reader_finds_all_that_it_has_not_committed(tmp_path: Path) -> None:
    """It is far behind the bound, restarts, catches up a step at a time, and is not in the way then."""
    with driven(tmp_path, {"out": hr.keep(steps=3)}, **FEW) as t:
        steps(t, 4)
        reader = query(tmp_path, reader="archive", maxStepsPerTrigger=1)
        found, at = run(reader, batches=2)
        assert found == [1, 1, 2, 2]
        steps(t, 20)
        reader = query(tmp_path, reader="archive", maxStepsPerTrigger=1)
        reader.commit(at)  # (as Spark does first after a restart)
        more, at = run(reader, at, batches=5)
        steps(t, 10)
        rest, at = run(reader, at)
        assert found + more + rest == sorted([*range(1, 35)] * 2)
        steps(t, 12)
        found, at = run(reader, at)
        assert found == sorted([*range(35, 47)] * 2)
        assert t.current().boundary > 30, "clean-up goes on"


def test_a_reader_that_comes_now_and_then_finds_all_since_it_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its runs far more steps are made than the bound keeps. Its pins move on with it."""
    monkeypatch.setattr("headrace.checkpoints.reader_pins._SURE_S", 0.0)
    at, found = None, []
    with driven(tmp_path, {"out": hr.keep(steps=3)}, **FEW) as t:
        steps(t, 2)
        for _ in range(4):
            reader = query(tmp_path, reader="archive", maxStepsPerTrigger=7)
            reader.prepareForTriggerAvailableNow()
            if at is not None:
                reader.commit(at)
            more, at = run(reader, at)
            found += more
            steps(t, 20)
        assert sorted(set(found)) == list(range(1, 63))
        assert t.current().boundary >= 40, "clean-up follows a run later"
        assert len(Pins(LocalStore(tmp_path)).known()) == 1


@pytest.mark.usefixtures("often")
def test_a_reader_that_keeps_up_holds_nothing_back(tmp_path: Path) -> None:
    with driven(tmp_path, {"out": hr.keep(steps=3)}, **FEW) as t:
        reader, at = query(tmp_path, reader="archive"), None
        for _ in range(20):
            steps(t, 2)
            _, at = run(reader, at)
        assert t.current().boundary >= 30
        assert len(Pins(LocalStore(tmp_path)).known()) <= 2
        pins = Pins(LocalStore(tmp_path)).known().values()
        assert {pin.by for pin in pins if pin} == {"headrace reader archive of sums.out"}


def test_the_pin_of_a_reader_that_is_gone_expires_and_clean_up_goes_on(tmp_path: Path) -> None:
    with driven(tmp_path, {"out": hr.keep(steps=3)}, **FEW) as t:
        steps(t, 4)
        run(query(tmp_path, reader="archive", pinFor="10m"))
        steps(t, 20)
        assert t.current().boundary <= 4
        files = len(list((tmp_path / "streams").iterdir()))
        t.clock("+20m")
        steps(t, 40)
        assert t.current().boundary > 50
        assert len(list((tmp_path / "streams").iterdir())) < files
        assert Pins(LocalStore(tmp_path)).known() == {}


def test_a_pin_is_renewed_now_and_then_and_not_with_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("headrace.checkpoints.reader_pins.time.monotonic", lambda: now_s)
    with driven(tmp_path) as t:
        steps(t, 1)
        stream = RetainedStream(LocalStore(tmp_path), "sums.out")
        stream.refresh()
        often, seldom = ReaderPins(stream, "a", 4_000_000), ReaderPins(stream, "b", 3_600_000_000)
        made = []
        for _ in range(11):
            often.renew(0)
            seldom.renew(0)
            pins = [pin.by for pin in Pins(stream.store).known().values() if pin]
            made.append((pins.count("a"), pins.count("b")))
            now_s += 0.5
        assert made[:3] == [(1, 1), (1, 1), (2, 1)], "four times while it lasts"
        assert made[-2:] == [(5, 1), (6, 2)], "or every five seconds"


# -- columns ----------------------------------------------------------------------------------------


class Inner(msgspec.Struct):
    a: int
    b: str | None = None


class Wide(msgspec.Struct):
    whole: int
    small: Annotated[int, pa.int16()]
    unsigned: Annotated[int, pa.uint64()]
    real: float
    text: str | None
    data: bytes
    flag: bool
    day: date
    moment: datetime
    clock: clock_time
    took: timedelta
    price: Annotated[Decimal, pa.decimal128(10, 2)]
    list_: list[int]
    pairs: dict[str, float]
    inner: Inner
    inners: list[Inner]
    _step: int
    key: str


WIDE = Wide(
    1, -2, 2**64 - 1, 0.5, None, b"\x00", True, date(2024, 2, 29),
    datetime(2024, 2, 29, 12, tzinfo=UTC), clock_time(1, 2, 3, 4), timedelta(microseconds=-5),
    Decimal("1.25"), [1, 2], {"x": 1.5}, Inner(1), [Inner(2, "b")], 7, "mine",
)  # fmt: skip


class Widely(hr.Computation):
    out = hr.Output(Wide)

    def process_record(self, ctx: hr.Context, record: hr.Record[Item]) -> None:
        ctx.produce("out", WIDE)


def test_every_type_comes_through_unchanged_also_under_our_own_names(tmp_path: Path) -> None:
    pipeline = drawn(computation=Widely(), key=("user", "n"))
    with hr.testing.drive(pipeline, storage=LocalStore(tmp_path)) as t:
        empty = source(tmp_path).schema()
        steps(t, 1)
        reader = batch(tmp_path)
        assert reader._schema == empty, "the same before there are files and after"
        (part,) = reader.partitions()
        rows = pa.Table.from_batches(reader.read(part))
        assert rows.schema == arrow_schema(empty)
        assert rows.column_names[:3] == ["key0", "key1", "timestamp"]
        assert rows.column_names[-3:] == ["_step", "key", "__step"]
        row = rows.to_pylist()[0]
        assert row["unsigned"] == 2**64 - 1 and row["price"] == Decimal("1.25")
        assert (row["day"], row["clock"], row["took"]) == (WIDE.day, WIDE.clock, WIDE.took)
        assert (row["_step"], row["key"], row["__step"]) == (7, "mine", 1)
        assert row["inners"] == [{"a": 2, "b": "b"}] and dict(row["pairs"]) == {"x": 1.5}


@pytest.mark.parametrize(
    "kind",
    [
        pa.int8(), pa.uint32(), pa.float16(), pa.float64(), pa.string(), pa.large_binary(), pa.bool_(),
        pa.binary(16), pa.date32(), pa.date64(), pa.time64("us"), pa.duration("us"), pa.timestamp("us"),
        pa.timestamp("ns", tz="Europe/Berlin"), pa.decimal128(38, 18), pa.decimal256(50, 3),
        pa.list_(pa.int64()), pa.list_(pa.field("item", pa.decimal128(10, 2), nullable=False)),
        pa.large_list(pa.string()), pa.map_(pa.string(), pa.list_(pa.int8())), pa.struct([]),
        pa.struct([pa.field("a", pa.timestamp("us", tz="UTC"), nullable=False), ("b", pa.int64())]),
    ],
    ids=str,
)  # fmt: skip
def test_a_type_is_known_again_from_its_text(kind: pa.DataType) -> None:
    schema = pa.schema([pa.field("x", kind), pa.field("y", kind, nullable=False)])
    assert columns_of(describe(schema), "") == schema


@pytest.mark.parametrize(
    "text", ["", "int65", "list<int64>", "struct<a>", "map<a>", "decimal128(1)"]
)
def test_a_text_that_is_no_type_is_damage(text: str) -> None:
    with pytest.raises(Damaged, match="is not a type of column 'x'"):
        columns_of({"x": text}, "stream 's'")


@pytest.mark.parametrize(
    "kind",
    [pa.decimal256(50, 3), pa.decimal128(5, -2), pa.month_day_nano_interval()],
    ids=str,
)
def test_a_type_that_spark_does_not_have_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(PipelineError, match=r"column 'x' is of type .*, which Spark does not have"):
        spark_schema(pa.schema([pa.field("x", pa.list_(kind))]), "stream 's'")


def test_a_value_that_spark_cannot_hold_is_refused_and_not_cut(tmp_path: Path) -> None:
    columns = StreamColumns("s", [], {"x": "timestamp[ns]"})
    file = FileRef("streams/x", 1, "", 3, 0, 0, ["s"], "")
    rows = pa.record_batch({
        "__hash": pa.array([1], pa.uint64()),
        "__timestamp_us": pa.array([1], pa.int64()),
        "x": pa.array([1], pa.timestamp("ns")),
    })  # fmt: skip
    schema = arrow_schema(spark_schema(columns.public, "stream 's'"))
    with pytest.raises(PipelineError, match=r"column 'x' of 's' has a value that .* cannot hold"):
        Rows(LocalStore(tmp_path), file, columns)._public(rows, schema)


def test_a_stream_whose_columns_change_is_refused_with_the_difference(tmp_path: Path) -> None:
    with driven(tmp_path) as t:
        steps(t, 2)
        reader = query(tmp_path)
        _, at = run(reader)
        for retain, computation in (((), Sums()), ((), Texts()), (("out",), Texts())):
            t.resume(pipeline=drawn(retain, computation))
        steps(t, 1)
        with pytest.raises(SchemaChanged, match="'value' was int64 not null, and is string"):
            reader.latestOffset(at, ReadAllAvailable())
        again = query(tmp_path)  # (as a restart does)
        with pytest.raises(Expired):
            run(again, at)
        found, _ = run(query(tmp_path))
        assert found == [6, 6]


def test_a_schema_of_ones_own_may_only_allow_more_nulls(tmp_path: Path) -> None:
    with driven(tmp_path) as t:
        steps(t, 2)
    of = source(tmp_path)
    key, timestamp, value, step = of.schema().fields
    loose = StructType([StructField("key", key.dataType), timestamp, value, step])
    reader = of.reader(loose)
    assert numbers(reader, reader.partitions()) == [1, 1, 2, 2]
    with pytest.raises(SchemaChanged) as error:
        of.reader(StructType([key, timestamp, step])).partitions()
    assert (
        "the stream has key:string not null, timestamp:timestamp, value:bigint"
        in error.value.remedy
    )


def test_the_difference_of_columns_is_said_in_words() -> None:
    before = StreamColumns("s", ["string"], {"a": "int64", "b": "string"})
    assert before.changes(before) == ""
    assert before.changes(StreamColumns("s", ["int64"], {"b": "int64", "c": "bool"})) == (
        "its key was string, and is int64; 'a' (int64) is gone; 'b' was string, and is int64; "
        "'c' (bool) is new"
    )
    swapped = StreamColumns("s", ["string"], {"b": "string", "a": "int64"})
    assert before.changes(swapped) == "the order of its columns is b, a"


# -- what is asked wrongly --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "/elsewhere"}, "are not the same"),
        ({"steps": "1"}, "does not know option 'steps'"),
        ({"parts": "0"}, "give a number from 1 on"),
        ({"startingStep": "first"}, "give 'earliest', 'latest', or the number of a step"),
        ({"pinFor": "2d"}, "give at most '24h'"),
        ({"reader": " "}, "give the query a name"),
        ({"pinFor": "0s", "reader": "x"}, "a reader pins steps"),
        ({"pinFor": "1h"}, "not for a query without option 'reader'"),
        ({"toStep": "1"}, "not for spark.readStream"),
        ({"fromStep": "2", "toStep": "1"}, "does not end before it begins"),
        ({"startingStep": "9"}, "the newest is 2"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    tmp_path: Path, options: dict[str, str], said: str
) -> None:
    with driven(tmp_path) as t:
        steps(t, 2)
    with pytest.raises(HeadraceError, match=said):
        query(tmp_path, **options).initialOffset()


def test_options_that_are_missing_are_named() -> None:
    with pytest.raises(PipelineError, match="needs option 'stream'"):
        StreamDataSource({"path": "x"}).schema()


def test_a_storage_without_a_pipeline_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no pipeline has run on"):
        source(tmp_path / "nothing").schema()
    assert not (tmp_path / "nothing").exists()


def test_an_offset_of_another_storage_is_refused(tmp_path: Path) -> None:
    with driven(tmp_path) as t:
        steps(t, 2)
    reader = query(tmp_path)
    offset = reader.initialOffset()
    for wrong, said in (
        ({**offset, "lineage": "0" * 32}, "of another storage"),
        ({**offset, "step": 3}, "has read step 3, and the newest there is 2"),
    ):
        with pytest.raises(WrongPipeline, match=said):
            reader.latestOffset(wrong, ReadAllAvailable())


def test_a_step_is_settled_before_it_is_given_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss could take a step back that is not durable yet, and put another in its place."""
    settled: list[str] = []
    monkeypatch.setattr(LocalStore, "settle", lambda self, name: settled.append(name))
    with driven(tmp_path) as t:
        steps(t, 2)
        settled.clear()
        stream = RetainedStream(LocalStore(tmp_path), "sums.out")
        stream.refresh()
        stream.refresh()
        assert settled == ["manifests/000000000002"]


def test_files_are_divided_into_parts_of_about_the_same_size() -> None:
    columns = StreamColumns("s", [], {})

    def sizes(lengths: list[int], parts: int = 4) -> list[int]:
        files = [FileRef(f"{n}", size, "", n, 0, 0, ["s"], "") for n, size in enumerate(lengths)]
        found = stream_source._parts(files, columns, parts)
        assert [file for part in found for file in part.files] == files
        return [len(part.files) for part in found]

    assert sizes([]) == []
    assert sizes([1] * 100) == [100], "small files are not worth a task each"
    assert sizes([1 << 20] * 16) == [4, 4, 4, 4]
    assert sizes([200 << 20] * 3) == [1, 1, 1]
    assert sizes([32 << 20] * 40, parts=1) == [2] * 20, "no task reads more than 64 MiB"


def test_nothing_is_claimed_or_written_by_a_reader(tmp_path: Path) -> None:
    with driven(tmp_path) as t:
        steps(t, 3)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    run(query(tmp_path))
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before
    assert Ledger(LocalStore(tmp_path)).open() is not None
