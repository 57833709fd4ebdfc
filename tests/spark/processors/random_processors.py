"""Processors and inputs made by chance, to be run by Spark's own engine and by Headrace.

What a processor does with a row follows from its seed and the row alone, so that both engines can
be asked the same.
"""

from __future__ import annotations

import json
import os
import random
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

INPUT = "k STRING, k2 INT, t TIMESTAMP, v INT, x DOUBLE, n STRUCT<a: INT, b: ARRAY<STRING>>"
OUTPUT = (
    "k STRING, k2 INT, what STRING, wm BIGINT, numbers ARRAY<BIGINT>, "
    "inner STRUCT<a: BIGINT, b: STRING>"
)
START = datetime(2024, 1, 1, tzinfo=UTC)


class Case(NamedTuple):
    """What is tried.

    Attributes:
        seed: everything else follows from it.
        mode: the time mode.
        pandas: whether the processor gets and yields DataFrames.
        keys: the grouping columns.
        batches: how many files there are, one a batch.
        restart: after how many batches both engines are stopped and started again.
        watermark: whether the input has one.
        nulls: whether keys may be null. (Spark's pandas form mixes such keys up: there none is.)
    """

    seed: int
    mode: str
    pandas: bool
    keys: tuple[str, ...]
    batches: int
    restart: int
    watermark: bool
    nulls: bool = True


def case_of(seed: int) -> Case:
    """Return the case of a seed."""
    rng = random.Random(seed)
    batches = rng.randint(2, 5)
    mode = rng.choice(["none", "eventTime", "eventTime", "processingTime"])
    return Case(
        seed,
        mode,
        rng.random() < 0.4,
        rng.choice([("k",), ("k2",), ("k", "k2")]),
        batches,
        rng.randint(1, batches),
        mode == "eventTime" and rng.random() < 0.9,
    )


def write_batch(case: Case, number: int, folder: Path) -> None:
    """Write the file of one batch. Files are read in the order in which they were changed."""
    rng = random.Random(f"{case.seed}/{number}")
    rows = []
    nulls = 0.1 if case.nulls and not case.pandas else 0.0
    for _ in range(rng.randint(1, 12)):
        seconds = number * 20 + rng.choice([0, 1, 5, 10, 30, -25, -40])
        at = START + timedelta(seconds=seconds, milliseconds=rng.choice([0, 0, 7]))
        rows.append(
            {
                "k": None if rng.random() < nulls else rng.choice(["a", "b", "", "é"]),
                "k2": None if rng.random() < nulls else rng.choice([1, 2, -3]),
                "t": at.isoformat(),
                "v": rng.randint(-5, 300),
                "x": rng.choice([0.5, -0.0, 1e300, 3.0]),
                "n": {"a": rng.randint(0, 3), "b": [rng.choice("xyz")] * rng.randint(0, 2)},
            }
        )
    path = folder / f"{number:04d}.json"
    hidden = folder / f".{number:04d}.json"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(hidden, (1_700_000_000 + number, 1_700_000_000 + number))
    hidden.rename(path)


