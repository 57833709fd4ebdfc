"""Opening, committing, unknown outcomes, damage."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import (
    CommitUnknown,
    Damaged,
    Fenced,
    NewerFormat,
    NotFound,
    StorageError,
    StorageFull,
    WrongPipeline,
)
from headrace.ledger.envelope import digest_of_bytes
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import manifest_name
from headrace.storage.memory import MemoryStore
from headrace.storage.reading import Threads
from tests.support.ledger_drivers import manifest


def committed(store: MemoryStore, steps: int, *, base_every: int = 4) -> Head:
    ledger = Ledger(store)
    head = ledger.commit(None, manifest(None, "first", claim=True))
    for step in range(1, steps):
        head = ledger.commit(
            head, manifest(head, f"n{step}", claim=False, base=step % base_every == 0)
        )
    return head


class Flaky(MemoryStore):
    """Fails creates of manifests as it is told to: before, after, or with the reply lost."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []

    def create(self, name: str, data: bytes) -> None:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "error":
            raise StorageError("the disk hiccupped")
        if fault == "full":
            raise StorageFull("no room")
        super().create(name, data)
        if fault == "lost reply":
            raise StorageError("the reply was lost")


def test_a_ledger_opens_where_it_was_left() -> None:
    store = MemoryStore()
    head = committed(store, 11)
    assert Ledger(store).open() == head
    assert head.step == 10


def test_any_retained_step_can_be_opened() -> None:
    store = MemoryStore()
    committed(store, 11)
    assert [Ledger(store).open(step).step for step in range(11)] == list(range(11))  # type: ignore[union-attr]


def test_opening_reads_from_the_newest_base_on() -> None:
    store = MemoryStore()
    head = committed(store, 11)
    for step in range(1, 8):
        store.delete(manifest_name(step))
    assert Ledger(store).open() == head


def test_a_new_store_has_no_head() -> None:
    assert Ledger(MemoryStore()).open() is None


def test_a_commit_whose_reply_was_lost_is_recognised_by_its_nonce() -> None:
    store = Flaky()
    head = committed(store, 3)
    store.faults = ["lost reply"]
    after = Ledger(store).commit(head, manifest(head, "mine", claim=False))
    assert after.step == 3
    assert Ledger(store).open() == after


def test_a_commit_that_failed_before_anything_was_written_is_an_error_and_can_be_repeated() -> None:
    store = Flaky()
    head = committed(store, 3)
    store.faults = ["full"]
    again = manifest(head, "mine", claim=False)
    with pytest.raises(StorageFull):
        Ledger(store).commit(head, again)
    assert Ledger(store).open() == head
    assert Ledger(store).commit(head, again).step == 3


def test_a_lost_reply_to_a_rival_is_fenced_not_retried() -> None:
    store = Flaky()
    head = committed(store, 3)
    Ledger(store).commit(head, manifest(head, "rival", claim=True))
    store.faults = ["error"]
    with pytest.raises(Fenced):
        Ledger(store).commit(head, manifest(head, "mine", claim=False))


def test_an_outcome_that_cannot_be_read_back_is_unknown() -> None:
    class Blind(Flaky):
        def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
            if self.faults and name.startswith("manifests/"):
                raise StorageError("the disk is gone")
            return super().read(name, offset, length)

    store = Blind()
    head = committed(store, 3)
    store.faults = ["error"] * 100
    with pytest.raises(CommitUnknown):
        Ledger(store).commit(head, manifest(head, "mine", claim=False))


@pytest.mark.parametrize("step", [0, 3, 10])
def test_every_flipped_bit_of_a_manifest_is_found(step: int) -> None:
    store = MemoryStore()
    committed(store, 11)
    name = manifest_name(step)
    whole = store.read(name)
    undetected = []
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << (position % 8)
        store.write(name, bytes(flipped))
        try:
            Ledger(store).read(step)
            undetected.append(position)
        except (Damaged, NewerFormat):
            continue
    assert undetected == []


@pytest.mark.parametrize("length", [0, 1, 30, 60, 100, -1])
def test_a_truncated_manifest_is_damaged(length: int) -> None:
    store = MemoryStore()
    committed(store, 3)
    store.write(manifest_name(2), store.read(manifest_name(2))[:length])
    with pytest.raises(Damaged, match="000000000002"):
        Ledger(store).open()


def test_a_missing_manifest_is_named() -> None:
    store = MemoryStore()
    committed(store, 11)
    store.delete(manifest_name(9))
    with pytest.raises(Damaged, match="manifest 9 is missing"):
        Ledger(store).open()


