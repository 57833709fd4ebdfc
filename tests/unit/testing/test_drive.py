"""The test driver, as a user meets it."""

from __future__ import annotations

import dataclasses
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import BadInput, DriveError, UserCodeError, WrongPipeline
from headrace.storage import MemoryStore
from headrace.testing import CrashPoint, Harness, PendingTimer, drive

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
SECOND = 1_000_000


class Hit(msgspec.Struct):
    page: str
    size: int
    at: datetime


class Total(msgspec.Struct):
    hits: int
    bytes: int


class Visits(hr.Computation):
    """Adds up a page's hits; says so ten seconds after the last, and when a minute of waiting is over."""

    hits = hr.ValueState(int, default=0)
    sizes = hr.ListState(int)
    by_size = hr.MapState(int, int)
    idle = hr.Timer(hr.EVENT_TIME)
    waited = hr.Timer(hr.WALL_TIME)
    totals = hr.Output(Total)
    alarms = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        size = record.value.size
        if size < 0:
            raise ValueError(f"size {size}")
        self.hits.value += 1
        self.sizes.append(size)
        self.by_size[size] = self.by_size.get(size, 0) + 1
        self.idle.set(record.timestamp_us + 10 * SECOND)
        self.waited.set(ctx.now + timedelta(minutes=1), tag=ctx.key)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        if timer.name == "waited":
            ctx.produce("alarms", f"{timer.tag} waits")
        else:
            ctx.produce("totals", Total(self.hits.value, sum(self.sizes)))


class Sizes(hr.ColumnarComputation):
    """Counts each size of a page."""

    pages = hr.TableState({"hits": int, "newest": datetime})
    sizes = hr.TableState({"hits": int}, sub={"size": int})
    close = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.pages.at(batch.keys)
        rows.upsert(hits=rows["hits"] + batch.counts, newest=batch.keys.times_us)
        self.sizes.at(batch.row_keys[:1], size=batch["size"][:1]).upsert(hits=1)
        self.close.set(batch.keys, batch.keys.times_us + 10 * SECOND, tags=7)

    def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
        ctx.produce("out", fired.keys, self.pages.at(fired.keys)["hits"])


def drawn(on_error: Any = "stop", computation: Any = None, name: str = "traffic") -> hr.Pipeline:
    def unreachable(step: int, rows: Any) -> None:
        raise AssertionError("the drawn sink is not used in a test")

    pipeline = hr.Pipeline(name)
    source = hr.sources.Iterable([], Hit, event_time="at")
    hits = pipeline.inject("hits", source, watermark=hr.bounded_delay("5s"))
    code = computation or Visits()
    visits = pipeline.compute("visits", code, keys={hits: "page"}, on_error=on_error)
    first = next(iter(visits.outputs))
    pipeline.sink("found", visits[first], hr.sinks.Calls(unreachable))
    return pipeline


def hit(page: str, second: int, size: int = 1) -> Hit:
    return Hit(page, size, NOON + timedelta(seconds=second))


def totals(harness: Harness, **kwargs: Any) -> list[tuple[str, int, int]]:
    return [(o.key, o.value.hits, o.value.bytes) for o in harness.outputs("found", **kwargs)]


def test_a_step_takes_all_that_was_pushed_and_a_test_reads_what_came_of_it() -> None:
    with drive(drawn(), clock=NOON) as t:
        t.push_many("hits", [hit("a", 0, 3), hit("b", 1), hit("a", 2, 3)])
        assert t.counts("visits").records == 0
        summary = t.step()
        assert summary is not None
        assert summary.records == 3
        assert t.step() is None
        assert t.state("visits", "a") == {"hits": 2, "sizes": [3, 3], "by_size": {3: 2}}
        assert t.state("visits", "nobody") == {"hits": 0, "sizes": [], "by_size": {}}
        assert sorted(t.keys("visits")) == ["a", "b"]
        assert [(p.name, p.tag, p.time) for p in t.timers("visits", "a")] == [
            ("idle", "", NOON + timedelta(seconds=12)),
            ("waited", "a", NOON + timedelta(minutes=1)),
        ]
        assert t.outputs("found") == []
        t.push("hits", hit("c", 17))  # the watermark follows by the drawn strategy: 12
        assert t.run() == 1
        assert totals(t) == [("b", 1, 1), ("a", 2, 6)]
        assert totals(t) == []
        assert len(totals(t, everything=True)) == 2
        assert t.watermark_of("visits").input == NOON + timedelta(seconds=12)


