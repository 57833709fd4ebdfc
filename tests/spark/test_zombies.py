"""Tasks and drivers that are stopped, given up, overtaken, and go on: nobody ever reads what they write.

Each scene is on a real cluster. A task stops its own Python process in the middle of a step (SIGSTOP).
Others take over and go on, past a clean-up. Then the zombie is woken (SIGCONT), and does write.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.ledger.ledger import Ledger, files_of
from headrace.storage import LocalStore
from tests.spark.conftest import exchanges
from tests.support import processes
from tests.support.outputs import all_steps
from tests.support.zombie_driver import A_STEP, MARKED, RECORDS

pytestmark = pytest.mark.spark

SCRIPT = "tests/support/zombie_driver.py"


class Scene:
    """A pipeline's folder, and what happens there."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.storage = folder / "storage"
        self.frozen: list[psutil.Process] = []
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, run: str, *more: str) -> subprocess.Popen[bytes]:
        arguments = [SCRIPT, str(self.folder), run, *more]
        started = processes.start(arguments, self.folder / f"{run}.log")
        self.started.append(started)
        return started

    def run(self, name: str) -> None:
        """Run inline, to the end of the input."""
        assert self.start(name).wait(timeout=300) == 0, self.log(name)

    def log(self, run: str) -> str:
        return (self.folder / f"{run}.log").read_text()

    def steps(self, run: str) -> list[dict[str, Any]]:
        """Return what the steps that a run has committed say of themselves."""
        path = self.folder / f"{run}.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def stopped_task(self, driver: subprocess.Popen[bytes]) -> psutil.Process:
        """Wait for the task that stops itself; return its process."""
        mark = self.folder / "stopped"
        there = processes.wait_for(
            lambda: mark.exists() and mark.read_text().endswith("\n"), process=driver
        )
        assert there, self.log("first")
        task = psutil.Process(int(mark.read_text()))
        processes.wait_for(lambda: task.status() == psutil.STATUS_STOPPED)
        self.frozen.append(task)
        return task

    def freeze(self, process: psutil.Process) -> None:
        process.send_signal(signal.SIGSTOP)
        processes.wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
        self.frozen.append(process)

    def manifests(self) -> list[int]:
        return sorted(int(path.name) for path in (self.storage / "manifests").glob("0*"))

    def is_cleaned(self, step: int) -> bool:
        return min((at for at in self.manifests() if at > 0), default=0) > step + 1

    def files_of_step(self, step: int) -> set[str]:
        return {path.name for path in (self.storage / "runs").glob(f"{step:012d}-*")}

    def bury(self) -> None:
        """Leave no process behind: no driver, nor one that was stopped."""
        for driver in self.started:
            if driver.poll() is None:
                processes.kill(driver, "both")
        for process in self.frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
                if processes.is_host(process):
                    continue  # of the cluster that other tests use
                process.kill()


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """What happens when nobody stops."""
    scene = Scene(tmp_path_factory.mktemp("calm") / "scene")
    (scene.folder / "stopped").touch()
    scene.run("first")
    return scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "scene")
    yield scene
    scene.bury()


def check_one_attempt_of_its_own_try(steps: list[dict[str, Any]]) -> None:
    """Each (layer, worker), and so each bin, gets one file a step, from the try that was committed."""
    for step in steps:
        stem = f"{step['step']:012d}-e{step['epoch']}-t{step['try']}-"
        written: dict[tuple[str, int, int], str] = {}
        attempts: dict[tuple[int, int], set[str]] = {}
        for name, layer, worker in step["files"]:
            folder, _, file = name.partition("/")
            assert file.startswith(f"{stem}l{layer}-w{worker}-a"), f"{file} in step {stem}"
            assert (folder, layer, worker) not in written
            written[folder, layer, worker] = file
            attempts.setdefault((layer, worker), set()).add(file.rpartition("-a")[2])
        assert all(len(found) == 1 for found in attempts.values()), attempts


