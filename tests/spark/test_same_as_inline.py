"""What a pipeline can do comes to the same on Spark as inline, where nothing else tries it on Spark."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.control.control import Control
from headrace.driver.driver import Clock, Driver
from headrace.keyspace.layout import Layout
from headrace.keyspace.updates import Update
from headrace.ledger.commands import Command
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.ledger.migrations import Goal
from headrace.policies import How
from headrace.runners.base import Runner
from headrace.runners.inline import InlineRunner
from headrace.runners.spark.runner import SparkRunner
from headrace.sources.inbox import Producer
from headrace.sql.clock_functions import HoldsAt, MomentsOf
from headrace.sql.ir.expressions import Call, Ref
from headrace.sql.ir.types import BIGINT, BOOLEAN
from headrace.sql.rules.clock import current_time, moments
from headrace.storage import LocalStore, MemoryStore, Store, open_store
from tests.support import changing
from tests.support.changing import Item, Remembers, items
from tests.support.durations import us
from tests.support.hdfs import Hdfs
from tests.support.pipelines import Collected, run_inline, run_until_read
from tests.support.windows import Windows
from tests.unit.computation.test_patterns import Bid, Join, Person

pytestmark = pytest.mark.spark

#: What a scene comes to, for comparison.
Outcome = Any
Scene = Callable[[Callable[[], Runner], Path], Outcome]


def source(records: list[Item]) -> hr.sources.Source:
    return hr.sources.Iterable(records, Item, event_time="at")


def by_key(collected: Collected) -> dict[str, list[Any]]:
    """Return all rows of each sink, ordered: how many steps there were is another matter."""
    rows = collected.rows()
    return {name: sorted(row for step in steps for row in step) for name, steps in rows.items()}


def counts(driver: Driver) -> Any:
    head = driver.coordinator.head
    assert head is not None
    return head.counts, head.watermarks


class Ticking(Clock):
    """A clock that a look moves by a second."""

    def __init__(self) -> None:
        self._now = 0

    def now_us(self) -> int:
        self._now += 1_000_000
        return self._now

    def wait_until(self, until_us: int, woken: threading.Event) -> None:
        self._now = max(self._now, until_us)


def timers_of_the_wall_clock(runner: Callable[[], Runner], folder: Path) -> Outcome:
    pipeline, collected = hr.Pipeline("timers"), Collected()
    node = pipeline.compute(
        "remembers",
        Remembers(wall=True),
        keys={pipeline.inject("items", source(items(60))): "page"},
    )
    pipeline.sink("out", node, collected.sink("out"))
    driver = run_inline(
        pipeline,
        store=LocalStore(folder),
        workers=2,
        rows=7,
        runner=runner(),
        clock=Ticking(),
    )
    assert any("soon at" in row[2] for row in by_key(collected)["out"])
    return collected.rows(), counts(driver)


def rows_that_leave_by_the_clock(runner: Callable[[], Runner], folder: Path) -> Outcome:
    """A row stays until the clock is as many seconds past its beginning as its number says."""
    pipeline, collected = hr.Pipeline("leaving"), Collected()
    rows = hr.zsets.table("rows", pipeline.inject("items", source(items(60))))
    seconds = Call("unix_seconds", (current_time(),), BIGINT)
    condition = Call("less", (seconds, Ref(0, BIGINT)), BOOLEAN)
    holds, changes = HoldsAt(condition, (BIGINT,)), MomentsOf(moments(condition), (BIGINT,))
    rows.select(types={"c0": int}, c0=lambda row: row["n"] * 7).by_clock("leaving", holds, changes)
    pipeline.sink("out", pipeline.nodes["leaving"], collected.sink("out"))
    driver = run_inline(
        pipeline,
        store=LocalStore(folder),
        workers=2,
        rows=7,
        runner=runner(),
        clock=Ticking(),
    )
    weights = [row[-1] for row in by_key(collected)["out"]]
    assert min(weights) < 0 < max(weights)
    assert sum(weights) >= 0
    return collected.rows(), counts(driver)


class Echo(hr.Computation):
    """Produces what it gets."""

    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value.n)


class Numbered(msgspec.Struct):
    page: str
    number: int
    n: int
    at: int


def records_that_come_twice(runner: Callable[[], Runner], folder: Path) -> Outcome:
    """With ids, a record that comes again is dropped, except where exactly-once is off."""
    once = [Numbered(f"p{i % 3}", i, i % 5, i * 10) for i in range(40)]
    twice = [record for i, record in enumerate(once) for _ in range(1 + (i % 4 == 0))]
    pipeline, collected = hr.Pipeline("twice"), Collected()
    stream = pipeline.inject(
        "items",
        hr.sources.Iterable(twice, Numbered, event_time="at"),
        ids="number",
        horizon="10s",
    )
    for name, exactly_once in (("once", True), ("raw", False)):
        node = pipeline.compute(name, Echo(), keys={stream: "page"}, exactly_once=exactly_once)
        pipeline.sink(name, node, collected.sink(name))
    driver = run_inline(pipeline, store=LocalStore(folder), workers=2, rows=6, runner=runner())
    assert [len(by_key(collected)[name]) for name in ("once", "raw")] == [40, 50]
    return collected.rows(), counts(driver)


def a_percentile_watermark(runner: Callable[[], Runner], folder: Path) -> Outcome:
    """One record of forty is late; who goes by the percentile is ahead, and counts it as late."""
    late = [Item("x", 0, i * 10 - (2_000 if i % 40 == 39 else 0)) for i in range(300, 500)]
    pipeline, collected = hr.Pipeline("percentile"), Collected()
    stream = pipeline.inject(
        "items", source(late), watermark=hr.bounded_delay(us(2_100)), percentile=0.95
    )
    for name in ("low", "percentile"):
        node = pipeline.compute(name, Windows(), keys={stream: "page"}, watermark=name, late="drop")
        pipeline.sink(name, node, collected.sink(name))
    driver = run_inline(pipeline, store=LocalStore(folder), workers=2, rows=5, runner=runner())
    head = driver.coordinator.head
    assert head is not None
    assert (head.counts["low"].late, head.counts["percentile"].late) == (0, 5)
    return collected.rows(), counts(driver)


def aggregates_of_hot_keys(runner: Callable[[], Runner], folder: Path) -> Outcome:
    hot = [Item("hot" if i % 8 else f"p{i}", i, i * 10) for i in range(200)]
    pipeline, collected = hr.Pipeline("hot"), Collected()
    node = hr.ops.two_phase(
        pipeline,
        "pages",
        pipeline.inject("items", source(hot)),
        key="page",
        parts=4,
        seen=hr.ops.Count(),
        total=hr.ops.Sum("n"),
    )
    pipeline.sink("out", node, collected.sink("out"))
    driver = run_inline(pipeline, store=LocalStore(folder), workers=3, rows=20, runner=runner())
    newest = {row[0]: row[2:] for step in collected.rows()["out"] for row in step}
    assert newest["hot"] == (175, sum(i for i in range(200) if i % 8))
    return collected.rows(), counts(driver)


def windows_of_hot_keys(runner: Callable[[], Runner], folder: Path) -> Outcome:
    """In two phases, with aggregates of every kind, also sketches."""
    hot = [Item("hot" if i % 8 else f"p{i}", i % 13, i * 10) for i in range(200)]
    pipeline, collected = hr.Pipeline("hot"), Collected()
    node = hr.ops.two_phase(
        pipeline,
        "pages",
        pipeline.inject("items", source(hot)),
        key="page",
        parts=4,
        spread="n",
        size=us(500),
        every=us(250),
        late="drop",
        seen=hr.ops.Count(),
        last=hr.ops.Last("n"),
        each=hr.ops.Collect("n"),
        different=hr.ops.CountDistinct("n"),
        about=hr.ops.ApproxCountDistinct("n"),
        middle=hr.ops.Quantiles("n", 0.5),
    )
    pipeline.sink("out", node, collected.sink("out"))
    driver = run_inline(pipeline, store=LocalStore(folder), workers=3, rows=20, runner=runner())
    assert max(row[4] for step in collected.rows()["out"] for row in step) > 40
    return collected.rows(), counts(driver)


def keys_that_are_computed(runner: Callable[[], Runner], folder: Path) -> Outcome:
    parity = hr.Computed(
        lambda n: [("even", "odd")[value % 2] for value in n.to_pylist()], columns=("n",)
    )
    pipeline, collected = hr.Pipeline("computed"), Collected()
    stream = pipeline.inject("items", source(items(80)))
    node = pipeline.compute("echo", Echo(), keys={stream: parity})
    pipeline.sink("out", node, collected.sink("out"))
    driver = run_inline(pipeline, store=LocalStore(folder), workers=2, rows=9, runner=runner())
    assert {row[0] for row in by_key(collected)["out"]} == {"even", "odd"}
    return collected.rows(), counts(driver)


def two_inputs_and_posts(runner: Callable[[], Runner], folder: Path) -> Outcome:
    people = [Person(key, f"n{key}", key * 40) for key in range(8)]
    bids = [Bid(i % 9, i, i * 7) for i in range(60)]
    pipeline, collected = hr.Pipeline("joined"), Collected()
    left = pipeline.inject("people", hr.sources.Iterable(people, Person, event_time="at"))
    right = pipeline.inject("bids", hr.sources.Iterable(bids, Bid, event_time="at"))
    node = pipeline.compute("join", Join(), keys={left: "id", right: "bidder"})
    pipeline.sink("out", node, collected.sink("out"))
    driver = run_inline(pipeline, store=LocalStore(folder), workers=2, rows=5, runner=runner())
    said = {row[2].split()[0] for row in by_key(collected)["out"]}
    assert said >= {"nobody", "n0", "n7"}
    return collected.rows(), counts(driver)


class Stateless(hr.Computation):
    """Counts what came by on a worker, whatever its key."""

    seen = hr.PerWorker(int, default=0, merge=lambda one, other: one + other)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.seen.value += 1
        if record.value.n < 0:
            ctx.produce("out", self.seen.value)


def per_worker_state_of_fewer_workers(runner: Callable[[], Runner], folder: Path) -> Outcome:
    """Three workers, then one: what the two others had is merged into its own."""
    records = [*items(90), Item("last", -1, 10_000)]
    collected = Collected()

    def drawn() -> hr.Pipeline:
        pipeline = hr.Pipeline("stateless")
        node = pipeline.compute(
            "count", Stateless(), keys={pipeline.inject("items", source(records)): "page"}
        )
        pipeline.sink("out", node, collected.sink("out"))
        return pipeline

    store = LocalStore(folder)
    run_until_read(drawn(), store, 90, rows=9, workers=3, runner=runner())
    run_inline(drawn(), store=store, workers=1, rows=9, runner=runner())
    assert [row[2] for row in by_key(collected)["out"]] == [91]
    return collected.rows()


def an_update_at_exactly_its_step(runner: Callable[[], Runner], folder: Path) -> Outcome:
    """Published ahead by another process than the driver's, as data."""
    return updated(runner, folder, Update(6, workers=3, moves=[(0, 4, 3, 2)]))