def test_a_time_beside_the_value_counts_and_a_dict_of_columns_will_do() -> None:
    with drive(drawn()) as t:
        t.push("hits", hit("a", 99), at="2024-05-01T12:00:00Z")
        t.push("hits", {"page": "a", "size": 2, "at": NOON}, at=NOON)
        t.run()
        assert t.timers("visits", "a")[-1].time == NOON + timedelta(seconds=10)
        assert t.state("visits", "a")["hits"] == 2


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"at": NOON}, "page"),
        ({"at": NOON, "page": "a", "size": 1, "sise": 2}, "sise"),
        ({"at": NOON, "page": "a", "size": "many"}, "size"),
        ({"at": NOON, "page": "a", "size": 1, 7: 2}, "7"),
        ({}, "Missing"),
        (None, "None"),
    ],
)
def test_a_dict_that_is_no_value_is_bad_input_with_its_number(value: Any, why: str) -> None:
    with drive(drawn()) as t:
        with pytest.raises(BadInput, match=f"not a Hit: .*{why}") as raised:
            t.push_many("hits", [hit("a", 0), value])
        assert raised.value.place == "value 2 of those pushed to 'hits'"
        assert t.step() is None, "nothing of it was pushed"


class Positive:
    """A base of records that look at what they are made of."""

    def __post_init__(self) -> None:
        if getattr(self, "size", 0) < 0:
            raise LookupError("a negative size")


@dataclasses.dataclass
class Sized(Positive):
    at: int
    size: int
    note: str | None


def test_a_dict_may_lack_what_may_be_none_and_is_made_by_its_class() -> None:
    pipeline = hr.Pipeline("sized")
    source = hr.sources.Iterable([], Sized, event_time="at")
    node = pipeline.compute("stores", Keeps(), keys={pipeline.inject("sized", source): "size"})
    pipeline.sink("found", node, hr.sinks.Console())
    with drive(pipeline) as t:
        t.push("sized", {"at": 1, "size": 2})
        t.run()
        assert [out.value for out in t.outputs("found")] == [Sized(1, 2, None)]
        with pytest.raises(BadInput, match="a negative size"):
            t.push("sized", {"at": 1, "size": -2})


class Keeps(hr.Computation):
    out = hr.Output(Sized)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value)


def test_event_timers_follow_the_watermark_that_is_moved_by_hand() -> None:
    with drive(drawn()) as t:
        t.push("hits", hit("a", 0))
        t.step()
        t.watermark("hits", NOON + timedelta(seconds=9))
        t.run()
        assert t.outputs("found") == []
        t.watermark("hits", "+1s")
        assert t.run() == 1
        assert [(o.timestamp, o.value) for o in t.outputs("found")] == [
            (NOON + timedelta(seconds=10), Total(1, 1))
        ]
        t.push("hits", hit("a", 9))
        t.push("hits", hit("a", 10))
        t.run()
        assert t.counts("visits").late == 1
        t.push("hits", hit("a", 60))  # the drawn strategy is still in force
        t.run()
        assert t.watermark_of("visits").input == NOON + timedelta(seconds=55)


def seconds_behind(seen: hr.Frontier) -> int:
    return seen.highest - 5 * SECOND


