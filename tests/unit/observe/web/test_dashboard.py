"""The dashboard shows what is known to whoever has its token, in bounded answers, and changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

import headrace as hr
from headrace.observe.watching import StorageWatcher
from headrace.observe.web.dashboard import MOST_CLIENTS, Dashboard
from headrace.observe.web.event_stream import EventStream
from headrace.observe.web.feeds import Feed, messages
from headrace.observe.web.guard import PAGE_POLICY, SECURITY_HEADERS, Access
from headrace.observe.web.pages import PARTS, live_of, parts_of
from tests.support.checkpointed import driven, items
from tests.support.pictures import NOW_US
from tests.support.watched_storage import StoppedClock, WatchedStore, watched

TOKEN = "0123456789abcdef0123456789abcdef"
COOKIE = "headrace-9465"
HOSTS = frozenset({"localhost"})
SIGNED = Access(HOSTS, TOKEN, COOKIE, show_values=True)
OPEN = Access(HOSTS, "", COOKIE, show_values=True)
API = [
    f"/api/v1/{name}"
    for name in (*PARTS, "live", "history", "why/cells", "bins/cells", "picture", "pipelines")
]
PATHS = [
    *API,
    "/",
    "/app.js",
    "/page.css",
    "/vendor/uplot.min.js",
    "/api/v1/key?computation=cells&part=u1",
]


@pytest.fixture(name="store")
def _store() -> Iterator[WatchedStore]:
    store = WatchedStore()
    t = driven(store, steps=3)
    yield store
    t.close()


@contextlib.contextmanager
def client(
    *stores: WatchedStore, access: Access = OPEN, clock: StoppedClock | None = None
) -> Iterator[TestClient]:
    watchers = [watched(store, clock, number) for number, store in enumerate(stores, start=1)]
    found = Dashboard(watchers, stores, access)
    with TestClient(found.app, "http://localhost:9465", raise_server_exceptions=False) as at:
        yield at


def test_every_path_answers_and_nothing_is_changed(store: WatchedStore) -> None:
    before = {name: store.read(name) for name in store.list("")}
    with client(store) as at:
        for path in PATHS:
            answer = at.get(path)
            assert answer.status_code == 200, (path, answer.text)
            head = at.head(path)
            assert (head.status_code, head.content) == (200, b"")
    assert {name: store.read(name) for name in store.list("")} == before


def test_live_data_holds_the_picture_the_graph_and_the_ways(store: WatchedStore) -> None:
    with client(store) as at:
        live = at.get("/api/v1/live").json()
        picture = at.get("/api/v1/picture").json()
        assert live["reading"]["picture"]["computations"] == picture["picture"]["computations"]
        assert at.get("/api/v1/why/cells").json() == live["ways"]["cells"]
    nodes = {node["id"]: node for node in live["graph"]["nodes"]}
    assert {nodes[name]["layer"] for name in ("cells", "tables", "ordered")} == {2}
    assert (nodes["items"]["kind"], nodes["items.ids"]["kind"]) == ("injector", "ids")
    edges = {(edge["source"], edge["target"]) for edge in live["graph"]["edges"]}
    assert edges == {
        ("items", "items.ids"),
        *(("items.ids", name) for name in ("cells", "tables", "ordered")),
        *((name, f"sink:{name}.out") for name in ("cells", "tables", "ordered")),
    }
    assert live["graph"]["loose_sinks"] is False


def test_the_steps_are_those_of_the_manifests(store: WatchedStore) -> None:
    with client(store) as at:
        steps = at.get("/api/v1/steps").json()["steps"]
    assert [(of["step"], of["records"]) for of in steps] == [(1, 5), (2, 5), (3, 5)]
    for of in steps:
        assert of["took_ms"] == pytest.approx(sum(of["phases"].values()), rel=0.01, abs=0.01)


def test_the_key_is_what_state_get_says(store: WatchedStore) -> None:
    with client(store) as at:
        found = at.get("/api/v1/key", params={"computation": "cells", "part": "u1"}).json()
        state = next(of for of in found["sections"] if of["section"] == "state")
        columns = state["columns"]
        rows = [dict(zip(columns, row, strict=True)) for row in state["rows"]]
        assert found["step"] == 3
        assert {row["key"] for row in rows} == {"u1"}
        wrong = at.get("/api/v1/key", params={"computation": "tables", "part": "u1"})
        assert wrong.status_code == 422
        assert "2 parts" in wrong.json()["error"]
        assert at.get("/api/v1/key?computation=cells&part=u1&step=x").status_code == 400
        assert at.get("/api/v1/key?computation=nobody&part=u1").status_code == 422


def test_values_are_shown_only_where_they_may(store: WatchedStore) -> None:
    with client(store, access=Access(HOSTS, "", COOKIE, show_values=False)) as at:
        answer = at.get("/api/v1/key", params={"computation": "cells", "part": "u1"})
    assert answer.status_code == 403
    assert "--show-values" in answer.json()["error"]


def test_nothing_is_answered_without_the_token(store: WatchedStore) -> None:
    with client(store, access=SIGNED) as at:
        for path in [
            *PATHS,
            "/events",
            "/metrics",
            "/readyz",
            "/other",
            "/?token=",
            "/?token=wrong",
        ]:
            answer = at.get(path, follow_redirects=False)
            assert answer.status_code == 401, path
            assert "everything" not in answer.text
        assert at.get(f"/api/v1/live?token={TOKEN}").status_code == 401, "only the page takes it"
        assert (
            at.get("/api/v1/live", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        )


def test_a_token_in_the_address_becomes_a_cookie_and_leaves_the_address(
    store: WatchedStore,
) -> None:
    with client(store, access=SIGNED) as at:
        answer = at.get(f"/?token={TOKEN}", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "./")
        cookie = answer.headers["set-cookie"]
        assert TOKEN not in cookie
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
        assert at.get("/").status_code == 200, "the client keeps the cookie"
        assert at.get("/api/v1/live").status_code == 200
        assert at.get("/").text.count(TOKEN) == 0
    with client(store, access=SIGNED) as at:
        wrong = {"Cookie": f"{COOKIE}={TOKEN}"}
        assert at.get("/", headers=wrong).status_code == 401, "the token itself is no session"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(store: WatchedStore, method: str) -> None:
    with client(store) as at:
        for path in [*PATHS, "/events"]:
            assert at.request(method, path).status_code == 405


def test_a_page_of_another_site_is_refused(store: WatchedStore) -> None:
    with client(store) as at:
        for path in [*PATHS, "/events"]:
            assert at.get(path, headers={"Host": "evil.example"}).status_code == 421


def test_every_answer_has_the_headers_of_a_page_that_loads_only_its_own_files(
    store: WatchedStore,
) -> None:
    with client(store, access=SIGNED) as at:
        token = {"Authorization": f"Bearer {TOKEN}"}
        answers = [at.get(path, headers=token) for path in [*PATHS, "/other"]]
        answers += [at.get("/"), at.post("/"), at.get("/", headers={"Host": "evil.example"})]
    wanted = {**SECURITY_HEADERS, "Content-Security-Policy": PAGE_POLICY}
    for answer in answers:
        for name, value in wanted.items():
            assert answer.headers[name] == value, (answer.url, name)
        assert "access-control-allow-origin" not in answer.headers
    assert "unsafe" not in PAGE_POLICY


def test_the_page_holds_no_script_style_or_address_of_its_own(store: WatchedStore) -> None:
    with client(store) as at:
        page = at.get("/").text
    assert re.findall(r"<script[^>]*>[^<]", page) == []
    assert " style=" not in page
    assert "<style" not in page
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert addresses
    assert all(":" not in one and not one.startswith("/") for one in addresses), "behind a proxy"


@pytest.mark.parametrize(
    "path", ["/../pyproject.toml", "/%2e%2e/app.py", "/vendor/../../app.py", "/vendor/SHA256SUMS"]
)
def test_only_the_files_of_the_page_are_served(store: WatchedStore, path: str) -> None:
    with client(store) as at:
        assert at.get(path).status_code == 404


def test_a_storage_that_fails_shows_no_secret(store: WatchedStore) -> None:
    clock = StoppedClock()
    with client(store, clock=clock) as at:
        assert at.get("/api/v1/live").json()["reading"]["state"] == "read"
        store.fails, clock.now_s = "no route to host", 10.0
        live = at.get("/api/v1/live").json()
        assert live["reading"]["state"] == "unreachable"
        assert live["reading"]["picture"]["step"] == 3, "as it was last known"
        texts = "".join(at.get(path).text for path in PATHS)
        assert "secret" not in texts


def test_a_storage_without_a_pipeline_is_empty_and_no_failure() -> None:
    with client(WatchedStore()) as at:
        live = at.get("/api/v1/live").json()
        assert (live["reading"]["state"], live["graph"], live["alerts"]) == ("empty", None, [])
        for name in PARTS:
            assert at.get(f"/api/v1/{name}").status_code == 404


def test_of_several_pipelines_one_is_named(store: WatchedStore) -> None:
    with client(store, WatchedStore()) as at:
        assert len(at.get("/api/v1/pipelines").json()) == 2
        assert at.get("/api/v1/live").status_code == 404
        assert at.get("/api/v1/live?pipeline=everything").json()["reading"]["picture"]["step"] == 3
        for path in (
            "/events?pipeline=other",
            "/api/v1/key?pipeline=other&computation=cells&part=u1",
        ):
            assert at.get(path).json()["pipelines"] == ["everything", "storage-2"]


def test_one_look_into_state_at_a_time(store: WatchedStore) -> None:
    found = Dashboard([watched(store)], [store], OPEN)
    found._looking = True
    with TestClient(found.app, "http://localhost:9465") as at:
        busy = at.get("/api/v1/bins/cells")
        assert (busy.status_code, busy.headers["retry-after"]) == (429, "2")
        found._looking = False
        assert at.get("/api/v1/bins/cells").status_code == 200
        assert at.get("/api/v1/bins/nobody").status_code == 422
        assert at.get("/api/v1/bins/cells").status_code == 200, "a failed look ends, too"


# -- commands -------------------------------------------------------------------------------------

COMMANDS = "/api/v1/commands"
ALLOWED = msgspec.structs.replace(SIGNED, allow_commands=True)
RIGHT = {
    "Cookie": f"{COOKIE}={ALLOWED.session}",
    "Origin": "http://localhost:9465",
    "X-Headrace-CSRF": ALLOWED.csrf,
    "Content-Type": "application/json",
}
PAUSE = b'{"kind": "pause"}'


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in RIGHT.items() if key != name}


def test_a_command_from_the_page_is_a_numbered_command_in_storage() -> None:
    store = WatchedStore()
    t = driven(store, steps=2)
    with client(store, access=ALLOWED) as at:
        offered = at.get(COMMANDS, headers=RIGHT).json()
        assert offered == {"allowed": True, "csrf": ALLOWED.csrf}
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(
                at.post, COMMANDS, content=b'{"kind": "rescale", "workers": 2}', headers=RIGHT
            )
            while not (store.list("commands/") or answer.done()):
                pass
            t.push_many("items", items(20, 5))
            t.step()
            found = answer.result(30).json()
    assert (found["number"], found["answer"]["applied"]) == (0, True)
    assert found["answer"]["text"] == "rescale to 2 workers"
    head = t.current()
    assert head.migrations[0].by.startswith("command 0") or "dashboard" in head.migrations[0].by
    t.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (without("Cookie"), 401),
        ({**without("Cookie"), "Authorization": f"Bearer {TOKEN}"}, 401),
        (without("Origin"), 403),
        ({**RIGHT, "Origin": "http://evil.example"}, 403),
        ({**RIGHT, "Origin": "http://localhost:9466"}, 403),
        ({**RIGHT, "Origin": "null"}, 403),
        (without("X-Headrace-CSRF"), 403),
        ({**RIGHT, "X-Headrace-CSRF": ALLOWED.session}, 403),
        ({**RIGHT, "Content-Type": "text/plain"}, 415),
        ({**RIGHT, "Host": "evil.example", "Origin": "http://evil.example"}, 421),
    ],
)
def test_a_command_that_is_not_from_the_page_is_refused(
    store: WatchedStore, headers: dict[str, str], status: int
) -> None:
    with client(store, access=ALLOWED) as at:
        assert at.post(COMMANDS, content=PAUSE, headers=headers).status_code == status
    assert store.list("commands/") == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{}", 422),
        (b'{"kind": "stop"}', 422),
        (b'{"kind": "remove", "names": ["cells"], "forget": true}', 422),
        (b'{"kind": "pause", "forget": true}', 422),
        (b'{"kind": "rescale"}', 422),
        (b'{"kind": "rescale", "workers": -1}', 422),
        (b'{"kind": "abort_migration"}', 422),
        (b'{"kind": "pause"' + b" " * 2_000 + b"}", 413),
    ],
)
def test_only_commands_that_can_be_taken_back_are_taken(
    store: WatchedStore, body: bytes, status: int
) -> None:
    with client(store, access=ALLOWED) as at:
        answer = at.post(COMMANDS, content=body, headers=RIGHT)
    assert answer.status_code == status, answer.text
    assert store.list("commands/") == []


@pytest.mark.parametrize(
    "access", [SIGNED, OPEN, msgspec.structs.replace(OPEN, allow_commands=True)]
)
def test_commands_are_off_by_default_and_never_without_a_token(
    store: WatchedStore, access: Access
) -> None:
    with client(store, access=access) as at:
        offered = at.get(COMMANDS, headers=RIGHT).json()
        assert offered == {"allowed": False, "csrf": ""}
        headers = {**RIGHT, "Cookie": f"{COOKIE}={access.session}", "X-Headrace-CSRF": access.csrf}
        assert at.post(COMMANDS, content=PAUSE, headers=headers).status_code in (401, 405)
    assert store.list("commands/") == []


def test_commands_do_not_open_other_paths(store: WatchedStore) -> None:
    with client(store, access=ALLOWED) as at:
        for path in PATHS:
            assert at.post(path, content=PAUSE, headers=RIGHT).status_code == 405


# -- the feed -------------------------------------------------------------------------------------


async def _events(feed: Feed, count: int) -> list[bytes]:
    found = []
    stream = messages(
        feed, lambda sight: str(sight.reading.picture and sight.reading.picture.step).encode(), 10.0
    )
    async for event in stream:
        if event.startswith(b"id:"):
            found.append(event)
        if len(found) == count:
            break
    await stream.aclose()
    return found


def test_a_storage_is_read_only_while_somebody_looks(store: WatchedStore) -> None:
    async def run() -> None:
        feed = Feed(StorageWatcher(1, store, "x", every_s=0.005), 0.005)
        await asyncio.sleep(0.02)
        assert store.lists == begun
        first, second = await asyncio.gather(_events(feed, 3), _events(feed, 3))
        assert first[0] == second[0] == b"id: 1\nevent: live\ndata: 3\n\n"
        assert feed.clients == 0
        await asyncio.sleep(0.05)  # a look that was under way ends
        lists = store.lists
        await asyncio.sleep(0.05)
        assert store.lists == lists, "nobody looks any more"

    begun = store.lists
    asyncio.run(run())


def test_a_client_that_comes_while_the_storage_hangs_sees_what_was_known(
    store: WatchedStore,
) -> None:
    async def run() -> None:
        feed = Feed(StorageWatcher(1, store, "x", every_s=0.005), 0.005)
        await _events(feed, 1)
        store.goes_on.clear()
        try:
            assert (await _events(feed, 3))[-1].endswith(b"data: 3\n\n")
        finally:
            store.goes_on.set()

    asyncio.run(run())


def test_too_many_tabs_are_refused(store: WatchedStore) -> None:
    found = Dashboard([watched(store)], [store], OPEN)
    found._feeds[0]._mailboxes = {asyncio.Event() for _ in range(MOST_CLIENTS)}
    with TestClient(found.app, "http://localhost:9465") as at:
        answer = at.get("/events")
        assert (answer.status_code, "tabs" in answer.json()["error"]) == (503, True)
        assert at.get("/api/v1/live").status_code == 200


async def _receive_nothing() -> Any:
    await asyncio.Event().wait()


def test_a_client_that_takes_nothing_is_dropped_and_holds_up_no_other() -> None:
    closed = []

    async def forever() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"data: x\n\n"
        finally:
            closed.append(True)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()  # its buffer is full

    asyncio.run(
        EventStream(forever(), slow_s=0.02)(
            {"type": "http", "method": "GET"}, _receive_nothing, send
        )
    )
    assert closed == [True]


def test_a_client_that_goes_away_ends_its_stream() -> None:
    closed, sent = [], []

    async def forever() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield b"data: x\n\n"
                await asyncio.sleep(0)
        finally:
            closed.append(True)

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        while len(sent) < 3:
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    asyncio.run(EventStream(forever())({"type": "http", "method": "GET"}, receive, send))
    assert closed == [True]
    headers = dict(sent[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")


def test_closing_the_server_lets_all_go(store: WatchedStore) -> None:
    async def run() -> int:
        feed = Feed(StorageWatcher(1, store, "x", every_s=0.005), 0.005)
        count = 0
        async for _ in messages(feed, lambda _: b"x", 10.0):
            count += 1
            if count == 2:
                feed.close()
        return count

    assert asyncio.run(asyncio.wait_for(run(), 30)) >= 2


# -- what the page shows, against every step that a storage keeps ----------------------------------


def test_the_page_can_show_every_step_of_a_pipeline_that_moves_state() -> None:
    store = WatchedStore()
    t = driven(store, steps=6)
    move = t.rescale(7, strategy=hr.fluid())
    seen = set()
    for _ in range(60):
        t.push_many("items", [])
        t.step()
        sight = StorageWatcher(1, store, "x").sight()
        assert sight.seen is not None
        assert msgspec.json.encode(live_of(sight, sight.reading))
        parts = parts_of(sight.seen, NOW_US)
        assert msgspec.json.encode(parts)
        (migration,) = parts["migrations"].migrations
        done = sum(one.state == "done" for one in migration.rounds)
        if migration.rounds:
            assert done == migration.progress.rounds
            left = sum(one.bins for one in migration.rounds if one.state != "done")
            assert left == sum(to >= 0 for to in parts["bins"].moves_to)
            seen.add(done)
        if move.state == "done":
            break
    assert move.state == "done"
    assert len(seen) > 1, "rounds were seen one after another"
    assert set(parts["bins"].owners) == set(range(7))
    t.close()
