"""From Kafka to a count by key and back to Kafka, durable and exactly once; and Spark's own way.

Both read the same topic of JSON from the same broker, in steps (batches) of the same size, count by
key, and write each key that changed to another topic. Headrace writes a step in a transaction;
Spark's own sink delivers at least once. It measures the rate at which a backlog is read, and in an
open loop the time from when a record was due until a consumer of committed records has the count of
its key. (A key's count has the time of the newest of its records in the step.)

Spark's connector for Kafka is fetched by Spark, as ``--connector`` names it. With ``--quix``, a Python
that has quixstreams runs the same count (:mod:`benchmarks.quix_count`), exactly once, too.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scripts.kafka_broker import Kafka, start

import headrace as hr
from benchmarks.harness import figure, local_session, parser, percentile, report, steps_of
from benchmarks.kafka_load import Received, paced
from headrace.driver.driver import Driver
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore

GOAL_RATIO = 2.0
#: On a busy machine, a run that is limited by time alone might have hardly any count.
_FEWEST = 1_000
PARTITIONS = 4
SCHEMA = "key long, at long"


class Count(hr.ColumnarComputation):
    """Counts by key, and produces each key of a step with the newest time of its records."""

    counts = hr.TableState({"count": int})
    out = hr.Output({"count": int, "at": int})

    def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
        rows = self.counts.at(batch.keys)
        after = rows["count"] + batch.counts
        rows.upsert(count=after)
        newest = np.maximum.reduceat(batch["at"], batch.starts)
        ctx.produce("out", batch.keys, {"count": after, "at": newest})


def fill(kafka: Kafka, topic: str, records: int, keys: int) -> None:
    """Write records with random keys to a topic."""
    from confluent_kafka import Producer

    writer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 50})
    drawn = np.random.default_rng(7).integers(0, keys, records).tolist()
    for number, key in enumerate(drawn):
        value = b'{"key":%d,"at":%d}' % (key, 1_000_000 * (1 + number // 1_000))
        while True:
            try:
                writer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                writer.poll(0.1)
        writer.poll(0)
    writer.flush()


def drawn_pipeline(kafka: Kafka, into: str, out: str, begin: str = "earliest") -> hr.Pipeline:
    """Return the pipeline: topic, count, topic."""
    pipeline = hr.Pipeline("kafka")
    source = hr.sources.Kafka(
        into,
        servers=kafka.bootstrap,
        schema={"key": int, "at": int},
        event_time="at",
        time_unit="us",
        start=begin,  # type: ignore[arg-type]
    )
    records = pipeline.inject("records", source)
    counts = pipeline.compute("count", Count(), keys={records: "key"})
    pipeline.sink("out", counts, hr.sinks.Kafka(out, kafka.bootstrap))
    return pipeline


def headrace_rate(spark: Any, kafka: Kafka, into: str, folder: Path, chosen: Any) -> float:
    """Return records per second of Headrace, reading a backlog."""
    out = kafka.create_topic(f"{into}-headrace", partitions=PARTITIONS)
    driver = Driver(
        drawn_pipeline(kafka, into, out),
        LocalStore(folder / "rate"),
        SparkRunner(spark.sparkContext),
        workers=2,
        settings=hr.Settings(limit=hr.Limit(chosen.rows, 1 << 40)),
        drain=True,
    )
    records: list[int] = []
    driver.listeners.append(lambda summary: records.append(summary.records))
    seconds, _ = steps_of(driver, warm=chosen.warm, measured=chosen.steps)
    counted = [count for count in records if count][chosen.warm :]
    return sum(counted[: len(seconds)]) / sum(seconds)


def spark_stream(spark: Any, kafka: Kafka, into: str, rows: int | None, begin: str) -> Any:
    """Return the same query in Spark's own terms."""
    from pyspark.sql import functions as f

    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("subscribe", into)
        .option("startingOffsets", begin)
    )
    if rows is not None:
        reader = reader.option("maxOffsetsPerTrigger", rows)
    record = f.from_json(f.col("value").cast("string"), SCHEMA)
    counts = (
        reader.load()
        .select(record.alias("r"))
        .groupBy("r.key")
        .agg(f.count("*").alias("count"), f.max("r.at").alias("at"))
    )
    value = f.to_json(f.struct("key", "count", "at"))
    return counts.select(f.col("key").cast("string").alias("key"), value.alias("value"))


