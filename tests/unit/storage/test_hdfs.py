"""A real HDFS that refuses, or whose replies are lost: what callers are told."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from headrace.errors import (
    AlreadyExists,
    NotFound,
    PipelineError,
    StorageDenied,
    StorageError,
)
from headrace.storage import open_store
from headrace.storage.hdfs import HdfsStore
from tests.support import meddler
from tests.support.hdfs import Hdfs
from tests.support.races import winners


def at_renames(act: str) -> meddler.Plan:
    """Plan something for every rename."""
    return lambda method, path, conditional: act if "op=RENAME" in path else None


def behind(location: str, server: Hdfs, port: int) -> HdfsStore:
    return HdfsStore(location.replace(f":{server.port}/", f":{port}/"))


def test_of_many_creators_at_once_exactly_one_wins_and_nothing_is_left_aside(hdfs: Hdfs) -> None:
    store = HdfsStore(hdfs.location())
    for number in range(4):
        won = winners(store, f"race/{number}", 8)
        assert len(won) == 1
        assert store.read(f"race/{number}") == str(won[0]).encode()
    assert sorted(store._entries("race")) == [str(number) for number in range(4)]


def test_a_rename_whose_reply_was_lost_is_found_by_what_is_there(hdfs: Hdfs) -> None:
    location = hdfs.location()
    with meddler.meddling(hdfs.port, at_renames(meddler.CUT_REPLY)) as port:
        store = behind(location, hdfs, port)
        with pytest.raises(AlreadyExists):  # by this very call; the caller finds its own content
            store.create("name", b"mine")
        assert store.read("name") == b"mine"


def test_a_rename_that_was_never_made_is_not_taken_for_a_name_that_exists(hdfs: Hdfs) -> None:
    location = hdfs.location()
    with meddler.meddling(hdfs.port, at_renames(meddler.LOSE)) as port:
        store = behind(location, hdfs, port)
        with pytest.raises(StorageError) as raised:
            store.create("name", b"mine")
        assert not isinstance(raised.value, AlreadyExists)
        with pytest.raises(NotFound):
            store.read("name")
        assert store._entries("") == {}, "what was aside is gone"


def test_what_a_killed_process_was_writing_is_tidied_away(hdfs: Hdfs) -> None:
    store = HdfsStore(hdfs.location())
    for name in ("a/name", "a/.old.1-1.tmp", "a/.young.1-2.tmp"):
        store._client.write(store._path(name), b"")
    then = store._entries("a")["name"]["modificationTime"] - 10_000_000
    store._client.set_times(store._path("a/.old.1-1.tmp"), modification_time=then)
    store.tidy()
    assert sorted(store._entries("a")) == [".young.1-2.tmp", "name"]
    assert store.list("a/") == ["a/name"]


def test_a_create_whose_temporary_file_was_tidied_away_makes_another(
    hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HdfsStore(hdfs.location())
    rename, removed = store._client.rename, list[str]()

    def after_a_stall(old: str, new: str) -> None:
        if len(removed) < 2:
            removed.append(old)
            store._client.delete(old)
        rename(old, new)

    monkeypatch.setattr(store._client, "rename", after_a_stall)
    store.create("a/name", b"mine")
    assert store.read("a/name") == b"mine"
    assert len(set(removed)) == 2 and sorted(store._entries("a")) == ["name"]
    with pytest.raises(AlreadyExists):
        store.create("a/name", b"again")


def every_operation(store: HdfsStore) -> dict[str, Callable[[], object]]:
    return {
        "create": lambda: store.create("a/name", b"x"),
        "write": lambda: store.write("a/name", b"x"),
        "read": lambda: store.read("a/name"),
        "read a range": lambda: store.read("a/name", 1, 4),
        "list": lambda: store.list("a/"),
        "delete": lambda: store.delete("a/name"),
    }


def test_a_user_without_the_right_is_told_so(hdfs: Hdfs, monkeypatch: pytest.MonkeyPatch) -> None:
    location = hdfs.location()
    owner = HdfsStore(location)
    owner.write("a/name", b"content")
    owner._client.set_permission(owner._root, "700")
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    for name, operation in every_operation(HdfsStore(location)).items():
        with pytest.raises(StorageDenied) as raised:
            operation()
        assert "HADOOP_USER_NAME" in raised.value.remedy, name
    assert owner.read("a/name") == b"content"


@pytest.mark.parametrize("act", [meddler.CUT_REPLY, meddler.LOSE])
def test_what_may_be_done_twice_is_tried_again_where_it_fails(hdfs: Hdfs, act: str) -> None:
    location = hdfs.location()
    wanted = ["op=DELETE", "op=LISTSTATUS", "op=CREATE", "op=OPEN"]
    met: list[str] = []

    def once(method: str, path: str, conditional: bool) -> str | None:
        found = next((op for op in wanted if op in path and op not in met), None)
        if found is None:
            return None
        met.append(found)
        return act

    with meddler.meddling(hdfs.port, once) as port:
        store = behind(location, hdfs, port)
        store.write("a/two", b"2")
        assert store.read("a/two") == b"2"
        assert store.list("a/") == ["a/two"]
        store.delete("a/two")
        assert store.list("a/") == []
    assert sorted(met) == sorted(wanted)


def test_a_name_node_that_is_not_there_is_a_typed_error() -> None:
    with pytest.raises(StorageError, match="could not be asked") as raised:
        HdfsStore("webhdfs://127.0.0.1:1/x").read("name")
    assert type(raised.value) is StorageError, "and not that it is not there"


@pytest.mark.parametrize(
    ("location", "instead"),
    [
        ("webhdfs://host/path", "webhdfs://"),
        ("webhdfs://host:1", "webhdfs://"),
        ("webhdfs://host:1/", "webhdfs://"),
        ("webhdfs://host:x/y", "webhdfs://"),
        ("webhdfs://me@host:1/path", "webhdfs://"),
        ("hdfs://host:1/path", "webhdfs://"),
        ("ftp://host/path", "webhdfs://"),
        ("s3a://bucket", "s3://"),
    ],
)
def test_a_location_that_is_none_is_refused(location: str, instead: str) -> None:
    with pytest.raises(PipelineError) as raised:
        open_store(location)
    assert instead in raised.value.remedy


def test_without_the_library_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs", None)
    with pytest.raises(PipelineError, match=r"headrace\[hdfs\]"):
        HdfsStore("webhdfs://host:1/x")
