"""One storage has one driver: a second one is refused while the first lives, and waits for no dead one."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.cli import main
from headrace.control.process_check import still_runs, this_process
from headrace.driver.admission import Admission
from headrace.driver.driver import Driver, Fresh
from headrace.driver.leader_watcher import LeaderWatcher
from headrace.driver.leadership import Leadership
from headrace.errors import PipelineError, StorageInUse, WrongPipeline
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import (
    HEARTBEAT_FILE,
    HeartbeatRecord,
    Heartbeats,
    HeartbeatSettings,
    Process,
)
from headrace.runners.inline import InlineRunner
from headrace.storage import LocalStore, MemoryStore
from tests.machine.leadership.test_jobs_that_stand_by import check_exactly_once, drawing, job
from tests.support.changing import Count, begin, items
from tests.support.fail_over import Scene
from tests.support.leading_driver import FENCED, IN_USE
from tests.support.pipelines import Collected
from tests.support.waiting import until

LEASE = HeartbeatSettings(period_s=0.5, patience_s=3.0)


# -- jobs of one process ----------------------------------------------------------------------


def test_a_second_job_of_the_same_process_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    collected = Collected()
    with job(tmp_path, collected) as first:
        until(lambda: first.head is not None and first.head.step > 3)
        with (
            pytest.raises(StorageInUse, match="in use by") as found,
            job(tmp_path, collected) as two,
        ):
            two.wait()
        assert f"{socket.gethostname()}:" in found.value.what
        assert "leads since 20" in found.value.what
        assert "--take-over" in found.value.remedy
        step = first.current().step
        until(lambda: first.current().step > step + 3)
        assert first.current().epoch == 1
    check_exactly_once(collected, tmp_path)


def test_a_job_is_refused_before_its_runner_is_started(tmp_path: Path) -> None:
    """Starting Spark takes its time, and tells the user of other things."""
    with job(tmp_path, Collected()) as first:
        until(lambda: first.head is not None and Heartbeats(LocalStore(tmp_path)).all())
        with pytest.raises(StorageInUse):
            hr.run(drawing(Collected()), storage=tmp_path, runner="no runner")  # type: ignore[arg-type]


def test_a_job_goes_on_at_once_after_one_that_has_ended(tmp_path: Path) -> None:
    """Nobody waits, however long heartbeats would be waited for."""
    collected, patient = Collected(), hr.HeartbeatSettings(period_s=0.05, patience_s=1_000)
    for _ in range(2):
        with job(tmp_path, collected, heartbeat=patient) as each:
            until(lambda each=each: each.head is not None and each.head.step > 3)
    check_exactly_once(collected, tmp_path)


@pytest.mark.parametrize("other", ["standby", "handover"])
def test_a_job_that_takes_over_at_once_does_nothing_else_before(tmp_path: Path, other: str) -> None:
    with pytest.raises(PipelineError, match="neither stands by nor asks"):
        job(tmp_path, Collected(), take_over=True, **{other: True})


def test_the_command_refuses_to_wait_and_to_take_over(tmp_path: Path) -> None:
    asked = ["run", __file__, "--storage", str(tmp_path), "--standby", "--take-over"]
    found = CliRunner().invoke(main, asked)
    assert found.exit_code == 2
    assert "--standby waits, and --take-over does not" in found.output


# -- drivers of one process, step by step -----------------------------------------------------


class Overtaken(Driver):
    """Something happens between the look at who leads and the claim."""

    meanwhile: Callable[[], None]

    def open(self, on: Head | Fresh = "newest") -> None:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        super().open(on)


def driver(store: MemoryStore, kind: type[Driver] = Driver) -> Driver:
    pipeline = begin(items(60), Collected(), count=Count())
    settings = hr.Settings(limit=hr.Limit(5, 1 << 20))
    return kind(pipeline, store, InlineRunner(), workers=2, settings=settings, drain=True)


def steps(of: Driver, number: int) -> int:
    """Let a driver commit some steps; return the newest."""
    head = of.coordinator.head
    until_step = (0 if head is None else head.step) + number
    while of.coordinator.head is None or of.coordinator.head.step < until_step:
        assert of.turn() is None
    return until_step


@pytest.mark.parametrize("there", [0, 3])
def test_of_two_that_start_at_the_same_time_one_leads_and_the_other_is_refused(there: int) -> None:
    store = MemoryStore()
    if there:
        before = driver(store)
        before.open()
        steps(before, there)
        show(store, "before", role="ended", why="stopped", epoch=1)
    first, second = driver(store), driver(store, Overtaken)

    def claims() -> None:
        first.open()
        steps(first, 2)
        show(store, "first", epoch=first.coordinator.head.epoch)  # type: ignore[union-attr]

    second.meanwhile = claims  # type: ignore[attr-defined]
    clock = Ticking(store)
    with pytest.raises(StorageInUse, match="elsewhere:7"):
        Leadership(second, LEASE, clock=clock).run()
    steps(first, 2)  # it is not fenced


class Ticking:
    """A clock that goes on at each look; the leader of another host shows that it lives meanwhile."""

    def __init__(self, store: MemoryStore) -> None:
        self.now, self.store = 0.0, store

    def __call__(self) -> float:
        self.now += LEASE.period_s
        for heartbeat in Heartbeats(self.store).all():
            show(
                self.store,
                heartbeat.token,
                counter=heartbeat.counter + 1,
                epoch=heartbeat.epoch,
                role=heartbeat.role,
                why=heartbeat.why,
            )
        return self.now


def show(store: MemoryStore, token: str, counter: int = 1, **more: object) -> None:
    """Write a heartbeat as a driver on another host would."""
    heartbeat = HeartbeatRecord(
        token,
        counter,
        "leads",
        1,
        "elsewhere:7",
        10**15,
        10**15 + counter,
        500_000,
        process=Process("another machine", 7, "5"),
    )
    Heartbeats(store).show(msgspec.structs.replace(heartbeat, **more))


class Watched:
    """A storage on which a driver of another host has led, and one that wants to lead now."""

    def __init__(self, runs: bool | None = None) -> None:
        self.store, self.now = MemoryStore(), 0.0
        self.led = driver(self.store)
        self.led.open()
        steps(self.led, 3)
        new = driver(self.store)
        watcher = LeaderWatcher(new, Heartbeats(self.store), LEASE, lambda: self.now)
        self.admission = Admission(new, watcher, lambda _: runs, 0.25)

    def look_after(self, seconds: float) -> Head | Fresh | None:
        self.now += seconds
        return self.admission.look()


def test_a_driver_of_another_host_that_shows_a_heartbeat_lives(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = Watched()
    show(world.store, "a", 1)
    assert world.look_after(0) is None
    assert (
        "waits for up to 3 s to see whether it still runs: elsewhere:7, which leads" in caplog.text
    )
    assert world.look_after(0.3) is None
    show(world.store, "a", 2)
    with pytest.raises(StorageInUse, match="in use by elsewhere:7, which leads since 2001-09-09"):
        world.look_after(0.3)


def test_a_driver_that_commits_steps_lives_also_where_no_heartbeat_is_seen() -> None:
    world = Watched()
    assert world.look_after(0) is None
    steps(world.led, 1)
    with pytest.raises(StorageInUse, match="a driver that shows no heartbeat"):
        world.look_after(0.3)


def test_a_heartbeat_that_becomes_visible_late_is_no_sign_of_life() -> None:
    """A list may lag, and show what a dead driver wrote before it died."""
    world = Watched()
    assert world.look_after(0) is None
    show(world.store, "a", 5)
    assert world.look_after(0.3) is None
    for _ in range(30):
        found = world.look_after(0.3)
        if found is not None:
            break
    assert isinstance(found, Head)


def test_a_driver_of_another_host_that_shows_nothing_is_waited_for_no_longer_than_the_patience(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = Watched()
    show(world.store, "a")
    waited = 0.0
    while world.look_after(0.3) is None:
        waited += 0.3
    assert LEASE.patience_s - 0.3 <= waited <= LEASE.patience_s + 0.3
    assert "that process is gone" in caplog.text
    assert caplog.text.count("waits for up to") == 1, "it is said once"


def test_a_driver_whose_process_has_ended_is_not_waited_for() -> None:
    world = Watched(runs=False)
    show(world.store, "a")
    assert isinstance(world.look_after(0), Head)


def test_a_driver_whose_process_runs_lives_however_silent_it_is() -> None:
    world = Watched(runs=True)
    show(world.store, "a")
    for _ in range(2):
        with pytest.raises(StorageInUse):
            world.look_after(1_000)


def test_where_nothing_has_run_nobody_is_waited_for() -> None:
    store = MemoryStore()
    new = driver(store)
    watcher = LeaderWatcher(new, Heartbeats(store), LEASE, lambda: 0.0)
    assert Admission(new, watcher, lambda _: None, 0.25).look() == "new"


def test_a_storage_of_another_pipeline_is_refused_as_such_whoever_runs_there(
    tmp_path: Path,
) -> None:
    with job(tmp_path, Collected()) as first:
        until(lambda: first.head is not None)
        with (
            pytest.raises(WrongPipeline),
            hr.run(
                begin(items(6), Collected(), count=Count()), storage=tmp_path, runner="inline"
            ) as two,
        ):
            two.wait()


# -- what is known of a process ---------------------------------------------------------------


def test_a_process_knows_of_itself_that_it_runs() -> None:
    assert still_runs(this_process()) is True


def test_a_process_is_told_from_another_that_has_its_id_now() -> None:
    assert still_runs(msgspec.structs.replace(this_process(), started="1")) is False


def test_nothing_is_known_of_a_process_of_another_machine_or_of_an_older_version() -> None:
    assert still_runs(msgspec.structs.replace(this_process(), machine="another")) is None
    assert still_runs(Process()) is None


def test_a_process_that_was_killed_has_ended_also_before_its_parent_asks() -> None:
    code = "import msgspec, sys, headrace.control.process_check as of\n"
    code += "print(msgspec.json.encode(of.this_process()).decode(), flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        process = msgspec.json.decode(child.stdout.readline(), type=Process)
        assert process.pid == child.pid
        assert still_runs(process) is True
        child.kill()
        until(lambda: still_runs(process) is False)
    assert still_runs(process) is False


def test_a_heartbeat_of_an_older_version_names_no_process_and_can_be_read() -> None:
    class OldBeat(msgspec.Struct, omit_defaults=True):
        token: str
        counter: int
        role: str
        epoch: int
        where: str
        since_us: int
        now_us: int
        period_us: int

    old = HEARTBEAT_FILE.encode(OldBeat("a", 1, "leads", 1, "host:1", 0, 0, 500_000))  # type: ignore[arg-type]
    assert HEARTBEAT_FILE.decode(old, "x").process == Process()
    new = HEARTBEAT_FILE.encode(
        HeartbeatRecord("a", 1, "leads", 1, "host:1", 0, 0, 500_000, process=this_process())
    )
    line = new.split(b"\n")[1]
    assert msgspec.json.decode(line, type=OldBeat).where == "host:1", "older versions can read it"


# -- real processes ---------------------------------------------------------------------------


def test_a_second_process_is_refused_until_the_first_is_killed_and_then_waits_for_nobody(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path, 400)
    try:
        scene.start("first")
        scene.has_made("first")
        second = scene.start("second")
        assert scene.ends("second") == IN_USE, scene.log("second")
        pid = scene._started["first"].pid
        assert f"in use by {socket.gethostname()}:{pid}, which leads since" in scene.log("second")
        assert not scene.made_by("second") and second.poll() is not None
        scene.kill("first")
        scene.start("third")
        scene.has_made("third")
        assert "that process is gone" in scene.log("third")
        assert "waits for" not in scene.log("third")
        scene.start("fourth", "--take-over")
        assert scene.ends("third") == FENCED, scene.log("third")
        third, fourth = scene._started["third"].pid, scene._started["fourth"].pid
        assert f"takes over from {socket.gethostname()}:{third}, which leads" in scene.log("fourth")
        assert f"led by {socket.gethostname()}:{fourth}, which leads since" in scene.log("third")
        scene.has_made("fourth")
        scene.is_enough()
        assert scene.ends("fourth") == 0, scene.log("fourth")
        scene.check_exactly_once()
    finally:
        scene.bury()


def test_a_process_that_was_suspended_still_lives(tmp_path: Path) -> None:
    """It is on this machine, and may go on at any time: it is not replaced unasked."""
    scene = Scene(tmp_path, 400)
    try:
        scene.start("first")
        scene.has_made("first")
        scene.freeze("first")
        scene.start("second")
        assert scene.ends("second") == IN_USE, scene.log("second")
        scene.thaw("first")
        scene.has_made("first", len(scene.made_by("first")) + 3)
        scene.is_enough()
        assert scene.ends("first") == 0, scene.log("first")
        assert scene.head.epoch == 1
        scene.check_exactly_once()
    finally:
        scene.bury()
