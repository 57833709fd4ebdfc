"""Sinks beside the steps: slow ones, failing ones, weak ones, and what they are told."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import headrace as hr
from headrace.driver.driver import Clock, Driver
from headrace.errors import Fenced, PipelineError, UserCodeError
from headrace.ledger.intent import INTENTS
from headrace.ledger.ledger import Ledger
from headrace.pipeline.source import Offer
from headrace.runfiles.format import RunReader
from headrace.runners.inline import InlineRunner
from headrace.sinks import Calls, Delivery, Sink
from headrace.storage import MemoryStore, Store
from headrace.tasks import writing
from tests.support.ledger_drivers import SteppedStore
from tests.support.pipelines import Elsewhere

COUNT = 8


class Item(msgspec.Struct):
    n: int
    at: int


class Echo(hr.Computation):
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value.n)


class Jumping(Clock):
    """A clock that jumps when somebody waits."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def now_us(self) -> int:
        return self.now

    def wait_until(self, until_us: int, woken: threading.Event) -> None:
        self.now = max(self.now, until_us)


class Standing(Jumping):
    """A clock that stands still, so that nobody is ever late."""

    def wait_until(self, until_us: int, woken: threading.Event) -> None:
        assert woken.wait(30)


def pipeline_of(count: int = COUNT, **compute: Any) -> tuple[hr.Pipeline, Any]:
    pipeline = hr.Pipeline("delivered")
    items = [Item(n, n) for n in range(count)]
    stream = pipeline.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
    return pipeline, pipeline.compute("echo", Echo(), keys={stream: "n"}, **compute)


def run(
    pipeline: hr.Pipeline,
    store: Store | None = None,
    *,
    rows: int = 1,
    inline: bool = False,
    listener: Callable[[hr.StepSummary], None] | None = None,
    clock: Clock | None = None,
    finish: Callable[[], None] = lambda: None,
    workers: int = 2,
    **settings: int,
) -> Driver:
    driver = Driver(
        pipeline,
        store or MemoryStore(),
        InlineRunner() if inline else Elsewhere(),
        workers=workers,
        bins=16,
        drain=True,
        clock=clock,
        settings=hr.Settings(limit=hr.Limit(rows, 1 << 30), **settings),
    )
    driver.listeners += [listener] if listener else []
    try:
        driver.run()
    finally:
        finish()
        driver.close()
    return driver


