"""A layout says which worker reads a partition of the input; results do not depend on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.cli import main
from headrace.control.control import Control
from headrace.errors import ChangeRefused
from headrace.storage import LocalStore, MemoryStore, Store
from headrace.tasks.read_task import ReadTask
from headrace.testing import Harness, drive
from tests.support.records import Item
from tests.support.visits import Count

PARTITIONS = ["a", "b", "c", "d", "e"]


def driven(store: Store | None = None) -> Harness:
    pipeline = hr.Pipeline("read")
    stream = pipeline.inject("items", hr.sources.Inbox(MemoryStore(), Item, event_time="at"))
    pipeline.compute("count", Count(), keys={stream: "key"})
    settings = hr.Settings(exchange="shuffle")  # (tasks read)
    return drive(pipeline, storage=store or MemoryStore(), workers=3, settings=settings)


@pytest.fixture
def read_by(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    original = ReadTask._read_split

    def noting(self: ReadTask, name: str, number: int, split: Any) -> None:
        found.setdefault(split.partition, set()).add(self.worker)
        original(self, name, number, split)

    monkeypatch.setattr(ReadTask, "_read_split", noting)
    return found


def push(t: Harness, at: int) -> None:
    for n, partition in enumerate(PARTITIONS):
        t.push("items", Item(f"k{n}", n, at), partition=partition)
    t.run()


def test_partitions_are_read_where_they_are_assigned_and_the_others_in_turn(
    read_by: dict[str, set[int]],
) -> None:
    with driven() as t:
        push(t, 1)
        assert set().union(*read_by.values()) == {0, 1, 2}
        t.assign_partitions("items", {"a": 2, "b": 2, "c": 2, "d": 2})
        read_by.clear()
        push(t, 2)
        t.crash()
        push(t, 3)
        assert [read_by[name] for name in "abcd"] == [{2}] * 4, "it is kept over crashes"
        t.assign_partitions("items", {"a": None, "b": 0})
        read_by.clear()
        push(t, 4)
        assert (read_by["b"], read_by["c"]) == ({0}, {2})
        assert [t.state("count", f"k{n}")["seen"] for n in range(5)] == [4] * 5


def test_drained_workers_read_nothing(read_by: dict[str, set[int]]) -> None:
    with driven() as t:
        push(t, 1)
        t.assign_partitions("items", {"a": 1})
        t.drain_workers(1).wait()
        read_by.clear()
        push(t, 2)
        push(t, 3)
        assert set().union(*read_by.values()) == {0, 2}
        with pytest.raises(ChangeRefused, match="worker 1 is drained"):
            t.assign_partitions("items", {"b": 1})


def test_what_is_not_there_is_refused() -> None:
    with driven() as t:
        push(t, 1)
        with pytest.raises(ChangeRefused, match="there is no injector 'hits'"):
            t.assign_partitions("hits", {"a": 1})
        with pytest.raises(ChangeRefused, match="there is no worker 7"):
            t.assign_partitions("items", {"a": 7})


def test_the_layout_shows_who_reads_what(tmp_path: Path) -> None:
    with driven(LocalStore(tmp_path)) as t:
        push(t, 1)
        t.assign_partitions("items", {"a": 2})
    found = CliRunner().invoke(main, ["layout", "--storage", str(tmp_path)])
    assert "injector items is read: a by worker 2; others in turn" in found.output
    ask = ["assign-partitions", "items", "a=1", "b=", "--storage", str(tmp_path), "--wait", "0"]
    assert CliRunner().invoke(main, ask).exit_code == 0
    wrong = CliRunner().invoke(main, [*ask[:2], "a", "--storage", str(tmp_path)])
    assert wrong.exit_code == 2
    with driven(LocalStore(tmp_path)) as t:
        push(t, 2)
        assert Control(tmp_path).head().layout_rules.reading == {"items": {"a": 1}}
