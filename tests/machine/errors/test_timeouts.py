"""What never returns has an end: tasks, sinks and sources have timeouts, and a job can be cancelled."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.coordinator.messages import Commit, Run
from headrace.driver import watchdog
from headrace.driver.heartbeat import LONG, LoopProgress
from headrace.errors import HeadraceError, SinkTimeout, SourceTimeout, TaskTimeout
from headrace.ledger.heartbeats import Heartbeats, leader_among
from headrace.ledger.ledger import Ledger
from headrace.pipeline.source import Limit, Offer, Position
from headrace.runners.base import Runner
from headrace.runners.ending import TaskEnded, TaskWatch
from headrace.runners.inline import InlineRunner
from headrace.sinks import Calls
from headrace.storage import LocalStore
from tests.machine.coordinator.test_adoption import PLAN
from tests.support.pipelines import Elsewhere
from tests.support.waiting import until

COUNT = 6
#: Set once a handler hangs.
BEGUN = threading.Event()


def begun() -> None:
    sys.modules[__name__].BEGUN.set()  # an event cannot be sent to tasks, so it is found there


#: What some handlers wait for; see the fixture ``gate``.
GATE = threading.Event()


def the_gate() -> threading.Event:
    found: threading.Event = sys.modules[__name__].GATE
    return found


class Item(msgspec.Struct):
    name: str
    at: int


class Spins(hr.Computation):
    """Never ends with one key: it computes, and catches what it can."""

    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        while record.value.name == "n3":
            begun()
            try:
                time.sleep(0.001)
            except Exception:
                continue
        ctx.produce("out", record.value.name)


class Swallows(hr.Computation):
    """Never ends with one key, whatever rises in it."""

    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        gate = the_gate()
        while record.value.name == "n3" and not gate.is_set():
            begun()
            try:
                time.sleep(0.001)
            except BaseException:
                continue
        ctx.produce("out", record.value.name)


class Waits(hr.Computation):
    """Waits in C for one key; Python cannot wake it in a thread."""

    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.value.name == "n3":
            begun()
            the_gate().wait(60)
        ctx.produce("out", record.value.name)


class Echo(hr.Computation):
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value.name)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    BEGUN.clear()
    monkeypatch.setattr(watchdog, "GRACE_S", 2.0)
    monkeypatch.setattr(watchdog, "LOOK_S", 0.02)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = sys.modules[__name__].GATE = threading.Event()  # type: ignore[attr-defined]
    yield event
    event.set()


def drawn(computation: hr.Computation, sink: Callable[..., None] = lambda d: None) -> hr.Pipeline:
    pipeline = hr.Pipeline("hangs")
    items = [Item(f"n{n}", n) for n in range(1, COUNT + 1)]
    stream = pipeline.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
    node = pipeline.compute("slow", computation, keys={stream: "name"})
    pipeline.sink("out", node, Calls(sink))
    return pipeline


def job(pipeline: hr.Pipeline, folder: Path, runner: Runner | None = None, **more: Any) -> hr.Job:
    return hr.run(
        pipeline,
        storage=folder,
        runner=runner or InlineRunner(),
        workers=1,
        settings=hr.Settings(limit=Limit(1, 1 << 20), **more.pop("settings", {})),
        **more,
    )


def committed(folder: Path) -> int:
    head = Ledger(LocalStore(folder)).open()
    assert head is not None
    return head.done


def goes_on(folder: Path) -> None:
    """The next start goes on where it was: nothing is to be repaired."""
    names: list[str] = []
    sink = Calls(lambda d: names.extend(d.rows.column("value").to_pylist()))
    pipeline = drawn(Echo())
    pipeline.sinks["out"].sink = sink
    with job(pipeline, folder) as runs:
        assert runs.drain("60s")
    assert names[-1] == f"n{COUNT}"
    assert committed(folder) >= COUNT


def test_a_handler_that_never_ends_is_ended_with_its_place(tmp_path: Path) -> None:
    with (
        pytest.raises(TaskTimeout) as raised,
        job(drawn(Spins()), tmp_path, task_timeout="1s") as runs,
    ):
        runs.drain()
    assert raised.value.place == "computation 'slow', key 'n3', step 3"
    assert committed(tmp_path) == 2
    goes_on(tmp_path)


@pytest.mark.parametrize("kind", [Swallows, Waits])
def test_a_handler_that_cannot_be_ended_is_left_behind_with_its_place(
    tmp_path: Path, gate: threading.Event, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "GRACE_S", 0.5)
    with (
        pytest.raises(TaskTimeout) as raised,
        job(drawn(kind()), tmp_path, task_timeout="500ms") as runs,
    ):
        runs.drain()
    assert raised.value.place == "computation 'slow', key 'n3', step 3"
    gate.set()
    runs._thread.join(30)
    assert committed(tmp_path) == 2


def test_a_cancellation_that_is_not_obeyed_says_the_place(
    tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "GRACE_S", 0.5)
    with job(drawn(Swallows()), tmp_path) as runs:
        assert BEGUN.wait(60)
        assert runs.cancel("60s")
        assert runs.ended == "cancelled at computation 'slow', key 'n3', step 3"
    gate.set()
    runs._thread.join(30)


def test_who_watches_a_task_says_where_it_was_before_it_is_killed(gate: threading.Event) -> None:
    told: list[str] = []
    plan = msgspec.structs.replace(PLAN, timeout_us=100_000)

    def report(error: HeadraceError) -> None:
        told.append(error.place)
        gate.set()

    def swallows() -> None:
        while not gate.is_set():
            with contextlib.suppress(TaskEnded):
                time.sleep(0.01)

    with pytest.raises(TaskTimeout), TaskWatch().watching(plan, report=report):
        swallows()
    assert told == ["step 5"]


def test_a_job_that_is_cancelled_ends_with_the_place(tmp_path: Path) -> None:
    with job(drawn(Spins()), tmp_path) as runs:
        assert BEGUN.wait(60)
        assert runs.cancel("60s")
        assert runs.ended == "cancelled at computation 'slow', key 'n3', step 3"
    assert committed(tmp_path) == 2
    goes_on(tmp_path)


def test_who_stands_by_does_not_take_over_what_was_cancelled(tmp_path: Path) -> None:
    quick = hr.HeartbeatSettings(period_s=0.05, patience_s=1.0)
    with job(drawn(Spins()), tmp_path, heartbeat=quick) as runs:
        until(lambda: runs.leads)
        with job(drawn(Spins()), tmp_path, heartbeat=quick, standby=True) as waits:
            until(lambda: len(Heartbeats(LocalStore(tmp_path)).all()) == 2)
            assert BEGUN.wait(60)
            time.sleep(0.2)
            assert runs.cancel("60s")
            assert waits.wait("60s")
            assert (waits.ended or "").startswith("cancelled")


def test_inline_a_handler_that_cannot_be_woken_is_left_behind(
    tmp_path: Path, gate: threading.Event
) -> None:
    with job(drawn(Waits()), tmp_path) as runs:
        assert BEGUN.wait(60)
        begun = time.monotonic()
        assert runs.cancel("60s")
        assert time.monotonic() - begun < 30
        assert (runs.ended or "").startswith("cancelled at")
    leader = leader_among(Heartbeats(LocalStore(tmp_path)).all(), 1)
    assert leader is not None and leader.why.startswith("cancelled")
    gate.set()
    runs._thread.join(30)
    assert not runs._thread.is_alive()
    assert committed(tmp_path) == 2, "what the thread did afterwards has no effect"
    goes_on(tmp_path)


@pytest.mark.parametrize("concurrent", [True, False])
def test_a_sink_that_never_returns_ends_the_job(
    tmp_path: Path, gate: threading.Event, concurrent: bool
) -> None:
    def hangs(delivery: hr.sinks.Delivery) -> None:
        if delivery.step == 3:
            gate.wait(60)

    runner: Runner = Elsewhere() if concurrent else InlineRunner()
    with (
        pytest.raises(SinkTimeout, match="'out'") as raised,
        job(drawn(Echo(), hangs), tmp_path, runner, sink_timeout="500ms") as runs,
    ):
        runs.drain("60s")
    assert raised.value.place == "sink 'out', step 3"
    gate.set()
    goes_on(tmp_path)


def test_a_sink_that_hangs_does_not_hang_a_cancellation(
    tmp_path: Path, gate: threading.Event
) -> None:
    with job(drawn(Echo(), lambda d: gate.wait(60) and None), tmp_path, Elsewhere()) as runs:
        until(lambda: runs.head is not None and runs.head.done >= COUNT)
        assert runs.cancel("30s")
        assert runs.ended == "cancelled"
    gate.set()
    goes_on(tmp_path)


class Stuck(hr.sources.Iterable):  # type: ignore[type-arg, unused-ignore]
    """A source of which a look takes long, or for ever."""

    gate = threading.Event()

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        self.gate.wait(60)
        return super().offer(position, limit)


def test_a_source_that_never_says_what_it_has_ends_the_job(tmp_path: Path) -> None:
    pipeline = drawn(Echo())
    source = pipeline.injectors["items"].source
    source.__class__ = Stuck
    Stuck.gate.clear()
    with (
        pytest.raises(SourceTimeout, match="items"),
        job(pipeline, tmp_path, settings={"source_timeout_us": 500_000}) as runs,
    ):
        runs.wait("60s")
    Stuck.gate.set()
    goes_on(tmp_path)


@pytest.mark.parametrize("what", sorted(LONG, key=lambda kind: kind.__name__))
def test_a_driver_shows_that_it_lives_while_an_instruction_takes_long(what: Any) -> None:
    now = [0.0]
    loop_progress = LoopProgress(lambda: now[0])
    loop_progress.claimed(1)
    loop_progress.begins(what)
    now[0] = 1e6
    assert loop_progress.goes_on(60.0)
    loop_progress.begins(Commit)
    now[0] += 61
    assert not loop_progress.goes_on(60.0)
    loop_progress.begins(what)
    loop_progress.given_up = True
    assert not loop_progress.goes_on(60.0), "whom nobody waits for any more is silent"


def test_a_slow_look_at_a_source_is_not_taken_for_the_end_of_its_driver(tmp_path: Path) -> None:
    heartbeat = hr.HeartbeatSettings(period_s=0.05, patience_s=0.6, hang_s=0.2)
    pipeline = drawn(Echo())
    pipeline.injectors["items"].source.__class__ = Stuck
    Stuck.gate.clear()
    with job(pipeline, tmp_path, heartbeat=heartbeat) as runs:
        until(lambda: runs.leads)
        with job(drawn(Echo()), tmp_path, heartbeat=heartbeat, standby=True) as waits:
            time.sleep(2.0)
            assert not waits.leads
            assert runs.leads
            waits._driver.request_stop(drain=False)
        Stuck.gate.set()
        assert runs.drain("60s")
    assert runs.head is not None and runs.head.epoch == 1


_WATCHED = """
import os, sys, threading, time
import msgspec
from headrace.errors import TaskTimeout
from headrace.runners.ending import TaskWatch
from tests.machine.coordinator.test_adoption import PLAN

