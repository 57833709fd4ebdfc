"""Files whose names differ only by the compression: what is in both counts once, all else is read."""

from __future__ import annotations

import gzip
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.sources import Limit
from headrace.sources.files import opening
from headrace.storage import MemoryStore
from tests.unit.sources.test_files_as_others_write_them import PACKERS, Reader, lines, watched


def put(folder: Path, **files: str) -> None:
    """Write files, each as its ending says."""
    for name, text in files.items():
        for ending, pack in PACKERS.items():
            if name.endswith(ending):
                (folder / name).write_bytes(pack(text.encode()))
                break
        else:
            (folder / name).write_text(text)


def reads(folder: Path, how: str, format: str = "jsonl") -> list[int]:
    source = watched(folder, watch=how == "watched", format=format)
    source.open(MemoryStore())
    limit = Limit(100, 1 << 20, open_ended=how == "catching up")
    return sorted(Reader(source)(limit))


@pytest.mark.parametrize("how", ["watched", "catching up", "drained"])
@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_compressed_file_that_holds_more_than_the_file_beside_it_is_read_on(
    tmp_path: Path, how: str, ending: str
) -> None:
    put(tmp_path, **{"x.jsonl": lines(1, 2)})
    put(tmp_path, **{f"x.jsonl{ending}": lines(1, 2, 3, 4)})
    put(tmp_path, **{"empty.jsonl": ""})
    put(tmp_path, **{f"empty.jsonl{ending}": lines(5, 6)})
    assert reads(tmp_path, how) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("how", ["watched", "catching up", "drained"])
def test_a_file_of_only_the_names_of_columns_is_no_original(tmp_path: Path, how: str) -> None:
    put(tmp_path, **{"log.csv": "at,n\n", "log.csv.gz": "at,n\n1,1\n2,2\n"})
    assert reads(tmp_path, how, "csv") == [1, 2]


def test_a_file_beside_a_compressed_one_of_other_content_is_read(tmp_path: Path) -> None:
    put(tmp_path, **{"x.jsonl": lines(1, 2), "x.jsonl.gz": lines(1, 3)})
    assert reads(tmp_path, "watched") == [1, 1, 2, 3]


def gunzip(path: Path) -> None:
    to = path.with_suffix("")
    to.write_bytes(gzip.decompress(path.read_bytes()))
    shutil.copystat(path, to)
    path.unlink()


def gunzip_and_keep(path: Path) -> None:
    path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))


def recompress(path: Path) -> None:
    put(path.parent, **{path.stem + ".zst": gzip.decompress(path.read_bytes()).decode()})


@pytest.mark.parametrize("unpack", [gunzip, gunzip_and_keep, recompress])
@pytest.mark.parametrize("restart", [False, True])
def test_a_compressed_file_that_is_unpacked_when_it_was_read_counts_once(
    tmp_path: Path, unpack: Callable[[Path], None], restart: bool
) -> None:
    put(tmp_path, **{"x.jsonl.gz": lines(*range(300))})
    read: Any = Reader(watched(tmp_path))
    assert len(read()) == 300
    unpack(tmp_path / "x.jsonl.gz")
    if restart:
        read = Reader(watched(tmp_path), read.position)
    assert read() == []
    if (tmp_path / "x.jsonl").exists():
        with (tmp_path / "x.jsonl").open("a") as file:
            file.write(lines(999))
        assert read() == [999]
        (tmp_path / "x.jsonl.gz").unlink(missing_ok=True)
        assert read() == []
        assert Reader(watched(tmp_path), read.position)() == []


def test_a_file_that_grows_while_it_is_unpacked_counts_once(tmp_path: Path) -> None:
    put(tmp_path, **{"x.jsonl.gz": lines(*range(300))})
    read = Reader(watched(tmp_path))
    assert len(read()) == 300
    text = lines(*range(300))
    for size in (0, 10, 500, 3000, len(text)):
        (tmp_path / "x.jsonl").write_text(text[:size])
        assert read() == []
    (tmp_path / "x.jsonl.gz").unlink()
    assert read() == []


def test_two_compressed_copies_that_come_at_once_count_once(tmp_path: Path) -> None:
    whole = lines(*range(300))
    put(tmp_path, **{f"x.jsonl{ending}": whole for ending in PACKERS})
    torn = tmp_path / "x.jsonl.bz2"
    torn.write_bytes(torn.read_bytes()[:-20])
    for how in ("watched", "catching up"):
        assert reads(tmp_path, how) == [*range(300)]


@pytest.mark.parametrize("again", ["kept", "replaced", "gone"])
def test_a_compressed_copy_of_a_file_that_has_grown_since_counts_once(
    tmp_path: Path, again: str
) -> None:
    put(tmp_path, **{"x.jsonl": lines(*range(200))})
    read = Reader(watched(tmp_path))
    assert len(read()) == 200
    put(tmp_path, **{"x.jsonl.gz": lines(*range(200))})
    assert read() == []
    with (tmp_path / "x.jsonl").open("a") as file:
        file.write(lines(200))
    assert read() == [200]
    if again != "gone":
        put(tmp_path, **{"x.jsonl.gz": lines(*range(201))})
    if again != "kept":
        (tmp_path / "x.jsonl").unlink()
    assert read() == []
    assert Reader(watched(tmp_path), read.position)() == []


def test_a_line_that_comes_while_a_file_is_compressed_is_read_once(tmp_path: Path) -> None:
    put(tmp_path, **{"x.jsonl": lines(1, 2)})
    read = Reader(watched(tmp_path))
    assert read() == [1, 2]
    with (tmp_path / "x.jsonl").open("a") as file:
        file.write(lines(3))
    put(tmp_path, **{"x.jsonl.gz": lines(1, 2, 3)})
    assert read() == [3]
    assert read() == []


@pytest.mark.parametrize("act", ["compressed", "copied", "gone"])
def test_each_new_file_is_opened_a_few_times_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    count = 70
    for n in range(count):
        put(tmp_path, **{f"{n}.jsonl": lines(n)})
    source = watched(tmp_path)
    source.open(MemoryStore())
    read = Reader(source)
    assert len(read()) == count
    for n in range(count):
        path = tmp_path / f"{n}.jsonl"
        if act == "compressed":
            put(tmp_path, **{f"{n}.jsonl.gz": lines(n)})
            path.unlink()
        elif act == "copied":
            shutil.copy(path, tmp_path / f"{n}.1.jsonl")
            os.truncate(path, 0)
        else:
            path.unlink()
            put(tmp_path, **{f"new-{n}.jsonl.gz": lines(1000 + n)})
    opened: list[str] = []
    own = opening.open_file

    def counted(folder: Any, name: str, use: str) -> Any:
        opened.append(name)
        return own(folder, name, use)

    from headrace.sources.files import dividing, tracking

    monkeypatch.setattr(tracking, "open_file", counted)
    monkeypatch.setattr(dividing, "open_file", counted)
    began = time.monotonic()
    assert len(read()) == (count if act == "gone" else 0)
    assert len(opened) <= 12 * count
    assert time.monotonic() - began < 20


def test_a_file_that_is_compressed_beside_an_older_copy_counts_once(tmp_path: Path) -> None:
    put(tmp_path, **{"x.jsonl.gz": lines(1)})
    read = Reader(watched(tmp_path))
    assert read() == [1]
    put(tmp_path, **{"x.jsonl": lines(1, 2, 3)})
    assert read() == [2, 3]
    put(tmp_path, **{"x.jsonl.xz": lines(1, 2, 3)})
    (tmp_path / "x.jsonl").unlink()
    assert read() == []
