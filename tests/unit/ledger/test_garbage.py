"""Garbage whose deletion fails is tried again, left with a warning, and found later; no driver ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.cli.status import status_of
from headrace.coordinator.messages import Clean
from headrace.driver.cleaning import Cleaning
from headrace.driver.driver import Driver
from headrace.driver.heartbeat import Heartbeat
from headrace.errors import StorageDenied, StorageError
from headrace.ledger.heartbeats import Heartbeats, HeartbeatSettings
from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import MANIFEST_FOLDER, steps_of
from headrace.observe.picture import picture_of
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore, garbage
from tests.support.changing import Count, Item
from tests.support.changing import items as words

SETTINGS = hr.Settings(
    limit=hr.Limit(2, 1 << 20), base_every=2, retain_steps=1, sweep_every=4, clean_per_step=50
)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage.time, "sleep", lambda seconds: None)


class Flaky(MemoryStore):
    """Fails deletes, and lists of some folders, where somebody says so."""

    def __init__(self, fails: Callable[[str, str], StorageError | None]) -> None:
        super().__init__()
        self.fails = fails
        self.broken = True
        self.deleted: list[str] = []

    def _maybe(self, what: str, name: str) -> None:
        error = self.fails(what, name) if self.broken else None
        if error is not None:
            raise error

    def delete(self, name: str) -> None:
        self._maybe("delete", name)
        super().delete(name)
        self.deleted.append(name)

    def list(self, prefix: str) -> list[str]:
        self._maybe("list", prefix)
        return super().list(prefix)


def driver_on(store: MemoryStore, count: int = 60) -> Driver:
    pipeline = hr.Pipeline("words")
    stream = pipeline.inject("items", hr.sources.Iterable(words(count), Item, event_time="at"))
    pipeline.compute("count", Count(), keys={stream: "page"})
    return Driver(pipeline, store, InlineRunner(), workers=1, bins=4, drain=True, settings=SETTINGS)


def run(store: MemoryStore) -> Driver:
    driver = driver_on(store)
    driver.run()
    driver.close()
    return driver


@pytest.mark.parametrize(
    "fails",
    [
        lambda what, name: StorageError("hiccup") if what == "delete" else None,
        lambda what, name: StorageDenied("no right") if what == "delete" else None,
        lambda what, name: StorageError("hiccup") if (what, name) == ("list", "pins/") else None,
        lambda what, name: StorageError("hiccup") if (what, name) == ("list", "runs/") else None,
        lambda what, name: StorageError("hiccup") if (what, name) == ("list", "probes/") else None,
    ],
    ids=["delete", "denied", "pins", "runs", "probes"],
)
def test_a_storage_that_lets_nothing_be_cleaned_ends_no_driver(
    fails: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = Flaky(fails)
    with caplog.at_level(logging.WARNING):
        driver = run(store)
    head = driver.coordinator.head
    assert head is not None and head.ended == ["items"]
    assert any("could not" in record.message for record in caplog.records)
    store.broken = False
    run(store)
    whole = Ledger(store).open()
    assert whole is not None and not Ledger(store).leftovers(whole).names


def test_what_could_not_be_deleted_once_is_deleted_at_the_second_try() -> None:
    failed: set[str] = set()

    def once(what: str, name: str) -> StorageError | None:
        if what == "delete" and name not in failed:
            failed.add(name)
            return StorageError("hiccup")
        return None

    store = Flaky(once)
    driver = run(store)
    assert failed and driver.ledger.garbage.left == 0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.sets(st.integers(1, 20))), max_size=6))
def test_manifests_go_in_ascending_order_whatever_fails(story: list[tuple[int, set[int]]]) -> None:
    """The commit protocol rests on that."""
    stuck: set[int] = set()

    def fails(what: str, name: str) -> StorageError | None:
        step = next(iter(steps_of([name])), None)
        return StorageError("hiccup") if what == "delete" and step in stuck else None

    store = Flaky(fails)
    for step in range(22):
        store.create(f"{MANIFEST_FOLDER}{step:012d}", b"")
    ledger, upto = Ledger(store), 1
    for more, stuck_now in [*story, (1, set())]:
        stuck.clear()
        stuck.update(stuck_now)
        ledger.clean([], range(upto, min(upto + more, 21)))
        upto = min(upto + more, 21)
        there = steps_of(store.list(MANIFEST_FOLDER))
        assert there == [0, *range(there[1], 22)], "there is no gap"
    assert there[1] == upto, "what was left is caught up with"


def test_the_status_says_how_much_could_not_be_deleted() -> None:
    store = Flaky(lambda what, name: StorageError("hiccup") if name.startswith("runs/") else None)
    driver = driver_on(store)
    driver.run()
    heart = Heartbeat(Heartbeats(store), driver.loop_progress, HeartbeatSettings(), lambda: 0)
    heart._write()
    head = driver.coordinator.head
    assert head is not None
    picture = picture_of("words", head, [], Heartbeats(store).all(), None, 0)
    (shown,) = status_of(picture)["drivers"]
    assert shown["not_deleted"] == driver.ledger.garbage.left > 0
    driver.close()


class Meeting(MemoryStore):
    """Deletes a name only while others are deleted, too."""

    def __init__(self, parties: int) -> None:
        super().__init__()
        self._barrier = threading.Barrier(parties, timeout=30)

    def delete(self, name: str) -> None:
        self._barrier.wait()
        super().delete(name)


def test_files_are_deleted_many_at_once_where_steps_run_elsewhere() -> None:
    """Between two steps, 8 to 28 files were deleted one after another, with 10 ms for each."""
    store = Meeting(parties=4)
    names = [f"runs/{n}" for n in range(16)]
    for name in names:
        store.write(name, b"x")
    cleaning = Cleaning(Ledger(store), concurrent=True)
    cleaning.clean(Clean(names, 0, 0, 0, 0))
    cleaning.wait()
    cleaning.close()
    assert store.list("runs/") == [] and cleaning.not_deleted == 0


def test_files_that_cannot_be_deleted_at_once_are_left_and_counted() -> None:
    def fails(what: str, name: str) -> StorageError | None:
        return StorageError("no") if what == "delete" and int(name[5:]) % 2 else None

    store = Flaky(fails)
    names = [f"runs/{n}" for n in range(200)]
    for name in names:
        store.write(name, b"x")
    cleaning = Cleaning(Ledger(store), concurrent=True)
    cleaning.clean(Clean(names, 0, 0, 0, 0))
    cleaning.wait()
    assert {int(name[5:]) % 2 for name in store.list("runs/")} == {1}
    assert cleaning.not_deleted == 100
    store.fails = lambda what, name: StorageError("no") if what == "delete" else None
    cleaning.clean(Clean([f"runs/{n}" for n in range(1_000)], 0, 0, 0, 0))
    cleaning.wait()
    cleaning.close()
    assert cleaning.not_deleted == 1_100, "a storage that deletes nothing is left in peace"
