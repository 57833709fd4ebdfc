"""The cache answers as the store would, keeps to its bound, and never for what a protocol asks."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.checkpoints.catalog import Checkpoints
from headrace.errors import AlreadyExists, Fenced, NotFound, PipelineError
from headrace.ledger.ledger import Ledger
from headrace.storage import MemoryStore, ObjectStore, Store, open_store
from headrace.storage.cache import CachedStore
from tests.machine.steps.test_soft_state import ITEMS, Count, drawn
from tests.support.ledger_drivers import manifest
from tests.support.pipelines import run_inline
from tests.support.s3server import S3Server

BOUND = 3_000
NAMES = [f"{folder}/{n}" for folder in ("runs", "outputs", "manifests", "from-a") for n in range(3)]


class Counting(MemoryStore):
    """Counts what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[tuple[str, int, int | None]] = Counter()

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self.reads[name, offset, length] += 1
        return super().read(name, offset, length)


def answer(store: Store, name: str, offset: int, length: int | None) -> bytes | None:
    try:
        return store.read(name, offset, length)
    except NotFound:
        return None


class BesideAPlainStore(RuleBasedStateMachine):
    """The same is done to a store with a cache in front, and to one without."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.plain = Counting(), MemoryStore()
        self.cached = CachedStore(self.inner, BOUND)
        self.made = 0

    def content(self, size: int) -> bytes:
        self.made += 1
        return (f"{self.made}:" * size)[:size].encode()

    @rule(name=st.sampled_from(NAMES), size=st.integers(0, 4_000))
    def create(self, name: str, size: int) -> None:
        content, taken = self.content(size), []
        for store in (self.cached, self.plain):
            try:
                store.create(name, content)
            except AlreadyExists:
                taken.append(store)
        assert len(taken) in (0, 2)

    @rule(names=st.sets(st.sampled_from(NAMES)), size=st.integers(0, 2_000))
    def write_all(self, names: set[str], size: int) -> None:
        there = self.plain.list("")
        files = {name: self.content(size) for name in sorted(names) if name not in there}
        self.cached.write_all(files)
        self.plain.write_all(files)

    @rule(
        name=st.sampled_from(NAMES),
        offset=st.sampled_from([0, 0, 7, 1_500]),
        length=st.sampled_from([None, 0, 100, 2_900]),
    )
    def read(self, name: str, offset: int, length: int | None) -> None:
        expected = answer(self.plain, name, offset, length)
        before = self.inner.reads.total()
        assert answer(self.cached, name, offset, length) == expected
        first = self.inner.reads.total() - before
        assert answer(self.cached, name, offset, length) == expected
        again = self.inner.reads.total() - before - first
        is_packed = name.startswith("manifests") and offset > 0
        data = is_packed or name.startswith(("runs", "outputs"))
        small = expected is not None and len(expected) < BOUND - 200
        assert again == (0 if data and small else 1)

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        self.cached.delete(name)
        self.plain.delete(name)

    @rule(prefix=st.sampled_from(["", "runs/", "runs/1", "from"]))
    def list(self, prefix: str) -> None:
        assert self.cached.list(prefix) == self.plain.list(prefix)

    @invariant()
    def keeps_to_its_bound(self) -> None:
        kept = self.cached._kept
        assert sum(map(len, kept.values())) + 200 * len(kept) <= BOUND


TestBesideAPlainStore = BesideAPlainStore.TestCase
TestBesideAPlainStore.settings = settings(max_examples=40, stateful_step_count=40)


def test_what_is_used_goes_last() -> None:
    inner = Counting()
    store = CachedStore(inner, BOUND)
    for number in range(4):
        inner.write(f"runs/{number}", b"x" * 700)
    for name in ("runs/0", "runs/1", "runs/2", "runs/0", "runs/3", "runs/0"):
        store.read(name)
    assert inner.reads["runs/0", 0, None] == 1
    store.read("runs/1")
    assert inner.reads["runs/1", 0, None] == 2, "it was used longest ago"


def test_threads_read_what_is_there() -> None:
    inner = MemoryStore()
    contents = {f"runs/{n}": bytes([n]) * (100 * n) for n in range(30)}
    inner.write_all(contents)
    store, wrong = CachedStore(inner, BOUND), []

    def read(seed: int) -> None:
        for step in range(300):
            name = f"runs/{(seed * 7 + step * 11) % 30}"
            if store.read(name) != contents[name]:
                wrong.append(name)
            if step % 17 == 0:
                store.delete(f"runs/none-{seed}-{step}")

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_driver_that_was_cleaned_away_is_fenced_although_it_read_its_predecessor() -> None:
    """Manifests that were read must be looked for again: it is that they are gone that fences."""
    inner = MemoryStore()
    stale, rival = Ledger(CachedStore(inner, 1 << 20)), Ledger(inner)
    head = stale.commit(None, manifest(None, "a0", claim=True))
    for step in (1, 2):
        head = stale.commit(head, manifest(head, f"a{step}", claim=False))
    assert stale.open() == head
    theirs = rival.commit(head, manifest(head, "b3", claim=True))
    for step in range(4, 8):
        theirs = rival.commit(theirs, manifest(theirs, f"b{step}", claim=False))
    rival.clean([], range(1, 6))
    with pytest.raises(Fenced):
        stale.commit(head, manifest(head, "a3", claim=False))


def test_a_remote_store_has_one_cache_a_process_as_large_as_its_location_says(s3: S3Server) -> None:
    location = s3.location()
    store = open_store(f"{location}?cache=2KiB")
    assert isinstance(store, CachedStore)
    assert store is open_store(store.location)
    assert store.location == f"{location}?cache=2048"
    store.write("runs/1", b"content")
    assert store.read("runs/1") == b"content"
    store.inner.delete("runs/1")
    assert store.read("runs/1") == b"content", "it is kept"
    assert open_store(location).location == f"{location}?cache={64 << 20}"
    assert isinstance(open_store(f"{location}?cache=0"), ObjectStore)
    for query in ("cache=much", "cach=1", "cache=-1"):
        with pytest.raises(PipelineError, match="not known"):
            open_store(f"{location}?{query}")


@pytest.mark.usefixtures("own_files")
def test_who_verifies_sees_what_is_there_and_not_what_was_read_before() -> None:
    inner = MemoryStore()
    store = CachedStore(inner, 1 << 20)
    pipeline, _ = drawn(Count(), ITEMS)
    run_inline(pipeline, store=store, rows=5)
    checkpoints = Checkpoints(store)
    assert list(checkpoints.verify()) == []
    (name, *_) = inner.list("runs/")
    data = inner.read(name)
    inner.delete(name)
    assert [found.file for found in checkpoints.verify()] == [name]
    inner.write(name, data[:-1] + bytes([data[-1] ^ 1]))
    assert [found.file for found in checkpoints.verify()] == [name]
