"""Tables of a file of SQL that have a watermark: late rows, final rows, and what is kept."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.sqlfile.building import SqlFile
from tests.spark.conftest import session
from tests.support.sql.live import produced

pytestmark = pytest.mark.spark

FILE = """
CREATE TABLE bids (
    item BIGINT NOT NULL, price BIGINT NOT NULL, at TIMESTAMP NOT NULL,
    WATERMARK FOR at AS at - INTERVAL '5' SECOND
) WITH ('connector' = 'filesystem', 'path' = '{folder}/*.jsonl', 'format' = 'json');
CREATE TABLE changed (
    item BIGINT NOT NULL, at TIMESTAMP NOT NULL, WATERMARK FOR at AS at
) WITH ('connector' = 'filesystem', 'path' = '{folder}/*.json', 'format' = 'json',
        'change.op-column' = 'op');
CREATE MATERIALIZED VIEW best AS
SELECT window.end AS at, item, max(price) AS price FROM bids GROUP BY window(at, '10 seconds'), item
EMIT ON WINDOW CLOSE;
CREATE MATERIALIZED VIEW too_late AS SELECT item, count(*) AS n FROM bids_late GROUP BY item;
CREATE MATERIALIZED VIEW items AS SELECT DISTINCT at FROM changed;
"""
START = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    started = session("local[1]")
    yield started
    started.stop()


def _bid(item: int, price: int, second: int) -> dict[str, Any]:
    return {"item": item, "price": price, "at": START + timedelta(seconds=second)}


def test_windows_come_once_they_are_closed_and_late_rows_are_a_table_of_their_own(
    spark: Any, tmp_path: Path
) -> None:
    pipeline = SqlFile(FILE.format(folder=tmp_path), "f.sql").pipeline(spark)
    with hr.testing.drive(pipeline) as t:

        def step(*bids: dict[str, Any]) -> tuple[dict[Any, int], dict[Any, int]]:
            t.push_many("bids_input", bids)
            t.run()
            return produced(t, "best"), produced(t, "too_late")

        assert step(_bid(1, 5, 0), _bid(1, 7, 9), _bid(2, 1, 14)) == ({}, {})
        # The watermark is at 9 s: this one is on time, and the first window is closed at 15 s.
        assert step(_bid(1, 9, 9), _bid(2, 2, 15)) == (
            {(START + timedelta(seconds=10), 1, 9): 1},
            {},
        )
        # It is at 10 s: this one is late.
        assert step(_bid(1, 11, 9)) == ({}, {(1, 1): 1})
        assert t.counts("bids").late == 1


def test_explain_tells_what_is_let_go_and_what_grows(spark: Any, tmp_path: Path) -> None:
    shown = SqlFile(FILE.format(folder=tmp_path), "f.sql").explained(spark)
    best, too_late, items = shown.split("\n\n")
    assert "bounded: let go when the watermark has reached window.end" in best
    assert "rows wait until they are final, when the watermark has reached at" in best
    # Late rows have no watermark, and rows that may be deleted have none that counts.
    assert "grows" in too_late
    assert "grows" in items


def test_what_is_never_final_is_refused_with_its_place(spark: Any, tmp_path: Path) -> None:
    text = FILE.format(folder=tmp_path).replace("SELECT window.end AS at, item", "SELECT item")
    with pytest.raises(hr.errors.PipelineError, match='emit="final"') as refused:
        SqlFile(text, "f.sql").pipeline(spark)
    before = text[: text.index("SELECT item")]
    assert refused.value.place == f"f.sql:{before.count(chr(10)) + 1}:1"
    assert "window" in refused.value.remedy
