"""What all kinds of events have in common: each column is made on its own, when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from headrace.nexmark.draws import I64, Bits, Draws, hit, scaled
from headrace.nexmark.timeline import AUCTIONS, PEOPLE, ROUND, Kind, Timeline

TIME = pa.timestamp("us", tz="UTC")
FIRST_PERSON, FIRST_AUCTION, FIRST_CATEGORY = 1_000, 1_000, 10
CATEGORIES = 5
#: Sellers and bidders are among the newest people, this many.
_ACTIVE_PEOPLE = 1_000
#: A reference may be to one of this many people or auctions that are still to come.
_LEAD = 10
#: After this many of a kind, another one becomes hot.
_HOT_BATCH = 100
#: A price is 100 times 10^x, with x uniform from 0 to ``_PRICE_DIGITS``. A table has the prices at
#: 2^``_PRICE_BITS`` equal steps of x; between them prices are interpolated linearly. Its unit is
#: 1/``_CENT`` of a cent.
_PRICE_DIGITS, _PRICE_BITS, _CENT = 6, 12, 256


class EventColumns:
    """A range of the events of one kind.

    Args:
        timeline: the parameters.
        first, last: the range, counted within the kind from 0; ``last`` is not included.

    Attributes:
        numbers: the event numbers.
        times_us: the event times.
    """

    kind: ClassVar[Kind]
    schema: ClassVar[pa.Schema]

    def __init__(self, timeline: Timeline, first: int, last: int) -> None:
        self.timeline = timeline
        self.first, self.last = first, last
        self.numbers = timeline.numbers(self.kind, first, last)
        self.times_us: I64 = timeline.times_us(self.numbers)
        self._draws = Draws(timeline.seed)

    def table(self, names: Sequence[str]) -> pa.Table:
        """Return some columns. The others are not made."""
        fields = [self.schema.field(name) for name in names]
        return pa.table([self._column(name) for name in names], schema=pa.schema(fields))

    def _column(self, name: str) -> pa.Array:
        make: Callable[[], Any] = getattr(self, f"make_{name}")
        made = make()
        return made if isinstance(made, pa.Array) else pa.array(made)

    def make_event(self) -> I64:
        """Return the event numbers, which order all events, even those at the same time."""
        return self.numbers

    def make_date_time(self) -> pa.Array:
        """Return the event times."""
        return pa.array(self.times_us).cast(TIME)

    # -- random values, field by field --------------------------------------------------------

    def _bits(self, field: str) -> Bits:
        return self._draws.bits(f"{self.kind} {field}", self.first, self.last)

    def _below(self, bound: Any, field: str) -> I64:
        return scaled(self._bits(field), bound)

    def _texts(self, field: str, mean: int, spread: int, *, blanks: bool = False) -> pa.Array:
        return self._draws.texts(
            f"{self.kind} {field}", self.first, self.last, mean=mean, spread=spread, blanks=blanks
        )

    def _prices(self, field: str) -> I64:
        """Return prices in cents, from 100 to 100 000 000, uniform in their logarithm."""
        bits = self._bits(field)
        step = (bits >> np.uint64(64 - _PRICE_BITS)).astype(np.int64)
        share = (bits & np.uint64(0xFFFF_FFFF)).astype(np.int64)
        table = _price_table()
        low, high = table[step], table[step + 1]
        prices: I64 = (low + ((high - low) * share >> 32) + _CENT // 2) // _CENT
        return prices

    def _people(self, field: str, ratio: int, hot: int) -> I64:
        """Return a person for each event: the hot one, or any active one.

        The hot one is at place ``hot`` of its batch.
        """
        bits = self._bits(field)
        newest = self.numbers // ROUND
        active = np.minimum(newest + 1, _ACTIVE_PEOPLE)
        any_one = newest + 1 - active + scaled(bits, active + _LEAD)
        return FIRST_PERSON + np.where(hit(bits, ratio), hot_of(newest) + hot, any_one)

    def _open_auctions(self, field: str, ratio: int) -> I64:
        """Return an auction for each event: the hot one, or any that is open or soon to come."""
        bits = self._bits(field)
        rounds, rest = np.divmod(self.numbers, ROUND)
        newest = rounds * AUCTIONS + np.minimum(rest - PEOPLE, AUCTIONS - 1)
        oldest = np.maximum(newest - self.timeline.in_flight, 0)
        any_one = oldest + scaled(bits, newest - oldest + 1 + _LEAD)
        return FIRST_AUCTION + np.where(hit(bits, ratio), hot_of(newest), any_one)


def not_null(columns: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return a schema whose columns always have a value."""
    return pa.schema([pa.field(name, of, nullable=False) for name, of in columns.items()])


def hot_of(newest: I64) -> I64:
    """Return the first one of each batch."""
    return newest // _HOT_BATCH * _HOT_BATCH


@lru_cache(maxsize=1)
def _price_table() -> I64:
    """Return prices at equal steps of their logarithm.

    They are computed in decimals, so they are the same on every machine.
    """
    steps = 1 << _PRICE_BITS
    with localcontext() as context:
        context.prec = 28
        ratio = Decimal(10) ** (Decimal(_PRICE_DIGITS) / steps)
        prices = [Decimal(100 * _CENT)]
        for _ in range(steps):
            prices.append(prices[-1] * ratio)
        return np.array([int(price.to_integral_value()) for price in prices], dtype=np.int64)
