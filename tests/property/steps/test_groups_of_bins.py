"""Groups change where keys lie, and nothing else: results are those of a pipeline without any.

Keys of a group lack some bits of their hash, so that keys of one number can share a place. That is made
common here, by places of which only a few bits are told.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace import hash_key
from headrace.keyspace.groups import Group
from headrace.keyspace.hashing import canonical_key
from headrace.storage.memory import MemoryStore
from headrace.testing import drive
from tests.property.oracle.model import Model, Spec
from tests.support.durations import us
from tests.support.pipelines import Collected, draw, run_inline
from tests.support.specs import WAYS, specs

NAMES = ["g0", "g1", "g2", "g3", "g4"]
OF = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4)
#: How many bits of the hash a place keeps.
TOLD = st.sampled_from([0, 1, 2, 64])


@contextmanager
def places_keep(bits: int) -> Iterator[None]:
    """Let places be told by the group and so many bits of the hash alone."""
    place, places = Group.place, Group.places

    def mask(group: Group) -> int:
        return (2**64 - 1) << max(64 - group.bits - bits, 0) & (2**64 - 1)

    def few_place(self: Group, hash_: int) -> int:
        return place(self, hash_) & mask(self)

    def few_places(self: Group, hashes: Any) -> Any:
        return places(self, hashes) & np.uint64(mask(self))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Group, "place", few_place)
        patch.setattr(Group, "places", few_places)
        yield


def in_order_of_places(told: int) -> Any:
    """Return by what the keys of a computation in a group (of five) are put in order."""

    def of(key: Any) -> tuple[int, bytes]:
        return Group(0, 3).place(hash_key(key)), canonical_key(key)

    return of


@settings(max_examples=80)
@given(specs(), WAYS, OF, TOLD, st.booleans())
def test_a_pipeline_in_groups_computes_what_the_oracle_says(
    spec: Spec, way: dict[str, Any], of: list[str], told: int, weak: bool
) -> None:
    collected = Collected()
    with places_keep(told):
        model = Model(spec, in_order_of_places(told))
        model.run()
        pipeline = draw(spec, collected, weak=weak, groups=NAMES, of=of)
        driver = run_inline(pipeline, rows=spec.rows, **way)
    assert collected.rows() == dict(model.outputs)
    head = driver.coordinator.head
    assert head is not None
    assert {name: counts.late for name, counts in head.counts.items()} == model.late
    assert {name: marks[0] for name, marks in head.watermarks.items()} == model.watermarks


@settings(max_examples=20)
@given(specs(), st.lists(WAYS, min_size=2, max_size=3), OF, TOLD)
def test_another_process_goes_on_from_what_was_stored_in_groups(
    spec: Spec, ways: list[dict[str, Any]], of: list[str], told: int
) -> None:
    """Each process works on a part of the input; what it began with, it read from storage."""
    collected, store = Collected(), MemoryStore()
    with places_keep(told):
        model = Model(spec, in_order_of_places(told))
        model.run()
        for number, way in enumerate(ways, 1):
            pipeline = draw(spec, collected, groups=NAMES, of=of)
            stop_at = None if number == len(ways) else number
            run_for(pipeline, store, spec.rows, stop_at, way)
    assert collected.rows() == dict(model.outputs)


def run_for(
    pipeline: hr.Pipeline, store: Any, rows: int, steps: int | None, way: dict[str, Any]
) -> None:
    """Run to the end of the input, or for so many steps."""
    from headrace.driver.driver import Driver
    from headrace.runners.inline import InlineRunner

    way = dict(way)
    workers, bins = way.pop("workers"), way.pop("bins")
    runner = InlineRunner(way.pop("seed"), way.pop("processes"))
    driver = Driver(
        pipeline,
        store,
        runner,
        workers=workers,
        bins=bins,
        drain=True,
        settings=hr.Settings(limit=hr.Limit(rows, 1 << 30), **way),
    )
    done = []

    def note(summary: hr.StepSummary) -> None:
        done.append(summary)
        if len(done) == steps:
            driver.request_stop(drain=False)

    driver.listeners.append(note)
    try:
        driver.run()
    finally:
        driver.close()


# -- what else is told by hashes -------------------------------------------------------------------


class Hit(msgspec.Struct):
    id: int
    page: int
    at: int


class InOrder(hr.Computation):
    """Says what came so far, in order of event time, and posts it to itself."""

    seen = hr.ListState(int)
    again = hr.Posted(int)
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.stream == "again":
            self.seen.append(-record.value)
        else:
            self.seen.append(record.timestamp_us)
            ctx.post(record.timestamp_us + 5, record.timestamp_us)
        ctx.produce("out", repr(list(self.seen)))


class Posting(hr.ColumnarComputation):
    """Counts, and posts to itself what it counts again."""

    counts = hr.TableState({"n": int})
    again = hr.Posted(int)
    out = hr.Output(int)

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.counts.at(batch.keys)
        rows.upsert(n=rows["n"] + batch.counts)
        if batch.stream != "again":
            ctx.post(batch.row_keys, batch.timestamps_us, times_us=batch.timestamps_us + 5)
        ctx.produce("out", batch.keys, self.counts.at(batch.keys)["n"])


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6), st.integers(0, 30)), max_size=40),
    WAYS,
    TOLD,
    st.sampled_from([1, 5, 100]),
)
def test_ids_posts_and_order_are_kept_by_key_in_any_group(
    drawn: list[tuple[int, int, int]], way: dict[str, Any], told: int, rows: int
) -> None:
    found = []
    for groups, keep in (([], 64), (["one", "two"], told)):
        collected = Collected()
        pipeline = hr.Pipeline("kept", groups=groups)
        hits = pipeline.inject(
            "hits",
            hr.sources.Iterable([Hit(*of) for of in drawn], Hit, event_time="at"),
            watermark=hr.bounded_delay(us(30)),
            ids="id",
            horizon=us(100),
        )
        last = groups[-1] if groups else None
        for name, what in (("ordered", InOrder()), ("posting", Posting())):
            node = pipeline.compute(
                name, what, keys={hits: "page"}, ordered=name == "ordered", group=last
            )
            pipeline.sink(name, node, collected.sink(name))
        with places_keep(keep):
            run_inline(pipeline, rows=rows, **way)
        found.append(by_key(collected))
    assert found[0] == found[1]


def by_key(collected: Collected) -> dict[str, dict[Any, list[Any]]]:
    """Return what each sink received of each key, in order."""
    told: dict[str, dict[Any, list[Any]]] = {}
    for name, steps in collected.rows().items():
        for rows in steps:
            for key, *row in rows:
                told.setdefault(name, {}).setdefault(key, []).append(row)
    return told


@pytest.mark.parametrize("told", [64, 1])
def test_keys_are_found_where_they_lie(told: int) -> None:
    class Count(hr.Computation):
        n = hr.ValueState(int, default=0)
        later = hr.Timer(hr.EVENT_TIME)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            self.n.value += 1
            self.later.set(record.timestamp_us + 100)

        def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
            raise AssertionError("no watermark comes so far")

    class Columns(hr.ColumnarComputation):
        rows = hr.TableState({"n": int})
        later = hr.Timer(hr.EVENT_TIME)

        def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
            rows = self.rows.at(batch.keys)
            rows.upsert(n=rows["n"] + batch.counts)
            self.later.set(batch.keys, batch.last("at") + 100)

        def process_timers(self, ctx: hr.BatchContext, fired: hr.FiredBatch) -> None:
            raise AssertionError("no watermark comes so far")

    pipeline = hr.Pipeline("looked", groups=["a", "b", "c"])
    hits = pipeline.inject("hits", hr.sources.Iterable([], Hit, event_time="at"))
    pipeline.compute("count", Count(), keys={hits: "page"}, group="b")
    pipeline.compute("columns", Columns(), keys={hits: "page"}, group="c")
    with places_keep(told), drive(pipeline, workers=3, bins=8) as harness:
        for n in range(30):
            harness.push("hits", Hit(n, n % 7, n), at=n)
        harness.run()
        for name in ("count", "columns"):
            assert sorted(harness.keys(name)) == list(range(7))
            for page in range(7):
                last = max(n for n in range(30) if n % 7 == page)
                n = len(range(page, 30, 7))
                kept = {"n": n} if name == "count" else {"rows": {"n": n}}
                assert harness.state(name, page) == kept
                assert [timer.time_us for timer in harness.timers(name, page)] == [last + 100]
