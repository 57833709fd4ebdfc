"""Computations that are added with the rows of their inputs: what they begin with, and what is refused."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.checkpoints.views import read_view
from headrace.driver.change import Change
from headrace.driver.driver import Driver
from headrace.errors import PipelineError
from headrace.ledger.ledger import Ledger
from headrace.storage import MemoryStore, Store
from headrace.testing import Harness
from headrace.zsets import Count, Max, Sum
from tests.support.backfill import run_and_begin_late
from tests.support.changing import Item, ask, items
from tests.support.faults import FaultStore, SimulatedCrash
from tests.support.pipelines import Collected

RECORD = {"id": int, "city": str, "cents": int, "at": datetime | None}
Draw = Callable[[hr.Pipeline, hr.zsets.ZStream], Any]
MANY = hr.Settings(
    seed_bytes=600, retain_steps=1, retain="0s", base_every=2, slices=4, packed_bytes=0
)


def drawn(
    *draws: Draw, table: dict[str, Any] | None = None, groups: tuple[str, ...] = ()
) -> hr.Pipeline:
    """Return a pipeline with a table, a view over it, and what is drawn besides."""
    p = hr.Pipeline("orders", groups=groups)
    stream = p.inject("records", hr.sources.Iterable([], RECORD, event_time="at"))
    rows = hr.zsets.table("orders", stream, **({"key": "id"} if table is None else table))
    rows.group("spent", "city", cents=Sum("cents")).view("by_city", key="city")
    for draw in draws:
        draw(p, rows)
    return p


def counts(p: hr.Pipeline, rows: hr.zsets.ZStream) -> None:
    rows.group("numbers", "city", n=Count()).view("counts", key="city")


def push(t: Harness, *numbers: int, cents: int = 5) -> None:
    for number in numbers:
        t.push(
            "records",
            {"id": number, "city": "abc"[number % 3], "cents": cents, "at": None},
            at=number,
        )


def content(store: MemoryStore, view: str) -> Counter[Any]:
    return Counter(tuple(r.values()) for r in read_view(hr.open_state(store), view).to_pylist())


def number_of_rows(store: MemoryStore) -> int:
    """Return how many rows of the table the view has counted."""
    return sum(n for _, n in content(store, "counts").elements())


THIRDS = Counter({("a", 33): 1, ("b", 34): 1, ("c", 33): 1})


def with_rows(store: MemoryStore, pipeline: hr.Pipeline, **options: Any) -> Harness:
    """Return a run whose table has 100 rows of three cities."""
    t = hr.testing.drive(pipeline, storage=store, **options)
    push(t, *range(1, 101))
    t.run()
    return t


def test_the_plan_says_what_a_view_begins_with() -> None:
    store = MemoryStore()
    with with_rows(store, drawn()) as t:
        plan = t.change(drawn(counts))
        assert "add numbers: with the rows of orders.out" in str(plan)
        assert "add counts: with the rows of numbers.out" in str(plan)
        t.run()
        assert content(store, "counts") == THIRDS


def test_rows_are_given_in_portions_while_the_table_goes_on() -> None:
    store = MemoryStore()
    with with_rows(store, drawn(), settings=MANY, workers=2) as t:
        t.change(drawn(counts))
        seen = []
        while t.current().seeded:
            push(t, 1_000 + len(seen))
            t.step()
            assert t.counts("orders").records == 101 + len(seen), "each step takes new input"
            seen.append(number_of_rows(store))
        assert len(seen) > 4
        assert seen == sorted(seen)
        assert seen[0] < 50
        assert number_of_rows(store) == 100 + len(seen)


def test_nothing_is_left_of_it_in_the_storage() -> None:
    """The files are those of a pipeline that had the view from the start."""

    def files(*, late: bool) -> Counter[str]:
        store = MemoryStore()
        with with_rows(store, drawn() if late else drawn(counts), settings=MANY) as t:
            if late:
                t.change(drawn(counts))
            t.run()
            for number in range(40):
                push(t, number, cents=number)
                t.step()
            head = t.current()
            assert head.seeding is None and head.backfill is None
            assert not head.retained
        return Counter(name.partition("/")[0] for name in store.list(""))

    late, early = files(late=True), files(late=False)
    assert late.keys() == early.keys()
    print(late, early)
    assert all(abs(late[folder] - early[folder]) <= 6 for folder in early)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_start_with_new_code_does_the_same(workers: int) -> None:
    store = MemoryStore()
    with_rows(store, drawn(), workers=2).close()
    with hr.testing.drive(drawn(counts), storage=store, workers=workers) as t:
        t.run()
        assert content(store, "counts") == THIRDS


def test_a_start_says_what_begins_with_rows_and_what_without(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "headrace")
    store = MemoryStore()
    with_rows(store, drawn()).close()
    with hr.testing.drive(drawn(counts), storage=store) as t:
        t.run()
    assert "begins with the rows of orders.out: numbers, counts" in caplog.text
    store = MemoryStore()
    with_rows(store, drawn(table={})).close()
    with hr.testing.drive(drawn(counts, table={}), storage=store) as t:
        t.run()
        assert number_of_rows(store) == 0
    assert "numbers begins now, without the rows of records: nothing keeps them" in caplog.text


def test_a_start_refuses_what_finds_the_rows_of_some_inputs_only() -> None:
    def both(p: hr.Pipeline, rows: hr.zsets.ZStream) -> None:
        plain = hr.zsets.table("plain", p.injectors["records"].stream)
        rows.union(plain).distinct("each").view("rows")

    store = MemoryStore()
    with_rows(store, drawn()).close()
    with (
        pytest.raises(PipelineError, match="'each' cannot begin with the rows of 'records'"),
        hr.testing.drive(drawn(both), storage=store) as t,
    ):
        t.run()


def test_the_end_of_the_input_waits_until_all_rows_have_come() -> None:
    store = MemoryStore()
    with with_rows(store, drawn(), settings=MANY) as t:
        t.end()
        t.run()
    with hr.testing.drive(drawn(counts), storage=store, settings=MANY) as t:
        t.end()
        t.drain()
        assert content(store, "counts") == THIRDS
        assert t.watermark_of("counts") == t.watermark_of("by_city")


def test_a_view_over_a_view_begins_with_its_rows() -> None:
    store = MemoryStore()

    def over(p: hr.Pipeline, rows: hr.zsets.ZStream) -> None:
        view = hr.zsets.table("again", p.nodes["by_city"])
        view.filter(lambda r: r["cents"] > 165).view("dear")

    with with_rows(store, drawn()) as t:
        t.change(drawn(over))
        t.run()
        assert content(store, "dear") == Counter([("b", 170)])


def test_a_new_sink_of_upserts_receives_the_whole_view() -> None:
    with with_rows(MemoryStore(), drawn()) as t:

        def sent(p: hr.Pipeline, rows: hr.zsets.ZStream) -> None:
            stream = p.nodes["by_city"]["out"]
            upserts = p.compute("upserts", hr.zsets.AsUpserts(["city"]), keys={stream: "key"})
            p.sink("late", upserts, hr.sinks.Calls(lambda step, rows: None))

        t.change(drawn(sent))
        t.run()
        assert sorted((r.value.city, r.value.cents) for r in t.outputs("late")) == [
            ("a", 165),
            ("b", 170),
            ("c", 165),
        ]


class Largest(hr.ColumnarComputation):
    """A computation of one's own: the highest sum of a city so far."""

    most = hr.TableState({"cents": int})
    out = hr.Output(int)

    def process_batch(self, ctx: Any, batch: Any) -> None:
        rows = self.most.at(batch.keys)
        rows.upsert(cents=np.maximum(rows["cents"], batch.max("cents")))
        ctx.produce("out", batch.keys, rows["cents"])


