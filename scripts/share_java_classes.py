"""Writes an archive of the Java classes that Spark loads, so that virtual machines start in half the time.

python scripts/share_java_classes.py ARCHIVE

Java maps the archive into memory instead of reading, verifying and linking each class. The tests start
many virtual machines, and use the archive if it is there (``tests/support/java.py``).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as f

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.java import QUICK


def main() -> None:
    """Run what uses most of Spark; its machine writes the archive as it ends."""
    archive = Path(sys.argv[1]).absolute()
    archive.unlink(missing_ok=True)
    os.environ["JAVA_TOOL_OPTIONS"] = QUICK
    writing = f"-XX:ArchiveClassesAtExit={archive} -Xlog:disable"
    os.environ["PYSPARK_SUBMIT_ARGS"] = f'--driver-java-options "{writing}" pyspark-shell'
    with tempfile.TemporaryDirectory() as folder:
        builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        spark = builder.config("spark.sql.warehouse.dir", folder).getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        exercise(spark, Path(folder))
        machine = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        spark.stop()
        machine.stdin.close()
        machine.wait()


def exercise(spark: Any, folder: Path) -> None:
    """Plan and run queries, tasks in Python, files and a stream."""
    rows = spark.range(1_000).select("id", (f.col("id") % 7).alias("k"), f.rand(1).alias("x"))
    by_key = Window.partitionBy("k").orderBy(f.desc("x"))
    ranked = rows.withColumn("n", f.row_number().over(by_key)).where("n < 3")
    joined = ranked.join(rows.groupBy("k").agg(f.count_distinct("id"), f.sum("x")), "k", "left")
    joined.orderBy("k", "id").collect()
    rows.createOrReplaceTempView("rows")
    spark.sql(
        "SELECT k, CASE WHEN x > 0.5 THEN 'a' ELSE upper('b') END AS c, max(x) FROM rows r WHERE EXISTS "
        "(SELECT 1 FROM rows s WHERE s.id = r.id AND s.k IN (1, 2)) GROUP BY ALL UNION ALL "
        "SELECT 1, 'x', (SELECT avg(x) FROM rows) ORDER BY 1 LIMIT 10"
    ).toArrow()
    spark.sparkContext.parallelize(range(100), 2).map(lambda n: (n % 3, n)).groupByKey().collect()
    for kind in ("parquet", "json", "csv"):
        rows.write.format(kind).save(str(folder / kind))
        spark.read.schema(rows.schema).format(kind).load(str(folder / kind)).count()
    rows.mapInArrow(lambda batches: batches, rows.schema).count()
    stream = spark.readStream.schema(rows.schema).json(str(folder / "json"))
    counted = stream.groupBy("k").count().writeStream.outputMode("complete").format("memory")
    counted.queryName("counted").trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
