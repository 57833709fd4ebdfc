"""Sources say whose their records are: no record is late while each partition comes in order."""

from __future__ import annotations

import json
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.types import LongType, StringType, StructType

import headrace as hr
from headrace.driver.driver import Clock, Driver
from headrace.errors import BadInput, PipelineError, UserCodeError
from headrace.eventtime.timestamps import MIN_TIME
from headrace.eventtime.watermark import MOST_PARTITIONS
from headrace.ledger.head import Head
from headrace.observe.why import explain, why
from headrace.pipeline.source import Limit, Offer, Split
from headrace.runners.inline import InlineRunner
from headrace.schema.reserved import PARTITION_COLUMN, TIMESTAMP_COLUMN
from headrace.sources.inbox import Producer
from headrace.sources.partitions import checked_columns, with_partitions
from headrace.storage import MemoryStore, Store
from headrace.tasks.source_seen import times_by_partition
from headrace.testing import drive
from tests.support.durations import us
from tests.support.pipelines import Collected
from tests.support.windows import Windows

SECOND = 1_000_000


class Said(msgspec.Struct):
    """A record: whose it is, and when it was."""

    who: str
    at: int


class Acts(Clock):
    """A clock that stands still; each time the driver would wait, the next thing happens. Then it stops."""

    def __init__(self, *actions: Callable[[Acts], object]) -> None:
        self.now, self.actions = 0, list(actions)
        self.driver: Driver | None = None

    def now_us(self) -> int:
        return self.now

    def pass_(self, seconds: int) -> None:
        self.now += seconds * SECOND

    def wait_until(self, until_us: int, woken: threading.Event) -> None:
        assert self.driver is not None
        if self.actions:
            self.actions.pop(0)(self)
        else:
            self.driver.request_stop(drain=False)


def run(
    source: hr.sources.Source,
    *,
    rows: int = 3,
    actions: Any = (),
    store: Store | None = None,
    drain: bool = False,
    **inject: Any,
) -> tuple[Head, list[int]]:
    """Run inline until nothing more is to come; return what is known, and what closed windows held."""
    pipeline, collected = hr.Pipeline("partitioned"), Collected()
    stream = pipeline.inject("in", source, **inject)
    node = pipeline.compute("windows", Windows(), keys={stream: "who"})
    pipeline.sink("out", node, collected.sink("out"))
    clock = Acts(*actions)
    driver = Driver(
        pipeline,
        store or MemoryStore(),
        InlineRunner(),
        workers=2,
        bins=4,
        clock=clock,
        drain=drain,
        settings=hr.Settings(limit=Limit(rows, 1 << 20)),
    )
    clock.driver = driver
    try:
        driver.run()
    finally:
        driver.close()
    head = driver.coordinator.head
    assert head is not None
    return head, [row[2] for step in collected.rows().get("out", []) for row in step]


# -- random partitions, each in order, cut anyhow -----------------------------------------------

timelines = st.dictionaries(
    st.sampled_from(["eu", "us", "x/y", "7"]),
    st.lists(st.integers(0, 60), min_size=1, max_size=12).map(sorted),
    min_size=1,
    max_size=4,
)
sizes = st.integers(1, 9)


