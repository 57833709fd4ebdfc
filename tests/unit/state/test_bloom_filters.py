"""Bloom filters: nothing that was added is missed, little else is found, and time lets them go."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.keyspace.hashing import hash_words
from headrace.state.ids.bloom import BloomFilter, Generations, mixed

HASHES = st.lists(st.integers(0, 2**64 - 1), max_size=60)


def hashes(first: int, last: int) -> np.ndarray:
    return hash_words(np.arange(first, last, dtype=np.uint64))


@given(st.lists(HASHES, max_size=8), st.integers(1, 100_000))
def test_a_filter_finds_all_that_was_added(parts: list[list[int]], capacity: int) -> None:
    filter_ = BloomFilter(capacity)
    added: set[int] = set()
    for part in parts:
        filter_.add(mixed(np.array(sorted(set(part)), dtype=np.uint64)))
        added |= set(part)
    assert filter_.test(mixed(np.array(sorted(added), dtype=np.uint64))).all()


@pytest.mark.parametrize("worker", [0, 3])
def test_a_full_filter_finds_one_in_ten_thousand_others(worker: int) -> None:
    """Also where all hashes are of one worker of many, and so begin with the same bits."""
    filter_ = BloomFilter(1 << 16)
    assert filter_.capacity == 1 << 16
    own, others = hashes(0, 1 << 16), hashes(1 << 16, 1 << 20)
    if worker:
        own, others = (part >> np.uint64(8) | np.uint64(worker << 56) for part in (own, others))
    filter_.add(mixed(own))
    assert filter_.test(mixed(own)).all()
    assert filter_.test(mixed(others)).mean() < 1e-4
    assert filter_.nbytes == 4 * filter_.capacity


@given(
    st.lists(
        st.tuples(
            st.integers(0, 30), st.lists(st.tuples(st.integers(0, 40), st.integers(-20, 20)))
        ),
        max_size=20,
    ),
    st.integers(0, 60),
)
def test_generations_find_all_that_is_to_be_remembered(
    steps: list[tuple[int, list[tuple[int, int]]]], horizon: int
) -> None:
    generations, newest, now = Generations(horizon), dict[int, int](), 0
    for gone_by, records in steps:
        now += gone_by
        generations.forget(now - horizon, now)
        step = {word: now + at for word, at in records if at >= -horizon}
        for word, time in step.items():
            newest[word] = max(newest.get(word, time), time)
        words = np.array(sorted(step), dtype=np.uint64)
        times = np.array([step[word] for word in sorted(step)], dtype=np.int64)
        generations.add(hash_words(words), times)
        due = [word for word, time in newest.items() if time >= now - horizon]
        assert generations.test(hash_words(np.array(due, dtype=np.uint64))).all()


def test_memory_follows_what_is_remembered() -> None:
    """A steady stream for a hundred horizons, then a tenth of it: filters shrink, and forget."""
    horizon, generations = 100, Generations(100)
    sizes, counts = [], []
    for now in range(10_000):
        rate = 200 if now < 5_000 else 20
        generations.forget(now - horizon, now)
        generations.add(hashes(now * 200, now * 200 + rate), np.full(rate, now, dtype=np.int64))
        sizes.append(generations.nbytes)
        counts.append(len(generations))
    assert max(counts[1_000:]) <= 4
    assert max(sizes[1_000:5_000]) <= 20 * horizon * 200
    assert max(sizes[6_000:]) <= 20 * horizon * 20 + 4 * 4_096
    assert generations.test(hashes(0, 5_000 * 200)).mean() < 1e-3
