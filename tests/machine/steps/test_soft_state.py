"""Soft state costs time, never results: what is remembered is what would be read back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

import headrace as hr
from headrace.driver.driver import Driver
from headrace.errors import StorageError
from headrace.errors.user_code import FromOutside
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.runners.base import EngineFailed
from headrace.runners.inline import InlineRunner
from headrace.storage import LocalStore, MemoryStore, Store
from headrace.tasks.state_cache import SoftState
from headrace.tasks.worker import Worker
from tests.support.packing import PACKING, packing
from tests.support.pipelines import Collected, run_inline, run_until_read
from tests.support.records import Item


class Box(msgspec.Struct):
    n: int


class Resembling(hr.Computation):
    """Sets values that are not quite of the declared types, and shares objects between states."""

    mean = hr.ValueState(float, default=0.0)
    seen = hr.ValueState(datetime)
    kept = hr.ListState(Box)
    last = hr.ValueState(Box)
    by_day = hr.MapState(datetime, list[int])
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        n = record.value.n
        ctx.produce(
            "out",
            f"{self.mean.value!r} {self.seen.value!r} {[b.n for b in self.kept]} "
            f"{[(str(k), v) for k, v in self.by_day.items()]}",
        )
        self.mean.value = n
        zone = ZoneInfo("America/New_York")
        self.seen.value = datetime(2024, 1, 1, tzinfo=zone) + timedelta(days=n)
        if self.last.value is not None:
            self.last.value.n += 100
        box = Box(n)
        self.kept.append(box)
        self.last.value = box
        self.by_day[datetime(2024, 1, 1 + n % 3, tzinfo=zone).astimezone(UTC)] = (n, n)


ITEMS = [Item("ab"[i % 2], i, i) for i in range(12)]


def drawn(computation: hr.Computation, items: list[Item]) -> tuple[hr.Pipeline, Collected]:
    pipeline, collected = hr.Pipeline("soft"), Collected()
    stream = pipeline.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
    node = pipeline.compute("it", computation, keys={stream: "key"})
    pipeline.sink("out", node, collected.sink("out"))
    return pipeline, collected


def test_a_process_that_remembers_and_one_that_reads_see_the_same() -> None:
    results = []
    for cached_bytes in (1 << 20, 0):
        pipeline, collected = drawn(Resembling(), ITEMS)
        run_inline(pipeline, rows=1, workers=1, cached_bytes=cached_bytes)
        results.append(collected.rows())
    assert results[0] == results[1]


class Rereads(InlineRunner):
    """Forgets everything before each step."""

    def run(self, plan: Any) -> Any:
        for soft in self._soft:
            soft.forget()
        return super().run(plan)


def test_forgetting_before_every_step_changes_nothing() -> None:
    results = []
    for runner in (InlineRunner(), Rereads()):
        pipeline, collected = drawn(Resembling(), ITEMS)
        run_inline(pipeline, rows=1, workers=2, runner=runner, slices=8)
        results.append(collected.rows())
    assert results[0] == results[1]


class Count(hr.Computation):
    count = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += 1
        ctx.produce("out", self.count.value)


class Warm(InlineRunner):
    """An inline runner whose process outlives the run, as a Spark worker's does."""

    def __init__(self, soft: SoftState) -> None:
        super().__init__()
        self._soft = [soft]

    def close(self) -> None:
        return


def test_a_layout_that_comes_back_finds_no_memory_of_its_first_time() -> None:
    soft, store = SoftState(), MemoryStore()
    last: dict[str, int] = {}
    for count, workers in ((2, 3), (30, 2), (60, 3)):
        items = [Item(f"k{i % 10}", i, i) for i in range(count)]
        pipeline, collected = drawn(Count(), items)
        source = pipeline.injectors["items"].source
        offer = source.offer

        def without_end(position: Any, limit: Any, offer: Any = offer) -> Any:
            return msgspec.structs.replace(offer(position, limit), final=False)

        source.offer = without_end if count < 60 else offer
        run_until_read(pipeline, store, count, rows=2, workers=workers, runner=Warm(soft))
        for step in collected.rows().get("out", []):
            last.update({key: value for key, _, value in step})
    assert last == {f"k{i}": 6 for i in range(10)}


