"""What the world outside has seen: each delivery, by sink and id. Imports nothing of the package.

It behaves as an idempotent system does: what comes again under an id that it knows has no effect, and must
be the same.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

Row = tuple[Any, ...]
#: How often each row has had an effect, by sink.
Effects = dict[str, Counter[Row]]


class WrongEffect(Exception):
    """Something was delivered that must not have been."""


class Recorder:
    """Remembers what sinks were given.

    Attributes:
        repeated: how often a delivery came again.
    """

    def __init__(self) -> None:
        self.repeated = 0
        self._claimed: dict[int, int] = {}
        self._codes: dict[tuple[str, int], list[int]] = {}
        self._known: dict[str, dict[int, list[Row]]] = {}
        self._newest: dict[str, int] = {}

    def claimed(self, epoch: int, now_us: int) -> None:
        """Learn that a driver has claimed the pipeline, by now at the latest."""
        self._claimed.setdefault(epoch, now_us)

    def begins(self, sink: str, epoch: int, now_us: int, fresh_us: int) -> None:
        """Learn that a driver begins to deliver.

        Raises:
            WrongEffect: when another one has claimed the pipeline before its last look who leads.
        """
        later = [at for other, at in self._claimed.items() if other > epoch]
        if later and now_us > min(later) + fresh_us:
            raise WrongEffect(f"{sink}: a driver delivers that was overtaken long ago")

    def coded(self, sink: str, id_: int, codes: list[int]) -> None:
        """Learn by which code the rows of a delivery are told.

        Raises:
            WrongEffect: when they came by another one before.
        """
        if self._codes.setdefault((sink, id_), codes) != codes:
            raise WrongEffect(f"{sink}: delivery {id_} came again from other code")

    def deliver(self, sink: str, id_: int, rows: list[Row]) -> None:
        """Take a delivery.

        Raises:
            WrongEffect: for other rows under a known id, or an unknown id that is lower than a known one.
        """
        known = self._known.setdefault(sink, {})
        if id_ in known:
            if known[id_] != rows:
                raise WrongEffect(f"{sink}: delivery {id_} came again as other rows")
            self.repeated += 1
            return
        if id_ < self._newest.get(sink, -1):
            raise WrongEffect(
                f"{sink}: delivery {id_} is new, and comes after {self._newest[sink]}"
            )
        self._newest[sink] = id_
        known[id_] = rows

    def effects(self, up_to: float = float("inf"), after: float = float("-inf")) -> Effects:
        """Return how often each row has had an effect, by sink; of deliveries with some ids."""
        return {
            sink: Counter(
                row for id_, rows in steps.items() if after < id_ <= up_to for row in rows
            )
            for sink, steps in self._known.items()
        }

    def deliveries(self, sink: str) -> dict[int, list[Row]]:
        """Return what a sink was given, by id."""
        return self._known.get(sink, {})


def differences(expected: Effects, found: Effects) -> list[str]:
    """Return what was lost, and what was there once too often, or never meant to be."""
    lines = []
    for sink in sorted({*expected, *found}):
        wanted, had = expected.get(sink, Counter()), found.get(sink, Counter())
        for row, count in sorted((wanted - had).items()):
            lines.append(f"{sink}: {row} is missing {count} times")
        for row, count in sorted((had - wanted).items()):
            lines.append(f"{sink}: {row} came {count} times too often")
    return lines