class Reached(hr.Computation):
    """Says of each hit, and of a timer two seconds later, in which step it was and how far time was."""

    due = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", ctx.low_watermark_us)
        self.due.set(record.timestamp_us + 2 * SECOND)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", ctx.low_watermark_us)


@pytest.mark.parametrize(
    "watermark",
    [hr.bounded_delay("5s"), hr.by_function(seconds_behind), hr.ascending(), hr.spark("5s")],
    ids=["bounded_delay", "by_function", "ascending", "spark"],
)
@settings(max_examples=25, deadline=None)
@given(seconds=st.lists(st.integers(0, 40), min_size=1, max_size=7))
@example(seconds=[0, 20, 21, 14])
def test_a_push_and_a_step_for_each_batch_do_what_a_run_with_these_batches_does(
    watermark: Any, seconds: list[int]
) -> None:
    hits = [hit("a", at) for at in seconds]
    delivered: list[tuple[int, Any, int]] = []

    def build() -> hr.Pipeline:
        p = hr.Pipeline("traffic")
        source = hr.sources.Iterable(hits, Hit, event_time="at")
        visits = p.compute(
            "visits", Reached(), keys={p.inject("hits", source, watermark=watermark): "page"}
        )
        p.sink("found", visits, hr.sinks.Calls(deliver))
        return p

    def deliver(step: int, rows: Any) -> None:
        for row in rows.to_pylist():
            delivered.append((step, str(row["timestamp"]), row["value"]))

    one_at_a_time = hr.Settings(limit=hr.Limit(rows=1, bytes=1 << 20))
    with hr.run(build(), storage=MemoryStore(), runner="inline", settings=one_at_a_time) as job:
        job.drain()
        late = job.current().counts["visits"].late
    with drive(build()) as t:
        for one in hits:
            t.push("hits", one)
            t.step()
        t.end()
        t.run()
        driven = [(o.step, str(o.timestamp), o.value) for o in t.outputs("found")]
        assert (driven, t.counts("visits").late) == (delivered, late)


def test_a_promise_counts_at_once_where_the_watermark_is_a_step_late() -> None:
    p = hr.Pipeline("traffic")
    source = hr.sources.Iterable([], Hit, event_time="at")
    hits = p.inject("hits", source, watermark=hr.spark("5s"))
    p.compute("visits", Reached(), keys={hits: "page"})
    with drive(p) as t:
        t.push("hits", hit("a", 0))
        t.push("hits", hit("a", 20))
        t.step()
        assert t.watermark_of("hits").input < NOON
        t.watermark("hits", NOON + timedelta(seconds=9))
        t.step()  # (the watermark of Spark is further by now)
        assert t.watermark_of("hits").input == NOON + timedelta(seconds=15, microseconds=1)
        t.watermark("hits", NOON + timedelta(seconds=17))
        assert t.run() == 1
        assert t.watermark_of("hits").input == NOON + timedelta(seconds=17)


def test_wall_timers_follow_the_clock_and_nothing_else() -> None:
    with drive(drawn(), clock=NOON) as t:
        t.push("hits", hit("a", 0))
        t.run()
        t.clock("+59s")
        assert t.run() == 0
        t.clock(NOON + timedelta(minutes=1))
        assert t.run() == 1
        assert [o.value for o in t.outputs("visits.alarms")] == ["a waits"]
        assert [p.name for p in t.timers("visits", "a")] == ["idle"]
        assert t.now == NOON + timedelta(minutes=1)


def test_the_end_of_the_input_fires_every_event_timer() -> None:
    with drive(drawn()) as t:
        t.push("hits", hit("a", 0))
        t.end("hits")
        t.run()
        assert totals(t) == [("a", 1, 1)]
        with pytest.raises(DriveError, match="'hits' has ended"):
            t.push("hits", hit("a", 1))


