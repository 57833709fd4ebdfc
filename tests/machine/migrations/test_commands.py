"""State is moved by commands, from the process that runs the pipeline and from any other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import headrace as hr
from headrace.control.control import Control
from headrace.errors import ChangeRefused, PipelineError, SessionUnsuitable, UserCodeError
from headrace.keyspace.layout import Layout
from headrace.keyspace.updates import Update
from headrace.ledger.commands import Command, CommandLog, command_name
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.machine.steps.test_soft_state import Count, drawn
from tests.support.changing import Item
from tests.support.jobs import ITEMS, waiting_job


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def job(store: MemoryStore) -> Iterator[hr.Job]:
    with waiting_job(store) as job:
        yield job


def layout(job: hr.Job) -> Layout:
    return Layout.from_wire(job.current().layout)


def test_a_rescaling_says_what_it_will_take_and_how_it_went(job: hr.Job) -> None:
    move = job.rescale(4, strategy=hr.batched(3), prepare=True)
    assert move.estimate is not None
    bins = move.estimate.bins
    assert bins >= 6 and (move.id, move.what) == (1, "rescale to 4 workers")
    assert move.wait("60s") == "done"
    assert layout(job).workers == 4
    assert (move.progress.rounds, move.progress.bins) == (move.progress.of_rounds, bins)
    assert str(move.progress) == f"done, {bins} of {bins} bins"
    assert move.before.steps and move.during.steps >= 3
    assert [(one.id, one.state) for one in job.migrations] == [(1, "done")]
    with pytest.raises(ChangeRefused, match="migration 1 is done"):
        move.abort()


def test_another_process_sees_and_steers_the_same(job: hr.Job, store: MemoryStore) -> None:
    control = Control(store)
    move = control.move(["0000/4", "0001/4"], 1)
    assert job.migration(move.id).what == "move 0000/4 0001/4 to worker 1"
    assert move.wait("60s") == "done"
    assert layout(job).owners.tolist() == [1, 1] + [0] * 6 + [1] * 8
    with pytest.raises(ChangeRefused, match="there is no worker 5"):
        control.move("0000/4", 5)
    with pytest.raises(PipelineError, match="'12/2' names no bin"):
        control.move("12/2", 0)
    with pytest.raises(ChangeRefused, match="there is no migration 9"):
        control.migration(9)


def test_who_cannot_wait_takes_it_back_or_gets_it_over_with(
    job: hr.Job, store: MemoryStore
) -> None:
    before = layout(job)
    Control(store).ask("pause")
    move = job.rescale(3, strategy=hr.fluid())
    with pytest.raises(ChangeRefused, match=r"migration 1 is still preparing \(preparing, round 1"):
        move.wait("10ms")
    assert move.wait("1ms", on_timeout="rollback") == "aborted"
    assert layout(job) == before
    again = job.rescale(3, strategy=hr.fluid())
    Control(store).ask("resume")
    assert again.wait("1ms", on_timeout="commit") == "done"
    assert layout(job).workers == 3


def test_a_second_one_waits_for_its_turn_or_is_refused(job: hr.Job, store: MemoryStore) -> None:
    Control(store).ask("pause")
    first = job.rescale(3)
    second = job.rescale(2, if_busy="queue")
    assert (second.state, second.estimate) == ("queued", None)
    with pytest.raises(ChangeRefused, match="migration 1 is preparing"):
        job.rescale(5, if_busy="refuse")
    Control(store).ask("resume")
    assert [first.wait("60s"), second.wait("60s")] == ["done", "done"]
    assert layout(job).workers == 2


def test_a_controller_outside_decides_by_itself_what_happens_at_which_step(job: hr.Job) -> None:
    step = job.current().step
    with pytest.raises(ChangeRefused, match=f"step {step} is planned already"):
        job.publish(Update(step, moves=[(0, 4, 1, 1)]))
    answer = job.publish(Update(step + 40, splits=[(0, 4)], moves=[(0, 5, 1, 1)]))
    assert answer.step == step + 40
    with pytest.raises(ChangeRefused, match="there is no bin 0000/4"):
        job.publish(Update(step + 50, moves=[(0, 4, 1, 1)]))
    move = job.move("1000/4", 0)
    assert move.wait("60s") == "done", "what is published for later is in nobody's way"
    while job.current().step < step + 40:
        assert layout(job).owners[0] == 0 and len(layout(job)) == 16
        job.publish(Update(job.current().step + 90))  # (an answer is a step)
    assert layout(job).owners[:2].tolist() == [1, 0]


def test_a_command_that_makes_no_sense_is_answered_and_harms_nothing(
    job: hr.Job, store: MemoryStore
) -> None:
    control = Control(store)
    for command, why in [
        (Command("migrate"), "it names no goal"),
        (Command("update"), "it has no update"),
        (Command("pause_migration"), "there is no migration 0"),
    ]:
        with pytest.raises(ChangeRefused, match=why):
            control.ask_for(command)
    number = job.current().commands
    goal = b'{"kind":"move","strategy":{"type":"batched","bins":-1}}'
    store.create(command_name(number), b'{"kind":"migrate","goal":' + goal + b"}")
    answer = control.wait(number, 60)
    assert answer is not None and "a round of -1 bins moves nothing" in answer.why
    assert CommandLog(store).read(number) is not None
    assert job.running


def test_workers_go_when_they_own_nothing_and_come_back(job: hr.Job) -> None:
    job.drain_workers([1]).wait("60s")
    assert set(layout(job).owners.tolist()) == {0}
    assert "equal" in job.rebalance().why, "it stays drained"
    job.undrain_workers(1)
    job.rebalance().wait("60s")
    assert set(layout(job).owners.tolist()) == {0, 1}
    assert "equal" in job.rebalance().why
    job.rescale(1).wait("60s")
    assert layout(job).workers == 1
    job.rescale(2).wait("60s")
    assert set(layout(job).owners.tolist()) == {0, 1}


def test_the_end_of_the_pipeline_is_not_waited_out(store: MemoryStore) -> None:
    pipeline, _ = drawn(Count(), ITEMS)
    with hr.run(pipeline, storage=store, workers=2, bins=16, runner="inline") as job:
        while job.head is None:
            job.pass_time()
        Control(store).ask("pause")
        move = job.rescale(3)
    with pytest.raises(ChangeRefused, match="the pipeline ended while migration 1 was preparing"):
        move.wait()
    with pytest.raises(ChangeRefused, match="the pipeline ended before it was answered"):
        job.rescale(4)


class SlowToStart(InlineRunner):
    """Starts when somebody waits for the pipeline to begin; fails then, if it is to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failure: Exception | None = None) -> None:
        super().__init__()
        self.is_waited_for = threading.Event()
        self.failure = failure
        known = hr.Job._wait_until

        def wait_until(job: hr.Job, is_so: Any, deadline: float) -> bool:
            self.is_waited_for.set()
            return known(job, is_so, deadline)

        monkeypatch.setattr(hr.Job, "_wait_until", wait_until)

    def start(self, *arguments: Any) -> None:
        assert self.is_waited_for.wait(60)
        if self.failure is not None:
            raise self.failure
        super().start(*arguments)