LATE = msgspec.structs.replace(PLAN, timeout_us=1)
told = threading.Event()

def in_time():
    with TaskWatch().watching(PLAN):
        told.set()

def ended():
    try:
        with TaskWatch().watching(LATE):
            while True:
                time.sleep(0.001)
    except TaskTimeout:
        told.set()

def left_behind():
    with TaskWatch().watching(LATE, report=lambda error: told.set()):
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

def work():
    return sum(number for number in range(1000))

task = threading.Thread(target=globals()[sys.argv[1]], daemon=True)
task.start()
told.wait()
if sys.argv[1] != "left_behind":
    task.join()
sys.settrace(lambda *_: None)
print(work(), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("how", ["in_time", "ended", "left_behind"])
def test_a_process_can_be_debugged_after_a_task_of_it_was_watched(how: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _WATCHED, how],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.stdout == "499500\n", ran.stderr


def test_an_attempt_is_not_given_up_because_the_one_before_had_to_be_forced() -> None:
    now = [0.0]
    ended: list[bool] = []
    progress = LoopProgress(lambda: now[0])
    runner = SimpleNamespace(
        why_ending=lambda: None, end_attempt=lambda error, force: ended.append(force)
    )
    driver: Any = SimpleNamespace(
        loop_progress=progress,
        runner=runner,
        cancel_requested_s=None,
        running_plan=msgspec.structs.replace(PLAN, timeout_us=1_000_000),
    )
    dog = watchdog.Watchdog(driver, lambda error: None, grace_s=5.0, clock=lambda: now[0])
    dog._look_for_command = lambda lasts_s: None  # type: ignore[method-assign]
    progress.begins(Run)
    now[0] = 6.5
    assert dog.look() is None
    assert ended == [True], "it took too long, and longer than it was asked to end"
    driver.running_plan = msgspec.structs.replace(driver.running_plan, step=PLAN.step + 1)
    progress.begins(Run)
    now[0] += 5.5
    assert dog.look() is None
    assert ended == [True]
    now[0] += 0.6
    assert dog.look() is None
    assert ended == [True, True], "this one takes too long, too"
    now[0] += 5.5
    assert isinstance(dog.look(), TaskTimeout), "and does not end, though it was forced"
