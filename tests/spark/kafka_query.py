"""A query of Structured Streaming that reads topics of Kafka, with Spark's own connector.

usage: kafka_query.py BROKERS TOPICS CHECKPOINT OUT VERSION [BATCH]

It writes the values of each batch to OUT, and ends when it has read what is there. In a given batch
it writes, says so, and then waits until it is killed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"


def main(
    brokers: str, topics: str, checkpoint: str, out: str, version: str, waits_in: str = "-1"
) -> None:
    from pyspark.sql import SparkSession

    submit = [f"--packages {CONNECTOR}", "pyspark-shell"]
    if os.environ.get("HEADRACE_MAVEN"):
        submit.insert(1, f"--repositories {os.environ['HEADRACE_MAVEN']}")
    os.environ["PYSPARK_SUBMIT_ARGS"] = " ".join(submit)
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.sql.streaming.offsetLog.formatVersion": version,
    }
    spark = SparkSession.builder.config(map=settings).getOrCreate()

    def write(frame: Any, batch: int) -> None:
        values = [row.value for row in frame.selectExpr("CAST(value AS STRING)").collect()]
        Path(out, f"{batch}.json").write_text(json.dumps(values))
        if batch == int(waits_in):
            Path(out, "waits").touch()
            time.sleep(3_600)

    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers)
    options = {"subscribe": topics, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
    frame = reader.options(**options).load()
    writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
