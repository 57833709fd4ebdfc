"""Hot keys are those that a computation's records say, within the bounds that are told with them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinator.load.hot_keys import (
    LEAST_SHARE,
    MOST_NAMED,
    MOST_REMEMBERED,
    KeyMeter,
)
from headrace.ledger.measurements import HotKey
from headrace.protocol.key_loads import MOST_KEYS, KeyLoads, key_loads_of
from headrace.protocol.loads import SAMPLE
from headrace.schema.reserved import HASH

SECOND = 1_000_000


def batch(keys: list[int]) -> pa.RecordBatch:
    """Return records of some keys. The hash of a key is a thousand times the key."""
    hashes = pa.array([key * 1000 for key in keys], pa.uint64())
    return pa.record_batch({HASH: hashes, "__key0": pa.array(keys, pa.int64())})


def reported(keys: list[int], seed: int = 0, name: str = "visits") -> KeyLoads:
    found = key_loads_of(name, [batch(keys)], ["__key0"], seed)
    assert found is not None
    return found


def by_key(found: list[HotKey]) -> dict[int, HotKey]:
    return {int(key.key[0]): key for key in found}


@given(st.lists(st.integers(0, 50), min_size=1, max_size=300), st.integers(0, 10**6))
def test_a_report_names_the_busiest_keys_and_bounds_the_others(keys: list[int], seed: int) -> None:
    found, wanted = reported(keys, seed), Counter(keys)
    assert (found.records, found.sampled) == (len(keys), len(keys)), (
        "few records: all are looked at"
    )
    counted = {int(parts[0]): count for _, count, parts in found.counted}
    assert counted == {key: wanted[key] for key in counted}
    assert len(counted) == min(MOST_KEYS, len(wanted))
    others = [count for key, count in wanted.items() if key not in counted]
    assert found.most_left == max(others, default=0)
    assert min(counted.values()) >= found.most_left


def test_a_report_of_many_records_is_as_small_as_one_of_few() -> None:
    rng = random.Random(1)
    keys = [rng.randrange(10**6) if rng.random() < 0.7 else 7 for _ in range(100_000)]
    found = reported(keys, seed=3)
    assert found.sampled <= SAMPLE + 1
    assert len(found.counted) == MOST_KEYS
    hottest = max(found.counted, key=lambda each: each[1])
    assert hottest[2] == ["7"]
    assert abs(hottest[1] / found.sampled - 0.3) < 0.03


def test_no_records_have_no_keys() -> None:
    assert key_loads_of("visits", [None, batch([])], ["__key0"], 0) is None


def test_parts_of_keys_are_as_the_command_for_state_takes_them() -> None:
    columns: dict[str, Any] = {
        "__key0": pa.array(["a\nb"]),
        "__key1": pa.array([True]),
        "__key2": pa.array([b"\x01\xff"]),
        "__key3": pa.array([86_400_000_000], pa.timestamp("us", "UTC")),
        "__key4": pa.array([20_000], pa.date32()),
        "__key5": pa.array(["x" * 1000]),
    }
    rows = pa.record_batch({HASH: pa.array([1], pa.uint64()), **columns})
    found = key_loads_of("visits", [rows], list(columns), 0)
    assert found is not None
    ((_, _, parts),) = found.counted
    assert parts[:5] == ["a\nb", "true", "01ff", "1970-01-02T00:00:00+00:00", "2024-10-04"]
    assert len(parts[5]) < 150


@given(
    st.lists(
        st.lists(st.lists(st.integers(0, 200), max_size=80), min_size=1, max_size=3),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 40),
)
@settings(max_examples=150)
def test_the_share_of_a_key_is_within_its_bounds(
    steps: list[list[list[int]]], pause_s: int
) -> None:
    """Each step has the keys of each worker. All records are looked at, so the bounds are sure."""
    half = 30 * SECOND
    meter = KeyMeter(half)
    records: Counter[int] = Counter()
    for number, workers in enumerate(steps):
        own = [[key * 3 + at for key in keys] for at, keys in enumerate(workers)]
        meter.note(number * pause_s * SECOND, [reported(keys) for keys in own if keys])
        last = max((n for n, of in enumerate(steps) if any(of)), default=0)
        weight = 0.5 ** ((last - number) * pause_s * SECOND / half)
        for keys in own:
            for key in keys:
                records[key] += weight  # type: ignore[assignment]
    whole = sum(records.values())
    found = by_key(meter.hottest())
    assert len(found) <= MOST_NAMED
    for key, of in found.items():
        share = records[key] / whole
        assert of.at_least - 1e-4 <= share <= of.at_most + 1e-4
        assert of.at_least <= of.share <= of.at_most
        assert of.hash == f"{key * 1000:016x}"
    if len({*records}) <= MOST_KEYS:  # nothing was left out of any report
        wanted = [key for key, _ in records.most_common(MOST_NAMED)]
        least = min((records[key] / whole for key in wanted), default=0)
        assert {key for key in wanted if records[key] / whole > max(least, LEAST_SHARE)} <= {*found}
        for key, of in found.items():
            assert abs(of.share - records[key] / whole) < 1e-4


def test_bounds_of_samples_hold_the_share_nearly_always() -> None:
    """A stream of many keys, of which one has a fifth of the records, is sampled in 40 steps."""
    held = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        meter = KeyMeter(10**12)
        for step in range(4):
            keys = np.where(rng.random(20_000) < 0.2, 3, rng.integers(10, 10**6, 20_000))
            meter.note(step, [reported(keys.tolist(), seed=step)])
        (hottest, *_) = meter.hottest()
        assert hottest.key == ["3"]
        assert hottest.at_most - hottest.at_least < 0.02
        held += hottest.at_least <= 0.2 <= hottest.at_most
    assert held >= 54


def test_what_was_hot_long_ago_is_forgotten() -> None:
    meter = KeyMeter(SECOND)
    meter.note(0, [reported([1] * 100)])
    meter.note(20 * SECOND, [reported([2] * 10)])
    assert [key.key for key in meter.hottest()] == [["2"]]


def test_memory_is_bounded_and_a_key_that_comes_back_may_have_been_missed() -> None:
    meter = KeyMeter(10**12)
    for step in range(60):
        meter.note(step, [reported([*range(step * 16, step * 16 + 16), 5])])
    of = meter._of["visits"]
    assert len(of._keys) <= MOST_REMEMBERED
    assert of._missed >= 1, "those that were forgotten had a record each"


def test_computations_that_are_gone_are_forgotten() -> None:
    meter = KeyMeter()
    meter.note(0, [reported([1], name="a"), reported([1], name="b")])
    meter.forget_others(["b"])
    assert {key.computation for key in meter.hottest()} == {"b"}
