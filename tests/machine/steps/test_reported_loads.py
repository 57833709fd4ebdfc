"""A step that is measured tells what each bin gave to do; how much it tells does not grow with anything."""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.keyspace.layout import Layout
from headrace.protocol.loads import SAMPLE, BinLoads, loads_of
from headrace.schema.reserved import HASH
from tests.support.layouts import layouts


def batch(hashes: npt.ArrayLike) -> pa.RecordBatch:
    return pa.record_batch([pa.array(np.asarray(hashes, dtype=np.uint64))], names=[HASH])


def told(found: BinLoads) -> dict[int, float]:
    pairs = zip(found.positions.tolist(), (found.shares * found.records).tolist(), strict=True)
    return {bin_: round(records, 6) for bin_, records in pairs}


@given(
    layouts(),
    st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=40), max_size=3),
    st.integers(0, 2**56),
)
@settings(max_examples=100)
def test_few_records_are_counted_one_by_one(
    layout: Layout, inputs: list[list[int]], sample_seed: int
) -> None:
    ends = [*layout.starts.tolist()[1:], 1 << 64]

    def bin_of(hash_: int) -> int:
        return next(at for at, end in enumerate(ends) if hash_ < end)

    counted = Counter(bin_of(hash_) for hashes in inputs for hash_ in hashes)
    found = loads_of(layout, [batch(hashes) for hashes in inputs], 5.0, sample_seed=sample_seed)
    assert (found is None) == (not counted)
    if found is not None:
        assert told(found) == counted
        assert (found.records, found.looked_at, found.took_us) == (
            counted.total(),
            counted.total(),
            5,
        )


def test_of_many_records_some_are_looked_at_and_speak_for_all() -> None:
    layout = Layout.uniform(1 << 16, np.zeros(1 << 16, dtype=np.int32), 1)
    rng = np.random.default_rng(7)
    hot = np.full(30_000, 1 << 63)  # three of ten records are of one bin
    rest = rng.integers(0, 1 << 63, 70_000, dtype=np.uint64) * np.uint64(2)
    hashes = rng.permutation(np.concatenate([hot.astype(np.uint64), rest]))
    found = loads_of(layout, [batch(hashes)], 1.0, sample_seed=3)
    assert found is not None
    assert SAMPLE * 0.9 < found.looked_at <= SAMPLE
    assert len(found.bins) + len(found.counts) <= 6 * SAMPLE
    assert abs(told(found)[1 << 15] - 30_000) < 2_500
    assert abs(sum(told(found).values()) - 100_000) < 1


def test_in_time_every_record_is_looked_at_whatever_their_order() -> None:
    """So input that goes round the keys cannot hide from a sample that goes round the records."""
    layout = Layout.uniform(8, np.zeros(8, dtype=np.int32), 1)
    rows = SAMPLE * 8
    hashes = np.tile(np.arange(8, dtype=np.uint64) << np.uint64(61), rows // 8)
    seen: Counter[int] = Counter()
    for sample_seed in range(8):
        found = loads_of(layout, [batch(hashes)], 1.0, sample_seed=sample_seed)
        assert found is not None
        seen.update(dict(zip(found.positions.tolist(), told(found).values(), strict=True)))
    assert seen == dict.fromkeys(range(8), rows)
