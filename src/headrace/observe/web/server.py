"""Runs the server until it is interrupted."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

#: Requests beyond this many at a time are answered with 503.
MOST_REQUESTS = 64
#: A request whose head is longer, in bytes, is refused.
_MOST_HEAD = 16 << 10
_CLOSING_S = 5


def serve(
    app: ASGIApp, listening: socket.socket, on_end: Callable[[], None] = lambda: None
) -> None:
    """Answer requests until SIGINT or SIGTERM. Requests that are being answered end first.

    Args:
        app: what answers.
        listening: the socket.
        on_end: called when the server ends, so that answers without an end can end.
    """
    # uvicorn catches the signals, ends, and raises them again for whatever handled them before.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(KeyboardInterrupt):
        _Server(_config(app), on_end).run(sockets=[listening])


@contextlib.contextmanager
def serving(
    app: ASGIApp, listening: socket.socket, on_end: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Answer requests in a thread beside a ``with`` block.

    Args:
        app: what answers.
        listening: the socket.
        on_end: as for :func:`serve`.
    """
    server = _Server(_config(app), on_end)
    thread = threading.Thread(
        target=server.run, args=([listening],), name="headrace-web", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_REQUESTS,
        h11_max_incomplete_event_size=_MOST_HEAD,
        timeout_keep_alive=_CLOSING_S,
        timeout_graceful_shutdown=_CLOSING_S,
    )


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_end: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_end = on_end

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_end()
        await super().shutdown(sockets)