def check_same(scene: Scene, calm: Scene, *runs: str) -> None:
    """Check that outputs, and each step's changes of state, are those of the undisturbed run."""
    assert all_steps(scene.folder / "out") == all_steps(calm.folder / "out")
    steps = [step for run in runs for step in scene.steps(run) if step["rows"]]
    expected = [step for step in calm.steps("first") if step["rows"]]
    told = ["rows", "state", "streams"]
    assert [[step[k] for k in told] for step in steps] == [[s[k] for k in told] for s in expected]
    assert steps[-1]["rows"] == [RECORDS]
    check_one_attempt_of_its_own_try(steps)


def check_swept(scene: Scene, leftover: set[str]) -> None:
    """Check that a later start takes away what zombies have left, and needs none of it."""
    scene.run("last")
    store = LocalStore(scene.storage)
    head = Ledger(store).open()
    assert head is not None
    assert not leftover & {path.name for path in (scene.storage / "runs").iterdir()}
    for name in files_of(head):
        if name not in dict(head.dead):
            store.read(name, 0, 1)


def wake(task: psutil.Process, wrote: Callable[[], bool]) -> None:
    """Let a task go on, and wait until it has written what it had in mind."""
    task.send_signal(signal.SIGCONT)
    processes.wait_for(wrote)


@pytest.mark.parametrize("exchange", exchanges(in_soak=["shuffle", "driver"]))
def test_a_host_that_was_frozen_and_given_up_wins_nothing_when_it_wakes(
    standalone: str, calm: Scene, scene: Scene, exchange: str
) -> None:
    """Its step goes on elsewhere, under the same driver; other steps follow, and a clean-up."""
    driver = scene.start("first", "--master", standalone, "--exchange", exchange)
    task = scene.stopped_task(driver)
    step = scene.steps("first")[-1]["step"] + 1
    host = processes.host_of_task(task)
    for process in host:
        scene.freeze(process)
    assert processes.wait_for(lambda: scene.is_cleaned(step), process=driver), scene.log("first")
    kept = scene.files_of_step(step)
    wake(task, lambda: bool(scene.files_of_step(step) - kept))
    for process in host:
        process.send_signal(signal.SIGCONT)
    assert driver.wait(timeout=300) == 0, scene.log("first")
    leftover = scene.files_of_step(step) - kept
    committed = {name for at in scene.steps("first") for name, *_ in at["files"]}
    assert leftover
    assert not {f"runs/{name}" for name in leftover} & committed
    check_same(scene, calm, "first")
    check_swept(scene, leftover)


@pytest.mark.drawn(4, "whoever dies")
def test_a_driver_that_was_stopped_with_its_task_and_overtaken_is_fenced(
    standalone: str, calm: Scene, scene: Scene
) -> None:
    """A second driver claims the epoch, commits all the rest, and cleans up; then both go on."""
    driver = scene.start("first", "--master", standalone)
    task = scene.stopped_task(driver)
    step = scene.steps("first")[-1]["step"] + 1
    for process in [*processes.children(driver, "java"), psutil.Process(driver.pid)]:
        scene.freeze(process)
    scene.run("second")
    assert scene.is_cleaned(step), "the second driver did not clean up behind itself"
    kept = scene.files_of_step(step)
    wake(task, lambda: bool(scene.files_of_step(step) - kept))
    leftover = scene.files_of_step(step) - kept
    assert all(f"{step:012d}-e1-" in name for name in leftover), "of the epoch that is over"
    for process in reversed(scene.frozen[1:]):
        process.send_signal(signal.SIGCONT)
    assert driver.wait(timeout=300) == 4, scene.log("first")
    assert "Fenced" in scene.log("first")
    assert scene.steps("first")[-1]["step"] == step - 1, "nothing more was committed by it"
    leftover |= scene.files_of_step(step) - kept
    assert {at["epoch"] for at in scene.steps("second")} == {2}
    check_same(scene, calm, "first", "second")
    check_swept(scene, leftover)


def test_the_scene_is_one(calm: Scene) -> None:
    """The marked record is in the middle of a step, with steps before and enough of them after."""
    steps = [step["rows"][0] for step in calm.steps("first") if step["rows"]]
    assert sorted({*steps}) == list(range(A_STEP, RECORDS + 1, A_STEP))
    assert A_STEP < MARKED < RECORDS // 2
    assert MARKED % A_STEP not in (0, A_STEP - 1)
    check_one_attempt_of_its_own_try(calm.steps("first"))
