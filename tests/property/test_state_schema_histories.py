"""Code of several generations, with crashes and moves in between: state means the same throughout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.testing import Harness, drive
from tests.machine.changes.test_state_schemas import SETTINGS, Item


class Two(msgspec.Struct):
    n: int


class Three(msgspec.Struct):
    said: str


class Sums(hr.Computation):
    """Sums of a key, each generation in a form of its own: a value, by parity, and one by one."""

    of: Callable[[int], Any]
    to: Callable[[Any], int]

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        n, parity = record.value.n, record.value.n % 2
        state: Any = self
        if hasattr(self, "sum"):
            before = state.sum.value
            state.sum.value = type(self).of(n + (0 if before is None else type(self).to(before)))
        before = state.by.get(parity)
        state.by[parity] = type(self).of(n + (0 if before is None else type(self).to(before)))
        state.each.append(type(self).of(n))


def generation(kind: Any, of: Any, to: Any, version: int, upgrade: Any) -> type[Sums]:
    declared = {
        "sum": hr.ValueState(kind, version=version, upgrade=upgrade),
        "by": hr.MapState(int, kind, version=version, upgrade=upgrade),
        "each": hr.ListState(kind, version=version, upgrade=upgrade),
    }
    return type("Generation", (Sums,), {**declared, "of": of, "to": to})


GENERATIONS = [
    generation(int, lambda n: n, lambda v: v, 1, {}),
    generation(Two, Two, lambda v: v.n, 2, {1: Two}),
    generation(
        Three,
        lambda n: Three(str(n)),
        lambda v: int(v.said),
        3,
        {1: lambda n: Three(str(n)), 2: (Two, lambda old: Three(str(old.n)))},
    ),
]


class Bulk(hr.ColumnarComputation):
    sums = hr.TableState({"n": int})

    def process_batch(self, ctx: Any, batch: Any) -> None:
        rows = self.sums.at(batch.keys)
        rows.upsert(n=rows["n"] + batch.sum("n"))


class BulkAdded(Bulk):
    sums = hr.TableState({"n": int, "more": int}, added={"more": 7})  # type: ignore[assignment]


class BulkText(Bulk):
    sums = hr.TableState(  # type: ignore[assignment]
        {"n": str},
        version=2,
        upgrade={1: (BulkAdded.sums, lambda old: {"n": old["n"].astype(str).astype(object)})},
    )

    def process_batch(self, ctx: Any, batch: Any) -> None:
        rows = self.sums.at(batch.keys)
        before = np.array([int(text or "0") for text in rows["n"]])
        rows.upsert(n=(before + batch.sum("n")).astype(str).astype(object))


BULKS = [Bulk, BulkAdded, BulkText]


def drawn(number: int) -> hr.Pipeline:
    pipeline = hr.Pipeline("histories")
    items = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    pipeline.compute("it", GENERATIONS[number](), keys={items: "key"})
    pipeline.compute("bulk", BULKS[number](), keys={items: "key"})
    return pipeline


class World:
    """The pipeline, and beside it what it is to come to."""

    def __init__(self, workers: int) -> None:
        self.number = 0
        self.each: dict[str, list[int]] = {}
        self.driven: Harness = drive(drawn(0), workers=workers, settings=SETTINGS)

    def push(self, *pairs: tuple[str, int]) -> None:
        for key, n in pairs:
            self.each.setdefault(key, []).append(n)
            self.driven.push("items", Item(key, n))
        self.driven.run()

    def newer(self, live: bool) -> None:
        self.number = min(self.number + 1, len(GENERATIONS) - 1)
        if live:
            self.driven.change(drawn(self.number))
        else:
            self.driven.resume(pipeline=drawn(self.number))

    def check(self) -> None:
        to: Any = GENERATIONS[self.number].to
        for key, numbers in self.each.items():
            state = self.driven.state("it", key)
            assert [to(v) for v in state["each"]] == numbers
            assert to(state["sum"]) == sum(numbers)
            sums = {p: sum(n for n in numbers if n % 2 == p) for p in {n % 2 for n in numbers}}
            assert {parity: to(v) for parity, v in state["by"].items()} == sums
            assert int(self.driven.state("bulk", key)["sums"]["n"]) == sum(numbers)


pairs = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 9)), min_size=1, max_size=4)
acts = st.one_of(
    st.tuples(st.just("push"), pairs),
    st.tuples(st.just("newer"), st.booleans()),
    st.tuples(st.just("crash"), st.just(None)),
    st.tuples(st.just("workers"), st.integers(1, 4)),
    st.tuples(st.just("move"), st.integers(1, 4)),
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 3), pairs, st.lists(acts, max_size=12))
def test_state_means_the_same_whatever_code_stored_it_and_wherever_it_went(
    workers: int, first: list[tuple[str, int]], then: list[tuple[str, Any]]
) -> None:
    world = World(workers)
    world.push(*first)
    for act, how in then:
        match act:
            case "push":
                world.push(*how)
            case "newer":
                world.newer(how)
            case "crash":
                world.driven.crash()
            case "workers":
                world.driven.resume(workers=how)
            case "move" if how != world.driven.current().layout.workers:
                world.driven.rescale(workers=how, strategy=hr.batched(4)).wait()
        world.check()
    world.driven.close()
