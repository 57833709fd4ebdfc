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
#: Of each key, and window, how many there were and their sum.
Sums = dict[tuple[int, int], list[int]]
#: The windows of what windows tell are so many times as wide.
LATER = 3
#: Before all times; and after all times, where nothing comes any more.
BEGIN, END = -1 << 63, (1 << 63) - 1


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


@dataclass
class Computed:
    """What has become of some input.

    Attributes:
        rows: what counting has told of each record.
        state: of each key how many records there were, and their sum.
        windows, groups: of each key, and window, how many there were and their sum.
    """

    rows: Counter[Row]
    state: dict[int, tuple[int, int]]
    windows: Sums
    groups: Sums


def computed(partitions: dict[str, list[Sent]], program: Program) -> Computed:
    """Compute what becomes of some input."""
    found = Computed(Counter(), {}, defaultdict(lambda: [0, 0]), defaultdict(lambda: [0, 0]))
    seen: set[str] = set()
    for records in partitions.values():
        for record in records:
            if record.id in seen:
                continue
            seen.add(record.id)
            number, total = found.state.get(record.key, (0, 0))
            number, total = number + 1, total + record.amount
            found.state[record.key] = number, total
            group = number % program.groups
            found.rows[record.key, record.time, number, total, group] += 1
            window = record.time // program.width
            _add(found.windows[record.key, window], record.amount)
            _add(found.groups[group, window], number)
    return found


def later_windows(windows: Sums, width: int, mark: int) -> Sums:
    """Return the wider windows of what is told of those that are over, by how many records these had."""
    found: Sums = defaultdict(lambda: [0, 0])
    for (_, window), (count, total) in windows.items():
        end = (window + 1) * width
        if end <= mark:
            _add(found[count, end // (LATER * width)], total)
    return found


def expected(partitions: dict[str, list[Sent]], program: Program) -> dict[str, Counter[Row]]:
    """Return how often each row is to have its effect, by sink; rows are (key, time, values …)."""
    of = computed(partitions, program)
    found = {
        "counts": of.rows,
        "windows": Counter(_told(of.windows, program.width)),
        "groups": Counter(_told(of.groups, program.width)),
        "later": Counter(
            _told(later_windows(of.windows, program.width, END), LATER * program.width)
        ),
    }
    return {sink: found[sink] for sink in program.sinks if sink in found}


def read_of(partitions: dict[str, list[Sent]], read: dict[str, int]) -> dict[str, list[Sent]]:
    """Return what was read of each partition."""
    return {name: records[: read.get(name, 0)] for name, records in partitions.items()}


def open_windows(sums: Sums, width: int, mark: int) -> Sums:
    """Return the windows that are not over where a watermark is."""
    return {at: of for at, of in sums.items() if (at[1] + 1) * width > mark}


def watermark(
    partitions: dict[str, list[Sent]], read: dict[str, int], disorder: int, *, over: bool
) -> int:
    """Return up to where the input is complete, as far as it was read.

    Args:
        partitions: what is sent.
        read: how much of it was read.
        disorder: how far records of a partition are out of order.
        over: whether a partition that was read whole is known to have no more.
    """
    marks: list[int] = []
    for name, records in partitions.items():
        count = read.get(name, 0)
        if over and count == len(records):
            continue
        times = [record.time - disorder for record in records[:count]]
        marks.append(max(times, default=BEGIN))
    return min(marks, default=END)


def _add(sums: list[int], amount: int) -> None:
    sums[0] += 1
    sums[1] += amount


def _told(sums: Sums, width: int) -> list[Row]:
    return [(key, (window + 1) * width, *of) for (key, window), of in sums.items()]
