"""What the kinds of events have in common: columns that are made one by one, when they are asked for."""

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
#: Who is referred to is among so many people, the newest ones.
_ACTIVE_PEOPLE = 1_000
#: Some of what is referred to is still to come.
_LEAD = 10
#: What is hot is another one after so many of its kind.
_HOT_BATCH = 100
#: Prices are 100 times ten to the power of what is drawn below six: in so many equal steps, and along a
#: straight line between them. In the table they are in so many parts of a cent.
_PRICE_DIGITS, _PRICE_BITS, _CENT = 6, 12, 256


class EventColumns:
    """Some events of a kind, one after another.

    Args:
        timeline: the knobs.
        first, last: which of the kind, counted from 0; ``last`` is the first that is not among them.

    Attributes:
        numbers: their event numbers.
        times_us: when they are.
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
        """Return some columns; what is not asked for is not made."""
        fields = [self.schema.field(name) for name in names]
        return pa.table([self._column(name) for name in names], schema=pa.schema(fields))

    def _column(self, name: str) -> pa.Array:
        make: Callable[[], Any] = getattr(self, f"make_{name}")
        made = make()
        return made if isinstance(made, pa.Array) else pa.array(made)

    def make_event(self) -> I64:
        """Return the event numbers: they are the order of all events, also of those of one time."""
        return self.numbers

    def make_date_time(self) -> pa.Array:
        """Return when the events are."""
        return pa.array(self.times_us).cast(TIME)

    # -- drawn field by field -----------------------------------------------------------------

    def _bits(self, field: str) -> Bits:
        return self._draws.bits(f"{self.kind} {field}", self.first, self.last)

    def _below(self, bound: Any, field: str) -> I64:
        return scaled(self._bits(field), bound)

    def _texts(self, field: str, mean: int, spread: int, *, blanks: bool = False) -> pa.Array:
        return self._draws.texts(
            f"{self.kind} {field}", self.first, self.last, mean=mean, spread=spread, blanks=blanks
        )

    def _prices(self, field: str) -> I64:
        """Return prices in cents, from 100 to 100 000 000: as many of each order of magnitude."""
        bits = self._bits(field)
        step = (bits >> np.uint64(64 - _PRICE_BITS)).astype(np.int64)
        share = (bits & np.uint64(0xFFFF_FFFF)).astype(np.int64)
        table = _price_table()
        low, high = table[step], table[step + 1]
        prices: I64 = (low + ((high - low) * share >> 32) + _CENT // 2) // _CENT
        return prices

    def _people(self, field: str, ratio: int, hot: int) -> I64:
        """Return for each event a person: the hot one (at this place of its batch), or any active one."""
        bits = self._bits(field)
        newest = self.numbers // ROUND
        active = np.minimum(newest + 1, _ACTIVE_PEOPLE)
        any_one = newest + 1 - active + scaled(bits, active + _LEAD)
        return FIRST_PERSON + np.where(hit(bits, ratio), hot_of(newest) + hot, any_one)

    def _open_auctions(self, field: str, ratio: int) -> I64:
        """Return for each event an auction: the hot one, or any of those that are open or to come next."""
        bits = self._bits(field)
        rounds, rest = np.divmod(self.numbers, ROUND)
        newest = rounds * AUCTIONS + np.minimum(rest - PEOPLE, AUCTIONS - 1)
        oldest = np.maximum(newest - self.timeline.in_flight, 0)
        any_one = oldest + scaled(bits, newest - oldest + 1 + _LEAD)
        return FIRST_AUCTION + np.where(hit(bits, ratio), hot_of(newest), any_one)


def not_null(columns: Mapping[str, pa.DataType]) -> pa.Schema:
    """Return a schema of columns that always have a value."""
    return pa.schema([pa.field(name, of, nullable=False) for name, of in columns.items()])


def hot_of(newest: I64) -> I64:
    """Return the first of each batch."""
    return newest // _HOT_BATCH * _HOT_BATCH


@lru_cache(maxsize=1)
def _price_table() -> I64:
    """Return the prices at equal steps of their logarithm: in decimals, so the same on every machine."""
    steps = 1 << _PRICE_BITS
    with localcontext() as context:
        context.prec = 28
        ratio = Decimal(10) ** (Decimal(_PRICE_DIGITS) / steps)
        prices = [Decimal(100 * _CENT)]
        for _ in range(steps):
            prices.append(prices[-1] * ratio)
        return np.array([int(price.to_integral_value()) for price in prices], dtype=np.int64)
