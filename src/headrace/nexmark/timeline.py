"""One timeline: which event is a person, an auction or a bid, when it is, and in what order events arrive.

Events are numbered from 0. Of each fifty the first is a person, the next three are auctions, the rest are
bids. All that is said of an event follows from its number and the knobs; so the data are the same in
however many parts they are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from headrace.errors import PipelineError
from headrace.eventtime.timestamps import FIRST_DATE_US, LAST_DATE_US
from headrace.nexmark.draws import I64

PEOPLE, AUCTIONS, BIDS = 1, 3, 46
ROUND = PEOPLE + AUCTIONS + BIDS
#: 2015-07-15 00:00 UTC: the beginning of a day, and of a window of any usual length.
BASE_US = 1_436_918_400_000_000
#: Within a group, the k-th to arrive is event ``k * _STRIDE`` modulo the group's size.
_STRIDE = 953
#: Times are exact up to 10^12, and begin at one that can be shown; what is hot or not is decided by eleven
#: bits.
_BOUNDS = {
    "rate": (1, 10**12), "in_flight": (1, 10**12), "disorder": (1, 10**12),
    "hot_sellers": (1, 2**11), "hot_auctions": (1, 2**11), "hot_bidders": (1, 2**11),
    "base_us": (FIRST_DATE_US, LAST_DATE_US),
}  # fmt: skip


class Kind(StrEnum):
    """What an event is; ``EVENT`` stands for all three."""

    PERSON = "person"
    AUCTION = "auction"
    BID = "bid"
    EVENT = "event"


#: The place of a kind's first event in a round, and how many there are in each.
_PLACE = {
    Kind.PERSON: (0, PEOPLE),
    Kind.AUCTION: (PEOPLE, AUCTIONS),
    Kind.BID: (PEOPLE + AUCTIONS, BIDS),
}


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The knobs of the generator, and what follows from them.

    Attributes:
        events: how many there are; None for no end.
        seed: other seeds give other contents; numbers, kinds, ids and times stay.
        rate: events per second of event time. With a rate R of arrivals, R / rate is the time dilation:
            how many times faster event time passes.
        in_flight: how many auctions are open at a time, on average; with ``rate``, how long they are.
        hot_sellers, hot_auctions, hot_bidders: all but one of so many auctions (bids) are of the hot seller
            (of the hot auction, by the hot bidder) of that time.
        disorder: events arrive in order but within groups of so many, where they are shuffled.
        base_us: when the first event is, in microseconds since 1970 UTC.

    Raises:
        PipelineError: for a knob that is no whole number, or too small or large.
    """

    events: int | None = None
    seed: int = 0
    rate: int = 10_000
    in_flight: int = 100
    hot_sellers: int = 4
    hot_auctions: int = 2
    hot_bidders: int = 4
    disorder: int = 1
    base_us: int = BASE_US

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not isinstance(value, int) and (name, value) != ("events", None):
                raise PipelineError(
                    f"nexmark: {name}={value!r} is no whole number", remedy="give an int"
                )
        for name, (least, most) in _BOUNDS.items():
            if not least <= getattr(self, name) <= most:
                raise PipelineError(
                    f"nexmark: {name}={getattr(self, name)!r} is no number from {least} to {most}",
                    remedy="choose another",
                )
        if self.disorder % _STRIDE == 0:
            raise PipelineError(
                f"nexmark: disorder={self.disorder}: a group of so many events cannot be shuffled",
                remedy=f"choose one that is no multiple of {_STRIDE}",
            )
        if self.events is not None and self.events < 0:
            raise PipelineError(
                f"nexmark: events={self.events} is less than none", remedy="give None for no end"
            )

    # -- time ---------------------------------------------------------------------------------

    def times_us(self, numbers: Any) -> Any:
        """Return when events are, in microseconds since 1970: exact, for any whole rate."""
        seconds, rest = numbers // self.rate, numbers % self.rate
        return self.base_us + seconds * 1_000_000 + rest * 1_000_000 // self.rate

    @property
    def events_in_flight(self) -> int:
        """How many events come while as many auctions begin as are to be open at once."""
        return self.in_flight * ROUND // AUCTIONS

    @property
    def longest_open_us(self) -> int:
        """How long an auction is open, at most: twice as long as it takes for these events to come."""
        return 2 * (self.events_in_flight * 1_000_000 // self.rate + 1)

    def promise_us(self, arrived: int) -> int:
        """Return a time that no event is before which arrives after so many others."""
        return int(self.times_us(arrived // self.disorder * self.disorder))

    # -- kinds --------------------------------------------------------------------------------

    def before(self, kind: Kind, number: int) -> int:
        """Return how many events of a kind have numbers below one."""
        place, many = _PLACE[kind]
        rounds, rest = divmod(number, ROUND)
        return rounds * many + min(max(rest - place, 0), many)

    def numbers(self, kind: Kind, first: int, last: int) -> I64:
        """Return the event numbers of those of a kind, from their ``first`` to before their ``last``."""
        place, many = _PLACE[kind]
        rounds, rest = np.divmod(np.arange(first, last, dtype=np.int64), many)
        rounds *= ROUND
        rounds += rest
        rounds += place
        return rounds

    # -- order of arrival ---------------------------------------------------------------------

    def arrivals(self, first: int, last: int) -> I64:
        """Return the numbers of the events that arrive ``first`` to before ``last``."""
        at = np.arange(first, last, dtype=np.int64)
        if self.disorder == 1:
            return at
        within = at % self.disorder
        arrived = at - within + within * _STRIDE % self.disorder
        if self.events is not None:
            self._end_in_order(at, arrived)
        return arrived

    def _end_in_order(self, at: I64, arrived: I64) -> None:
        """Leave a last group that is not whole in its order: it would reach beyond the end."""
        assert self.events is not None
        whole = self.events // self.disorder * self.disorder
        arrived[at >= whole] = at[at >= whole]

    def covering(self, first: int, last: int) -> tuple[int, int]:
        """Return a range of numbers that has all events that arrive ``first`` to before ``last``."""
        if self.disorder == 1:
            return first, last
        return first // self.disorder * self.disorder, -(-last // self.disorder) * self.disorder


def cut(first: int, last: int, parts: int) -> list[tuple[int, int]]:
    """Return a range in so many parts, as long as each other."""
    cuts = [first + (last - first) * at // parts for at in range(parts + 1)]
    return list(zip(cuts[:-1], cuts[1:], strict=True))


def blocks(first: int, last: int, most: int) -> Iterator[tuple[int, int]]:
    """Return a range in parts of at most so many, each but the first beginning at a multiple of that."""
    while first < last:
        end = min(last, (first // most + 1) * most)
        yield first, end
        first = end
