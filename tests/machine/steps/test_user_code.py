"""User code: what it sees, what it may do, and what happens when it fails."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.driver.driver import Driver
from headrace.errors import BadInput, HeadraceError, PipelineError, SchemaChanged, UserCodeError
from headrace.eventtime.timestamps import FIRST_DATE_US, LAST_DATE_US
from headrace.storage import MemoryStore
from headrace.testing import drive
from tests.support.pipelines import Collected, run_inline, run_until_read


class Item(msgspec.Struct):
    key: str | None
    n: int
    at: int


def run(
    computation: hr.Computation,
    items: list[Item],
    *,
    store: Any = None,
    rows: int = 100,
    name: str = "it",
    **options: Any,
) -> tuple[dict[str, Any], Driver]:
    pipeline, collected = hr.Pipeline("test"), Collected()
    stream = pipeline.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
    node = pipeline.compute(name, computation, keys={stream: "key"}, **options)
    for output in node.outputs:
        pipeline.sink(output, node[output], collected.sink(output))
    return collected.rows(), run_inline(pipeline, store=store, rows=rows, workers=2)


class Fussy(hr.Computation):
    """Counts, remembers, and cannot stand 13."""

    count = hr.ValueState(int, default=0)
    seen = hr.ListState(int)
    by = hr.MapState(int, list[int])
    tick = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += 1
        self.seen.append(record.value.n)
        self.by[0] = self.by.get(0, [])
        self.by[0].append(record.value.n)
        self.tick.set(record.timestamp_us)
        ctx.produce("out", self.count.value)
        if record.value.n == 13:
            raise ValueError("thirteen")

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", 100 + sum(self.seen) + 1000 * len(self.by[0]))


ITEMS = [Item("a", 1, 1), Item("a", 13, 2), Item("a", 2, 3), Item("b", 13, 4)]


def test_an_error_stops_the_pipeline_with_the_users_line_first() -> None:
    store = MemoryStore()
    with pytest.raises(UserCodeError) as caught:
        run(Fussy(), ITEMS, store=store)
    text = str(caught.value)
    assert text.startswith("[HR102] ValueError: thirteen")
    assert "computation 'it', key '" in text
    assert 'raise ValueError("thirteen")' in text
    assert "headrace/tasks" not in text
    assert len(store.list("manifests/")) == 1, "nothing but the claim was committed"


def test_after_the_code_is_mended_nothing_is_missing() -> None:
    class Mended(Fussy):
        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            ctx.produce("out", record.value.n)

        def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
            return

    store = MemoryStore()
    with pytest.raises(UserCodeError):
        run(Fussy(), ITEMS, store=store, rows=1)
    rows, _ = run(Mended(), ITEMS, store=store, rows=1)
    del rows
    _, driver = run(Mended(), ITEMS, store=store, rows=1)
    assert driver.coordinator.head is not None
    assert driver.coordinator.head.counts["it"].records == 4


def test_a_skipped_record_leaves_no_trace_in_state_timers_or_output() -> None:
    pipeline, collected = hr.Pipeline("test"), Collected()
    stream = pipeline.inject("items", hr.sources.Iterable(ITEMS, Item, event_time="at"))
    node = pipeline.compute("it", Fussy(), keys={stream: "key"}, on_error="skip")
    pipeline.sink("out", node, collected.sink("out"))
    driver = run_inline(pipeline)
    (rows,) = collected.rows()["out"]
    assert [(key, n) for key, _, n in rows] == [("a", 1), ("a", 2), ("a", 100 + 3 + 2000)]
    assert driver.coordinator.head is not None
    assert driver.coordinator.head.counts["it"].skipped == 2


def test_a_dead_letter_carries_the_record_and_the_users_lines() -> None:
    pipeline, collected = hr.Pipeline("test"), Collected()
    stream = pipeline.inject("items", hr.sources.Iterable(ITEMS, Item, event_time="at"))
    node = pipeline.compute("it", Fussy(), keys={stream: "key"}, on_error="dead_letter")
    pipeline.sink("dead", node["dead_letter"], collected.sink("dead"))
    run_inline(pipeline)
    ((first, second),) = collected.rows()["dead"]
    assert {first[0], second[0]} == {"a", "b"}
    assert first[2:4] == ("items", "ValueError: thirteen")
    assert 'raise ValueError("thirteen")' in first[4]
    assert msgspec.json.decode(first[5])["n"] == 13


def broken(method: Any) -> hr.Computation:
    class Broken(hr.Computation):
        state = hr.ValueState(int, default=0)
        out = hr.Output(int)
        alarm = hr.Timer(hr.EVENT_TIME)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            method(self, ctx, record)

        def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
            self.alarm.set(timer.time_us)

    return Broken()


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (lambda self, ctx, record: ctx.produce("nowhere", 1), "declares no output 'nowhere'"),
        (lambda self, ctx, record: ctx.produce("out", "one"), "carries <class 'int'>, not str"),
        (
            lambda self, ctx, record: ctx.produce("out", 1, timestamp=0),
            "event time never goes back",
        ),
        (lambda self, ctx, record: setattr(self, "other", 1), "is not a declared state"),
        (lambda self, ctx, record: setattr(self, "state", 1), "assign to its .value"),
        (
            lambda self, ctx, record: setattr(self.state, "value", "x"),
            "a value that it cannot keep",
        ),
        (lambda self, ctx, record: self.alarm.set(1.5), "time_us|tzinfo|float"),
        (lambda self, ctx, record: ctx.produce("out", 2**70), "cannot carry|too (big|large)"),
    ],
)
def test_what_user_code_may_not_do_is_refused_with_the_place(method: Any, says: str) -> None:
    with pytest.raises(UserCodeError, match=says) as caught:
        run(broken(method), [Item("a", 1, 5)])
    assert "computation 'it'" in str(caught.value)


def test_a_timer_that_sets_itself_behind_the_clock_for_ever_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.tasks.portions.LONGEST_STALL", 1000)
    with pytest.raises(UserCodeError, match=r"1001 timers .* set one after the other at or before"):
        run(broken(lambda self, ctx, record: self.alarm.set(3)), [Item("a", 1, 5)])


def test_a_null_key_is_named_with_its_record() -> None:
    with pytest.raises(BadInput, match="key 'key' of computation 'it' is null") as caught:
        run(Fussy(), [Item("a", 1, 1), Item(None, 2, 2)])
    assert "record 2 of stream 'items'" in str(caught.value)


class Kept(hr.Computation):
    """A computation with state of one type, and then of another."""

    state = hr.ValueState(int, default=0)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.state.value = record.value.n


class Changed(Kept):
    state = hr.ValueState(str, default="")  # type: ignore[assignment]


class More(Kept):
    more = hr.ValueState(str, default="")


def test_state_of_another_type_is_refused_with_the_difference() -> None:
    store = MemoryStore()
    run(Kept(), [Item("a", 1, 1)], store=store)
    with pytest.raises(SchemaChanged, match="'state' was value int, is value str\n"):
        run(Changed(), [Item("a", 1, 1)], store=store)
    with pytest.raises(SchemaChanged, match="computation 'it' is gone"):
        run(Kept(), [Item("a", 1, 1)], store=store, name="other")


def test_more_state_may_be_declared_later() -> None:
    store = MemoryStore()
    run(Kept(), [Item("a", 1, 1)], store=store)
    run(More(), [Item("a", 1, 1)], store=store)


class Counter(hr.Computation):
    """Has mutable state that is changed in place, and randomness."""

    bag = hr.ValueState(list[int], default=[])
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.bag.value.append(record.value.n)
        ctx.produce("out", f"{self.bag.value} {ctx.random():.6f}")


def test_a_mutable_value_changed_in_place_is_kept_across_restarts() -> None:
    items = [Item("a", n, n) for n in range(5)]
    undisturbed = Collected()
    restarted = Collected()
    for collected, stops in ((undisturbed, [5]), (restarted, [1, 2, 3, 4, 5])):
        store = MemoryStore()
        for stop in stops:
            pipeline = hr.Pipeline("test")
            source = hr.sources.Iterable(items[:stop], Item, event_time="at")
            stream = pipeline.inject("items", source)
            node = pipeline.compute("it", Counter(), keys={stream: "key"})
            pipeline.sink("out", node, collected.sink("out"))
            if stop < 5:  # more will come: the input has not ended
                source.offer = _without_end(source.offer)  # type: ignore[method-assign]
            run_until_read(pipeline, store, stop, rows=1, workers=1, bins=256)
    texts = [[row[2] for rows in c.rows()["out"] for row in rows] for c in (undisturbed, restarted)]
    assert texts[0] == texts[1]
    assert texts[0][-1].startswith("[0, 1, 2, 3, 4]")


def _without_end(offer: Any) -> Any:
    def without(position: Any, limit: Any) -> Any:
        found = offer(position, limit)
        return None if found.empty else msgspec.structs.replace(found, final=False)

    return without


def sink_to_nowhere(pipeline: hr.Pipeline) -> None:
    pipeline.sink("s", next(iter(pipeline.injectors.values())).stream, hr.sinks.Console())


class NoTimerHandler(hr.Computation):
    t = hr.Timer(hr.EVENT_TIME)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        return


class NoHandler(hr.Computation):
    pass


class BadState(hr.Computation):
    s = hr.ValueState(object)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        return


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda p, s: p.compute("x", Kept(), keys={s: "nothing"}), "which it does not have"),
        (lambda p, s: p.compute("x", Kept(), keys={s: lambda row: 0}), "names no columns"),
        (lambda p, s: p.compute("x", Kept(), keys={s: None}), "names no columns"),
        (lambda p, s: p.compute("x", Kept(), keys={s: b"key"}), "names no columns"),
        (lambda p, s: p.compute("x", Kept(), keys={s: ("key", 1)}), "names no columns"),
        (lambda p, s: p.compute("x", Kept(), keys={s: hr.Salt(4)}), "names no columns"),
        (lambda p, s: p.compute("x", Kept(), keys={s: ("key", hr.Salt("4"))}), "at least one part"),
        (lambda p, s: p.compute("x", Kept(), keys="key"), "says of no stream"),
        (lambda p, s: p.compute("x", Kept(), keys={}), "reads no stream"),
        (lambda p, s: p.compute("items", Kept(), keys={s: "key"}), "already the name"),
        (lambda p, s: p.compute("9x", Kept(), keys={s: "key"}), "cannot be the name"),
        (lambda p, s: p.compute("x", NoHandler(), keys={s: "key"}), "has no process_record"),
        (lambda p, s: p.compute("x", NoTimerHandler(), keys={s: "key"}), "has no process_timer"),
        (
            lambda p, s: p.compute("x", BadState(), keys={s: "key"}),
            "state can have|of the declared",
        ),
        (lambda p, s: p.compute("x", object(), keys={s: "key"}), "is not a Computation"),
        (lambda p, s: p.compute("x", Kept(), keys={s: "key"})["out"], "has no output 'out'"),
        (
            lambda p, s: p.compute(
                "x",
                Kept(),
                keys={
                    hr.Pipeline("o").inject(
                        "i", hr.sources.Iterable([], Item, event_time="at")
                    ): "key"
                },
            ),
            "not a stream of pipeline",
        ),
        (lambda p, s: sink_to_nowhere(p), "reads injector 'items' directly"),
        (lambda p, s: p.inject("y", [1, 2]), "is not a source"),
        (lambda p, s: p.check_complete(), "has no computation"),
    ],
)
def test_a_wrong_drawing_is_refused_when_it_is_drawn(wrong: Any, says: str) -> None:
    pipeline = hr.Pipeline("test")
    stream = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    with pytest.raises(PipelineError, match=says):
        wrong(pipeline, stream)


def test_every_error_has_a_code_of_its_own() -> None:
    def all_of(kind: type[HeadraceError]) -> list[type[HeadraceError]]:
        return [kind, *(sub for child in kind.__subclasses__() for sub in all_of(child))]

    seen_outside = [kind for kind in all_of(HeadraceError) if not kind.__name__.startswith("_")]
    codes = [kind.code for kind in seen_outside]
    assert len(set(codes)) == len(codes)


class Careless(hr.Computation):
    """Sets and produces what cannot be kept, for some records."""

    state = hr.ValueState(int, default=0)
    alarm = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(Item)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        n = record.value.n
        self.state.value = "not a number" if n == 1 else n
        if n == 2:
            self.alarm.set(2**64)
        ctx.produce("out", Item(None, "x" if n == 3 else n, 0))  # type: ignore[arg-type]

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        return


def test_a_policy_covers_values_that_cannot_be_kept_or_carried() -> None:
    pipeline, collected = hr.Pipeline("test"), Collected()
    items = [Item("a", n, n) for n in range(5)]
    stream = pipeline.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
    node = pipeline.compute("it", Careless(), keys={stream: "key"}, on_error="dead_letter")
    pipeline.sink("out", node["out"], collected.sink("out"))
    pipeline.sink("dead", node["dead_letter"], collected.sink("dead"))
    run_inline(pipeline)
    assert [row[3] for row in collected.rows()["out"][0]] == [0, 4], "key, time, the item's key, n"
    errors = [row[3] for row in collected.rows()["dead"][0]]
    assert len(errors) == 3
    assert "not a number" in errors[0]


class Untimed(Fussy):
    tick = None  # type: ignore[assignment]

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        return


def test_a_timer_may_not_be_removed_while_it_may_be_set() -> None:
    store = MemoryStore()
    run(Fussy(), [Item("a", 1, 1)], store=store)
    with pytest.raises(SchemaChanged, match="timer 'tick' is gone"):
        run(Untimed(), [Item("a", 1, 1)], store=store)


class HalfOfACharacter(hr.Computation):
    """Gives one of many things a text that is cut in the middle of a character."""

    tagged = hr.Timer(hr.EVENT_TIME)
    text = hr.ValueState(str)
    texts = hr.MapState(str, str)
    out = hr.Output(str)

    def __init__(self, where: str) -> None:
        self._where = where

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        cut = json.loads('"\\ud83d"') if record.value.n == 1 else "whole"
        match self._where:
            case "tag":
                self.tagged.set(record.timestamp_us + 10**9, tag=cut)
            case "value":
                self.text.value = cut
            case "map key":
                self.texts[cut] = "x"
            case "map value":
                self.texts["x"] = cut
            case "production":
                ctx.produce("out", cut)
            case "error" if record.value.n == 1:
                raise ValueError(f"what is {cut}?")

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        return


WHERE = ["tag", "value", "map key", "map value", "production", "error"]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("on_error", ["skip", "dead_letter", "stop"])
def test_half_of_a_character_is_the_handlers_error_wherever_it_is_put(
    where: str, on_error: Any
) -> None:
    pipeline = hr.Pipeline("cut")
    stream = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    options = {} if on_error == "stop" else {"on_error": on_error}
    pipeline.compute("it", HalfOfACharacter(where), keys={stream: "key"}, **options)
    with drive(pipeline, workers=1, bins=1) as driven:
        for number in range(3):
            driven.push("items", Item(str(number), number, number))
        if on_error == "stop":
            with pytest.raises(UserCodeError):
                driven.step()
            return
        driven.step()
        assert driven.counts("it").skipped == 1
        assert driven.counts("it").records == 3


class CountsRecords(hr.Computation):
    count = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += 1
        ctx.produce("out", self.count.value)


class CountsBatches(hr.ColumnarComputation):
    counts = hr.TableState({"n": int})
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.counts.at(batch.keys)
        rows.upsert(n=rows["n"] + batch.counts)
        ctx.produce("out", batch.keys, rows["n"] + batch.counts)


@pytest.mark.parametrize("kind", [CountsRecords, CountsBatches])
@pytest.mark.parametrize("year", [None, "late", "early"])
def test_a_key_that_is_no_date_is_refused_for_several_would_be_the_same_key(
    kind: Any, year: str | None, tmp_path: Path
) -> None:
    micros = {
        None: [0, LAST_DATE_US, FIRST_DATE_US],
        "late": [0, LAST_DATE_US + 1],
        "early": [0, FIRST_DATE_US - 1],
    }[year]
    keys = pa.array(micros, pa.timestamp("us", tz="UTC"))
    pipeline = hr.Pipeline("dates")
    table = pa.table({"when": keys, "at": pa.array(range(len(micros)))})
    pq.write_table(table, tmp_path / "dated.parquet")
    stream = pipeline.inject("dated", hr.sources.Files(tmp_path, event_time="at"))
    node = pipeline.compute("it", kind(), keys={stream: "when"})
    collected = Collected()
    pipeline.sink("out", node["out"], collected.sink("out"))
    if year is None:
        run_inline(pipeline)
        assert len(collected.steps["out"][0][1]) == 3
        return
    with pytest.raises(BadInput, match="is not a date") as caught:
        run_inline(pipeline)
    assert "record 2" in str(caught.value)


DAYS = [0, 2_932_896, -719_162]  # 1970, and the last and the first that Python has


def dated(folder: Path, column: pa.Array, kind: hr.Computation, key: str, **how: Any) -> Collected:
    """Run a computation over a column of dates or durations that is read from Parquet."""
    table = pa.table({"when": column, "key": ["a"] * len(column), "at": range(len(column))})
    pq.write_table(table, folder / "dated.parquet")
    pipeline, collected = hr.Pipeline("dates"), Collected()
    stream = pipeline.inject("dated", hr.sources.Files(folder, event_time="at"))
    node = pipeline.compute("it", kind, keys={stream: key}, **how)
    pipeline.sink("out", node, collected.sink("out"))
    run_inline(pipeline)
    return collected


@pytest.mark.parametrize("kind", [CountsRecords, CountsBatches])
@pytest.mark.parametrize("day", [None, DAYS[1] + 1, DAYS[2] - 1])
def test_a_key_that_is_no_day_of_the_calendar_is_refused(
    kind: Any, day: int | None, tmp_path: Path
) -> None:
    days = pa.array(DAYS if day is None else [0, day], pa.int32()).view(pa.date32())
    if day is None:
        assert len(dated(tmp_path, days, kind(), "when").steps["out"][0][1]) == 3
        return
    with pytest.raises(BadInput, match=r"is not a date: -?\d+ days since 1970") as caught:
        dated(tmp_path, days, kind(), "when")
    assert "record 2" in str(caught.value)


class SaysWhen(hr.Computation):
    out = hr.Output(date)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value.when or date(1970, 1, 1))


@pytest.mark.parametrize("day", [DAYS[1] + 1, DAYS[2] - 7])
def test_a_value_that_is_no_day_of_the_calendar_is_refused(day: int, tmp_path: Path) -> None:
    days = pa.array([5, day, None], pa.int32()).view(pa.date32())
    with pytest.raises(BadInput, match="beyond the years 1 to 9999"):
        dated(tmp_path, days, SaysWhen(), "key")


def test_durations_finer_than_a_microsecond_are_cut_as_times_are(tmp_path: Path) -> None:
    for spans in ([1_001, 2_999, 3_000], [1_001, None, 2_000]):
        column = pa.array(spans, pa.duration("ns"))
        found = dated(tmp_path, column, hr.ops.Running(total=hr.ops.Sum("when")), "key")
        (row,) = found.steps["out"][0][1]
        assert row[-1] == timedelta(microseconds=sum((span or 0) // 1_000 for span in spans))


class SaysTexts(hr.ColumnarComputation):
    out = hr.Output(str)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        assert all(isinstance(text, str) for text in batch["text"]), "a null reads as empty"
        ctx.produce("out", batch.row_keys, batch["text"])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_text_that_is_not_there_reads_as_empty_in_whatever_type_it_is_stored(
    kind: pa.DataType, tmp_path: Path
) -> None:
    table = pa.table({"text": pa.array([None, "x", "é"], kind), "key": ["a"] * 3, "at": [1, 2, 3]})
    pq.write_table(table, tmp_path / "texts.parquet")
    pipeline, collected = hr.Pipeline("texts"), Collected()
    stream = pipeline.inject("texts", hr.sources.Files(tmp_path, event_time="at"))
    node = pipeline.compute("it", SaysTexts(), keys={stream: "key"})
    pipeline.sink("out", node, collected.sink("out"))
    run_inline(pipeline)
    assert [row[-1] for row in collected.steps["out"][0][1]] == ["", "x", "é"]
