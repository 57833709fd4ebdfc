"""Auctions: the second to the fourth event of each round."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.nexmark.columns import (
    CATEGORIES,
    FIRST_AUCTION,
    FIRST_CATEGORY,
    TIME,
    EventColumns,
    not_null,
)
from headrace.nexmark.draws import I64
from headrace.nexmark.timeline import Kind

_NAME, _NAME_SPREAD = 11, 8
_DESCRIPTION, _DESCRIPTION_SPREAD = 51, 48
#: Mean length of ``extra``, and its spread: the rest of 500 bytes, and a fifth of it more or less.
_EXTRA, _EXTRA_SPREAD = 382, 76


class Auctions(EventColumns):
    """Items for sale until a given time."""

    kind = Kind.AUCTION
    schema = not_null(
        {
            "event": pa.int64(),
            "id": pa.int64(),
            "item_name": pa.string(),
            "description": pa.string(),
            "initial_bid": pa.int64(),
            "reserve": pa.int64(),
            "date_time": TIME,
            "expires": TIME,
            "seller": pa.int64(),
            "category": pa.int64(),
            "extra": pa.string(),
        }
    )

    def make_id(self) -> I64:
        """Return the ids. Auctions are numbered in the order of their events."""
        return FIRST_AUCTION + np.arange(self.first, self.last)

    def make_item_name(self) -> pa.Array:
        """Return the names of the items."""
        return _trimmed(self._texts("item name", _NAME, _NAME_SPREAD, blanks=True))

    def make_description(self) -> pa.Array:
        """Return the descriptions of the items."""
        texts = self._texts("description", _DESCRIPTION, _DESCRIPTION_SPREAD, blanks=True)
        return _trimmed(texts)

    def make_initial_bid(self) -> I64:
        """Return the initial bids, in cents."""
        return self._prices("initial bid")

    def make_reserve(self) -> I64:
        """Return the reserves in cents: the initial bid plus another price."""
        return self.make_initial_bid() + self._prices("reserve")

    def make_expires(self) -> pa.Array:
        """Return the times at which the auctions close.

        An auction lasts at most twice the time in which ``in_flight`` auctions start.
        """
        ahead = self.timeline.events_in_flight
        horizon = self.timeline.times_us(self.numbers + ahead) - self.times_us
        length = 1 + self._below(np.maximum(2 * horizon, 1), "length")
        return pa.array(self.times_us + length).cast(TIME)

    def make_seller(self) -> I64:
        """Return the ids of the sellers."""
        return self._people("seller", self.timeline.hot_sellers, 0)

    def make_category(self) -> I64:
        """Return the categories."""
        return FIRST_CATEGORY + self._below(CATEGORIES, "category")

    def make_extra(self) -> pa.Array:
        """Return texts that fill records up to the model's length."""
        return self._texts("extra", _EXTRA, _EXTRA_SPREAD)


def _trimmed(texts: pa.Array) -> pa.Array:
    return pc.utf8_trim(texts, characters=" ")
