"""What is planned of a view is stored: a start does not plan again, and another query is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.checkpoints.views import read_view
from headrace.errors import Damaged, PipelineError, SchemaChanged
from headrace.sql.catalyst import Catalyst
from headrace.sql.stored import planned_view
from headrace.storage import MemoryStore, Store
from tests.spark.conftest import session

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("page", pa.string()), ("ms", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
WIDER = SCHEMA.append(pa.field("user", pa.string()))
SLOW = "SELECT page, ms FROM hit WHERE ms > 10"
SUMS = "SELECT page, sum(ms) AS ms FROM slow GROUP BY page"


@pytest.fixture(scope="module")
def catalyst() -> Iterator[Any]:
    started = session("local[1]")
    yield Catalyst(started)
    started.stop()


class Counting:
    """A planner that notes what it plans; without another one it refuses to."""

    def __init__(self, planner: Any = None) -> None:
        self.planner, self.planned = planner, list[str]()

    def declare(self, name: str, columns: Any) -> None:
        self.planner.declare(name, columns)

    def declare_view(self, name: str, sql: str) -> None:
        self.planner.declare_view(name, sql)

    def plan(self, sql: str) -> Any:
        self.planned.append(sql)
        return self.planner.plan(sql)


def pipeline(
    planner: Any, store: Store, slow: str = SLOW, sums: str = SUMS, schema: pa.Schema = SCHEMA
) -> hr.Pipeline:
    p = hr.Pipeline("p")
    views = hr.sql.Views(planner=planner, planned=hr.planned_views(store))
    stream = p.inject("in", hr.sources.Iterable([], schema, event_time="at"))
    views.table("hit", hr.zsets.table("rows", stream))
    views.view("slow", slow)
    views.view("sums", sums).view("answer", key="page")
    return p


def push(p: hr.Pipeline, store: Store, *rows: tuple[str, int]) -> dict[str, int]:
    with hr.testing.drive(p, storage=store) as t:
        records = [{"page": page, "ms": ms, "at": None} for page, ms in rows]
        t.push_many("in", records, at=[0] * len(rows))
        t.run()
    found = read_view(hr.open_state(store), "answer").to_pylist()
    return {row["page"]: row["ms"] for row in found}


def test_a_start_does_not_plan_again_and_needs_no_planner(catalyst: Any) -> None:
    store, first = MemoryStore(), Counting(catalyst)
    assert push(pipeline(first, store), store, ("a", 20), ("a", 5), ("b", 30)) == {"a": 20, "b": 30}
    assert first.planned == [SLOW, SUMS]
    second = Counting()  # (it would fail if it were asked)
    assert push(pipeline(second, store), store, ("a", 11)) == {"a": 31, "b": 30}
    assert second.planned == []


def test_what_depends_on_a_change_is_planned_again_and_nothing_else(catalyst: Any) -> None:
    store = MemoryStore()
    push(pipeline(Counting(catalyst), store), store, ("a", 20))
    wider = Counting(catalyst)
    with pytest.raises(SchemaChanged):  # (the columns of the input are other ones)
        push(pipeline(wider, store, schema=WIDER, slow="SELECT page, ms * 2 AS ms FROM hit"), store)
    assert wider.planned[0] == "SELECT page, ms * 2 AS ms FROM hit"
    commented = Counting(catalyst)
    sums = f"{SUMS} -- as before"
    assert push(pipeline(commented, store, sums=sums), store, ("a", 11)) == {"a": 31}
    assert commented.planned == [sums]


def test_another_query_under_the_name_of_a_view_is_refused(catalyst: Any) -> None:
    store = MemoryStore()
    push(pipeline(Counting(catalyst), store), store, ("a", 20))
    other = pipeline(Counting(catalyst), store, slow="SELECT page, ms FROM hit WHERE ms > 11")
    with pytest.raises(SchemaChanged, match="view 'slow' has another query") as refused:
        push(other, store)
    assert "give the new query another name than 'slow'" in str(refused.value)
    assert push(pipeline(Counting(), store), store, ("a", 11)) == {"a": 31}


def test_a_stored_plan_that_cannot_be_read_is_damaged() -> None:
    with pytest.raises(Damaged, match="view 'v' cannot be read"):
        planned_view("v", '{"query": 1}')


def test_a_view_that_is_wrong_does_not_take_its_name(catalyst: Any) -> None:
    p = hr.Pipeline("p")
    views = hr.sql.Views(planner=catalyst)
    views.table(
        "rows_of_it",
        hr.zsets.table("rows", p.inject("in", hr.sources.Iterable([], SCHEMA, event_time="at"))),
    )
    with pytest.raises(PipelineError, match="cannot plan"):
        views.view("v", "SELECT nothing FROM rows_of_it")
    views.view("v", "SELECT page FROM rows_of_it")
    assert list(p.views) == ["v"]
