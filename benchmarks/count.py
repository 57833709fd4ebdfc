"""A running count of int64 keys, uniform in a domain: durable and exactly once.

It measures records per second, at steps of at most one million records, and the p95 of a step's
time. The counts are emitted per key and step (``--emit key``), per record (``--emit record``, as
Megaphone's hash-count), or not at all (``--emit none``). A file sink writes what is emitted as
Parquet. The final state is checked: the counts must add up to the number of records.

With ``--fill`` (and always from 20 million keys on) every key is inserted once before a step
counts, so that the state has all of them. Then the memory of the Python workers and the storage are
measured, too.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr
from benchmarks.counting import Counted
from benchmarks.harness import (
    bytes_on_disk,
    figure,
    local_session,
    parser,
    percentile,
    report,
    steps_of,
)
from benchmarks.inputs import write_fill, write_input
from benchmarks.peers import PEERS, running_count
from headrace.driver.driver import Driver
from headrace.nexmark.harness.memory import GIB, MemoryWatch
from headrace.runners.spark.runner import SparkRunner
from headrace.storage import LocalStore

#: Bytes of a key and its count as columns.
COLUMN_BYTES = 16
#: Approximate number of rows of run files that :func:`check` reads at once.
CHECKED_AT_ONCE = 1_000_000
#: From this many keys on, uniform records would take too long to bring all of them.
ALWAYS_FILLED = 20_000_000
GOALS = {
    ("key", 100_000): 6_000_000,
    ("key", 1_000_000): 5_000_000,
    ("record", 1_000_000): 1_000_000,
}


def headrace(
    context: Any, data: Path, folder: Path, chosen: Any
) -> tuple[list[float], dict[str, float], Path]:
    """Run the count; return the seconds between commits, the mean phases, and the storage."""
    pipeline = hr.Pipeline("count")
    source = hr.sources.Files(str(data / "*.parquet"), event_time="at")
    node = pipeline.compute(
        "count", Counted(chosen.emit), keys={pipeline.inject("keys", source): "key"}
    )
    if chosen.emit != "none":
        pipeline.sink("out", node, hr.sinks.Files(folder / "out", format="parquet"))
    storage = folder / "state"
    settings = hr.Settings(
        limit=hr.Limit(chosen.rows, 1 << 40), exchange=chosen.exchange, cached_bytes=12 << 30
    )
    driver = Driver(
        pipeline,
        LocalStore(storage),
        SparkRunner(context),
        workers=chosen.workers,
        bins=chosen.bins,
        settings=settings,
        drain=True,
    )
    found, phases = steps_of(driver, warm=chosen.warm)
    return found, phases, storage


def check(storage: Path, records: int) -> int:
    """Read the final state back from storage, and check that the counts add up; return the keys.

    It is read range by range, so only a part of it is in memory, however many keys it has.
    """
    from headrace.checkpoints.state_files import StateReaders, state_files
    from headrace.keyspace.layout import Layout
    from headrace.keyspace.ranges import Ranges
    from headrace.ledger.ledger import Ledger

    store = LocalStore(storage)
    head = Ledger(store).open()
    assert head is not None
    layout = Layout.from_wire(head.layout)
    parts = max(64, records // CHECKED_AT_ONCE)
    keys = total = 0
    for worker in range(layout.workers):
        sources = StateReaders(store, layout, worker, state_files(head)).sources("count")
        for first, last in layout.ranges_of(worker).pairs():
            step = (last - first) // parts + 1
            for low in range(first, last + 1, step):
                table = sources.rows("table:counts", Ranges.of([(low, min(low + step - 1, last))]))
                if table is not None:
                    keys += table.num_rows
                    total += int(np.sum(table.column("column:count").to_numpy()))
    if total != records:
        raise SystemExit(f"the counts add up to {total:,}, but there were {records:,} records")
    return keys


def run_peer(
    spark: Any, peer: str, data: Path, folder: Path, chosen: Any
) -> tuple[float, list[float]]:
    """Run a peer on the same files; a slow one on a few small files of the same keys."""
    emit = chosen.emit != "none"
    if peer.startswith("builtin"):
        return running_count(spark, peer, data, folder, emit=emit, warm=chosen.warm)
    few = folder / f"few-{peer}"
    few.mkdir()
    write_input(few, 4, chosen.peer_rows, chosen.keys)
    return running_count(spark, peer, few, folder, emit=emit, warm=1)


def options() -> argparse.ArgumentParser:
    """Return the parser of this program."""
    made = parser(__doc__)
    made.add_argument("--keys", type=int, default=1_000_000, help="the domain of the keys")
    made.add_argument("--files", type=int, default=50, help="how many files (steps)")
    made.add_argument("--rows", type=int, default=1_000_000, help="records a file and step")
    made.add_argument("--warm", type=int, default=20, help="steps that do not count")
    made.add_argument(
        "--fill", action="store_true", help="insert every key first, and watch memory"
    )
    made.add_argument("--emit", choices=["key", "record", "none"], default="key")
    made.add_argument("--workers", type=int, default=2)
    made.add_argument("--bins", type=int, default=256)
    made.add_argument("--exchange", choices=["auto", "driver", "host", "shuffle"], default="auto")
    made.add_argument("--vs", nargs="*", choices=list(PEERS), default=[], help="peers beside it")
    made.add_argument("--peer-rows", type=int, default=50_000, help="records a file, slow peers")
    return made


def own_figures(seconds: list[float], keys: int, chosen: Any) -> list[dict[str, Any]]:
    """Return the figures of Headrace's run."""
    rate = chosen.rows * len(seconds) / sum(seconds)
    p95 = percentile(seconds, 0.95)
    goal = GOALS.get((chosen.emit, chosen.keys))
    wanted = (f">= {goal}", rate >= goal) if goal else ()
    return [
        figure("records_per_second", rate, "records/s", *wanted),
        figure("step_p50_ms", percentile(seconds, 0.5) * 1e3, "ms"),
        figure("step_p95_ms", p95 * 1e3, "ms", "<= 500", p95 <= 0.5),
        figure("keys", keys, "keys"),
    ]


