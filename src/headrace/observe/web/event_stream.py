"""An answer without an end: server-sent events. A client that does not take them is dropped."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

#: A client that has not taken a message within so many seconds is dropped.
SLOW_S = 20.0


class EventStream(Response):
    """Sends events until the client goes away, or takes none.

    Args:
        events: the events, as the protocol writes them.
        slow_s: after so many seconds in which a client takes nothing, it is dropped.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], slow_s: float = SLOW_S) -> None:
        super().__init__()
        self._events = events
        self._slow_s = slow_s
        del self.headers["content-length"]
        self.headers["X-Accel-Buffering"] = "no"  # else proxies may collect events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if scope["method"] == "HEAD":
            await self._events.aclose()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        gone = asyncio.create_task(_disconnected(receive))
        sending = asyncio.create_task(self._send(send))
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (gone, sending):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, TimeoutError, OSError):
                    await task
            await self._events.aclose()

    async def _send(self, send: Send) -> None:
        async for event in self._events:
            message = {"type": "http.response.body", "body": event, "more_body": True}
            await asyncio.wait_for(send(message), self._slow_s)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
