"""A source with partitions that brings what a test wrote down, round by round, and a clock with it."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pyarrow as pa

from headrace.driver.driver import Clock
from headrace.pipeline.source import Limit, Offer, Part, Position, Source, Split
from headrace.schema import ValueType, value_type_of
from headrace.schema.reserved import TIMESTAMP_COLUMN


class Said(msgspec.Struct, frozen=True):
    """A record of a script."""

    key: str
    at: int


class Round(msgspec.Struct, frozen=True):
    """What happens between two polls.

    Attributes:
        records: what comes, by partition.
        promises: up to where partitions say that they are complete.
        ended: partitions that end.
        now: the clock reading, in microseconds; None: it stands still.
    """

    records: dict[str, list[Said]] = {}
    promises: dict[str, int] = {}
    ended: frozenset[str] = frozenset()
    now: int | None = None


class HandClock(Clock):
    """A clock that stands still unless it is moved; waiting takes no time."""

    def __init__(self, now: int = 0) -> None:
        self.now = now

    def now_us(self) -> int:
        return self.now

    def wait_until(self, until_us: int, woken: threading.Event) -> None:
        pass


class PassingClock(HandClock):
    """A clock that waiting moves, and nothing else."""

    def wait_until(self, until_us: int, woken: threading.Event) -> None:
        self.now = max(self.now, until_us)


class Script(Source):
    """Brings one round a poll, and then ends. What is not taken in its round waits."""

    partitioned = promises = holds_back = True

    def __init__(self, rounds: list[Round], clock: HandClock | None = None) -> None:
        self._rounds = rounds
        self._clock = clock
        self._polls = 0
        self.waiting: list[int] = []

    def values(self) -> ValueType:
        return value_type_of(Said)

    def start(self) -> Position:
        return {}

    def _so_far(self) -> tuple[dict[str, list[Said]], dict[str, Part]]:
        records: dict[str, list[Said]] = {}
        parts: dict[str, Part] = {}
        for round_ in self._rounds[: self._polls]:
            for name, more in round_.records.items():
                records.setdefault(name, []).extend(more)
            for name in {*round_.records, *round_.promises, *round_.ended}:
                before = parts.get(name, Part())
                parts[name] = Part(
                    before.final or name in round_.ended,
                    round_.promises.get(name, before.promise_us),
                )
        return records, parts

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        if self._polls < len(self._rounds):
            now = self._rounds[self._polls].now
            if now is not None and self._clock is not None:
                self._clock.now = now
        self._polls += 1
        records, parts = self._so_far()
        end = dict(position)
        for name, there in records.items():
            if name not in limit.paused:
                end[name] = min(len(there), position.get(name, 0) + limit.rows)
        rows = sum(end.values()) - sum(position.values())
        left = sum(map(len, records.values())) - sum(end.values())
        self.waiting.append(left)
        final = self._polls > len(self._rounds) and not left
        return Offer(end, rows, rows * 32, final=final, empty=not rows, parts=parts)

    def splits(self, start: Position, end: Position) -> list[Split]:
        records, _ = self._so_far()
        return [
            Split(
                [name, start.get(name, 0), upto],
                data=_table(records[name][start.get(name, 0) : upto]),
                place=f"partition {name}",
                partition=name,
            )
            for name, upto in sorted(end.items())
            if upto > start.get(name, 0)
        ]

    def read(self, split: Split) -> pa.Table:
        return pa.ipc.open_stream(split.data).read_all()


def _table(said: list[Said]) -> bytes:
    columns: dict[str, Any] = {
        TIMESTAMP_COLUMN: pa.array([item.at for item in said], pa.int64()),
        "key": pa.array([item.key for item in said], pa.string()),
        "at": pa.array([item.at for item in said], pa.int64()),
    }
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
