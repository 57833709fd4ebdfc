"""Chains of two processors made by chance, and processors whose attributes outlast a key."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import headrace as hr
from headrace.spark.ddl import struct_of_schema
from tests.spark.processors.engines import (
    Batches,
    Noted,
    batches_of,
    read,
    run_on_headrace,
    run_on_spark,
)
from tests.spark.processors.random_processors import (
    INPUT,
    OUTPUT,
    Case,
    processor_of,
)


class Chain(NamedTuple):
    """A chain that is tried.

    Attributes:
        first: the input, and the first processor; its ``keys`` are those by which the input is grouped.
        second: the second processor, and its keys; None to look at what the first one yields.
        event_time: the column of the first processor's output that is its event time, or nothing.
        too_late: whether the first processor yields rows that are late already, which is refused.
    """

    first: Case
    second: Case | None
    event_time: str
    too_late: bool = False


def chain_of(seed: int) -> Chain:
    """Return the chain of a seed."""
    rng = random.Random(f"chain/{seed}")
    batches = rng.randint(2, 4)
    first = Case(
        seed,
        rng.choice(["none", "eventTime", "eventTime"]),
        rng.random() < 0.4,
        rng.choice([("k",), ("k2",)]),
        batches,
        rng.randint(1, batches),
        True,
        nulls=False,
    )
    second = first._replace(
        seed=seed + 1,
        mode=rng.choice(["none", "eventTime", "eventTime"]),
        pandas=rng.random() < 0.4,
        keys=rng.choice([("k",), ("k2",), ("k", "k2")]),
    )
    alone = rng.random() < 0.25
    return Chain(first, None if alone else second, "t" if alone or rng.random() < 0.8 else "")


def relay_of(chain: Chain) -> Any:
    """Return a first processor: it yields rows of the schema of its input, under other keys and times.

    No event time is at the watermark or before it: Spark refuses such a row.
    """
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    # (Plain values: workers of Spark's own engine need not find the class of a chain.)
    seed, mode, event_time = chain.first.seed, chain.first.mode, chain.event_time
    is_late = chain.too_late

    def pick(*parts: Any) -> int:
        return zlib.crc32(repr((seed, "relay", *parts)).encode())

    class Relay(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.count = handle.getValueState("count", "n BIGINT")

        def close(self) -> None:
            pass

        def out(self, at: int, v: int, a: int, watermark: int) -> Any:
            at = max(1, watermark - 3_600_000) if is_late else max(at, watermark + 1)
            return Row(
                k=["a", "b", "c", "é"][pick("k", v, a) % 4],
                k2=pick("k2", v) % 3,
                t=datetime.fromtimestamp(at / 1000, UTC),
                v=v,
                x=0.5 * a,
                n=Row(a=a, b=["x"] * (a % 3)),
            )

        def with_row(self, at: int, v: int, a: int, times: Any) -> Iterator[Any]:
            before = self.count.get()
            count = before[0] if before else 0
            self.count.update((count + 1,))
            watermark = times.getCurrentWatermarkInMs()
            if mode == "none" and event_time:  # (it cannot know the watermark)
                at += 60_000
            for turn in range(pick("turns", v, a, count) % 3):
                later = (0, 500, 7_000, -3_000)[pick("later", v, turn) % 4]
                yield self.out(at + later, (v + turn) % 300, a, watermark)
            if mode == "eventTime":
                self.handle.registerTimer(at + 1_000 * (pick("t", v) % 30))

        def expired(self, at: int, times: Any) -> Iterator[Any]:
            kept = self.count.get()
            count = kept[0] if kept else 0
            yield self.out(at, at % 251, count, times.getCurrentWatermarkInMs())

    if chain.first.pandas:
        import pandas as pd

        names = ["k", "k2", "t", "v", "x", "n"]

        class InPandas(Relay):
            def frame(self, rows: Any) -> Any:
                return pd.DataFrame([[row[name] for name in names] for row in rows], columns=names)

            def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
                for frame in rows:
                    ordered = frame.sort_values(["t", "v", "x"], kind="stable")
                    for t, v, n in ordered[["t", "v", "n"]].itertuples(index=False):
                        at = int(t.tz_localize("UTC").value // 1_000_000)
                        found = list(self.with_row(at, int(v), int(n["a"]), timerValues))
                        if found:
                            yield self.frame(found)

            def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
                yield self.frame(self.expired(expiredTimerInfo.getExpiryTimeInMs(), timerValues))

        return InPandas()

    class InRows(Relay):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            for row in sorted(rows, key=lambda row: (row.t, row.v, row.x)):
                at = int(row.t.timestamp() * 1000)
                yield from self.with_row(at, row.v, row.n["a"], timerValues)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            return self.expired(expiredTimerInfo.getExpiryTimeInMs(), timerValues)

    return InRows()


def on_spark(spark: Any, chain: Chain, files: Path, state: Path, noted: Noted, count: int) -> None:
    """Let Spark's engine read what is in a folder."""
    grouped = read(spark, chain.first, files)
    door = "transformWithStateInPandas" if chain.first.pandas else "transformWithState"
    frame = getattr(grouped, door)(
        relay_of(chain), INPUT, "Append", chain.first.mode, None, chain.event_time
    )
    if chain.second is not None:
        door = "transformWithStateInPandas" if chain.second.pandas else "transformWithState"
        frame = getattr(frame.groupBy(*chain.second.keys), door)(
            processor_of(chain.second), OUTPUT, "Append", chain.second.mode
        )
    run_on_spark(frame, state, noted, output_mode="append")


def on_headrace(
    spark: Any, chain: Chain, files: Path, state: Path, noted: Noted, count: int
) -> None:
    """Let Headrace read what is in a folder."""
    pipeline = hr.Pipeline("chain")
    door = "transform_with_state_in_pandas" if chain.first.pandas else "transform_with_state"
    made = getattr(hr.spark, door)(
        read(spark, chain.first, files),
        relay_of(chain),
        INPUT,
        "Append",
        chain.first.mode,
        None,
        chain.event_time,
        pipeline=pipeline,
        checkpoint=str(state / "input"),
        watermark=hr.spark("10s"),
    )
    stream, schema = made.stream, made.schema
    if chain.second is not None:
        node = hr.spark.stateful_processor(
            stream,
            chain.second.keys,
            processor_of(chain.second),
            OUTPUT,
            "Append",
            chain.second.mode,
            name="second",
            in_pandas=chain.second.pandas,
        )
        stream, schema = node.only_output(), struct_of_schema(OUTPUT, "the output")
    run_on_headrace(pipeline, stream, schema, state, noted)


def both(spark: Any, chain: Chain, folder: Path) -> tuple[Batches, Batches]:
    """Run a chain on both engines. Return what Spark and Headrace yield, batch by batch."""
    theirs, ours = partial(on_spark, spark, chain), partial(on_headrace, spark, chain)
    return batches_of(chain.first, folder, theirs, ours)
