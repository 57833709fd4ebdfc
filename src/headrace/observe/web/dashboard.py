"""The dashboard: the page, what it asks for, and the feed of what happens.

It only reads, unless commands are allowed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from headrace.errors import HeadraceError
from headrace.errors.printable import without_secrets
from headrace.ledger.ledger import Ledger
from headrace.observe.bin_watermarks import bin_marks
from headrace.observe.observer import Seen
from headrace.observe.stored_values import stored_key
from headrace.observe.watching import Reading, Sight, StorageWatcher, with_own_names
from headrace.observe.web.answers import encoded
from headrace.observe.web.app import json_answer, routes_of
from headrace.observe.web.assets import PAGE, Asset, assets
from headrace.observe.web.commands import MOST_BYTES, sent, wanted_of
from headrace.observe.web.event_stream import EventStream
from headrace.observe.web.feeds import Feed, messages, total_clients
from headrace.observe.web.guard import COMMANDS_PATH, Access, Guard
from headrace.observe.web.pages import PARTS, live_of, parts_of
from headrace.observe.why import why
from headrace.storage.base import Store

#: Most tabs that may look at the same time.
MOST_CLIENTS = 32
#: Most bins whose watermarks are shown.
_MOST_MARKS = 100
_SILENCE_S = 15.0


class Dashboard:
    """The application of the dashboard, and its feeds.

    Args:
        watchers: the storages that it shows.
        stores: the same storages, for looks into state.
        access: which requests it answers.
        every_s: seconds between two looks at a storage.
    """

    def __init__(
        self,
        watchers: Sequence[StorageWatcher],
        stores: Sequence[Store],
        access: Access,
        *,
        every_s: float = 1.0,
    ) -> None:
        self._feeds = [Feed(watcher, every_s) for watcher in watchers]
        self._stores = list(stores)
        self._access = access
        self._assets = assets()
        self._looking = False
        self._sending = False
        self._encoded: tuple[Sight, bytes | None] | None = None
        api = {"live": self.live, "history": self.history, "key": self.key}
        app = Starlette(
            routes=[
                *routes_of(watchers),
                *(Route(f"/api/v1/{name}", answer) for name, answer in api.items()),
                *(Route(f"/api/v1/{name}", self._part(name)) for name in PARTS),
                Route("/api/v1/why/{name:path}", self.why),
                Route("/api/v1/bins/{name:path}", self.marks),
                Route(COMMANDS_PATH, self.commands),
                Route(COMMANDS_PATH, self.command, methods=["POST"]),
                Route("/events", self.events),
                Route("/", self.page),
                Route("/{path:path}", self.asset),
            ]
        )
        self.app: ASGIApp = Guard(app, access)

    def close(self) -> None:
        """Let all who look go."""
        for feed in self._feeds:
            feed.close()

    # -- the page -----------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        """Return the page."""
        return _asset_answer(self._assets[PAGE], request)

    async def asset(self, request: Request) -> Response:
        """Return a file of the page."""
        found = self._assets.get(request.path_params["path"])
        return JSONResponse({"error": "not there"}, 404) if found is None else _asset_answer(
            found, request
        )  # fmt: skip

    async def events(self, request: Request) -> Response:
        """Send what a pipeline does, as it happens."""
        if total_clients(self._feeds) >= MOST_CLIENTS:
            return _busy("too many tabs look at this server", 503)
        feed = self._feed(request)
        if feed is None:
            return self._unknown()
        return EventStream(self._messages(feed))

    async def _messages(self, feed: Feed) -> AsyncGenerator[bytes, None]:
        def message(sight: Sight) -> bytes | None:
            if self._encoded is None or self._encoded[0] is not sight:
                live = live_of(sight, self._reading(feed, sight), feed.recent())
                self._encoded = sight, encoded(live)
            return self._encoded[1]

        async for event in messages(feed, message, _SILENCE_S):
            yield event

    # -- what it asks for ---------------------------------------------------------------------

    async def live(self, request: Request) -> Response:
        """Return what every view needs."""
        return await self._of_pipeline(
            request, lambda feed, sight: live_of(sight, self._reading(feed, sight), feed.recent())
        )

    async def history(self, request: Request) -> Response:
        """Return the history of a pipeline."""
        return await self._of_pipeline(request, lambda feed, _: {"moments": feed.moments()})

    async def why(self, request: Request) -> Response:
        """Return what holds a watermark."""
        name = request.path_params["name"]
        return await self._of_pipeline(
            request, lambda _, sight: why(_seen(sight).head, name, sight.now_us)
        )

    def _part(self, name: str) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            return await self._of_pipeline(
                request, lambda _, sight: parts_of(_seen(sight), sight.now_us)[name]
            )

        return answer

    async def marks(self, request: Request) -> Response:
        """Return the bins of a computation with the oldest pending work. It reads state."""
        name = request.path_params["name"]

        def look(store: Store) -> Any:
            ledger = Ledger(store)
            head = ledger.open()
            if head is not None and head.is_behind:  # watermarks and state must be of one step
                head = ledger.open(head.checkpoint) or head
            found = [] if head is None else bin_marks(store, head, name, _MOST_MARKS)
            return {"step": None if head is None else head.step, "marks": found}

        return await self._of_state(request, look)

    async def key(self, request: Request) -> Response:
        """Return what is stored for a key. It reads state."""
        if not self._access.show_values:
            error = "this server shows no values: start it with --show-values"
            return JSONResponse({"error": error}, 403)
        query = request.query_params
        computation, key, step = (
            query.get("computation", ""),
            query.getlist("part"),
            query.get("step"),
        )
        if step and not step.isdecimal():
            return JSONResponse({"error": "a step is a number"}, 400)
        return await self._of_state(
            request,
            lambda store: stored_key(store, computation, key, int(step) if step else None),
        )

    async def commands(self, _: Request) -> Response:
        """Say whether commands are taken, and what a page must show with one."""
        allowed = self._access.allow_commands and bool(self._access.token)
        return json_answer(
            encoded({"allowed": allowed, "csrf": self._access.csrf if allowed else ""})
        )

    async def command(self, request: Request) -> Response:
        """Send a command to a pipeline. The guard lets nobody come here unless it is allowed."""
        feed = self._feed(request)
        if feed is None:
            return self._unknown()
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MOST_BYTES:
                return JSONResponse({"error": "that is too long for a command"}, 413)
        if self._sending:
            return _busy("another command is being sent: try again", 429)
        self._sending = True
        try:
            store = self._stores[self._feeds.index(feed)]
            return await run_in_threadpool(_answered, lambda: sent(store, wanted_of(body)))
        finally:
            self._sending = False

    # -- helpers ------------------------------------------------------------------------------

    async def _of_pipeline(
        self, request: Request, answer: Callable[[Feed, Sight], Any]
    ) -> Response:
        feed = self._feed(request)
        if feed is None:
            return self._unknown()
        sight = feed.sight if feed.clients and feed.sight is not None else await feed.now()
        return _answered(lambda: answer(feed, sight))

    async def _of_state(self, request: Request, look: Callable[[Store], Any]) -> Response:
        """Answer from state. One look at a time, since each may read much."""
        feed = self._feed(request)
        if feed is None:
            return self._unknown()
        if self._looking:
            return _busy("another look into state is under way: try again", 429)
        self._looking = True
        try:
            store = self._stores[self._feeds.index(feed)]
            return await run_in_threadpool(_answered, lambda: look(store))
        finally:
            self._looking = False

    def _feed(self, request: Request) -> Feed | None:
        """Return the pipeline of a request, or the only one if it names none."""
        wanted = request.query_params.get("pipeline")
        named = zip(self._names(), self._feeds, strict=True)
        found = [feed for name, feed in named if wanted in (None, name)]
        return found[0] if len(found) == 1 else None

    def _names(self) -> list[str]:
        """Return the names of the pipelines, as far as they are known without a look."""
        known = [feed.watcher.known() for feed in self._feeds]
        readings = [
            _unread(number) if sight is None else sight.reading
            for number, sight in enumerate(known, start=1)
        ]
        return [reading.pipeline for reading in with_own_names(readings)]

    def _reading(self, feed: Feed, sight: Sight) -> Reading:
        name = self._names()[self._feeds.index(feed)]
        return msgspec.structs.replace(sight.reading, pipeline=name)

    def _unknown(self) -> Response:
        error = "say ?pipeline=NAME, with one of these names"
        return JSONResponse({"error": error, "pipelines": self._names()}, 404)


def _unread(number: int) -> Reading:
    return Reading(f"storage-{number}", "", "empty", None, None, None, None)


def _seen(sight: Sight) -> Seen:
    if sight.seen is None:
        raise _NothingSeen
    return sight.seen


class _NothingSeen(Exception):
    """Nothing has been read of a storage yet."""


def _answered(answer: Callable[[], Any]) -> Response:
    try:
        return json_answer(encoded(answer()))
    except _NothingSeen:
        return JSONResponse({"error": "nothing has been read of this pipeline yet"}, 404)
    except HeadraceError as error:
        return JSONResponse({"error": without_secrets(str(error))}, 422)


def _asset_answer(asset: Asset, request: Request) -> Response:
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.packed, headers=_headers(asset, "gzip"))
    return Response(asset.data, headers=_headers(asset))


def _headers(asset: Asset, encoding: str = "") -> dict[str, str]:
    headers = {"Content-Type": asset.kind, "Vary": "Accept-Encoding"}
    return {**headers, "Content-Encoding": encoding} if encoding else headers


def _busy(error: str, status: int) -> Response:
    return JSONResponse({"error": error}, status, headers={"Retry-After": "2"})