@pytest.mark.parametrize("again_s, kept", [(59.0, {"a", "b"}), (61.0, {"b"})])
def test_what_a_run_had_in_memory_is_dropped_when_it_was_idle_for_a_minute(
    again_s: float, kept: set[str], tmp_path: Path
) -> None:
    """Processes live as long as a session does, and it may have many runs, one after another."""
    soft = SoftState()
    stores = {name: LocalStore(tmp_path / name) for name in "ab"}
    for name, store in stores.items():
        pipeline, _ = drawn(Count(), [Item(name, n, n) for n in range(9)])
        run_inline(pipeline, store=store, rows=3, workers=1, runner=Warm(soft))
        soft.use(store.location, 0.0)
    soft.has_evicted = False
    soft.use(stores["b"].location, 50.0)
    soft.use(stores["b"].location, again_s)
    locations = {store.location: name for name, store in stores.items()}
    assert {locations[at[0]] for at in soft._entries} == kept
    assert {locations[at[0]] for at in soft._ahead} == kept
    assert soft.has_evicted == (kept == {"b"}), "what was dropped is to be collected"


class DiesAtCommit(MemoryStore):
    """A driver's way to the storage, which is cut as it commits a step; its tasks have worked."""

    step = -1

    def create(self, name: str, data: bytes) -> None:
        if name == f"manifests/{self.step:012d}":
            raise StorageError("the driver is cut off")
        super().create(name, data)


@pytest.mark.parametrize("records", [4, 5, 6])
def test_what_was_computed_of_a_step_that_was_never_committed_is_not_remembered_under_its_number(
    records: int,
) -> None:
    """The next driver's claim takes that number; then the same process computes the step after it."""
    soft, store = SoftState(), DiesAtCommit()
    items = [Item("k", n, n) for n in range(12)]
    first, _ = drawn(Count(), items)
    store.step = records
    with pytest.raises(StorageError, match="cut off"):
        run_inline(first, store=store, rows=1, workers=1, runner=Warm(soft))
    store.step = -1
    second, collected = drawn(Count(), items)
    run_inline(second, store=store, rows=1, workers=1, runner=Warm(soft))
    counts = [count for step in collected.rows()["out"] for _, _, count in step]
    assert counts == list(range(13 - len(counts), 13))
    assert len(counts) >= 12 - records


class TaskKilled(FromOutside):
    """The end of a task, not of the process that runs it."""


class KillsATask(MemoryStore):
    """A storage at which some tasks are killed, when they have computed their part of a step."""

    left = struck = 0

    def strike(self) -> None:
        if self.left:
            self.left -= 1
            self.struck += 1
            raise TaskKilled

    def write(self, name: str, data: bytes) -> None:
        if name.startswith("runs/"):
            self.strike()
        super().write(name, data)


class SurvivesTasks(InlineRunner):
    """A process whose tasks may be killed, also when they have all done their part."""

    def __init__(self, store: KillsATask) -> None:
        super().__init__()
        self._kills = store

    def run(self, plan: StepPlan) -> list[TaskReport]:
        try:
            reports = super().run(plan)
            self._kills.strike()
        except TaskKilled:
            raise EngineFailed("a task was killed") from None
        return reports


@pytest.mark.parametrize("how", PACKING)
@pytest.mark.parametrize("tries", [1, 2])
def test_what_a_task_has_changed_before_it_was_killed_is_not_remembered(
    tries: int, how: str
) -> None:
    """The same process runs the next try, and finds the state as of the step before."""
    with packing(how):
        tasks_are_killed(tries)


def tasks_are_killed(tries: int) -> None:
    store = KillsATask()
    runner = SurvivesTasks(store)
    pipeline, collected = drawn(Count(), [Item("k", n, n) for n in range(12)])
    driver = Driver(
        pipeline,
        store,
        runner,
        workers=1,
        drain=True,
        settings=hr.Settings(limit=hr.Limit(1, 1 << 30)),
    )

    def strike(summary: hr.StepSummary) -> None:
        store.left = tries if summary.head.positions["items"] in (3, 7) else 0

    driver.listeners.append(strike)
    assert driver.run() == "drained"
    assert store.struck == 2 * tries
    counts = [count for step in collected.rows()["out"] for _, _, count in step]
    assert counts == list(range(1, 13))


