"""A run comes to its end whatever form a user's source gives to "nothing"."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.schema import value_type_of
from headrace.schema.reserved import TIMESTAMP_COLUMN
from headrace.storage import MemoryStore

ROWS = 3


class Numbers(hr.sources.Source):
    """Three numbers, and then an offer without rows as often as it is asked."""

    bounded: ClassVar[bool] = False

    def __init__(self, *, final: bool) -> None:
        self._final = final

    def values(self) -> Any:
        return value_type_of(int)

    def start(self) -> int:
        return 0

    def offer(self, position: Any, limit: hr.Limit) -> hr.sources.Offer | None:
        rows = min(ROWS - position, limit.rows)
        return hr.sources.Offer(position + rows, rows, 8 * rows, final=self._final)

    def splits(self, start: Any, end: Any) -> list[hr.sources.Split]:
        return [hr.sources.Split([start, end])]

    def read(self, split: hr.sources.Split) -> pa.Table:
        numbers = np.arange(*split.spec)
        return pa.table({TIMESTAMP_COLUMN: numbers, "value": numbers})


class Count(hr.Computation):
    number = hr.ValueState(int, default=0)

    def process_record(self, ctx: hr.Context, record: hr.Record[int]) -> None:
        self.number.value += 1


@pytest.mark.parametrize("final", [False, True])
def test_a_run_that_catches_up_ends_although_the_source_goes_on_offering_nothing(
    final: bool,
) -> None:
    pipeline = hr.Pipeline("numbers")
    stream = pipeline.inject("numbers", Numbers(final=final), watermark=hr.ascending())
    pipeline.compute("count", Count(), keys={stream: "value"})
    with hr.run(pipeline, storage=MemoryStore(), runner="inline") as job:
        assert job.catch_up(timeout=60)
    assert job.head is not None and job.head.counts["count"].records == ROWS


def test_a_source_that_ends_with_an_offer_of_no_rows_has_ended() -> None:
    pipeline = hr.Pipeline("numbers")
    stream = pipeline.inject("numbers", Numbers(final=True), watermark=hr.ascending())
    pipeline.compute("count", Count(), keys={stream: "value"})
    with hr.run(pipeline, storage=MemoryStore(), runner="inline") as job:
        assert job.drain(timeout=60)
    assert job.ended == "drained"
