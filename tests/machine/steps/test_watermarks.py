"""Watermarks of whole pipelines: partitions, promises, idleness, skew, percentiles, late records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.control.control import Control
from headrace.driver.driver import Driver
from headrace.errors import PipelineError
from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME
from headrace.ledger.ledger import Ledger
from headrace.observe.why import explain, why
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore, Store
from headrace.testing import drive
from tests.machine.steps.test_soft_state import Item
from tests.support.durations import us
from tests.support.pipelines import Collected
from tests.support.script import HandClock, Round, Said, Script
from tests.support.windows import Windows

SECOND = 1_000_000


class Echo(hr.Computation):
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value.at)


class EchoBatch(hr.ColumnarComputation):
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        ctx.produce("out", batch.row_keys, batch["at"])


class Run:
    """A pipeline that has run to its end, and what it was like after each step."""

    def __init__(
        self,
        rounds: list[Round],
        draw: Any,
        *,
        rows: int = 1_000,
        workers: int = 2,
        store: Store | None = None,
        **inject: Any,
    ) -> None:
        clock = HandClock()
        self.script = Script(rounds, clock)
        self.pipeline = hr.Pipeline("watched")
        self.collected = Collected()
        stream = self.pipeline.inject("in", self.script, **inject)
        for name, streams in draw(self.pipeline, stream).items():
            self.pipeline.sink(name, streams, self.collected.sink(name))
        self.store = store or MemoryStore()
        self.driver = Driver(
            self.pipeline,
            self.store,
            InlineRunner(),
            workers=workers,
            bins=16,
            drain=True,
            clock=clock,
            settings=hr.Settings(limit=hr.Limit(rows, 1 << 30)),
        )
        self.heads: list[Any] = []
        self.driver.listeners.append(lambda summary: self.heads.append(summary.head))
        self.driver.run()
        self.driver.close()

    def low(self, injector: str = "in") -> list[int]:
        return [head.frontiers_of(injector).low for head in self.heads]

    def outputs(self, sink: str) -> list[tuple[Any, ...]]:
        return [row for step in self.collected.rows().get(sink, []) for row in step]

    def steps_of(self, sink: str) -> list[list[tuple[Any, ...]]]:
        return self.collected.rows().get(sink, [])


def windows(pipeline: hr.Pipeline, stream: hr.Stream) -> dict[str, Any]:
    return {"out": pipeline.compute("windows", Windows(), keys={stream: "key"})}


def says(*records: int, key: str = "k") -> list[Said]:
    return [Said(key, at) for at in records]


# -- partitions -------------------------------------------------------------------------------


def test_the_slowest_partition_holds_the_watermark() -> None:
    rounds = [
        Round({"a": says(5), "b": says(3)}),
        Round({"a": says(25)}),
        Round({"b": says(8)}),
        Round({"b": says(31)}),
    ]
    run = Run(rounds, windows)
    assert run.low()[:4] == [3, 3, 8, 25]
    assert [row[2] for row in run.steps_of("out")[0]] == [3], "5, 3 and 8 are in the first window"
    assert run.heads[-1].counts["windows"].late == 0


def test_a_partition_that_is_expected_holds_the_watermark_before_it_comes() -> None:
    rounds = [Round({"a": says(50)}), Round({"a": says(90)}), Round({"b": says(60)})]
    run = Run(rounds, windows, expect=("a", "b"))
    assert run.low()[:3] == [MIN_TIME, MIN_TIME, 60]
    assert run.heads[-1].counts["windows"].late == 0


def test_a_partition_that_was_not_expected_can_come_too_late() -> None:
    rounds = [Round({"a": says(50)}), Round({"a": says(90)}), Round({"b": says(60)})]
    run = Run(rounds, windows)
    assert run.low()[:3] == [50, 90, 90]
    assert run.heads[-1].counts["windows"].late == 1


def test_a_partition_that_has_ended_holds_nothing() -> None:
    rounds = [
        Round({"a": says(5), "b": says(3)}, ended=frozenset("b")),
        Round({"a": says(25)}),
    ]
    assert Run(rounds, windows).low()[:2] == [5, 25]


def test_promises_move_the_watermark_without_any_record() -> None:
    rounds = [
        Round({"a": says(5)}, promises={"a": 2}),
        Round(promises={"a": 40}),
        Round(promises={"a": 40}),
        Round({"a": says(41)}),
    ]
    run = Run(rounds, windows, watermark=hr.exact())
    assert run.low() == [2, 40, 40, MAX_TIME], "saying it twice is not a news"
    assert [row[2] for row in run.steps_of("out")[0]] == [1], "the window closed by the promise"


# -- idleness ---------------------------------------------------------------------------------


def quiet_partition(back: Round) -> list[Round]:
    return [
        Round({"a": says(5), "b": says(3)}, now=0),
        Round({"a": says(25)}, now=5 * SECOND),
        Round({"a": says(30)}, now=11 * SECOND),
        back,
        Round({"a": says(50)}, now=13 * SECOND),
    ]


def test_a_quiet_partition_is_left_out_only_where_that_was_chosen() -> None:
    back = Round({"b": says(4)}, now=12 * SECOND)
    assert Run(quiet_partition(back), windows).low()[:5] == [3, 3, 3, 4, 4]
    run = Run(quiet_partition(back), windows, idle_after="10s")
    assert run.low()[:4] == [3, 3, 30, 30]
    assert run.heads[-1].counts["windows"].late == 1, "what it brings then may be late"


def test_a_partition_that_comes_back_holds_the_watermark_again() -> None:
    run = Run(quiet_partition(Round({"b": says(41)}, now=12 * SECOND)), windows, idle_after="10s")
    assert run.low()[:5] == [3, 3, 30, 30, 41]
    assert run.heads[-1].counts["windows"].late == 0


def test_the_clock_alone_makes_a_partition_idle() -> None:
    rounds = [
        Round({"a": says(25), "b": says(3)}, now=0),
        Round(now=9 * SECOND),
        Round({"a": says(26)}, now=9 * SECOND),
        Round(now=11 * SECOND),
        Round({"a": says(60)}, now=12 * SECOND),
    ]
    run = Run(rounds, windows, idle_after="10s")
    assert run.low() == [3, 3, 26, 60, MAX_TIME]
    assert len(run.steps_of("out")[0]) == 1, "the window closed in the step that read nothing"


def test_a_pause_makes_no_partition_idle() -> None:
    pipeline, store = hr.Pipeline("paused"), MemoryStore()
    stream = pipeline.inject("in", Script([]), idle_after="30s")
    pipeline.compute("windows", Windows(), keys={stream: "key"})
    with drive(pipeline, storage=store) as driven:

        def say(kind: Any) -> None:
            Control(store).ask(kind, [])
            assert driven._driver is not None
            driven._driver.requests.look_at_once()
            driven.run()

        driven.push("in", Said("k", 100), at=100, partition="a")
        driven.push("in", Said("k", 1), at=1, partition="b")
        driven.run()
        say("pause")
        driven.push("in", Said("k", 200), at=200, partition="a")
        driven.push("in", Said("k", 2), at=2, partition="b")
        driven.clock("+1h")
        driven.run()
        assert driven.counts("windows").records == 2
        Control(store).ask("resume", [])
        while driven.counts("windows").records < 4 and driven.now.hour < 3:
            driven.step(records=1)
            driven.clock("+1s")
        assert driven.counts("windows").late == 0, "b had something all the time"
        assert driven.watermark_of("in").input_us == 2
        driven.clock("+30s")
        driven.run()
        assert driven.watermark_of("in").input_us == 200, "now it has nothing"


# -- skew -------------------------------------------------------------------------------------


def stalled_for_an_hour() -> list[Round]:
    """Two partitions bring a record every ten seconds; then ``b`` stops, and ``a`` goes on for an hour."""
    at = [n * 10 * SECOND for n in range(380)]
    together = [Round({"a": says(time), "b": says(time)}) for time in at[:20]]
    alone = [Round({"a": says(time)}) for time in at[20:]]
    return [*together, *alone, Round({"b": says(*at[20:])})]


def test_a_partition_that_is_too_far_ahead_waits_outside() -> None:
    run = Run(stalled_for_an_hour(), windows, skew_limit="1m", rows=10)
    stalled = [head for head in run.heads if head.frontiers_of("in").low < 200 * SECOND]
    read = max(head.positions["in"].get("a", 0) for head in stalled)
    assert read <= 20 + 6 + 10, "what came before, what the limit allows, what one step takes"
    assert max(run.script.waiting) >= 340, "the rest waited outside"
    free = Run(stalled_for_an_hour(), windows, rows=10_000)
    assert sorted(run.outputs("out")) == sorted(free.outputs("out"))
    assert run.heads[-1].counts["windows"].late == 0


def test_a_skew_limit_is_between_injectors_that_one_computation_reads() -> None:
    clock = HandClock()
    fast = Script([Round({"": says(n * SECOND)}) for n in range(100)], clock)
    slow = Script([Round()] * 90 + [Round({"": says(200 * SECOND)})], clock)
    pipeline = hr.Pipeline("two")
    left = pipeline.inject("fast", fast, skew_limit="10s")
    right = pipeline.inject("slow", slow)
    pipeline.compute("windows", Windows(), keys={left: "key", right: "key"})
    driver = Driver(
        pipeline, MemoryStore(), InlineRunner(), workers=2, bins=16, drain=True, clock=clock
    )
    read = []
    driver.listeners.append(
        lambda s: read.append((s.head.watermark_of("windows")[0], s.head.highest))
    )
    driver.run()
    driver.close()
    before = [highest["fast"] for low, highest in read if low == MIN_TIME]
    assert len(before) <= 2, "it does not run ahead of one that has not begun"
    assert read[-1][1]["fast"] == 99 * SECOND


# -- percentile -------------------------------------------------------------------------------


def mostly_in_order() -> list[Round]:
    """A record each; one of forty is 2 000 late."""
    return [Round({"": says(n * 10 - (2_000 if n % 40 == 39 else 0))}) for n in range(300, 700)]


@pytest.mark.drawn(1)
def test_who_goes_by_the_percentile_watermark_is_earlier_and_misses_few() -> None:
    def draw(pipeline: hr.Pipeline, stream: hr.Stream) -> dict[str, Any]:
        sure = pipeline.compute("sure", Windows(), keys={stream: "key"})
        early = pipeline.compute("early", Windows(), keys={stream: "key"}, watermark="percentile")
        return {"sure": sure, "early": early}

    run = Run(mostly_in_order(), draw, watermark=hr.bounded_delay(us(2_100)), percentile=0.95)
    counts = run.heads[-1].counts
    assert counts["sure"].late == 0
    assert counts["early"].late == 10, "each of those that came behind counts as late"
    ahead = [h.watermark_of("early")[0] - h.watermark_of("sure")[0] for h in run.heads[50:-1]]
    assert min(ahead) > 1_500
    for head in run.heads:
        assert head.percentiles["sure"] >= head.watermark_of("sure")[1]
        assert head.percentiles["early"] == head.watermark_of("early")[1]


def test_a_computation_that_waits_for_all_holds_the_percentile_watermark_by_its_pending_timers() -> (
    None
):
    def draw(pipeline: hr.Pipeline, stream: hr.Stream) -> dict[str, Any]:
        sure = pipeline.compute("sure", Windows(), keys={stream: "key"})
        below = pipeline.compute("below", Echoed(), keys={sure: "value"}, watermark="percentile")
        return {"below": below}

    rounds = [Round({"": says(n * 10)}) for n in range(300, 600)]
    run = Run(rounds, draw, watermark=hr.bounded_delay(us(2_100)), percentile=0.95)
    assert run.heads[-1].frontiers_of("in").delays.quantile_us(0.95) == 0
    assert run.heads[-1].counts["below"].late == 0
    assert len(run.outputs("below")) == run.heads[-1].counts["sure"].produced


class Echoed(hr.Computation):
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value)


class Flushed(hr.Computation):
    """Counts, and says how many there were once a second has passed."""

    count = hr.ValueState(int, default=0)
    flush = hr.Timer(hr.WALL_TIME)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += 1
        if self.flush.when_us() is None:
            self.flush.set(int(ctx.now.timestamp() + 1) * 1_000_000)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", self.count.value)
        self.count.value = 0


@pytest.mark.parametrize("how", ["low", "percentile"])
def test_what_a_timer_of_the_wall_clock_causes_is_late_for_nobody(how: Any) -> None:
    pipeline = hr.Pipeline("flushed")
    source = hr.sources.Iterable([], Item, event_time="at")
    stream = pipeline.inject("in", source, watermark=hr.bounded_delay("10s"), percentile=0.95)
    flushed = pipeline.compute("flushed", Flushed(), keys={stream: "key"})
    pipeline.compute("below", Echoed(), keys={flushed: "key"}, watermark=how)
    with drive(pipeline, workers=2, bins=4) as driven:
        for number in range(40):
            driven.push("in", Item("x", number, number * 1_000_000))
            driven.step()
            driven.clock("+1s")
            driven.step()
        driven.run()
        assert driven.counts("below").late == 0
        assert driven.counts("below").records == driven.counts("flushed").produced > 30


def test_the_percentile_watermark_must_come_from_somewhere() -> None:
    pipeline = hr.Pipeline("p")
    stream = pipeline.inject("in", Script([]))
    with pytest.raises(PipelineError, match="no injector has one"):
        pipeline.compute("c", Windows(), keys={stream: "key"}, watermark="percentile")


# -- late records -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Echo, EchoBatch])
@pytest.mark.parametrize("workers", [1, 3])
def test_late_records_go_to_the_side_stream(kind: Any, workers: int) -> None:
    def draw(pipeline: hr.Pipeline, stream: hr.Stream) -> dict[str, Any]:
        node = pipeline.compute("echo", kind(), keys={stream: "key"}, late="side")
        again = pipeline.compute("again", Echo(), keys={node["late"]: "key"})
        return {"out": node["out"], "late": node["late"], "again": again}

    rounds = [
        Round({"": [Said("x", 5), Said("y", 9)]}),
        Round({"": [Said("y", 3), Said("x", 9), Said("x", 2), Said("y", 1)]}),
        Round({"": [Said("z", 12)]}),
    ]
    run = Run(rounds, draw, workers=workers)
    assert sorted(row[2] for row in run.outputs("out")) == [5, 9, 9, 12]
    assert sorted(run.outputs("late")) == [("x", 2, "x", 2), ("y", 1, "y", 1), ("y", 3, "y", 3)]
    by_key = [row[3] for row in run.outputs("late") if row[0] == "y"]
    assert by_key == [3, 1], "in their order"
    assert sorted(row[2] for row in run.outputs("again")) == [1, 2, 3], "they are not judged again"
    counts = run.heads[-1].counts
    assert (counts["echo"].late, counts["again"].late) == (3, 0)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=25), st.integers(0, 15))
@settings(max_examples=40)
def test_allowed_lateness_shifts_what_is_late(ats: list[int], allowed: int) -> None:
    def draw(pipeline: hr.Pipeline, stream: hr.Stream) -> dict[str, Any]:
        node = pipeline.compute(
            "echo", Echo(), keys={stream: "key"}, late="side", allowed_lateness=us(allowed)
        )
        return {"out": node["out"], "late": node["late"]}

    run = Run([Round({"": says(at)}) for at in ats], draw)
    on_time, late, highest = [], [], None
    for at in ats:
        (late if highest is not None and at < highest - allowed else on_time).append(at)
        highest = at if highest is None else max(highest, at)
    assert [row[2] for row in run.outputs("out")] == on_time
    assert [row[3] for row in run.outputs("late")] == late


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("kind", [Echo, EchoBatch])
def test_late_records_that_are_worked_on_are_counted(kind: Any, ordered: bool) -> None:
    def draw(pipeline: hr.Pipeline, stream: hr.Stream) -> dict[str, Any]:
        node = pipeline.compute(
            "echo",
            kind(),
            keys={stream: "key"},
            late="process",
            ordered=ordered,
            allowed_lateness=us(2),
        )
        return {"out": node}

    rounds = [
        Round({"": [Said("x", 5), Said("y", 9)]}),
        Round({"": [Said("y", 3), Said("x", 9), Said("x", 7), Said("y", 1)]}),
        Round({"": [Said("z", 12)]}),
    ]
    run = Run(rounds, draw)
    assert sorted(row[2] for row in run.outputs("out")) == [1, 3, 5, 7, 9, 9, 12]
    counts = run.heads[-1].counts["echo"]
    assert (counts.records, counts.late) == (7, 2)


@pytest.mark.parametrize(
    ("operator", "late"),
    [
        (lambda: hr.ops.Tumbling(us(10), n=hr.ops.Count()), 1),
        (lambda: hr.ops.Map(lambda batch: batch["at"], int), 0),
        (lambda: hr.ops.LastN(1), 2),
    ],
    ids=["judges itself", "keeps nothing", "is given them"],
)
def test_operators_count_each_late_record_once(operator: Any, late: int) -> None:
    def draw(pipeline: hr.Pipeline, stream: hr.Stream) -> dict[str, Any]:
        return {"out": pipeline.compute("op", operator(), keys={stream: "key"}, late="process")}

    run = Run([Round({"": says(5, 25)}), Round({"": says(24, 3)}), Round({"": says(40)})], draw)
    assert run.heads[-1].counts["op"].late == late


def test_what_computations_find_late_themselves_is_not_counted_twice() -> None:
    class Judges(hr.ColumnarComputation):
        default_late = "process"
        out = hr.Output(int)

        def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
            late = batch.timestamps_us < ctx.low_watermark_before_us - 5
            if late.any():
                ctx.drop_late(int(late.sum()))

    def draw(pipeline: hr.Pipeline, stream: hr.Stream) -> dict[str, Any]:
        return {"out": pipeline.compute("judges", Judges(), keys={stream: "key"})}

    run = Run([Round({"": says(5, 25)}), Round({"": says(24, 3)}), Round({"": says(40)})], draw)
    counts = run.heads[-1].counts["judges"]
    assert (counts.late, counts.records) == (2, 4), "24 was worked on, 3 was dropped"


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 7)), min_size=1, max_size=30),
    st.integers(1, 9),
    st.integers(1, 9),
)
@settings(max_examples=25, deadline=None)
def test_what_is_not_further_behind_than_the_rule_allows_is_late_in_no_cut_into_steps(
    moves: list[tuple[int, int]], rows: int, other: int
) -> None:
    newest, ats = 0, []
    for ahead, behind in moves:
        newest += ahead
        ats.append(max(0, newest - behind))

    def outputs(rows: int) -> list[Any]:
        pipeline, collected = hr.Pipeline("cut"), Collected()
        source = hr.sources.Iterable(ats, int, event_time=lambda at: at)
        stream = pipeline.inject("in", source, watermark=hr.bounded_delay(us(7)))
        node = pipeline.compute("windows", Windows(), keys={stream: "value"})
        pipeline.sink("out", node, collected.sink("out"))
        driver = Driver(
            pipeline,
            MemoryStore(),
            InlineRunner(),
            workers=1,
            bins=1,
            drain=True,
            settings=hr.Settings(limit=hr.Limit(rows, 1 << 30)),
        )
        driver.run()
        driver.close()
        assert driver.coordinator.head is not None
        assert driver.coordinator.head.counts["windows"].late == 0
        return sorted(row[0:3] for step in collected.rows().get("out", []) for row in step)

    assert outputs(rows) == outputs(other)


def test_a_side_stream_for_each_input() -> None:
    pipeline = hr.Pipeline("p")
    one = pipeline.inject("one", Script([]))
    two = pipeline.inject("two", Script([]))
    node = pipeline.compute("c", Windows(), keys={one: "key", two: "key"}, late="side")
    assert {"late0", "late1"} <= set(node.outputs)
    assert node.only_output().name == "c.out"


def test_a_declared_output_is_not_taken_for_the_side_stream() -> None:
    class Taken(Echo):
        late = hr.Output(int)

    pipeline = hr.Pipeline("p")
    stream = pipeline.inject("in", Script([]))
    with pytest.raises(PipelineError, match="side stream"):
        pipeline.compute("c", Taken(), keys={stream: "key"}, late="side")


# -- why --------------------------------------------------------------------------------------


def test_who_holds_a_watermark_is_told_with_the_remedy() -> None:
    def draw(pipeline: hr.Pipeline, stream: hr.Stream) -> dict[str, Any]:
        node = pipeline.compute("windows", Windows(), keys={stream: "key"})
        return {"below": pipeline.compute("below", Echoed(), keys={node: "value"})}

    rounds = [Round({"a": says(50)}, now=10 * SECOND), Round({"a": says(70)}, now=20 * SECOND)]
    run = Run(rounds, draw, expect=("a", "b"))
    head = run.heads[1]
    way = why(head, "below", 80 * SECOND)
    assert [stage.name for stage in way] == ["below", "windows", "in"]
    assert way[0].waits_for == "stream 'windows.out', at -"
    assert "partition 'b', which is expected" in way[-1].waits_for
    assert "start the process" in way[-1].remedy
    assert way[-1].since_step is None
    text = explain(way)
    assert "what to do" in text
    assert text.splitlines()[0].startswith("below: watermark -")


def test_since_when_a_watermark_stands_is_told() -> None:
    rounds = [
        Round({"a": says(50), "b": says(10)}, now=10 * SECOND),
        Round({"a": says(70)}, now=20 * SECOND),
        Round({"a": says(90)}, now=30 * SECOND),
    ]
    run = Run(rounds, windows)
    (_, injector) = why(run.heads[1], "windows.out", 70 * SECOND)
    assert (injector.since_step, injector.since_s) == (1, 60)
    assert "partition 'b'" in injector.waits_for
    assert "1.0 min ago" in injector.waits_for
    ended = why(run.driver.coordinator.head, "windows", 70 * SECOND)  # type: ignore[arg-type]
    assert ended[-1].waits_for == "nothing: all input has ended"


def test_a_name_that_is_not_there_is_told_with_those_that_are() -> None:
    run = Run([Round({"a": says(50)})], windows)
    head = Ledger(run.store).open()
    assert head is not None
    with pytest.raises(PipelineError, match="in, windows"):
        why(head, "nobody", 0)


# -- mistakes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inject", "compute", "text"),
    [
        ({"watermark": "10s"}, {}, "not a way to seed a watermark"),
        ({"watermark": hr.bounded_delay}, {}, "hr.bounded_delay"),
        ({"expect": "eu"}, {}, "is one text, and no list of names"),
        ({"expect": (1, 2)}, {}, "names no partitions"),
        ({"percentile": "0.9"}, {}, "not a share of the records"),
        ({"idle_after": 0.5}, {}, "idle_after=0.5 is a number, and a duration needs a unit"),
        ({}, {"late": "sides"}, "choose one of: 'drop', 'side', 'process'"),
        ({}, {"watermark": "percentil"}, "choose one of: 'low', 'percentile'"),
        ({}, {"on_error": "ignore"}, "choose one of: 'stop', 'skip', 'dead_letter'"),
        ({}, {"allowed_lateness": 1.5}, "allowed_lateness=1.5 is a number"),
    ],
)
def test_what_is_not_known_is_refused_where_it_is_drawn(
    inject: dict[str, Any], compute: dict[str, Any], text: str
) -> None:
    pipeline = hr.Pipeline("mistaken")
    with pytest.raises(PipelineError, match=text):
        pipeline.compute(
            "it", Echo(), keys={pipeline.inject("in", Script([]), **inject): "key"}, **compute
        )


def test_a_delay_is_not_negative() -> None:
    with pytest.raises(PipelineError, match="0 or more"):
        hr.bounded_delay(us(-10))
