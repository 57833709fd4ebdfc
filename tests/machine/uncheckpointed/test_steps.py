"""Light steps: state goes to storage at checkpoints only, and what was in between is computed again."""

from __future__ import annotations

import random
import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.coordinator.replay import UncheckpointedSteps
from headrace.driver.change import Change
from headrace.driver.driver import Clock, Driver, Settings
from headrace.errors import PipelineError, ReplayDiffers, SchemaChanged, UserCodeError
from headrace.keyspace.planner import contiguous
from headrace.ledger.commands import Command, CommandLog
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.ledger.migrations import Goal
from headrace.runners.inline import InlineRunner
from headrace.sources.inbox import Producer
from headrace.storage import MemoryStore
from headrace.storage.soft import is_soft
from tests.support.durations import us

KEYS, RECORDS, ROWS = 7, 120, 6


class Hit(msgspec.Struct):
    """An injected record."""

    key: int
    at: int


class Tally(hr.Computation):
    """Counts the records of each key, and says so at each one."""

    deterministic = True
    number = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def __init__(self, by: int = 1, filler: int = 0) -> None:
        self._by = by
        self._filler = filler

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.number.value += self._by
        ctx.produce("out", self.number.value)


class Wide(Tally):
    """The same, with so much text that no step's results are carried by its reports."""

    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.number.value += 1
        ctx.produce("out", f"{self.number.value} " + "x" * 100_000)


class Dated(Tally):
    """Says when it is, and draws lots: both are the step's, also when it is computed again."""

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.number.value += 1
        ctx.produce("out", int(ctx.now.timestamp()) + int(ctx.random() * 1_000))


class Chancy(hr.Computation):
    """Says that it is deterministic, and is not."""

    deterministic = True
    number = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.number.value = random.randrange(1 << 40)
        ctx.produce("out", 0)


class Seen:
    """An outside that knows each delivery by its id, as an idempotent system does."""

    def __init__(self) -> None:
        self.rows: dict[int, list[Any]] = {}
        self.times = 0
        self.fails = False

    def take(self, delivery: hr.sinks.Delivery) -> None:
        if self.fails:
            raise OSError("the outside is not there")
        self.times += 1
        rows = [(row["key"], row["value"]) for row in delivery.rows.to_pylist()]
        assert self.rows.setdefault(delivery.id, rows) == rows, "a delivery came again otherwise"

    @property
    def by_key(self) -> dict[int, list[Any]]:
        found: dict[int, list[Any]] = {}
        for id_ in sorted(self.rows):
            for key, value in self.rows[id_]:
                found.setdefault(key, []).append(value)
        return found


def hits(number: int = RECORDS) -> list[Hit]:
    return [Hit(i * 5 % KEYS, i * 1_000) for i in range(number)]


def draw(
    seen: Seen, own: hr.Computation | None = None, items: list[Hit] | None = None
) -> hr.Pipeline:
    pipeline = hr.Pipeline("light")
    source = hr.sources.Iterable(items or hits(), Hit, event_time="at")
    stream = pipeline.inject("hits", source, watermark=hr.bounded_delay(us(0)))
    tally = pipeline.compute("tally", own or Tally(), keys={stream: "key"})
    pipeline.sink("told", tally["out"], hr.sinks.Calls(seen.take, idempotent=True))
    return pipeline


def start(
    pipeline: hr.Pipeline,
    store: MemoryStore,
    *,
    every: int = 5,
    runner: InlineRunner | None = None,
    workers: int = 2,
    clock: Clock | None = None,
    drain: bool = True,
    **upkeep: int,
) -> Driver:
    upkeep = {"base_every": 4, "slices": 4, "retain_steps": 2, **upkeep}
    driver = Driver(
        pipeline,
        store,
        runner or InlineRunner(),
        workers=workers,
        bins=8,
        drain=drain,
        clock=clock,
        settings=Settings(limit=hr.Limit(ROWS, 1 << 30), checkpoint_steps=every, **upkeep),
    )
    driver.open()
    return driver


def run_to(driver: Driver, step: int) -> None:
    """Let a driver work until it has committed a step; then it is never heard of again."""
    while driver.coordinator.head is None or driver.coordinator.head.step < step:
        assert driver.turn() is None


def finish(driver: Driver) -> None:
    while driver.turn() is None:
        pass


def expected(number: int = RECORDS) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for hit in hits(number):
        found.setdefault(hit.key, []).append(len(found.get(hit.key, [])) + 1)
    return found


