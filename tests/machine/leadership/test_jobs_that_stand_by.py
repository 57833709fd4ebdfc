"""Jobs that stand by and are handed over to, in one process: what its users see of it."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.cli import main
from headrace.control.control import Control
from headrace.coordinator.messages import AwaitClaim
from headrace.driver import warm_up
from headrace.driver.change import Change
from headrace.driver.driver import Driver, Fresh
from headrace.driver.heartbeat import Heartbeat
from headrace.driver.leadership import Leadership
from headrace.errors import ChangeRefused, Fenced, PipelineError, SchemaChanged, WrongPipeline
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import Heartbeats
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.runners.inline import InlineRunner
from headrace.storage import LocalStore, MemoryStore, Store
from tests.support.changing import Count, CountBetter, CountOtherwise, Item, begin, items
from tests.support.pipelines import Collected
from tests.support.waiting import until

SETTINGS = hr.Settings(limit=hr.Limit(5, 1 << 20))
QUICK = hr.HeartbeatSettings(period_s=0.05, patience_s=1.0)


def endless() -> Iterator[Item]:
    """Return records without end."""
    n = 0
    while True:
        yield Item(f"p{n % 5}", n % 4, n * 10)
        n += 1


def drawing(collected: Collected, count: hr.Computation | None = None) -> hr.Pipeline:
    pipeline = hr.Pipeline("led")
    stream = pipeline.inject("items", hr.sources.Iterable(endless, Item, event_time="at"))
    node = pipeline.compute("count", count or Count(), keys={stream: "page"})
    pipeline.sink("count", node, collected.sink("count"))
    return pipeline


def job(
    folder: Path, collected: Collected, count: hr.Computation | None = None, **how: Any
) -> hr.Job:
    return hr.run(
        drawing(collected, count),
        storage=folder,
        settings=SETTINGS,
        **{"runner": "inline", "heartbeat": QUICK, **how},
    )


def roles(folder: Path) -> list[str]:
    return sorted(heartbeat.role for heartbeat in Heartbeats(LocalStore(folder)).all())


def check_exactly_once(collected: Collected, folder: Path) -> None:
    read = Control(LocalStore(folder)).head().positions["items"]
    rows = [row for _, rows in collected.steps["count"] for row in rows]
    found = sorted((row[0], int(row[-1].split()[1])) for row in rows)
    assert found == sorted((f"p{n % 5}", n // 5 + 1) for n in range(read))


def test_a_handover_lets_the_old_job_end_with_a_reason_and_the_new_one_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    collected = Collected()
    with job(tmp_path, collected) as old:
        until(lambda: old.head is not None and old.head.step > 5)
        with job(tmp_path, collected, CountBetter(), handover=True) as new:
            until(lambda: new.take_over)
            assert old.wait("60s")
            assert old.ended is not None
            assert old.ended.startswith("handed over to ")
            assert not old.leads
            assert new.leads
            until(lambda: new.current().positions["items"] > 100)
    take_over = new.take_over
    assert take_over is not None
    assert take_over.why == "handed over"
    assert take_over.epoch == 2
    assert 0 < take_over.claim_s < take_over.first_step_s < take_over.gap_s
    assert "handed over: leads in epoch 2" in caplog.text
    assert new.ended == "stopped"
    check_exactly_once(collected, tmp_path)


def test_code_that_does_not_fit_is_refused_and_the_old_job_never_notices(tmp_path: Path) -> None:
    collected = Collected()
    with job(tmp_path, collected) as old:
        until(lambda: old.head is not None and old.head.step > 5)
        with (
            pytest.raises(SchemaChanged),
            job(tmp_path, Collected(), CountOtherwise(), handover=True) as new,
        ):
            new.wait()
        step = old.current().step
        until(lambda: old.current().step > step + 3)
    assert Control(LocalStore(tmp_path)).head().commands == 0
    assert roles(tmp_path) == ["ended"]
    check_exactly_once(collected, tmp_path)


def test_who_is_not_answered_in_time_gives_up_and_the_old_job_goes_on(tmp_path: Path) -> None:
    collected, held = Collected(), [True]

    def hold(summary: hr.StepSummary) -> None:
        if summary.step == 5:
            until(lambda: not held[0])

    with job(tmp_path, collected, listeners=[hold]) as old:
        until(lambda: old.head is not None and old.head.step >= 4)
        with (
            pytest.raises(ChangeRefused, match="did not hand over in time"),
            job(
                tmp_path,
                collected,
                handover=True,
                handover_timeout="0.2s",
                heartbeat=hr.HeartbeatSettings(period_s=0.05, patience_s=50),
            ) as new,
        ):
            new.wait()
        held[0] = False
        until(lambda: any("hand over" in one.text for one in old.current().answers))
        (answer,) = old.current().answers
        assert "no longer waits for it" in answer.why
        step = old.current().step
        until(lambda: old.current().step > step + 3)
    check_exactly_once(collected, tmp_path)


def test_who_wants_to_take_over_where_nobody_leads_just_begins(tmp_path: Path) -> None:
    collected = Collected()
    with job(tmp_path, collected, handover=True) as first:
        until(lambda: first.leads and first.current().positions.get("items", 0) > 20)
        assert first.take_over is not None
        assert first.take_over.why == "gone"
    with job(
        tmp_path, collected, handover=True, heartbeat=hr.HeartbeatSettings(patience_s=1_000)
    ) as second:
        until(lambda: second.take_over)
        assert second.current().epoch == 2, "the one before has said that it has ended"
    check_exactly_once(collected, tmp_path)


def test_a_driver_that_fails_is_followed_at_once_and_one_that_is_fenced_stands_by_again(
    tmp_path: Path,
) -> None:
    """Where nobody was killed, nobody waits for a patience to run out."""
    collected, patient = Collected(), hr.HeartbeatSettings(period_s=0.05, patience_s=1_000)

    class Breaks(Exception):
        """What a listener of the second job raises."""

    def fail(summary: hr.StepSummary) -> None:
        if broken:
            raise Breaks

    broken: list[bool] = []
    with job(tmp_path, collected, standby=True) as first:
        until(lambda: first.leads and first.current().step > 3)
        with (
            pytest.raises(Breaks),
            job(tmp_path, collected, listeners=[fail], heartbeat=patient, take_over=True) as two,
        ):
            until(lambda: two.leads)
            until(lambda: not first.leads and roles(tmp_path) == ["leads", "waits"])
            broken.append(True)
            two.wait("60s")
        until(lambda: first.leads and first.current().epoch == 3)
        step = first.current().step
        until(lambda: first.current().step > step + 3)
    assert first.ended == "stopped"
    check_exactly_once(collected, tmp_path)


class Enough(Exception):
    """Ends a test that would go on for ever."""


class Hesitant(Driver):
    """Something happens between the decision to take over and the claim."""

    meanwhile: Callable[[], None]

    def open(self, on: Head | Fresh = "newest") -> None:
        self.meanwhile()
        super().open(on)


def test_who_shows_no_sign_of_life_and_commits_all_the_same_is_not_taken_over_from() -> None:
    """It was alive: the claim is for the very step that was last seen, and that is not the last."""
    store, rounds = MemoryStore(), 0

    def driver(kind: type[Driver]) -> Driver:
        pipeline = begin(items(60), Collected(), count=Count())
        return kind(pipeline, store, InlineRunner(), workers=2, settings=SETTINGS, drain=True)

    def commits() -> None:
        nonlocal rounds
        rounds += 1
        if rounds > 2:
            raise Enough
        step = leads.coordinator.head.step if leads.coordinator.head else 0
        while leads.coordinator.head is None or leads.coordinator.head.step <= step:
            assert leads.turn() is None

    leads, waits = driver(Driver), driver(Hesitant)
    leads.open()
    commits()
    rounds = 0
    waits.meanwhile = commits  # type: ignore[attr-defined]
    with pytest.raises(Enough):
        Leadership(waits, QUICK, standby=True).run()
    assert leads.coordinator.head is not None
    assert leads.coordinator.head.epoch == 1
    while (stop := leads.turn()) is None:
        pass
    assert stop.why == "drained"


class Overtaken(Driver):
    """Something happens between looking at what is stored and the claim."""

    meanwhile: Callable[[], None]

    def open(self, on: Head | Fresh = "newest") -> None:
        super().open(on)
        self.meanwhile()


def test_who_claims_while_steps_are_committed_claims_again_until_it_leads() -> None:
    store, collected, rounds = MemoryStore(), Collected(), 0

    def driver(kind: type[Driver]) -> Driver:
        pipeline = begin(items(60), collected, count=Count())
        return kind(pipeline, store, InlineRunner(), workers=2, settings=SETTINGS, drain=True)

    def commits() -> None:
        nonlocal rounds
        rounds += 1
        step = leads.ledger.open()
        while rounds < 4 and leads.ledger.open() == step:
            assert leads.turn() is None

    leads, claims = driver(Driver), driver(Overtaken)
    leads.open()
    commits()
    rounds = 0
    claims.meanwhile = commits  # type: ignore[attr-defined]
    assert Leadership(claims, QUICK, replaces=True).run() == "drained"
    assert rounds == 4
    head = claims.ledger.open()
    assert head is not None
    assert head.epoch == 2
    with pytest.raises(Fenced):
        while leads.turn() is None:
            pass


class Turning(Overtaken):
    """The leader goes on while this driver waits."""

    beside: Callable[[], None]

    def keep_ready(self) -> None:
        super().keep_ready()
        self.beside()


def test_a_leader_that_always_commits_before_a_claim_is_replaced_all_the_same() -> None:
    store, collected = MemoryStore(), Collected()
    fenced: list[Fenced] = []

    def driver(kind: type[Driver]) -> Driver:
        pipeline = begin(items(5_000), collected, count=Count())
        return kind(pipeline, store, InlineRunner(), workers=2, settings=SETTINGS, drain=True)

    def turns() -> None:
        try:
            leads.turn()
        except Fenced as error:
            fenced.append(error)

    def commits() -> None:
        before = leads.ledger.open()
        while not fenced and not waits_for_claim() and leads.ledger.open() == before:
            leads.turn()

    def waits_for_claim() -> bool:
        return isinstance(leads.upcoming, AwaitClaim)

    def turns_until_it_waits() -> None:
        if not waits_for_claim():
            leads.turn()

    leads, claims = driver(Driver), driver(Turning)
    leads.open()
    commits()
    claims.meanwhile = commits  # type: ignore[attr-defined]
    claims.beside = turns_until_it_waits  # type: ignore[attr-defined]
    leadership = Leadership(claims, QUICK, replaces=True)
    claims.listeners.append(lambda summary: claims.request_stop())
    assert leadership.run() == "stopped"
    head = claims.ledger.open()
    assert head is not None
    assert head.epoch == 2
    while not fenced:
        turns()
    assert "has replaced it" in fenced[0].what


class Interrupted(Exception):
    """Raised by the handler of a signal, as KeyboardInterrupt is."""


class Held(InlineRunner):
    """Holds a try back until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.holds, self.goes_on, self.closed = threading.Event(), threading.Event(), False

    def run(self, plan: StepPlan) -> list[TaskReport]:
        self.holds.set()
        assert self.goes_on.wait(60)
        return super().run(plan)

    def close(self) -> None:
        super().close()
        self.closed = True