def size_figures(peak: int, storage: Path, chosen: Any) -> list[dict[str, Any]]:
    """Return the size of the state in memory and on disk, and that of its columns."""
    return [
        figure("state_gib", peak / GIB, "GiB"),
        figure("column_gib", chosen.keys * COLUMN_BYTES / GIB, "GiB"),
        figure("disk_gib", bytes_on_disk(storage) / GIB, "GiB"),
    ]


def row_of(who: list[str], rate: float, seconds: list[float]) -> list[str]:
    """Return a row of the table."""
    times = [f"{percentile(seconds, share) * 1e3:.0f}" for share in (0.5, 0.95)]
    return [*who, f"{rate:,.0f}", *times]


def measured(
    spark: Any, data: Path, folder: Path, chosen: Any, records: int
) -> tuple[list[float], dict[str, float], list[dict[str, Any]]]:
    """Run the count and check it; return the seconds of its steps, its phases and its figures."""
    watch: Any = MemoryWatch() if chosen.fill else contextlib.nullcontext()
    with watch:
        seconds, phases, storage = headrace(spark.sparkContext, data, folder, chosen)
    keys = check(storage, records)
    if chosen.fill and keys != chosen.keys:
        raise SystemExit(f"there are {keys:,} keys, but {chosen.keys:,} were inserted")
    figures = own_figures(seconds, keys, chosen)
    if chosen.fill:
        figures += size_figures(watch.peak_bytes, storage, chosen)
    shutil.rmtree(storage)
    return seconds, phases, figures


def main() -> None:
    chosen = options().parse_args()
    chosen.fill |= chosen.keys >= ALWAYS_FILLED
    if chosen.quick:
        chosen.files, chosen.warm = min(chosen.files, 16), min(chosen.warm, 6)
    folder = Path(tempfile.mkdtemp(prefix="headrace-count-"))
    data = folder / "in"
    data.mkdir()
    filled = chosen.keys if chosen.fill else 0
    try:
        if chosen.fill:
            chosen.warm += write_fill(data, chosen.rows, chosen.keys)
        write_input(data, chosen.files, chosen.rows, chosen.keys, first=filled)
        spark = local_session(2)
        records = filled + chosen.files * chosen.rows
        seconds, phases, figures = measured(spark, data, folder, chosen, records)
        beside = {peer: run_peer(spark, peer, data, folder, chosen) for peer in chosen.vs}
        spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rate = figures[0]["value"]
    rows = [
        ["keys", "records a step", "emits", "records/s", "step p50 ms", "step p95 ms"],
        row_of([f"{chosen.keys:,}", f"{chosen.rows:,}", chosen.emit], rate, seconds),
    ]
    for peer, (theirs, batches) in beside.items():
        rows.append(row_of(["", "", PEERS[peer]], theirs, batches))
        figures.append(figure(f"records_per_second_{peer}", theirs, "records/s"))
        figures.append(figure(f"ratio_{peer}", rate / theirs, "x", "> 1", rate > theirs))
    millis = {name: value * 1e3 for name, value in phases.items()}
    report("A running count, durable and exactly once", rows, figures, chosen, phases=millis)
    print("phases (ms, tasks summed): " + ", ".join(f"{n} {v:.1f}" for n, v in millis.items()))


if __name__ == "__main__":
    main()
