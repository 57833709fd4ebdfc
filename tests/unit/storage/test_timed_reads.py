"""A store whose reads are timed says what a call takes, and what a byte takes, and nothing of caches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.load.store_times import StoreMeter
from headrace.storage.memory import MemoryStore
from headrace.storage.timed import LARGE_BYTES, ReadTimes, TimedReads


class _Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class _Slow(MemoryStore):
    """A store that takes time by a simulated clock."""

    def __init__(self, clock: _Clock, call_us: float, byte_us: float) -> None:
        super().__init__()
        self._clock, self._call_us, self._byte_us = clock, call_us, byte_us

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data = super().read(name, offset, length)
        self._clock.seconds += (self._call_us + self._byte_us * len(data)) / 1e6
        return data


@given(
    st.floats(100, 50_000),
    st.floats(0, 0.1),
    st.lists(st.integers(0, 8 * LARGE_BYTES), min_size=1, max_size=30),
)
def test_what_calls_and_bytes_take_is_learnt(
    call_us: float, byte_us: float, sizes: list[int]
) -> None:
    clock, meter = _Clock(), StoreMeter()
    store = TimedReads(_Slow(clock, call_us, byte_us), clock)
    for number, size in enumerate([*sizes, 0]):
        store.write(f"runs/{number}", bytes(size))
        assert len(store.read(f"runs/{number}")) == size
        meter.note(store.take())
    assert not store.take()
    times = meter.times
    again = sum(times.call_us + times.byte_us * size for size in sizes)
    really = sum(call_us + byte_us * size for size in sizes)
    if any(size > 4 * LARGE_BYTES for size in sizes) and not any(
        0 < size <= LARGE_BYTES for size in sizes
    ):
        assert times.call_us == pytest.approx(call_us, rel=0.01)
        assert again == pytest.approx(really, rel=0.25)
    assert times.call_us >= 0.9 * call_us


def test_an_answer_of_a_cache_says_nothing_of_the_storage() -> None:
    clock = _Clock()
    store = TimedReads(_Slow(clock, 1.0, 0.0), clock)
    store.write("runs/a", b"a")
    store.read("runs/a")
    assert store.take() == ReadTimes()
