"""What every store must do; the same tests for each backend.

Remote ones are real servers, started once for all tests (`tests/support/s3server.py`, `hdfs.py`).
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import AlreadyExists, NotFound, PipelineError
from headrace.storage import LocalStore, MemoryStore, Store, open_store
from tests.support.races import winners


@pytest.fixture(params=["memory", "local", "s3", "hdfs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "memory":
            return MemoryStore()
        case "local":
            return LocalStore(tmp_path / "store")
        case remote:
            return open_store(request.getfixturevalue(remote).location())


def test_what_was_created_is_read(store: Store) -> None:
    store.create("a/b", b"content")
    assert store.read("a/b") == b"content"
    assert store.read("a/b", 2, 3) == b"nte"
    assert store.read("a/b", 5) == b"nt"
    assert store.read("a/b", 5, 100) == b"nt"


@pytest.mark.parametrize("content", [b"", b"content"])
def test_nothing_is_read_behind_the_end(store: Store, content: bytes) -> None:
    store.create("name", content)
    for offset in (len(content), len(content) + 1, 1000):
        assert store.read("name", offset) == b""
        assert store.read("name", offset, 3) == b""
    assert store.read("name", 2, 0) == b""


@pytest.mark.parametrize("size", [100_000, 12_000_000])
def test_large_files_are_whole(store: Store, size: int) -> None:
    content = random.Random(size).randbytes(size)
    store.write_all({"a/1": content, "a/2": content[::-1], "a/3": b"", "a/4": b"x" * 2_000_000})
    assert store.read("a/1") == content
    assert store.read("a/2", size - 10) == content[:10][::-1]
    assert store.read("a/1", 70_000, 1000) == content[70_000:71_000]
    assert [len(store.read(name)) for name in store.list("a/")] == [size, size, 0, 2_000_000]


def test_a_name_is_created_once_and_never_changed(store: Store) -> None:
    store.create("name", b"first")
    with pytest.raises(AlreadyExists):
        store.create("name", b"second")
    assert store.read("name") == b"first"


def test_of_many_creators_one_wins(store: Store) -> None:
    won = winners(store, "name", 8)
    assert len(won) == 1
    assert store.read("name") == str(won[0]).encode()


def test_what_is_not_there_is_not_found(store: Store) -> None:
    for asked in [(), (5,), (0, 1), (0, 0)]:
        with pytest.raises(NotFound):
            store.read("nothing", *asked)


def test_deleting_is_idempotent(store: Store) -> None:
    store.write("name", b"x")
    store.delete("name")
    store.delete("name")
    with pytest.raises(NotFound):
        store.read("name")


def test_a_deleted_name_can_be_created_again(store: Store) -> None:
    """The commit protocol must not rely on the opposite; see tests/unit/ledger and
    tests/faults/interleavings."""
    store.create("name", b"first")
    store.delete("name")
    store.create("name", b"second")
    assert store.read("name") == b"second"


def test_names_are_listed_by_prefix_in_order(store: Store) -> None:
    for name in ("runs/2-b", "runs/1-a", "runs/10-c", "manifests/1"):
        store.write(name, b"")
    assert store.list("runs/") == ["runs/1-a", "runs/10-c", "runs/2-b"]
    assert store.list("runs/1") == ["runs/1-a", "runs/10-c"]
    assert store.list("nothing/") == []


def test_a_store_is_opened_again_by_its_location(store: Store) -> None:
    store.create("name", b"content")
    assert open_store(store.location).read("name") == b"content"


def test_a_failed_create_leaves_no_trace(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create("name", b"first")
    with pytest.raises(AlreadyExists):
        store.create("name", b"second")
    assert os.listdir(tmp_path) == ["name"]


def test_what_a_killed_process_was_writing_is_tidied_away(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create("a/name", b"content")
    for age, name in ((10_000, ".old.1-1.tmp"), (1, ".young.1-2.tmp")):
        (tmp_path / "a" / name).touch()
        now = (tmp_path / "a" / "name").stat().st_mtime
        os.utime(tmp_path / "a" / name, (now - age, now - age))
    store.tidy()
    assert sorted(os.listdir(tmp_path / "a")) == [".young.1-2.tmp", "name"]


def test_a_create_whose_temporary_file_was_tidied_away_makes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, link, removed = LocalStore(tmp_path), os.link, list[Path]()

    def after_a_stall(aside: Path, path: Path) -> None:
        if len(removed) < 2:
            removed.append(aside)
            aside.unlink()
        link(aside, path)

    monkeypatch.setattr(os, "link", after_a_stall)
    store.create("a/name", b"mine")
    assert store.read("a/name") == b"mine"
    assert len(set(removed)) == 2 and os.listdir(tmp_path / "a") == ["name"]
    with pytest.raises(AlreadyExists):
        store.create("a/name", b"again")


def test_a_create_in_a_directory_that_was_removed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "link", lambda aside, path: shutil.rmtree(path.parent) or aside.stat())
    with pytest.raises(NotFound):
        LocalStore(tmp_path).create("a/name", b"mine")


def test_what_a_killed_process_was_writing_stands_in_nobodys_way(tmp_path: Path) -> None:
    """In a container each process has the same number, and counts its files from 0 again."""
    write = (
        "import os, sys\n"
        "from headrace.storage import LocalStore\n"
        "os.getpid = lambda: 1\n"
        "if sys.argv[2] == 'killed': os.link = lambda *_: os._exit(9)\n"
        "LocalStore(sys.argv[1]).create('a/name', sys.argv[2].encode())\n"
    )
    for who, code in (("killed", 9), ("next", 0)):
        command = [sys.executable, "-c", write, str(tmp_path), who]
        assert subprocess.run(command, check=False).returncode == code
    assert LocalStore(tmp_path).read("a/name") == b"next"
    assert len(os.listdir(tmp_path / "a")) == 2, "the one that was killed did leave something"


class OwnStore(LocalStore):
    """A store of one's own."""


def test_a_location_may_name_a_store_of_ones_own(tmp_path: Path) -> None:
    found = open_store(f"{__name__}:OwnStore:{tmp_path}")
    assert isinstance(found, OwnStore)
    found.create("name", b"content")
    assert LocalStore(tmp_path).read("name") == b"content"
    with pytest.raises(PipelineError, match="Path is not a store"):
        open_store(f"pathlib:Path:{tmp_path}")


def test_a_local_store_whose_folder_was_removed_makes_it_again(tmp_path: Path) -> None:
    """A process may live longer than what it has written: the next pipeline has the same place."""
    store = LocalStore(tmp_path / "store")
    store.create("a/one", b"1")
    store.write("b/two", b"2")
    shutil.rmtree(tmp_path / "store")
    store.create("a/one", b"3")
    store.write("b/two", b"4")
    assert (store.read("a/one"), store.read("b/two")) == (b"3", b"4")
