"""Bids: all other events of each round."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.nexmark.columns import TIME, EventColumns, not_null
from headrace.nexmark.draws import I64, Draws, hit, scaled
from headrace.nexmark.timeline import Kind

HOT_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]
_CHANNELS = 10_000
#: Half of the bids come through one of the hot channels.
_HOT_CHANNELS_RATIO = 2
#: Number of parts in the path of a page, and of letters in each.
_PATH, _PATH_LETTERS = 3, 4
#: One page in this many does not name its channel.
_UNSAID = 10
#: The hot bidder is the second of its batch; the hot seller is the first.
_HOT_BIDDER = 1
#: Mean length of ``extra``, and its spread: the rest of 100 bytes, and a fifth of it more or less.
_EXTRA, _EXTRA_SPREAD = 68, 14


class Bids(EventColumns):
    """Offers for auctions."""

    kind = Kind.BID
    schema = not_null(
        {
            "event": pa.int64(),
            "auction": pa.int64(),
            "bidder": pa.int64(),
            "price": pa.int64(),
            "channel": pa.string(),
            "url": pa.string(),
            "date_time": TIME,
            "extra": pa.string(),
        }
    )

    def make_auction(self) -> I64:
        """Return the ids of the auctions."""
        return self._open_auctions("auction", self.timeline.hot_auctions)

    def make_bidder(self) -> I64:
        """Return the ids of the bidders."""
        return self._people("bidder", self.timeline.hot_bidders, _HOT_BIDDER)

    def make_price(self) -> I64:
        """Return the prices, in cents."""
        return self._prices("price")

    def make_channel(self) -> pa.Array:
        """Return the channels through which the bids come."""
        return channels(self.timeline.seed).names.take(pa.array(self._channel()))

    def make_url(self) -> pa.Array:
        """Return the pages on which the bids are made. Each channel has one page."""
        return channels(self.timeline.seed).urls.take(pa.array(self._channel()))

    def make_extra(self) -> pa.Array:
        """Return texts that fill records up to the model's length."""
        return self._texts("extra", _EXTRA, _EXTRA_SPREAD)

    def _channel(self) -> I64:
        bits = self._bits("channel")
        cold = len(HOT_CHANNELS) + scaled(bits, _CHANNELS)
        hot = scaled(bits, len(HOT_CHANNELS))
        return np.where(hit(bits, _HOT_CHANNELS_RATIO), hot, cold)


class Channels(NamedTuple):
    """All channels, the hot ones first, and the page of each."""

    names: pa.Array
    urls: pa.Array


@lru_cache(maxsize=4)
def channels(seed: int) -> Channels:
    """Return the channels for a seed."""
    draws, many = Draws(seed), len(HOT_CHANNELS) + _CHANNELS
    letters = draws.letters("channel path", 0, many * _PATH * _PATH_LETTERS).tobytes().decode()
    said = draws.below(_UNSAID, "channel said", 0, many) > 0
    names, urls = list(HOT_CHANNELS), []
    for number in range(many):
        path = "/".join(_parts(letters, number))
        url = f"https://www.nexmark.com/{path}/item.htm?query=1"
        cold = number - len(HOT_CHANNELS)
        if cold >= 0:
            names.append(f"channel-{cold}")
            url += f"&channel_id={_reversed(cold)}" if said[number] else ""
        urls.append(url)
    return Channels(pa.array(names), pa.array(urls))


def _parts(letters: str, number: int) -> list[str]:
    begin = number * _PATH * _PATH_LETTERS
    return [letters[begin + at * _PATH_LETTERS :][:_PATH_LETTERS] for at in range(_PATH)]


def _reversed(number: int) -> int:
    """Return the magnitude of the signed 32-bit number with the bits of a number in reverse."""
    found = int(f"{number:032b}"[::-1], 2)
    return min(found, (1 << 32) - found) if found >> 31 else found
