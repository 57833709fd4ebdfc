"""A second test on the same storage goes on where the first one was."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import DriveError
from headrace.storage import MemoryStore
from headrace.testing import drive
from tests.support.records import Item

SECOND = 1_000_000


class Sum(hr.Computation):
    deterministic = True
    total = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.total.value += record.value.n
        ctx.produce("out", self.total.value)


def draw() -> hr.Pipeline:
    pipeline = hr.Pipeline("sums")
    source = hr.sources.Iterable([], Item, event_time="at")
    items = pipeline.inject("items", source, watermark=hr.bounded_delay("0s"))
    pipeline.compute("sum", Sum(), keys={items: "key"})
    return pipeline


@pytest.mark.parametrize("pushes", [1, 3])
def test_what_a_second_test_pushes_is_new(tmp_path: Path, pushes: int) -> None:
    for run in range(1, 4):
        with drive(draw(), storage=tmp_path) as t:
            for n in range(pushes):
                t.push("items", Item("a", 1, (run * 10 + n) * SECOND))
                t.step()
            assert t.state("sum", "a")["total"] == run * pushes
            assert [of.value for of in t.outputs("sum.out")][-1] == run * pushes


def test_partitions_go_on_one_by_one() -> None:
    store = MemoryStore()
    with drive(draw(), storage=store) as t:
        t.push("items", Item("a", 1, SECOND), partition="x")
        t.push("items", Item("a", 1, SECOND), partition="y")
        t.push("items", Item("a", 1, SECOND), partition="y")
        t.step(2)
    with drive(draw(), storage=store) as t:
        t.push("items", Item("a", 10, SECOND), partition="y")
        t.push("items", Item("a", 100, SECOND), partition="z")
        t.step()
        assert t.state("sum", "a")["total"] == 112


def test_what_was_promised_and_ended_stays_so() -> None:
    store = MemoryStore()
    with drive(draw(), storage=store) as t:
        t.watermark("items", "2024-01-01T00:00:10Z")
        t.step()
        assert t.watermark_of("items").output.isoformat() == "2024-01-01T00:00:10+00:00"
    with drive(draw(), storage=store) as t:
        with pytest.raises(DriveError):
            t.watermark("items", "2024-01-01T00:00:05Z")
        t.watermark("items", "+5s")
        t.step()
        assert t.watermark_of("items").output.isoformat() == "2024-01-01T00:00:15+00:00"
        t.end()
        t.run()
    with drive(draw(), storage=store) as t, pytest.raises(DriveError, match="has ended"):
        t.push("items", Item("a", 1, SECOND))


def test_records_of_an_earlier_test_that_are_needed_again_are_missed_aloud() -> None:
    store = MemoryStore()
    settings = hr.Settings(checkpoint_steps=10)
    t = drive(draw(), storage=store, settings=settings)
    for n in range(4):
        t.push("items", Item("a", 1, n * SECOND))
        t.step()
    t.crash()
    with (
        pytest.raises(DriveError, match="pushed by an earlier test"),
        drive(draw(), storage=store, settings=settings) as again,
    ):
        again.step()


def test_what_something_else_has_read_is_refused() -> None:
    store = MemoryStore()
    items = [Item("a", 1, SECOND)]
    pipeline = hr.Pipeline("sums")
    source = hr.sources.Iterable(items, Item, event_time="at")
    stream = pipeline.inject("items", source, watermark=hr.bounded_delay("0s"))
    pipeline.compute("sum", Sum(), keys={stream: "key"})
    with hr.run(pipeline, storage=store.location, runner="inline") as job:
        job.drain()
    with pytest.raises(DriveError, match="not from a test"):
        drive(pipeline, storage=store)
