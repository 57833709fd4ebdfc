"""NEXMark's queries in SQL beside plain PySpark: the same events, files and batches, in one session.

Run ``python -m benchmarks.nexmark.in_sql`` (or ``--quick``). Both read the same Parquet files, as many rows
a step, with two task slots (``local[2]``), and both are durable. Ours are the views of
:mod:`headrace.nexmark.queries.sql`. They decide again with each step, and take back what they said, where
PySpark's form waits until a window or an auction is closed. Spark's streaming takes few of the texts as
they are, so PySpark's form is the query's ``native`` one. It keeps its state in Spark's default store, or
in RocksDB where it needs that. Each has a run that is not counted, then they take turns; the best run of
each counts, since other programs may run. See :mod:`benchmarks.nexmark.throughput` for what is counted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.nexmark.recorded import Recorded, RecordedMarket
from benchmarks.nexmark.throughput import (
    STATELESS,
    Ran,
    name_of,
    native,
    on_headrace,
    recorded_in,
    session,
)
from headrace.nexmark.queries import module_of, sql
from headrace.sql.catalyst import Catalyst

#: Queries in SQL that have state, and a form in plain PySpark.
QUERIES = [
    name for name in sql.QUERIES if name not in STATELESS and hasattr(module_of(name), "native")
]


def in_sql(query: Any, recorded: Recorded, spark: Any, step: int, folder: Path) -> Ran:
    """Run a query as a view of SQL."""
    name = name_of(query)

    def draw(market: RecordedMarket) -> Any:
        return sql.views_of([name], market, Catalyst(spark))[name].compute("answer").stream

    return on_headrace(draw, recorded, spark, step, folder)


def measured(name: str, recorded: Recorded, spark: Any, chosen: argparse.Namespace) -> str:
    """Run a query on both sides, and return a line of the table."""
    sides: dict[str, Callable[..., Ran]] = {"sql": in_sql, "pyspark": native}
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    answers = {}
    for turn in range(chosen.runs + 1):
        for side in list(sides)[:: -1 if turn % 2 else 1]:
            with tempfile.TemporaryDirectory(
                prefix="nexmark-state-", ignore_cleanup_errors=True
            ) as folder:
                ran = sides[side](module_of(name), recorded, spark, chosen.step, Path(folder))
            if turn:
                speeds[side].append(ran.per_core(chosen.events, chosen.step))
            answers[side] = ran.answers
    ours, theirs = max(speeds["sql"]), max(speeds["pyspark"])
    return (
        f"{name:<6}{ours:15,.0f}{theirs:19,.0f}{ours / theirs:8.2f}"
        f"{answers['sql']:14,}{answers['pyspark']:18,}"
    )


def main() -> int:
    """Print a line for each query."""
    options = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    options.add_argument("--quick", action="store_true", help="fewer events and queries")
    options.add_argument("--events", type=int, default=1_600_000)
    options.add_argument("--step", type=int, default=200_000)
    options.add_argument("--rate", type=int, default=100_000, help="events a second of event time")
    options.add_argument("--in-flight", type=int, default=5_000, help="auctions that are open")
    options.add_argument("--runs", type=int, default=2)
    options.add_argument("--heap", default="4g", help="of the JVM, for both")
    options.add_argument("--queries", nargs="*", default=None)
    chosen = options.parse_args()
    if chosen.quick:
        chosen.events, chosen.step, chosen.runs = 320_000, 40_000, 1
        chosen.queries = chosen.queries or ["q3", "q4"]
    print(f"load of the machine: {os.getloadavg()}; {os.cpu_count()} cores")
    print("query   SQL, /s/core   PySpark, /s/core   ratio   SQL answers   PySpark answers")
    with recorded_in(chosen) as recorded, session(chosen) as spark:
        for name in chosen.queries or QUERIES:
            print(measured(name, recorded, spark, chosen), flush=True)
    print(f"load of the machine: {os.getloadavg()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
