"""Real processes that append, are killed, stopped and started again, while a real pipeline reads."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

import headrace as hr
from headrace.eventtime.timestamps import MIN_TIME
from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import MANIFESTS, manifest_name
from headrace.sources.inbox import Producer
from headrace.storage import LocalStore, MemoryStore
from tests.support import processes
from tests.support.inboxes import Item, Tell, items, pipeline, producer, run_until_idle
from tests.support.outputs import records, steps_of
from tests.support.pipelines import Collected

PRODUCER, READER = "tests/support/inbox_producer.py", "tests/support/inbox_reader.py"
NAMES = ["a", "b", "c"]
BATCHES = 60


class Scene:
    """An inbox, a pipeline on it, and their processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inbox, self.storage, self.out = folder / "inbox", folder / "storage", folder / "out"

    def append(self, name: str, *more: str) -> subprocess.Popen[bytes]:
        arguments = [PRODUCER, str(self.inbox), name, str(BATCHES), *more]
        return processes.start(arguments, self.folder / f"{name}.log")

    def read(self) -> subprocess.Popen[bytes]:
        arguments = [READER, str(self.storage), str(self.inbox), str(self.out), *NAMES]
        return processes.start(arguments, self.folder / "reader.log")

    def batches(self, name: str) -> list[int]:
        found = self.inbox.glob(f"from-{name}/0*")
        return sorted(int(path.name) for path in found)

    def finish(self, *running: subprocess.Popen[bytes]) -> None:
        for process in running:
            assert process.wait(timeout=60) == 0, self.logs()

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("*.log"))

    def told(self) -> dict[str, list[tuple[int, int]]]:
        """Return what came out, by producer, in the order in which it was read."""
        by_name: dict[str, list[tuple[int, int, int]]] = {name: [] for name in NAMES}
        for row in records(self.out):
            by_name[row["who"]].append((row["before"], row["batch"], row["n"]))
        for rows in by_name.values():
            assert [before for before, *_ in sorted(rows)] == list(range(len(rows))), "each once"
        return {name: [(b, n) for _, b, n in sorted(rows)] for name, rows in by_name.items()}


#: The last two stay.
KEPT = [BATCHES - 1, BATCHES]
EVERYTHING = [(batch, n) for batch in range(BATCHES) for n in range(3)]


