"""A change whose new computation fails at its first records is taken back, and the pipeline goes on."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.checkpoints.views import read_view
from headrace.control.control import Control
from headrace.errors import UserCodeError
from headrace.storage import MemoryStore
from headrace.testing import Harness, drive
from tests.support.records import Item
from tests.support.waiting import until


class Count(hr.Computation):
    count = hr.ValueState(int, default=0)
    out = hr.Output(int)
    fails_at = -1

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.value.n == self.fails_at:
            raise ValueError(f"no {record.value.n}, please")
        self.count.value += 1
        ctx.produce("out", self.count.value)


class FailsAt(Count):
    def __init__(self, n: int) -> None:
        self.fails_at = n


class Upgraded(hr.Computation):
    count = hr.ValueState(str, default="", version=2, upgrade={1: str})
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        raise ValueError("no, thanks")


def drawn(**more: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("on_trial")
    stream = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    node = pipeline.compute("count", Count(), keys={stream: "key"})
    pipeline.sink("out", node, hr.sinks.Calls(lambda step, rows: None), **more)
    return pipeline


def with_another(
    pipeline: hr.Pipeline, computation: hr.Computation, name: str = "more"
) -> hr.Pipeline:
    changed = pipeline.copy()
    stream = changed.injectors["items"].stream
    node = changed.compute(name, computation, keys={stream: "key"})
    changed.sink(f"{name}-out", node, hr.sinks.Calls(lambda step, rows: None))
    return changed


def push(t: Harness, *numbers: int) -> None:
    for n in numbers:
        t.push("items", Item("k", n, n))
        t.run()


@pytest.mark.parametrize("good_steps", [0, 3, 15])
def test_an_added_computation_that_fails_at_its_first_records_is_taken_back(
    good_steps: int,
) -> None:
    store = MemoryStore()
    with drive(drawn(), storage=store) as t:
        push(t, 1, 2)
        t.change(with_another(drawn(), FailsAt(100)))
        push(t, *range(3, 3 + good_steps), 100, 101)
        assert t.state("count", "k") == {"count": good_steps + 4}, "each record counts once"
        stored = Control(store).head().stored_schema
        assert "more" not in stored["computations"], "what it has kept is given up"
        t.change(with_another(drawn(), Count()))
        push(t, 102)
        assert t.state("more", "k") == {"count": 1}, "it may be added again, and begins anew"


def test_after_its_trial_a_computation_that_fails_ends_the_pipeline() -> None:
    with drive(drawn(), settings=hr.Settings(trial_steps=4)) as t:
        t.change(with_another(drawn(), FailsAt(100)))
        push(t, 1, 2, 3, 4)
        with pytest.raises(UserCodeError, match="no 100, please"):
            push(t, 100)
    with drive(drawn(), settings=hr.Settings(trial_steps=0)) as t:
        t.change(with_another(drawn(), FailsAt(1)))
        with pytest.raises(UserCodeError, match="no 1, please"):
            push(t, 1)


def test_a_replaced_computation_is_taken_back_with_its_state() -> None:
    with drive(drawn()) as t:
        push(t, 1, 2)
        changed = drawn().copy()
        changed.replace("count", FailsAt(100))
        t.change(changed)
        push(t, 3, 100, 101)
        assert t.state("count", "k") == {"count": 5}


def test_what_was_there_before_ends_the_pipeline_as_ever() -> None:
    pipeline = hr.Pipeline("on_trial")
    stream = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    pipeline.compute("count", FailsAt(100), keys={stream: "key"})
    with drive(pipeline) as t:
        push(t, 1)
        t.change(with_another(pipeline, Count()))
        with pytest.raises(UserCodeError, match="no 100, please"):
            push(t, 100)


def test_a_change_that_cannot_be_undone_is_not_taken_back() -> None:
    with drive(drawn()) as t:
        push(t, 1)
        changed = drawn().copy()
        changed.replace("count", Upgraded())
        t.change(changed)
        with pytest.raises(UserCodeError, match="no, thanks"):
            push(t, 2)
    with drive(drawn(weak=True)) as t:
        t.change(with_another(drawn(weak=True), FailsAt(1)))
        with pytest.raises(UserCodeError, match="no 1, please"):
            push(t, 1)


def with_view(pipeline: hr.Pipeline, *, keyed: bool) -> hr.Pipeline:
    """Return a pipeline with a view that sums the numbers of each key, over rows that are kept or not."""
    changed = pipeline.copy()
    items = changed.injectors["items"].stream
    rows = hr.zsets.table("rows", items, key="n") if keyed else hr.zsets.table("rows", items)
    rows.view("there")
    rows.group("sums", "key", n=hr.zsets.Sum("n")).view("view", key="key")
    return changed


def without_view(pipeline: hr.Pipeline) -> hr.Pipeline:
    changed = pipeline.copy()
    changed.remove("sums", "view")
    return changed


def total(store: MemoryStore) -> int:
    (row,) = read_view(hr.open_state(store), "view").to_pylist()
    return int(row["n"])


@pytest.mark.parametrize(("good_steps", "keyed"), [(0, True), (3, True), (0, False)])
def test_a_view_that_a_failing_change_has_removed_is_back_with_all_rows(
    good_steps: int, keyed: bool
) -> None:
    store = MemoryStore()
    before = with_view(drawn(), keyed=keyed)
    with drive(before, storage=store) as t:
        push(t, 1, 2)
        t.change(with_another(without_view(before), FailsAt(100)))
        numbers = [*range(3, 3 + good_steps), 100, 101]
        push(t, *numbers)
        t.run()
        assert "more" not in t.current().stored_schema["computations"]
        assert total(store) == 1 + 2 + sum(numbers)


def test_a_change_is_not_taken_back_if_a_view_would_lack_rows() -> None:
    before = with_view(drawn(), keyed=False)
    with drive(before) as t:
        push(t, 1, 2)
        t.change(with_another(without_view(before), FailsAt(100)))
        push(t, 3)
        with pytest.raises(UserCodeError, match="no 100, please"):
            push(t, 100)


def test_a_view_that_fails_as_it_comes_back_is_taken_back() -> None:
    store = MemoryStore()
    before = with_view(drawn(), keyed=True)
    with drive(before, storage=store) as t:
        push(t, 1)
        t.change(without_view(before))
        push(t, 2)
        t.change(with_another(before, FailsAt(100)))
        push(t, 100, 101)
        assert "more" not in t.current().stored_schema["computations"]
        t.change(before)
        t.run()
        assert total(store) == 1 + 2 + 100 + 101


def test_a_crash_after_a_change_was_taken_back_goes_on_without_it() -> None:
    store = MemoryStore()
    with drive(drawn(), storage=store) as t:
        t.change(with_another(drawn(), FailsAt(100)))
        push(t, 1, 100, 101)
        t.crash()
    with drive(drawn(), storage=store) as t:
        push(t, 102)
        assert t.state("count", "k") == {"count": 4}


def test_a_change_says_what_took_it_back() -> None:
    done: list[int] = []

    def endless() -> Any:
        n = 0
        while not done:
            yield Item("k", n, n)
            n += 1

    pipeline = hr.Pipeline("on_trial")
    stream = pipeline.inject("items", hr.sources.Iterable(endless, Item, event_time="at"))
    pipeline.compute("count", Count(), keys={stream: "key"})
    settings = hr.Settings(limit=hr.Limit(3, 1 << 20))

    class Fails(hr.Computation):
        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            raise ValueError("not at all")

    with hr.run(pipeline, storage=MemoryStore(), runner="inline", settings=settings) as job:
        until(lambda: job.head is not None)
        changed = job.pipeline.copy()
        changed.compute("more", Fails(), keys={changed.nodes["count"]["out"]: "key"})
        change = job.change(changed)
        assert change.wait("60s") is not None
        until(lambda: "more" not in job.pipeline.nodes)
        assert "not at all" in str(change.taken_back)
        before = job.current().step
        until(lambda: job.current().step > before + 3)
        done.append(1)
