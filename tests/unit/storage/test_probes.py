"""A store that does not create as the protocol needs it is refused before anything is claimed."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import AlreadyExists, StorageError, StorageUnsuitable
from headrace.ledger.ledger import Ledger
from headrace.storage import LocalStore, MemoryStore, ObjectStore, Store
from headrace.storage.probe import FOLDER, check_creates
from tests.property.oracle.model import NodeSpec, Spec
from tests.support import meddler, s3server
from tests.support.faults import ACTS, FaultStore, SimulatedCrash
from tests.support.pipelines import Collected, draw, run_inline
from tests.support.s3server import S3Server

SPEC = Spec(
    injectors={"first": [(i % 3, i % 2, i) for i in range(12)]},
    bound=5,
    rows=4,
    nodes=[NodeSpec("node0", [("first", "a")], delay=3, echo=True)],
)


class Overwriting(MemoryStore):
    """Creates over what is there."""

    def create(self, name: str, data: bytes) -> None:
        self.write(name, data)


class Telling(Overwriting):
    """Creates over what is there, and then says that it was there."""

    def create(self, name: str, data: bytes) -> None:
        taken = name in self._files
        super().create(name, data)
        if taken:
            raise AlreadyExists(name)


class Forgetting(MemoryStore):
    """Knows the names, and not what is in them."""

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        return super().read(name)[:0]


class Repeating(MemoryStore):
    """Asks twice, as remote stores do when a reply was lost."""

    def create(self, name: str, data: bytes) -> None:
        super().create(name, data)
        super().create(name, data)


@pytest.mark.parametrize("kind", [Overwriting, Telling, Forgetting])
def test_a_store_that_does_not_create_if_absent_is_refused(kind: type[MemoryStore]) -> None:
    store = kind()
    with pytest.raises(StorageUnsuitable, match="the storage") as raised:
        run_inline(draw(SPEC, Collected()), store=store, rows=SPEC.rows)
    assert raised.value.code == "HR313"
    assert "If-None-Match" in raised.value.remedy
    assert store.list("") == [], "nothing was claimed, and nothing is left"


@pytest.mark.parametrize("kind", [MemoryStore, Repeating])
def test_a_store_that_does_is_not(kind: type[MemoryStore]) -> None:
    store = kind()
    check_creates(store, "n1")
    assert store.list("") == []


def test_a_directory_passes(tmp_path: Path) -> None:
    check_creates(LocalStore(tmp_path), "n1")
    assert LocalStore(tmp_path).list(FOLDER) == []


def test_an_s3_server_passes_and_one_that_ignores_the_condition_is_refused(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_creates(ObjectStore(s3.location()), "n1")
    believing = s3server.start(tmp_path, authorization="none")  # the condition is signed, too
    try:
        with meddler.meddling(believing.port, lambda *_: meddler.UNCONDITIONAL) as port:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
            store: Store = ObjectStore(believing.location())
            with pytest.raises(StorageUnsuitable):
                run_inline(draw(SPEC, Collected()), store=store, rows=SPEC.rows)
            assert store.list("") == []
    finally:
        believing.process.stop()


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_fault_while_it_is_tried_is_not_taken_for_a_wrong_store(act: str, at: int) -> None:
    inner = MemoryStore()
    try:
        check_creates(FaultStore(inner, at, act), "n1")
    except StorageError as error:
        assert not isinstance(error, StorageUnsuitable), f"{act} at {at}"
    except SimulatedCrash:
        pass
    check_creates(inner, "n2")


class Swept(MemoryStore):
    """Another driver sweeps the first name that is tried, at some moment."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._left = at

    def _maybe_swept(self) -> None:
        self._left -= 1
        if not self._left:
            for name in self.list(FOLDER):
                self.delete(name)

    def create(self, name: str, data: bytes) -> None:
        self._maybe_swept()
        super().create(name, data)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self._maybe_swept()
        return super().read(name, offset, length)


@pytest.mark.parametrize("at", [1, 2, 3])
def test_who_stood_still_until_its_name_was_swept_tries_another_one(at: int) -> None:
    store = Swept(at)
    check_creates(store, "slow")
    assert store.list("") == []


def test_what_killed_drivers_left_is_swept_and_what_somebody_tries_now_is_not() -> None:
    store = MemoryStore()
    run_inline(draw(SPEC, Collected()), store=store, rows=SPEC.rows)
    ledger = Ledger(store)
    head = ledger.open()
    assert head is not None
    store.create(FOLDER + "old", b"")
    assert ledger.sweep(head) == []
    store.create(FOLDER + "new", b"")
    assert ledger.sweep(head) == [FOLDER + "old"]
    assert store.list(FOLDER) == [FOLDER + "new"]
    assert ledger.sweep(head) == [FOLDER + "new"]


def test_every_driver_tries_its_storage_under_a_name_of_its_own() -> None:
    class Noting(MemoryStore):
        tried: list[str]

        def create(self, name: str, data: bytes) -> None:
            if name.startswith(FOLDER):
                self.__dict__.setdefault("tried", []).append(name)
            super().create(name, data)

    store = Noting()
    for _ in range(2):
        run_inline(draw(SPEC, Collected()), store=store, rows=SPEC.rows)
    assert len(store.tried) == 4
    assert len(set(store.tried)) == 2
