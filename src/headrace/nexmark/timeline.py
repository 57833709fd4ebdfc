"""The timeline: the kind of each event, its time, and the order in which events arrive.

Events are numbered from 0. Of each fifty, the first is a person, the next three are auctions, and
the rest are bids. Everything about an event follows from its number and the parameters. So the data
are the same in whatever parts they are made.
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
#: 2015-07-15 00:00 UTC: the start of a day, and of a window of any usual length.
BASE_US = 1_436_918_400_000_000
#: Within a group, the k-th event to arrive is event ``k * _STRIDE`` modulo the group's size.
_STRIDE = 953
#: Bounds of the parameters. Times are exact up to 10^12 and begin at a date that can be shown.
#: Eleven bits decide what is hot.
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


#: For each kind: the place of its first event in a round, and how many events a round has.
_PLACE = {
    Kind.PERSON: (0, PEOPLE),
    Kind.AUCTION: (PEOPLE, AUCTIONS),
    Kind.BID: (PEOPLE + AUCTIONS, BIDS),
}


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of the generator, and what follows from them.

    Attributes:
        events: how many events there are; None for no end.
        seed: another seed gives other contents; numbers, kinds, ids and times stay the same.
        rate: events per second of event time. If they arrive at a rate R, the time dilation is R /
            rate: how many times faster event time passes.
        in_flight: how many auctions are open at a time, on average. With ``rate`` it determines how
            long an auction lasts.
        hot_sellers, hot_auctions, hot_bidders: of this many auctions (or bids), all but one are by
            the hot seller of that time (for the hot auction, by the hot bidder).
        disorder: events arrive in order, but are shuffled within groups of this size.
        base_us: the time of the first event, in microseconds since 1970 UTC.

    Raises:
        PipelineError: for a parameter that is not a whole number, or out of bounds.
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
                    f"nexmark: {name}={value!r} is not a whole number", remedy="give an int"
                )
        for name, (least, most) in _BOUNDS.items():
            if not least <= getattr(self, name) <= most:
                raise PipelineError(
                    f"nexmark: {name}={getattr(self, name)!r} is not a number from {least} to {most}",
                    remedy="choose another",
                )
        if self.disorder % _STRIDE == 0:
            raise PipelineError(
                f"nexmark: disorder={self.disorder}: a group of that many events cannot be shuffled",
                remedy=f"choose one that is not a multiple of {_STRIDE}",
            )
        if self.events is not None and self.events < 0:
            raise PipelineError(
                f"nexmark: events={self.events} is less than none", remedy="give None for no end"
            )

    # -- time ---------------------------------------------------------------------------------

    def times_us(self, numbers: Any) -> Any:
        """Return the times of events, in microseconds since 1970: exact, for any whole rate."""
        seconds, rest = numbers // self.rate, numbers % self.rate
        return self.base_us + seconds * 1_000_000 + rest * 1_000_000 // self.rate

    @property
    def events_in_flight(self) -> int:
        """How many events come while ``in_flight`` auctions start."""
        return self.in_flight * ROUND // AUCTIONS

    @property
    def longest_open_us(self) -> int:
        """The longest that an auction is open: twice the time in which these events come."""
        return 2 * (self.events_in_flight * 1_000_000 // self.rate + 1)

    def promise_us(self, arrived: int) -> int:
        """Return a time such that no event that arrives after ``arrived`` others is before it."""
        return int(self.times_us(arrived // self.disorder * self.disorder))

    # -- kinds --------------------------------------------------------------------------------

    def before(self, kind: Kind, number: int) -> int:
        """Return how many events of a kind have a lower number than the given one."""
        place, many = _PLACE[kind]
        rounds, rest = divmod(number, ROUND)
        return rounds * many + min(max(rest - place, 0), many)

    def numbers(self, kind: Kind, first: int, last: int) -> I64:
        """Return the event numbers of a kind's events from ``first`` to before ``last``."""
        place, many = _PLACE[kind]
        rounds, rest = np.divmod(np.arange(first, last, dtype=np.int64), many)
        rounds *= ROUND
        rounds += rest
        rounds += place
        return rounds

    # -- order of arrival ---------------------------------------------------------------------

    def arrivals(self, first: int, last: int) -> I64:
        """Return the numbers of the events that arrive from ``first`` to before ``last``."""
        at = np.arange(first, last, dtype=np.int64)
        if self.disorder == 1:
            return at
        within = at % self.disorder
        arrived = at - within + within * _STRIDE % self.disorder
        if self.events is not None:
            self._end_in_order(at, arrived)
        return arrived

    def _end_in_order(self, at: I64, arrived: I64) -> None:
        """Leave an incomplete last group in order. Shuffled, it would reach beyond the end."""
        assert self.events is not None
        whole = self.events // self.disorder * self.disorder
        arrived[at >= whole] = at[at >= whole]

    def covering(self, first: int, last: int) -> tuple[int, int]:
        """Return a range of numbers that covers the events which arrive in a range."""
        if self.disorder == 1:
            return first, last
        return first // self.disorder * self.disorder, -(-last // self.disorder) * self.disorder


def cut(first: int, last: int, parts: int) -> list[tuple[int, int]]:
    """Return a range, divided into ``parts`` parts of about equal length."""
    cuts = [first + (last - first) * at // parts for at in range(parts + 1)]
    return list(zip(cuts[:-1], cuts[1:], strict=True))


def blocks(first: int, last: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield parts of a range of at most ``most``; all but the first begin at a multiple of it."""
    while first < last:
        end = min(last, (first // most + 1) * most)
        yield first, end
        first = end
