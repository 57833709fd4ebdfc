"""Resident workers: whatever happens to them, each step has the results that it has inline."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client, Connection, Pipe
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.control.control import Control
from headrace.driver.driver import Driver
from headrace.ledger.commands import Command
from headrace.ledger.migrations import Goal
from headrace.runners.spark.residents import residents as residents_module
from headrace.runners.spark.residents.links import cut_off
from headrace.runners.spark.residents.resident import Heartbeats
from headrace.runners.spark.residents.residents import ResidentLost, Residents
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore
from tests.property.oracle.model import Model, NodeSpec, Spec
from tests.spark.conftest import session
from tests.support.pipelines import Collected, draw, run_inline
from tests.support.results import recording
from tests.support.waiting import until

pytestmark = pytest.mark.spark

#: Three layers, sixty steps.
SPEC = Spec(
    injectors={"first": [((i * 7) % 11, i % 5, i * 3 + (i * 31) % 40) for i in range(1_200)]},
    bound=40,
    rows=20,
    nodes=[
        NodeSpec("node0", [("first", "a")], delay=20, echo=True),
        NodeSpec("node1", [("node0", "same")], delay=None, echo=True),
        NodeSpec("node2", [("node1", "b"), ("first", "b")], delay=5, echo=True, chain=15),
    ],
)


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    model = Model(SPEC, hr.hash_key)
    model.run()
    return dict(model.outputs)


@pytest.fixture(scope="module")
def two_slots() -> Iterator[Any]:
    spark = session("local[2]")
    yield spark.sparkContext
    spark.stop()


class Cut:
    """A link that is cut at a message: each order is one, and each reply."""

    def __init__(self, link: Connection, at: int) -> None:
        self._link, self._left = link, at

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            cut_off(self._link)

    def send_bytes(self, data: bytes) -> None:
        self._count()
        self._link.send_bytes(data)

    def recv_bytes(self) -> bytes:
        self._count()
        return self._link.recv_bytes()

    def fileno(self) -> int:
        return self._link.fileno()

    def close(self) -> None:
        self._link.close()


def signalled(number: int) -> Callable[[Any, Residents, int], None]:
    def send(context: Any, residents: Residents, at: int) -> None:
        os.kill(residents.pids[at % len(residents.pids)], number)

    return send


def cut(context: Any, residents: Residents, at: int) -> None:
    resident = residents._each[at % 2]
    assert resident.link is not None
    resident.link = Cut(resident.link, at)  # type: ignore[assignment]


FAULTS: dict[str, Callable[[Any, Residents, int], None]] = {
    "killed": signalled(signal.SIGKILL),
    "stopped": signalled(signal.SIGSTOP),
    "stopped and continued": lambda context, residents, at: (
        os.kill(residents.pids[at % 2], signal.SIGSTOP),
        threading.Timer(0.1, os.kill, (residents.pids[at % 2], signal.SIGCONT)).start(),
    )[1],
    "cut": cut,
    "its jobs cancelled": lambda context, residents, at: residents.cancel(),
    "all jobs cancelled": lambda context, residents, at: context.cancelAllJobs(),
}


class Run:
    """A run of the pipeline to its end, with faults between its steps.

    Attributes:
        left: faults that have not come yet.
        resident: for each step, whether resident workers were there after it.
        seconds: for each step, how long it took since the one before.
    """

    def __init__(
        self, context: Any, folder: Path, faults: dict[int, tuple[str, int]], *, workers: int = 2
    ) -> None:
        self._context, self.left = context, dict(faults)
        self.runner = SparkRunner(context)
        self.collected = Collected()
        self.resident: list[bool] = []
        self.seconds: list[float] = []
        self._last = time.monotonic()
        self._driver = Driver(
            draw(SPEC, self.collected),
            LocalStore(folder),
            self.runner,
            workers=workers,
            bins=16,
            drain=True,
            settings=hr.Settings(limit=hr.Limit(SPEC.rows, 1 << 30)),
        )
        self._driver.listeners.append(self._note)

    def _note(self, summary: hr.StepSummary) -> None:
        now = time.monotonic()
        self.seconds.append(now - self._last)
        self._last = now
        residents = self.runner.residents
        self.resident.append(residents is not None)
        if residents is None:
            return
        due = [step for step in self.left if step <= summary.step]
        if due:
            what, at = self.left.pop(min(due))
            FAULTS[what](self._context, residents, at)

    def __call__(self) -> dict[str, Any]:
        try:
            self._driver.run()
        finally:
            self._driver.close()
        return dict(self.collected.rows())


@pytest.mark.parametrize("what", FAULTS)
@pytest.mark.drawn(3)
def test_a_step_goes_on_after_each_fault_and_workers_come_back(
    two_slots: Any, tmp_path: Path, expected: dict[str, Any], what: str
) -> None:
    run = Run(two_slots, tmp_path, {5: (what, 0), 20: (what, 1)})
    assert run() == expected
    assert run.resident[0], "there were no resident workers"
    assert run.resident[-1], "they did not come back"


SOME_FAULTS = st.dictionaries(
    st.integers(1, 55), st.tuples(st.sampled_from(sorted(FAULTS)), st.integers(0, 7)), max_size=6
)


@settings(max_examples=3)
@given(faults=SOME_FAULTS)
def test_faults_leave_no_trace_in_any_result(
    two_slots: Any,
    tmp_path_factory: pytest.TempPathFactory,
    expected: dict[str, Any],
    faults: dict[int, tuple[str, int]],
) -> None:
    assert Run(two_slots, tmp_path_factory.mktemp("store"), faults)() == expected


@pytest.mark.soak
def test_two_hundred_faults_leave_no_trace(
    two_slots: Any, tmp_path_factory: pytest.TempPathFactory, expected: dict[str, Any]
) -> None:
    seed = int(os.environ.get("HEADRACE_SEED", str(random.SystemRandom().randrange(2**31))))
    print(f"seed {seed}")
    rng, done = random.Random(seed), Counter[str]()
    longest: dict[str, float] = {}
    with recording("resident_faults") as keep:
        while done.total() < 200:
            what = rng.choice(sorted(FAULTS))
            faults = {step: (what, rng.randrange(8)) for step in rng.sample(range(1, 50), 2)}
            run = Run(two_slots, tmp_path_factory.mktemp("store"), faults)
            assert run() == expected
            done[what] += len(faults) - len(run.left)
            longest[what] = max(longest.get(what, 0.0), *run.seconds[1:])
            keep({"seed": seed, "faults": dict(done), "longest_s": longest})


def test_another_job_gets_the_slots_while_workers_have_all_of_them(
    two_slots: Any, tmp_path: Path, expected: dict[str, Any]
) -> None:
    run = Run(two_slots, tmp_path, {})
    done: list[int] = []
    other = threading.Thread(
        target=lambda: done.append(two_slots.parallelize(range(4), 2).sum()), daemon=True
    )
    note = run._note

    def begin_another(summary: hr.StepSummary) -> None:
        note(summary)
        if summary.step == 3:
            assert run.runner.residents is not None
            other.start()
        if summary.step == 50:  # by then it has waited in vain, or is done
            other.join(30)

    run._driver.listeners[:] = [begin_another]
    assert run() == expected
    assert done == [6]
    assert not all(run.resident), "they did not give way"


def test_strangers_at_the_door_are_refused_and_hold_up_nobody(
    two_slots: Any, tmp_path: Path, expected: dict[str, Any]
) -> None:
    run = Run(two_slots, tmp_path, {5: ("killed", 0)})
    strangers: list[Connection] = []
    note = run._note

    def knock(summary: hr.StepSummary) -> None:
        note(summary)
        residents = run.runner.residents
        if residents is not None and summary.step < 10:
            strangers.append(Client(residents._entrance.address.path, "AF_UNIX"))

    run._driver.listeners[:] = [knock]
    assert run() == expected
    assert strangers
    for one in strangers:
        one.close()


def test_a_resident_that_stops_before_it_has_read_an_order_holds_up_nobody(
    two_slots: Any, tmp_path: Path
) -> None:
    run = Run(two_slots, tmp_path, {})
    failed: list[str] = []

    def stop(summary: hr.StepSummary) -> None:
        residents = run.runner.residents
        if residents is None or failed:
            return
        os.kill(residents.pids[1], signal.SIGSTOP)
        much = [[b"x" * 4_000_000]] * 2  # more than fits into a socket
        with pytest.raises(ResidentLost) as lost:
            residents.run(1, b"", much)
        failed.append(str(lost.value))
        os.kill(residents.pids[1], signal.SIGCONT)

    run._driver.listeners[:] = [stop]
    run()
    assert failed


def test_closing_ends_the_workers_tasks(two_slots: Any, tmp_path: Path) -> None:
    run = Run(two_slots, tmp_path, {})
    run()
    assert run.runner.residents is None
    assert list(two_slots.statusTracker().getActiveStageIds()) == []
    assert two_slots.parallelize(range(10), 2).count() == 10


@pytest.mark.parametrize("faults", [{}, {5: ("killed", 0), 12: ("stopped", 1)}])
@pytest.mark.drawn(1)
def test_more_workers_than_slots_stay_in_as_many_processes_as_there_are_slots(
    two_slots: Any, tmp_path: Path, expected: dict[str, Any], faults: Any
) -> None:
    run = Run(two_slots, tmp_path, faults, workers=9)
    seen = set()

    def look(_: hr.StepSummary) -> None:
        if run.runner.residents is not None:
            seen.add(len(run.runner.residents.pids))

    run._driver.listeners.append(look)
    assert run() == expected
    assert run.resident[0] and run.resident[-1] and seen == {2}


@pytest.mark.parametrize("faults", [{}, {12: ("killed", 0), 30: ("stopped", 1)}])
@pytest.mark.drawn(1)
def test_workers_stay_where_they_are_while_their_number_changes(
    two_slots: Any, tmp_path: Path, expected: dict[str, Any], faults: Any
) -> None:
    run = Run(two_slots, tmp_path, faults, workers=1)
    numbers = iter([2, 5, 1])
    seen: list[tuple[int, list[int]]] = []

    def look(summary: hr.StepSummary) -> None:
        if run.runner.residents is not None:
            seen.append((summary.head.layout.workers, run.runner.residents.pids))
        if summary.step not in (5, 20, 35):
            return
        goal = Goal("rescale", next(numbers), strategy=hr.all_at_once())
        Control(run._driver.store).put(Command("migrate", goal=goal))
        run._driver.look_for_commands()

    run._driver.listeners.append(look)
    assert run() == expected
    assert {workers for workers, _ in seen} == {1, 2, 5}
    if not faults:
        assert all(run.resident), "a step was a job"
        assert len({pids[0] for _, pids in seen}) == 1
        assert len({pids[1] for _, pids in seen if len(pids) > 1}) == 1


def test_heartbeats_end_with_their_resident() -> None:
    def beating() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name == "headrace-heartbeats"]

    ours, theirs = Pipe()
    before = beating()
    for _ in range(5):
        with Heartbeats(theirs) as heartbeats, heartbeats.while_at_work():
            pass
    until(lambda: len(beating()) <= len(before))
    assert not ours.poll()


def test_where_no_link_can_be_opened_steps_are_jobs(
    two_slots: Any, tmp_path: Path, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(residents_module, "Entrance", refused)
    run = Run(two_slots, tmp_path, {})
    assert run() == expected
    assert not any(run.resident)


class Number(msgspec.Struct, frozen=True):
    key: int
    at: int


NUMBERS = [Number(at % 3, at) for at in range(40)]


class Counted(hr.Computation):
    seen = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.seen.value += 1
        ctx.produce("out", self.seen.value)


@pytest.mark.parametrize(
    ("exchange", "expected"),
    [
        ("host", {f"orders: step {step}" for step in range(1, 5)}),
        ("auto", {f"orders: process of worker {at}, which stays between steps" for at in range(2)}),
    ],
)
def test_jobs_in_sparks_ui_say_what_they_are_and_can_be_found_by_a_tag(
    two_slots: Any, tmp_path: Path, exchange: str, expected: set[str]
) -> None:
    pipeline, collected = hr.Pipeline("orders"), Collected()
    numbers = pipeline.inject("numbers", hr.sources.Iterable(NUMBERS, Number, event_time="at"))
    counted = pipeline.compute("counted", Counted(), keys={numbers: "key"})
    pipeline.sink("out", counted, collected.sink("out"))
    run_inline(
        pipeline,
        store=LocalStore(tmp_path / "store"),
        workers=2,
        rows=10,
        exchange=exchange,
        runner=SparkRunner(two_slots),
    )
    jobs = two_slots._jsc.sc().statusStore().jobsList(None)
    found = [jobs.apply(at) for at in range(jobs.size())]
    said = {
        job.description().get()
        for job in found
        if job.jobTags().contains("headrace-orders") and job.description().isDefined()
    }
    assert said >= expected
