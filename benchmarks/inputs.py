"""Inputs of the benchmarks: files of uniform keys, and sources that make records from numbers.

Some sources first bring every key once, to fill the state, and then touch a part of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr
from headrace.nexmark.pace import Pace
from headrace.nexmark.timeline import cut
from headrace.pipeline.source import Limit, Offer, Position, Split
from headrace.schema import ValueType, value_type_of
from headrace.schema.reserved import TIMESTAMP_COLUMN

BLOCK = 1_000_000
#: A prime above all numbers of keys. Consecutive multiples of it, modulo the number of keys, are
#: each key once.
_PRIME = 982_451_653


def write_input(folder: Path, files: int, rows: int, keys: int, first: int = 0) -> None:
    """Write Parquet files of (key, at): uniform keys, two row groups a file, at ascending times.

    Args:
        first: the time of the first record, in microseconds since 1970.
    """
    random = np.random.default_rng(7)
    blocks = (random.integers(0, keys, rows) for _ in range(files))
    _write_files(folder, "part", blocks, first)


def write_fill(folder: Path, rows: int, keys: int) -> int:
    """Write files that come before those of :func:`write_input`: every key once, scattered.

    Returns:
        The number of files.
    """
    starts = range(0, keys, rows)
    blocks = (np.arange(at, min(at + rows, keys)) * _PRIME % keys for at in starts)
    _write_files(folder, "fill", blocks, 0)
    return len(starts)


def _write_files(folder: Path, name: str, blocks: Iterable[Any], first: int) -> None:
    for number, keys in enumerate(blocks):
        times = pa.array(np.arange(first, first + len(keys))).cast(pa.timestamp("us", tz="UTC"))
        pq.write_table(
            pa.table({"key": keys, "at": times}),
            folder / f"{name}-{number:05d}.parquet",
            row_group_size=-(-len(keys) // 2),
            compression="zstd",
        )
        first += len(keys)


class FilledThenPaced(hr.sources.Source):
    """Each key once, as fast as possible; then records by the clock.

    The clock starts when all keys are there.

    Args:
        pace: when these records are due.
        keys: the number of keys, which are 0 and up.
        tasks: how many tasks read a step in parallel.
    """

    bounded = False

    def __init__(self, pace: Pace, keys: int, *, tasks: int = 1) -> None:
        self._pace, self._keys, self._tasks = pace, keys, tasks

    def values(self) -> ValueType:
        return value_type_of({"key": int})

    def start(self) -> Position:
        return 0

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        filled = position >= self._keys
        there = self._keys + (self._pace.due() if filled else 0)
        rows = min(there - position, limit.rows)
        return Offer(position + rows, rows, rows * 16) if rows > 0 else None

    def splits(self, start: Position, end: Position) -> list[Split]:
        begin = self._pace.begin_us if end > self._keys else 0
        parts = cut(start, end, self._tasks)
        return [Split([first, last, begin]) for first, last in parts if last > first]

    def read(self, split: Split) -> pa.Table:
        first, last, begin = split.spec
        numbers = np.arange(first, last)
        drawn = np.random.default_rng(first).integers(0, self._keys, last - first)
        times = begin + np.maximum(numbers - self._keys, 0) * 1_000_000 // self._pace.rate
        keys = np.where(numbers < self._keys, numbers, drawn)
        return pa.table({TIMESTAMP_COLUMN: times, "key": keys})


class Filled(hr.sources.Source):
    """Every key once, in steps of a million; then, without end, few records on few of the keys.

    Args:
        keys: the number of keys, which are 0 and up.
        rows: records a step, once all keys are there.
        touched: the number of different keys of these records, spread over all keys.
        turning: whether every step touches other keys, as long as there are others.
    """

    bounded = True

    def __init__(self, keys: int, rows: int, touched: int, *, turning: bool = False) -> None:
        self._keys, self._rows, self._turning = keys, rows, turning
        self._touched = min(touched, keys)

    @property
    def fill_steps(self) -> int:
        """The number of steps until all keys are there."""
        return -(-self._keys // BLOCK)

    def values(self) -> ValueType:
        return value_type_of({"key": int})

    def start(self) -> Position:
        return 0

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        rows = min(BLOCK, self._keys - position) if position < self._keys else self._rows
        return Offer(position + rows, rows, rows * 16)

    def splits(self, start: Position, end: Position) -> list[Split]:
        middle = (start + end) // 2
        return [Split([start, middle]), Split([middle, end])]

    def read(self, split: Split) -> pa.Table:
        first, last = split.spec
        numbers = np.arange(first, last)
        keys = numbers if first < self._keys else self._some_keys(first, last)
        return pa.table({TIMESTAMP_COLUMN: numbers, "key": keys})

    def _some_keys(self, first: int, last: int) -> Any:
        apart = self._keys // self._touched
        turn = (first - self._keys) // self._rows % apart if self._turning else 0
        drawn = np.random.default_rng(first).integers(0, self._touched, last - first)
        return drawn * apart + turn


class Paired(Filled):
    """The same records with a second field that is another key; each key has its own other key."""

    def values(self) -> ValueType:
        return value_type_of({"key": int, "other": int})

    def read(self, split: Split) -> pa.Table:
        table = super().read(split)
        other = self._keys - 1 - table.column("key").to_numpy()
        return table.append_column("other", pa.array(other))
