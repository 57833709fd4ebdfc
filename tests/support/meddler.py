"""An HTTP proxy that meddles: it loses replies, answers in the server's place, or drops a condition."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: What it can do with a request, beside passing it on (None).
CUT_REPLY = "it is applied, and the connection is closed instead of a reply"
LOSE = "the connection is closed, and nothing is applied"
FAIL_AFTER = "it is applied, and 500 is answered"
CONFLICT = "409 ConditionalRequestConflict is answered, and nothing is applied"
UNCONDITIONAL = "it is applied without its condition"

#: Says what happens to a request, by its method, its path, and whether it is conditional.
Plan = Callable[[str, str, bool], str | None]
_BODIES = {
    500: b"<Error><Code>InternalError</Code></Error>",
    409: b"<Error><Code>ConditionalRequestConflict</Code></Error>",
}


@contextmanager
def meddling(server: int, plan: Plan) -> Iterator[int]:
    """Run a proxy in front of a server's port; give the proxy's port."""

    class Handler(_Handler):
        upstream, decide = server, staticmethod(plan)

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.daemon_threads = True
    thread = threading.Thread(target=proxy.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield proxy.server_address[1]
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: int
    decide: Plan

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        conditional = self.headers.get("if-none-match") == "*"
        act = self.decide(self.command, self.path, conditional)
        if act == CONFLICT:
            self._answer(409, [], _BODIES[409])
        elif act == LOSE:
            self.close_connection = True
        else:
            self._pass_on(body, act)

    def do_GET(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()

    def _pass_on(self, body: bytes, act: str | None) -> None:
        headers = dict(self.headers.items())  # (with the host's name, which is signed)
        if act == UNCONDITIONAL:
            headers = {k: v for k, v in headers.items() if k.lower() != "if-none-match"}
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=60)
        connection.request(self.command, self.path, body, headers)
        reply = connection.getresponse()
        content = reply.read()
        connection.close()
        if act == CUT_REPLY:
            self.close_connection = True
        elif act == FAIL_AFTER:
            self._answer(500, [], _BODIES[500])
        else:
            self._answer(reply.status, reply.getheaders(), content)

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        length = str(len(content))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("content-length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