def spark_writer(stream: Any, kafka: Kafka, out: str, checkpoint: Path) -> Any:
    return (
        stream.writeStream.format("kafka")
        .outputMode("update")
        .option("kafka.bootstrap.servers", kafka.bootstrap)
        .option("topic", out)
        .option("checkpointLocation", str(checkpoint))
    )


def spark_rate(spark: Any, kafka: Kafka, into: str, folder: Path, chosen: Any) -> float:
    """Return records per second of Spark, reading the same backlog."""
    out = kafka.create_topic(f"{into}-spark", partitions=PARTITIONS)
    stream = spark_stream(spark, kafka, into, chosen.rows, "earliest")
    query = (
        spark_writer(stream, kafka, out, folder / "spark-rate").trigger(availableNow=True).start()
    )
    query.awaitTermination()
    found = [p for p in query.recentProgress if p["numInputRows"]]
    found = found[chosen.warm : chosen.warm + chosen.steps]
    seconds = sum(p["durationMs"]["triggerExecution"] for p in found) / 1e3
    return float(sum(p["numInputRows"] for p in found) / seconds)


# -- latency in an open loop -----------------------------------------------------------------------


def latencies(
    kafka: Kafka, name: str, chosen: Any, run: Callable[[str, str, Callable[[], bool]], None]
) -> list[float]:
    """Return the latencies of an engine, in seconds.

    Args:
        kafka: the broker.
        name: begins the names of the topics.
        chosen: the options.
        run: runs the engine from one topic to another until a function returns True.
    """
    into = kafka.create_topic(f"{name}-in", partitions=PARTITIONS)
    out = kafka.create_topic(f"{name}-out", partitions=PARTITIONS)
    begun = time.time_ns() // 1_000
    after = begun + int(chosen.settle * 1e6)
    last = after + int(chosen.seconds * 1e6)
    found, servers = Received(), kafka.bootstrap
    with (
        found.running(servers, out, PARTITIONS, after),
        paced(servers, into, PARTITIONS, chosen.rate, chosen.keys),
    ):
        run(into, out, lambda: time.time_ns() // 1_000 > last and len(found) > _FEWEST)
    return found.latencies


def headrace_run(
    spark: Any, kafka: Kafka, folder: Path
) -> Callable[[str, str, Callable[[], bool]], None]:
    def run(into: str, out: str, is_over: Callable[[], bool]) -> None:
        driver = Driver(
            drawn_pipeline(kafka, into, out),
            LocalStore(folder / "latency"),
            SparkRunner(spark.sparkContext),
            workers=2,
        )
        driver.listeners.append(
            lambda summary: driver.request_stop(drain=False) if is_over() else None
        )
        try:
            driver.run()
        finally:
            driver.close()

    return run


def spark_run(
    spark: Any, kafka: Kafka, folder: Path
) -> Callable[[str, str, Callable[[], bool]], None]:
    def run(into: str, out: str, is_over: Callable[[], bool]) -> None:
        stream = spark_stream(spark, kafka, into, None, "earliest")
        query = spark_writer(stream, kafka, out, folder / "spark-latency").start()
        while not is_over():
            time.sleep(0.1)
        query.stop()

    return run


# -- Quix Streams, in a process of its own ---------------------------------------------------------


@contextlib.contextmanager
def quix(
    kafka: Kafka, into: str, out: str, folder: Path, python: str, interval_s: float
) -> Iterator[None]:
    """Let Quix Streams count in a ``with`` block, with a commit each so many seconds."""
    program = str(Path(__file__).with_name("quix_count.py"))
    command = [python, program, kafka.bootstrap, into, out, str(folder), str(interval_s)]
    with (folder.with_suffix(".log")).open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def quix_rate(python: str, spark: Any, kafka: Kafka, into: str, folder: Path, chosen: Any) -> float:
    """Return records per second of Quix Streams, which produces each record that it has counted."""
    out = kafka.create_topic(f"{into}-quix", partitions=PARTITIONS)
    first, last = chosen.rows * chosen.warm // 2, chosen.rows * (chosen.warm + chosen.steps) // 2
    with quix(kafka, into, out, folder / "quix-rate", python, 1.0):
        begun_s = _when_there(kafka, out, first)
        ended_s = _when_there(kafka, out, last)
    return float((last - first) / (ended_s - begun_s))


def _when_there(kafka: Kafka, topic: str, records: int) -> float:
    """Wait until a topic has so many records; return when that was seen."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "ends"})
    parts = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    while sum(consumer.get_watermark_offsets(part)[1] for part in parts) < records:
        time.sleep(0.05)
    consumer.close()
    return time.monotonic()


def quix_run(
    python: str, kafka: Kafka, folder: Path
) -> Callable[[str, str, Callable[[], bool]], None]:
    def run(into: str, out: str, is_over: Callable[[], bool]) -> None:
        with quix(kafka, into, out, folder / "quix-latency", python, 0.05):
            while not is_over():
                time.sleep(0.1)

    return run


def options() -> argparse.ArgumentParser:
    """Return the parser of this program."""
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=100_000, help="records a step")
    made.add_argument("--steps", type=int, default=10, help="how many steps count")
    made.add_argument("--warm", type=int, default=10, help="steps that do not count")
    made.add_argument("--keys", type=int, default=10_000)
    made.add_argument("--rate", type=int, default=5_000, help="records/s of the open loop")
    made.add_argument("--seconds", type=float, default=30, help="how long latency is measured")
    made.add_argument("--settle", type=float, default=20, help="seconds before that")
    made.add_argument("--alone", action="store_true", help="without Spark's own engine")
    made.add_argument("--quix", metavar="PYTHON", help="a Python that has quixstreams")
    made.add_argument("--connector", default="org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0")
    return made


def main() -> None:
    chosen = options().parse_args()
    if chosen.quick:
        chosen.steps, chosen.seconds, chosen.settle = min(chosen.steps, 4), 10, 12
    if not chosen.alone:
        submit = [f"--packages {chosen.connector}"]
        if os.environ.get("HEADRACE_MAVEN"):
            submit.append(f"--repositories {os.environ['HEADRACE_MAVEN']}")
        os.environ["PYSPARK_SUBMIT_ARGS"] = " ".join([*submit, "pyspark-shell"])
    spark = local_session(2)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "10000")
    folder = Path(tempfile.mkdtemp(prefix="headrace-kafka-bench-"))
    (folder / "broker").mkdir()
    table = [["engine", "records/s", "p50 ms", "p95 ms", "p99 ms", "counts"]]
    figures: list[dict[str, Any]] = []
    try:
        with start(folder / "broker", heap="1g") as kafka:
            into = kafka.create_topic("records", partitions=PARTITIONS)
            fill(kafka, into, chosen.rows * (chosen.steps + chosen.warm + 1), chosen.keys)
            engines: dict[str, tuple[Callable[..., float], Any]] = {
                "headrace": (headrace_rate, headrace_run(spark, kafka, folder))
            }
            if not chosen.alone:
                engines["spark"] = spark_rate, spark_run(spark, kafka, folder)
            if chosen.quix:
                of = functools.partial(quix_rate, chosen.quix)
                engines["quix"] = of, quix_run(chosen.quix, kafka, folder)
            rates = {}
            for name, (rate, run) in engines.items():
                rates[name] = rate(spark, kafka, into, folder, chosen)
                found = latencies(kafka, name, chosen, run)
                shown = {p: percentile(found, p / 100) * 1e3 for p in (50, 95, 99)}
                figures.append(figure(f"records_per_second_{name}", rates[name], "records/s"))
                figures += [figure(f"latency_p{p}_ms_{name}", ms, "ms") for p, ms in shown.items()]
                table.append(
                    [
                        name,
                        f"{rates[name]:,.0f}",
                        *(f"{ms:.1f}" for ms in shown.values()),
                        f"{len(found):,}",
                    ]
                )
            if "spark" in rates:
                ratio = rates["headrace"] / rates["spark"]
                goal = f">= {GOAL_RATIO}"
                figures.append(figure("ratio", ratio, "x", goal, ratio >= GOAL_RATIO))
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    report("Kafka to Kafka", table, figures, chosen)


if __name__ == "__main__":
    main()
