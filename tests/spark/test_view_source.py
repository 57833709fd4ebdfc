"""Views as DataFrames on a real Spark: as of one step, in which two views agree."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.checkpoints.views import read_view
from headrace.spark_state import read_views, register
from headrace.storage import LocalStore
from headrace.testing import Harness
from headrace.zsets import Count, Sum

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("account", pa.string()),
        ("cents", pa.int64()),
        ("op", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)


@pytest.fixture(scope="module")
def spark(local_spark: Any) -> Any:
    register(local_spark)
    return local_spark


def started(folder: Path) -> Harness:
    p = hr.Pipeline("p")
    stream = p.inject("in", hr.sources.Iterable([], SCHEMA, event_time="at"))
    rows = hr.zsets.table("rows", stream, key="id", op="op")
    accounts = rows.group("accounts", "account", cents=Sum("cents"), n=Count())
    accounts.view("balances", key="account")
    rows.select("account").view("bag")
    rows.group("whole", (), cents=Sum("cents")).view("total")
    return hr.testing.drive(p, storage=LocalStore(folder), bins=8)


def push(t: Harness, *rows: tuple[int, str | None, int, str]) -> int:
    names = SCHEMA.names
    t.push_many(
        "in", [dict(zip(names, (*row, None), strict=True)) for row in rows], at=[0] * len(rows)
    )
    t.run()
    return int(t.current().step)


def rows_of(table: pa.Table) -> Counter[Any]:
    return Counter(tuple(row.values()) for row in table.to_pylist())


def test_a_view_is_a_data_frame_of_what_it_held_at_a_step(spark: Any, tmp_path: Path) -> None:
    with started(tmp_path) as t:
        first = push(t, (1, "ann", 5, "U"), (2, "ann", 5, "U"), (3, None, 7, "U"))
        last = push(t, (2, "ben", 6, "U"), (3, None, 7, "D"))
        for step, wanted in ((first, ["None", "ann", "ann"]), (last, ["ann", "ben"])):
            reader = spark.read.format("headrace-view").option("step", step).option("parts", 3)
            frame = reader.option("view", "bag").load(str(tmp_path))
            assert sorted(str(row.account) for row in frame.collect()) == wanted
            balances = reader.option("view", "balances").load(str(tmp_path))
            assert balances.columns == ["account", "cents", "n"]
            expected = read_view(hr.open_state(tmp_path, step), "balances")
            assert rows_of(balances.toArrow()) == rows_of(expected)


def test_two_views_agree_whatever_the_pipeline_does_between_their_reads(
    spark: Any, tmp_path: Path
) -> None:
    with started(tmp_path) as t:
        push(t, (1, "ann", 5, "U"), (2, "ben", 9, "U"))
        balances, total = read_views(spark, str(tmp_path), "balances", "total")
        for number in range(4):
            before = sum(row.cents for row in balances.collect())
            push(t, (10 + number, f"user{number}", 100, "U"), (1, "ann", number, "U"))
            assert before == total.collect()[0].cents == 14


def test_what_is_no_view_and_what_is_no_option_are_refused(spark: Any, tmp_path: Path) -> None:
    with started(tmp_path) as t:
        push(t, (1, "ann", 5, "U"))
    reader = spark.read.format("headrace-view")
    with pytest.raises(Exception, match="computation 'accounts' is no view"):
        reader.option("view", "accounts").load(str(tmp_path)).collect()
    with pytest.raises(Exception, match="headrace-view needs option 'view'"):
        spark.read.format("headrace-view").load(str(tmp_path)).collect()
    with pytest.raises(Exception, match="does not know option 'section'"):
        reader.option("view", "bag").option("section", "x").load(str(tmp_path)).collect()
