"""Processors made by chance do on Headrace what they do in PySpark's own ``TwsTester``.

The tester has no partitions and no types, processes key by key, and sorts some things otherwise than
Spark's engine. So these processors sort what they yield, and set timers after the watermark alone.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import pandas as pd
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.tws_tester import TwsTester

import headrace as hr

START = datetime(2024, 1, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
DELAY_MS = 5_000


class Hit(msgspec.Struct):
    user: str
    n: int
    at: datetime


class Case(NamedTuple):
    """What is tried: everything follows from the seed."""

    seed: int
    mode: str
    in_pandas: bool
    steps: list[list[Hit]]


def case_of(seed: int) -> Case:
    rng = random.Random(seed)
    mode = rng.choice(["none", "processingTime", "eventTime"])
    steps = [
        [
            Hit(
                rng.choice("abcdé"),
                rng.randint(0, 200),
                START + timedelta(seconds=number * 10 + rng.randint(-12, 9)),
            )
            for _ in range(rng.randint(1, 12))
        ]
        for number in range(1, rng.randint(3, 7))
    ]
    return Case(seed, mode, rng.random() < 0.3, steps)


class Chance(StatefulProcessor):
    """Does with a row what follows from the seed and the row."""

    def __init__(self, seed: int, mode: str) -> None:
        self._seed, self._mode = seed, mode

    def pick(self, *parts: Any) -> int:
        return zlib.crc32(repr((self._seed, *parts)).encode())

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", "n BIGINT, s STRING, xs ARRAY<INT>")
        self.list = handle.getListState("list", "n INT, m MAP<STRING, INT>")
        self.map = handle.getMapState("map", "s STRING, i INT", "n BIGINT")

    def close(self) -> None:
        pass

    def with_row(self, key: str, n: int, at_ms: int) -> Iterator[Row]:
        for turn in range(3):
            kind, choice = divmod(self.pick(n, turn) % 12, 3)
            if kind == 0:
                yield from self.with_value(key, choice, n, turn)
            elif kind == 1:
                yield from self.with_list(key, choice, n, turn)
            elif kind == 2:
                yield from self.with_map(key, choice, n, turn)
            elif self._mode != "none":
                base = at_ms if self._mode == "eventTime" else START_MS + 60_000
                self.handle.registerTimer(base + 20_000 + 1_000 * (self.pick("t", n, turn) % 40))
                if choice == 0:
                    self.handle.deleteTimer(min(self.handle.listTimers()))
                yield self.said(key, "timers", sorted(self.handle.listTimers()))

    def with_value(self, key: str, choice: int, n: int, turn: int) -> Iterator[Row]:
        if choice == 0:
            self.value.clear()
        else:
            before = self.value.get()
            self.value.update(((before[0] if before else 0) + n, f"s{n}", [n, turn]))
            yield self.said(key, "value", before)
        yield self.said(key, "value", self.value.exists(), self.value.get())

    def with_list(self, key: str, choice: int, n: int, turn: int) -> Iterator[Row]:
        if choice == 0:
            self.list.appendValue((n, {"x": turn}))
        elif choice == 1:
            self.list.appendList([(n, None), (turn, {"y": n})])
        elif self.list.exists() and n % 5:
            self.list.put(list(self.list.get())[-3:])
        else:
            self.list.clear()
        yield self.said(key, "list", list(self.list.get()), self.list.exists())

    def with_map(self, key: str, choice: int, n: int, turn: int) -> Iterator[Row]:
        if choice < 2:
            self.map.updateValue(("m" * (n % 3), n), (n + turn,))
        elif n % 7 == 0:
            self.map.clear()
        else:
            for entry, value in list(self.map.iterator()):
                if value[0] % 2:
                    self.map.removeKey(entry)
        found = self.map.getValue(("m", n))
        yield self.said(key, "map", found and found[0], self.map.containsKey(("", n)))
        yield self.said(key, "all", sorted(self.map.iterator()), sorted(self.map.values()))

    def expired(self, key: str, at_ms: int) -> Iterator[Row]:
        choice = self.pick("expired", at_ms) % 4
        yield self.said(key, "expired", at_ms, self.value.get(), len(list(self.list.get())))
        if choice == 0:
            self.value.clear()
        elif choice == 1:
            self.list.appendValue((at_ms % 1_000, None))
        elif choice == 2:
            self.handle.registerTimer(at_ms + 300_000)

    def said(self, key: str, *what: Any) -> Row:
        return Row(what=f"{key}: {' '.join(map(str, what))}")


class InRows(Chance):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield from self.with_row(key[0], row.n, int(row.at.timestamp() * 1000))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        return self.expired(key[0], expiredTimerInfo.getExpiryTimeInMs())


class InFrames(Chance):
    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            for n, at in frame[["n", "at"]].itertuples(index=False):
                found = list(self.with_row(key[0], int(n), at.value // 1_000_000))
                yield pd.DataFrame({"what": [row.what for row in found]})

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        found = list(self.expired(key[0], expiredTimerInfo.getExpiryTimeInMs()))
        yield pd.DataFrame({"what": [row.what for row in found]})


def processor_of(case: Case) -> Chance:
    return (InFrames if case.in_pandas else InRows)(case.seed, case.mode)


def clock_of(number: int) -> datetime:
    return START + timedelta(seconds=60 + 15 * number)


def on_headrace(case: Case) -> list[list[str]]:
    """Return what Headrace yields in each step, sorted."""
    p = hr.Pipeline("t")
    source = hr.sources.Iterable(list, type=Hit, event_time="at")
    hits = p.inject("hits", source, watermark=hr.spark(timedelta(milliseconds=DELAY_MS)))
    made = hr.spark.stateful_processor(
        hits,
        "user",
        processor_of(case),
        "what STRING",
        "Update",
        case.mode,
        name="made",
        in_pandas=case.in_pandas,
    )
    p.sink("out", made, hr.sinks.Calls(lambda step, rows: None))
    found = []
    with hr.testing.drive(p, clock=START) as t:
        for number, hits_of_step in enumerate(case.steps):
            t.clock(clock_of(number))
            t.push_many("hits", hits_of_step)
            t.step()
            found.append(sorted(row.value.what for row in t.outputs("made.rows")))
    return found


def in_tester(case: Case) -> list[list[str]]:
    """Return what the tester yields for each step, sorted."""
    tester = TwsTester(
        processor_of(case),
        timeMode=case.mode,
        eventTimeExtractor=lambda row: int(row["at"].timestamp() * 1000),
    )
    highest = watermark = 0
    found = []
    for number, hits in enumerate(case.steps):
        said: list[str] = []
        for user in sorted({hit.user for hit in hits}):
            rows = [hit for hit in hits if hit.user == user]
            said += of_tester(tester, user, rows, in_pandas=case.in_pandas)
        fired: Any = []
        if case.mode == "eventTime" and highest - DELAY_MS > watermark:
            watermark = highest - DELAY_MS
            fired = tester.setWatermark(watermark)
        elif case.mode == "processingTime":
            fired = tester.setProcessingTime(int(clock_of(number).timestamp() * 1000))
        said += texts(fired)
        highest = max([highest, *(int(hit.at.timestamp() * 1000) for hit in hits)])
        found.append(sorted(said))
    return found


def of_tester(tester: TwsTester, user: str, hits: list[Hit], *, in_pandas: bool) -> list[str]:
    if not in_pandas:
        return texts(tester.test(user, [Row(user=h.user, n=h.n, at=h.at) for h in hits]))
    frame = pd.DataFrame([(h.user, h.n, h.at) for h in hits], columns=["user", "n", "at"])
    return texts(tester.testInPandas(user, frame))


def texts(results: Any) -> list[str]:
    if isinstance(results, pd.DataFrame):
        return [] if results.empty else results["what"].tolist()
    return [row.what for row in results]


@pytest.mark.parametrize("seed", range(50))
def test_processors_do_as_in_the_tester(seed: int) -> None:
    case = case_of(seed)
    expected = in_tester(case)
    assert on_headrace(case) == expected
    assert sum(map(len, expected))