# -- what is written --------------------------------------------------------------------------


@pytest.mark.usefixtures("own_files")
def test_between_checkpoints_a_step_writes_its_manifest_and_nothing_else() -> None:
    store = MemoryStore()
    driver = start(draw(Seen()), store)
    written: dict[int, set[str]] = {}
    before: set[str] = set()
    for step in range(1, 12):
        run_to(driver, step)
        now = set(store.list(""))
        written[step] = {name.partition("/")[0] for name in now - before} - {"cleaned"}
        before = now
    assert all(written[step] == {"manifests"} for step in (2, 3, 4, 6, 7, 8, 9, 11))
    assert all("runs" in written[step] for step in (5, 10))
    assert not any(is_soft(name) for name in before)


def test_a_stop_leaves_a_checkpoint() -> None:
    store = MemoryStore()
    driver = start(draw(Seen()), store)
    run_to(driver, 7)
    driver.request_stop(drain=False)
    finish(driver)
    head = Ledger(store).open()
    assert (
        head is not None
        and head.checkpoint >= 8
        and not Ledger(store).open_uncheckpointed().uncheckpointed
    )


def test_time_alone_can_call_for_a_checkpoint_also_when_nothing_comes() -> None:
    class Moved(Clock):
        now = 1_700_000_000_000_000

        def now_us(self) -> int:
            return self.now

        def wait_until(self, until_us: int, woken: Any) -> None:
            self.now += 1_000_000

    store, clock = MemoryStore(), Moved()
    driver = start(
        draw(Seen(), items=hits(ROWS)),
        store,
        every=100,
        clock=clock,
        drain=False,
        checkpoint_us=5_000_000,
    )
    run_to(driver, 1)
    begun = clock.now
    assert driver.coordinator.head.checkpoint < driver.coordinator.head.step
    while driver.coordinator.head.checkpoint < driver.coordinator.head.step:
        assert driver.turn() is None
    assert 4_000_000 <= clock.now - begun <= 8_000_000


# -- crashes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [Tally, Wide])
@settings(max_examples=25, deadline=None)
@given(
    lives=st.lists(
        st.tuples(st.integers(1, 9), st.sampled_from([1, 2, 5, 30]), st.integers(1, 4)), max_size=4
    ),
    loses=st.lists(st.integers(1, 20), max_size=3),
)
def test_crashes_and_lost_hosts_leave_no_trace(
    own: type[Tally], lives: list[tuple[int, int, int]], loses: list[int]
) -> None:
    """Each life works for some steps, with another pace of checkpoints and other workers."""
    store, seen = MemoryStore(), Seen()
    for steps, every, workers in lives:
        driver = start(draw(seen, own()), store, every=every, workers=workers)
        before = Ledger(store).open()
        try:
            run_to(driver, (0 if before is None else before.step) + 1 + steps)
        except AssertionError:
            break  # it has drained
    runner = InlineRunner(processes=2)
    driver = start(draw(seen, own()), store, runner=runner)
    for step in sorted(loses):
        while driver.coordinator.head is None or driver.coordinator.head.step < step:
            if driver.turn() is not None:
                break
        runner.drop_soft_state()
    finish(start(draw(seen, own()), store))
    found = {key: [int(str(value).split()[0]) for value in of] for key, of in seen.by_key.items()}
    assert found == expected()


