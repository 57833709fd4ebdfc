"""What is remembered of state counts by the memory that it takes, and stays within the bound."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import numpy as np
import pytest

import headrace as hr
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.support.pipelines import run_inline, run_until_read

KIB = 1 << 10
MIB = 1 << 20


class Sized(msgspec.Struct):
    """A record: what its key should hold from now on."""

    key: int
    at: int
    size: int


class Kept(hr.Computation):
    """Keeps values of the sizes that records name."""

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.put(record.value.size, record.value.at)

    def put(self, size: int, at: int) -> None:
        raise NotImplementedError


class Bytes(Kept):
    held = hr.ValueState(bytes)

    def put(self, size: int, at: int) -> None:
        self.held.value = bytes(size)


class Numbers(Kept):
    held = hr.ValueState(list[float])

    def put(self, size: int, at: int) -> None:
        self.held.value = [at + n / 7 for n in range(size // 32)]


class Untyped(Kept):
    held = hr.ValueState(dict[str, list[int]])

    def put(self, size: int, at: int) -> None:
        self.held.value = {f"name {n}": [n + 1_000, at + 10**6] for n in range(size // 256)}


class Entries(Kept):
    held = hr.MapState(str, int)

    def put(self, size: int, at: int) -> None:
        for n in range(size // 160):
            self.held[f"entry {at} {n}"] = n + 10**6


class Elements(Kept):
    held = hr.ListState(str)

    def put(self, size: int, at: int) -> None:
        self.held.replace([f"{at} {n} " + "x" * 1_000 for n in range(size // 1_000)])


class Expiring(Kept):
    held = hr.MapState(int, bytes, ttl=timedelta(days=1))

    def put(self, size: int, at: int) -> None:
        self.held[size % 3] = bytes(size)


class Timers(Kept):
    held = hr.Timer(hr.EVENT_TIME)

    def put(self, size: int, at: int) -> None:
        for n in range(size // 200):
            self.held.set(at + 10**12, tag=f"timer {at} {n}")

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        pass


class Texts(hr.ColumnarComputation):
    held = hr.TableState({"text": str})

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        texts = np.array(["ж" * (size // 4) for size in batch["size"]], dtype=object)
        self.held.at(batch.row_keys).upsert(text=texts)


KINDS: list[Callable[[], Any]] = [
    Bytes, Numbers, Untyped, Entries, Elements, Expiring, Timers, Texts
]  # fmt: skip


def pipeline_of(computation: Any, records: list[Sized]) -> hr.Pipeline:
    pipeline = hr.Pipeline("sized")
    stream = pipeline.inject("records", hr.sources.Iterable(records, Sized, event_time="at"))
    pipeline.compute("keep", computation, keys={stream: "key"})
    return pipeline


def counted(runner: InlineRunner) -> int:
    """Return how many bytes the states that are remembered count as."""
    entries = [entry for soft in runner._soft for entry in soft._entries.values()]
    return sum(v.state.cached_bytes() for entry in entries for v in entry.visitors.values())


def let_files_go(runner: InlineRunner) -> None:
    for soft in runner._soft:
        for opened in soft._opened.values():
            opened.keep([], 0)
        for entry in soft._entries.values():
            for visitor in entry.visitors.values():
                if visitor.state._sources is not None:
                    visitor.state._sources.release()


def taken(runner: InlineRunner) -> int:
    """Return how much memory is freed when all soft state is dropped, as Python's allocator sees it."""
    let_files_go(runner)  # which count by themselves
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    for soft in runner._soft:
        soft._entries.clear()
    gc.collect()
    return before - tracemalloc.get_traced_memory()[0]


class Measured(InlineRunner):
    """Notes what the state counts as and what it takes, after one of its steps."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.left = after

    def run(self, plan: Any) -> Any:
        reports = super().run(plan)
        self.left -= 1
        if not self.left:
            self.counts, self.takes = counted(self), taken(self)
        return reports


def measured(pipeline: hr.Pipeline, after: int, **way: Any) -> tuple[int, int]:
    runner = Measured(after)
    tracemalloc.start()
    try:
        run_inline(pipeline, runner=runner, workers=1, bins=16, **way)
    finally:
        tracemalloc.stop()
    return runner.counts, runner.takes


def records_of(sizes: list[int], keys: int) -> list[Sized]:
    return [Sized(n % keys, n, size) for n, size in enumerate(sizes)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [[2 * KIB] * 60, [4 * KIB, 64 * KIB] * 10])
@pytest.mark.drawn(10)
def test_state_counts_as_much_as_it_takes(kind: Any, sizes: list[int]) -> None:
    records = records_of([*sizes, 0], 40)
    counts, takes = measured(pipeline_of(kind(), records), len(sizes) // 5, rows=5)
    assert takes / 1.3 - 64 * KIB <= counts <= takes * 1.6 + len(sizes) * KIB, (counts, takes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.drawn(6)
def test_state_that_was_read_back_counts_as_much_as_it_takes(kind: Any) -> None:
    store = MemoryStore()
    records = records_of([4 * KIB, 40 * KIB] * 20, 40)
    run_until_read(pipeline_of(kind(), records), store, 30, rows=5, workers=1)
    counts, takes = measured(pipeline_of(kind(), records), 1, rows=5, store=store)
    most = takes * (2.2 if kind is Texts else 1.6)  # (texts count with what writing adds to them)
    assert takes / 1.3 - 64 * KIB <= counts <= most + 40 * KIB, (counts, takes)


@pytest.mark.parametrize("kind", [Bytes, Numbers, Untyped, Expiring, Texts])
@pytest.mark.drawn(4)
def test_values_that_shrink_or_go_count_less(kind: Any) -> None:
    large = [Sized(n, n, 51_200) for n in range(30)]
    small = [Sized(n, 100 + n, 50) for n in range(30)]
    records = [*large, *small, Sized(1_000, 1_000, 0)]
    counts, _ = measured(pipeline_of(kind(), records), 12, rows=5)
    assert counts < 300 * KIB


def test_large_values_stay_within_the_bound() -> None:
    """845 MB were kept of 1 MB values, where 16 MiB were allowed: 512 bytes a key were assumed."""
    most = 0

    class Watched(InlineRunner):
        def run(self, plan: Any) -> Any:
            nonlocal most
            most = max(most, counted(self))
            return super().run(plan)

    records = [Sized(n % 200, n, MIB // 4) for n in range(300)]
    run_inline(
        pipeline_of(Bytes(), records),
        rows=4,
        workers=1,
        bins=256,
        cached_bytes=8 * MIB,
        runner=Watched(),
    )
    assert 4 * MIB <= most <= 8 * MIB + 8 * MIB // 4 + MIB  # what one step sets is on top