def test_a_manifest_of_another_history_is_found() -> None:
    store, other = MemoryStore(), MemoryStore()
    committed(store, 4)
    head = Ledger(other).commit(None, manifest(None, "other", claim=True))
    Ledger(other).commit(head, manifest(head, "o1", claim=False))
    store.write(manifest_name(1), other.read(manifest_name(1)))
    with pytest.raises(Damaged, match="is not the one that manifest 2 follows"):
        Ledger(store).open()


def test_a_newer_format_is_refused_by_name() -> None:
    store = MemoryStore()
    committed(store, 2)
    body = b'{"something": "new"}'
    data = b"headrace-manifest 3 " + digest_of_bytes(body).encode() + b"\n" + body + b"\n"
    store.write(manifest_name(1), data)
    with pytest.raises(NewerFormat, match="has format 3; this version reads up to 2"):
        Ledger(store).open()


def test_the_storage_of_another_pipeline_is_refused() -> None:
    store = MemoryStore()
    committed(store, 2)
    Ledger(store).check_owner("world")
    with pytest.raises(WrongPipeline, match="belongs to pipeline 'world', not to 'mine'"):
        Ledger(store).check_owner("mine")
    Ledger(MemoryStore()).check_owner("anybody")


def test_manifest_zero_is_never_deleted() -> None:
    store = MemoryStore()
    committed(store, 11)
    Ledger(store).clean([], range(8))
    assert store.list("manifests/")[:2] == [manifest_name(0), manifest_name(8)]


def test_a_sweep_removes_what_lost_tries_left_and_nothing_else() -> None:
    store = MemoryStore()
    head = committed(store, 4)
    store.write("runs/000000000002-e1-t0-l1-w0-a7", b"lost")
    store.write("runs/000000000009-e1-t0-l1-w0-a7", b"of a step to come")
    assert Ledger(store).sweep(head) == ["runs/000000000002-e1-t0-l1-w0-a7"]
    with pytest.raises(NotFound):
        store.read("runs/000000000002-e1-t0-l1-w0-a7")


@settings(max_examples=50)
@given(st.integers(1, 40), st.data(), st.sampled_from([1, 3, 7, 100]))
def test_what_is_known_already_saves_reads_and_changes_nothing(
    steps: int, data: st.DataObject, base_every: int
) -> None:
    store = Counting()
    committed(store, steps, base_every=base_every)
    known = Ledger(store).open(data.draw(st.integers(0, steps - 1), label="known"))
    assert known is not None
    upto = data.draw(st.integers(known.step, steps - 1), label="upto")
    expected = Ledger(store).open(upto)
    before = store.reads
    assert Ledger(store).open(upto, known) == expected
    assert store.reads - before <= upto - known.step + 1
    assert Ledger(store, reading=Threads(4)).open(upto, known) == expected


def test_what_is_known_of_another_history_is_not_used() -> None:
    store, other = MemoryStore(), MemoryStore()
    head = committed(store, 9)
    ledger = Ledger(other)
    known = ledger.commit(None, manifest(None, "elsewhere", claim=True))
    for step in range(1, 7):
        known = ledger.commit(known, manifest(known, f"e{step}", claim=False))
    assert Ledger(store).open(8, known) == head


class Counting(MemoryStore):
    """Counts reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self.reads += 1
        return super().read(name, offset, length)


STRANGE = ["000000000002", "readme", "x-e1", "000000000001.bak", "-1-e1", "²-e1", "9" * 40 + "-e1"]


def test_names_that_are_none_of_ours_are_let_be() -> None:
    store = MemoryStore()
    head = committed(store, 4)
    strange = [
        f"{folder}{name}"
        for folder in ("manifests/", "runs/", "outputs/", "streams/", "intents/")
        for name in STRANGE
        if (folder, name) not in (("manifests/", "000000000002"), ("intents/", "000000000002"))
    ]
    for name in strange:
        store._files[name] = b"what is this?"  # (some are no names that a store would take)
    assert Ledger(store).open() == head
    assert Ledger(store).sweep(head) == []
    assert all(store._files[name] == b"what is this?" for name in strange)


def test_a_manifest_under_the_name_of_another_is_damage() -> None:
    store = MemoryStore()
    committed(store, 4)
    three = store.read(manifest_name(3))
    store.delete(manifest_name(3))
    store.create(manifest_name(3), store.read(manifest_name(2)))
    store.create(manifest_name(4), three)
    with pytest.raises(Damaged, match="holds the manifest of step"):
        Ledger(store).open()


def test_what_is_sealed_well_but_is_something_else_is_damage() -> None:
    store = MemoryStore()
    body = b'{"pipeline":3}'
    sealed = b"headrace-manifest 1 " + digest_of_bytes(body).encode() + b"\n" + body + b"\n"
    store.create(manifest_name(0), sealed)
    with pytest.raises(Damaged, match="does not hold what it should"):
        Ledger(store).open()
