"""A storage is read when somebody asks, not more often than needed, and never shown as what it is not."""

from __future__ import annotations

import threading

import pytest

from headrace.observe.watching import Reading, shown_location, with_own_names
from tests.support.checkpointed import driven, items
from tests.support.watched_storage import START_S, StoppedClock, WatchedStore, watched


def test_nothing_is_read_before_somebody_asks_and_then_once_a_period() -> None:
    store, clock = WatchedStore(), StoppedClock()
    t = driven(store, steps=2)
    store.lists = 0
    watcher = watched(store, clock)
    assert store.lists == 0
    first = watcher.reading()
    assert (first.state, first.pipeline, first.age_s) == ("read", "everything", 0.0)
    once = store.lists
    clock.now_s = 0.9
    again = watcher.reading()
    assert (again.picture, again.age_s, again.read_s) == (first.picture, 0.9, START_S)
    assert store.lists == once
    t.push_many("items", items(10, 5))
    t.step()
    clock.now_s = 1.0
    later = watcher.reading()
    assert store.lists > once
    assert later.present is not None
    assert first.present is not None
    assert later.present.step == first.present.step + 1
    t.close()


def test_a_storage_that_cannot_be_read_says_since_when_and_keeps_its_last_picture() -> None:
    store, clock = WatchedStore(), StoppedClock()
    t = driven(store, steps=2)
    watcher = watched(store, clock)
    first = watcher.reading()
    store.fails = "no route to host"
    for clock.now_s in (5.0, 6.0, 60.0):
        found = watcher.reading()
        assert (found.state, found.unreachable_since_s) == ("unreachable", START_S + 5)
        assert (found.picture, found.age_s, found.present) == (first.picture, clock.now_s, None)
        assert "no route to host" in found.why
        assert "secret" not in found.why
    store.fails = ""
    clock.now_s = 61.0
    found = watcher.reading()
    assert (found.state, found.unreachable_since_s, found.why) == ("read", None, "")
    t.close()


def test_a_storage_that_could_never_be_read_has_no_picture() -> None:
    store = WatchedStore()
    store.fails = "no route to host"
    found = watched(store, number=2).reading()
    assert (found.state, found.pipeline, found.picture) == ("unreachable", "storage-2", None)


def test_a_pipeline_is_shown_from_its_first_step_on() -> None:
    store, clock = WatchedStore(), StoppedClock()
    watcher = watched(store, clock)
    assert (watcher.reading().state, watcher.reading().pipeline) == ("empty", "storage-1")
    t = driven(store, steps=1)
    clock.now_s = 1.0
    assert (watcher.reading().state, watcher.reading().pipeline) == ("read", "everything")
    t.close()


def test_a_pipeline_that_is_gone_is_not_taken_for_one_that_has_not_come() -> None:
    store, clock = WatchedStore(), StoppedClock()
    t = driven(store, steps=1)
    watcher = watched(store, clock)
    watcher.reading()
    t.close()
    for name in store.list("manifests/"):
        store.delete(name)
    clock.now_s = 1.0
    found = watcher.reading()
    assert (found.state, found.why) == ("unreachable", "no pipeline is there any more")


def test_nobody_waits_for_a_look_of_somebody_else_and_what_is_old_is_stale() -> None:
    store, clock = WatchedStore(), StoppedClock()
    t = driven(store, steps=1)
    watcher = watched(store, clock)
    first = watcher.reading()
    store.goes_on.clear()
    clock.now_s = 2.0
    looking = threading.Thread(target=watcher.reading)
    looking.start()
    assert store.hangs.wait(60)
    assert (watcher.reading().state, watcher.reading().age_s) == ("read", 2.0)
    clock.now_s = 3.5
    found = watcher.reading()
    assert (found.state, found.picture, found.present) == ("stale", first.picture, None)
    store.goes_on.set()
    looking.join(60)
    clock.now_s = 5.0
    assert watcher.reading().state == "read"
    t.close()


def test_no_two_pipelines_have_one_name() -> None:
    def reading(name: str) -> Reading:
        return Reading(name, "x", "empty", None, None, None, None)

    names = [of.pipeline for of in with_own_names([reading(name) for name in ("a", "b", "a")])]
    assert names == ["a", "b", "a#3"]


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("state/visits", "state/visits"),
        ("s3://bucket/visits", "s3://bucket/visits"),
        ("s3://ann:secret@bucket/visits?cache=1GiB&sig=secret", "s3://***@bucket/visits"),
        ("webhdfs://node:9870/visits#secret", "webhdfs://node:9870/visits"),
        ("memory:visits", "memory:visits"),
        ("stores.own:Vault:secret", "stores.own:Vault"),
    ],
)
def test_a_location_is_shown_without_what_may_be_secret(location: str, shown: str) -> None:
    assert shown_location(location) == shown
