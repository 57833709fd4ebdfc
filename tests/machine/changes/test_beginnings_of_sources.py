"""An added computation begins at the beginning of every source that can be read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import LongType, StringType, StructType

import headrace as hr
from headrace.errors import PipelineError
from headrace.sources.inbox import Producer
from headrace.storage import MemoryStore
from tests.support.records import Item
from tests.support.waiting import until


class Sum(hr.Computation):
    total = hr.ValueState(int, default=0)
    rows = hr.ValueState(int, default=0)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.total.value += record.value.n
        self.rows.value += 1


class Rows(InputPartition):
    def __init__(self, first: int, after: int) -> None:
        self.first, self.after = first, after


class Tens(DataSourceStreamReader):
    """Ten records more at each look, up to fifty."""

    def __init__(self) -> None:
        self.there = 0

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self) -> dict[str, int]:
        self.there = min(self.there + 10, 50)
        return {"n": self.there}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Rows]:
        return [Rows(start["n"], end["n"])]

    def read(self, partition: Any) -> Iterator[tuple[str, int, int]]:
        yield from (("k", n, n) for n in range(partition.first, partition.after))


class Given(DataSource):
    def schema(self) -> StructType:
        return StructType().add("key", StringType()).add("n", LongType()).add("at", LongType())

    def streamReader(self, schema: Any) -> Tens:
        return Tens()


def inbox(folder: Path) -> tuple[hr.sources.Source, Callable[[], None]]:
    def append(first: int) -> None:
        for name in ("one", "two"):
            producer = Producer(folder, name, type=Item)
            for n in range(first, first + 12, 3):
                producer.append([Item("k", m, m) for m in range(n, n + 3)])

    append(0)
    return hr.sources.Inbox(folder, Item, event_time="at"), lambda: append(12)


def reader(folder: Path) -> tuple[hr.sources.Source, Callable[[], None]]:
    return hr.sources.SparkReader(Given({}), event_time="at", rereads=True), lambda: None


@pytest.mark.parametrize("made", [inbox, reader])
def test_an_added_computation_gets_all_that_was_read_and_all_that_comes(
    tmp_path: Path, made: Callable[[Path], tuple[hr.sources.Source, Callable[[], None]]]
) -> None:
    source, more = made(tmp_path / "in")
    pipeline = hr.Pipeline("beginnings")
    stream = pipeline.inject("items", source, watermark=hr.bounded_delay("1h"))
    pipeline.compute("old", Sum(), keys={stream: "key"})
    settings = hr.Settings(limit=hr.Limit(5, 1 << 20))
    store = MemoryStore()

    def records(name: str) -> int:
        head = job.head
        return 0 if head is None or name not in head.counts else head.counts[name].records

    with hr.run(pipeline, storage=store, runner="inline", settings=settings) as job:
        until(lambda: records("old") >= 20)
        changed = job.pipeline.copy()
        changed.compute("new", Sum(), keys={changed.injectors["items"].stream: "key"})
        job.change(changed, begin={"new": "beginning"}).wait("60s")
        more()
        until(lambda: records("new") >= 20 and not job.current().backfilling)
        job.catch_up("60s")
    with hr.open_state(store) as state:
        old, new = (state.read(name, key="k").to_pylist() for name in ("old", "new"))
    assert new and new == old


def test_what_is_deleted_once_it_is_read_has_no_beginning(tmp_path: Path) -> None:
    pipeline = hr.Pipeline("beginnings")
    stream = pipeline.inject("items", hr.sources.Inbox(tmp_path, Item, event_time="at", clean=True))
    pipeline.compute("old", Sum(), keys={stream: "key"})
    with hr.run(pipeline, storage=MemoryStore(), runner="inline") as job:
        until(lambda: job.head is not None)
        changed = job.pipeline.copy()
        changed.compute("new", Sum(), keys={changed.injectors["items"].stream: "key"})
        with pytest.raises(PipelineError, match="cannot be read again from its start"):
            job.change(changed, begin={"new": "beginning"})