class Slow(Seen):
    """An outside that takes nothing before a gate opens; then its process may be gone."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gone = False

    def take(self, delivery: hr.sinks.Delivery) -> None:
        assert self.gate.wait(60)
        if self.gone:
            raise OSError("this process was killed")
        super().take(delivery)


@pytest.mark.parametrize("own", [Tally, Wide])
@pytest.mark.parametrize("step", [3, 5, 7, 11])
def test_results_that_no_sink_has_received_at_a_checkpoint_are_not_lost(
    step: int, own: type[Tally]
) -> None:
    store, slow, runner = MemoryStore(), Slow(), InlineRunner()
    runner.concurrent = True
    driver = start(draw(slow, own()), store, runner=runner)
    run_to(driver, step)
    slow.gone = True
    slow.gate.set()
    again = start(draw(slow, own()), store, workers=3, runner=runner)
    with pytest.raises(UserCodeError, match="killed"):
        finish(again)  # (a driver that takes over, and dies before its sink has received a thing)
    seen = Seen()
    finish(start(draw(seen, own()), store))
    found = {key: [int(str(value).split()[0]) for value in of] for key, of in seen.by_key.items()}
    assert found == expected()


@pytest.mark.parametrize("from_outside", [False, True])
def test_a_sweep_leaves_what_was_made_again_until_every_sink_has_received_it(
    from_outside: bool,
) -> None:
    """No manifest names these files: it names those of the driver that is gone."""
    store, dead, runner = MemoryStore(), Slow(), InlineRunner()
    runner.concurrent = True
    run_to(start(draw(dead, Wide()), store, every=30, runner=runner), 4)
    dead.gone = True
    dead.gate.set()
    slow = Slow()
    sweep_every = 100 if from_outside else 1
    driver = start(draw(slow, Wide()), store, every=30, runner=runner, sweep_every=sweep_every)
    run_to(driver, 9)
    if from_outside:
        Checkpoints(store).clean(now_us=0)
    slow.gate.set()
    finish(driver)
    found = {key: [int(str(value).split()[0]) for value in of] for key, of in slow.by_key.items()}
    assert found == expected()


def test_a_pause_leaves_a_checkpoint_and_nothing_is_computed_while_it_lasts() -> None:
    store, seen = MemoryStore(), Seen()
    driver = start(draw(seen), store, every=50)
    run_to(driver, 6)
    log = CommandLog(store)
    log.put(Command("pause", nonce="a"), 0)
    driver.look_for_commands()
    while not driver.coordinator.head.paused:
        assert driver.turn() is None
    head = driver.coordinator.head
    assert head.checkpoint == head.step
    log.put(Command("abort_migration", migration=7, nonce="b"), 1)
    driver.look_for_commands()
    while driver.coordinator.head.commands < 2:
        assert driver.turn() is None
    assert driver.coordinator.head.done == head.done
    larger = draw(seen, Tally())
    more = larger.compute("more", Tally(), keys={larger.streams()["tally.out"]: "value"})
    larger.sink("also", more["out"], hr.sinks.Calls(lambda delivery: None, idempotent=True))
    change = Change(larger.copy(), {}, [])
    driver.request_change(change)
    while driver.coordinator.head is None or "more" not in driver.coordinator.pipeline_facts.nodes:
        assert driver.turn() is None
    log.put(Command("resume", nonce="c"), 2)
    driver.look_for_commands()
    finish(driver)
    assert seen.by_key == expected()


def test_commands_that_were_given_while_nothing_ran_do_not_stop_the_next_run() -> None:
    store, seen = MemoryStore(), Seen()
    run_to(start(draw(seen), store, every=50), 6)
    log = CommandLog(store)
    log.put(Command("migrate", goal=Goal("rescale", 3), nonce="a"), 0)
    log.put(Command("stop", nonce="b"), 1)
    driver = start(draw(seen), store, every=50)
    finish(driver)
    assert seen.by_key == expected()
    answers = {one.number: one.applied for one in driver.coordinator.head.answers}
    assert answers == {0: True, 1: False}


@pytest.mark.parametrize("prepare", [False, True])
def test_state_moves_with_all_that_light_steps_have_changed(prepare: bool) -> None:
    """Also what they change while it moves; and whoever takes over then finds it where it went."""
    store, seen = MemoryStore(), Seen()
    driver = start(draw(seen, items=hits(240)), store, every=50)
    run_to(driver, 6)
    goal = Goal("rescale", 3, prepare=prepare, strategy=hr.batched(1, gap=False))
    CommandLog(store).put(Command("migrate", goal=goal, nonce="a"), 0)
    driver.look_for_commands()
    while driver.coordinator.head.layout.workers != 3 or driver.coordinator.head.migration:
        assert driver.turn() is None
    run_to(driver, driver.coordinator.head.step + 3)
    finish(start(draw(seen, items=hits(240)), store, every=50))
    assert seen.by_key == expected(240)


def test_a_sink_may_come_or_go_before_steps_are_computed_again() -> None:
    store, seen = MemoryStore(), Seen()
    run_to(start(draw(seen), store), 3)
    bare = draw(seen)
    stream = bare.streams()["tally.out"]
    other = Seen()
    bare.sink("also", stream, hr.sinks.Calls(other.take, idempotent=True))
    finish(start(bare, store))
    assert seen.by_key == expected()


def test_a_clock_that_goes_back_does_not_keep_checkpoints_away() -> None:
    pace = UncheckpointedSteps(Settings(checkpoint_steps=200, checkpoint_us=5_000_000))
    pace.open(None, [], 10_000_000_000)
    head = Head(3, 1, "", contiguous(1, 1).to_wire(), {}, checkpoint=1)
    assert not pace.is_overdue(head, 10_004_000_000)
    assert pace.is_overdue(head, 10_005_000_000)
    assert pace.is_overdue(head, 9_000_000_000)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.drawn(4)
def test_what_is_let_go_from_memory_is_read_again_with_what_others_left_since(seed: int) -> None:
    """Tasks alternate between processes, which remember little; clean-up follows at once."""
    store, seen, rng = MemoryStore(), Seen(), random.Random(seed)
    items = [Hit(int(rng.expovariate(0.1)), at) for at in range(450)]
    finish(
        start(
            draw(seen, items=items),
            store,
            runner=InlineRunner(seed, processes=2),
            workers=4,
            every=4,
            cached_bytes=512,
            base_every=2,
            retain_steps=1,
            slices=2,
        )
    )
    found: dict[int, list[int]] = {}
    for item in items:
        found.setdefault(item.key, []).append(len(found.get(item.key, [])) + 1)
    assert seen.by_key == found


def test_what_a_sink_had_not_received_is_computed_again_and_delivered() -> None:
    store, seen = MemoryStore(), Seen()
    seen.fails = True
    driver = start(draw(seen), store)
    with pytest.raises(UserCodeError, match="not there"):
        finish(driver)
    assert not store.list("outputs/"), "small results of light steps are in no file"
    seen.fails = False
    finish(start(draw(seen), store))
    assert seen.by_key == expected()


def test_results_that_were_received_are_not_delivered_again() -> None:
    store, seen = MemoryStore(), Seen()
    run_to(start(draw(seen), store), 9)
    finish(start(draw(seen), store))
    assert seen.by_key == expected()
    # (of the newest step it is not known whether it was received)
    assert seen.times <= len(seen.rows) + 1


def test_a_lost_host_costs_the_steps_since_the_last_checkpoint_and_no_more() -> None:
    store, runner = MemoryStore(), InlineRunner()
    driver = start(draw(Seen()), store, runner=runner)
    run_to(driver, 8)
    runner.drop_soft_state()
    plans: list[int] = []
    run = runner.run
    runner.run = lambda plan: plans.append(plan.step) or run(plan)  # type: ignore[method-assign]
    run_to(driver, 9)
    assert plans == [9, 6, 7, 8, 9]


class Ticking(Clock):
    """A clock that is another second on whenever somebody looks."""

    now = 1_700_000_000_000_000

    def now_us(self) -> int:
        self.now += 1_000_000
        return self.now

    def wait_until(self, until_us: int, woken: Any) -> None:
        """Go on at once."""


def test_the_clock_and_the_lots_of_a_step_are_the_same_when_it_is_computed_again() -> None:
    store, seen, runner, clock = MemoryStore(), Seen(), InlineRunner(), Ticking()
    driver = start(draw(seen, Dated()), store, runner=runner, clock=clock)
    run_to(driver, 3)
    runner.drop_soft_state()
    run_to(driver, 4)
    finish(start(draw(seen, Dated()), store, clock=clock))
    assert sum(map(len, seen.by_key.values())) == RECORDS


# -- differences ------------------------------------------------------------------------------


def test_code_that_is_not_deterministic_is_found_out() -> None:
    store, seen = MemoryStore(), Seen()
    run_to(start(draw(seen, Chancy()), store), 3)
    before = dict(seen.rows)
    with pytest.raises(
        ReplayDiffers, match="computation 'tally' changed its state otherwise"
    ) as error:
        finish(start(draw(seen, Chancy()), store))
    assert "step 1" in str(error.value) and "not deterministic" in str(error.value)
    assert seen.rows == before


def test_code_that_was_changed_is_found_out_and_the_old_one_goes_on() -> None:
    store, seen = MemoryStore(), Seen()
    run_to(start(draw(seen), store), 3)
    with pytest.raises(ReplayDiffers, match=r"stream 'tally\.out' was produced otherwise"):
        finish(start(draw(seen, Tally(by=2)), store))
    finish(start(draw(seen), store))
    assert seen.by_key == expected()


def test_input_that_was_changed_is_found_out() -> None:
    store = MemoryStore()
    run_to(start(draw(Seen()), store), 3)
    others = [Hit(hit.key + (n == 4), hit.at) for n, hit in enumerate(hits())]
    with pytest.raises(ReplayDiffers, match="injector 'hits' gave other records"):
        finish(start(draw(Seen(), items=others), store))


def test_another_drawing_is_refused_until_the_steps_were_computed_again() -> None:
    store, seen = MemoryStore(), Seen()
    run_to(start(draw(seen), store), 3)
    larger = draw(seen)
    more = larger.compute("more", Tally(), keys={larger.streams()["tally.out"]: "value"})
    larger.sink("also", more["out"], hr.sinks.Calls(lambda delivery: None, idempotent=True))
    with pytest.raises(SchemaChanged, match="steps 1 to 3 are to be computed again"):
        finish(start(larger, store))
    driver = start(draw(seen), store)
    run_to(driver, 6)
    change = Change(larger.copy(), {}, [])
    change.plan = driver.plan_change(change)
    driver.request_change(change)
    finish(driver)
    assert seen.by_key == expected()
    head = Ledger(store).open()
    assert head is not None and head.counts["more"].records > 0


# -- what cannot be computed again ------------------------------------------------------------


class Silent(hr.Computation):
    """Does not say whether it is deterministic."""

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        """Do nothing."""


class Holding(hr.Computation):
    """Has state of a worker."""

    deterministic = True
    total = hr.PerWorker(int, default=0, merge=lambda one, other: one + other)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        """Do nothing."""


class Once(hr.sources.Iterable):
    """Cannot give again what it gave."""

    replays = False


@pytest.mark.parametrize(
    ("own", "problem"),
    [(Silent(), "is not declared deterministic"), (Holding(), "depends on the layout")],
)
def test_computations_that_cannot_be_repeated_are_refused(own: Any, problem: str) -> None:
    pipeline = hr.Pipeline("p")
    stream = pipeline.inject(
        "hits", hr.sources.Iterable(hits(), Hit, event_time="at"), watermark=hr.bounded_delay(us(0))
    )
    pipeline.compute("own", own, keys={stream: "key"})
    with pytest.raises(PipelineError, match=f"computation 'own': it .*{problem}|own.*{problem}"):
        start(pipeline, MemoryStore())
    start(pipeline, MemoryStore(), every=1)


def test_sources_that_cannot_be_read_again_and_weak_sinks_are_refused() -> None:
    pipeline = hr.Pipeline("p")
    once = Once(hits(), Hit, event_time="at")
    stream = pipeline.inject("hits", once, watermark=hr.bounded_delay(us(0)))
    tally = pipeline.compute("tally", Tally(), keys={stream: "key"})
    pipeline.sink(
        "early", tally["out"], hr.sinks.Calls(lambda delivery: None, idempotent=True), weak=True
    )
    with pytest.raises(PipelineError) as error:
        start(pipeline, MemoryStore())
    assert "injector 'hits': Once cannot give again" in str(error.value)
    assert "sink 'early': it is weak" in str(error.value)


@pytest.mark.parametrize("every", [0, 257, -1])
def test_a_pace_that_is_out_of_bounds_is_refused(every: int) -> None:
    with pytest.raises(PipelineError, match="checkpoint every"):
        start(draw(Seen()), MemoryStore(), every=every)


def test_an_inbox_keeps_batches_until_a_checkpoint_has_them() -> None:
    store, inbox, seen = MemoryStore(), MemoryStore(), Seen()
    one = Producer(inbox, "one", type=Hit, event_time="at")

    def drawn() -> hr.Pipeline:
        pipeline = hr.Pipeline("light")
        source = hr.sources.Inbox(inbox, Hit, event_time="at", clean=True)
        stream = pipeline.inject("hits", source, watermark=hr.bounded_delay(us(0)))
        tally = pipeline.compute("tally", Tally(), keys={stream: "key"})
        pipeline.sink("told", tally["out"], hr.sinks.Calls(seen.take, idempotent=True))
        return pipeline

    def batches() -> list[str]:
        return [name for name in inbox.list("") if name.rpartition("/")[2].isdigit()]

    driver = start(drawn(), store, every=4, drain=False)
    for number in range(3):
        one.append([Hit(1, number)])
        run_to(driver, number + 1)
    assert len(batches()) == 3, "these steps are computed again after a crash"
    driver = start(drawn(), store, every=4, drain=False)
    one.append([Hit(1, 3)])
    while seen.by_key != {1: [1, 2, 3, 4]}:
        assert driver.turn() is None
    assert driver.coordinator.head.checkpoint == driver.coordinator.head.step
    assert len(batches()) == 2, "the last two stay for ever"
