"""What PySpark users have already: data sources and streaming DataFrames, as injectors."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.types import ArrayType, StructType, TimestampType

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.driver.driver import Driver, Settings
from headrace.errors import BadInput, HeadraceError, PipelineError, SourceChanged
from headrace.errors.user_code import FromOutside
from headrace.ledger.manifest import manifest_name
from headrace.runners.inline import InlineRunner
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore
from tests.support.inboxes import items, pipeline, producer
from tests.support.pipelines import Collected, run_inline

pytestmark = pytest.mark.spark

SCHEMA = "key string, n long, at timestamp"


class Sum(hr.Computation):
    total = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.total.value += record.value.n if hasattr(record.value, "n") else record.value.value
        ctx.produce("out", self.total.value)


def rows_between(first: int, last: int) -> list[tuple[str, int, Any]]:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    return [("abc"[i % 3], i, start + timedelta(seconds=i)) for i in range(first, last)]


class Numbered(DataSourceStreamReader):
    """Numbered rows up to a limit that is in a file, so that it can grow."""

    def __init__(self, limit: str, kind: str) -> None:
        self.limit = limit
        self.kind = kind

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, start: Any, limit: Any) -> dict[str, int]:
        there = int(Path(self.limit).read_text())
        return {"at": min(there, start["at"] + limit.max_rows)}

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        middle = (start["at"] + end["at"]) // 2
        return [InputPartition((start["at"], middle)), InputPartition((middle, end["at"]))]

    def read(self, partition: Any) -> Iterator[Any]:
        rows = rows_between(*partition.value)
        if self.kind == "bad":
            yield ("a", "not a number", rows[0][2])
        elif self.kind == "arrow" and rows:
            columns = [list(column) for column in zip(*rows, strict=True)]
            columns[2] = pa.array(columns[2], pa.timestamp("us", tz="UTC"))
            yield pa.RecordBatch.from_arrays(
                [pa.array(columns[0]), pa.array(columns[1]), columns[2]], names=["key", "n", "at"]
            )
        else:
            yield from rows


class Local(DataSource):
    """Has one time that names a zone, and one that does not."""

    def schema(self) -> StructType:
        at = TimestampType()
        return StructType().add("at", at).add("seen", at).add("all", ArrayType(at))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return OneRow("batches" in self.options)


class OneRow(DataSourceStreamReader):
    def __init__(self, batches: bool) -> None:
        self.batches = batches

    def initialOffset(self) -> int:
        return 0

    def latestOffset(self) -> int:
        return 1

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: Any) -> Iterator[Any]:
        noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
        naive = noon.replace(tzinfo=None)
        if self.batches:
            columns = {"at": [naive], "seen": [naive], "all": [[noon]]}
            schema = pa.schema({"at": pa.timestamp("ms"), "seen": pa.timestamp("ns")})
            schema = schema.append(pa.field("all", pa.list_(pa.timestamp("us", "UTC"))))
            yield pa.RecordBatch.from_pydict(columns, schema)
        else:
            yield naive, noon, [naive]


def test_times_of_a_reader_that_name_no_zone_are_of_the_given_one() -> None:
    source = hr.sources.SparkReader(Local({}), event_time="at", time_zone="America/New_York")
    (split,) = source.splits(0, 1)
    (row,) = source.read(split).to_pylist()
    assert row.pop("__timestamp_us") == 1_704_128_400_000_000
    five, noon = datetime(2024, 1, 1, 17, tzinfo=UTC), datetime(2024, 1, 1, 12, tzinfo=UTC)
    assert row == {"at": five, "seen": noon, "all": [five]}
    batches = Local({"batches": "yes"})
    source = hr.sources.SparkReader(batches, event_time="at", time_zone="America/New_York")
    (row,) = source.read(split).to_pylist()
    assert (row["at"], row["seen"], row["all"]) == (five, five, [noon])


class Simple(SimpleDataSourceStreamReader):
    def __init__(self, limit: str) -> None:
        self.limit = limit

    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def read(self, start: Any) -> tuple[Iterator[Any], Any]:
        end = min(int(Path(self.limit).read_text()), start["at"] + 7)
        return iter(rows_between(start["at"], end)), {"at": end}

    def readBetweenOffsets(self, start: Any, end: Any) -> Iterator[Any]:
        return iter(rows_between(start["at"], end["at"]))


class Numbers(DataSource):
    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return Numbered(self.options["limit"], self.options["kind"])


class SimpleNumbers(DataSource):
    def schema(self) -> str:
        return SCHEMA

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return Simple(self.options["limit"])


class Unreadable(DataSource):
    def schema(self) -> str:
        return SCHEMA


def run_until(
    source: hr.sources.Source,
    store: LocalStore,
    collected: Collected,
    read: int,
    runner: Any,
    exchange: str = "auto",
    weak: bool = False,
) -> Driver:
    """Run until so many records were read in all, then stop."""
    pipeline = hr.Pipeline("borders")
    stream = pipeline.inject("rows", source, watermark=hr.bounded_delay("1h"))
    node = pipeline.compute("sum", Sum(), keys={stream: "key"})
    pipeline.sink("out", node, collected.sink("out"), weak=weak)
    driver = Driver(
        pipeline,
        store,
        runner,
        workers=2,
        drain=True,
        settings=Settings(limit=hr.Limit(10, 1 << 20), exchange=exchange),
    )

    def note(summary: Any) -> None:
        if summary.head.counts["sum"].records >= read:
            driver.request_stop(drain=False)

    driver.listeners.append(note)
    try:
        driver.run()
    finally:
        driver.close()
    return driver


def totals(collected: Collected) -> dict[Any, int]:
    """Return the last total of each key."""
    found: dict[Any, int] = {}
    for step in collected.rows().get("out", []):
        for key, _, total in step:
            found[key] = total
    return found


def expected(count: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for key, n, _ in rows_between(0, count):
        found[key] = found.get(key, 0) + n
    return found


@pytest.mark.parametrize("kind", ["tuples", "arrow", "simple"])
@pytest.mark.drawn(1)
def test_a_pyspark_data_source_is_an_injector_and_resumes_at_its_offset(
    local_spark: Any, tmp_path: Path, kind: str
) -> None:
    limit = tmp_path / "limit"
    collected, store = Collected(), LocalStore(tmp_path / "store")
    made = SimpleNumbers if kind == "simple" else Numbers
    for count in (40, 95):
        limit.write_text(str(count))
        source = hr.sources.SparkReader(made({"limit": str(limit), "kind": kind}), event_time="at")
        runner = SparkRunner(local_spark.sparkContext)
        run_until(source, store, collected, count, runner)
        assert totals(collected) == expected(count)


def test_a_reader_that_breaks_its_schema_is_named(local_spark: Any, tmp_path: Path) -> None:
    (tmp_path / "limit").write_text("5")
    options = {"limit": str(tmp_path / "limit"), "kind": "bad"}
    source = hr.sources.SparkReader(Numbers(options), event_time="at")
    with pytest.raises(BadInput, match="not of its schema"):
        run_until(source, LocalStore(tmp_path / "s"), Collected(), 5, InlineRunner())


def test_a_data_source_that_cannot_work_is_refused(local_spark: Any) -> None:
    with pytest.raises(PipelineError, match="cannot be read as a stream"):
        hr.sources.SparkReader(Unreadable({}), event_time="at")
    with pytest.raises(PipelineError, match="no column 'when'"):
        hr.sources.SparkReader(Numbers({"limit": "", "kind": ""}), event_time="when")


def stream_of(spark: Any, folder: Path, **options: Any) -> hr.sources.Source:
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "in"))
    return hr.sources.SparkStream(
        frame,
        event_time="at",
        checkpoint=str(folder / "checkpoint"),
        trigger={"availableNow": True},
        **options,
    )


def add_file(folder: Path, number: int) -> None:
    (folder / "in").mkdir(exist_ok=True)
    rows = rows_between(number * 10, number * 10 + 10)
    lines = [json.dumps({"key": k, "n": n, "at": at.isoformat()}) for k, n, at in rows]
    (folder / "in" / f"{number:03d}.json").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("options", [{}, {"repeatable": True}], ids=["logged", "repeatable"])
@pytest.mark.parametrize("exchange", ["driver", "host", "shuffle"])
@pytest.mark.drawn(2)
def test_a_streaming_dataframe_is_an_injector(
    local_spark: Any, tmp_path: Path, options: dict[str, Any], exchange: str
) -> None:
    collected, store = Collected(), LocalStore(tmp_path / "store")
    for first in (0, 4):
        for number in range(first, first + 4):
            add_file(tmp_path, number)
        source = stream_of(local_spark, tmp_path, **options)
        # the input of an availableNow query ends, but more may come at the next start
        source.offer = _never_final(source.offer)  # type: ignore[method-assign]
        runner = SparkRunner(local_spark.sparkContext)
        run_until(source, store, collected, first * 10 + 40, runner, exchange=exchange)
        assert totals(collected) == expected(first * 10 + 40)
    assert store.list("batches/") == [], "a batch's log goes with its commit"


def _never_final(offer: Any) -> Any:
    def without(position: Any, limit: Any) -> Any:
        found = offer(position, limit)
        return None if found is not None and found.final else found

    return without


class Stops(FromOutside):
    """The end of a process."""


def test_a_batch_that_spark_repeats_is_recognised(local_spark: Any, tmp_path: Path) -> None:
    """The process ends after the step's commit, before Spark hears of it: Spark repeats the batch."""
    add_file(tmp_path, 0)
    collected, store = Collected(), LocalStore(tmp_path / "store")
    source = stream_of(local_spark, tmp_path)

    def die(position: Any) -> None:
        raise Stops

    source.committed = die  # type: ignore[method-assign]
    with pytest.raises(Stops):
        run_until(source, store, collected, 10, InlineRunner())
    add_file(tmp_path, 1)
    again = stream_of(local_spark, tmp_path)
    again.offer = _never_final(again.offer)  # type: ignore[method-assign]
    driver = run_until(again, store, collected, 20, InlineRunner())
    assert totals(collected) == expected(20)
    head = driver.coordinator.head
    assert head is not None
    assert head.counts["sum"].records == 20