def test_who_is_interrupted_while_waiting_leaves_when_the_step_that_runs_is_done(
    tmp_path: Path,
) -> None:
    runner = Held()

    def interrupt(*_: Any) -> None:
        threading.Timer(0.2, runner.goes_on.set).start()
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(Interrupted), job(tmp_path, Collected(), runner=runner) as running:
            assert runner.holds.wait(60)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            running.wait()
        assert runner.closed and not running.running
    finally:
        signal.signal(signal.SIGALRM, before)


def test_nobody_waits_for_a_job_that_has_not_begun(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="has not begun"):
        job(tmp_path, Collected()).wait()


def test_a_plain_job_that_is_replaced_ends_and_says_by_whom(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    collected, here = Collected(), f"{socket.gethostname()}:{os.getpid()}, which leads since 20"
    with pytest.raises(Fenced, match=f"led by {here}"), job(tmp_path, collected) as first:
        until(lambda: roles(tmp_path) == ["leads"])
        with job(tmp_path, collected, take_over=True):
            first.wait("60s")
    assert f"takes over from {here}" in caplog.text
    assert roles(tmp_path) == ["ended"], "one who was fenced leaves nothing behind"


def test_who_stands_by_can_be_stopped_and_has_claimed_nothing(tmp_path: Path) -> None:
    collected = Collected()
    with job(tmp_path, collected) as leads:
        until(lambda: leads.leads)
        with job(tmp_path, collected, standby=True) as waits:
            until(lambda: "waits" in roles(tmp_path))
            assert not waits.leads
        assert waits.ended == "stopped"
        assert roles(tmp_path) == ["leads"]
    assert Control(LocalStore(tmp_path)).head().epoch == 1


def test_a_storage_of_another_pipeline_is_refused_and_nothing_is_left_there(tmp_path: Path) -> None:
    with job(tmp_path, Collected()) as first:
        until(lambda: first.leads)
    other = hr.Pipeline("other")
    stream = other.inject("items", hr.sources.Iterable(endless, Item, event_time="at"))
    other.compute("count", Count(), keys={stream: "page"})
    for how in ({"standby": True}, {"handover": True}, {}):
        with (
            pytest.raises(WrongPipeline),
            hr.run(other, storage=tmp_path, runner="inline", heartbeat=QUICK, **how) as job_,  # type: ignore[arg-type]
        ):
            job_.wait()
    assert roles(tmp_path) == ["ended"]


def test_the_status_tells_who_leads_and_who_waits(tmp_path: Path) -> None:
    collected = Collected()

    def status() -> str:
        return CliRunner().invoke(main, ["status", "--storage", str(tmp_path)]).stdout

    with job(tmp_path, collected) as leads:
        until(lambda: "leads" in roles(tmp_path))
        with job(tmp_path, collected, standby=True):
            until(lambda: "waits" in roles(tmp_path))
            told = status()
            assert " leads: since 20" in told
            assert " stands by: since 20" in told
        assert leads.leads
        at = leads.current().step + 1_000_000
        Control(LocalStore(tmp_path)).ask("stop", at_step=at)
        until(lambda: leads.current().scheduled_stop)
        assert f"stop after step {at}" in status()
    assert " ended (stopped)" in status()


def test_a_storage_that_takes_no_beats_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Heartbeat) -> None:
        raise hr.errors.StorageError("the disk hiccupped")

    monkeypatch.setattr(Heartbeat, "_write", fails)
    collected = Collected()
    with job(tmp_path, collected) as runs:
        until(lambda: runs.head is not None and "could not write a heartbeat" in caplog.text)
        step = runs.current().step
        until(lambda: runs.current().step > step + 3)
    check_exactly_once(collected, tmp_path)


