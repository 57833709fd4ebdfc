"""The forms with two inputs, and of a state machine."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import PipelineError
from headrace.storage import MemoryStore
from tests.support.pipelines import Collected, run_inline, run_until_read
from tests.support.specs import WAYS


class Person(msgspec.Struct):
    id: int
    name: str
    at: int


class Bid(msgspec.Struct):
    bidder: int
    price: int
    at: int


class Join(hr.TwoInput):
    """Says who bids; a bid of somebody unknown waits for his name, but not longer than 10."""

    name = hr.ValueState(str)
    open = hr.ListState(int)
    waited = hr.Posted(int)
    out = hr.Output(str)

    def process_left(self, ctx: hr.Context, record: hr.Record) -> None:
        self.name.value = record.value.name
        for price in self.open:
            ctx.produce("out", f"{self.name.value} {price}")
        self.open.clear()

    def process_right(self, ctx: hr.Context, record: hr.Record) -> None:
        price = record.value.price
        if self.name.exists:
            ctx.produce("out", f"{self.name.value} {price}")
        else:
            self.open.append(price)
            ctx.post(record.timestamp_us + 10, price)

    def process_post(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.value in self.open:
            self.open.replace([price for price in self.open if price != record.value])
            ctx.produce("out", f"nobody {record.value}")


def joined(people: list[Person], bids: list[Bid], **way: Any) -> list[tuple[Any, ...]]:
    pipeline, collected = hr.Pipeline("join"), Collected()
    left = pipeline.inject("people", hr.sources.Iterable(people, Person, event_time="at"))
    right = pipeline.inject("bids", hr.sources.Iterable(bids, Bid, event_time="at"))
    node = pipeline.compute("join", Join(), keys={left: "id", right: "bidder"}, ordered=True)
    pipeline.sink("out", node, collected.sink("out"))
    run_inline(pipeline, **way)
    return sorted(row for step in collected.rows().get("out", []) for row in step)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_each_stream_has_its_handler_and_records_come_in_order(rows: int) -> None:
    people = [Person(1, "ann", 5), Person(2, "bob", 50)]
    bids = [Bid(1, 10, 1), Bid(1, 11, 5), Bid(2, 20, 7), Bid(1, 12, 60)]
    assert joined(people, bids, rows=rows) == [
        (1, 5, "ann 10"),
        (1, 5, "ann 11"),
        (1, 60, "ann 12"),
        (2, 17, "nobody 20"),
    ]


def test_a_two_input_computation_reads_two_streams() -> None:
    pipeline = hr.Pipeline("join")
    left = pipeline.inject("people", hr.sources.Iterable([], Person, event_time="at"))
    with pytest.raises(PipelineError, match="was given 1 streams"):
        pipeline.compute("join", Join(), keys={left: "id"})


class NoHandler(hr.TwoInput):
    """Has state, an output, and nothing that works."""

    name = hr.ValueState(str)
    out = hr.Output(str)


class OnlyLeft(NoHandler):
    def process_left(self, ctx: hr.Context, record: hr.Record) -> None: ...


class OnlyRight(NoHandler):
    def process_right(self, ctx: hr.Context, record: hr.Record) -> None: ...


class Both(OnlyLeft, OnlyRight):
    """Its handlers are those of its bases."""


class PostsToNobody(Both):
    waited = hr.Posted(int)


@pytest.mark.parametrize(
    ("computation", "missing"),
    [
        (NoHandler(), "process_left"),
        (OnlyLeft(), "process_right"),
        (OnlyRight(), "process_left"),
        (PostsToNobody(), "process_post"),
    ],
)
def test_a_handler_that_is_missing_is_told_when_the_pipeline_is_drawn(
    computation: hr.TwoInput, missing: str
) -> None:
    pipeline = hr.Pipeline("join")
    left = pipeline.inject("people", hr.sources.Iterable([], Person, event_time="at"))
    right = pipeline.inject("bids", hr.sources.Iterable([], Bid, event_time="at"))
    keys = {left: "id", right: "bidder"}
    with pytest.raises(PipelineError, match=f"has no {missing}") as raised:
        pipeline.compute("join", computation, keys=keys)
    assert f"define {missing}(self, ctx, record)" in str(raised.value)
    assert "test_patterns.py" in str(raised.value)
    pipeline.compute("join", Both(), keys=keys)


def test_two_streams_of_one_name_are_refused_since_handlers_could_not_be_told_apart() -> None:
    pipeline = hr.Pipeline("join")
    bids = hr.sources.Iterable([], Bid, event_time="at")
    checked = pipeline.inject("bids", bids, ids="bidder")
    raw = pipeline.injectors["bids"].stream
    with pytest.raises(PipelineError, match="both its streams are called 'bids'"):
        pipeline.compute("join", Both(), keys={checked: "bidder", raw: "bidder"})


class Step(msgspec.Struct):
    user: int
    last: bool
    at: int


def visits(key: int, step: Step, state: int | None) -> tuple[int | None, list[int]]:
    seen = (state or 0) + 1
    return (None, [seen]) if step.last else (seen, [])


def machine(steps: list[Step], collected: Collected) -> hr.Pipeline:
    pipeline = hr.Pipeline("machine")
    stream = pipeline.inject("steps", hr.sources.Iterable(steps, Step, event_time="at"))
    computation = hr.state_machine(visits, state=int, output=int)
    node = pipeline.compute("visits", computation, keys={stream: "user"})
    pipeline.sink("out", node, collected.sink("out"))
    return pipeline


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=40), WAYS)
def test_a_state_machine_folds_until_it_is_done_and_begins_anew(
    drawn: list[tuple[int, bool]], way: dict[str, Any]
) -> None:
    steps = [Step(user, last, at) for at, (user, last) in enumerate(drawn)]
    collected = Collected()
    run_inline(machine(steps, collected), rows=7, **way)
    counts: dict[int, int] = {}
    expected: dict[int, list[int]] = {}
    for user, last in drawn:
        counts[user] = counts.get(user, 0) + 1
        if last:
            expected.setdefault(user, []).append(counts.pop(user))
    found: dict[int, list[int]] = {}
    for step in collected.rows().get("out", []):
        for user, _, seen in step:
            found.setdefault(user, []).append(seen)
    assert found == expected


def test_the_state_of_a_machine_outlives_a_restart() -> None:
    steps = [Step(1, at == 9, at) for at in range(10)]
    store, collected = MemoryStore(), Collected()
    run_until_read(machine(steps, collected), store, 5, rows=1)
    run_inline(machine(steps, collected), store=store, rows=1)
    assert [row for step in collected.rows()["out"] for row in step] == [(1, 9, 10)]
