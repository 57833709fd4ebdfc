"""The guard before the server: for which hosts, methods and tokens it answers, and with which headers.

It stands before all routes, so no route can be without it.
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.observe.web.addresses import host_name

#: Answers without a token, since it says nothing but that the process answers.
OPEN_PATH = "/healthz"
#: Where a browser shows the token once, as ``?token=``. From then on it has a cookie.
SIGN_IN_PATH = "/"
METHODS = ("GET", "HEAD")
#: Takes commands, if that is allowed. Everything else only shows.
COMMANDS_PATH = "/api/v1/commands"
#: The header that only a page of this server can send, with the value that it was given.
CSRF_HEADER = "x-headrace-csrf"
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


#: The policy of a server with a page: it loads its own files and nothing else.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)


class Access(msgspec.Struct, frozen=True):
    """Which requests are answered.

    Attributes:
        hosts: the hosts for which the server answers.
        token: what a request must show; empty if it need not show anything.
        cookie: the name of the cookie that stands for the token in a browser; empty if the server
            has no page.
        show_values: whether keys and stored values may be shown.
        allow_commands: whether a page that is signed in may send commands.
    """

    hosts: frozenset[str]
    token: str = ""
    cookie: str = ""
    show_values: bool = False
    allow_commands: bool = False

    @property
    def session(self) -> str:
        """The value of the cookie. The token does not follow from it."""
        return hmac.new(self.token.encode(), b"headrace session", hashlib.sha256).hexdigest()

    @property
    def csrf(self) -> str:
        """What a page must show with a command. Only a page of this server can read it."""
        return hmac.new(self.token.encode(), b"headrace csrf", hashlib.sha256).hexdigest()


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
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                if self._access.cookie:
                    headers["Content-Security-Policy"] = PAGE_POLICY
            await send(message)

        answer = self._refusal(scope) or self._signed_in(scope)
        await (answer or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return why a request is not answered; None if it is."""
        headers = Headers(scope=scope)
        hosts = [host_name(value) for value in headers.getlist("host")]
        if len(hosts) != 1 or hosts[0] not in self._access.hosts:
            return PlainTextResponse(
                "this server does not answer for that host: see --allow-host\n", 421
            )
        if self._is_command(scope):
            return self._refused_command(scope, headers)
        if scope["method"] not in METHODS:
            allowed = {"Allow": ", ".join(METHODS)}
            return PlainTextResponse("this server only shows\n", 405, allowed)
        if scope["path"] != OPEN_PATH and not self._knows_token(scope, headers):
            challenge = {"WWW-Authenticate": 'Bearer realm="headrace"'}
            page = ": open the address that headrace dashboard has printed"
            text = f"a token is needed{page if self._access.cookie else ''}\n"
            return PlainTextResponse(text, 401, challenge)
        return None

    def _is_command(self, scope: Scope) -> bool:
        allowed = self._access.allow_commands and scope["path"] == COMMANDS_PATH
        return allowed and scope["method"] == "POST"

    def _refused_command(self, scope: Scope, headers: Headers) -> Response | None:
        """Return why a command is not taken; None if it is.

        It must come from a page of this server that is signed in. Other sites can neither read the
        value of the header nor send it, and browsers say where a request comes from.
        """
        if not self._access.token or not self._has_session(scope):
            return PlainTextResponse("only a page that is signed in sends commands\n", 401)
        origin = urlsplit(headers.get("origin", ""))
        if origin.scheme not in ("http", "https") or origin.netloc != headers.get("host"):
            return PlainTextResponse("commands come from this server's own page\n", 403)
        shown = headers.get(CSRF_HEADER, "").encode()
        if not hmac.compare_digest(shown, self._access.csrf.encode()):
            return PlainTextResponse("commands come from this server's own page\n", 403)
        if headers.get("content-type") != "application/json":
            return PlainTextResponse("a command is JSON\n", 415)
        return None

    def _signed_in(self, scope: Scope) -> Response | None:
        """Return the answer to a browser that has shown the token: a cookie, and the page's address.

        The token is gone from the address then, so it stays in no history.
        """
        if not self._access.token or not self._token_in_address(scope):
            return None
        answer = RedirectResponse("./", 303)
        answer.set_cookie(
            self._access.cookie, self._access.session, httponly=True, samesite="strict"
        )
        return answer

    def _token_in_address(self, scope: Scope) -> bool:
        """Return whether the address shows the right token."""
        if not self._access.cookie or scope["path"] != SIGN_IN_PATH:
            return False
        shown = Request(scope).query_params.getlist("token")
        return len(shown) == 1 and hmac.compare_digest(
            shown[0].encode(), self._access.token.encode()
        )

    def _has_session(self, scope: Scope) -> bool:
        if not self._access.cookie:
            return False
        shown = Request(scope).cookies.get(self._access.cookie, "")
        return hmac.compare_digest(shown.encode(), self._access.session.encode())

    def _knows_token(self, scope: Scope, headers: Headers) -> bool:
        if not self._access.token:
            return True
        if self._has_session(scope) or self._token_in_address(scope):
            return True
        shown = headers.getlist("authorization")
        kind, _, token = shown[0].partition(" ") if len(shown) == 1 else ("", "", "")
        is_right = hmac.compare_digest(token.strip().encode(), self._access.token.encode())
        return kind.lower() == "bearer" and is_right
