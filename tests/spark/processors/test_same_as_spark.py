"""Processors made by chance yield on Headrace what they yield on Spark's own engine, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.processors.engines import SETTINGS, both, in_utc
from tests.spark.processors.random_processors import case_of

pytestmark = pytest.mark.spark

#: Row and pandas, all time modes, watermarks, restarts.
USUAL = [1, 3, 5, 6, 7, 9, 10, 11, 12, 13]
MORE = [seed for seed in range(1_000, 1_300) if seed not in USUAL]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from in_utc(**SETTINGS)


@pytest.mark.parametrize("seed", USUAL)
@pytest.mark.drawn(2)
def test_both_engines_yield_the_same_in_each_batch(seed: int, spark: Any, tmp_path: Path) -> None:
    theirs, ours = both(spark, case_of(seed), tmp_path)
    assert ours == theirs
    assert sum(map(len, theirs))


@pytest.mark.soak
@pytest.mark.parametrize("seed", MORE)
def test_so_it_is_for_many_more(seed: int, spark: Any, tmp_path: Path) -> None:
    theirs, ours = both(spark, case_of(seed), tmp_path)
    assert ours == theirs


@pytest.mark.parametrize("seed", [3])
def test_so_it_is_with_tasks_on_spark(seed: int, spark: Any, tmp_path: Path) -> None:
    theirs, ours = both(spark, case_of(seed), tmp_path, runner="spark")
    assert ours == theirs