def test_a_summary_prints_as_one_line() -> None:
    with drive(drawn()) as t:
        t.push("hits", hit("a", 0))
        said = str(t.step())
        assert "step=1, records=1," in said and "visits: records=1" in said
        assert "\n" not in said and len(said) < 120


def test_a_step_may_be_cut_short() -> None:
    with drive(drawn()) as t:
        t.push_many("hits", [hit("a", n) for n in range(5)])
        steps = [t.step(records=2) for _ in range(4)]
        assert [None if step is None else step.records for step in steps] == [2, 2, 1, None]


def test_records_of_one_partition_keep_their_order_and_partitions_come_by_name() -> None:
    with drive(drawn()) as t:
        for size, partition in [(1, "y"), (2, "x"), (3, "y"), (4, "x")]:
            t.push("hits", hit("a", 0, size), partition=partition)
        t.step(records=3)
        assert t.state("visits", "a")["sizes"] == [2, 1, 3]
        t.step()
        assert t.state("visits", "a")["sizes"] == [2, 1, 3, 4]


def test_a_promise_holds_behind_what_was_pushed_before_it() -> None:
    with drive(drawn()) as t:
        t.push_many("hits", [hit("a", 0), hit("a", 1)])
        t.watermark("hits", NOON + timedelta(minutes=1))
        t.step(records=1)
        assert t.watermark_of("hits").input == NOON - timedelta(seconds=5)
        t.step(records=1)
        assert t.watermark_of("hits").input == NOON + timedelta(minutes=1)
        assert t.counts("visits").late == 0


def test_the_watermark_is_that_of_the_slowest_partition_that_is_there_and_not_idle() -> None:
    pipeline = hr.Pipeline("traffic")
    source = hr.sources.Inbox("memory:driven", Hit, event_time="at")
    hits = pipeline.inject("hits", source, watermark=hr.exact(), expect=["x", "y"], idle_after="1m")
    pipeline.compute("visits", Visits(), keys={hits: "page"}, late="side")
    with drive(pipeline, clock=NOON) as t:

        def reached() -> float:
            t.run()
            return (t.watermark_of("visits").input - NOON).total_seconds()

        t.push("hits", hit("a", 5), partition="x")
        t.watermark("hits", NOON + timedelta(seconds=5), partition="x")
        assert reached() < 0
        t.watermark("hits", NOON + timedelta(seconds=3), partition="y")
        assert reached() == 3
        t.clock("+59s")
        t.watermark("hits", NOON + timedelta(seconds=9), partition="x")
        assert reached() == 3
        t.clock("+1s")
        assert reached() == 9
        t.push("hits", hit("a", 4), partition="y")
        assert reached() == 9
        assert [o.value for o in t.outputs("visits.late")] == [hit("a", 4)]
        t.end("hits", partition="y")
        t.watermark("hits", NOON + timedelta(seconds=20), partition="x")
        assert reached() == 20
        with pytest.raises(DriveError, match="partition 'y' of injector 'hits' has ended"):
            t.push("hits", hit("a", 30), partition="y")


def test_a_partition_too_far_ahead_is_not_read_until_the_others_have_followed() -> None:
    pipeline = hr.Pipeline("traffic")
    source = hr.sources.Inbox("memory:driven", Hit, event_time="at")
    hits = pipeline.inject("hits", source, expect=["x", "y"], skew_limit="10s")
    pipeline.compute("visits", Visits(), keys={hits: "page"})
    with drive(pipeline, clock=NOON) as t:
        t.push("hits", hit("a", 0), partition="y")
        for second in range(0, 100, 5):
            t.push("hits", hit("a", second), partition="x")
            t.run()
        assert t.counts("visits").records < 6
        t.push("hits", hit("a", 100), partition="y")
        t.run()
        assert t.counts("visits").records == 22


