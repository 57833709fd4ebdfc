"""How fast sinks take deliveries, beside Spark's own writers of the same rows where these work.

Each sink gets deliveries of the same size, one after another, of rows with a key, a time, an integer,
a float and a text. Spark writes as many batches of a DataFrame that is in memory, in one partition, in
the way that its users have in ``foreachBatch``. Spark's writer for PostgreSQL is left out: the
server of this program has no address of TCP, which JDBC needs. Delta and Iceberg have no writers for
Spark that work with this version.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from benchmarks.harness import figure, local_session, parser, report, timed
from headrace.pipeline.sink import Deliverer, Delivery, Sink

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"


def rows_of(count: int, first: int) -> pa.Table:
    """Return rows with keys of their own."""
    keys = np.arange(first, first + count)
    drawn = np.random.default_rng(first)
    texts = [f"text of row {key}" for key in keys.tolist()]
    schema = pa.schema(
        [
            pa.field("key", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("us", tz="UTC")),
            pa.field("n", pa.int64()),
            pa.field("real", pa.float64()),
            pa.field("text", pa.string()),
        ]
    )
    times = 1_700_000_000_000_000 + keys * 1_000
    columns = [keys, times, drawn.integers(0, 10**9, count), drawn.random(count), texts]
    arrays = [pa.array(of).cast(field.type) for of, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def rate(sink: Sink, size: int, deliveries: int) -> float:
    """Return the rows per second that a sink takes. The first delivery does not count."""
    tables = [rows_of(size, size * number) for number in range(deliveries + 1)]
    sink.check(tables[0].schema)
    sink.begin(Deliverer("1a", "bench", "bench", "out"))
    numbers = iter(range(deliveries + 1))

    def deliver() -> None:
        number = next(numbers)
        sink.receive(Delivery(number, number, tables[number], {}, epoch=1))

    deliver()
    seconds = timed(deliver, deliveries)
    sink.close()
    return size * deliveries / sum(seconds)


def spark_rate(spark: Any, write: Callable[[Any, int], None], size: int, batches: int) -> float:
    """Return the rows per second of a writer of Spark. The first batch does not count."""
    frames = []
    for number in range(batches + 1):
        frame = spark.createDataFrame(rows_of(size, size * number)).coalesce(1).cache()
        frame.count()
        frames.append(frame)
    numbers = iter(range(batches + 1))

    def one() -> None:
        number = next(numbers)
        write(frames[number], number)

    one()
    seconds = timed(one, batches)
    for frame in frames:
        frame.unpersist()
    return size * batches / sum(seconds)


def options() -> argparse.ArgumentParser:
    """Return the parser of this program."""
    made = parser(__doc__)
    made.add_argument("--sizes", type=int, nargs="*", default=[1_000, 100_000])
    made.add_argument("--deliveries", type=int, default=20)
    return made


def main() -> None:
    import pgserver
    from scripts.kafka_broker import start

    chosen = options().parse_args()
    if chosen.quick:
        chosen.deliveries = min(chosen.deliveries, 4)
    submit = f"--packages {CONNECTOR}"
    if os.environ.get("HEADRACE_MAVEN"):
        submit += f" --repositories {os.environ['HEADRACE_MAVEN']}"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{submit} pyspark-shell"
    folder = Path(tempfile.mkdtemp(prefix="headrace-sinks-"))
    spark = local_session(2)
    table = [["sink", "rows a delivery", "rows/s", "Spark's writer, rows/s"]]
    figures: list[dict[str, Any]] = []
    database = pgserver.get_server(folder / "postgres")
    (folder / "kafka").mkdir()
    try:
        with start(folder / "kafka", heap="1g") as kafka:
            for size in chosen.sizes:
                made = sinks(folder / str(size), kafka, database.get_uri(), size)
                theirs = writers(folder / str(size), kafka, size)
                for name, sink in made.items():
                    found = rate(sink, size, chosen.deliveries)
                    figures.append(figure(f"{name}_{size}", found, "rows/s"))
                    beside = ""
                    if name in theirs:
                        other = spark_rate(spark, theirs[name], size, chosen.deliveries)
                        figures.append(figure(f"{name}_{size}_spark", other, "rows/s"))
                        beside = f"{other:,.0f}"
                    table.append([name, f"{size:,}", f"{found:,.0f}", beside])
    finally:
        spark.stop()
        database.cleanup()
        shutil.rmtree(folder, ignore_errors=True)
    report("Sinks", table, figures, chosen)


def sinks(folder: Path, kafka: Any, postgres: str, size: int) -> dict[str, Sink]:
    """Return the sinks, by name."""
    folder.mkdir()
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/warehouse",
    }
    topic = kafka.create_topic(f"rows-{size}")
    return {
        "parquet": hr.sinks.Files(folder / "parquet", format="parquet"),
        "delta": hr.sinks.Delta(folder / "delta"),
        "iceberg": hr.sinks.Iceberg(catalog, "bench.rows"),
        "postgresql": hr.sinks.Table(_sqlalchemy(postgres), f"rows_{size}"),
        "sqlite": hr.sinks.Table(f"sqlite:///{folder}/rows.db", "rows"),
        "kafka": hr.sinks.Kafka(topic, kafka.bootstrap),
    }


def _sqlalchemy(uri: str) -> str:
    return uri.replace("postgresql://", "postgresql+psycopg://")


def writers(folder: Path, kafka: Any, size: int) -> dict[str, Callable[[Any, int], None]]:
    """Return Spark's own writers, by the name of the sink that they are compared with."""
    from pyspark.sql import functions as f

    topic = kafka.create_topic(f"rows-{size}-spark")

    def to_kafka(frame: Any, number: int) -> None:
        value = f.to_json(f.struct(*frame.columns))
        rows = frame.select(f.col("key").cast("string").alias("key"), value.alias("value"))
        rows.write.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap).option(
            "topic", topic
        ).save()

    return {
        "parquet": lambda frame, number: frame.write.parquet(f"{folder}/spark/{number}"),
        "kafka": to_kafka,
    }


if __name__ == "__main__":
    main()
