"""Runs the server until it is interrupted."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys

import uvicorn
from starlette.types import ASGIApp

#: Requests beyond this many at a time are answered with 503.
MOST_REQUESTS = 64
#: A request whose head is longer, in bytes, is refused.
_MOST_HEAD = 16 << 10
_CLOSING_S = 5


def serve(app: ASGIApp, listening: socket.socket) -> None:
    """Answer requests until SIGINT or SIGTERM. Requests that are being answered end first.

    Args:
        app: what answers.
        listening: the socket.
    """
    config = uvicorn.Config(
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
    # uvicorn catches the signals, ends, and raises them again for whatever handled them before.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])
