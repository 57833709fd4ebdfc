"""What the simulated pipeline must have done to the world, from its input alone.

It imports nothing of the package. Nothing here depends on how the input is divided into steps: counting
goes key by key in the order of the key's one partition, windows are told of when they are over, and of
the copies of a record one counts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Sent:
    """A record as the outside sends it: a copy of one has its ``id``."""

    key: int
    amount: int
    time: int
    id: str


@dataclass(frozen=True)
class Program:
    """What the pipeline computes; see ``world.draw``.

    Attributes:
        sinks: which of its results there are.
    """

    width: int
    groups: int
    sinks: tuple[str, ...] = ("counts", "windows", "groups")


def expected(partitions: dict[str, list[Sent]], program: Program) -> dict[str, Counter[Row]]:
    """Return how often each row is to have its effect, by sink; rows are (key, time, values …)."""
    counts: Counter[Row] = Counter()
    windows: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    groups: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    seen: set[str] = set()
    state: dict[int, tuple[int, int]] = {}
    for records in partitions.values():
        for record in records:
            if record.id in seen:
                continue
            seen.add(record.id)
            number, total = state.get(record.key, (0, 0))
            number, total = number + 1, total + record.amount
            state[record.key] = number, total
            counts[record.key, record.time, number, total, number % program.groups] += 1
            window = record.time // program.width
            _add(windows[record.key, window], record.amount)
            _add(groups[number % program.groups, window], number)
    found = {
        "counts": counts,
        "windows": Counter(_told(windows, program.width)),
        "groups": Counter(_told(groups, program.width)),
    }
    return {sink: found[sink] for sink in program.sinks}


def counted(partitions: dict[str, list[Sent]], read: dict[str, int]) -> dict[int, tuple[int, int]]:
    """Return how many records of each key there are in what was read of each partition, and their sum."""
    state: dict[int, tuple[int, int]] = {}
    seen: set[str] = set()
    for name, records in partitions.items():
        for record in records[: read.get(name, 0)]:
            if record.id not in seen:
                seen.add(record.id)
                number, total = state.get(record.key, (0, 0))
                state[record.key] = number + 1, total + record.amount
    return state


def _add(sums: list[int], amount: int) -> None:
    sums[0] += 1
    sums[1] += amount


def _told(windows: dict[tuple[int, int], list[int]], width: int) -> list[Row]:
    return [(key, (window + 1) * width, *sums) for (key, window), sums in windows.items()]