class Remembers(InlineRunner):
    """Keeps each plan, and what came of it."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[tuple[StepPlan, list[TaskReport]]] = []

    def run(self, plan: StepPlan) -> list[TaskReport]:
        reports = super().run(plan)
        self.ran.append((plan, reports))
        return reports


def results(reports: list[TaskReport]) -> Any:
    """Return the digests of what tasks have changed and produced."""
    return [
        ({name: node.state_digest for name, node in of.nodes.items()}, of.streams) for of in reports
    ]


@pytest.mark.parametrize("how", PACKING)
def test_a_step_that_is_computed_late_is_computed_from_the_state_before_it(how: str) -> None:
    """Whatever was committed since: another process, which has nothing in memory, gets the same."""
    store, runner = MemoryStore(), Remembers()
    pipeline, _ = drawn(Count(), [Item("ab"[n % 2], n, n) for n in range(20)])
    with packing(how):
        run_inline(pipeline, store=store, rows=2, workers=2, runner=runner, retain_steps=1_000)
    assert len(runner.ran) > 9
    for plan, reports in runner.ran:
        late = InlineRunner()
        late.start(pipeline, store, 2)
        assert results(late.run(plan)) == results(reports)


def test_memory_whose_missed_runs_are_cleaned_away_is_dropped() -> None:
    """Two processes; one idles so long that what it missed has been superseded and deleted."""

    class Alternating(InlineRunner):
        def run(self, plan: Any) -> Any:
            first, second = self._workers_of_both
            self._workers = [second] if 3 < plan.step < 60 else [first]
            return super().run(plan)

        def start(self, pipeline: Any, store: Any, workers: int) -> None:
            super().start(pipeline, store, workers)
            self._workers_of_both = self._workers

    items = [Item("rare" if i == 5 else "often", i, i) for i in range(70)]
    pipeline, collected = drawn(Count(), items)
    run_inline(
        pipeline,
        rows=1,
        workers=2,
        bins=16,
        runner=Alternating(processes=2),
        base_every=2,
        slices=16,
        retain_steps=1,
    )
    counts = [row for step in collected.rows()["out"] for row in step]
    assert counts[-1][2] == 69


@pytest.mark.parametrize("retain_steps", [1, 16, 40, 64])
@pytest.mark.drawn(4)
def test_clean_up_goes_on_whatever_is_retained(retain_steps: int) -> None:
    items = [Item("ab"[i % 2], i, i) for i in range(300)]
    pipeline, _ = drawn(Count(), items)
    store = MemoryStore()
    driver = run_inline(
        pipeline, store=store, rows=1, base_every=32, slices=16, retain_steps=retain_steps
    )
    head = driver.coordinator.head
    assert head is not None
    assert head.step - retain_steps - 2 * 32 <= head.boundary <= head.step - retain_steps
    assert len(store.list("manifests/")) <= retain_steps + 2 * 32 + 4


class Passes(hr.Computation):
    """Sends each record on."""

    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value.n)


class Living(InlineRunner):
    """Processes that outlive the driver, as in a notebook; soft state is kept by the code's name."""

    code = ""

    def start(self, pipeline: hr.Pipeline, store: Store, workers: int) -> None:
        self._workers = [Worker(pipeline, self.code, store, soft) for soft in self._soft]

    def close(self) -> None:
        pass


def test_a_computation_that_moves_to_another_layer_and_back_finds_no_memory_of_its_first_time() -> (
    None
):
    items = [Item("a", 1, at) for at in range(30)]
    store, collected, runner = MemoryStore(), Collected(), Living()
    for upto, code in ((10, "first"), (20, "second"), (30, "first")):
        pipeline = hr.Pipeline("test")
        stream = pipeline.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
        passes = pipeline.compute("passes", Passes(), keys={stream: "key"})
        keys: Any = {stream: "n"} if code == "first" else {passes: "value"}
        pipeline.sink("out", pipeline.compute("count", Count(), keys=keys), collected.sink("out"))
        runner.code = code
        run_until_read(pipeline, store, upto, rows=1, workers=1, runner=runner)
    counts = [row[-1] for step in collected.rows()["out"] for row in step]
    assert counts == list(range(1, len(counts) + 1))
    assert len(counts) >= 28


def test_when_all_is_loaded_no_file_is_held_on_to() -> None:
    items = [Item("abcdefgh"[at % 8], 1, at) for at in range(120)]
    store, runner = MemoryStore(), Living(processes=2)
    held: list[int] = []

    def pipeline() -> hr.Pipeline:
        drawn = hr.Pipeline("test")
        stream = drawn.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
        drawn.compute("count", Count(), keys={stream: "key"})
        return drawn

    run_until_read(pipeline(), store, 20, rows=1, workers=1, bins=4)
    run_inline(pipeline(), store=store, runner=runner, rows=1, workers=1, bins=4)
    for soft in runner._soft:
        for entry in soft._entries.values():
            sources = entry.visitors["count"].state._sources
            held.append(0 if sources is None else len(sources.runs))
    assert held == [0, 0]