def windows_of(parts: dict[str, list[int]]) -> list[int]:
    """Return how many records each window has, over all partitions: a sum that needs no pipeline."""
    return sorted(Counter((who, at // 10) for who, ats in parts.items() for at in ats).values())


def merged(parts: dict[str, list[int]], turns: list[int]) -> list[Said]:
    """Return the records in one order, each partition's in its own."""
    left = {who: list(ats) for who, ats in parts.items()}
    found = []
    for turn in [*turns, *[0] * sum(map(len, parts.values()))]:
        there = sorted(who for who, ats in left.items() if ats)
        if there:
            who = there[turn % len(there)]
            found.append(Said(who, left[who].pop(0)))
    return found


@given(timelines, st.lists(st.integers(0, 3), max_size=48), sizes, st.booleans())
@settings(max_examples=25, deadline=None)
def test_no_item_of_a_list_is_late_while_each_partition_is_in_order(
    parts: dict[str, list[int]], turns: list[int], rows: int, by_field: bool
) -> None:
    items = merged(parts, turns)
    by: Any = "who" if by_field else lambda item: f"<{item.who}>"
    source = hr.sources.Iterable(items, Said, event_time="at", partition=by)
    head, closed = run(source, rows=rows, drain=True)
    assert head.counts["windows"].late == 0
    assert sorted(closed) == windows_of(parts)


@given(timelines, st.lists(st.integers(0, 3), max_size=48), sizes)
@settings(max_examples=20, deadline=None)
def test_no_item_that_a_function_gives_is_late_when_its_partition_was_expected(
    parts: dict[str, list[int]], turns: list[int], rows: int
) -> None:
    items = merged(parts, turns)
    source = hr.sources.Iterable(lambda: iter(items), Said, event_time="at", partition="who")
    head, closed = run(source, rows=rows, drain=True, expect=sorted(parts))
    assert head.counts["windows"].late == 0
    assert sorted(closed) == windows_of(parts)


class Several(DataSource):
    """Reads some partitions, a few records further at each look, one more than another."""

    def schema(self) -> StructType:
        return StructType().add("who", StringType()).add("at", LongType())

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return SeveralReader(json.loads(self.options["parts"]), json.loads(self.options["cuts"]))


class SeveralReader(DataSourceStreamReader):
    def __init__(self, parts: dict[str, list[int]], cuts: list[int]) -> None:
        self.parts, self.cuts = parts, cuts

    def initialOffset(self) -> dict[str, int]:
        return dict.fromkeys(self.parts, 0)

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        begun = sum(start.values())
        step = {
            who: self.cuts[(begun + number) % len(self.cuts)]
            for number, who in enumerate(sorted(start))
        }
        end = {who: min(len(self.parts[who]), at + step[who]) for who, at in start.items()}
        return end if end != start else {w: min(len(self.parts[w]), a + 1) for w, a in end.items()}

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [InputPartition((who, start[who], end[who])) for who in sorted(self.parts)]

    def read(self, partition: Any) -> Iterator[Any]:
        who, first, last = partition.value
        for at in self.parts[who][first:last]:
            yield who, at


class Changing(Several):
    """Lists only partitions with something to read, so that a number is now one's and now another's."""

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return ChangingReader(json.loads(self.options["parts"]), json.loads(self.options["cuts"]))


class ChangingReader(SeveralReader):
    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [of for of in super().partitions(start, end) if of.value[1] < of.value[2]]


def by_name(partition: InputPartition) -> str:
    return str(partition.value[0])


@given(timelines, st.lists(st.integers(0, 3), min_size=1, max_size=8), st.sampled_from("abcd"))
@settings(max_examples=40, deadline=None)
def test_no_record_of_a_spark_reader_is_late_while_each_partition_is_in_order(
    parts: dict[str, list[int]], cuts: list[int], how: str
) -> None:
    options = {"parts": json.dumps(parts), "cuts": json.dumps(cuts)}
    expect: list[str] = []
    if how == "a":
        source = hr.sources.SparkReader(Several(options), event_time="at")
    elif how == "b":
        source = hr.sources.SparkReader(Several(options), event_time="at", partition=by_name)
    elif how == "c":
        source = hr.sources.SparkReader(Changing(options), event_time="at", partition=by_name)
        expect = sorted(parts)
    else:
        source = hr.sources.SparkReader(Changing(options), event_time="at", partition="who")
        expect = sorted(parts)
    head, closed = run(source, expect=expect)
    assert head.counts["windows"].late == 0
    assert head.counts["windows"].records == sum(map(len, parts.values()))
    assert not Counter(closed) - Counter(windows_of(parts)), "what has closed was whole"
    ends = [max(ats) for ats in parts.values()]
    assert head.frontiers_of("in").low == min(ends), "and what could close, has"


@given(
    timelines,
    sizes,
    st.sampled_from([None, 1, 25]),
    st.sampled_from([None, "10s"]),
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
)
@settings(max_examples=25, deadline=None)
def test_no_record_of_an_inbox_is_late_whatever_is_held_back(
    parts: dict[str, list[int]], rows: int, skew: int | None, idle: str | None, batches: list[int]
) -> None:
    inbox = MemoryStore()
    names = {who: who.replace("/", "-") for who in parts}
    for who, ats in parts.items():
        producer, at = Producer(inbox, names[who], type=Said, event_time="at"), 0
        while at < len(ats):
            size = batches[at % len(batches)]
            producer.append([Said(who, time) for time in ats[at : at + size]])
            at += size
        producer.finish()
    source = hr.sources.Inbox(inbox, Said, event_time="at", producers=sorted(names.values()))
    head, closed = run(source, rows=rows, drain=True, skew_limit=us(skew), idle_after=idle)
    assert head.counts["windows"].late == 0
    assert sorted(closed) == windows_of(parts)


@given(
    timelines,
    sizes,
    st.sampled_from(["file", "directory", r"from-([^/]+)/"]),
    st.sampled_from([None, 1, 25]),
)
@settings(max_examples=20, deadline=None)
def test_no_line_of_files_of_several_processes_is_late(
    parts: dict[str, list[int]], rows: int, by: str, skew: int | None
) -> None:
    with tempfile.TemporaryDirectory() as name:
        for number, (who, ats) in enumerate(parts.items()):
            folder = Path(name) / f"from-{number}"
            folder.mkdir()
            lines = [json.dumps({"who": who, "at": at}) for at in ats]
            (folder / "log.jsonl").write_text("\n".join(lines) + "\n")
        source = hr.sources.Files(f"{name}/*/*.jsonl", type=Said, event_time="at", partition=by)
        head, closed = run(source, rows=rows, drain=True, skew_limit=us(skew))
    assert head.counts["windows"].late == 0
    assert sorted(closed) == windows_of(parts)


def test_a_list_that_grows_does_not_end_its_partitions_while_it_is_only_caught_up_with() -> None:
    items = [Said("a", 5), Said("b", 7)]
    source = hr.sources.Iterable(items, Said, event_time="at", partition="who")
    offer = source.offer(0, Limit(5, 1 << 20, open_ended=True))
    assert offer is not None
    assert not any(part.final for part in offer.parts.values())
    items += [Said("c", 3)]
    source.open(MemoryStore())
    offer = source.offer(2, Limit(5, 1 << 20))
    assert offer is not None
    assert {name for name, part in offer.parts.items() if part.final} == {"a", "b", "c"}
    offer = source.offer(0, Limit(2, 1 << 20))
    assert offer is not None
    assert {name for name, part in offer.parts.items() if not part.final} == {"c"}


class Happens(msgspec.Struct):
    """Some records come, of one partition; so much time passes; and a step may take so many records."""

    who: str
    times: list[int]
    seconds: int
    most: int


happenings = st.builds(
    Happens,
    st.sampled_from("abc"),
    st.lists(st.integers(0, 9), max_size=4),
    st.integers(0, 6),
    st.integers(1, 5),
)


@given(st.lists(happenings, max_size=25), st.sampled_from([(), ("a",), ("a", "c")]))
@settings(max_examples=40, deadline=None)
def test_a_record_is_late_only_if_its_partition_was_new_or_idle(
    story: list[Happens], expect: tuple[str, ...]
) -> None:
    pipeline = hr.Pipeline("driven")
    source = hr.sources.Inbox("memory:unused", Said, event_time="at")
    stream = pipeline.inject("in", source, expect=expect, idle_after="10s")
    pipeline.compute("windows", Windows(), keys={stream: "who"}, late="side")
    at = dict.fromkeys("abc", 0)
    now, waiting = 0, list[str]()
    active: dict[str, int] = {}  # when something of a partition was taken last, or it was announced
    excused: set[str] = set()
    with drive(pipeline) as t:
        for it in story:
            for more in it.times:
                at[it.who] += more
                t.push("in", Said(it.who, at[it.who]), partition=it.who)
                waiting.append(it.who)
            if it.times and it.who not in active:
                excused |= {it.who} - {*expect}
                active[it.who] = now
            excused |= {who for who, since in active.items() if now - since >= 10}
            t.step(records=it.most)
            active |= dict.fromkeys(waiting[: it.most], now)
            del waiting[: it.most]
            assert {late.value.who for late in t.outputs("windows.late")} <= excused
            t.clock(f"+{it.seconds}s")
            now += it.seconds


# -- announced, expected, idle ------------------------------------------------------------------


def says(inbox: Store, who: str, *ats: int) -> Callable[[Acts], object]:
    """Let a producer append a batch; with nothing to say it only registers."""

    def act(_: Acts) -> None:
        producer = Producer(inbox, who, type=Said, event_time="at")
        if ats:
            producer.append([Said(who, at) for at in ats])

    return act


def passes(seconds: int) -> Callable[[Acts], object]:
    return lambda clock: clock.pass_(seconds)


def test_a_producer_that_has_registered_holds_the_watermark_before_its_first_batch() -> None:
    inbox = MemoryStore()
    source = hr.sources.Inbox(inbox, Said, event_time="at")
    both = [says(inbox, "a", 50), says(inbox, "c", 100)]
    for act in both:
        act(Acts())
    actions = [passes(5), says(inbox, "b"), passes(6), says(inbox, "b", 60)]
    head, _ = run(source, actions=actions, idle_after="10s")
    assert head.frontiers_of("in").parts["a"].idle
    assert head.counts["windows"].records == 3
    assert head.counts["windows"].late == 0
    assert head.frontiers_of("in").low == 60


def test_a_producer_that_registered_and_stays_silent_becomes_idle() -> None:
    inbox = MemoryStore()
    source = hr.sources.Inbox(inbox, Said, event_time="at")
    actions = [says(inbox, "a", 100), says(inbox, "b"), passes(9), says(inbox, "a", 120), passes(2)]
    head, _ = run(source, actions=actions, idle_after="10s")
    assert head.frontiers_of("in").parts["b"].idle
    assert head.frontiers_of("in").low == 120


def test_what_was_announced_is_remembered_by_the_next_driver() -> None:
    inbox, store = MemoryStore(), MemoryStore()
    source = hr.sources.Inbox(inbox, Said, event_time="at")
    head, _ = run(source, actions=[says(inbox, "b")], store=store)
    assert head.frontiers_of("in").parts["b"].counts


@pytest.mark.parametrize("how", ["expect", "producers"])
def test_an_expected_producer_that_never_came_holds_the_watermark_whatever_is_idle(
    how: str,
) -> None:
    inbox = MemoryStore()
    producers = ("a", "b") if how == "producers" else None
    expect = ("a", "b") if how == "expect" else ()
    source = hr.sources.Inbox(inbox, Said, event_time="at", producers=producers)
    silent = [says(inbox, "a", 100), passes(60), passes(3_600)]
    head, _ = run(source, actions=silent, idle_after="10s", expect=expect)
    assert head.frontiers_of("in").low == MIN_TIME
    text = explain(why(head, "windows", 0))
    assert "partition 'b', which is expected: nothing has come from it yet" in text
    assert "idle_after" not in text, "it would not help"
    inbox = MemoryStore()
    source = hr.sources.Inbox(inbox, Said, event_time="at", producers=producers)
    came = [says(inbox, "a", 100), passes(60), says(inbox, "b"), passes(9), passes(2)]
    head, _ = run(source, actions=came, idle_after="10s", expect=expect)
    assert head.frontiers_of("in").low == 100, "once it came it can become idle"


def test_who_is_expected_no_more_holds_nothing() -> None:
    inbox, store = MemoryStore(), MemoryStore()
    source = hr.sources.Inbox(inbox, Said, event_time="at")
    head, _ = run(source, actions=[says(inbox, "a", 100)], store=store, expect=("a", "b"))
    assert head.frontiers_of("in").low == MIN_TIME
    head, _ = run(source, actions=[says(inbox, "a", 101)], store=store, expect=("a",))
    assert head.frontiers_of("in").low == 101


def test_a_source_may_begin_to_name_its_partitions_and_cease_to() -> None:
    store = MemoryStore()
    items = [Said("a", 50), Said("b", 40), Said("a", 60), Said("b", 70), Said("a", 80)]

    def until(count: int, **how: Any) -> Head:
        class Some(hr.sources.Iterable):
            bounded = False

            def offer(self, position: Any, limit: Limit) -> Offer | None:
                if position >= count:
                    return None
                offer = super().offer(position, msgspec.structs.replace(limit, rows=1))
                assert offer is not None
                return msgspec.structs.replace(offer, final=False)

        return run(Some(lambda: items, Said, event_time="at", **how), store=store)[0]

    assert until(1).frontiers_of("in").low == 50
    assert until(3, partition="who").frontiers_of("in").low == 50
    assert until(4, partition="who").frontiers_of("in").low == 60, "the nameless one has ended"
    assert until(5).frontiers_of("in").low == 80, "and so have those with names"


# -- refused ------------------------------------------------------------------------------------


def inject(source: hr.sources.Source, **rules: Any) -> hr.Stream:
    return hr.Pipeline("p").inject("in", source, **rules)


class OneReader(SimpleDataSourceStreamReader):
    def initialOffset(self) -> int:
        return 0

    def read(self, start: Any) -> tuple[Iterator[Any], Any]:
        return iter([]), start

    def readBetweenOffsets(self, start: Any, end: Any) -> Iterator[Any]:
        return iter([])


class One(DataSource):
    def schema(self) -> StructType:
        return StructType().add("who", StringType()).add("at", LongType())

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return OneReader()


SEVERAL = {"parts": "{}", "cuts": "[1]"}


def test_what_a_source_cannot_know_is_refused_when_it_is_drawn(tmp_path: Any) -> None:
    (tmp_path / "a.jsonl").write_text('{"who": "a", "at": 1}\n')
    plain = [
        hr.sources.Iterable([], Said, event_time="at"),
        hr.sources.Files(tmp_path, type=Said, event_time="at"),
        hr.sources.SparkReader(One({}), event_time="at"),
    ]
    for source in plain:
        with pytest.raises(PipelineError, match=r"does not say whose .*expect=\('eu',\)"):
            inject(source, expect=("eu",))
        with pytest.raises(PipelineError, match="bounded_delay"):
            inject(source, watermark=hr.exact())
        inject(source, skew_limit="5m", idle_after="1m")  # (it is held back as a whole)
    named = [
        hr.sources.Iterable([], Said, event_time="at", partition="who"),
        hr.sources.SparkReader(Several(SEVERAL), event_time="at"),
        hr.sources.SparkReader(One({}), event_time="at", partition="who"),
    ]
    for source in named:
        inject(source, expect=("eu",), idle_after="1m")
        with pytest.raises(PipelineError, match="exact"):
            inject(source, watermark=hr.exact())
        with pytest.raises(PipelineError, match="cannot hold back one of its partitions"):
            inject(source, skew_limit="5m")


def test_a_source_that_names_partitions_must_say_that_it_does() -> None:
    class Undeclared(hr.sources.Iterable):
        def splits(self, start: Any, end: Any) -> list[Split]:
            (split,) = super().splits(start, end)
            return [msgspec.structs.replace(split, partition="eu")]

    source = Undeclared([Said("a", 1)], Said, event_time="at")
    with pytest.raises(PipelineError, match="names partition 'eu'"):
        run(source)


def test_columns_that_cannot_name_partitions_are_refused() -> None:
    with pytest.raises(PipelineError, match="no field 'whose'"):
        hr.sources.Iterable([], Said, event_time="at", partition="whose")
    with pytest.raises(PipelineError, match="no column 'whose'"):
        hr.sources.SparkReader(Several(SEVERAL), event_time="at", partition=("who", "whose"))
    with pytest.raises(PipelineError, match="type double"):
        checked_columns("x", pa.schema({"x": pa.float64()}), "here")


@pytest.mark.parametrize("name", [None, "", 1.5, "\udcff", datetime(2026, 1, 2, tzinfo=UTC)])
def test_an_item_that_does_not_name_its_partition_is_bad_input(name: Any) -> None:
    items = [Said("a", 1), Said("b", 2)]
    source = hr.sources.Iterable(
        lambda: items, Said, event_time="at", partition=lambda item: {"a": "x", "b": name}[item.who]
    )
    with pytest.raises(BadInput, match="item 2"):
        run(source, rows=5)


def test_values_of_items_name_partitions_as_a_column_of_them_does() -> None:
    for values in [[True, False], [date(2026, 1, 2), date(987, 1, 1)], [7, -7], ["a", "b"]]:
        source = hr.sources.Iterable(
            lambda: range(2), int, event_time=lambda n: n, partition=values.__getitem__
        )
        named = source.read(source.splits(0, 2)[0]).column(PARTITION_COLUMN)
        raw = pa.table({"a": values})
        assert named.equals(with_partitions(raw, raw, ["a"], str).column(PARTITION_COLUMN))


def test_a_record_that_does_not_name_its_partition_is_bad_input() -> None:
    raw = pa.table({"a": ["x", None], "b": [1, 2]})
    with pytest.raises(BadInput, match="row 1"):
        with_partitions(raw, raw, ["a"], lambda row: f"row {row}")
    empty = pa.table({"a": ["x", ""], "b": [1, 2]})
    for columns in (["a"], ["a", "b"]):
        with pytest.raises(BadInput, match="row 1"):
            with_partitions(empty, empty, columns, lambda row: f"row {row}")


@pytest.mark.parametrize("name", [None, "", 3])
def test_a_function_that_names_no_partition_of_a_reader_is_named_with_the_remedy(name: Any) -> None:
    options = {"parts": json.dumps({"eu": [1]}), "cuts": "[1]"}
    source = hr.sources.SparkReader(
        Several(options), event_time="at", partition=lambda partition: name
    )
    with pytest.raises(UserCodeError, match="is not a name of a partition"):
        run(source)


@pytest.mark.parametrize("rows", [20_000, 900])
def test_more_partitions_than_each_manifest_can_name_are_refused(rows: int) -> None:
    """In one step that reads them all, and in many steps that read some each."""
    items = [Said(str(number), 1) for number in range(MOST_PARTITIONS + 1)]
    source = hr.sources.Iterable(items, Said, event_time="at", partition="who")
    with pytest.raises(PipelineError, match="10,001 partitions at a time are too many") as raised:
        run(source, rows=rows)
    assert "injector" in raised.value.place


def test_no_two_partitions_of_several_columns_share_a_name() -> None:
    raw = pa.table({"a": ["x/y", "x", "x%2Fy"], "b": ["z", "y/z", "z"]})
    names = with_partitions(raw, raw, ["a", "b"], str).column(PARTITION_COLUMN).to_pylist()
    assert names[0] == "x%2Fy/z"
    assert len(set(names)) == 3


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers()), min_size=1))
def test_times_are_told_apart_by_partition(records: list[tuple[str, int]]) -> None:
    records = [(who, at % 1000) for who, at in records]
    table = pa.table(
        {PARTITION_COLUMN: [who for who, _ in records], TIMESTAMP_COLUMN: [at for _, at in records]}
    )
    found = {who: times.tolist() for who, times in times_by_partition(table, None)}
    wanted: dict[str, list[int]] = {}
    for who, at in records:
        wanted.setdefault(who, []).append(at)
    assert found == wanted
