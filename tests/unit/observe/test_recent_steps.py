"""The window follows a ledger that grows, is cleaned, and may be replaced."""

from __future__ import annotations

from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import manifest_name
from headrace.observe.recent import Recent
from headrace.storage.memory import MemoryStore
from tests.support.ledger_drivers import manifest
from tests.unit.ledger.test_ledger import committed


class Behind(MemoryStore):
    """Its list may have stopped some time ago."""

    shown: list[str] | None = None

    def list(self, prefix: str) -> list[str]:
        there = super().list(prefix) if self.shown is None else self.shown
        return [name for name in there if name.startswith(prefix)]


class Counted(MemoryStore):
    """Notes which manifests are read whole."""

    def __init__(self) -> None:
        super().__init__()
        self.read_names: list[str] = []

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data = super().read(name, offset, length)
        if length != 1:
            self.read_names.append(name)
        return data


def grown(store: MemoryStore, head: Head, steps: int, name: str = "more") -> Head:
    ledger = Ledger(store)
    for number in range(steps):
        head = ledger.commit(head, manifest(head, f"{name}{number}", claim=False))
    return head


def seen(recent: Recent) -> list[int]:
    return [each.step for each in recent.look()]


def test_the_window_moves_with_the_ledger() -> None:
    store = MemoryStore()
    head = committed(store, 5)
    recent = Recent(Ledger(store), 4)
    assert seen(recent) == [1, 2, 3, 4]
    assert seen(recent) == [1, 2, 3, 4]
    head = grown(store, head, 2)
    assert seen(recent) == [3, 4, 5, 6]
    grown(store, head, 20)
    assert seen(recent) == [23, 24, 25, 26]


def test_a_look_reads_what_is_new_and_the_last_one_again() -> None:
    store = Counted()
    head = committed(store, 50)
    recent = Recent(Ledger(store), 30)
    recent.look()
    grown(store, head, 1)
    store.read_names.clear()
    recent.look()
    assert store.read_names == [manifest_name(49), manifest_name(50)]


def test_what_was_seen_stays_in_the_window_when_it_is_cleaned_away() -> None:
    store = MemoryStore()
    head = committed(store, 5)
    recent = Recent(Ledger(store), 10)
    recent.look()
    grown(store, head, 3)
    Ledger(store).clean([], range(7))
    assert seen(recent) == [0, 1, 2, 3, 4, 7]


def test_a_storage_that_was_replaced_is_looked_at_anew() -> None:
    store = MemoryStore()
    committed(store, 8)
    recent = Recent(Ledger(store), 10)
    recent.look()
    for name in store.list(""):
        store.delete(name)
    assert seen(recent) == []
    committed(store, 3)
    assert seen(recent) == [0, 1, 2]
    for name in store.list(""):
        store.delete(name)
    head = Ledger(store).commit(None, manifest(None, "another", claim=True))
    grown(store, head, 4, "another")
    assert [each.nonce for each in recent.look()][-1] == "another3"
    assert seen(recent) == [0, 1, 2, 3, 4]


def test_a_list_that_lags_behind_takes_nothing_out_of_the_window() -> None:
    store = Behind()
    head = committed(store, 5)
    store.shown = store.list("")
    recent = Recent(Ledger(store), 3)
    assert seen(recent) == [2, 3, 4]
    grown(store, head, 2)
    assert seen(recent) == [4, 5, 6], "what follows is found by name"
    Ledger(store).clean([], range(5))
    store.shown = store.shown[:2]
    assert seen(recent) == [4, 5, 6]