class Gated:
    """A sink that takes nothing until a gate is opened."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.taken: list[int] = []

    def __call__(self, delivery: Delivery) -> None:
        assert self.gate.wait(30), "nobody opened the gate"
        self.taken.append(delivery.step)


# -- the outbox -------------------------------------------------------------------------------


def test_a_slow_sink_holds_up_neither_the_others_nor_the_steps_until_the_outbox_is_full() -> None:
    pipeline, node = pipeline_of()
    slow, fast, polls = Gated(), [], []
    all_fast = threading.Event()

    def take_fast(step: int, rows: pa.Table) -> None:
        fast.append(step)
        if len(fast) == 5:
            all_fast.set()

    def take_slow(delivery: Delivery) -> None:
        slow(delivery)
        if len(slow.taken) == 1:
            assert len(polls) == 5, "an injector was polled though the outbox was full"

    def note(summary: hr.StepSummary) -> None:
        # The driver is about to wait, so let somebody else open the gate.
        if summary.head.waits_for and not slow.gate.is_set():
            assert "slow" in summary.head.waits_for
            threading.Thread(target=open_it).start()

    def open_it() -> None:
        assert all_fast.wait(30), "the fast sink is held up by the slow one"
        slow.gate.set()

    source = pipeline.injectors["items"].source
    offer = source.offer
    source.offer = lambda *a: polls.append(a) or offer(*a)  # type: ignore[method-assign]
    pipeline.sink("slow", node, Calls(take_slow))
    pipeline.sink("fast", node, Calls(take_fast))
    driver = run(pipeline, listener=note, finish=slow.gate.set, outbox_steps=5)
    assert fast == slow.taken == list(range(1, COUNT + 1))
    assert driver.coordinator.head is not None and not driver.coordinator.head.unreleased


def test_after_a_crash_with_a_full_outbox_only_what_was_not_received_comes_again_and_first() -> (
    None
):
    store, story = MemoryStore(), []

    def drawn(slow: Callable[..., None]) -> hr.Pipeline:
        pipeline, node = pipeline_of()
        pipeline.sink("slow", node, Calls(slow))
        pipeline.sink("fast", node, Calls(lambda d: story.append(("fast", d.id, d.positions))))
        source = pipeline.injectors["items"].source
        offer = source.offer
        source.offer = lambda *a: story.append("poll") or offer(*a)  # type: ignore[method-assign]
        return pipeline

    full = threading.Event()

    def breaks(delivery: Delivery) -> None:
        assert full.wait(30)
        raise OSError("no room")

    def note(summary: hr.StepSummary) -> None:
        if summary.head.waits_for:
            full.set()

    with pytest.raises(UserCodeError, match="no room"):
        run(drawn(breaks), store, listener=note, finish=full.set, outbox_steps=3)
    head = Ledger(store).open()
    assert head is not None and sorted(head.unreleased) == [1, 2, 3]
    noted = head.delivered["fast"]
    story.clear()
    run(drawn(lambda d: story.append(("slow", d.id, d.positions))), store, outbox_steps=3)
    slow = [told for told in story if told[0] == "slow"]
    assert [told[1] for told in slow[:3]] == [1, 2, 3]
    assert [told[2]["items"] for told in slow] == [(n, n + 1) for n in range(COUNT)]
    assert story.index(slow[0]) < story.index("poll"), (
        "the outbox was full, and must make room first"
    )
    assert min(told[1] for told in story if told[0] == "fast") > noted


def test_a_sink_that_fails_receives_nothing_after_the_step_that_it_failed_at() -> None:
    pipeline, node = pipeline_of()
    given: list[int] = []

    def take(step: int, rows: pa.Table) -> None:
        given.append(step)
        if step == 2:
            raise OSError("no room")

    pipeline.sink("out", node, Calls(take))
    with pytest.raises(UserCodeError, match="no room"):
        run(pipeline, outbox_steps=COUNT)
    assert given == [1, 2]


# -- what sinks are told ----------------------------------------------------------------------


@pytest.mark.parametrize("inline", [True, False])
def test_a_sink_is_told_the_step_and_the_input_that_it_read(inline: bool) -> None:
    pipeline, node = pipeline_of()
    told: list[Delivery] = []
    pipeline.sink("out", node, Calls(told.append))
    run(pipeline, rows=3, inline=inline)
    assert [(d.id, d.step, d.weak) for d in told] == [(n, n, False) for n in (1, 2, 3)]
    assert [d.positions for d in told] == [
        {"items": (0, 3)},
        {"items": (3, 6)},
        {"items": (6, 8)},
    ]
    assert [sorted(d.rows.column("value").to_pylist()) for d in told] == [
        [0, 1, 2],
        [3, 4, 5],
        [6, 7],
    ]


def test_a_function_of_one_parameter_gets_the_delivery_and_one_of_two_the_step_and_rows() -> None:
    delivery = Delivery(7, 8, pa.table({"n": [1]}), {})
    found: list[Any] = []

    class Both:
        def one(self, delivery: Delivery) -> None:
            found.append(delivery)

        def two(self, step: int, rows: pa.Table) -> None:
            found.append((step, rows))

    for function in (
        found.append,
        Both().one,
        lambda d, more=None: found.append(d),
    ):
        Calls(function).receive(delivery)
    assert found == [delivery] * 3
    found.clear()
    for function in (
        lambda step, rows: found.append((step, rows)),
        Both().two,
        lambda *given: found.append(given),
    ):
        Calls(function).receive(delivery)
    assert found == [(7, delivery.rows)] * 3


def test_a_sink_that_defines_nothing_says_what_to_define() -> None:
    with pytest.raises(PipelineError, match="receive"):
        type("Empty", (Sink,), {})().receive(Delivery(1, 1, pa.table({}), {}))


# -- weak sinks -------------------------------------------------------------------------------


@pytest.mark.parametrize("inline", [True, False])
def test_a_weak_sink_receives_a_step_before_its_commit_and_nothing_is_staged(inline: bool) -> None:
    store = MemoryStore()
    pipeline, node = pipeline_of(weak=True)
    seen: list[tuple[int, bool, int, bool]] = []

    def take(d: Delivery) -> None:
        head = Ledger(store).open()
        assert head is not None
        seen.append((d.step, d.weak, head.step, bool(store.list("intents/"))))

    pipeline.sink("out", node, Calls(take))
    driver = run(pipeline, store, inline=inline, clock=Standing())
    assert seen == [(step, True, step - 1, True) for step in range(1, COUNT + 1)]
    assert not store.list("outputs/")
    head = driver.coordinator.head
    assert head is not None and head.delivered == {"out": COUNT} and not head.unreleased


def test_a_strong_sink_of_a_weak_computation_still_comes_after_the_commit() -> None:
    store = MemoryStore()
    pipeline, node = pipeline_of(weak=True)
    found: dict[str, list[Any]] = defaultdict(list)

    def taking(name: str) -> Calls:
        def take(d: Delivery) -> None:
            head = Ledger(store).open()
            assert head is not None
            found[name].append((d.id, d.rows.to_pylist(), d.positions, head.step >= d.step))

        return Calls(take)

    pipeline.sink("weak", node, taking("weak"))
    pipeline.sink("strong", node, taking("strong"), weak=False)
    run(pipeline, store, rows=3, inline=True)
    assert [told[:3] for told in found["weak"]] == [told[:3] for told in found["strong"]]
    assert {told[3] for told in found["weak"]} == {False}
    assert {told[3] for told in found["strong"]} == {True}


def test_a_straggler_is_checkpointed_and_the_steps_go_on() -> None:
    store, slow, committed = MemoryStore(), Gated(), []
    pipeline, node = pipeline_of(weak=True)
    pipeline.sink("out", node, Calls(slow))

    def note(summary: hr.StepSummary) -> None:
        committed.append(summary.step)
        head = summary.head
        assert sorted(head.unreleased) == committed
        (file,) = head.unreleased[summary.step]
        table = RunReader(store.read, file).rows("echo.out", writing.OUTPUT, 0, 2**64 - 1)
        assert table is not None
        assert table.column("value").to_pylist() == [summary.step - 1]
        if summary.step == 4:
            slow.gate.set()
            driver_box[0].listeners.clear()

    driver = Driver(
        pipeline,
        store,
        Elsewhere(),
        workers=2,
        bins=16,
        drain=True,
        clock=Jumping(),
        settings=hr.Settings(limit=hr.Limit(1, 1 << 30)),
    )
    driver_box = [driver]
    driver.listeners.append(note)
    try:
        driver.run()
    finally:
        slow.gate.set()
        driver.close()
    assert slow.taken == list(range(1, COUNT + 1)), "each step once, in order"


def test_after_a_crash_a_straggler_gets_from_the_outbox_what_it_was_given_before() -> None:
    store, given = MemoryStore(), defaultdict(list)
    committed = threading.Event()

    def fails(d: Delivery) -> None:
        given[d.id].append((d.rows.to_pylist(), d.positions))
        assert committed.wait(30)
        raise OSError("it is not there any more")

    pipeline, node = pipeline_of(weak=True)
    pipeline.sink("out", node, Calls(fails))
    with pytest.raises(UserCodeError, match="not there"):
        run(
            pipeline,
            store,
            clock=Jumping(),
            rows=3,
            finish=committed.set,
            listener=lambda summary: committed.set(),
        )
    assert list(given) == [1]
    pipeline, node = pipeline_of(weak=True)
    pipeline.sink(
        "out", node, Calls(lambda d: given[d.id].append((d.rows.to_pylist(), d.positions)))
    )
    run(pipeline, store, rows=2)
    assert Counter(len(contents) for contents in given.values())[2] >= 1
    assert all(content == contents[0] for contents in given.values() for content in contents)
    values = [row["value"] for n in sorted(given) for row in given[n][0][0]]
    assert sorted(values) == list(range(COUNT))


def test_large_results_of_weak_sinks_are_staged_by_the_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing, "INLINE_BYTES", 0)
    store, told = MemoryStore(), []
    pipeline, node = pipeline_of(weak=True)

    def take(d: Delivery) -> None:
        told.append((sorted(d.rows.column("value").to_pylist()), d.weak))
        assert any(int(name[8:20]) == d.step for name in store.list("outputs/"))

    pipeline.sink("out", node, Calls(take))
    run(pipeline, store, rows=3, inline=True)
    assert told == [([0, 1, 2], True), ([3, 4, 5], True), ([6, 7], True)]


def test_a_sink_of_files_is_exactly_once_even_if_it_is_weak(tmp_path: Path) -> None:
    """The first driver ends between the delivery and the commit; the next one takes other amounts."""

    class Dies(MemoryStore):
        def create(self, name: str, data: bytes) -> None:
            if name == "manifests/000000000002":
                raise SystemExit
            super().create(name, data)

    dying = Dies()
    pipeline, node = pipeline_of(weak=True)
    pipeline.sink("out", node, hr.sinks.Files(tmp_path))
    with pytest.raises(SystemExit):
        run(pipeline, dying, rows=3, inline=True)
    assert len(list(tmp_path.glob("step-*"))) == 2
    store = MemoryStore()
    for name in dying.list(""):
        store.write(name, dying.read(name))
    pipeline, node = pipeline_of(weak=True)
    pipeline.sink("out", node, hr.sinks.Files(tmp_path))
    run(pipeline, store, rows=2, inline=True)
    lines = [
        line for path in sorted(tmp_path.glob("step-*")) for line in path.read_text().splitlines()
    ]
    values = sorted(msgspec.json.decode(line)["value"] for line in lines)
    assert values == list(range(COUNT))


def test_the_intent_of_a_rival_is_honoured_by_the_driver_that_finds_it() -> None:
    """Another driver's intent takes the name just before this one's."""

    class Rivalled(MemoryStore):
        def create(self, name: str, data: bytes) -> None:
            if name == "intents/000000000002":
                mine = INTENTS.decode(data, name)
                offers = {"items": Offer(4, 1, 64)}
                theirs = msgspec.structs.replace(mine, nonce="theirs", offers=offers)
                super().create(name, INTENTS.encode(theirs))
            super().create(name, data)

    pipeline, node = pipeline_of(weak=True)
    told: list[Delivery] = []
    pipeline.sink("out", node, Calls(told.append))
    run(pipeline, Rivalled(), rows=3, inline=True)
    assert [d.positions["items"] for d in told] == [(0, 3), (3, 4), (4, 7), (7, 8)]


NUMBERED = 60
PAUSES = ["create intents/", "read manifests/", "create manifests/"]


class Running(hr.Computation):
    """Numbers the records of each of three keys."""

    count = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += 1
        ctx.produce("out", self.count.value)


def numbering(pipeline: hr.Pipeline) -> Any:
    items = [Item(n % 3, n) for n in range(NUMBERED)]
    stream = pipeline.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
    return pipeline.compute("running", Running(), keys={stream: "n"}, weak=True)


def overtaken(
    pause: str | int,
    order: int,
    drawn: Callable[[Any], hr.Pipeline],
    workers: int = 2,
    **settings: int,
) -> dict[int, list[list[Any]]]:
    """Let a driver stand still in its second or third step until another one has ended all input.

    Args:
        pause: at which operation of its storage; or how many operations after the step's intent.
        order: in the how many-th step.
        drawn: returns the pipeline, with a sink.

    Returns:
        What both have given a sink, by id.
    """
    inner, given = MemoryStore(), defaultdict(list)
    paused, go_on = threading.Event(), threading.Event()
    fenced: list[Fenced] = []
    seen: Counter[str] = Counter()

    def turn(what: str) -> None:
        if what.startswith("create intents/"):
            seen["intents"] += 1
        if seen["intents"] <= order or paused.is_set():
            return
        seen["since"] += 1
        if seen["since"] == pause if isinstance(pause, int) else what.startswith(pause):
            paused.set()
            assert go_on.wait(60)

    def given_to() -> Any:
        return Calls(lambda d: given[d.id].append(d.rows.select(["key", "value"]).to_pylist()))

    def first() -> None:
        try:
            run(
                drawn(given_to()),
                SteppedStore(inner, turn),
                rows=3,
                inline=True,
                workers=workers,
                **settings,
            )
        except Fenced as error:
            fenced.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    assert paused.wait(30)
    try:
        run(
            drawn(given_to()),
            inner,
            rows=2,
            inline=True,
            base_every=2,
            retain_steps=1,
            workers=workers,
        )
    finally:
        go_on.set()
        thread.join()
    assert len(fenced) == 1
    return given


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("pause", PAUSES)
def test_a_driver_that_is_paused_while_another_takes_over_shows_nothing_else(
    pause: str, order: int
) -> None:
    def drawn(sink: Any) -> hr.Pipeline:
        pipeline, node = pipeline_of(20, weak=True)
        pipeline.sink("out", node, sink)
        return pipeline

    given = overtaken(pause, order, drawn)
    assert all(rows == contents[0] for contents in given.values() for rows in contents)
    values = [row["value"] for contents in given.values() for row in contents[0]]
    assert sorted(values) == list(range(20))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("pause", [*PAUSES, "read runs/", 2, 3, 4])
@pytest.mark.usefixtures("own_files")
def test_a_driver_that_is_overtaken_computes_nothing_from_what_the_other_has_committed_since(
    pause: str | int, order: int
) -> None:
    """It keeps no state in memory; and the files that it wants to read are gone when it goes on."""

    def drawn(sink: Any) -> hr.Pipeline:
        pipeline = hr.Pipeline("numbered")
        pipeline.sink("out", numbering(pipeline), sink)
        return pipeline

    given = overtaken(pause, order, drawn, workers=1, cached_bytes=0, slices=1)
    assert all(rows == contents[0] for contents in given.values() for rows in contents)
    counts = Counter(row["key"] for contents in given.values() for row in contents[0])
    values = sorted((row["key"], row["value"]) for rows in given.values() for row in rows[0])
    assert values == [(key, n + 1) for key in sorted(counts) for n in range(counts[key])]
    assert sum(counts.values()) == NUMBERED