def story(t: Harness, points: list[CrashPoint | None], workers: list[int]) -> Any:
    """Push and move, dying at some points; return all that can be seen of it in the end."""

    def go(number: int) -> None:
        point = points[number % len(points)]
        if point is not None:
            t.crash(point)
            t.resume(workers=workers[number % len(workers)])
        t.run()

    for number in range(12):
        t.push("hits", hit("ab"[number % 2], number * 4, number))
        go(number)
    t.clock("+1m")
    go(12)
    t.watermark("hits", NOON + timedelta(hours=1))
    go(13)
    outputs = {
        name: [(o.key, o.value, o.timestamp) for o in t.outputs(name, everything=True)]
        for name in ("found", "visits.alarms")
    }
    keys = {key: (t.state("visits", key), t.timers("visits", key)) for key in t.keys("visits")}
    return outputs, keys, t.watermark_of("visits"), t.counts("visits")


@pytest.mark.parametrize("point", ["between_steps", "before_commit", "before_release"])
def test_a_crash_changes_nothing_that_can_be_seen(point: CrashPoint) -> None:
    with drive(drawn(), clock=NOON) as calm, drive(drawn(), clock=NOON, workers=1, bins=1) as rough:
        assert story(rough, [point], [3, 1, 4]) == story(calm, [None], [2])


def test_what_a_crash_before_the_commit_has_done_is_gone_until_it_is_done_again() -> None:
    with drive(drawn()) as t:
        t.push("hits", hit("a", 0))
        t.crash("before_commit")
        assert t.keys("visits") == []
        t.run()
        assert t.state("visits", "a")["hits"] == 1


def test_what_was_committed_before_a_crash_reaches_the_sinks_after_it() -> None:
    with drive(drawn()) as t:
        t.push("hits", hit("a", 0))
        t.end()
        t.crash("before_release")
        assert totals(t) == []
        assert t.state("visits", "a")["hits"] == 1
        t.resume()
        assert totals(t) == [("a", 1, 1)]


def test_a_weak_sink_has_seen_a_step_that_was_lost_and_sees_nothing_else_when_it_is_made_again() -> (
    None
):
    pipeline = hr.Pipeline("traffic")
    hits = pipeline.inject("hits", hr.sources.Iterable([], Hit, event_time="at"))
    visits = pipeline.compute("visits", Visits(), keys={hits: "page"})
    for name, weak in (("totals", True), ("alarms", False)):
        pipeline.sink(name, visits[name], hr.sinks.Calls(lambda s, r: None), weak=weak)
    with drive(pipeline, clock=NOON) as t:
        t.push("hits", hit("a", 0))
        t.end()
        t.run()
        assert [o.value for o in t.outputs("totals")] == [Total(1, 1)]
    with drive(pipeline, clock=NOON) as t:
        t.push("hits", hit("a", 0))
        t.end()
        t.crash("before_commit")
        assert t.keys("visits") == []
        assert [o.value for o in t.outputs("totals")] == [Total(1, 1)]
        t.run()
        assert t.state("visits", "a")["hits"] == 1
        assert t.outputs("totals") == []


def test_duplicates_are_dropped_and_counted() -> None:
    pipeline = hr.Pipeline("traffic")
    source = hr.sources.Iterable([], Hit, event_time="at")
    hits = pipeline.inject("hits", source, ids=("page", "size"), horizon="1h")
    pipeline.compute("visits", Visits(), keys={hits: "page"})
    with drive(pipeline) as t:
        t.push_many("hits", [hit("a", 0), hit("a", 1)])
        t.run()
        t.crash()
        t.push_many("hits", [hit("a", 2), hit("a", 3, size=2)])
        t.run()
        assert t.state("visits", "a")["sizes"] == [1, 2]
        assert t.counts("hits.ids").duplicates == 2
        with pytest.raises(DriveError, match="it has: visits"):
            t.state("hits.ids", ("a", 1))


