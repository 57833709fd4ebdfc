"""Feeds: what a pipeline does, sent to all who look at it, from one poller.

A poller runs only while somebody looks. Each client has room for the newest message only, so a slow
one misses messages in between and never holds up the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

from starlette.concurrency import run_in_threadpool

from headrace.observe.history import History, Moment
from headrace.observe.watching import Sight, StorageWatcher

#: Moments from so many seconds before the newest one are sent with each message.
_RECENT_S = 10


class Feed:
    """The feed of one pipeline.

    Args:
        watcher: its storage.
        every_s: seconds between two looks.
    """

    def __init__(self, watcher: StorageWatcher, every_s: float) -> None:
        self.watcher = watcher
        self._every_s = every_s
        self._history = History()
        self._mailboxes: set[asyncio.Event] = set()
        self._poller: asyncio.Task[None] | None = None
        self._look: asyncio.Task[Sight] | None = None
        self.sight: Sight | None = None
        self.closed = False

    @property
    def clients(self) -> int:
        """How many clients look."""
        return len(self._mailboxes)

    def moments(self) -> list[Moment]:
        """Return the whole history."""
        return list(self._history)

    def recent(self) -> list[Moment]:
        """Return the newest moments, of which the last may still change."""
        moments = self.moments()
        return self._history.since(moments[-1].at_s - _RECENT_S) if moments else []

    async def now(self) -> Sight:
        """Look at the storage, unless that was done just now."""
        return self._noted(await run_in_threadpool(self.watcher.sight))

    @asynccontextmanager
    async def joined(self) -> AsyncIterator[asyncio.Event]:
        """Join the feed, for a ``with`` block. The event is set when there is something new."""
        news = asyncio.Event()
        if self.sight is not None:
            news.set()
        self._mailboxes.add(news)
        if self._poller is None:
            self._poller = asyncio.create_task(self._poll())
        try:
            yield news
        finally:
            self._mailboxes.discard(news)
            if not self._mailboxes and self._poller is not None:
                self._poller.cancel()
                self._poller = None

    def close(self) -> None:
        """Let all clients go. They come back by themselves if the server does."""
        self.closed = True
        for news in self._mailboxes:
            news.set()

    def _noted(self, sight: Sight) -> Sight:
        self.sight = sight
        if sight.seen is not None:
            self._history.note(sight.seen.window, sight.seen.states)
        return sight

    async def _poll(self) -> None:
        """Look again and again. While the storage does not answer, send what is known, as stale."""
        while True:
            if self._look is None:
                self._look = asyncio.create_task(run_in_threadpool(self.watcher.sight))
            done, _ = await asyncio.wait({self._look}, timeout=self._every_s)
            if done:
                self._noted(self._look.result())
                self._look = None
            else:
                self.sight = self.watcher.known() or self.sight
            if self.sight is not None:
                for news in self._mailboxes:
                    news.set()
            if done:
                await asyncio.sleep(self._every_s)


def total_clients(feeds: Iterable[Feed]) -> int:
    """Return how many clients look at any pipeline."""
    return sum(feed.clients for feed in feeds)


async def messages(
    feed: Feed, message: Callable[[Sight], bytes | None], silence_s: float
) -> AsyncIterator[bytes]:
    """Yield server-sent events until the client goes away.

    Args:
        feed: the feed.
        message: makes the data of an event; None for one that is too large.
        silence_s: after so many seconds without an event, a comment is sent, so that proxies and
            clients see that the connection lives.
    """
    yield b"retry: 2000\n\n"
    async with feed.joined() as news:
        number = 0
        while True:
            try:
                await asyncio.wait_for(news.wait(), silence_s)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            if feed.closed:
                return
            news.clear()
            assert feed.sight is not None
            data = message(feed.sight)
            number += 1
            if data is not None:
                yield b"id: %d\nevent: live\ndata: " % number + data + b"\n\n"
