"""Functions of ``applyInPandasWithState`` yield on Headrace what they yield on Spark's own engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import PipelineError
from tests.spark.processors.engines import SETTINGS, in_utc
from tests.spark.processors.random_functions import both, case_of

pytestmark = pytest.mark.spark

#: No timeout, timeouts of event time, and of processing time.
USUAL = [5, 10, 11, 1]
MORE = list(range(3_000, 3_050))


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from in_utc(**SETTINGS)


@pytest.mark.parametrize("seed", USUAL)
@pytest.mark.drawn(2)
def test_functions_yield_the_same_on_both_engines(seed: int, spark: Any, tmp_path: Path) -> None:
    theirs, ours = both(spark, case_of(seed), tmp_path)
    assert ours == theirs
    assert sum(map(len, theirs))


@pytest.mark.soak
@pytest.mark.parametrize("seed", MORE)
def test_so_do_many_more(seed: int, spark: Any, tmp_path: Path) -> None:
    theirs, ours = both(spark, case_of(seed), tmp_path)
    assert ours == theirs


def nothing(key: Any, frames: Any, state: Any) -> Any:
    return iter(())


def test_a_table_and_a_stream_without_watermark_are_refused(spark: Any, tmp_path: Path) -> None:
    schema = "k STRING, at TIMESTAMP"
    table = spark.createDataFrame([], schema).groupBy("k")
    stream = spark.readStream.schema(schema).json(str(tmp_path)).groupBy("k")
    door = hr.spark.apply_in_pandas_with_state
    with pytest.raises(PipelineError, match="needs a streaming DataFrame"):
        door(table, nothing, "k STRING", "n INT", "Update", "NoTimeout")
    with pytest.raises(PipelineError, match="needs a watermark"):
        door(stream, nothing, "k STRING", "n INT", "Update", "EventTimeTimeout")