def largest(p: hr.Pipeline, rows: hr.zsets.ZStream) -> None:
    p.compute("largest", Largest(), keys={p.nodes["by_city"]["out"]: "city"})


def test_any_computation_begins_with_rows_if_it_is_asked_for() -> None:
    with with_rows(MemoryStore(), drawn()) as t:
        assert "add largest: from now" in str(t.change(drawn(largest)))
        t.run()
        assert t.keys("largest") == []
    with with_rows(MemoryStore(), drawn()) as t:
        t.change(drawn(largest), begin={"largest": "rows"})
        t.run()
        assert t.state("largest", "b") == {"most": {"cents": 170}}


@pytest.mark.parametrize("groups", [(), ("one", "another", "third")])
def test_steps_between_checkpoints_are_computed_again_alike(groups: tuple[str, ...]) -> None:
    def grouped(*draws: Draw) -> hr.Pipeline:
        return drawn(*draws, groups=groups)

    store = MemoryStore()
    upkeep = hr.Settings(seed_bytes=600, checkpoint_steps=5)
    with with_rows(store, grouped(), settings=upkeep, workers=3) as t:
        t.change(grouped(counts))
        for number in range(6):
            push(t, 3_000 + 3 * number)
            assert t.current().seeded
            t.step()
            if number == 3:
                t.crash()
        t.run()
        t.catch_up()
        assert content(store, "counts") == Counter({("a", 39): 1, ("b", 34): 1, ("c", 33): 1})


# -- crashes ---------------------------------------------------------------------------------------


def of_items(records: list[Item], collected: Collected) -> hr.Pipeline:
    """Return a pipeline with a table of the last record of each page and number, and a view."""
    p = hr.Pipeline("changing")
    stream = p.inject("items", hr.sources.Iterable(records, Item, event_time="at"))
    rows = hr.zsets.table("rows", stream, key=["page", "n"])
    view = rows.group("pages", "page", last=Max("at"), n=Count()).view("early", key="page")
    view.changes_to("early", collected.sink("early"))
    return p


