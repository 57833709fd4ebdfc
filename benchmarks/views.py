"""What it costs to keep views of SQL up to date, beside asking again.

Run ``python -m benchmarks.views`` (or ``--quick``). Two parts, of which ``--part`` chooses one:

``tpch``
    Each query of TPC-H stands as a view over tables at scales 0.01 and 0.1, of which one row in a
    hundred is held back. Then come steps that change one row in a thousand of every table: half of
    the changes delete a row, and half bring one that was held back or deleted. Measured are the
    median step, and how long Spark (``local[1]``, tables cached) and DuckDB (one thread) take for
    the whole query over the same tables. They take turns, and the
    least time of each counts in the ratio, since other programs may run. The three answers are compared.

``nexmark``
    Each query of NEXMark that SQL has, as a view and as it is written by hand, over the same events
    in this process. Measured is the time of the processor. They take turns.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.support import tpch

import headrace as hr
from benchmarks.nexmark.lines import lines_of
from headrace.checkpoints.views import read_view
from headrace.driver.driver import Driver, Settings
from headrace.nexmark.queries import module_of, sql
from headrace.nexmark.queries.market import Market
from headrace.nexmark.timeline import Timeline
from headrace.pipeline.source import Limit, Offer, Position, Source, Split
from headrace.runners.inline import InlineRunner
from headrace.schema import ValueType, value_type_of
from headrace.schema.reserved import TIMESTAMP_COLUMN
from headrace.sql.catalyst import Catalyst
from headrace.sql.ir.types import of_arrow
from headrace.sql.views import Views
from headrace.storage import MemoryStore

SEED = 1
WEIGHT = "_weight"


class Batches(Source):
    """Arrow tables, one of which is a step."""

    source_kind = "tables of a benchmark"
    bounded = True
    is_constant = True  # a harness is not to replace it

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = pa.schema([*schema, pa.field(WEIGHT, pa.int64(), nullable=False)])
        self.tables: list[pa.Table] = []

    def add(self, rows: pa.Table, weights: Any) -> None:
        """Add a step's changes."""
        times = pa.array(np.full(len(rows), len(self.tables)), pa.int64())
        weighed = rows.append_column(self._schema.field(WEIGHT), pa.array(weights, pa.int64()))
        self.tables.append(weighed.add_column(0, TIMESTAMP_COLUMN, times))

    def values(self) -> ValueType:
        return value_type_of(self._schema)

    def start(self) -> Position:
        return 0

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        if position == len(self.tables):
            return None
        table = self.tables[position]
        return Offer(position + 1, len(table), table.nbytes)

    def splits(self, start: Position, end: Position) -> list[Split]:
        return [Split([start, end], _stream(self.tables[start]))]

    def read(self, split: Split) -> pa.Table:
        return pa.ipc.open_stream(split.data).read_all()


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


