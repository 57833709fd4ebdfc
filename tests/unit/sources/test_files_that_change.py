"""Files that are written again, or renamed to names that are no input; and times that are put back."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace.errors import SourceChanged
from headrace.sources import Limit
from headrace.sources.files import folders, known, tracking
from headrace.sources.files.folders import LocalFolder
from headrace.storage import MemoryStore
from tests.unit.sources.test_files_as_others_write_them import LIMIT, Reader, lines, watched


def put_parquet(path: Path, *numbers: int) -> None:
    pyarrow.parquet.write_table(pa.table({"at": numbers, "n": numbers}), path)


# -- logs that are rotated to names that are no input ----------------------------------------------------


@pytest.mark.parametrize("pattern", ["", "*.jsonl", "app.jsonl"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_log_is_read_on_under_a_name_that_is_no_input(
    tmp_path: Path, pattern: str, restart: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "app.jsonl"
    log.write_text(lines(1))
    read = Reader(watched(tmp_path / pattern))
    assert read() == [1]
    with log.open("a") as writer:
        writer.write(lines(101))
        writer.flush()
        log.rename(tmp_path / "app.jsonl.1")
        log.write_text(lines(2))
        if restart:
            read = Reader(watched(tmp_path / pattern), read.position)
        assert sorted(read()) == [2, 101]
        writer.write(lines(102))  # (the program goes on with the old file for a while)
        writer.flush()
        assert read() == [102]
        writer.write(lines(103))
    (tmp_path / "app.jsonl.1").rename(tmp_path / "app.jsonl.2")
    log.rename(tmp_path / "app.jsonl.1")
    assert read() == [103]
    assert "written again" not in caplog.text
    (tmp_path / "app.jsonl.2").unlink()
    assert read() == []
    assert Reader(watched(tmp_path / pattern), read.position)() == []


def test_a_log_that_is_hidden_is_taken_away(tmp_path: Path) -> None:
    for name, to in (("a.jsonl", ".a.jsonl"), ("b.jsonl", "_b.jsonl")):
        (tmp_path / name).write_text(lines(1))
        read = Reader(watched(tmp_path))
        assert read() == [1]
        with (tmp_path / name).open("a") as file:
            file.write(lines(2))
        (tmp_path / name).rename(tmp_path / to)
        assert read() == []


# -- Parquet that is written again, and directories whose times are put back -----------------------------


@pytest.mark.parametrize("named", [64, 1])
@pytest.mark.parametrize("in_place", [True, False])
def test_parquet_that_is_written_again_is_read_again(
    tmp_path: Path, named: int, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "_NAMED_FILES", named)
    source = watched(tmp_path, format="parquet")
    source.open(MemoryStore())
    read = Reader(source)
    for n in range(5):
        put_parquet(tmp_path / f"{n}.parquet", n)
        assert read() == [n]
    put_parquet(tmp_path / ("0.parquet" if in_place else "_0"), 10, 11)
    if not in_place:
        (tmp_path / "_0").rename(tmp_path / "0.parquet")
    assert read() == [10, 11]
    assert read() == []


def test_a_directory_whose_time_is_put_back_shows_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "_FEW_FILES", 0)
    monkeypatch.setattr(folders, "_SETTLED_NS", 0)
    then = (1_000_000, 1_000_000)
    days: list[Any] = [tmp_path / "one", tmp_path / "two"]
    for n, folder in enumerate(days):
        folder.mkdir()
        put_parquet(folder / f"{n}.parquet", n)
        os.utime(folder, then)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "day=1").symlink_to(days[0])
    source = watched(tmp_path / "in", format="parquet")
    read = Reader(source)
    assert read(Limit(9, 1 << 20)) == [0]
    source._divider._tracker._next_sweep = 1e18
    put_parquet(days[0] / "3.parquet", 3)
    os.utime(days[0], then)
    assert read() == [3]
    (tmp_path / "in" / "day=1").unlink()
    (tmp_path / "in" / "day=1").symlink_to(days[1])
    assert read() == [1]


# -- where files are today --------------------------------------------------------------------------------


@pytest.mark.parametrize("act", ["renamed", "compressed", "rotated"])
def test_a_division_of_many_files_that_moved_is_found_by_one_look(
    tmp_path: Path, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 40
    for n in range(count):
        (tmp_path / f"{n:02d}.jsonl").write_text(lines(n))
    source = watched(tmp_path)
    offer = source.offer(source.start(), LIMIT)
    assert offer is not None
    for n in range(count):
        path = tmp_path / f"{n:02d}.jsonl"
        if act == "renamed":
            path.rename(tmp_path / f"moved-{n}.jsonl")
        elif act == "rotated":
            path.rename(tmp_path / f"{n:02d}.jsonl.1")
        else:
            (tmp_path / f"x{n}.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
        (tmp_path / f"new-{n}.jsonl").write_text(lines(1000 + n))
    looks: list[str] = []
    stat, opened = LocalFolder.facts, LocalFolder.open
    monkeypatch.setattr(LocalFolder, "facts", lambda s, of: looks.append(of) or stat(s, of))
    monkeypatch.setattr(LocalFolder, "open", lambda s, of: looks.append(of) or opened(s, of))
    source = watched(tmp_path)
    splits = source.splits(None, offer.end)
    assert len(looks) <= 10 * count
    assert [source.read(of)["n"].to_pylist() for of in splits] == [[n] for n in range(count)]


def test_parquet_that_is_written_again_before_it_is_read_again_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    put_parquet(path, 1, 2)
    content = path.read_bytes()
    source = watched(tmp_path, format="parquet")
    offer = source.offer(source.start(), LIMIT)
    assert offer is not None
    put_parquet(path, 3, 4)
    (split,) = watched(tmp_path, format="parquet").splits(None, offer.end)
    with pytest.raises(SourceChanged, match="other content"):
        source.read(split)
    path.write_bytes(content)
    assert source.read(split)["n"].to_pylist() == [1, 2]