def test_a_rehearsal_does_all_that_steps_do_and_touches_no_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done: list[str] = []
    for kind in (warm_up.ByRecord, warm_up.InBulk):
        for name in ("process_record", "process_timer", "process_batch", "process_timers"):
            handler = getattr(kind, name, None)
            if name not in vars(kind):
                continue

            def noted(self: Any, *given: Any, of: Any = handler, name: str = name) -> None:
                done.append(name)
                of(self, *given)

            monkeypatch.setattr(kind, name, noted)
    warm_up.run_warm_up()
    assert set(done) == {"process_record", "process_timer", "process_batch", "process_timers"}
    assert not list(tmp_path.iterdir())


class Silent(hr.Computation):
    """Counts its records in state, and tells nobody."""

    seen = hr.ValueState(int, default=0)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.seen.value += 1


class Connection(hr.sinks.Calls):
    """A sink that holds something, and lets go of it when it is closed."""

    closed = False

    def deliver(self, step: int, rows: Any) -> None:
        assert not self.closed, "it is delivered to after it was closed"
        super().deliver(step, rows)

    def close(self) -> None:
        self.closed = True


def _nowhere(step: int, rows: Any) -> None:
    pass


def with_silent(held: hr.sinks.Sink) -> hr.Pipeline:
    pipeline = drawing(Collected())
    pipeline.compute("silent", Silent(), keys={pipeline.streams()["items"]: "page"})
    pipeline.sink("held", pipeline.nodes["count"], held)
    return pipeline