def test_a_job_that_is_slow_to_start_is_asked_when_it_has_begun(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, _ = drawn(Count(), ITEMS)
    with hr.run(pipeline, storage=store, workers=2, runner=SlowToStart(monkeypatch)) as job:
        job.answered(Command("pause"), 0.0)  # no time for an answer, but all that a start takes
        answer = job.answered(Command("resume"), 60.0)
        assert answer is not None and answer.number == 1, "command 0 was given, too"


def test_who_asks_a_job_that_cannot_start_is_told_why(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, _ = drawn(Count(), ITEMS)
    runner = SlowToStart(monkeypatch, SessionUnsuitable("no Java"))
    with (
        pytest.raises(SessionUnsuitable, match="no Java"),
        hr.run(pipeline, storage=store, workers=2, runner=runner) as job,
    ):
        job.rescale(3)


class Breaking(hr.Computation):
    """Raises, some time after it has begun."""

    seen = hr.ValueState(int, default=0)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.seen.value += 1
        if self.seen.value > 40:
            raise ValueError("the forty-first is one too many")


def test_to_wait_for_a_migration_of_a_pipeline_that_fails_says_why_it_failed() -> None:
    """It said only that the pipeline had ended, and an error in the block of a job hides the job's."""
    drawn = hr.Pipeline("breaking")
    items = [Item("k", n, n) for n in range(100)]
    stream = drawn.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
    drawn.compute("count", Breaking(), keys={stream: "page"})
    settings = hr.Settings(limit=hr.Limit(1, 1 << 20))
    job = hr.run(drawn, storage=MemoryStore(), runner="inline", settings=settings)
    with pytest.raises(UserCodeError, match="forty-first"), job:
        job.rescale(8, strategy=hr.fluid(), prepare=False).wait()