class Changing:
    """A table of TPC-H whose rows come and go.

    Args:
        rows: all rows that it may have.
        random: what draws them.
    """

    def __init__(self, rows: pa.Table, random: np.random.Generator) -> None:
        self._all, self._random = rows, random
        order = random.permutation(len(rows))
        held_back = max(len(rows) // 100, 1) if len(rows) > 100 else 0
        self._out, self._there = order[:held_back].tolist(), order[held_back:].tolist()

    def first(self) -> tuple[pa.Table, Any]:
        """Return the rows that are there at first, with their weights."""
        return self.now(), np.ones(len(self._there), dtype=np.int64)

    def now(self) -> pa.Table:
        """Return the rows that are there."""
        return self._all.take(pa.array(self._there, pa.int64())).combine_chunks()

    def change(self) -> tuple[pa.Table, Any]:
        """Change one row in a thousand, and return the changes."""
        half = max(len(self._all) // 2000, 1) if self._out else 0
        gone = [self._there.pop(self._random.integers(len(self._there))) for _ in range(half)]
        come = [self._out.pop(self._random.integers(len(self._out))) for _ in range(half)]
        self._out += gone
        self._there += come
        at = pa.array([*gone, *come], pa.int64())
        return self._all.take(at).combine_chunks(), np.repeat([-1, 1], half)


def _plain(table: pa.Table) -> pa.Table:
    fields = [pa.field(one.name, of_arrow(one.type).arrow, nullable=False) for one in table.schema]
    return table.cast(pa.schema(fields))


def _tables_of(sql: str) -> list[str]:
    return [name for name in tpch.TABLES if re.search(rf"\b{name}\b", sql)]


def _pipeline(
    catalyst: Catalyst, number: int, of: dict[str, Changing]
) -> tuple[hr.Pipeline, dict[str, Batches]]:
    """Return a pipeline that keeps one query up to date, and what feeds it."""
    p = hr.Pipeline("bench")
    views = Views(planner=catalyst)
    sources = {}
    for name, table in of.items():
        rows = table.now().schema
        sources[name] = Batches(rows)
        stream = p.inject(name, sources[name])
        views.table(name, hr.zsets.table(name, stream))
    views.view("answer", tpch.QUERIES[number]).view("v")
    return p, sources


class ByUs:
    """A query that is kept up to date in this process."""

    def __init__(self, catalyst: Catalyst, number: int, of: dict[str, Changing]) -> None:
        pipeline, self._sources = _pipeline(catalyst, number, of)
        self._harness = hr.testing.drive(pipeline, workers=1, bins=16)
        self.loaded = self.step({name: one.first() for name, one in of.items()})

    def step(self, changes: dict[str, tuple[pa.Table, Any]]) -> float:
        """Take in changes, and return how long that took."""
        for name, (rows, weights) in changes.items():
            self._sources[name].add(rows, weights)
        gc.collect()
        begun, busy = time.perf_counter(), time.process_time()
        while self._harness.step() is not None:
            pass
        self.busy = time.process_time() - busy
        return time.perf_counter() - begun

    def answer(self) -> pa.Table:
        """Return the rows of the view."""
        return read_view(hr.open_state(self._harness._store), "v")

    def close(self) -> None:
        self._harness.close()


def _bag(answer: pa.Table) -> Counter[tuple[str, ...]]:
    """Return rows with two places after the point: DuckDB has doubles where SQL has decimals."""
    columns = [column.to_pylist() for column in answer.columns]
    rows = zip(*columns, strict=True)
    return Counter(
        tuple(f"{v:.2f}" if isinstance(v, float | Decimal | int) else str(v) for v in row)
        for row in rows
    )


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    found = work()
    return time.perf_counter() - begun, found


def _by_spark(spark: Any, number: int, of: dict[str, Changing], times: int) -> tuple[float, Any]:
    """Return the median time of the whole query in Spark, and its answer."""
    frames = []
    sql = tpch.QUERIES[number]
    with tempfile.TemporaryDirectory() as folder:
        for name, table in of.items():
            pq.write_table(table.now(), f"{folder}/{name}.parquet")
            frame = spark.read.parquet(f"{folder}/{name}.parquet").cache()
            frame.count()
            frame.createOrReplaceTempView(name)
            frames.append(frame)
        _timed(lambda: spark.sql(sql).toArrow())  # once to warm up
        tries = [_timed(lambda: spark.sql(sql).toArrow()) for _ in range(times)]
    for frame in frames:
        frame.unpersist()
    return min(took for took, _ in tries), tries[-1][1]


def _by_duckdb(number: int, of: dict[str, Changing], times: int) -> tuple[float, Any]:
    import duckdb

    with duckdb.connect() as database:
        database.execute("SET threads = 1")
        for name, table in of.items():
            rows = table.now()  # noqa: F841 (DuckDB finds it by its name)
            database.execute(f"CREATE TABLE {name} AS SELECT * FROM rows")
        sql = tpch.QUERIES[number]
        tries = [_timed(lambda: database.execute(sql).to_arrow_table()) for _ in range(times)]
    return min(took for took, _ in tries), tries[-1][1]


def tpch_part(scales: list[float], queries: list[int], steps: int, spark: Any) -> None:
    """Print a line for each query and scale."""
    print(
        "query  scale  load s  step ms, median, least, of the processor   spark ms   duckdb ms"
        "   spark/step   rows   changes"
    )
    beside = spark.newSession()
    beside.conf.set("spark.sql.session.timeZone", "UTC")
    beside.conf.set("spark.sql.shuffle.partitions", "1")
    for scale in scales:
        with tempfile.TemporaryDirectory() as folder:
            tables = {n: _plain(t) for n, t in tpch.generate(Path(folder), scale).items()}
        for number in queries:
            random = np.random.default_rng(SEED)
            names = _tables_of(tpch.QUERIES[number])
            of = {name: Changing(tables[name], random) for name in names}
            ours = ByUs(Catalyst(spark), number, of)
            changed, took, busy = 0, [], []
            for _ in range(steps):
                changes = {name: one.change() for name, one in of.items()}
                changed = sum(len(rows) for rows, _ in changes.values())
                took.append(ours.step(changes))
                busy.append(ours.busy)
            by_spark, rows = _by_spark(beside, number, of, 3)
            by_duckdb, others = _by_duckdb(number, of, 3)
            found = _bag(ours.answer())
            wrong = "" if found == _bag(rows) == _bag(others) else "   ANSWERS DIFFER"
            step = statistics.median(took)
            print(
                f"q{number:<5} {scale:<6} {ours.loaded:6.1f} {1e3 * step:9.1f}"
                f" {1e3 * min(took):8.1f} {1e3 * min(busy):8.1f}"
                f" {1e3 * by_spark:10.0f} {1e3 * by_duckdb:11.1f} {by_spark / min(took):12.1f}"
                f" {found.total():6} {changed:9}{wrong}",
                flush=True,
            )
            ours.close()
            del ours, of
            gc.collect()


# -- NEXMark ----------------------------------------------------------------------------------


def nexmark_part(events: int, turns: int, spark: Any) -> None:
    """Print a line for each query."""
    timeline = Timeline(events=events, rate=10_000, in_flight=1_000, seed=SEED)
    print("query   by hand, events/s   in SQL, events/s   share   lines by hand   lines of SQL")
    for query, text in sql.QUERIES.items():
        by_hand, in_sql = [], []
        for _ in range(turns):
            p = hr.Pipeline("hand")
            node = module_of(query).migratable(Market(p, timeline, tasks=1))
            by_hand.append(_processor_time(p, node))
            p = hr.Pipeline("sql")
            market = Market(p, timeline, tasks=1)
            rows = sql.views_of([query], market, Catalyst(spark))[query].compute("answer")
            in_sql.append(_processor_time(p, rows.stream))
        hand, ours = events / min(by_hand), events / min(in_sql)
        lines = len([line for line in text.splitlines() if line.strip()])
        print(
            f"{query:<8}{hand:17,.0f}{ours:19,.0f}{ours / hand:8.2f}"
            f"{lines_of(query, 'migratable') or 0:16}{lines:15}",
            flush=True,
        )


def _processor_time(pipeline: hr.Pipeline, answer: Any) -> float:
    """Return how long a pipeline keeps the processor busy until its input has ended."""
    pipeline.sink("answers", answer, hr.sinks.Calls(_nothing, idempotent=True))
    settings = Settings(limit=hr.Limit(100_000, 1 << 40))
    driver = Driver(pipeline, MemoryStore(), InlineRunner(), workers=1, bins=16, settings=settings)
    driver.request_stop(drain=True)
    gc.collect()
    begun = time.process_time()
    driver.run()
    took = time.process_time() - begun
    driver.close()
    return took


def _nothing(*_: Any) -> None:
    pass


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer queries, small tables")
    parser.add_argument("--part", choices=["tpch", "nexmark"])
    parser.add_argument("--queries", type=int, nargs="*", default=list(tpch.QUERIES))
    parser.add_argument("--scales", type=float, nargs="*")
    options = parser.parse_args()
    print(f"load of the machine: {os.getloadavg()}; {os.cpu_count()} cores")
    from tests.spark.conftest import session

    spark = session("local[1]", **{"spark.driver.memory": "4g"})
    queries = [1, 3, 5, 18] if options.quick else options.queries
    scales = options.scales or ([0.01] if options.quick else [0.01, 0.1])
    if options.part != "nexmark":
        tpch_part(scales, queries, 3 if options.quick else 5, spark)
    if options.part != "tpch":
        nexmark_part(20_000 if options.quick else 200_000, 1 if options.quick else 2, spark)
    print(f"load of the machine: {os.getloadavg()}")
    spark.stop()


if __name__ == "__main__":
    main()
