"""The guard before the server: for which hosts, methods and tokens it answers, and with which headers.

It stands before all routes, so no route can be without it.
"""

from __future__ import annotations

import hmac

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.observe.web.addresses import host_name

#: Answers without a token, since it says nothing but that the process answers.
OPEN_PATH = "/healthz"
METHODS = ("GET", "HEAD")
#: How a web socket is refused (RFC 6455, a policy is violated).
_NOT_ALLOWED = 1008
#: Headers of every answer. Nothing may be loaded, framed, kept or guessed.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Access(msgspec.Struct, frozen=True):
    """Which requests are answered.

    Attributes:
        hosts: the hosts for which the server answers.
        token: what a request must show; empty if it need not show anything.
    """

    hosts: frozenset[str]
    token: str = ""


class Guard:
    """Refuses requests that are not to be answered, and adds headers to every answer.

    Args:
        app: what answers the others.
        access: which requests are answered.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _NOT_ALLOWED})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return why a request is not answered; None if it is."""
        headers = Headers(scope=scope)
        hosts = [host_name(value) for value in headers.getlist("host")]
        if len(hosts) != 1 or hosts[0] not in self._access.hosts:
            return PlainTextResponse(
                "this server does not answer for that host: see --allow-host\n", 421
            )
        if scope["method"] not in METHODS:
            allowed = {"Allow": ", ".join(METHODS)}
            return PlainTextResponse("this server only shows\n", 405, allowed)
        if scope["path"] != OPEN_PATH and not self._knows_token(headers):
            challenge = {"WWW-Authenticate": 'Bearer realm="headrace"'}
            return PlainTextResponse("a token is needed\n", 401, challenge)
        return None

    def _knows_token(self, headers: Headers) -> bool:
        if not self._access.token:
            return True
        shown = headers.getlist("authorization")
        kind, _, token = shown[0].partition(" ") if len(shown) == 1 else ("", "", "")
        is_right = hmac.compare_digest(token.strip().encode(), self._access.token.encode())
        return kind.lower() == "bearer" and is_right
