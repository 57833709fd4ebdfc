"""Looking on from outside: the newest manifests, while they come and are cleaned away."""

from __future__ import annotations

import pytest

from headrace.errors import Damaged
from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import manifest_name
from headrace.storage.memory import MemoryStore
from tests.unit.ledger.test_ledger import committed


class Cleaned(MemoryStore):
    """Loses manifests between listing and reading, as when a driver cleans up meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.doomed: list[str] = []

    def list(self, prefix: str) -> list[str]:
        names = super().list(prefix)
        for name in self.doomed:
            self.delete(name)
        return names


class Untouchable(MemoryStore):
    """Can be looked at only."""

    sealed = False

    def create(self, name: str, data: bytes) -> None:
        assert not self.sealed
        super().create(name, data)

    def write(self, name: str, data: bytes) -> None:
        assert not self.sealed
        super().write(name, data)

    def delete(self, name: str) -> None:
        assert not self.sealed
        super().delete(name)


def steps(store: MemoryStore, at_most: int, after: int = -1) -> list[int]:
    return [manifest.step for manifest in Ledger(store).newest(at_most, after)]


def test_the_newest_manifests_come_oldest_first() -> None:
    store = MemoryStore()
    committed(store, 11)
    assert steps(store, 3) == [8, 9, 10]
    assert steps(store, 100) == list(range(11))


def test_only_what_came_after_a_step_is_read_on() -> None:
    store = MemoryStore()
    committed(store, 11)
    assert steps(store, 100, after=8) == [9, 10]
    assert steps(store, 1, after=8) == [10]
    assert steps(store, 100, after=10) == []


def test_a_new_store_has_none() -> None:
    assert steps(MemoryStore(), 100) == []


def test_manifests_beyond_what_the_list_shows_are_found() -> None:
    class Lagging(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            return super().list(prefix)[:5]

    store = Lagging()
    committed(store, 11)
    assert steps(store, 3) == [8, 9, 10]


def test_manifests_that_were_cleaned_away_are_left_out() -> None:
    store = MemoryStore()
    committed(store, 11)
    Ledger(store).clean([], range(8))
    assert steps(store, 100) == [0, 8, 9, 10]


def test_a_manifest_that_vanishes_between_listing_and_reading_is_left_out() -> None:
    store = Cleaned()
    committed(store, 11)
    store.doomed = [manifest_name(step) for step in (1, 2, 3, 8)]
    assert steps(store, 100) == [0, 4, 5, 6, 7, 9, 10]


def test_a_manifest_that_is_there_and_damaged_is_said() -> None:
    store = MemoryStore()
    committed(store, 11)
    store.write(manifest_name(9), b"headrace-manifest 1 nonsense\n{}\n")
    with pytest.raises(Damaged, match="000000000009"):
        Ledger(store).newest(3)


def test_looking_changes_nothing() -> None:
    store = Untouchable()
    committed(store, 11)
    store.sealed = True
    assert len(Ledger(store).newest(100)) == 11