@pytest.mark.parametrize("options", [{}, {"repeatable": True}], ids=["logged", "repeatable"])
def test_a_batch_that_a_weak_sink_has_seen_is_the_first_that_is_read_again(
    local_spark: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    """The process ends between the delivery and the commit."""
    for number in (0, 1):
        add_file(tmp_path, number)
    collected, store = Collected(), LocalStore(tmp_path / "store")
    create = store.create

    def die(name: str, data: bytes) -> None:
        if name == manifest_name(2):
            raise Stops
        create(name, data)

    store.create = die  # type: ignore[method-assign]
    source = stream_of(local_spark, tmp_path, **options)
    with pytest.raises(Stops):
        run_until(source, store, collected, 20, InlineRunner(), weak=True)
    assert totals(collected) == expected(20), "the second batch was seen, and never committed"
    add_file(tmp_path, 2)
    store = LocalStore(tmp_path / "store")
    again = stream_of(local_spark, tmp_path, **options)
    again.offer = _never_final(again.offer)  # type: ignore[method-assign]
    run_until(again, store, collected, 30, InlineRunner(), weak=True)
    assert totals(collected) == expected(30)
    assert store.list("batches/") == []


def test_a_query_that_fails_before_it_gives_a_seen_batch_again_is_told_and_not_waited_for(
    local_spark: Any, tmp_path: Path
) -> None:
    add_file(tmp_path, 0)
    store = LocalStore(tmp_path / "store")

    def die(name: str, data: bytes) -> None:
        if name == manifest_name(1):
            raise Stops
        LocalStore.create(store, name, data)

    store.create = die  # type: ignore[method-assign]
    with pytest.raises(Stops):
        run_until(
            stream_of(local_spark, tmp_path, repeatable=True),
            store,
            Collected(),
            10,
            InlineRunner(),
            weak=True,
        )
    (tmp_path / "checkpoint" / "offsets" / ".0.crc").unlink(missing_ok=True)
    (tmp_path / "checkpoint" / "offsets" / "0").write_text("v99\n")
    again = stream_of(local_spark, tmp_path, repeatable=True)
    recover, until = again.recover, time.monotonic() + 300

    def recover_in_time(start: Any, end: Any) -> bool:
        assert time.monotonic() < until, "it waits for ever"
        return recover(start, end)

    again.recover = recover_in_time  # type: ignore[method-assign]
    with pytest.raises(SourceChanged, match="streaming query failed"):
        run_until(again, LocalStore(tmp_path / "store"), Collected(), 10, InlineRunner(), weak=True)


def test_a_deleted_checkpoint_is_refused_with_the_remedy(local_spark: Any, tmp_path: Path) -> None:
    add_file(tmp_path, 0)
    store = LocalStore(tmp_path / "store")
    first = stream_of(local_spark, tmp_path)
    first.offer = _never_final(first.offer)  # type: ignore[method-assign]
    run_until(first, store, Collected(), 10, InlineRunner())
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(SourceChanged, match="checkpoint was deleted or replaced") as caught:
        run_until(stream_of(local_spark, tmp_path), store, Collected(), 20, InlineRunner())
    assert "restore that checkpoint" in str(caught.value)


def read_on(spark: Any, folder: Path, store: LocalStore, read: int) -> None:
    source = stream_of(spark, folder)
    source.offer = _never_final(source.offer)  # type: ignore[method-assign]
    run_until(source, store, Collected(), read, InlineRunner())


def test_state_that_is_older_than_the_query_is_refused_and_skips_no_batch(
    local_spark: Any, tmp_path: Path
) -> None:
    """What the query has given to the one pipeline, it does not give to a copy of an earlier step."""
    add_file(tmp_path, 0)
    read_on(local_spark, tmp_path, LocalStore(tmp_path / "store"), 10)
    Checkpoints(LocalStore(tmp_path / "store")).copy(None, LocalStore(tmp_path / "copy"))
    for number in (1, 2):
        add_file(tmp_path, number)
    read_on(local_spark, tmp_path, LocalStore(tmp_path / "store"), 30)
    for number in (2, 3):  # without new input, and with some
        add_file(tmp_path, number)
        for name, lacks in (("copy", 1), ("new", 0)):
            with pytest.raises(SourceChanged, match=f"batch {lacks} was not seen here") as caught:
                run_until(
                    stream_of(local_spark, tmp_path),
                    LocalStore(tmp_path / name),
                    Collected(),
                    40,
                    InlineRunner(),
                )
            assert "restore the checkpoint that the query had" in str(caught.value)
    read_on(local_spark, tmp_path, LocalStore(tmp_path / "store"), 40)


def test_a_query_whose_first_batch_was_interrupted_while_it_was_noted_starts_again(
    local_spark: Any, tmp_path: Path
) -> None:
    for folder in ("offsets", "commits"):
        (tmp_path / "checkpoint" / folder).mkdir(parents=True)
    left = tmp_path / "checkpoint" / "offsets" / ".0.0b1a2f3c-9d1e-4d0a-8f57-0c6f9b1c2d3e.tmp"
    left.write_text("v1\n")
    for number in range(4):
        add_file(tmp_path, number)
    read_on(local_spark, tmp_path, LocalStore(tmp_path / "store"), 40)
    assert not left.exists()


def test_what_else_is_in_the_checkpoint_of_a_query_is_not_deleted(
    local_spark: Any, tmp_path: Path
) -> None:
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    mine = tmp_path / "checkpoint" / "offsets" / "notes.txt"
    mine.write_text("mine")
    add_file(tmp_path, 0)
    with pytest.raises(HeadraceError):
        read_on(local_spark, tmp_path, LocalStore(tmp_path / "store"), 10)
    assert mine.read_text() == "mine"


def test_a_dataframe_that_is_no_stream_is_refused(local_spark: Any, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="not a streaming one"):
        hr.sources.SparkStream(local_spark.range(3), event_time="id", checkpoint=str(tmp_path))


def test_timers_go_on_between_batches(local_spark: Any, tmp_path: Path) -> None:
    """A wall timer fires while the streaming query has nothing."""

    class Alarm(hr.Computation):
        ring = hr.Timer(hr.WALL_TIME)
        out = hr.Output(str)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            self.ring.set(ctx.now)

        def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
            if timer.tag:
                ctx.produce("out", "rang")
            else:
                self.ring.set(timer.time_us + 300_000, tag="later")

    frame = local_spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    source = hr.sources.SparkStream(
        frame.limit(1), event_time="timestamp", checkpoint=str(tmp_path / "c")
    )
    pipeline, rang = hr.Pipeline("alarm"), []
    node = pipeline.compute("alarm", Alarm(), keys={pipeline.inject("rate", source): "value"})

    def hear(step: int, rows: Any) -> None:
        rang.append(step)
        driver.request_stop(drain=False)

    pipeline.sink("out", node, hr.sinks.Calls(hear))
    driver = Driver(pipeline, LocalStore(tmp_path / "s"), InlineRunner(), workers=1)
    try:
        driver.run()
    finally:
        driver.close()
    assert rang


@pytest.mark.parametrize("exchange", ["driver", "host", "shuffle"])
def test_an_inbox_that_tasks_read_gives_the_steps_that_it_gives_inline(
    local_spark: Any, tmp_path: Path, exchange: str
) -> None:
    inbox, drawn = tmp_path / "inbox", []
    for number in range(8):
        for name in "ab":
            producer(inbox, name).append(items(name, number, number % 4))
    for name in "ab":
        producer(inbox, name).finish()
    for which, runner in (
        ("spark", SparkRunner(local_spark.sparkContext)),
        ("inline", InlineRunner()),
    ):
        collected = Collected()
        run_inline(
            pipeline(inbox, collected.sink("told"), producers=("a", "b")),
            store=LocalStore(tmp_path / which),
            runner=runner,
            workers=2,
            rows=7,
            exchange=exchange,
            target_us=1 << 40,  # else a slow step makes the next ones smaller
        )
        drawn.append(collected.rows())
    assert drawn[0] == drawn[1]
    assert sum(len(step) for step in drawn[0]["told"]) == 24


class Connected(Numbered):
    """Holds a connection until it is stopped."""

    made = 0

    def __init__(self, limit: str, kind: str) -> None:
        super().__init__(limit, kind)
        self.connected = True
        Connected.made += 1

    def latestOffset(self, start: Any, limit: Any) -> dict[str, int]:
        assert self.connected, "it is used after it was stopped"
        return super().latestOffset(start, limit)

    def commit(self, end: Any) -> None:
        assert self.connected, "it is used after it was stopped"

    def stop(self) -> None:
        self.connected = False


class Service(DataSource):
    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return Connected(self.options["limit"], "rows")


def test_a_reader_that_was_stopped_is_not_used_again_but_made_anew(tmp_path: Path) -> None:
    """So a driver goes on that has let go of its sources: after a handover in vain, or standing by."""
    (tmp_path / "limit").write_text("20")
    source = hr.sources.SparkReader(Service({"limit": str(tmp_path / "limit")}), event_time="at")
    collected, store, made = Collected(), LocalStore(tmp_path / "store"), Connected.made
    run_until(source, store, collected, 20, InlineRunner())
    (tmp_path / "limit").write_text("40")
    run_until(source, store, collected, 40, InlineRunner())
    assert totals(collected) == expected(40)
    assert Connected.made == made + 1, "one more, since the first was made with the source"