def bins_that_are_split_and_merged(runner: Callable[[], Runner], folder: Path) -> Outcome:
    split = Update(5, splits=[(0, 4), (1 << 60, 4)])
    return updated(runner, folder, split, Update(9, merges=[(0, 4), (1 << 60, 4)]))


def updated(runner: Callable[[], Runner], folder: Path, *updates: Update) -> Outcome:
    def ask(driver: Driver, head: Head) -> None:
        if head.step == 2:
            for update in updates:
                put(driver, Command("update", update=update))

    driver, collected, _ = remembering(runner, folder, 100, rows=7, each_step=ask)
    layouts = [layout_at(driver.ledger, step) for step in range(1, 12)]
    changed = [at for at in range(2, 12) if layouts[at - 1] != layouts[at - 2]]
    assert changed == [update.step for update in updates]
    return layouts, collected.rows()


def a_move_that_is_taken_back(runner: Callable[[], Runner], folder: Path) -> Outcome:
    """Bins move one in each step. Half-way it is aborted, and those that have moved move back."""
    goal = Goal("rescale", 1, strategy=hr.fluid(gap=False))

    def ask(driver: Driver, head: Head) -> None:
        if head.step == 2:
            put(driver, Command("migrate", goal=goal))
        elif head.migration is not None and head.step == 6:
            put(driver, Command("abort_migration", migration=head.migration.id))

    driver, collected, _ = remembering(runner, folder, 200, rows=4, each_step=ask)
    head = driver.coordinator.head
    assert head is not None
    assert [move.state for move in head.migrations] == ["aborted"]
    layouts = [layout_at(driver.ledger, step) for step in range(1, head.step)]
    assert layouts[0] == layouts[-1] and len(set(layouts)) > 2
    return by_key(collected)


