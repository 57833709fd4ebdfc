"""Retained streams as DataFrames on a real Spark: each row once, or an error that says why."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.spark_streams import register
from headrace.storage import LocalStore
from tests.spark.conftest import session

pytestmark = pytest.mark.spark

SECOND = 1_000_000
#: Bases, and with them clean-up, every few steps.
FEW: dict[str, Any] = {"base_every": 4, "slices": 2, "retain_steps": 1}


class Item(msgspec.Struct):
    user: str
    n: int
    at: int


class Seen(msgspec.Struct):
    n: int
    total: int


class Sums(hr.Computation):
    total = hr.ValueState(int, default=0)
    out = hr.Output(Seen)
    odd = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record[Item]) -> None:
        self.total.value += record.value.n
        if record.value.n >= 0:
            ctx.produce("out", Seen(record.value.n, self.total.value))


def drawn(retain: Any = ("out",)) -> hr.Pipeline:
    pipeline = hr.Pipeline("sums")
    source = hr.sources.Iterable([], Item, event_time="at")
    items = pipeline.inject("items", source, watermark=hr.bounded_delay("300s"))
    sums = pipeline.compute("sums", Sums(), keys={items: "user"}, retain=retain)
    pipeline.sink("sums", sums["out"], hr.sinks.Calls(lambda step, rows: None))
    return pipeline


def driven(
    storage: Path, retain: Any = ("out",), *, workers: int = 2, **settings: Any
) -> hr.testing.Harness:
    return hr.testing.drive(
        drawn(retain),
        workers=workers,
        bins=8,
        storage=LocalStore(storage),
        settings=hr.Settings(**settings),
    )


def steps(t: Any, count: int, *, first: int = 0, each: int = 5) -> None:
    """Make some steps of a few records each. The clock goes on, since pins are judged by it."""
    t.clock(max(datetime.now(UTC), t.now))
    for step in range(first, first + count):
        numbers = range(step * each, (step + 1) * each)
        t.push_many("items", [Item(f"u{n % 7}", n, n * SECOND) for n in numbers])
        t.step()


def made(t: Any) -> list[tuple[Any, ...]]:
    """Return all that the pipeline has produced, as rows."""
    produced = t.outputs("sums", everything=True)
    return sorted((o.step, o.key, o.timestamp_us, o.value.n, o.value.total) for o in produced)


def as_rows(frame: Any) -> list[tuple[Any, ...]]:
    start = datetime(1970, 1, 1, tzinfo=UTC)
    return sorted(
        (
            r._step,
            r.key,
            (r.timestamp.astimezone(UTC) - start) // timedelta(microseconds=1),
            r.n,
            r.total,
        )
        for r in frame.collect()
    )


@pytest.fixture(scope="module")
def spark(local_spark: Any) -> Any:
    register(local_spark)
    local_spark.conf.set("spark.sql.session.timeZone", "UTC")
    return local_spark


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The storage of a pipeline that has made ten steps, of which each produced five rows."""
    folder = tmp_path_factory.mktemp("sums")
    with driven(folder) as t:
        steps(t, 10)
    return folder


def batch(spark: Any, storage: Path, stream: str = "sums.out", **options: Any) -> Any:
    reader = spark.read.format("headrace").option("stream", stream)
    return reader.options(**options).load(str(storage))


# -- spark.read -------------------------------------------------------------------------------------


def test_all_that_is_kept_is_read_with_the_steps_that_produced_it(
    spark: Any, tmp_path: Path
) -> None:
    with driven(tmp_path) as t:
        steps(t, 6)
        frame = batch(spark, tmp_path)
        assert frame.columns == ["key", "timestamp", "n", "total", "_step"]
        assert as_rows(frame) == made(t)
        t.resume(workers=3)  # (which adds a step that produces nothing)
        steps(t, 2, first=6)
        assert as_rows(batch(spark, tmp_path)) == made(t)


def test_a_range_of_steps_has_both_of_its_ends(spark: Any, storage: Path) -> None:
    rows = as_rows(batch(spark, storage))
    numbers = sorted({row[0] for row in rows})
    first, last = numbers[2], numbers[5]
    frame = batch(spark, storage, fromStep=first, toStep=last)
    assert as_rows(frame) == [row for row in rows if first <= row[0] <= last]
    assert as_rows(batch(spark, storage, fromStep=last)) == [row for row in rows if row[0] >= last]
    assert as_rows(batch(spark, storage, toStep=numbers[0])) == rows[:5]


