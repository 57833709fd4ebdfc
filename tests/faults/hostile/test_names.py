"""Names from storage are checked in one place, for all stores, before anything is done under them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headrace.checkpoints.catalog import Checkpoints
from headrace.errors import Damaged, HeadraceError, PipelineError, UnsafeName
from headrace.keyspace.layout import Bin
from headrace.ledger.envelope import read_document
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import MANIFESTS, Manifest, manifest_name
from headrace.runfiles.format import FileRef
from headrace.sources.files.catalog import Catalogs, _digest
from headrace.sources.files.position import FORM, CatalogRef, decoded
from headrace.sources.inbox.position import position_of
from headrace.storage import LocalStore, MemoryStore, Store, open_store
from headrace.storage.base import Store as Base
from headrace.storage.cache import CachedStore
from headrace.storage.hdfs import HdfsStore
from headrace.storage.soft import HostFiles, WithSoftFiles
from tests.faults.hostile.left_in_storage import gone_on
from tests.faults.hostile.spoiling import NAMES, sealed
from tests.support.checkpointed import driven
from tests.support.packing import packing

#: Names that a store may have ("~" is a character like others: no store expands it).
INSIDE = ("runs", "manifests/000000000000", "cleaned", "~")
OUTSIDE = [name for name in NAMES if name not in INSIDE]
STORES = ["local", "memory", "s3", "hdfs", "cache", "soft", "host"]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    match request.param:
        case "local":
            return LocalStore(tmp_path / "store")
        case "memory":
            return MemoryStore()
        case "cache":
            return CachedStore(MemoryStore(), 1 << 20)
        case "soft":
            return WithSoftFiles(MemoryStore(), HostFiles(tmp_path / "host"))
        case "host":
            return HostFiles(tmp_path / "host")
        case remote:
            return open_store(request.getfixturevalue(remote).location())


@pytest.mark.parametrize("name", OUTSIDE, ids=range(len(OUTSIDE)))
def test_no_store_does_anything_under_a_name_that_leads_outside(name: str, store: Store) -> None:
    for do in (
        lambda: store.create(name, b"x"),
        lambda: store.write(name, b"x"),
        lambda: store.write_all({"good": b"x", name: b"x"}),
        lambda: store.read(name),
        lambda: store.read(name, 0, 1),
        lambda: store.settle(name),
        lambda: store.delete(name),
    ):
        with pytest.raises(UnsafeName) as refused:
            do()
        assert len(str(refused.value)) < 600
        assert str(refused.value).isprintable() or "\n" in str(refused.value)
        assert "\x1b" not in str(refused.value)


def test_a_store_of_a_user_s_own_is_behind_the_gate_too() -> None:
    class Own(Base):
        location = ""

        def create(self, name: str, data: bytes) -> None: ...
        def write(self, name: str, data: bytes) -> None: ...
        def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
            return b""

        def list(self, prefix: str) -> list[str]:
            return []

        def delete(self, name: str) -> None: ...

    for do in (Own().read, Own().delete, Own().list):
        with pytest.raises(UnsafeName):
            do("../victim")


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, -1), (2**60, 1), (0, 2**60)])
def test_a_range_that_no_file_has_is_refused(store: Store, offset: int, length: int) -> None:
    store.write("name", b"x") if not isinstance(store, HostFiles) else store.write("n/ame", b"x")
    with pytest.raises(Damaged):
        store.read("name", offset, length)


def test_memory_is_taken_for_what_is_there_and_not_for_what_is_asked(store: Store) -> None:
    store.write("name", b"content")
    assert store.read("name", 3, 1 << 45) == b"tent"


# -- links ------------------------------------------------------------------------------------


def test_a_link_that_leads_out_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    victim = outside / "000000000001-e1-t0-l0-w0-a9"
    victim.write_bytes(b"of another")
    root = tmp_path / "store"
    root.mkdir()
    (root / "runs").symlink_to(outside)
    store = LocalStore(root)
    for do in (
        lambda: store.read(f"runs/{victim.name}"),
        lambda: store.delete(f"runs/{victim.name}"),
        lambda: store.write("runs/new", b"x"),
        lambda: store.create("runs/new", b"x"),
        lambda: store.list("runs/"),
    ):
        with pytest.raises(UnsafeName):
            do()
    store.tidy()
    assert [path.name for path in outside.iterdir()] == [victim.name]


def test_a_link_within_the_directory_and_the_directory_itself_as_one_are_followed(
    tmp_path: Path,
) -> None:
    (tmp_path / "there" / "disk").mkdir(parents=True)
    (tmp_path / "store").symlink_to(tmp_path / "there")
    (tmp_path / "there" / "runs").symlink_to(tmp_path / "there" / "disk")
    store = LocalStore(tmp_path / "store")
    store.create("runs/name", b"x")
    assert store.read("runs/name") == b"x"


def test_a_link_is_deleted_and_what_it_leads_to_is_not(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"x")
    (tmp_path / "store" / "runs").mkdir(parents=True)
    (tmp_path / "store" / "runs" / "link").symlink_to(victim)
    store = LocalStore(tmp_path / "store")
    with pytest.raises(UnsafeName):
        store.read("runs/link")
    store.delete("runs/link")
    assert victim.exists() and store.list("runs/") == []


# -- manifests --------------------------------------------------------------------------------


def spoilt_head(store: Store, **changes: Any) -> None:
    """Let the newest manifest be a well-sealed base that says something else."""
    head = Ledger(store).open()
    assert head is not None
    name = manifest_name(head.step)
    newest = MANIFESTS.decode(store.read(name), name)
    before = Ledger(store).open(head.step - 1)
    assert before is not None
    base = msgspec.to_builtins(msgspec.structs.replace(before, **changes))
    spoilt = {**msgspec.to_builtins(newest), "base": base, "boundary": head.step}
    body = msgspec.json.encode(spoilt)
    store.delete(name)
    store.write(name, sealed(b"headrace-manifest", body))


def stopped(directory: Path) -> LocalStore:
    """Return the storage of a pipeline that has stopped."""
    store = LocalStore(directory)
    with packing("files"):
        driven(store, steps=6).close()
    return store


@pytest.mark.parametrize(
    "name", ["../victim", "absolute", "../victims/000000000001-e1-t0-l1-w0-a1"]
)
def test_clean_up_deletes_nothing_outside(tmp_path: Path, name: str) -> None:
    store = stopped(tmp_path / "store")
    victim = tmp_path / ("victim" if name == "absolute" else name.removeprefix("../"))
    victim.parent.mkdir(exist_ok=True)
    victim.write_bytes(b"of another")
    spoilt_head(store, dead=[(str(victim) if name == "absolute" else name, 1)])
    found = list(Checkpoints(store).verify())
    assert any("name" in of.what or "dead" in of.what for of in found), found
    with pytest.raises(HeadraceError):
        Checkpoints(store).clean(10**15)
    with pytest.raises(HeadraceError), gone_on(store) as harness:
        for _ in range(4):
            harness.clock("+10s")
            harness.step()
    assert victim.read_bytes() == b"of another"


def test_a_copy_writes_nothing_outside(tmp_path: Path) -> None:
    store = stopped(tmp_path / "store")
    head = Ledger(store).open()
    assert head is not None
    run = head.runs[-1]
    (tmp_path / "victim").write_bytes(store.read(run.name))
    spoilt_head(store, runs=[msgspec.structs.replace(run, name="../victim")])
    target = tmp_path / "deep" / "copy"
    with pytest.raises(Damaged):
        Checkpoints(store).copy(None, LocalStore(target))
    assert not (tmp_path / "deep" / "victim").exists()


def test_a_link_in_place_of_a_folder_is_not_swept(tmp_path: Path) -> None:
    store = stopped(tmp_path / "store")
    outside = tmp_path / "outside"
    outside.mkdir()
    victim = outside / "000000000001-e1-t0-l0-w0-a9"
    victim.write_bytes(b"of another")
    streams = tmp_path / "store" / "streams"
    streams.rename(tmp_path / "kept")
    streams.symlink_to(outside)
    with pytest.raises(UnsafeName):
        Checkpoints(store).clean(10**15)
    assert victim.exists()


#: A reference that is in order.
RUN: dict[str, Any] = msgspec.to_builtins(
    FileRef("runs/000000000001-e1-t0-l1-w0-a1", 9, "0" * 16, 1, 1, 0, ["cells"], "x")
)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("boundary", 10**12),
        ("bases", [10**14]),
        ("step", 10**14),
        ("epoch", 2**63),
        ("layout", [10**6, [[0, 1, 0]], ""]),
        ("layout", [3, [[3, 2**40, 0]], ""]),
        ("layout", [3, [[3, 8, 5]], ""]),
        ("layout", [3, [[64, 2, 0]], ""]),
        ("layout", [3, [], ""]),
        ("dead", [["intents/000000000000", 1]]),
        ("dead", [["manifests/../victim", 1]]),
        ("oldest_manifest", 10**6),
        ("oldest_manifest", -2),
        ("runs", [{**RUN, "pack": "../victim"}]),
        ("runs", [{**RUN, "pack": "runs/000000000001-e1-t0-l1-w0-a1"}]),
        ("runs", [{**RUN, "offset": -1}]),
        ("commands", -1),
        ("done", 2**60),
        ("identity", {"computations": {"cells": 7}}),
        ("identity", {"groups": ["g"] * 300}),
        ("slices", {"0": {"number": 0, "of": 3, "as_of": 0, "files": []}}),
        ("slices", {"0": {"number": 0, "of": 2**40, "as_of": 0, "files": []}}),
    ],
)
def test_numbers_and_shapes_that_cannot_have_been_written_are_damage(
    field: str, value: Any
) -> None:
    store = MemoryStore()
    with packing("files"):
        driven(store, steps=3).close()
    head = Ledger(store).open()
    assert head is not None
    name = manifest_name(head.step)
    before = msgspec.to_builtins(Ledger(store).open(head.step - 1))
    spoilt = msgspec.json.decode(store.read(name).split(b"\n")[1])
    spoilt["base"] = {**before, field: value}
    store.write(name, sealed(b"headrace-manifest", msgspec.json.encode(spoilt)))
    with pytest.raises(Damaged) as refused:
        Ledger(store).open()
    assert name in str(refused.value)
    assert next(finding.file for finding in Checkpoints(store).verify()) == name


def test_what_was_written_is_within_the_bounds() -> None:
    """(Every manifest of a run can be read again: bounds are not narrower than what is written.)"""
    store = MemoryStore()
    driven(store, steps=9).close()
    for name in store.list("manifests/"):
        document = read_document(store, name)
        manifest = MANIFESTS.decode(document, name)
        assert isinstance(manifest, Manifest)
        is_followed = len(document) < len(store.read(name))
        padded_to = len(document) if is_followed else None
        assert MANIFESTS.encode(manifest, padded_to=padded_to) == document
    assert isinstance(Ledger(store).open(), Head)


@pytest.mark.parametrize(
    "text",
    ["0110/4,0111/4", "0110/4x", "0110/", "0110/3", "0110/04", "1/0", "", "/4", "0" * 65, "²"],
)
def test_a_text_that_names_no_bin_is_refused(text: str) -> None:
    with pytest.raises(PipelineError):
        Bin.named(text)


# -- positions --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../victim", "/etc/passwd", "a/../../b", "a\0b"])
def test_a_position_leads_no_source_of_files_out_of_its_folder(name: str) -> None:
    newest = {"form": FORM, "parts": [{"name": name, "first": 0, "last": 1}]}
    older = [{"name": name}, {"parts": [[name, 0, 1]]}] if name[0] != "/" else []
    for position in (newest, *older):
        with pytest.raises(Damaged, match="leads out of the folder"):
            decoded(position)
    assert decoded({"form": FORM, "parts": [{"name": "a..b/é \x1b", "first": 0, "last": 1}]})


@pytest.mark.parametrize(
    "position", [7, [], {"form": FORM, "files": 3}, {"next": {"ann": -7}}, {"parts": "x"}]
)
def test_a_position_that_is_none_is_damage(position: Any) -> None:
    with pytest.raises(Damaged):
        position_of(position)
    if not isinstance(position, dict) or "next" not in position:
        with pytest.raises(Damaged):
            decoded(position)


@pytest.mark.parametrize("size", [0, 7, 1 << 40, (1 << 64) - 1])
def test_a_catalog_that_says_more_than_it_has_is_damage(size: int) -> None:
    store = MemoryStore()
    data = size.to_bytes(8, "big") + pa.compress(b"x" * 100, "zstd", asbytes=True)
    name = f"files-read/owner/{_digest(data)}"
    store.write(name, data)
    for file in (name, "files-read", "x/y/z"):
        with pytest.raises((Damaged, UnsafeName)):
            Catalogs(store, "owner").load([CatalogRef(file, 1)])


def test_files_of_a_user_may_have_any_name_in_hdfs(hdfs: Any) -> None:
    store = HdfsStore(hdfs.location())
    for name in ("a b.jsonl", "é.jsonl", ".hidden"):
        store._client.write(store._path(name), b"content")
        assert store.read_file(name, 1, 3) == b"ont"
        with pytest.raises(UnsafeName):
            store.read(name)