class Sender(hr.Computation):
    """Gathers for a while, and holds the watermark meanwhile."""

    gathered = hr.ListState(str)
    send = hr.Timer(hr.WALL_TIME, holds=True)
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.gathered.append(record.value.page)
        if len(self.gathered) == 1:
            self.send.set(ctx.now + timedelta(seconds=20), hold=record.timestamp_us)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", " ".join(self.gathered))
        self.gathered.clear()


def test_a_hold_is_seen_in_the_watermark_and_is_no_state_of_the_users() -> None:
    with drive(drawn(computation=Sender()), clock=NOON) as t:
        t.push("hits", hit("a", 30))
        t.watermark("hits", NOON + timedelta(minutes=1))
        t.run()
        assert t.state("visits", "a") == {"gathered": ["a"]}
        assert [p.name for p in t.timers("visits", "a")] == ["send"]
        reached = t.watermark_of("visits")
        assert (reached.input - NOON, reached.output - NOON) == (
            timedelta(minutes=1),
            timedelta(seconds=30),
        )
        t.crash()
        t.clock("+20s")
        t.run()
        assert [o.value for o in t.outputs("visits")] == ["a"]
        assert t.watermark_of("visits").output == NOON + timedelta(minutes=1)


def test_a_restart_may_bring_newer_code() -> None:
    class Loud(Visits):
        def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
            ctx.produce("totals", Total(-1, -1))

    with drive(drawn()) as t:
        t.push("hits", hit("a", 0))
        t.run()
        t.crash()
        t.resume(pipeline=drawn(computation=Loud()))
        t.end()
        t.run()
        assert totals(t) == [("a", -1, -1)]


def test_an_error_of_the_users_comes_plain_and_a_restart_goes_on_from_the_last_step() -> None:
    with drive(drawn()) as t:
        t.push("hits", hit("a", 0))
        t.run()
        t.push("hits", hit("a", 1, size=-1))
        for _ in range(2):
            with pytest.raises(UserCodeError, match="ValueError: size -1"):
                t.step()
            assert t.state("visits", "a")["hits"] == 1


def test_skipped_records_are_counted() -> None:
    with drive(drawn(on_error="skip")) as t:
        t.push_many("hits", [hit("a", 0), hit("a", 1, size=-1)])
        t.run()
        assert t.counts("visits").skipped == 1


def test_tables_and_timers_of_a_columnar_computation_can_be_read() -> None:
    with drive(drawn(computation=Sizes())) as t:
        t.push_many("hits", [hit("a", 0, 5), hit("a", 1, 5)])
        t.run()
        assert t.state("visits", "a") == {
            "pages": {"hits": 2, "newest": NOON + timedelta(seconds=1)},
            "sizes": {5: {"hits": 1}},
        }
        assert t.state("visits", "b") == {"pages": None, "sizes": {}}
        due = round((NOON + timedelta(seconds=11)).timestamp() * SECOND)
        assert t.timers("visits", "a") == [PendingTimer(due, "close", 7, hr.EVENT_TIME)]
        assert t.keys("visits") == ["a"]
        t.watermark("hits", NOON + timedelta(seconds=11))
        t.run()
        assert [(o.key, o.value) for o in t.outputs("visits")] == [("a", 2)]
        assert t.timers("visits", "a") == []


def test_storage_that_is_given_is_gone_on_with(tmp_path: Path) -> None:
    with drive(drawn(), storage=tmp_path) as t:
        t.push("hits", hit("a", 0))
        t.run()
    with drive(drawn(), storage=tmp_path, workers=4) as t:
        assert t.state("visits", "a")["hits"] == 1
    with pytest.raises(WrongPipeline):
        drive(drawn(name="another"), storage=tmp_path)