def add_late_view(p: hr.Pipeline, collected: Collected | None = None) -> None:
    rows = hr.zsets.table("unused", p.nodes["rows"])
    rows.group("late_pages", "page", last=Max("at"), n=Count()).view("late", key="page")


def pages_of(storage: Any, view: str) -> list[Any]:
    rows = read_view(hr.open_state(storage), view).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def test_after_a_crash_at_any_operation_of_the_storage_the_view_is_right() -> None:
    draw = functools.partial(of_items, items(40))

    def run(store: Store, inner: Store) -> None:
        run_and_begin_late(store, inner, Collected(), draw, add_late_view, ask_for_it)

    def ask_for_it(driver: Driver, collected: Collected) -> Change:
        return ask(driver, add_late_view)

    counter = FaultStore(MemoryStore())
    run(counter, counter.inner)
    struck = 0
    for at in range(1, counter.operations + 1, 7):
        inner = MemoryStore()
        try:
            run(FaultStore(inner, at, "crash after"), inner)
        except SimulatedCrash:
            struck += 1
        run(inner, inner)
        assert pages_of(inner, "late") == pages_of(inner, "early"), f"crash after {at}"
        found = Ledger(inner).open()
        assert found is not None
        assert found.seeding is None
    assert struck > counter.operations // 14


# -- what is refused -------------------------------------------------------------------------------


def refusal(draw: Draw, table: dict[str, Any] | None = None, **options: Any) -> str:
    with with_rows(MemoryStore(), drawn(table=table)) as t:
        with pytest.raises(PipelineError) as caught:
            t.change(drawn(draw, table=table), **options)
        push(t, 500)
        t.run()  # goes on as it was
        return str(caught.value)


def test_a_view_over_rows_that_nothing_keeps_is_refused_with_what_would() -> None:
    why = refusal(counts, table={})
    assert "'numbers' cannot begin with the rows of 'records': nothing keeps them" in why
    assert "retain=True" in why


def test_it_may_begin_now_instead() -> None:
    store = MemoryStore()
    with with_rows(store, drawn(table={})) as t:
        t.change(drawn(counts, table={}), begin={"numbers": "now", "counts": "now"})
        push(t, 3)
        t.run()
        assert number_of_rows(store) == 1


def test_an_operator_between_table_and_view_keeps_no_rows() -> None:
    def over(p: hr.Pipeline, rows: hr.zsets.ZStream) -> None:
        hr.zsets.table("again", p.nodes["moved"]).view("more")

    def between(p: hr.Pipeline, rows: hr.zsets.ZStream) -> None:
        rows.select("city").compute("moved").view("first")

    nothing = r"the rows of 'moved\.out': nothing keeps them"
    with (
        with_rows(MemoryStore(), drawn(between)) as t,
        pytest.raises(PipelineError, match=nothing),
    ):
        t.change(drawn(between, over))


def test_what_has_no_rows_before_it_cannot_begin_with_them() -> None:
    def alone(p: hr.Pipeline, rows: hr.zsets.ZStream) -> None:
        other = p.inject("others", hr.sources.Iterable([], RECORD, event_time="at"))
        hr.zsets.table("new", other, key="id").view("of_new")

    assert "none of them was there before" in refusal(alone, begin={"new": "rows"})
    with with_rows(MemoryStore(), drawn()) as t:
        assert not t.change(drawn(alone)).seeded


def test_a_second_view_waits_until_the_first_has_its_rows() -> None:
    def more(p: hr.Pipeline, rows: hr.zsets.ZStream) -> None:
        rows.distinct("each").view("rows")

    store = MemoryStore()
    with with_rows(store, drawn(), settings=MANY) as t:
        t.change(drawn(counts))
        with pytest.raises(PipelineError, match="while numbers, counts still catches up"):
            t.change(drawn(counts, more))
        t.run()
        t.change(drawn(counts, more))
        t.run()
        assert len(content(store, "rows")) == 100


def test_what_is_removed_before_it_has_its_rows_begins_anew_when_it_comes_back() -> None:
    store = MemoryStore()
    with with_rows(store, drawn(), settings=MANY) as t:
        t.change(drawn(counts))
        t.step()
        assert t.current().seeded == ["numbers", "counts"]
        assert t.change(drawn()).removed == ["numbers", "counts"]
        t.run()
        assert not t.current().seeded
        push(t, *range(1, 31), cents=7)
        push(t, 200)
        t.run()
        assert set(t.change(drawn(counts)).seeded) == {"numbers", "counts"}
        t.run()
        assert number_of_rows(store) == 101
