"""Soft files on a host go when no step needs them any more."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import StateLost
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from headrace.storage.soft import HostFiles, WithSoftFiles
from tests.machine.uncheckpointed.test_steps import Seen, draw, expected, finish, hits, start


def test_files_of_a_host_are_listed_by_folder_and_by_prefix(tmp_path: Path) -> None:
    files = HostFiles(tmp_path)
    for name in ("soft/x/l1-w0/1-a", "soft/x/l1-w0/2-a", "soft/x/l1-w1/1-a", "soft/y/l1-w0/1-a"):
        files.write(name, name.encode())
    assert files.list("soft/x/l1-w0/") == ["soft/x/l1-w0/1-a", "soft/x/l1-w0/2-a"]
    assert files.list("soft/x/l1-w0/2") == ["soft/x/l1-w0/2-a"]
    assert files.list("soft/z/") == []
    files.delete("soft/x/l1-w0/1-a")
    assert files.list("soft/x/l1-w0/") == ["soft/x/l1-w0/2-a"]
    both = WithSoftFiles(MemoryStore(), files)
    with pytest.raises(StateLost):
        both.read("soft/x/l1-w0/1-a")


def test_of_many_light_steps_only_the_newest_files_are_left(tmp_path: Path) -> None:
    left = []
    for files in (MemoryStore(), HostFiles(tmp_path)):
        runner, seen, items = InlineRunner(), Seen(), hits(600)
        runner._soft_files = files
        finish(start(draw(seen, items=items), MemoryStore(), every=5, runner=runner))
        assert seen.by_key == expected(600)
        on_disk = sum(path.is_file() for path in tmp_path.rglob("*"))
        left.append(len(files.list("")) if isinstance(files, MemoryStore) else on_disk)
    assert left[1] == left[0] < 30