@pytest.mark.parametrize(
    ("stream", "options", "said"),
    [
        ("sums.out", {"startingStep": "1"}, "option 'startingStep' is not for spark.read"),
        ("sums.out", {"fromStepp": "1"}, "does not know option 'fromstepp'"),
        ("sums.out", {"fromStep": "x"}, "option 'fromStep' is 'x'"),
        ("sums.out", {"toStep": "99"}, "step that is not there yet: the newest is"),
        ("sums.oout", {}, "has no stream 'sums.oout'.*retained are: 'sums.out'"),
        ("sums.odd", {}, "not retained.*say retain=\\[\"odd\"\\] where 'sums' is drawn"),
        ("items", {}, "comes from an injector"),
    ],
)
def test_what_is_asked_wrongly_is_refused_with_the_remedy(
    spark: Any, storage: Path, stream: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(Exception, match=rf"(?s)HR(101|306).*{said}"):
        batch(spark, storage, stream, **options).collect()


def test_storage_on_which_no_pipeline_has_run_is_refused(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no pipeline has run on"):
        batch(spark, tmp_path / "nothing")


def test_damage_fails_the_read_and_names_the_file(spark: Any, tmp_path: Path) -> None:
    with driven(tmp_path) as t:
        steps(t, 2)
    frame = batch(spark, tmp_path)
    for file in (tmp_path / "streams").iterdir():
        data = bytearray(file.read_bytes())
        data[8] ^= 1
        file.write_bytes(bytes(data))
    with pytest.raises(Exception, match=r"HR307.*streams/"):
        frame.collect()


# -- spark.readStream -------------------------------------------------------------------------------


class Sink:
    """What ``foreachBatch`` has received, by batch. It may fail at a batch, after it received it."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[Any, ...]]] = {}
        self.fails_at: int | None = None

    def __call__(self, frame: Any, number: int) -> None:
        rows = as_rows(frame)
        assert self.batches.setdefault(number, rows) == rows, "a batch that comes again is the same"
        if number == self.fails_at:
            raise RuntimeError("the sink fails")

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(row for rows in self.batches.values() for row in rows)

    @property
    def sizes(self) -> list[int]:
        """How many steps each batch has rows of."""
        return [len({row[0] for row in rows}) for _, rows in sorted(self.batches.items())]


def started(
    spark: Any, storage: Path, sink: Sink, checkpoint: Path, *, now: bool = False, **options: Any
) -> Any:
    """Start a query; with ``now`` one that ends when it has read what is there."""
    frame = spark.readStream.format("headrace").option("stream", "sums.out").options(**options)
    writer = frame.load(str(storage)).writeStream.foreachBatch(sink)
    writer = writer.option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if now else writer).start()


def run(spark: Any, storage: Path, sink: Sink, checkpoint: Path, **options: Any) -> None:
    """Run a query until it has read what is there."""
    query = started(spark, storage, sink, checkpoint, now=True, **options)
    try:
        query.awaitTermination()
    finally:
        query.stop()


def test_each_row_comes_once_whatever_stops(spark: Any, tmp_path: Path) -> None:
    """The query fails in a batch and before one; the pipeline crashes and comes back resized."""
    sink, checkpoint = Sink(), tmp_path / "cp"
    with driven(tmp_path / "state", **FEW) as t:
        steps(t, 4)
        sink.fails_at = 1
        with pytest.raises(Exception, match="the sink fails"):
            run(spark, tmp_path / "state", sink, checkpoint, maxStepsPerTrigger=2)
        assert sink.sizes == [2, 2]
        steps(t, 1, first=4)
        t.crash()
        steps(t, 2, first=5)
        sink.fails_at = None
        run(spark, tmp_path / "state", sink, checkpoint, maxStepsPerTrigger=2)
        assert sink.rows == made(t)
        t.resume(workers=3)
        steps(t, 2, first=7)
        run(spark, tmp_path / "state", sink, checkpoint)
        assert sink.rows == made(t)
        assert len(set(sink.rows)) == len(sink.rows) == 45


def test_a_registered_query_misses_nothing_while_clean_up_is_close_behind(
    spark: Any, tmp_path: Path
) -> None:
    """It runs all the time, and the pipeline wants to keep only three steps."""
    sink = Sink()
    with driven(tmp_path / "state", {"out": hr.keep(steps=3)}, **FEW) as t:
        steps(t, 2)
        query = started(spark, tmp_path / "state", sink, tmp_path / "cp", reader="live")
        try:
            query.processAllAvailable()
            steps(t, 100, first=2)
            query.processAllAvailable()
        finally:
            query.stop()
        assert sink.rows == made(t)
        steps(t, 60, first=102)
        run(spark, tmp_path / "state", sink, tmp_path / "cp", reader="live", maxStepsPerTrigger=20)
        assert sink.rows == made(t)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"maxStepsPerTrigger": 4}, [4, 4, 2]),
        ({"startingStep": "6", "maxRowsPerTrigger": 12}, [2, 2, 1]),
        ({"startingStep": "latest"}, [0]),  # (Spark notes where it begins)
    ],
)
def test_a_query_is_cut_into_batches(
    spark: Any, storage: Path, tmp_path: Path, options: dict[str, Any], sizes: list[int]
) -> None:
    sink = Sink()
    run(spark, storage, sink, tmp_path / "cp", **options)
    assert sink.sizes == sizes


def test_a_step_that_is_not_kept_any_more_is_never_skipped(spark: Any, tmp_path: Path) -> None:
    sink, checkpoint = Sink(), tmp_path / "cp"
    with driven(tmp_path / "state", {"out": hr.keep(steps=3)}, **FEW) as t:
        steps(t, 4)
        run(spark, tmp_path / "state", sink, checkpoint)
        seen = sink.rows
        steps(t, 16, first=4)
        with pytest.raises(Exception, match=r"(?s)HR314.*is not kept any more.*option reader"):
            run(spark, tmp_path / "state", sink, checkpoint)
        assert sink.rows == seen
        with pytest.raises(Exception, match=r"(?s)HR314.*what step 1 produced"):
            batch(spark, tmp_path / "state", fromStep=1).collect()


def test_a_stream_with_other_columns_is_refused_with_the_difference(
    spark: Any, storage: Path
) -> None:
    reader = spark.read.format("headrace").schema(
        "key string, timestamp timestamp, n long, _step long"
    )
    with pytest.raises(Exception, match=r"(?s)HR103.*the stream has.*total:bigint"):
        reader.option("stream", "sums.out").load(str(storage)).collect()


def test_a_query_is_not_continued_on_another_storage(
    spark: Any, storage: Path, tmp_path: Path
) -> None:
    run(spark, storage, Sink(), tmp_path / "cp")
    with driven(tmp_path / "other", workers=3) as t:
        steps(t, 12)
    with pytest.raises(Exception, match=r"(?s)HR308.*read up to step 10 of another storage"):
        run(spark, tmp_path / "other", Sink(), tmp_path / "cp")


# -- killed processes -------------------------------------------------------------------------------


def archive(storage: str, target: str) -> None:
    """Append the stream to Parquet files until somebody kills this process."""
    session_ = session("local[2]")
    register(session_)
    rows = session_.readStream.format("headrace").option("stream", "sums.out")
    rows = rows.option("reader", "archive").option("maxStepsPerTrigger", 7).load(storage)
    writer = rows.writeStream.format("parquet").option("checkpointLocation", f"{target}-checkpoint")
    writer.start(target).awaitTermination()


@contextmanager
def archiving(storage: Path, target: Path) -> Iterator[None]:
    """Run :func:`archive` in a process of its own, which is killed with SIGKILL in the end."""
    code = "import sys; from tests.spark.test_stream_source import archive; archive(*sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(storage), str(target)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # (the JVM, too)
        process.wait()


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.soak
def test_each_row_comes_once_however_often_both_sides_are_killed(
    spark: Any, tmp_path: Path
) -> None:
    """Clean-up is close behind: the pipeline wants to keep only five steps."""
    storage, target = tmp_path / "state", tmp_path / "rows"
    commits = tmp_path / "rows-checkpoint" / "commits"
    chance, done = random.Random(7), 4

    def batches() -> int:
        return len([name for name in commits.glob("*") if name.name.isdecimal()])

    with driven(storage, {"out": hr.keep(steps=5)}, **FEW) as t:
        steps(t, 4)
        for _ in range(5):
            before = batches()
            with archiving(storage, target):
                wait_for(lambda before=before: batches() > before)
                until = time.monotonic() + chance.uniform(0.0, 5.0)
                while time.monotonic() < until:
                    steps(t, 3, first=done)
                    done += 3
                    time.sleep(chance.uniform(0.0, 0.5))
            t.crash()
            steps(t, 20, first=done)
            done += 20
        with archiving(storage, target):
            wait_for(lambda: spark.read.parquet(str(target)).count() >= 5 * done)
        assert as_rows(spark.read.parquet(str(target))) == made(t)
        assert t.current().boundary > 20, "clean-up went on"
