"""Functions of ``applyInPandasWithState`` made by chance, for Spark's own engine and for Headrace."""

from __future__ import annotations

import random
import zlib
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import headrace as hr
from tests.spark.processors.engines import (
    Batches,
    Noted,
    batches_of,
    read,
    run_on_headrace,
    run_on_spark,
)
from tests.spark.processors.random_processors import Case

OUTPUT = "k STRING, k2 INT, what STRING, n BIGINT, at TIMESTAMP"
#: (An array or a map in it makes Spark's own engine fail: it loses what is in them on its way.)
STATE = (
    "n BIGINT, s STRING, d DOUBLE, at TIMESTAMP, inner STRUCT<a: INT, b: STRING>, raw BINARY, "
    "day DATE, e DECIMAL(5,2)"
)
TIMEOUTS = ("NoTimeout", "EventTimeTimeout", "EventTimeTimeout", "ProcessingTimeTimeout")


def case_of(seed: int) -> Case:
    """Return the case of a seed. Its mode is the kind of timeout."""
    rng = random.Random(f"function/{seed}")
    batches = rng.randint(2, 5)
    mode = rng.choice(TIMEOUTS)
    return Case(
        seed,
        mode,
        False,
        rng.choice([("k",), ("k2",), ("k", "k2")]),
        batches,
        rng.randint(1, batches),
        mode == "EventTimeTimeout" or rng.random() < 0.5,
    )


def function_of(case: Case) -> Any:
    """Return the function of a case. What it does follows from the seed, the state and the rows."""
    import pandas as pd
    from pyspark.sql import Row

    # (Plain values: workers of Spark's own engine need not find the class of a case.)
    seed, mode, keys, has_watermark = case.seed, case.mode, tuple(case.keys), case.watermark

    def pick(*parts: Any) -> int:
        return zlib.crc32(repr((seed, *parts)).encode())

    def tried(what: Any, *arguments: Any) -> str:
        try:
            return str(what(*arguments))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def change(state: Any, at: int, v: int, a: int, turn: int) -> str:
        choice = pick(v, a, turn) % 9
        watermark = state.getCurrentWatermarkMs() if has_watermark else 0
        if choice in (0, 1):
            before = state.getOption
            count = before[0] if before is not None and before[0] is not None else 0
            when = datetime.fromtimestamp(at / 1000)
            inner = Row(a=a, b="x" * (v % 3))
            day, cents = when.date(), Decimal(v % 900) / 100
            state.update((count + v, f"s{v}", v / 2, when, inner, b"raw", day, cents))
            return f"updated {before}"
        if choice == 2:
            state.update((None,) * 8)
            return f"nulls {state.get}"
        if choice == 3:
            state.remove()
            return f"removed {state.exists} {state.getOption} {tried(lambda: state.get)}"
        if choice == 4:
            return f"nothing {state} {tried(state.update, None)}"
        if mode == "EventTimeTimeout":
            until = at + 1_000 * (pick("until", v, turn) % 40 - 10)
            if choice in (5, 6):
                until = max(until, watermark)
            return f"until {tried(state.setTimeoutTimestamp, until)} {tried(state.setTimeoutDuration, 5)}"
        if mode == "ProcessingTimeTimeout":
            state.setTimeoutDuration(10**9)
            return f"until {tried(state.setTimeoutTimestamp, at)} {tried(state.setTimeoutDuration, -1)}"
        return f"until {tried(state.setTimeoutTimestamp, at)} {tried(state.setTimeoutDuration, 5)}"

    def frame(key: Any, what: str, n: int, at: Any) -> Any:
        named = dict(zip(keys, key, strict=True))
        rows = [(named.get("k"), named.get("k2"), what, n, at)]
        shown = pd.DataFrame(rows, columns=["k", "k2", "what", "n", "at"])
        return shown[["what", "at", "n", "k2", "k"]]

    def function(key: Any, frames: Any, state: Any) -> Any:
        frames = list(frames)
        kinds = [type(part).__name__ for part in key]
        watermark = tried(state.getCurrentWatermarkMs)
        before = f"{kinds} {state.hasTimedOut} {state.exists} {state.getOption} {watermark}"
        if state.hasTimedOut:
            (empty,) = frames
            turn = pick("over", str(key), watermark) % 4
            if turn == 1:
                state.update((1, "again", *[None] * 6))
            elif turn == 2:
                state.remove()
            elif turn == 3:
                state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 5_000)
            yield frame(key, f"{before} {list(empty.columns)} {len(empty)}", 1, None)
            return
        (rows,) = frames
        kinds = {name: str(kind) for name, kind in rows.dtypes.items()}
        yield frame(key, f"{before} {kinds}", len(rows), rows["t"].max())
        yield pd.DataFrame()
        ordered = rows.sort_values(["t", "v", "x"], kind="stable")
        for t, v, n in ordered[["t", "v", "n"]].itertuples(index=False):
            at = int(t.tz_localize("UTC").value // 1_000_000)
            for turn in range(pick("turns", v) % 3):
                said = change(state, at, int(v), int(n["a"]), turn)
                yield frame(key, f"{said} {type(n['b']).__name__}", int(v), t)

    return function


def on_spark(spark: Any, case: Case, files: Path, state: Path, noted: Noted, count: int) -> None:
    """Let Spark's engine read what is in a folder."""
    grouped = read(spark, case, files)
    frame = grouped.applyInPandasWithState(function_of(case), OUTPUT, STATE, "Update", case.mode)
    run_on_spark(frame, state, noted, calls=count + 2 if case.mode.startswith("Proc") else 0)


def on_headrace(spark: Any, case: Case, files: Path, state: Path, noted: Noted, count: int) -> None:
    """Let Headrace read what is in a folder."""
    pipeline = hr.Pipeline("functions")
    made = hr.spark.apply_in_pandas_with_state(
        read(spark, case, files),
        function_of(case),
        OUTPUT,
        STATE,
        "Update",
        case.mode,
        pipeline=pipeline,
        checkpoint=str(state / "input"),
    )
    run_on_headrace(pipeline, made.stream, made.schema, state, noted)


def both(spark: Any, case: Case, folder: Path) -> tuple[Batches, Batches]:
    """Run a case on both engines. Return what Spark and Headrace yield, batch by batch."""
    ours = partial(on_headrace, spark, case)
    return batches_of(case, folder, partial(on_spark, spark, case), ours)