def claims(store: Store) -> None:
    """Let another driver claim, and be gone."""
    rival = Driver(with_silent(Connection(_nowhere)), store, InlineRunner(), settings=SETTINGS)
    rival.open()
    rival.turn()
    rival.close()


@pytest.mark.parametrize("what", ["add", "remove", "replace"])
@pytest.mark.drawn(1)
def test_a_change_that_was_overtaken_is_refused_and_the_standby_leads_again_as_it_was(
    what: str,
) -> None:
    store, held, asked = MemoryStore(), Connection(_nowhere), list[Change]()

    def change() -> None:
        changed = job.pipeline.copy()
        begin = {}
        match what:
            case "add":
                changed.compute("late", Silent(), keys={changed.streams()["items"]: "page"})
                begin["late"] = "beginning"
            case "remove":
                changed.remove("silent", sinks=["held"])
            case "replace":
                changed.replace("count", CountBetter())
        asked.append(job.change(changed, begin=begin))  # type: ignore[arg-type]

    def note(summary: hr.StepSummary) -> None:
        if summary.step == 5:
            change()
            claims(store)

    with hr.run(
        with_silent(held),
        storage=store,
        runner="inline",
        settings=SETTINGS,
        standby=True,
        heartbeat=QUICK,
        listeners=[note],
    ) as job:
        until(lambda: asked)
        with pytest.raises(ChangeRefused, match="another driver has taken over"):
            asked[0].wait("60s")
        until(lambda: job.leads and job.current().epoch == 3)
        until(lambda: job.current().positions["items"] > 99)
        assert set(job.current().counts) == {"count", "silent"}
        change()
        assert asked[1].wait("60s")
        step = job.current().step
        until(lambda: job.current().step > step + 3)
        head = job.current()
        assert held.closed == (what == "remove")
        if what == "add":
            until(lambda: job.current().backfill is None)
            head = job.current()
            assert head.counts["late"].records == head.counts["silent"].records


def test_what_a_job_that_stands_by_asks_for_is_answered_by_who_leads(tmp_path: Path) -> None:
    with job(tmp_path, Collected()) as leading, job(tmp_path, Collected(), standby=True) as waiting:
        until(lambda: leading.head is not None and leading.head.step > 3)
        waiting.pause()
        until(lambda: leading.current().paused)
        waiting.resume()
        until(lambda: not leading.current().paused)
        assert not waiting.leads
