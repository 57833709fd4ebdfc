"""``hr.spark``: the watermark of Spark's ``withWatermark``, beside what Spark computes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import PipelineError
from headrace.eventtime.watermark import (
    Frontiers,
    PartitionSeen,
    Rules,
    advance,
    changed,
    changes,
    lags,
)

MOST = 10**15


@given(
    delay_ms=st.integers(0, 10**6),
    batches=st.lists(
        st.dictionaries(st.sampled_from("ab"), st.integers(-MOST, MOST), max_size=2),
        min_size=1,
        max_size=8,
    ),
)
def test_it_is_spark_s_watermark_of_the_batches_before(
    delay_ms: int, batches: list[dict[str, int]]
) -> None:
    rules = {"in": Rules(strategy=hr.spark(f"{delay_ms}ms"), partitioned=True)}
    known = {"in": Frontiers()}
    watermark_ms, times_ms = 0, list[int]()
    for batch in batches:
        seen = {"in": {name: PartitionSeen(at) for name, at in batch.items()}}
        after = advance(known, seen, [], rules, 0)
        # Spark: records at or before the watermark are late; it is in milliseconds, from 1970 on.
        assert after["in"].low == watermark_ms * 1_000 + 1
        news = changes(known["in"], after["in"])
        known = {"in": after["in"] if news is None else changed(known["in"], news)}
        assert known == after
        times_ms += [at // 1_000 for at in batch.values()]
        if times_ms:
            watermark_ms = max(watermark_ms, max(times_ms) - delay_ms)
        assert lags(known["in"]) is (watermark_ms * 1_000 + 1 > known["in"].low)


def test_a_negative_delay_is_refused() -> None:
    with pytest.raises(PipelineError, match="negative"):
        hr.spark("-1s")
