"""Two processors in a chain yield on Headrace what they yield on Spark's own engine, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.spark.processors.chains import both, chain_of, on_headrace, on_spark
from tests.spark.processors.engines import SETTINGS, batches_of, in_utc

pytestmark = pytest.mark.spark

#: A chain with both forms, a processor alone, and a chain without event time of its own, whose first
#: processor gets records that are late.
USUAL = [1, 13, 2_018]
MORE = list(range(2_000, 2_100))


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from in_utc(**SETTINGS)


@pytest.mark.parametrize("seed", USUAL)
@pytest.mark.drawn(1)
def test_chains_yield_the_same_on_both_engines(seed: int, spark: Any, tmp_path: Path) -> None:
    chain = chain_of(seed)
    theirs, ours = both(spark, chain, tmp_path)
    assert ours == theirs, chain
    assert sum(map(len, theirs))


@pytest.mark.soak
@pytest.mark.parametrize("seed", MORE)
def test_so_do_many_more(seed: int, spark: Any, tmp_path: Path) -> None:
    chain = chain_of(seed)
    theirs, ours = both(spark, chain, tmp_path)
    assert ours == theirs, chain


def test_a_row_that_is_late_already_is_refused_by_both(spark: Any, tmp_path: Path) -> None:
    chain = chain_of(13)._replace(too_late=True)
    for engine, why in (
        (on_spark, "EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED"),
        (on_headrace, "which is late already"),
    ):
        with pytest.raises(Exception, match=why):
            batches_of(
                chain.first, tmp_path / engine.__name__, partial(engine, spark, chain), ignore
            )


def ignore(*_: Any) -> None:
    """Stand in for the other engine."""
