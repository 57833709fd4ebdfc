"""The server shows what is known, to whom it may, in answers of a bounded size, and changes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from headrace.cli.status import status_of
from headrace.observe.observer import PipelineObserver
from headrace.observe.picture import Picture
from headrace.observe.plain import with_null_times
from headrace.observe.watching import Reading, StorageWatcher
from headrace.observe.web.answers import MOST_BYTES, picture_answer
from headrace.observe.web.app import create_app
from headrace.observe.web.guard import SECURITY_HEADERS, Access
from tests.support.checkpointed import driven
from tests.support.pictures import NOW_US
from tests.support.watched_storage import START_S, StoppedClock, WatchedStore, watched

PATHS = ["/healthz", "/readyz", "/metrics", "/api/v1/pipelines", "/api/v1/picture", "/other"]
LOCAL = Access(frozenset({"localhost", "127.0.0.1", "::1"}))
TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(name="store")
def _store() -> Iterator[WatchedStore]:
    store = WatchedStore()
    t = driven(store, steps=3)
    yield store
    t.close()


@contextlib.contextmanager
def client(*watchers: StorageWatcher, access: Access = LOCAL) -> Iterator[TestClient]:
    app = create_app(watchers, access)
    with TestClient(app, "http://localhost:9464", raise_server_exceptions=False) as found:
        yield found


def test_each_route_answers_and_nothing_is_changed(store: WatchedStore) -> None:
    before = {name: store.read(name) for name in store.list("")}
    with client(watched(store)) as at:
        assert {path: at.get(path).status_code for path in PATHS} == {
            **dict.fromkeys(PATHS, 200),
            "/other": 404,
        }
        assert at.get("/healthz").text == "ok\n"
        assert at.get("/metrics").headers["content-type"].startswith("text/plain; version=")
        assert "headrace_steps_total{" in at.get("/metrics").text
        for path in PATHS[1:5]:
            head = at.head(path)
            assert (head.status_code, head.content) == (200, b"")
    assert {name: store.read(name) for name in store.list("")} == before


def test_the_picture_is_that_of_status(store: WatchedStore) -> None:
    picture = PipelineObserver(store, show_values=False).look(round(START_S * 1e6))
    assert picture is not None
    with client(watched(store)) as at:
        answer = at.get("/api/v1/picture", params={"pipeline": "everything"}).json()
    assert (answer["pipeline"], answer["storage"]) == ("everything", "s3://bucket/1")
    assert (answer["state"], answer["age_s"], answer["read_s"]) == ("read", 0.0, START_S)
    shown = msgspec.convert(answer["picture"], Picture)
    assert shown == picture
    assert status_of(shown) == status_of(picture)
    assert answer["picture"]["recent"] == _json(with_null_times(picture.recent))


def _json(facts: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(facts))


def test_a_pipeline_is_named_if_there_are_several(store: WatchedStore) -> None:
    with client(watched(store), watched(WatchedStore(), number=2)) as at:
        listed = at.get("/api/v1/pipelines").json()
        assert [of["pipeline"] for of in listed] == ["everything", "storage-2"]
        assert [of["state"] for of in listed] == ["read", "empty"]
        assert [of["step"] for of in listed] == [3, None]
        assert at.get("/api/v1/picture?pipeline=storage-2").json()["picture"] is None
        for wrong in ("", "?pipeline=other"):
            answer = at.get(f"/api/v1/picture{wrong}")
            assert answer.status_code == 404
            assert answer.json()["pipelines"] == ["everything", "storage-2"]


def test_a_storage_that_cannot_be_read_is_said_so_everywhere(store: WatchedStore) -> None:
    clock = StoppedClock()
    with client(watched(store, clock)) as at:
        assert at.get("/readyz").json()["ready"] is True
        store.fails, clock.now_s = "no route to host", 10.0
        ready = at.get("/readyz")
        assert ready.status_code == 503
        (of,) = ready.json()["pipelines"]
        assert (of["ready"], of["state"]) == (False, "unreachable")
        assert "no route to host" in of["why"]
        assert at.get("/healthz").status_code == 200, "the process itself is well"
        (listed,) = at.get("/api/v1/pipelines").json()
        assert (listed["state"], listed["unreachable_since_s"]) == ("unreachable", START_S + 10)
        answer = at.get("/api/v1/picture").json()
        assert (answer["state"], answer["age_s"]) == ("unreachable", 10.0)
        assert answer["picture"]["step"] == 3, "as it was last known"
        everything = "".join(at.get(path).text for path in PATHS)
        assert "secret" not in everything


def test_a_pipeline_without_a_leader_is_ready_to_be_shown(store: WatchedStore) -> None:
    with client(watched(store)) as at:
        ready = at.get("/readyz")
    assert ready.status_code == 200
    (of,) = ready.json()["pipelines"]
    assert (of["leader"], of["paused"]) == ("none", False)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(store: WatchedStore, method: str) -> None:
    with client(watched(store)) as at:
        for path in PATHS:
            answer = at.request(method, path)
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_there_are_no_web_sockets(store: WatchedStore) -> None:
    with client(watched(store)) as at, pytest.raises(WebSocketDisconnect):
        at.websocket_connect("/metrics").__enter__()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("127.0.0.1:9464", 200),
        ("[::1]:9464", 200),
        ("evil.example", 421),
        ("localhost.evil.example:9464", 421),
        ("", 421),
    ],
)
def test_only_known_hosts_are_answered_for(store: WatchedStore, host: str, status: int) -> None:
    with client(watched(store)) as at:
        for path in PATHS[:5]:
            assert at.get(path, headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("shown", "status"),
    [
        (None, 401),
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (f"Basic {TOKEN}", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (TOKEN, 401),
        ("Bearer", 401),
        ("Bearer \xe9", 401),
    ],
)
def test_a_token_is_needed_where_there_is_one(
    store: WatchedStore, shown: str | None, status: int
) -> None:
    headers = {} if shown is None else {"Authorization": shown.encode("latin-1")}
    with client(watched(store), access=Access(LOCAL.hosts, TOKEN)) as at:
        for path in PATHS[1:5]:
            answer = at.get(path, headers=headers)
            assert answer.status_code == status
            if status == 401:
                assert answer.headers["www-authenticate"].startswith("Bearer")
                assert "everything" not in answer.text
        assert at.get("/healthz", headers=headers).status_code == 200


class Broken(StorageWatcher):
    """A watcher with a defect."""

    def reading(self) -> Reading:
        raise RuntimeError("a secret value")


def test_every_answer_has_the_security_headers(store: WatchedStore) -> None:
    with client(watched(store), access=Access(LOCAL.hosts, TOKEN)) as at:
        token = {"Authorization": f"Bearer {TOKEN}"}
        answers = [
            *(at.get(path, headers=token) for path in PATHS),
            at.get("/metrics"),
            at.get("/metrics", headers={"Host": "evil.example"}),
            at.post("/metrics"),
        ]
    with client(Broken(1, store, "x")) as at:
        failed = at.get("/metrics")
    assert failed.status_code == 500
    assert "secret" not in failed.text
    assert {answer.status_code for answer in answers} == {200, 404, 401, 421, 405}
    for answer in [*answers, failed]:
        for name, value in SECURITY_HEADERS.items():
            assert answer.headers[name] == value, (answer.url, name)


def test_an_answer_has_a_bounded_size(store: WatchedStore) -> None:
    picture = PipelineObserver(store).look(NOW_US)
    assert picture is not None
    long = {
        name: msgspec.structs.replace(of, position={"files": ["x" * MOST_BYTES]})
        for name, of in picture.injectors.items()
    }
    with_positions = msgspec.structs.replace(picture, injectors=long)
    reading = Reading("p", "x", "read", with_positions, 0.0, 0.0, None)
    answer = picture_answer(reading)
    assert answer is not None
    assert len(answer) < MOST_BYTES
    shown = msgspec.json.decode(answer)["picture"]["injectors"]["items"]
    assert (shown["position"], shown["skipped"]) == (None, 0)
    even_so = msgspec.structs.replace(picture, drained_hosts=["x" * MOST_BYTES])
    assert picture_answer(msgspec.structs.replace(reading, picture=even_so)) is None


def test_a_terminal_obeys_nothing_of_an_answer(store: WatchedStore) -> None:
    picture = PipelineObserver(store).look(NOW_US)
    assert picture is not None
    hostile = msgspec.structs.replace(picture, drained_hosts=["\x1b[31m\u202e"])
    answer = picture_answer(Reading("p", "x", "read", hostile, 0.0, 0.0, None))
    assert answer is not None
    assert "\x1b" not in answer.decode()
    assert "\u202e" not in answer.decode()
    assert msgspec.json.decode(answer)["picture"]["drained_hosts"] == ["\x1b[31m\u202e"]
