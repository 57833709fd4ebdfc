"""Queries of the public sqllogictest corpus are right, or refused with a reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.spark.conftest import session
from tests.support.sql.logictest import Record, Trial, files, matches, records

#: Parts of the corpus, and how many queries of how many files of each are tried.
SAMPLE = {
    "test/random/aggregates": (20, 60),
    "test/random/select": (20, 60),
    "test/random/expr": (20, 60),
    "test/random/groupby": (7, 100),
    "test/index/orderby_nosort/10/": (6, 60),
    "test/index/commute/10/": (6, 60),
    "test/index/in/10/": (2, 60),
    "test/index/between/10/": (2, 60),
    "test/index/delete/10/": (3, 60),
    "test/select": (2, 200),
}


def test_a_file_is_read_as_records() -> None:
    text = (
        "hash-threshold 8\n\nstatement ok\nCREATE TABLE t(a INTEGER)\n\n"
        "onlyif mysql # no\nquery I\nSELECT 1\n----\n1\n\n"
        "skipif mysql\nquery IT rowsort label-1\nSELECT a,\n  'x' FROM t\n----\n1\nx\nNULL\n(empty)\n"
    )
    statement, query = records(text)
    assert statement == Record("statement", "CREATE TABLE t(a INTEGER)")
    answer = ("1", "x", "NULL", "(empty)")
    assert query == Record("query", "SELECT a,\n  'x' FROM t", False, "IT", "rowsort", answer)


def test_an_answer_is_compared_as_the_corpus_writes_values() -> None:
    import pyarrow as pa

    table = pa.table({"a": [2, None], "b": ["", "x"]})
    record = Record("query", "…", False, "RT", "rowsort", ("2.000", "(empty)", "NULL", "x"))
    assert matches(record, table)
    assert not matches(record, table.slice(1))
    texts = Record("query", "…", False, "IR", "nosort", ("0", "1.500", "-12", "0.000"))
    assert matches(texts, pa.table({"a": ["vpliw", "-12.5 x"], "b": ["1.5", ""]}))
    hashed = Record(
        "query",
        "…",
        False,
        "I",
        "nosort",
        ("3 values hashing to 8fd3ef0d8ff0bf7e7ca3f4ff0bf8b1a1",),
    )
    assert not matches(hashed, pa.table({"a": [1, 2, 3]}))


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    started = session("local[1]")
    yield started
    started.stop()


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("part", SAMPLE)
def test_queries_of_the_corpus_are_right_or_refused(spark: Any, part: str) -> None:
    trial = Trial()
    count, limit = SAMPLE[part]
    for name in files(part)[:count]:
        trial.run_file(spark, name, limit)
    print(part, dict(trial.outcomes.most_common()))
    assert not trial.wrong, trial.wrong[:10]
