"""Files that are packed into manifests: their bytes, what is read of them, and when they go."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.coordinator.planning import packed_bytes
from headrace.driver.driver import Driver, Settings
from headrace.errors import Damaged, NewerFormat, StorageError
from headrace.ledger.envelope import digest_of_bytes, read_document
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import MANIFESTS, Manifest, manifest_name, steps_of
from headrace.ledger.packing import pack, unpacked
from headrace.runfiles.format import FileRef
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.soak.test_resources_stay_flat import Sliding, Tick, ticks
from tests.support.ledger_drivers import manifest
from tests.support.pipelines import Elsewhere


def naming(contents: dict[str, bytes], head: Head | None = None, nonce: str = "n") -> Manifest:
    """Return a manifest that names files with these contents: the first is an output, the others state."""
    step = 0 if head is None else head.step + 1
    files = [
        FileRef(name, len(data), "0" * 16, step, 1, worker, ["n"], "x")
        for worker, (name, data) in enumerate(contents.items())
    ]
    made = manifest(head, nonce, claim=head is None)
    return msgspec.structs.replace(made, outputs=files[:1], runs=files[1:])


CONTENTS = st.lists(st.binary(max_size=3_000), min_size=1, max_size=40).map(
    lambda many: {f"runs/f{n}": data for n, data in enumerate(many)}
)


@given(CONTENTS, st.integers(0, 10_000))
def test_each_file_is_read_back_from_the_manifest_that_names_it(
    contents: dict[str, bytes], nonce_bytes: int
) -> None:
    store = MemoryStore()
    placed, document, data = pack(naming(contents, nonce="n" * nonce_bytes), contents)
    store.create(manifest_name(0), data)
    assert data.startswith(document)
    assert read_document(store, manifest_name(0)) == document
    stored = MANIFESTS.read(store, manifest_name(0))
    assert stored == placed
    assert {
        file.name: file.read(store.read) for file in (*stored.outputs, *stored.runs)
    } == contents
    assert [unpacked(file) for file in stored.runs] == naming(contents).runs


def test_a_manifest_without_packed_files_is_what_it_was_before() -> None:
    plain = manifest(None, "n", claim=True)
    assert pack(plain, {}) == (plain, MANIFESTS.encode(plain), MANIFESTS.encode(plain))
    assert MANIFESTS.encode(plain).startswith(b"headrace-manifest 1 ")


def test_every_bit_of_the_document_is_vouched_for() -> None:
    contents = {"runs/a": b"some", "runs/b": b"bytes"}
    _, document, data = pack(naming(contents), contents)
    for at in range(len(document)):
        store = MemoryStore()
        store.write(manifest_name(0), data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises((Damaged, NewerFormat)):
            MANIFESTS.read(store, manifest_name(0))


@given(st.integers(0, 5_000))
def test_a_manifest_that_is_cut_is_refused_or_still_whole(length: int) -> None:
    contents = {"runs/a": b"a" * 900}
    _, document, data = pack(naming(contents), contents)
    store = MemoryStore()
    store.write(manifest_name(0), data[:length])
    if length >= len(document):
        assert MANIFESTS.read(store, manifest_name(0)).outputs[0].name == "runs/a"
    else:
        with pytest.raises(Damaged):
            MANIFESTS.read(store, manifest_name(0))


def test_a_file_that_the_manifest_does_not_name_is_not_packed() -> None:
    with pytest.raises(hr.errors.InvariantBroken):
        pack(naming({"runs/a": b""}), {"runs/a": b"", "runs/other": b""})


class LostReply(MemoryStore):
    """Loses the reply to the first create of a manifest: before it is done, or after."""

    def __init__(self, *, done: bool) -> None:
        super().__init__()
        self._done: bool | None = done

    def create(self, name: str, data: bytes) -> None:
        done, self._done = self._done, None
        if done is not False:
            super().create(name, data)
        if done is not None:
            raise StorageError("the reply was lost")


@pytest.mark.parametrize("done", [True, False])
def test_a_commit_whose_reply_was_lost_has_its_files_where_its_head_says(done: bool) -> None:
    contents = {"outputs/o": b"out", "runs/a": b"state", "runs/b": b"more"}
    store = LostReply(done=done)
    made = naming(contents)
    if done:
        head = Ledger(store).commit(None, made, contents)
    else:
        with pytest.raises(StorageError):
            Ledger(store).commit(None, made, contents)
        head = Ledger(store).commit(None, made, contents)
    assert Ledger(store).open() == head
    assert {file.name: file.read(store.read) for file in head.files} == contents
    assert head.digest == digest_of_bytes(read_document(store, manifest_name(0)))


# -- how long they stay ----------------------------------------------------------------------


class Steady(Sliding):
    deterministic = True


def run(store: MemoryStore, steps: int, *, weak: bool = False, **upkeep: Any) -> list[Head]:
    """Run so many steps of a pipeline with little state; return the heads."""
    pipeline = hr.Pipeline("upkeep")
    stream = pipeline.inject("ticks", hr.sources.Iterable(ticks, Tick, event_time="at"))
    node = pipeline.compute("sliding", Steady(), keys={stream: "key"})
    pipeline.sink("out", node, hr.sinks.Calls(lambda step, rows: None), weak=weak)
    settings = Settings(limit=hr.Limit(20, 1 << 20), **upkeep)
    driver = Driver(pipeline, store, InlineRunner(), workers=2, settings=settings)
    heads: list[Head] = []

    def note(summary: hr.StepSummary) -> None:
        heads.append(summary.head)
        if len(heads) >= steps:
            driver.request_stop(drain=False)

    driver.listeners.append(note)
    driver.run()
    driver.close()
    return heads


def newest(store: MemoryStore) -> Head:
    head = Ledger(store).open()
    assert head is not None
    return head


#: Some of the files are smaller, and some are not.
SOME = 4_000
UPKEEP = {"base_every": 4, "slices": 32, "retain_steps": 2}


@pytest.mark.parametrize("packed_bytes", [0, SOME, 1 << 18])
def test_manifests_stay_as_long_as_a_packed_file_is_needed_and_no_longer(
    packed_bytes: int,
) -> None:
    store = MemoryStore()
    run(store, 150, **UPKEEP, packed_bytes=packed_bytes)
    head = newest(store)
    there = steps_of(store.list("manifests/"))
    needed = {file.pack for file in head.files if file.pack is not None}
    assert there == [0, *range(head.oldest_manifest, head.step + 1)]
    assert needed <= {manifest_name(step) for step in there}
    if packed_bytes == 0:
        assert (needed, head.oldest_manifest) == (set(), head.boundary)
    else:
        # State is in slices as of the last 32 steps, and the boundary moves every 4.
        assert head.boundary - 40 <= head.oldest_manifest < head.boundary
    if packed_bytes == 1 << 18:
        assert not store.list("runs/") + store.list("outputs/")


@pytest.mark.parametrize("packed_bytes", [SOME, 1 << 18])
def test_every_step_that_is_kept_can_be_read_and_is_whole(
    packed_bytes: int,
) -> None:
    store = MemoryStore()
    upkeep = {**UPKEEP, "retain_steps": 9, "packed_bytes": packed_bytes}
    heads = {head.step: head for head in run(store, 90, **upkeep)}
    steps = Checkpoints(store).versions()
    assert steps == list(range(newest(store).boundary, newest(store).step + 1))
    assert list(Checkpoints(store).verify()) == []
    for step in steps:
        checkpoint = Checkpoints(store).open(step)
        assert checkpoint.head == heads.get(step, checkpoint.head)
        assert sum(
            len(checkpoint.read("sliding", at)) for at in checkpoint.components["sliding"].sections
        )


def test_all_files_of_a_step_together_are_bounded() -> None:
    with pytest.raises(hr.errors.PipelineError, match="packed_bytes=9,000,000 is not possible"):
        run(MemoryStore(), 1, packed_bytes=9_000_000)
    assert packed_bytes(Settings(), 4, "driver") == 256 << 10
    for tasks in (1, 16, 17, 1_000, 10**7):  # (each packs its state, and its outputs)
        most = packed_bytes(Settings(), tasks, "driver")
        assert tasks * (most + most // 4) <= 8 << 20


def test_what_travels_through_the_shuffle_of_spark_is_not_packed() -> None:
    assert packed_bytes(Settings(), 4, "shuffle") == 0


def test_rare_checkpoints_do_not_keep_the_manifests_between_them() -> None:
    store = MemoryStore()
    run(store, 400, **{**UPKEEP, "slices": 8}, checkpoint_steps=10)
    assert len(store.list("manifests/")) < 40
    assert store.list("runs/")


def test_outputs_that_nobody_takes_do_not_keep_manifests_for_ever() -> None:
    """One output at the beginning, and none after it: the input goes on."""
    store, held = MemoryStore(), threading.Event()
    taken: list[int] = []

    def write(step: int, rows: Any) -> None:
        held.wait(60)
        taken.append(rows.num_rows)

    pipeline = hr.Pipeline("upkeep")
    stream = pipeline.inject("ticks", hr.sources.Iterable(ticks, Tick, event_time="at"))
    node = pipeline.compute("once", Once(), keys={stream: "key"})
    pipeline.sink("out", node, hr.sinks.Calls(write))
    settings = Settings(limit=hr.Limit(20, 1 << 20), **UPKEEP)
    driver = Driver(pipeline, store, Elsewhere(), workers=2, settings=settings)
    counts: list[int] = []

    def note(summary: hr.StepSummary) -> None:
        counts.append(len(store.list("manifests/")))
        if len(counts) == 200:
            held.set()
            driver.request_stop()

    driver.listeners.append(note)
    driver.run()
    driver.close()
    assert max(counts) < 60
    assert taken == [1]


class Once(hr.Computation):
    """Produces a single row."""

    deterministic = True
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record[Tick]) -> None:
        if record.value.at == 0:
            ctx.produce("out", record.value.at)


class Unlisted(MemoryStore):
    """Cannot be listed for a while."""

    listed = True

    def list(self, prefix: str) -> list[str]:
        if not self.listed:
            raise StorageError("it cannot be listed")
        return super().list(prefix)


def test_manifests_go_in_their_order_even_if_an_earlier_driver_left_many_and_no_list_is_had() -> (
    None
):
    store = Unlisted()
    run(store, 60, **UPKEEP)
    head = newest(store)
    first = head.oldest_manifest
    assert first > 5
    for step in range(1, first):  # (what an earlier driver could not delete)
        store.write(manifest_name(step), store.read(manifest_name(0)))
    store.listed = False
    gone: list[int] = []
    delete = store.delete
    store.delete = lambda name: gone.extend(steps_of([name])) or delete(name)  # type: ignore[method-assign]
    Ledger(store).clean([], range(first - 1, first + 1))
    assert gone == list(range(1, first + 1))


# -- other versions --------------------------------------------------------------------------


def is_refused_by_the_first_version(data: bytes) -> bool:
    """Return whether the version that knew one format says that this is a newer one."""
    parts = data.partition(b"\n")[0].split(b" ")
    return len(parts) == 3 and parts[1].isdigit() and int(parts[1]) > 1


def test_a_version_that_does_not_know_packed_files_refuses_storage_that_has_some() -> None:
    """It would overlook where they are, and sweep away the manifests that hold them."""
    store = MemoryStore()
    run(store, 20, **UPKEEP)
    refused = []
    for _ in range(16):
        run(store, 4, **UPKEEP, packed_bytes=0)
        head = newest(store)
        chain = range(head.last_base, head.step + 1)
        refused.append(
            any(is_refused_by_the_first_version(store.read(manifest_name(at))) for at in chain)
        )
        base, _ = Ledger(store).read(head.last_base)
        assert base.base is not None
        has_packed = any(file.pack for file in base.base.files)
        assert refused[-1] or not has_packed
    assert refused[0] and not refused[-1], "in the end, nothing is left that it does not know"


def test_intents_go_with_the_manifests_that_their_steps_could_follow() -> None:
    store = MemoryStore()
    run(store, 150, weak=True, **UPKEEP)
    head = newest(store)
    orders = [int(name.rpartition("/")[2]) for name in store.list("intents/")]
    assert head.oldest_manifest < head.boundary
    assert 0 < min(orders) <= head.step - (head.step - head.oldest_manifest)
    assert len(orders) < 60


def test_clean_up_from_outside_leaves_manifests_with_files_that_are_needed() -> None:
    store = MemoryStore()
    run(store, 60, **UPKEEP)
    head = newest(store)
    Checkpoints(store).clean(0)
    assert steps_of(store.list("manifests/"))[1] == head.oldest_manifest < head.boundary
    assert list(Checkpoints(store).verify()) == []


def test_a_copy_has_all_files_as_files_of_their_own() -> None:
    store, to = MemoryStore(), MemoryStore()
    run(store, 60, **UPKEEP)
    Checkpoints(store).copy(None, to)
    head = newest(to)
    assert all(file.pack is None for file in head.files)
    assert head.oldest_manifest == head.boundary == head.step
    assert list(Checkpoints(to).verify()) == []
    run(to, 60, **UPKEEP)
    assert list(Checkpoints(to).verify()) == []


def test_a_pipeline_may_begin_to_pack_and_stop_it_again() -> None:
    store = MemoryStore()
    run(store, 30, **UPKEEP, packed_bytes=0)
    assert store.list("runs/")
    run(store, 60, **UPKEEP)
    assert not store.list("runs/")
    run(store, 60, **UPKEEP, packed_bytes=0)
    assert newest(store).oldest_manifest == newest(store).boundary
    assert list(Checkpoints(store).verify()) == []
