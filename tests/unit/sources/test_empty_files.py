"""Files that have nothing to read now: they hide no others, and are told of where they should be whole."""

from __future__ import annotations

import gzip
import logging
import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from headrace.errors import BadInput, SourceChanged
from headrace.sources import Limit
from headrace.sources.files import dividing, settling, tracking
from headrace.sources.files.folders import LocalFolder
from headrace.storage import MemoryStore
from tests.unit.sources.test_files_as_others_write_them import Reader, lines, watched


def empty_parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table({"at": pa.array([], "i8"), "n": pa.array([], "i8")}), sink)
    return bytes(sink.getvalue())


def one_parquet(*numbers: int) -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(pa.table({"at": numbers, "n": numbers}), sink)
    return bytes(sink.getvalue())


OF_NOTHING = {
    "empty": ("jsonl", b"", True),
    "empty, just now": ("jsonl", b"", False),
    "no rows": ("parquet", empty_parquet(), True),
    "torn gzip": ("jsonl.gz", gzip.compress(lines(9).encode())[:-12], True),
    "torn line": ("jsonl", b'{"at"', False),
    "no footer": ("parquet", one_parquet(9)[:-9], True),
}


@pytest.mark.parametrize(
    ("kind", "remembered"), [*((of, 100_000) for of in OF_NOTHING), ("empty", 3), ("no rows", 3)]
)
def test_files_that_give_nothing_hide_no_others(
    tmp_path: Path, kind: str, remembered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending, content, old = OF_NOTHING[kind]
    monkeypatch.setattr(dividing, "_STEP_FILES", 4)
    monkeypatch.setattr(tracking, "_WAITING_FILES", remembered)
    for n in range(10):
        path = tmp_path / f"a{n}.{ending}"
        path.write_bytes(content)
        if old:
            os.utime(path, (1_000_000, 1_000_000))
    is_text = "jsonl" in ending
    last = tmp_path / ("b.jsonl" if is_text else "b.parquet")
    last.write_bytes(lines(1).encode() if is_text else one_parquet(1))
    format = "jsonl" if is_text else "parquet"
    for watch in (True, False):
        source = watched(tmp_path, watch=watch, format=format)
        source.open(MemoryStore())
        offer = source.offer(source.start(), Limit(100, 1 << 20, open_ended=True))
        assert offer is not None
        (split,) = source.splits(None, offer.end)
        assert source.read(split)["n"].to_pylist() == [1]


@pytest.mark.parametrize("kind", ["torn line", "no footer"])
def test_files_are_looked_for_while_many_wait_that_give_nothing(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dividing, "_ENOUGH_FILES", 4)
    ending, content, _ = OF_NOTHING[kind]
    whole = lines(1).encode() if ending == "jsonl" else b""
    for n in range(10):
        (tmp_path / f"b{n}.{ending}").write_bytes(whole + content)
    read = Reader(watched(tmp_path, format=ending))
    assert read() == [1] * 10 * bool(whole)
    new = lines(999).encode() if ending == "jsonl" else one_parquet(999)
    (tmp_path / f"a.{ending}").write_bytes(new)
    assert read() == [999]


def test_a_time_that_is_to_come_counts_as_when_it_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(lines(1) + lines(2).rstrip())
    later = time.time() + 1_000_000
    os.utime(path, (later, later))
    read = Reader(watched(tmp_path))
    assert read() == [1]
    assert read() == []
    now = time.time_ns() + 2 * settling.SETTLED_NS
    monkeypatch.setattr(settling.time, "time_ns", lambda: now)
    assert read() == [2]


@pytest.mark.parametrize("watch", [True, False])
def test_a_torn_file_that_has_not_changed_for_a_minute_is_told_of_once(
    tmp_path: Path, watch: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(lines(1).encode())[:-12])
    source = watched(tmp_path, watch=watch)
    limit = Limit(100, 1 << 20, open_ended=True)
    with caplog.at_level(logging.WARNING, "headrace"):
        assert Reader(source)(limit) == []
        assert not caplog.records
        os.utime(path, (1_000_000, 1_000_000))
        for _ in range(2):
            assert Reader(source)(limit) == []
    assert ["ends in the middle" in of.message for of in caplog.records] == [True]


def test_a_path_that_matches_nothing_is_told_of_also_where_a_run_only_catches_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limit = Limit(100, 1 << 20, open_ended=True)
    source = watched(tmp_path / "typo" / "*.jsonl", watch=False)
    with pytest.raises(BadInput, match="matches no file"):
        Reader(source)(limit)
    with pytest.raises(BadInput, match="matches no file"):
        source.now(source.start())
    with caplog.at_level(logging.WARNING, "headrace"):
        source = watched(tmp_path, watch=False)
        source.now(source.start())
        assert Reader(source)(limit) == []
    assert ["matches no file so far" in of.message for of in caplog.records] == [True]
    assert Reader(watched(tmp_path))(limit) == []
    (tmp_path / "a.jsonl").write_text(lines(1))
    read = Reader(watched(tmp_path, watch=False))
    assert read(limit) == [1]
    (tmp_path / "a.jsonl").unlink()  # (files may go once they are read)
    assert Reader(watched(tmp_path, watch=False), read.position)(limit) == []


@pytest.mark.parametrize("name", ["in", "out.jsonl"])
def test_a_directory_that_comes_later_is_told_of(tmp_path: Path, name: str) -> None:
    read = Reader(watched(tmp_path / name))
    assert read() == []
    (tmp_path / name).mkdir()
    (tmp_path / name / "a.jsonl").write_text(lines(1))
    with pytest.raises(BadInput, match="end the path"):
        read()
    read = Reader(watched(tmp_path / name), read.position)
    assert read() == [1]
    (tmp_path / name).rename(tmp_path / "_away")
    with pytest.raises(SourceChanged, match="was a directory, and is none now"):
        Reader(watched(tmp_path / name), read.position)()
    (tmp_path / "_away").rename(tmp_path / name)
    assert Reader(watched(tmp_path / name), read.position)() == []


@pytest.mark.parametrize("kind", ["torn line", "no footer", "torn gzip"])
def test_files_that_wait_are_opened_again_when_they_change(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ending, content, _ = OF_NOTHING[kind]
    for n in range(10):
        (tmp_path / f"{n}.{ending}").write_bytes(content)
    read = Reader(watched(tmp_path, format=ending.removesuffix(".gz")))
    assert read() == []
    opened: list[str] = []
    own = LocalFolder.open
    monkeypatch.setattr(LocalFolder, "open", lambda s, of: opened.append(of) or own(s, of))
    assert read() == []
    assert not opened
    whole = {"torn line": lines(9).encode(), "no footer": one_parquet(9)}
    (tmp_path / f"3.{ending}").write_bytes(whole.get(kind, gzip.compress(lines(9).encode())))
    assert read() == [9]
    assert not {*opened} - {f"3.{ending}"}
