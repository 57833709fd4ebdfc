"""A load that waits for nothing: readings at a constant rate, by the clock."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
from pipeline import Reading

import headrace as hr
from headrace.pipeline.source import Limit, Offer, Position, Split
from headrace.schema import ValueType, value_type_of
from headrace.schema.reserved import TIMESTAMP_COLUMN

#: A prime above the number of meters. It spreads the meters, so they do not report in numerical
#: order.
PRIME = 982_451_653


class Readings(hr.sources.Source):
    """A source whose reading *n* is due *n / rate* seconds after the first; meters take turns.

    The content of a reading follows from its number, so it can be read again and checked. A
    position is the number of the next reading, and the time at which the first one was due.

    Args:
        meters: the number of meters.
        rate: readings a second, of all meters together.
    """

    bounded = False

    def __init__(self, meters: int, rate: int) -> None:
        self._meters = meters
        self._rate = rate
        self._begun_us = 0
        self._stopped_us = 0

    def stop(self) -> None:
        """End the input after what is due by now."""
        self._stopped_us = time.time_ns() // 1_000

    def values(self) -> ValueType:
        return value_type_of(Reading)

    def start(self) -> Position:
        return [0, 0]

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        now_us = self._stopped_us or time.time_ns() // 1_000
        number, begun_us = position
        self._begun_us = begun_us or self._begun_us or now_us
        due = (now_us - self._begun_us) * self._rate // 1_000_000
        rows = max(0, min(due - number, limit.rows))
        final = bool(self._stopped_us) and number + rows >= due
        if not rows and not final:
            return None
        return Offer([number + rows, self._begun_us], rows, rows * 24, final=final, empty=not rows)

    def splits(self, start: Position, end: Position) -> list[Split]:
        return [Split([start[0], *end])]

    def read(self, split: Split) -> pa.Table:
        first, last, begun_us = map(int, split.spec)
        numbers = np.arange(first, last)
        times = begun_us + numbers * 1_000_000 // self._rate
        return pa.table({TIMESTAMP_COLUMN: times, **self.says(numbers)})

    def says(self, numbers: Any) -> dict[str, Any]:
        """Return the contents of readings, given their numbers."""
        return {"meter": numbers * PRIME % self._meters, "watt_hours": numbers % 97 + 1}
