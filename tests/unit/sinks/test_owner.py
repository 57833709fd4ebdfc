"""An output directory belongs to one storage: results of two runs are never mixed in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.errors import SinkConflict
from headrace.pipeline.sink import Deliverer
from headrace.sinks.owner import OutputOwner
from headrace.storage import LocalStore, MemoryStore
from headrace.storage.base import Store

MARK = "_headrace/owner-jsonl"


class Item(msgspec.Struct):
    key: str
    at: int


class Count(hr.Computation):
    count = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += 1
        ctx.produce("out", self.count.value)


def run(storage: Path, out: Path, items: int = 6, rows: int = 2, name: str = "counts") -> None:
    """Read so many items, in steps of so many, and deliver the counts."""
    pipeline = hr.Pipeline(name)
    found = [Item("ab"[number % 2], number) for number in range(items)]
    stream = pipeline.inject(
        "items",
        hr.sources.Iterable(found, Item, event_time="at"),
        watermark=hr.ascending(),
    )
    node = pipeline.compute("count", Count(), keys={stream: "key"})
    pipeline.sink("lines", node, hr.sinks.Files(out))
    pipeline.sink("table", node, hr.sinks.Files(out, format="csv"))
    settings = hr.Settings(limit=hr.Limit(rows, 1 << 20))
    with hr.run(pipeline, storage=storage, runner="inline", settings=settings) as job:
        job.catch_up()


def content(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder, by their names in it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_storage_that_was_deleted_does_not_add_to_what_its_run_has_written(
    tmp_path: Path,
) -> None:
    storage, out = tmp_path / "storage", tmp_path / "out"
    run(storage, out, items=6)
    before = content(out)
    shutil.rmtree(storage)
    with pytest.raises(SinkConflict, match="the directory belongs to another run") as found:
        run(storage, out, items=6, rows=3)
    assert "sink 'lines' of pipeline 'counts'" in found.value.what
    assert MARK in found.value.remedy
    assert content(out) == before
    shutil.rmtree(out)
    run(storage, out, items=6, rows=3)
    assert len([name for name in content(out) if name.endswith(".jsonl")]) == 2, "all is delivered"


def test_two_pipelines_that_write_the_same_bytes_do_not_share_a_directory(tmp_path: Path) -> None:
    run(tmp_path / "one", tmp_path / "out")
    before = content(tmp_path / "out")
    with pytest.raises(SinkConflict, match="of pipeline 'counts', with storage"):
        run(tmp_path / "other", tmp_path / "out", name="others")
    assert content(tmp_path / "out") == before


def test_a_run_goes_on_in_the_directory_of_its_storage_also_if_the_storage_was_moved(
    tmp_path: Path,
) -> None:
    run(tmp_path / "storage", tmp_path / "out", items=4)
    shutil.move(tmp_path / "storage", tmp_path / "moved")
    run(tmp_path / "moved", tmp_path / "out", items=8)
    found = content(tmp_path / "out")
    assert sorted(name for name in found if name[0] == "_") == ["_headrace/owner-csv", MARK]
    lines = b"".join(data for name, data in found.items() if name.endswith(".jsonl"))
    assert lines.count(b"\n") == 8, "each result once"


def test_a_directory_of_a_version_without_owners_goes_on_with_its_storage(tmp_path: Path) -> None:
    storage, out = tmp_path / "storage", tmp_path / "out"
    run(storage, out, items=4)
    for name in (MARK, "_headrace/owner-csv"):
        (out / name).unlink()
    run(storage, out, items=8)
    assert (out / MARK).exists(), "from now on it has an owner"


def test_a_directory_of_a_version_without_owners_is_not_added_to_by_another_storage(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    run(tmp_path / "storage", out, items=6)
    (out / MARK).unlink()
    before = content(out)
    with pytest.raises(SinkConflict, match=r"\d files of another run are there: step-0"):
        run(tmp_path / "new", out, items=6, rows=1)
    assert content(out) == before


def test_a_copy_of_a_storage_does_not_deliver_to_the_directory_of_the_original(
    tmp_path: Path,
) -> None:
    run(tmp_path / "storage", tmp_path / "out", items=4)
    Checkpoints(LocalStore(tmp_path / "storage")).copy(None, LocalStore(tmp_path / "copy"))
    with pytest.raises(SinkConflict, match="belongs to another run"):
        run(tmp_path / "copy", tmp_path / "out", items=8)
    run(tmp_path / "storage", tmp_path / "out", items=8)


def owner(store: Store, steps: list[int]) -> OutputOwner:
    return OutputOwner(store, "jsonl", lambda: steps)


def test_of_two_runs_that_take_a_directory_at_the_same_time_one_is_refused() -> None:
    store = MemoryStore()
    one = frozenset({1})
    first = Deliverer("1", "s1", "p", "out", pending=one)
    second = Deliverer("2", "s2", "p", "out", pending=one)

    def steps() -> list[int]:  # it has looked for an owner, and found none
        owner(store, []).check(first)
        return []

    with pytest.raises(SinkConflict, match="with storage s1"):
        OutputOwner(store, "jsonl", steps).check(second)


def test_an_owner_that_cannot_be_read_is_nobody_that_is_known() -> None:
    store = MemoryStore()
    store.create(MARK, b"{}")
    with pytest.raises(SinkConflict, match="cannot be read"):
        owner(store, []).check(Deliverer("1", "s", "p", "out", pending=frozenset({1})))


@pytest.mark.parametrize(
    ("delivered", "pending", "there", "is_ours"),
    [
        (-1, {3}, [], True),
        (-1, {3}, [3], True),
        (-1, {3}, [2], False),
        (-1, {3}, [4], False),
        (-1, {3, 5}, [3, 5], True),
        (7, {9}, [1, 2, 7, 9], True),
        (7, {9}, [8], True),
        (7, {9}, [10], False),
    ],
)
def test_without_an_owner_only_what_the_storage_may_have_delivered_is_its_own(
    delivered: int, pending: set[int], there: list[int], is_ours: bool
) -> None:
    run = Deliverer("1", "s", "p", "out", delivered, frozenset(pending))
    store = MemoryStore()
    if is_ours:
        owner(store, there).check(run)
        owner(store, [*there, 99]).check(run)  # it has an owner now
        return
    with pytest.raises(SinkConflict, match="1 files of another run"):
        owner(store, there).check(run)
    assert store.list("") == []