@pytest.mark.drawn(4, "whoever dies")
def test_producers_and_pipeline_are_killed_and_started_again_and_each_batch_counts_once(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    reader = scene.read()
    running = {name: scene.append(name) for name in NAMES}
    for kill_at in (3, 9):
        for name in NAMES:
            alive = running[name]
            processes.wait_for(
                lambda name=name, at=kill_at: scene.batches(name)[-1:] >= [at], process=alive
            )
            alive.kill()
            alive.wait()
            running[name] = scene.append(name)
        at = processes.steps_in(scene.storage)
        processes.wait_for(lambda at=at: processes.steps_in(scene.storage) > at, process=reader)
        reader.kill()
        reader.wait()
        reader = scene.read()
    scene.finish(*running.values(), reader)
    assert scene.told() == dict.fromkeys(NAMES, EVERYTHING)
    assert {name: scene.batches(name) for name in NAMES} == dict.fromkeys(NAMES, KEPT)


def test_a_producer_stopped_in_its_append_past_a_clean_up_goes_on_and_does_no_harm(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    stopped = scene.append("a", "--stall-at", "5")
    processes.wait_for(lambda: psutil.Process(stopped.pid).status() == psutil.STATUS_STOPPED)
    reader = scene.read()
    scene.finish(scene.append("a"))
    processes.wait_for(lambda: scene.batches("a") == KEPT, process=reader)
    stopped.send_signal(signal.SIGCONT)
    scene.finish(stopped, *[scene.append(name) for name in ("b", "c")], reader)
    assert scene.told() == dict.fromkeys(NAMES, EVERYTHING)


# -- what needs a pipeline, but no processes --------------------------------------------------


def test_a_producer_learns_which_of_its_batches_were_recorded(tmp_path: Path) -> None:
    inbox, storage = LocalStore(tmp_path / "inbox"), LocalStore(tmp_path / "storage")
    a = producer(inbox, "a")
    producer(inbox, "b").append(items("b", 0, 1))
    assert a.recorded(storage) == 0, "no pipeline has read it yet"
    collected = Collected()
    drawn = pipeline(inbox, collected.sink("told"))
    for number in range(100):
        a.append(items("a", number, 1))
        if number % 3 == 0:
            assert not a.is_recorded(number, storage)
            run_until_idle(drawn, storage)
            assert a.is_recorded(number, storage)
            assert a.recorded(storage) == number + 1
    assert Producer(inbox, "a").recorded(tmp_path / "storage") == 100
    source = drawn.injectors["items"].source
    assert source.recorded("a", storage=storage) == 100
    assert source.recorded("b", storage=storage) == 1
    assert hr.sources.inbox.recorded("a", inbox=tmp_path / "none", storage=storage) == 0
    assert not (tmp_path / "none").exists(), "asking makes nothing"


class Behind(MemoryStore):
    """Its list may have stopped some time ago."""

    shown: list[str] | None = None

    def list(self, prefix: str) -> list[str]:
        there = super().list(prefix) if self.shown is None else self.shown
        return [name for name in there if name.startswith(prefix)]


def test_what_was_recorded_is_told_by_a_storage_whose_list_lags_behind() -> None:
    inbox, storage = MemoryStore(), Behind()
    a = producer(inbox, "a")
    drawn = pipeline(inbox, Collected().sink("told"))
    for number in range(70):
        a.append(items("a", number, 1))
        run_until_idle(drawn, storage)
    storage.shown = []
    assert a.recorded(storage) == 0, "nothing is known yet"
    storage.shown = None
    assert a.recorded(storage) == 70
    a.append(items("a", 70, 1))
    run_until_idle(drawn, storage)
    storage.shown = []
    assert a.recorded(storage) == 71, "what follows is found by name"


def test_what_a_fenced_driver_left_behind_tells_nothing_of_what_was_recorded() -> None:
    """Its manifest came after all, long after the others of its time were cleaned away."""
    inbox, storage = MemoryStore(), Behind()
    a = producer(inbox, "a")
    drawn = pipeline(inbox, Collected().sink("told"))

    def read_one_more(number: int) -> None:
        a.append(items("a", number, 1))
        run_until_idle(drawn, storage)

    read_one_more(0)
    assert a.recorded(storage) == 1
    found = Ledger(storage).newest(9)
    step = found[-1].step
    (division,) = (of.divisions["items"] for of in found if of.divisions)
    end = {**division.end, "next": {"a": 99}}
    left = msgspec.structs.replace(
        found[-1],
        step=step + 1,
        nonce="late",
        divisions={"items": msgspec.structs.replace(division, end=end)},
    )
    for number in range(1, 20):
        read_one_more(number)
    storage.create(manifest_name(step + 1), MANIFESTS.encode(left))
    storage.shown = [manifest_name(at) for at in range(step + 2)]
    assert a.recorded(storage) == 1, "nothing newer is to be seen"
    assert producer(inbox, "a").recorded(storage) == 0
    storage.shown = None
    assert a.recorded(storage) == 20


def test_nothing_counts_as_recorded_before_its_step_is_committed(tmp_path: Path) -> None:
    inbox, storage = MemoryStore(), MemoryStore()
    a = producer(inbox, "a")
    seen: list[tuple[int, int]] = []
    drawn = pipeline(inbox, Collected().sink("told"))
    offer = drawn.injectors["items"].source.offer

    def watching(position: Any, limit: Any) -> Any:
        found = offer(position, limit)
        if found is not None and not found.empty:
            seen.append((position["next"].get("a", 0), a.recorded(storage)))
        return found

    drawn.injectors["items"].source.offer = watching
    for number in range(9):
        a.append(items("a", number, 1))
    run_until_idle(drawn, storage, rows=2)
    assert seen == [(at, at) for at in (0, 2, 4, 6, 8)]


def watermark_of(drawn: Any, storage: Any) -> int:
    head = run_until_idle(drawn, storage).coordinator.head
    assert head is not None
    return head.watermark_of("told")[0]


def test_a_producer_that_is_expected_and_missing_holds_the_watermark() -> None:
    inbox, storage = MemoryStore(), MemoryStore()
    drawn = pipeline(inbox, Collected().sink("told"), producers=("a", "b"))
    producer(inbox, "a").append(items("a", 7, 3))
    held = watermark_of(drawn, storage)
    assert held == MIN_TIME
    producer(inbox, "b").append(items("b", 2, 3))
    assert watermark_of(drawn, storage) == 22
    producer(inbox, "b").finish()
    assert watermark_of(drawn, storage) == 72


def test_what_producers_promise_moves_an_exact_watermark_without_records() -> None:
    inbox, storage = MemoryStore(), MemoryStore()
    drawn = hr.Pipeline("exact")
    source = hr.sources.Inbox(inbox, Item, event_time="at")
    stream = drawn.inject("items", source, watermark=hr.exact())
    drawn.compute("told", Tell(), keys={stream: "who"})
    a, b = producer(inbox, "a"), producer(inbox, "b")
    a.append(items("a", 50, 1), promise=300)
    b.promise(200)
    assert watermark_of(drawn, storage) == 200
    b.promise(400)
    assert watermark_of(drawn, storage) == 300
    producer(inbox, "a").promise(350)
    assert watermark_of(drawn, storage) == 350


def test_the_steps_of_a_run_are_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    inbox = MemoryStore()
    for number in range(20):
        for name in NAMES:
            producer(inbox, name).append(items(name, number, number % 4))
    runs = []
    for workers in (1, 3):
        out = tmp_path / str(workers)
        drawn = pipeline(inbox, hr.sinks.Files(out))
        run_until_idle(drawn, MemoryStore(), rows=7, workers=workers)
        runs.append(steps_of(out))
    assert runs[0] == runs[1]
    assert len(runs[0]) > 5