def a_layout_of_another_kind_and_a_drained_worker(
    runner: Callable[[], Runner], folder: Path
) -> Outcome:
    """Bins become as many as the imbalance allows; the drained worker stays empty."""
    goals = {
        2: Goal("rescale", 3, layout=hr.dynamic(0.1)),
        8: Goal("drain_workers", drained=[1]),
        14: Goal("rescale", 4, layout=hr.contiguous()),
    }

    def ask(driver: Driver, head: Head) -> None:
        if head.step in goals:
            put(driver, Command("migrate", goal=goals[head.step]))

    driver, collected, _ = remembering(runner, folder, 200, rows=8, each_step=ask)
    head = driver.coordinator.head
    assert head is not None and {move.state for move in head.migrations} == {"done"}
    workers, bins, owners = layout_at(driver.ledger, head.step)
    assert (workers, bins, set(owners)) == (4, 32, {0, 2, 3})
    assert head.layout_rules.drained == [1]
    return owners, by_key(collected)


def a_goal_with_an_objective(runner: Callable[[], Runner], folder: Path) -> Outcome:
    """Rounds are as large as keeps steps within it; here each may be as large as it likes."""

    def ask(driver: Driver, head: Head) -> None:
        if head.step == 3:
            put(driver, Command("migrate", goal=Goal("rescale", 4, objective_us=60_000_000)))

    driver, collected, _ = remembering(runner, folder, 120, rows=8, each_step=ask)
    head = driver.coordinator.head
    assert head is not None and [move.state for move in head.migrations] == ["done"]
    assert head.layout.workers == 4
    return by_key(collected)


