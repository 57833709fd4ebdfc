"""Drivers, executors and Python workers that are killed, and zombies, on real Spark: nothing shows.

One pipeline with keys, timers and two layers runs on while those who work on it are struck, in the middle
of a step, at moments that a seed chooses. What the world has seen of it is in a file that knows nothing of
the package, and must be what plain Python says. The suite strikes a few of each kind, the soak many.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import shutil
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import headrace as hr
from headrace.control.control import Control
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.runners.inline import InlineRunner
from headrace.runners.spark import private_api
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore
from tests.spark.conftest import session
from tests.support import kill_campaign, processes, zombie_driver
from tests.support.cluster import HOSTS, StandaloneCluster, cluster_settings
from tests.support.fail_over import Scene
from tests.support.recorder import seen
from tests.support.results import recording

pytestmark = pytest.mark.spark

#: So many of each kind are killed in the soak.
STRIKES = int(os.environ.get("HEADRACE_SOAK_STRIKES", "50"))
#: A checkpoint at each step, or now and then.
EVERY = [1, 1, 5]
#: What an executor that is gone has written is soon given up.
SHORT = {"spark.shuffle.io.maxRetries": "1", "spark.shuffle.io.retryWait": "100ms"}
#: A task whose process stands still is run once more, on the other host; Spark does not kill the first one
#: for it, so that it is there to go on.
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "2s",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.task.duration.threshold": "2s",
    "spark.python.task.killTimeout": "1h",
}
#: An executor that stands still is given up after some seconds. A frozen host has room for the next one.
GIVEN_UP = {**zombie_driver.SETTINGS, "spark.network.timeout": "5s"}


def check(folder: Path) -> int:
    """Let the pipeline come to its end, without Spark; compare what was seen; return the steps."""
    head = Control(LocalStore(folder / "storage")).head()
    records = head.positions["hits"] + 3 * kill_campaign.ROWS
    last = kill_campaign.driver(folder, InlineRunner(), records, "auto", 1)
    last.run()
    last.close()
    assert seen(folder / "effects") == kill_campaign.expected(records)
    return head.step


# -- who is struck in the middle of a step ----------------------------------------------------


class Striking(SparkRunner):
    """Kills somebody in the middle of some tries, each at a moment from the seed.

    Args:
        context: the session's.
        victims: says who may be killed; nobody while those who were killed last are not back.
        chosen: says who of them is killed now; nobody if it is to be asked again.
        rng: chance.
        wanted: how many are to be killed.

    Attributes:
        killed: how many were.
        noticed: of how many Spark has lost a task, which was run again, or its whole try.
    """

    def __init__(
        self,
        context: Any,
        victims: Callable[[], list[psutil.Process]],
        chosen: Callable[[list[psutil.Process]], list[psutil.Process]],
        rng: random.Random,
        wanted: int,
    ) -> None:
        super().__init__(context)
        self._context = context
        self.killed = self.noticed = 0
        self.wanted = wanted
        self._victims, self._chosen = victims, chosen
        self._rng = rng
        self._rest = 3  # so many tries are left alone
        self._took_s = [0.1]

    def run(self, plan: StepPlan) -> list[TaskReport]:
        self._rest -= 1
        if self._rest >= 0 or self.killed >= self.wanted:
            began = time.monotonic()
            reports = super().run(plan)
            self._took_s = [*self._took_s[-20:], time.monotonic() - began]
            return reports
        victims = self._victims()
        if not victims:
            return super().run(plan)
        ended, killed, jobs, residents = (
            threading.Event(),
            self.killed,
            self._jobs(),
            self.residents,
        )
        moment_s = self._rng.uniform(0.0, statistics.median(self._took_s))
        striking = threading.Thread(target=self._strike, args=(victims, moment_s, ended))
        striking.start()
        try:
            return super().run(plan)
        finally:
            ended.set()
            striking.join()
            lost = (residents is not None and self.residents is not residents) or self._lost_in(
                self._jobs() - jobs
            )
            if self.killed > killed and lost:
                self.noticed += self.killed - killed

    def _jobs(self) -> set[int]:
        return {*self._context.statusTracker().getJobIdsForGroup(self._group)}

    def _lost_in(self, jobs: set[int]) -> bool:
        """Say whether a task has failed in one of these jobs."""
        tracker = self._context.statusTracker()
        found = [tracker.getJobInfo(job) for job in jobs]
        stages = {stage for job in found if job is not None for stage in job.stageIds}
        infos = [tracker.getStageInfo(stage) for stage in stages]
        return any(info is not None and info.numFailedTasks for info in infos)

    def _strike(
        self, victims: list[psutil.Process], moment_s: float, ended: threading.Event
    ) -> None:
        ended.wait(moment_s)
        while not ended.is_set():
            if found := self._chosen(victims):
                processes.kill_all(found)
                self.killed += len(found)
                self._rest = self._rng.randrange(1, 6)
                return


def run_while_struck(folder: Path, runner: Striking, exchange: str, every: int) -> tuple[int, int]:
    """Run the pipeline until so many were killed, and to its end; return its steps, and who had a task."""
    folder.mkdir()
    driver = kill_campaign.driver(folder, runner, None, exchange, every)
    left = 5

    def note(_: hr.StepSummary) -> None:
        nonlocal left
        left -= runner.killed >= runner.wanted
        if left == 0:
            driver.request_stop(drain=False)

    driver.listeners.append(note)
    try:
        driver.run()
    finally:
        driver.close()
    return check(folder), runner.noticed


def kill_python_workers(
    folder: Path, rng: random.Random, wanted: int, exchange: str
) -> tuple[int, int]:
    """Kill Python workers of a local session; return the steps, and how many had a task."""
    spark = session(rng.choice(["local[2]", "local[2,4]"]))

    def at_work(there: list[psutil.Process]) -> list[psutil.Process]:
        """Choose one that is running: there are more than tasks, and tasks are short."""
        with contextlib.suppress(psutil.NoSuchProcess):
            running = [one for one in there if one.status() == psutil.STATUS_RUNNING]
            return rng.sample(running, min(1, len(running)))
        return []

    try:
        runner = Striking(spark.sparkContext, processes.python_workers, at_work, rng, wanted)
        return run_while_struck(folder, runner, exchange, rng.choice(EVERY))
    finally:
        spark.stop()


def kill_executors(
    cluster: StandaloneCluster, folder: Path, rng: random.Random, wanted: int, exchange: str
) -> tuple[int, int]:
    """Kill executors of a cluster, sometimes both at once; return the steps, and how many had a task."""
    spark = session(cluster.master, **cluster_settings(), **SHORT)

    def victims() -> list[psutil.Process]:
        if len(private_api.executors(spark.sparkContext)) < len(HOSTS):
            return []
        hosts = HOSTS if rng.random() < 0.2 else [rng.choice(HOSTS)]
        return [executor for host in hosts for executor in cluster.executors(host)]

    try:
        runner = Striking(spark.sparkContext, victims, lambda named: named, rng, wanted)
        return run_while_struck(folder, runner, exchange, rng.choice(EVERY))
    finally:
        spark.stop()


def kill_drivers(folder: Path, rng: random.Random, wanted: int, exchange: str) -> int:
    """Start a driver with a JVM of its own, kill it, and so on; return the steps."""
    folder.mkdir()
    program = [*["-m", "tests.support.kill_campaign"], str(folder), "1000000000", exchange]
    for number in range(wanted):
        before = processes.steps_in(folder / "storage")
        run = processes.start([*program, str(rng.choice(EVERY))], folder / f"{number}.log")
        if rng.random() < 0.8:  # most kills hit a run that is under way, some its start
            claimed = processes.wait_for(
                lambda b=before: processes.steps_in(folder / "storage") > b + 1, process=run
            )
            assert claimed, (folder / f"{number}.log").read_text()
            processes.pause(rng.uniform(0.0, 1.0), run)
        else:
            processes.pause(rng.uniform(0.5, 5.0), run)
        assert run.poll() is None, (folder / f"{number}.log").read_text()
        processes.kill_by_chance(run, rng)
    return check(folder)


# -- who stands still, and goes on --------------------------------------------------------------


class Warden:
    """Waits for tasks that stop themselves; lets them go on when others have done their work.

    Args:
        folder: the pipeline's.
        rng: chance.
        with_host: stop the whole host of such a task, too.
    """

    def __init__(self, folder: Path, rng: random.Random, *, with_host: bool) -> None:
        self.woken = 0
        self.committed = -1
        self._marks = folder / "marks"
        self._rng = rng
        self._with_host = with_host
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Warden:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def is_there(self) -> bool:
        """Whether it still looks: not once something has failed in it."""
        return self._thread.is_alive()

    def _watch(self) -> None:
        known: set[Path] = set()
        while not self._over.wait(processes.POLL_S):
            for mark in set(self._marks.glob("*")) - known:
                if mark.read_text().endswith("\n"):
                    known.add(mark)
                    self._guard(psutil.Process(int(mark.read_text())))

    def _guard(self, task: psutil.Process) -> None:
        """Keep a task from going on until the step is committed without it, and some more are."""
        frozen = [task, *(processes.host_of_task(task) if self._with_host else [])]
        try:
            for process in frozen:
                process.send_signal(signal.SIGSTOP)
            enough = self.committed + self._rng.randrange(1, 6)
            processes.wait_for(lambda: self.committed >= enough or self._over.is_set())
            assert task.status() == psutil.STATUS_STOPPED
            self.woken += self.committed >= enough
        finally:
            for process in frozen:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)


def stop_tasks(
    cluster: StandaloneCluster,
    folder: Path,
    rng: random.Random,
    wanted: int,
    exchange: str,
    *,
    with_host: bool,
) -> int:
    """Let tasks stop in the middle of a step, alone or with their hosts; return the steps."""
    folder.mkdir()
    settings = GIVEN_UP if with_host else SPECULATION
    spark = session(cluster.master, **{**cluster_settings(), **settings})
    stops, at = set(), 0
    for _ in range(wanted):
        at += rng.randrange(8 * kill_campaign.ROWS, 20 * kill_campaign.ROWS)
        stops.add(at)
    driver = kill_campaign.driver(
        folder, SparkRunner(spark.sparkContext), None, exchange, rng.choice(EVERY), frozenset(stops)
    )
    left = 10
    with Warden(folder, rng, with_host=with_host) as warden:

        def note(summary: hr.StepSummary) -> None:
            nonlocal left
            warden.committed = summary.step
            left -= warden.woken >= wanted or not warden.is_there
            if left == 0:
                driver.request_stop(drain=False)

        driver.listeners.append(note)
        try:
            driver.run()
        finally:
            driver.close()
            spark.stop()
    assert warden.woken == wanted
    return check(folder)


def stop_drivers(folder: Path, rng: random.Random, wanted: int) -> int:
    """Let two drivers stand in for each other, whoever leads being stopped; return the steps."""
    folder.mkdir()
    scene = Scene(folder, 200, "--spark")
    try:
        for name in ("one", "other"):
            scene.start(name, "--standby")
        leads = scene.leader_of("one", "other")
        stands_by = "other" if leads == "one" else "one"
        for _ in range(wanted):
            scene.stands_by(stands_by)
            scene.has_made(leads, len(scene.made_by(leads)) + rng.randrange(1, 10))
            scene.freeze(leads)
            scene.has_made(stands_by, len(scene.made_by(stands_by)) + rng.randrange(1, 20))
            scene.thaw(leads)
            leads, stands_by = stands_by, leads
        scene.stands_by(stands_by)
        scene.is_enough()
        for name in (leads, stands_by):
            assert scene.ends(name) == 0, scene.log(name)
        scene.check_exactly_once()
        return scene.head.step
    finally:
        scene.bury()


# -- campaigns --------------------------------------------------------------------------------


class Campaign:
    """Rounds of strikes, each in a folder of its own; keeps count."""

    def __init__(
        self, folder: Path, seed: int, keep: Callable[[Any], None] = lambda figures: None
    ) -> None:
        print(f"seed {seed}")
        self._keep = keep
        self.rng = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.noticed: Counter[str] = Counter()
        self._seed = seed
        self._folder = folder
        self._rounds = self._steps = 0
        self._began = time.monotonic()

    def executors(self, cluster: StandaloneCluster, wanted: int, exchange: str) -> None:
        steps, noticed = kill_executors(cluster, self._new, self.rng, wanted, exchange)
        self.noticed["executors"] += noticed
        self._note("executors", wanted, steps)

    def python_workers(self, wanted: int, exchange: str) -> None:
        steps, noticed = kill_python_workers(self._new, self.rng, wanted, exchange)
        self.noticed["Python workers"] += noticed
        self._note("Python workers", wanted, steps)

    def drivers(self, wanted: int, exchange: str) -> None:
        self._note("drivers", wanted, kill_drivers(self._new, self.rng, wanted, exchange))

    def zombie_tasks(
        self, cluster: StandaloneCluster, wanted: int, exchange: str, *, with_host: bool
    ) -> None:
        steps = stop_tasks(cluster, self._new, self.rng, wanted, exchange, with_host=with_host)
        self._note("zombie hosts" if with_host else "zombie tasks", wanted, steps)

    def zombie_drivers(self, wanted: int) -> None:
        self._note("zombie drivers", wanted, stop_drivers(self._new, self.rng, wanted))

    @property
    def _new(self) -> Path:
        return self._folder / f"round-{self._rounds}"

    def _note(self, kind: str, struck: int, steps: int) -> None:
        """Note a round that was as it should be."""
        shutil.rmtree(self._new)
        self._rounds += 1
        self._steps += steps
        self.done[kind] += struck
        figures = {
            "seed": self._seed,
            "struck": dict(self.done),
            "noticed": dict(self.noticed),
            "rounds": self._rounds,
            "steps": self._steps,
            "seconds": round(time.monotonic() - self._began),
        }
        print(figures, flush=True)
        self._keep(figures)


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(tmp_path_factory.mktemp("cluster"))
    cluster.start(*HOSTS)
    yield cluster
    cluster.close()


@pytest.mark.drawn(4, "whoever dies")
def test_a_few_are_struck_and_nothing_shows(own_cluster: StandaloneCluster, tmp_path: Path) -> None:
    """(Executors and drivers: test_hosts.py and test_kills.py.)"""
    campaign = Campaign(tmp_path, int(os.environ.get("HEADRACE_SEED", "77")))
    for _ in range(10):  # a process may have no task when it is hit
        campaign.python_workers(2, "auto")
        if campaign.noticed["Python workers"]:
            break
    assert campaign.noticed["Python workers"], "nobody who had a task was hit"
    campaign.zombie_tasks(own_cluster, 1, "driver", with_host=False)


def seed_of_a_soak() -> int:
    return int(os.environ.get("HEADRACE_SEED", str(random.SystemRandom().randrange(2**31))))


@pytest.mark.soak
def test_fifty_python_workers_are_killed_at_work_and_nothing_shows(tmp_path: Path) -> None:
    with recording("python_worker_kills") as keep:
        campaign = Campaign(tmp_path, seed_of_a_soak(), keep)
        for exchange in ("auto", "driver", "host", "shuffle"):
            campaign.python_workers(share(1 / 4), exchange)
        assert campaign.noticed["Python workers"] > campaign.done["Python workers"] // 2


@pytest.mark.soak
def test_fifty_of_each_other_kind_are_struck_and_nothing_shows(
    own_cluster: StandaloneCluster, tmp_path: Path
) -> None:
    with recording("spark_kills") as keep:
        strike_all(own_cluster, Campaign(tmp_path, seed_of_a_soak(), keep))


def strike_all(own_cluster: StandaloneCluster, campaign: Campaign) -> None:
    for exchange in ("auto", "driver", "shuffle"):
        campaign.executors(own_cluster, share(1 / 3), exchange)
        campaign.zombie_tasks(own_cluster, share(1 / 12), exchange, with_host=False)
        campaign.zombie_tasks(own_cluster, share(1 / 24), exchange, with_host=True)
    for exchange in ("auto", "driver", "host", "shuffle"):
        campaign.drivers(share(1 / 4), exchange)
    campaign.zombie_drivers(share(1 / 6))


def share(part: float) -> int:
    """Return how many are to be struck in a round."""
    return math.ceil(STRIKES * part)