def test_the_pipeline_that_was_given_is_not_changed_and_runs_as_it_is() -> None:
    found: list[Any] = []
    pipeline = hr.Pipeline("traffic")
    source = hr.sources.Iterable([hit("a", 0)], Hit, event_time="at")
    node = pipeline.compute("visits", Visits(), keys={pipeline.inject("hits", source): "page"})
    pipeline.sink("found", node["totals"], hr.sinks.Calls(lambda s, r: found.extend(r.to_pylist())))
    with drive(pipeline) as t:
        t.push_many("hits", [hit("b", 0), hit("c", 0)])
        t.end()
        t.run()
        assert len(t.outputs("found")) == 2
    assert found == []
    with hr.run(pipeline, storage="memory:not-changed", runner="inline") as job:
        job.drain()
    assert [row["key"] for row in found] == ["a"]


def test_driving_starts_no_thread() -> None:
    before = set(threading.enumerate())
    with drive(drawn()) as t:
        t.push("hits", hit("a", 0))
        t.run()
        assert set(threading.enumerate()) <= before


def test_unknown_names_are_refused_with_those_that_there_are() -> None:
    with drive(drawn()) as t:
        for ask in (t.state, t.timers):
            with pytest.raises(
                DriveError, match="no computation 'visit'\n  remedy: it has: visits"
            ):
                ask("visit", "a")
        with pytest.raises(DriveError, match="no injector 'hit'\n  remedy: it has: hits"):
            t.push("hit", hit("a", 0))
        with pytest.raises(DriveError, match=r"visits\.totals, visits\.alarms, found"):
            t.outputs("total")


def test_what_cannot_be_is_refused() -> None:
    with drive(drawn(), clock=NOON) as t:
        with pytest.raises(DriveError, match="cannot go back"):
            t.clock(NOON - timedelta(seconds=1))
        t.watermark("hits", NOON)
        with pytest.raises(DriveError, match="the watermark of injector 'hits' stands at"):
            t.watermark("hits", NOON - timedelta(seconds=1))
        with pytest.raises(DriveError, match="not a point in time"):
            t.clock("soon")
        with pytest.raises(DriveError, match="no time zone"):
            t.push("hits", hit("a", 0), at="2024-05-01T12:00:00")
        with pytest.raises(DriveError, match="1 times were given for 2 values"):
            t.push_many("hits", [hit("a", 0), hit("a", 1)], at=[NOON])
        with pytest.raises(BadInput, match="field 'size' wants int"):
            t.push("hits", Hit("a", "large", NOON))  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="is not a"):
            t.push("hits", "a", at=NOON)
        t.run()
        with pytest.raises(DriveError, match="no step to crash in"):
            t.crash("before_commit")


def test_a_source_of_files_knows_the_time_of_a_value_that_has_it(tmp_path: Path) -> None:
    class Line(msgspec.Struct):
        page: str
        size: int
        at: str

    for kind in (Line, Hit):
        pipeline = hr.Pipeline("traffic")
        source = hr.sources.Files(tmp_path / "*.jsonl", event_time="at", type=kind)
        pipeline.compute("visits", Visits(), keys={pipeline.inject("hits", source): "page"})
        at: Any = NOON if kind is Hit else "2024-05-01T14:00:00+02:00"
        with drive(pipeline) as t:
            t.push("hits", kind("a", 1, at))
            t.run()
            assert t.timers("visits", "a")[-1].time == NOON + timedelta(seconds=10)


def test_a_source_that_reads_the_time_beside_the_value_is_given_it(tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_text(
        '{"page": "a", "size": 1, "when": "2024-05-01T12:00:00Z"}\n'
    )
    pipeline = hr.Pipeline("traffic")
    columns = {"page": str, "size": int}
    source = hr.sources.Files(tmp_path / "*.jsonl", event_time="when", schema=columns)
    pipeline.compute("visits", Visits(), keys={pipeline.inject("hits", source): "page"})
    with drive(pipeline) as t:
        with pytest.raises(DriveError, match="do not contain their event time"):
            t.push("hits", {"page": "a", "size": 1})
        t.push("hits", {"page": "a", "size": 1}, at=NOON)
        t.run()
        assert t.state("visits", "a")["hits"] == 1
