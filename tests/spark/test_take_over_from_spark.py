"""A pipeline takes over from a query of Structured Streaming that reads Kafka."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from tests.support import processes
from tests.support.kafka import Kafka, new_topic, producer

pytestmark = [pytest.mark.spark, pytest.mark.soak]


class Item(msgspec.Struct):
    """A record: its number."""

    n: int


class Numbers(hr.Computation):
    """Gives each number on."""

    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record[Item]) -> None:
        ctx.produce("out", record.value.n)


def write(kafka: Kafka, topics: list[str], numbers: range) -> None:
    writer = producer(kafka)
    for n in numbers:
        writer.produce(topics[n % 2], msgspec.json.encode({"n": n}), partition=n % 3)
    assert writer.flush() == 0


def query(kafka: Kafka, topics: list[str], folder: Path, version: int, *more: str) -> Any:
    (folder / "out").mkdir(exist_ok=True)
    places = [str(folder / "checkpoint"), str(folder / "out")]
    module = ["-m", "tests.spark.kafka_query"]
    arguments = [*module, kafka.bootstrap, ",".join(topics), *places, str(version), *more]
    return processes.start(arguments, folder / "log")


def written(folder: Path) -> dict[int, list[int]]:
    """Return the numbers that the query has written in each batch."""
    return {
        int(path.stem): [json.loads(text)["n"] for text in json.loads(path.read_text())]
        for path in (folder / "out").glob("*.json")
    }


def taken_over(kafka: Kafka, topics: list[str], checkpoint: Path) -> list[int]:
    """Return the numbers that a pipeline reads which begins where the query was."""
    begin = hr.sources.Kafka.offsets_of(checkpoint)
    p = hr.Pipeline("after")
    source = hr.sources.Kafka(topics, servers=kafka.bootstrap, type=Item, start=begin)
    numbers = p.compute("numbers", Numbers(), keys={p.inject("items", source): "n"})
    found: list[int] = []
    p.sink(
        "out", numbers, hr.sinks.Calls(lambda step, rows: found.extend(rows["value"].to_pylist()))
    )
    with hr.run(p, storage=f"memory:{topics[0]}", runner="inline") as job:
        job.catch_up()
    return found


@pytest.mark.parametrize("version", [1, 2])
def test_each_record_is_read_by_the_query_or_by_the_pipeline_that_takes_over(
    kafka: Kafka, tmp_path: Path, version: int
) -> None:
    topics = [new_topic(kafka, partitions=3) for _ in range(2)]
    write(kafka, topics, range(100))
    first = query(kafka, topics, tmp_path, version)
    assert first.wait(300) == 0, (tmp_path / "log").read_text()[-5_000:]
    batches = written(tmp_path)
    assert len(batches) >= 3 and sorted(chain(*batches.values())) == list(range(100))
    write(kafka, topics, range(100, 150))
    found = taken_over(kafka, topics, tmp_path / "checkpoint")
    assert sorted(found) == list(range(100, 150))


def test_a_batch_that_a_killed_query_has_begun_is_read_again(kafka: Kafka, tmp_path: Path) -> None:
    topics = [new_topic(kafka, partitions=3) for _ in range(2)]
    write(kafka, topics, range(100))
    killed = query(kafka, topics, tmp_path, 1, "1")
    assert processes.wait_for((tmp_path / "out/waits").exists, process=killed), (
        tmp_path / "log"
    ).read_text()[-5_000:]
    processes.kill(killed, "both")
    batches = written(tmp_path)
    found = taken_over(kafka, topics, tmp_path / "checkpoint")
    assert Counter(found) == Counter(range(100)) - Counter(batches[0])
    assert set(batches[1]) <= set(found)
