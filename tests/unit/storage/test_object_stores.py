"""An object store whose server loses replies, contradicts itself, or refuses: what callers are told.

The server is real; a proxy of the tests (`tests/support/meddler.py`) stands before it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

from headrace.errors import (
    AlreadyExists,
    HeadraceError,
    NotFound,
    PipelineError,
    StorageDenied,
    StorageError,
)
from headrace.storage import ObjectStore, open_store
from tests.support import meddler
from tests.support.races import winners
from tests.support.s3server import S3Server


@pytest.fixture
def behind(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Callable[[meddler.Plan], ObjectStore]:
    """Open a store of its own behind a proxy that does as is planned."""

    def make(plan: meddler.Plan) -> ObjectStore:
        context = meddler.meddling(s3.port, plan)
        port = context.__enter__()
        request.addfinalizer(lambda: context.__exit__(None, None, None))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        return ObjectStore(s3.location(), patience_s=10, pause=lambda _: None)

    return make


def to_first_creates(act: str, times: int) -> meddler.Plan:
    """Plan something for the first conditional puts."""
    left, lock = [times], threading.Lock()

    def plan(method: str, path: str, conditional: bool) -> str | None:
        with lock:
            if not conditional or not left[0]:
                return None
            left[0] -= 1
            return act

    return plan


def test_a_create_whose_reply_was_lost_is_unknown_and_read_back(
    behind: Callable[[meddler.Plan], ObjectStore],
) -> None:
    store = behind(to_first_creates(meddler.CUT_REPLY, 1))
    with pytest.raises(StorageError):  # (that it is taken, if the library has asked again)
        store.create("name", b"mine")
    assert store.read("name") == b"mine"


def test_a_create_that_failed_after_it_was_applied_may_find_itself(
    behind: Callable[[meddler.Plan], ObjectStore],
) -> None:
    """The library tries again after 500, and meets what the first request created."""
    store = behind(to_first_creates(meddler.FAIL_AFTER, 1))
    with pytest.raises(AlreadyExists):
        store.create("name", b"mine")
    assert store.read("name") == b"mine"


def test_a_create_that_met_another_one_is_tried_again(
    behind: Callable[[meddler.Plan], ObjectStore],
) -> None:
    store = behind(to_first_creates(meddler.CONFLICT, 2))
    store.create("name", b"mine")
    assert store.read("name") == b"mine"


def test_a_create_that_found_its_name_taken_is_not_sent_again_where_it_is_free_by_then(
    behind: Callable[[meddler.Plan], ObjectStore],
) -> None:
    """(It may have been taken by the first request of this create, which then was carried out twice.)"""
    fail_first, made = to_first_creates(meddler.FAIL_AFTER, 1), list[ObjectStore]()

    def plan(method: str, path: str, conditional: bool) -> str | None:
        if method == "HEAD":
            made[0].delete("name")
        return fail_first(method, path, conditional)

    made.append(behind(plan))
    with pytest.raises(AlreadyExists):
        made[0].create("name", b"mine")


def test_a_name_that_nobody_created_is_never_said_to_exist(
    behind: Callable[[meddler.Plan], ObjectStore],
) -> None:
    store = behind(to_first_creates(meddler.CONFLICT, 1000))
    with pytest.raises(StorageError, match="not known") as raised:
        store.create("name", b"mine")
    assert not isinstance(raised.value, AlreadyExists)
    with pytest.raises(NotFound):
        store.read("name")


def test_a_conflict_with_one_that_won_is_told_as_such(
    behind: Callable[[meddler.Plan], ObjectStore],
) -> None:
    store = behind(to_first_creates(meddler.CONFLICT, 1))
    store.write("name", b"another's")
    with pytest.raises(AlreadyExists):
        store.create("name", b"mine")
    assert store.read("name") == b"another's"


def test_reads_and_writes_go_on_after_lost_connections(
    behind: Callable[[meddler.Plan], ObjectStore],
) -> None:
    seen: dict[tuple[str, str], int] = {}
    lock = threading.Lock()

    def plan(method: str, path: str, conditional: bool) -> str | None:
        with lock:
            seen[method, path] = seen.get((method, path), 0) + 1
            return meddler.LOSE if seen[method, path] == 1 else None

    store = behind(plan)
    store.write("a/name", b"content")
    assert store.read("a/name", 1, 3) == b"ont"
    assert store.list("a/") == ["a/name"]
    store.delete("a/name")
    assert store.list("a/") == []
    assert all(times >= 2 for times in seen.values()), seen


def test_of_many_creators_at_once_exactly_one_wins_each_time(s3: S3Server) -> None:
    store = open_store(s3.location())
    for number in range(25):
        won = winners(store, f"race/{number}", 16)
        assert len(won) == 1
        assert store.read(f"race/{number}") == str(won[0]).encode()


def every_operation(store: ObjectStore) -> dict[str, Callable[[], object]]:
    return {
        "create": lambda: store.create("name", b"x"),
        "write": lambda: store.write("name", b"x"),
        "write_all": lambda: store.write_all({"a": b"x", "b": b"y"}),
        "read": lambda: store.read("name"),
        "read a range": lambda: store.read("name", 3, 4),
        "list": lambda: store.list("runs/"),
        "delete": lambda: store.delete("name"),
    }


def told(operation: Callable[[], object]) -> HeadraceError:
    with pytest.raises(HeadraceError) as raised:
        operation()
    return raised.value


def test_a_bucket_that_is_not_there_is_named(s3: S3Server) -> None:
    operations = every_operation(ObjectStore("s3://no-such-bucket/x"))
    del operations["delete"]  # what is not there is deleted already
    for name, operation in operations.items():
        error = told(operation)
        assert type(error) is StorageError, f"{name}: {error}"
        assert "the bucket is not there" in str(error)
        assert "s3://no-such-bucket/x" in str(error)


def test_wrong_credentials_are_a_typed_error_that_does_not_tell_them(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-that-is-wrong")
    for name, operation in every_operation(ObjectStore(s3.location())).items():
        error = told(operation)
        assert isinstance(error, StorageDenied), f"{name}: {error}"
        assert "403" in str(error)
        assert "AWS_ACCESS_KEY_ID" in error.remedy
        for text in (str(error), repr(error.__cause__), repr(error)):
            assert "a-secret" not in text
            assert "Signature=" not in text


def test_an_endpoint_where_nobody_is_is_a_typed_error(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for name, operation in every_operation(ObjectStore(s3.location(), patience_s=0)).items():
        error = told(operation)
        assert type(error) is StorageError, f"{name}: {error}"
        assert "AWS_ENDPOINT_URL" in error.remedy


@pytest.mark.parametrize(
    "location",
    [
        "s3://",
        "s3:///path",
        "s3://bucket/x#y",
        "s3://key:secret@bucket/x",
        "s3a://key:secret@bucket/x",
        "s3://key:secret@bucket/x?cache=1KiB",
        "s3://bucket/x?X-Amz-Signature=secret",
        "webhdfs://me:secret@host:1/x",
    ],
)
def test_a_location_that_is_none_is_refused(location: str) -> None:
    with pytest.raises(PipelineError) as raised:
        open_store(location)
    assert "secret" not in str(raised.value)


def test_without_the_library_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(PipelineError, match=r"headrace\[s3\]"):
        ObjectStore("s3://bucket/x")
