"""Queries 4 and 6 in plain PySpark once more: what is kept by hand is in files, new ones with each batch.

Their ``native`` form keeps means by ``transformWithState``, which wants RocksDB, for the join as well. Here
the join is in the store that Spark has by default, and ``foreachBatch`` reads what the batch before has
left, and writes what the next one is to read: by the batch's number, so that a batch that is repeated after
a crash does the same again. Which form is the faster one is measured; the faster stands beside ours.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.nexmark.queries.q6 import LAST
from headrace.nexmark.queries.spark_market import SparkMarket
from headrace.nexmark.queries.winners import native_winners

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class ByBatches(Protocol):
    """A query whose last part is computed for each micro-batch by itself."""

    def stream(self, market: SparkMarket) -> DataFrame:
        """Return what comes in micro-batches, in append mode."""

    def answer(self, batch: DataFrame, number: int) -> DataFrame:
        """Return what a micro-batch answers, and keep what the next one needs."""


class RunningMeans:
    """Query 4: sums and counts of all categories, which are few, as JSON."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    def stream(self, market: SparkMarket) -> DataFrame:
        return native_winners(market, ["expires", "category"])

    def answer(self, batch: DataFrame, number: int) -> DataFrame:
        from pyspark.sql import functions as f

        before = self._file(number - 1)
        kept = json.loads(before.read_text()) if before.exists() else {}
        told = []
        sums = batch.groupBy("category").agg(f.sum("price"), f.count("price"))
        for category, price, count in sums.collect():
            total, many = kept.get(str(category), (0, 0))
            kept[str(category)] = total + price, many + count
            told.append((category, (total + price) / (many + count)))
        self._write(number, json.dumps(kept))
        return batch.sparkSession.createDataFrame(told, "key bigint, average double")

    def _write(self, number: int, text: str) -> None:
        new = self._folder / "new"
        new.write_text(text)
        new.rename(self._file(number))
        self._file(number - 2).unlink(missing_ok=True)

    def _file(self, number: int) -> Path:
        return self._folder / f"{number}.json"


class MeansOfLast:
    """Query 6: the last prices of each seller, as Parquet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def stream(self, market: SparkMarket) -> DataFrame:
        return native_winners(market, ["expires", "seller"])

    def answer(self, batch: DataFrame, number: int) -> DataFrame:
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        names = ["seller", "expires", "id", "price"]
        rows = batch.select(*names, f.lit(True).alias("new"))
        before = self._place(number - 1)
        if before.exists():
            kept = batch.sparkSession.read.parquet(str(before))
            rows = rows.unionByName(kept.withColumn("new", f.lit(False)))
        seller = Window.partitionBy("seller")
        inorder = seller.orderBy("expires", "id")
        ranked = rows.withColumn("place", f.row_number().over(inorder))
        last = f.avg("price").over(inorder.rowsBetween(1 - LAST, 0))
        ranked = ranked.withColumn("average", last).withColumn("many", f.count("*").over(seller))
        ranked = ranked.persist()
        newest = ranked.where(f.col("place") > f.col("many") - LAST).select(*names)
        newest.write.mode("overwrite").parquet(str(self._place(number)))
        shutil.rmtree(self._place(number - 2), ignore_errors=True)
        told = ranked.where("new")
        return told.select(f.col("seller").alias("key"), f.col("id").alias("auction"), "average")

    def _place(self, number: int) -> Path:
        return self._folder / str(number)


QUERIES = {"q4": RunningMeans, "q6": MeansOfLast}