class FailsAtOnce(hr.Computation):
    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        raise ValueError("not at all")


def a_change_that_is_taken_back(runner: Callable[[], Runner], folder: Path) -> Outcome:
    """What it adds raises at its first record; the pipeline goes on from the step that failed."""
    asked: list[Any] = []

    def draw(pipeline: hr.Pipeline) -> None:
        pipeline.compute("fails", FailsAtOnce(), keys={pipeline.streams()["items"]: "page"})

    def ask(driver: Driver, head: Head) -> None:
        if head.step == 3:
            asked.append(changing.ask(driver, draw))

    driver, collected, why = remembering(runner, folder, 100, rows=8, each_step=ask)
    (change,) = asked
    assert change.wait("0s") is not None and "not at all" in str(change.taken_back)
    assert why == "drained" and list(driver.pipeline.nodes) == ["remembers"]
    return by_key(collected)


class WantsThree:
    """A policy that wants three workers."""

    def decide(self, seen: Any) -> hr.policies.Rescale:
        return hr.policies.Rescale(3, "three are wanted")


def a_policy_that_rescales(runner: Callable[[], Runner], folder: Path) -> Outcome:
    how: dict[str, Any] = {"clock": Ticking(), "policy": WantsThree(), "how": How(every="2s")}
    driver, collected, _ = remembering(runner, folder, 200, rows=4, measure="1s", **how)
    head = driver.coordinator.head
    assert head is not None
    assert head.layout.workers == 3
    return by_key(collected)


def a_stop_after_an_agreed_step(runner: Callable[[], Runner], folder: Path) -> Outcome:
    def ask(driver: Driver, head: Head) -> None:
        if head.step == 2:
            put(driver, Command("stop", at_step=7))

    driver, collected, why = remembering(runner, folder, 100, rows=5, each_step=ask)
    assert why == "stopped"
    last = max(step for step in range(8) if driver.ledger.read(step)[0].delivery >= 0)
    assert last == 7
    return collected.rows()


def remembering(
    runner: Callable[[], Runner],
    folder: Path,
    records: int,
    *,
    rows: int,
    each_step: Callable[[Driver, Head], None] = lambda driver, head: None,
    measure: str | None = None,
    **how: Any,
) -> tuple[Driver, Collected, str]:
    """Run two workers to the end. Return the driver, what was produced, and why it has ended."""
    collected, pipeline = Collected(), hr.Pipeline("remembering")
    stream = pipeline.inject("items", source(items(records)))
    node = pipeline.compute("remembers", Remembers(), keys={stream: "page"})
    pipeline.sink("out", node, collected.sink("out"))
    limit = hr.Limit(rows, 1 << 20)
    driver = Driver(
        pipeline,
        LocalStore(folder),
        runner(),
        workers=2,
        bins=16,
        drain=True,
        settings=hr.Settings(limit=limit, retain_steps=1_000, measure=measure),
        **how,
    )
    driver.listeners.append(lambda summary: each_step(driver, summary.head))
    try:
        return driver, collected, driver.run()
    finally:
        driver.close()