def processor_of(case: Case) -> Any:
    """Return the processor of a case.

    Its class is made here, so that it travels by value.
    """
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    # (Plain values: workers of Spark's own engine need not find the class of a case.)
    seed, mode, keys = case.seed, case.mode, tuple(case.keys)

    def pick(*parts: Any) -> int:
        return zlib.crc32(repr((seed, *parts)).encode())

    class Random(StatefulProcessor):
        def init(self, handle: Any) -> None:
            lives = mode == "processingTime" and pick("ttl") % 2
            ttl = 3_600_000 if lives else None
            self.handle = handle
            self.value = handle.getValueState(
                "value",
                "n BIGINT, s STRING, d DOUBLE, at TIMESTAMP, inner STRUCT<a: INT, b: ARRAY<STRING>>",
                ttl,
            )
            self.list = handle.getListState("list", "n INT, m MAP<STRING, INT>", ttl)
            self.map = handle.getMapState("map", "s STRING, i INT", "n BIGINT", ttl)
            self.short = None
            if mode == "processingTime":
                self.short = handle.getValueState("short", "n INT", 1)

        def close(self) -> None:
            super().close()

        # -- what both forms do ---------------------------------------------------------------

        def out(self, key: Any, what: str, times: Any, numbers: Any = (), inner: Any = None) -> Any:
            named = dict(zip(keys, key, strict=True))
            return Row(
                what=what,
                numbers=list(numbers),
                k=named.get("k"),
                k2=named.get("k2"),
                wm=times.getCurrentWatermarkInMs(),
                inner=inner,
            )

        def with_row(
            self, key: Any, at: int, v: int, x: float, a: int, b: Any, times: Any
        ) -> Iterator[Any]:
            for turn in range(2):
                choice = pick("row", v, a, turn) % 12
                if choice == 0:
                    before = self.value.get()
                    count = 0 if before is None or before[0] is None else before[0]
                    when = datetime.fromtimestamp(at / 1000)
                    self.value.update((count + v, f"s{v}", x, when, Row(a=a, b=list(b))))
                    yield self.out(key, f"value {before}", times, [count])
                elif choice == 1:
                    self.value.update((None, None, None, None, None))
                    yield self.out(key, f"nulls {self.value.exists()}", times)
                elif choice == 2:
                    self.value.clear()
                    yield self.out(key, f"cleared {self.value.exists()} {self.value.get()}", times)
                elif choice == 3:
                    self.list.appendValue((v, {"x": a}))
                elif choice == 4:
                    self.list.appendList([(v, None), (None, {"y": v})])
                    yield self.out(
                        key, "list", times, [n for n, _ in self.list.get() if n is not None]
                    )
                elif choice == 5:
                    kept = list(self.list.get())[-3:]
                    if kept:
                        self.list.put(kept)
                    yield self.out(key, f"kept {kept} {self.list.exists()}", times)
                elif choice == 6:
                    self.list.clear()
                elif choice == 7:
                    self.map.updateValue((f"{'m' * (v % 3)}", v % 300), (v,))
                    yield self.out(key, f"map {list(self.map.keys())}", times)
                elif choice == 8:
                    for k, n in self.map.iterator():
                        if n[0] % 2:
                            self.map.removeKey(k)
                    found = self.map.getValue(("", v % 300))
                    yield self.out(key, f"get {found} {self.map.containsKey(('m', 1))}", times)
                elif choice == 9:
                    yield self.out(
                        key,
                        f"all {list(self.map.values())} {self.map.exists()}",
                        times,
                        inner=Row(a=len(list(self.map.keys())), b="x"),
                    )
                elif mode == "eventTime":
                    self.handle.registerTimer(at + 1000 * (pick("t", v, turn) % 60 - 20))
                    yield self.out(key, f"timers {sorted(self.handle.listTimers())}", times)
                elif mode == "processingTime":
                    past = pick("p", v) % 2
                    self.handle.registerTimer(1000 + v if past else 4_000_000_000_000 + v)
                    yield self.out(key, f"timers {sorted(self.handle.listTimers())}", times)

        def expired(self, key: Any, at: int, times: Any) -> Iterator[Any]:
            if not hasattr(key, "asDict"):
                raise AssertionError("the key of a timer is a Row")
            choice = pick("timer", at % 977, tuple(key)) % 5
            yield self.out(key, f"expired {at} {sorted(self.handle.listTimers())}", times)
            if choice == 0:
                self.list.clear()
                self.value.clear()
            elif choice == 1:
                for other in list(self.handle.listTimers()):
                    self.handle.deleteTimer(other)
            elif choice == 2 and at % 7 and mode == "eventTime":
                self.handle.registerTimer(at + 7_000 - at % 7)
            elif choice == 3 and mode == "eventTime" and at % 11:
                self.handle.registerTimer(at - at % 11 - 11_000)

    if case.pandas:
        import pandas as pd

        names = ["k", "k2", "what", "wm", "numbers", "inner"]

        class InPandas(Random):
            def frame(self, rows: Any) -> Any:
                return pd.DataFrame([[row[name] for name in names] for row in rows], columns=names)

            def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
                for frame in rows:
                    ordered = frame.sort_values(["t", "v", "x"], kind="stable")
                    for t, v, x, n in ordered[["t", "v", "x", "n"]].itertuples(index=False):
                        at = int(t.tz_localize("UTC").value // 1_000_000)
                        a, b = n["a"], n["b"]
                        found = list(self.with_row(key, at, int(v), x, int(a), b, timerValues))
                        if found:
                            yield self.frame(found)

            def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
                found = list(self.expired(key, expiredTimerInfo.getExpiryTimeInMs(), timerValues))
                return iter([self.frame(found)])

        return InPandas()

    class InRows(Random):
        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            for row in sorted(rows, key=lambda row: (row.t, row.v, row.x)):
                at = int(row.t.timestamp() * 1000)
                yield from self.with_row(key, at, row.v, row.x, row.n["a"], row.n["b"], timerValues)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            return self.expired(key, expiredTimerInfo.getExpiryTimeInMs(), timerValues)

    return InRows()
