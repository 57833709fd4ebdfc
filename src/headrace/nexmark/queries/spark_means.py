"""State that queries 4 and 6 keep by hand in plain PySpark.

In PySpark only windows can follow an aggregation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle


class RunningMean(StatefulProcessor):  # type: ignore[misc]
    """The mean of all prices of a category so far, produced after each batch that has some."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._sums = handle.getValueState("sums", "total bigint, count bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        total, count = self._sums.get() or (0, 0)
        for row in rows:
            total, count = total + row.price, count + 1
        self._sums.update((total, count))
        yield Row(key=key[0], average=total / count)

    def close(self) -> None:
        """Do nothing."""


class MeanOfLast(StatefulProcessor):  # type: ignore[misc]
    """The mean of a seller's last prices, produced at each price.

    Prices are in the order of closing times, then of auction numbers.

    Args:
        many: the number of prices.
    """

    def __init__(self, many: int) -> None:
        self._many = many

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._prices = handle.getValueState("prices", "last array<bigint>")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        known = self._prices.get()
        last = list(known[0]) if known else []
        for row in sorted(rows, key=lambda row: (row.expires, row.id)):
            last = [*last[1 - self._many :], row.price]
            yield Row(key=key[0], auction=row.id, average=sum(last) / len(last))
        self._prices.update((last,))

    def close(self) -> None:
        """Do nothing."""