def put(driver: Driver, command: Command) -> None:
    """Send a command through the storage, and let the driver look for it."""
    Control(driver.store).put(msgspec.structs.replace(command, nonce=uuid.uuid4().hex))
    driver.look_for_commands()


def layout_at(ledger: Ledger, step: int) -> tuple[int, int, tuple[int, ...]]:
    """Return the number of workers and of bins, and the owners of these."""
    head = ledger.open(step)
    assert head is not None
    layout = Layout.from_wire(head.layout)
    return layout.workers, len(layout), tuple(layout.owners.tolist())


def receipts_of_a_producer_and_of_a_delivery(runner: Callable[[], Runner], folder: Path) -> Outcome:
    """A producer learns what was recorded; a sink is told which input its rows come from."""
    inbox = LocalStore(folder / "inbox")
    producer = Producer(inbox, "a", type=Item, event_time="at")
    for record in items(12):
        producer.append([record])
    told: list[Any] = []

    def take(delivery: hr.sinks.Delivery) -> None:
        start, end = (at["next"].get("a", 0) for at in delivery.positions["items"])
        told.append((delivery.rows.num_rows, start, end))

    pipeline = hr.Pipeline("receipts")
    stream = pipeline.inject("items", hr.sources.Inbox(inbox.location, Item, event_time="at"))
    node = pipeline.compute("echo", Echo(), keys={stream: "page"})
    pipeline.sink("out", node, hr.sinks.Calls(take))
    store = LocalStore(folder / "store")
    driver = Driver(
        pipeline,
        store,
        runner(),
        workers=2,
        settings=hr.Settings(limit=hr.Limit(5, 1 << 20)),
    )

    def note(summary: hr.StepSummary) -> None:
        if summary.head.counts["echo"].records == 12:
            driver.request_stop()

    driver.listeners.append(note)
    try:
        driver.run()
    finally:
        driver.close()
    assert producer.recorded(store.location) == 12
    assert all(rows == end - start for rows, start, end in told)
    assert [start for _, start, _ in told] == [0, *(end for *_, end in told[:-1])]
    return sum(rows for rows, *_ in told)


SCENES: list[Scene] = [
    timers_of_the_wall_clock,
    rows_that_leave_by_the_clock,
    records_that_come_twice,
    a_percentile_watermark,
    aggregates_of_hot_keys,
    windows_of_hot_keys,
    keys_that_are_computed,
    two_inputs_and_posts,
    per_worker_state_of_fewer_workers,
    an_update_at_exactly_its_step,
    bins_that_are_split_and_merged,
    a_move_that_is_taken_back,
    a_layout_of_another_kind_and_a_drained_worker,
    a_goal_with_an_objective,
    a_change_that_is_taken_back,
    a_policy_that_rescales,
    a_stop_after_an_agreed_step,
    receipts_of_a_producer_and_of_a_delivery,
]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
@pytest.mark.drawn(7)
def test_it_comes_to_the_same_on_spark_as_inline(
    local_spark: Any, tmp_path: Path, scene: Scene
) -> None:
    context = local_spark.sparkContext
    inline = scene(InlineRunner, tmp_path / "inline")
    assert scene(lambda: SparkRunner(context, spares=0), tmp_path / "spark") == inline


@pytest.mark.soak
def test_a_pipeline_on_hdfs_stops_and_goes_on_with_other_workers(
    local_spark: Any, hdfs: Hdfs
) -> None:
    def ran(store: Store, runner: Callable[[], Runner]) -> Outcome:
        collected = Collected()

        def drawn() -> hr.Pipeline:
            pipeline = hr.Pipeline("distant")
            stream = pipeline.inject("items", source(items(60)))
            node = pipeline.compute("remembers", Remembers(), keys={stream: "page"})
            pipeline.sink("out", node, collected.sink("out"))
            return pipeline

        run_until_read(drawn(), store, 30, rows=10, workers=2, runner=runner())
        run_inline(drawn(), store=store, workers=3, rows=10, runner=runner())
        return collected.rows()

    context = local_spark.sparkContext
    inline = ran(MemoryStore(), InlineRunner)
    assert ran(open_store(hdfs.location()), lambda: SparkRunner(context, spares=0)) == inline
