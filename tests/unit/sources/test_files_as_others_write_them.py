"""Files as others write them: hidden, compressed, partitioned, with odd names, appended to, renamed."""

from __future__ import annotations

import bz2
import gzip
import json
import logging
import lzma
import os
import random
import shutil
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from headrace.errors import BadInput, PipelineError, SourceChanged
from headrace.sources import Files, Limit, formats
from headrace.sources.files import compression, folders, known, tracking
from headrace.storage import MemoryStore

LIMIT = Limit(100, 1 << 20)
SCHEMA = {"at": int, "n": int}


def lines(*numbers: int) -> str:
    return "".join(f'{{"at": {n}, "n": {n}}}\n' for n in numbers)


def watched(folder: Path | str, **options: Any) -> Files:
    wanted = {"schema": SCHEMA, "format": "jsonl", "watch": True, **options}
    return Files(folder, event_time="at", **wanted)


class Reader:
    """Reads what comes next, from a position that is kept as JSON."""

    def __init__(self, source: Files, position: Any = None) -> None:
        self.source = source
        self.position = source.start() if position is None else position

    def __call__(self, limit: Limit = LIMIT) -> list[int]:
        """Return the numbers of the records that are there by now."""
        found: list[int] = []
        tasks = self.source.for_tasks()
        while (offer := self.source.offer(self.position, limit)) is not None and not offer.empty:
            end = json.loads(json.dumps(offer.end))
            splits = self.source.splits(self.position, end)
            found += [n for split in splits for n in tasks.read(split)["n"].to_pylist()]
            self.position = end
            if offer.final:
                break
        return found


# -- hidden names (C1) --------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["", "*", "**/*.jsonl", "*.jsonl"])
def test_hidden_files_are_no_input_until_they_are_renamed(tmp_path: Path, pattern: str) -> None:
    (tmp_path / ".part-1.jsonl").write_text(lines(1))
    (tmp_path / "_temporary.jsonl").write_text(lines(9))
    (tmp_path / "a.jsonl").write_text(lines(0))
    read = Reader(watched(tmp_path / pattern))
    assert read() == [0]
    (tmp_path / ".part-1.jsonl").rename(tmp_path / "part-1.jsonl")
    assert read() == [1]


def test_files_in_hidden_folders_are_no_input_but_partitions_may_begin_with_an_underscore(
    tmp_path: Path,
) -> None:
    for at, folder in enumerate(["_temporary", ".spool", "_day=3", "b"]):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_text(lines(at))
    assert Reader(watched(tmp_path / "*" / "*.jsonl"))() == [2, 3]


def test_a_pattern_of_hidden_folders_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="are not input"):
        watched(tmp_path / "a*" / "_b" / "*.jsonl")


# -- growth, rotation, truncation, renames (C2) ---------------------------------------------------


def test_a_line_that_is_appended_to_an_older_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "log-11.jsonl").write_text(lines(1))
    (tmp_path / "log-12.jsonl").write_text(lines(2))
    read = Reader(watched(tmp_path))
    assert read() == [1, 2]
    with (tmp_path / "log-11.jsonl").open("a") as file:
        file.write(lines(3))
    assert read() == [3]


def test_a_line_that_was_appended_while_nothing_ran_is_read(tmp_path: Path) -> None:
    (tmp_path / "log-11.jsonl").write_text(lines(1))
    (tmp_path / "log-12.jsonl").write_text(lines(2))
    read = Reader(watched(tmp_path))
    assert read() == [1, 2]
    with (tmp_path / "log-11.jsonl").open("a") as file:
        file.write(lines(3))
    assert Reader(watched(tmp_path), read.position)() == [3]


@pytest.mark.parametrize("restart", [False, True])
def test_a_log_that_is_rotated_is_read_once_and_to_its_end(tmp_path: Path, restart: bool) -> None:
    log = tmp_path / "app.jsonl"
    log.write_text(lines(1, 2))
    read = Reader(watched(tmp_path))
    assert read() == [1, 2]
    with log.open("a") as writer:
        writer.write(lines(3))
        writer.flush()
        log.rename(tmp_path / "app.1.jsonl")
        log.write_text(lines(5))
        writer.write(lines(4))  # (the writer goes on with the old file for a while)
    if restart:
        read = Reader(watched(tmp_path), read.position)
    assert sorted(read()) == [3, 4, 5]
    (tmp_path / "app.1.jsonl").rename(tmp_path / "app.2.jsonl")
    log.rename(tmp_path / "app.1.jsonl")
    assert read() == []


def test_logs_are_rotated_while_more_files_wait_than_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "_WAITING_FILES", 2)
    monkeypatch.setattr(folders, "_NAMES_AT_ONCE", 2)
    for n in range(9):
        (tmp_path / f"app-{n}.jsonl").write_text(lines(n))
    read = Reader(watched(tmp_path))
    assert sorted(read()) == [*range(9)]
    for n in range(9):
        (tmp_path / f"app-{n}.jsonl").rename(tmp_path / f"app-{n}.1.jsonl")
        (tmp_path / f"app-{n}.jsonl").write_text(lines(10 + n))
        (tmp_path / f"new-{n}.jsonl").write_text(lines(20 + n))
    assert sorted(read()) == [*range(10, 19), *range(20, 29)]


def test_a_file_that_was_read_and_is_written_again_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1, 2, 3))
    read = Reader(watched(tmp_path))
    assert read() == [1, 2, 3]
    (tmp_path / "a.jsonl").write_text(lines(4, 5, 6, 7, 8))
    assert read() == [4, 5, 6, 7, 8]


def test_a_file_that_is_written_again_before_it_was_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1, 2, 3))
    source = watched(tmp_path)
    offer = source.offer(source.start(), Limit(1, 1 << 20))
    assert offer is not None
    (tmp_path / "a.jsonl").write_text(lines(4, 5, 6, 7, 8))
    with pytest.raises(SourceChanged, match="was known to have"):
        source.offer(offer.end, LIMIT)


def test_a_file_that_is_changed_in_what_was_read_is_an_error(tmp_path: Path) -> None:
    many = lines(*range(200))
    (tmp_path / "a.jsonl").write_text(many)
    read = Reader(watched(tmp_path))
    assert len(read()) == 200
    (tmp_path / "a.jsonl").write_text(many[:-9] + "7" * 9 + "\n" + lines(1))
    with pytest.raises(SourceChanged, match="was known to have"):
        read()


def test_a_log_that_is_copied_and_cut_is_read_once(tmp_path: Path) -> None:
    log = tmp_path / "app.jsonl"
    log.write_text(lines(1, 2))
    read = Reader(watched(tmp_path))
    assert read() == [1, 2]
    with log.open("a") as file:
        file.write(lines(3))
    shutil.copy(log, tmp_path / "app.1.jsonl")
    os.truncate(log, 0)
    with log.open("a") as file:
        file.write(lines(4))
    assert sorted(read()) == [3, 4]


def test_a_second_name_of_a_file_is_no_second_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1))
    read = Reader(watched(tmp_path))
    assert read() == [1]
    os.link(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert read() == []
    (tmp_path / "a.jsonl").unlink()
    assert read() == []


def test_two_names_of_a_new_file_are_one_file(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text(lines(1))
    os.link(tmp_path / "b.jsonl", tmp_path / "a.jsonl")
    read = Reader(watched(tmp_path))
    assert read() == [1]
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write(lines(2))
    os.link(tmp_path / "a.jsonl", tmp_path / "c.jsonl")
    assert read() == [2]


def test_a_log_is_read_once_that_is_copied_and_cut_and_rotated_when_catalogs_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "_NAMED_FILES", 1)
    log, store = tmp_path / "app.jsonl", MemoryStore()
    source = watched(tmp_path)
    source.open(store)
    read = Reader(source)
    for n, name in enumerate(("app", "x", "y", "z")):
        (tmp_path / f"{name}.jsonl").write_text(lines(n))
        assert read() == [n]
    assert "app.jsonl" not in str(read.position["files"])
    shutil.copy(log, tmp_path / "copy.jsonl")
    os.truncate(log, 0)
    for old, new in (("app", "app.1"), ("app.1", "app.2")):
        (tmp_path / f"{old}.jsonl").rename(tmp_path / f"{new}.jsonl")
    log.write_text(lines(10, 11))
    assert read() == [10, 11]
    for n in range(20, 24):
        (tmp_path / f"{n}.jsonl").write_text(lines(n))
        assert read() == [n]
    again = watched(tmp_path)
    again.open(store)
    read = Reader(again, read.position)
    with (tmp_path / "copy.jsonl").open("a") as file:
        file.write(lines(30))
    (tmp_path / "app.2.jsonl").write_text(lines(31))
    assert sorted(read()) == [30, 31]


def test_a_file_that_may_have_been_read_under_another_name_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1))
    read = Reader(watched(tmp_path))
    assert read() == [1]
    (tmp_path / "a.jsonl").rename(tmp_path / "b.jsonl")
    os.utime(tmp_path / "b.jsonl", (1_000_000, 1_000_000))
    with pytest.raises(SourceChanged, match="renamed and touched"):
        read()
    (tmp_path / "b.jsonl").rename(tmp_path / ".b.jsonl")
    shutil.copy(tmp_path / ".b.jsonl", tmp_path / "c.jsonl")
    assert read() == [1]


def test_a_division_is_read_again_from_where_its_file_is_by_then(tmp_path: Path) -> None:
    (tmp_path / "app.jsonl").write_text(lines(1, 2))
    source = watched(tmp_path)
    offer = source.offer(source.start(), LIMIT)
    assert offer is not None
    (tmp_path / "app.jsonl").rename(tmp_path / "app.1.jsonl")
    (tmp_path / "app.jsonl").write_text(lines(8, 9))
    for source_ in (source, watched(tmp_path)):
        (split,) = source_.splits(None, offer.end)
        assert source_.read(split)["n"].to_pylist() == [1, 2]
    (tmp_path / "app.1.jsonl").write_bytes(gzip.compress(lines(1, 2).encode()))
    (tmp_path / "app.1.jsonl").rename(tmp_path / "app.2.jsonl.gz")
    (split,) = watched(tmp_path).splits(None, offer.end)
    assert source.read(split)["n"].to_pylist() == [1, 2]


def test_a_division_whose_file_has_other_content_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1, 2))
    source = watched(tmp_path)
    offer = source.offer(source.start(), LIMIT)
    assert offer is not None
    (tmp_path / "a.jsonl").write_text(lines(1, 3))
    with pytest.raises(SourceChanged, match="other content"):
        source.read(source.splits(None, offer.end)[0])


@pytest.mark.parametrize("newline", ["\n", "\r\n", ""])
def test_a_last_line_without_its_newline_is_one_once_the_file_has_rested(
    tmp_path: Path, newline: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(lines(1) + '{"at": 2, "n": 2}')
    read = Reader(watched(tmp_path))
    assert read() == [1]
    os.utime(path, (1_000_000, 1_000_000))
    assert read() == [2]
    if newline:
        with path.open("a", newline="") as file:
            file.write(newline + lines(3))
        assert read() == [3]
        return
    with path.open("a") as file:
        file.write("8}\n")
    with pytest.raises(SourceChanged, match="went on"):
        read()


# -- any order of names, partitioned trees (C3) ----------------------------------------------------


def test_files_are_read_whatever_the_order_of_their_names(tmp_path: Path) -> None:
    names = [f"{random.Random(7).getrandbits(64) ^ n:016x}.jsonl" for n in range(40)]
    random.Random(3).shuffle(names)
    read, found = Reader(watched(tmp_path)), []
    for n, name in enumerate(names):
        (tmp_path / name).write_text(lines(n))
        found += read()
        if n % 7 == 3:
            read = Reader(watched(tmp_path), read.position)
    assert found == list(range(40))


class Sale(msgspec.Struct):
    n: int
    year: int
    shop: str | None


@pytest.mark.parametrize("pattern", ["", "**/*", "*/*/*.{kind}"])
@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_the_folders_of_a_partitioned_tree_are_columns(
    tmp_path: Path, kind: str, pattern: str
) -> None:
    places = [("2026", "a b"), ("2025", "n/a: 100%"), ("2024", None)]
    for n, (year, shop) in enumerate(places):
        named = {"a b": "a%20b", "n/a: 100%": "n%2Fa%3A 100%25"}.get(
            shop or "", "__HIVE_DEFAULT_PARTITION__"
        )
        folder = tmp_path / f"year={year}" / f"shop={named}"
        folder.mkdir(parents=True)
        path = folder / f"part-0.{kind}"
        table = pa.table({"at": [n], "n": [n]})
        if kind == "parquet":
            pyarrow.parquet.write_table(table, path)
        elif kind == "csv":
            pyarrow.csv.write_csv(table, path)
        else:
            path.write_text(lines(n))
    (tmp_path / "_SUCCESS").write_text("")
    path = tmp_path / pattern.format(kind=kind)
    given: Any = {"format": kind, "watch": True, "time_unit": "us"}
    source = Files(path, event_time="at", type=Sale, **given)
    offer = source.offer(source.start(), LIMIT)
    assert offer is not None
    found = [
        row for split in source.splits(None, offer.end) for row in source.read(split).to_pylist()
    ]
    assert sorted((row["n"], row["year"], row["shop"]) for row in found) == [
        (0, 2026, "a b"),
        (1, 2025, "n/a: 100%"),
        (2, 2024, None),
    ]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(
    ("folder", "declared", "expected"),
    [
        (rb"x=a\b", str, r"a\b"),
        (b"x=%C3%A4", str, "ä"),
        (b"x=2024-01-01 00%3A00%3A00", datetime, datetime(2023, 12, 31, 23, tzinfo=UTC)),
        (b"x=2024-01-01 00%3A00%3A00Z", datetime, datetime(2024, 1, 1, tzinfo=UTC)),
        (b"x=2024-01-02", datetime, datetime(2024, 1, 1, 23, tzinfo=UTC)),
        (b"x=2024-01-02", date, date(2024, 1, 2)),
        (b"x=__HIVE_DEFAULT_PARTITION__", datetime | None, None),
    ],
)
def test_the_values_of_folders_are_those_that_a_file_would_give(
    tmp_path: Path, kind: str, folder: bytes, declared: Any, expected: Any
) -> None:
    assert of_folder(tmp_path, folder, kind, declared) == expected


@pytest.mark.parametrize("declared", [date, datetime])
def test_times_in_the_names_of_folders_are_read_by_their_format(
    tmp_path: Path, declared: Any
) -> None:
    found = of_folder(tmp_path, b"x=02.01.2024", "jsonl", declared, time_format={"x": "%d.%m.%Y"})
    assert found == (date(2024, 1, 2) if declared is date else datetime(2024, 1, 1, 23, tzinfo=UTC))


@pytest.mark.parametrize(
    ("folder", "why"),
    [(b"x=\xfe", "not UTF-8"), (b"x=%FF", "not UTF-8")],
)
def test_a_folder_that_gives_no_value_is_an_error_where_its_column_is_declared(
    tmp_path: Path, folder: bytes, why: str
) -> None:
    with pytest.raises(BadInput, match=why):
        of_folder(tmp_path, folder, "jsonl", str)
    assert Reader(watched(tmp_path))() == [1]


def of_folder(path: Path, folder: bytes, kind: str, declared: Any, **options: Any) -> Any:
    """Return the value of a folder's column that is declared so, of a file in that folder."""
    inside = Path(os.fsdecode(os.path.join(os.fsencode(path), folder)))
    inside.mkdir(parents=True)
    if kind == "parquet":
        with (inside / "a.parquet").open("wb") as file:
            pyarrow.parquet.write_table(pa.table({"at": [1], "n": [1]}), file)
    else:
        (inside / f"a.{kind}").write_text(lines(1) if kind == "jsonl" else "at,n\n1,1\n")
    options = {"time_unit": "us", "time_zone": "Europe/Berlin", "format": kind, **options}
    source = watched(path, schema={"at": int, "n": int, "x": declared}, **options)
    offer = source.offer(source.start(), LIMIT)
    assert offer is not None
    [value] = source.read(source.splits(None, offer.end)[0])["x"].to_pylist()
    return value


def test_a_folder_whose_name_is_no_value_of_its_column_is_named(tmp_path: Path) -> None:
    (tmp_path / "year=soon").mkdir()
    (tmp_path / "year=soon" / "a.jsonl").write_text(lines(1))
    source = watched(tmp_path, schema={"at": int, "n": int, "year": int})
    offer = source.offer(source.start(), LIMIT)
    assert offer is not None
    with pytest.raises(BadInput, match="'soon' by the folder's name"):
        source.read(source.splits(None, offer.end)[0])


# -- files that are being written (C4), compressed ones (C5) ---------------------------------------


def test_a_parquet_file_that_is_being_written_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pyarrow.parquet.write_table(pa.table({"at": [1, 2], "n": [1, 2]}), tmp_path / "_whole")
    content = (tmp_path / "_whole").read_bytes()
    part = tmp_path / "b.parquet"
    part.write_bytes(content[: len(content) // 2])
    pyarrow.parquet.write_table(pa.table({"at": [3], "n": [3]}), tmp_path / "a.parquet")
    read = Reader(watched(tmp_path, format="parquet"))
    assert read() == [3]
    assert not caplog.records
    os.utime(part, (1_000_000, 1_000_000))
    with caplog.at_level(logging.WARNING, "headrace"):
        assert read() == []
        assert read() == []
    assert ["is not whole" in of.message for of in caplog.records] == [True]
    part.write_bytes(content)
    assert read() == [1, 2]


def zstd(data: bytes) -> bytes:
    return packed(data, "zstd")


def lz4(data: bytes) -> bytes:
    return packed(data, "lz4")


def packed(data: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return bytes(sink.getvalue())


PACKERS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
    ".lz4": lz4,
}


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
@pytest.mark.parametrize("rows", [7, 100])
def test_compressed_files_are_read_beside_others_by_their_endings(
    tmp_path: Path, ending: str, kind: str, rows: int
) -> None:
    head = "at,n\n" if kind == "csv" else ""
    line = (lambda n: f"{n},{n}\n") if kind == "csv" else lines
    text = head + "".join(line(n) for n in range(50))
    members = [text[:300].encode(), text[300:].encode()]  # (several, one after another)
    (tmp_path / f"a.{kind}{ending}").write_bytes(b"".join(map(PACKERS[ending], members)))
    (tmp_path / f"b.{kind}").write_text(head + line(50))
    source = watched(tmp_path, format=kind, watch=False)
    assert Reader(source)(Limit(rows, 1 << 20)) == list(range(51))
    assert Reader(Files(tmp_path / f"a.{kind}{ending}", event_time="at", time_unit="us"))() == list(
        range(50)
    )


@pytest.mark.parametrize("ending", PACKERS)
def test_a_compressed_file_that_ends_in_the_middle_waits_or_is_an_error(
    tmp_path: Path, ending: str
) -> None:
    whole = PACKERS[ending](lines(*random.Random(5).sample(range(10**9), 3000)).encode())
    path = tmp_path / f"a.jsonl{ending}"
    path.write_bytes(whole[: len(whole) // 2])
    read = Reader(watched(tmp_path))
    found = read(Limit(10_000, 1 << 30))
    os.utime(path, (1_000_000, 1_000_000))
    found += read(Limit(10_000, 1 << 30))
    with pytest.raises(BadInput, match="ends in the middle"):
        Reader(watched(tmp_path, watch=False))(Limit(10_000, 1 << 30))
    path.write_bytes(whole)
    found += read(Limit(10_000, 1 << 30))
    assert sorted(found) == sorted(random.Random(5).sample(range(10**9), 3000))


def test_a_damaged_compressed_file_is_named(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(lines(*range(1000)).encode()))
    whole[len(whole) // 2] ^= 255
    (tmp_path / "a.jsonl.gz").write_bytes(whole)
    with pytest.raises(BadInput, match=r"a\.jsonl\.gz"):
        Reader(watched(tmp_path, watch=False))(Limit(10_000, 1 << 30))


def test_a_file_that_is_compressed_when_it_was_read_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "app.1.jsonl"
    path.write_text(lines(*range(300)))
    read = Reader(watched(tmp_path))
    assert len(read()) == 300
    whole = gzip.compress(lines(*range(303)).encode())
    with path.open("a") as file:
        file.write(lines(300, 301, 302))
    (tmp_path / "app.1.jsonl.gz").write_bytes(whole[:40])
    assert read() == [300, 301, 302]
    (tmp_path / "app.1.jsonl.gz").write_bytes(whole)
    assert read() == []
    path.unlink()
    assert read() == []
    (tmp_path / "app.1.jsonl.gz").rename(tmp_path / "app.2.jsonl.gz")
    assert Reader(watched(tmp_path), read.position)() == []


def test_a_large_compressed_file_is_unpacked_once_and_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wt", compresslevel=1) as file:
        for first in range(0, 200_000, 1000):
            file.write(
                "".join(
                    f'{{"at": {n}, "n": {n}, "pad": "{n:0200d}"}}\n'
                    for n in range(first, first + 1000)
                )
            )
    monkeypatch.setattr(compression, "_WINDOW_BYTES", 4 << 20)
    begun: list[int] = []
    begin = compression.Unpacked._begin

    def counted(self: compression.Unpacked) -> None:
        begun.append(1)
        begin(self)

    monkeypatch.setattr(compression.Unpacked, "_begin", counted)
    found = Reader(watched(tmp_path, watch=False))(Limit(100_000, 2 << 20))
    assert found == list(range(200_000))
    assert len(begun) <= 4
    assert all(len(of._window) <= 10 << 20 for of in compression.KEPT._streams.values())


def test_files_that_are_passed_over_by_their_endings_are_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a.jsonl", "b.txt", "c.txt", "d.zip"):
        (tmp_path / name).write_text(lines(1))
    with caplog.at_level(logging.WARNING, "headrace"):
        read = Reader(watched(tmp_path))
        assert read() == [1]
        assert read() == []
    told = [of.message for of in caplog.records]
    assert len(told) == 2
    assert any("b.txt" in of or "c.txt" in of for of in told)
    assert any("d.zip" in of for of in told)


# -- names (C6) -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [b"caf\xe9.jsonl", b"back\\xe9\\slash.jsonl", "tschüss €.jsonl".encode()]
)
def test_a_name_may_have_any_bytes(tmp_path: Path, name: bytes) -> None:
    path = os.path.join(os.fsencode(tmp_path), name)
    with open(path, "w") as file:
        file.write(lines(1) + '{"at": "soon", "n": 2}\n')
    with pytest.raises(BadInput) as caught:
        Reader(watched(tmp_path))()
    str(caught.value).encode()
    with open(path, "w") as file:
        file.write(lines(1, 2))
    read = Reader(watched(tmp_path))
    assert read() == [1, 2]
    msgspec.json.encode(read.position)
    assert Reader(watched(tmp_path), read.position)() == []


# -- many files (C8) ------------------------------------------------------------------------------


def test_a_position_stays_small_however_many_files_were_read(tmp_path: Path) -> None:
    store, source = MemoryStore(), watched(tmp_path)
    source.open(store)
    read, largest, found = Reader(source), 0, []
    for n in range(600):
        (tmp_path / f"{n ^ 341:06d}.jsonl").write_text(lines(n))
        if n % 20 == 19:
            found += read()
            source.committed(read.position)
            largest = max(largest, len(json.dumps(read.position)))
    assert sorted(found) == list(range(600))
    assert largest < 40_000
    assert len(read.position["catalogs"]) <= 4
    other = watched(tmp_path)
    other.open(store)
    read = Reader(other, read.position)
    assert read() == []
    with (tmp_path / "000341.jsonl").open("a") as file:  # (the first that was read)
        file.write(lines(1000))
    (tmp_path / "000340.jsonl").rename(tmp_path / "x.jsonl")
    (tmp_path / "y.jsonl").write_text(lines(1001))
    assert sorted(read()) == [1000, 1001]


def test_catalogs_that_were_merged_are_deleted_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "_NAMED_FILES", 1)
    store, source = MemoryStore(), watched(tmp_path)
    source.open(store)
    read = Reader(source)
    for n in range(120):
        (tmp_path / f"{n}.jsonl").write_text(lines(n))
        assert read() == [n]
        source.committed(read.position)
    assert len(store.list("files-read/")) < 80
    other = watched(tmp_path)
    other.open(store)
    assert Reader(other, read.position)() == []


def test_a_reader_that_catches_up_deletes_no_catalog_of_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "_NAMED_FILES", 1)
    store, source = MemoryStore(), watched(tmp_path)
    source.open(store)
    read = Reader(source)
    for n in range(120):
        (tmp_path / f"{n:03d}.jsonl").write_text(lines(n))
    read(Limit(1, 1 << 20))
    early = read.position
    for n in range(120, 123):
        (tmp_path / f"{n}.jsonl").write_text(lines(n))
        read()
    again = source.again()
    again.open(store)
    position, count = again.start(), 0
    while (offer := again.offer_until(position, early, Limit(1, 1 << 20))) is not None:
        position, count = offer.end, count + offer.rows
        again.committed(position)
    assert count == 120
    (tmp_path / "123.jsonl").write_text(lines(123))
    other = watched(tmp_path)
    other.open(store)
    assert Reader(other, read.position)() == [123]


def test_an_unchanged_directory_of_many_files_is_not_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "_FEW_FILES", 10)
    for n in range(50):
        (tmp_path / f"{n}.jsonl").write_text(lines(n))
    monkeypatch.setattr(folders, "_SETTLED_NS", 0)
    source = watched(tmp_path)
    source.open(MemoryStore())
    read = Reader(source)
    assert len(read()) == 50
    source._divider._tracker._next_sweep = 1e18
    listed: list[Any] = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(path) or scandir(path))
    assert read() == []
    assert not listed
    (tmp_path / "x.jsonl").write_text(lines(99))
    assert read() == [99]


def test_files_that_are_gone_are_forgotten_when_they_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.sources.files import catalog

    monkeypatch.setattr(catalog, "_GONE_FILES", 10)
    monkeypatch.setattr(known, "_NAMED_FILES", 5)
    store, source = MemoryStore(), watched(tmp_path)
    source.open(store)
    read = Reader(source)
    for n in range(60):
        (tmp_path / f"{n}.jsonl").write_text(lines(n))
        assert read() == [n]
        if n >= 3:
            (tmp_path / f"{n - 3}.jsonl").unlink()
    remembered = len(read.position["files"]) + sum(of["files"] for of in read.position["catalogs"])
    assert remembered < 40
    assert read.position["forgotten"] >= 20
    with pytest.raises(SourceChanged, match="not there any more"):
        again = source.again()
        again.open(store)
        again.offer_until(again.start(), read.position, LIMIT)


# -- which folder (A18) -----------------------------------------------------------------------------


def test_another_folder_under_the_old_name_of_an_injector_is_refused(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.jsonl").write_text(lines(1))
    read = Reader(watched(tmp_path / "old"))
    assert read() == [1]
    with pytest.raises(SourceChanged, match=r"moved_from=.*old") as caught:
        Reader(watched(tmp_path / "new"), read.position)()
    assert "another name" in str(caught.value)


def test_a_folder_may_be_moved_and_a_copy_of_it_may_be_declared_as_moved(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a.jsonl").write_text(lines(1))
    read = Reader(watched(tmp_path / "old"))
    assert read() == [1]
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    (tmp_path / "old").rename(tmp_path / "new")
    assert Reader(watched(tmp_path / "new"), read.position)() == []
    with pytest.raises(SourceChanged, match="is not of"):
        Reader(watched(tmp_path / "copy"), read.position)()
    with (tmp_path / "copy" / "a.jsonl").open("a") as file:
        file.write(lines(2))
    moved = watched(tmp_path / "copy", moved_from=tmp_path / "old")
    assert Reader(moved, read.position)() == [2]


# -- partitions (E1) --------------------------------------------------------------------------------


def test_the_partition_of_a_record_is_that_of_its_file(tmp_path: Path) -> None:
    for n, name in enumerate(["host=a/1", "host=a/2", "host=b/1"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.jsonl").write_text(lines(n))
    expected = {
        "file": ["host=a/1.jsonl", "host=a/2.jsonl", "host=b/1.jsonl"],
        "directory": ["host=a", "host=a", "host=b"],
        r"host=(\w+)": ["a", "a", "b"],
    }
    for partition, names in expected.items():
        source = watched(tmp_path, watch=False, partition=partition)
        offer = source.offer(source.start(), Limit(1, 1 << 20))
        assert offer is not None
        assert {*offer.parts} == {*names}, "also those that are still to be read"
        assert {name for name, of in offer.parts.items() if of.final} == (
            {names[0]} if names[0] != names[1] else set()
        )
        offer = source.offer(source.start(), LIMIT)
        assert offer is not None
        assert [split.partition for split in source.splits(None, offer.end)] == names
        assert all(of.final for of in offer.parts.values())


def test_nothing_is_taken_from_a_partition_that_is_paused(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(lines(ord(name)))
    source = watched(tmp_path, watch=False, partition="file")
    offer = source.offer(source.start(), Limit(9, 1 << 20, frozenset(["a.jsonl"])))
    assert offer is not None and not offer.final
    assert [split.partition for split in source.splits(None, offer.end)] == ["b.jsonl"]


@pytest.mark.parametrize("partition", ["(", r"host=(\w+)"])
def test_a_partition_that_no_name_has_is_refused(tmp_path: Path, partition: str) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1))
    with pytest.raises((PipelineError, BadInput), match="partition"):
        Reader(watched(tmp_path, partition=partition))()


# -- input that must stay (A10) -----------------------------------------------------------------------


def test_a_file_that_is_taken_away_before_a_checkpoint_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(lines(ord(name)))
    source = watched(tmp_path)
    read = Reader(source)
    read()
    source.taken(read.position)
    (tmp_path / "a.jsonl").unlink()
    with caplog.at_level(logging.WARNING, "headrace"):
        read()
        read()
    assert ["taken away before a checkpoint" in of.message for of in caplog.records] == [True]
    source.committed(read.position)
    (tmp_path / "b.jsonl").unlink()
    read()
    assert len(caplog.records) == 1


# -- what is no file, and links that lead nowhere -----------------------------------------------------


def test_a_pipe_under_the_name_of_a_known_file_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1))
    (tmp_path / "b.jsonl").write_text(lines(2))
    read = Reader(watched(tmp_path))
    assert read() == [1, 2]
    (tmp_path / "a.jsonl").unlink()
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "c.jsonl").write_text(lines(3))
    assert read() == [3]
    assert Reader(watched(tmp_path), read.position)() == []


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_a_division_of_a_file_whose_name_is_not_that_of_a_file_any_more_is_refused(
    tmp_path: Path, make: Any
) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1))
    source = watched(tmp_path)
    offer = source.offer(source.start(), LIMIT)
    assert offer is not None
    [split] = source.splits(source.start(), offer.end)
    (tmp_path / "a.jsonl").unlink()
    make(tmp_path / "a.jsonl")
    with pytest.raises(SourceChanged, match="not a regular file"):
        source.for_tasks().read(split)


@pytest.mark.parametrize(
    ("pattern", "link", "target"),
    [("", "b.jsonl", "b.jsonl"), ("", "n=1", "."), ("", "n=1", "n=1"), ("*/*.jsonl", "x", "x")],
)
def test_a_link_that_leads_back_to_itself_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, pattern: str, link: str, target: str
) -> None:
    folder = tmp_path / "p" if pattern else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / "a.jsonl").write_text(lines(1))
    (tmp_path / link).symlink_to(target)
    read = Reader(watched(tmp_path / pattern))
    assert read() == [1]
    (folder / "c.jsonl").write_text(lines(2))
    assert read() == [2]
    told = [record for record in caplog.records if "leads back to where it is" in record.message]
    assert len(told) == 1


def test_many_links_to_a_folder_above_are_as_few_folders_as_there_are(tmp_path: Path) -> None:
    (tmp_path / "n=0").mkdir()
    for at in range(12):
        (tmp_path / "n=0" / f"m={at}").symlink_to(tmp_path)
    (tmp_path / "n=0" / "a.jsonl").write_text('{"at": 7}\n')
    assert Reader(watched(tmp_path))() == [0]


def test_an_error_of_the_file_system_while_it_is_listed_names_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text(lines(1))

    def stale(path: Any) -> Any:
        raise OSError(116, "Stale file handle")

    source = watched(tmp_path)
    monkeypatch.setattr(folders.os, "scandir", stale)
    with pytest.raises(SourceChanged, match="cannot be looked at: Stale file handle") as refused:
        source.offer(source.start(), LIMIT)
    assert str(tmp_path) in refused.value.place


# -- damaged Parquet ----------------------------------------------------------------------------------


def test_columns_of_parquet_with_a_broken_footer_are_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table({"at": [1], "n": [1]}), path)
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[-8:-4], "little")
    data[-8 - size : -8] = b"\xff" * size
    path.write_bytes(data)
    with pytest.raises(BadInput, match=r"a\.parquet") as refused:
        Files(tmp_path, event_time="at")
    assert "fix or remove" in refused.value.remedy


def test_a_damaged_page_of_parquet_is_to_be_mended_and_not_brought_back(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"at": list(range(5000)), "n": [n * n for n in range(5000)]})
    pyarrow.parquet.write_table(table, path)
    read = Reader(Files(path, event_time="at", schema=SCHEMA))
    data = bytearray(path.read_bytes())
    data[4:60] = b"\xff" * 56
    path.write_bytes(data)
    with pytest.raises(BadInput, match="is not what its format says") as refused:
        read(Limit(10_000, 1 << 20))
    assert "fix or remove" in refused.value.remedy


# -- what follows a stream of xz ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_an_xz_file_is_the_streams_in_it_whatever_zeros_are_between_them(
    tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    texts = [
        lines(*range(9 * at, 9 * at + draw.randrange(9))) for at in range(draw.randrange(1, 5))
    ]
    packed = [lzma.compress(text.encode()) + bytes(4 * draw.randrange(3)) for text in texts]
    (tmp_path / "a.jsonl.xz").write_bytes(b"".join(packed))
    expected = [json.loads(line)["n"] for text in texts for line in text.splitlines()]
    assert Reader(watched(tmp_path, watch=False))() == expected


@pytest.mark.parametrize(
    "damaged",
    [
        lambda of: b"XXXX" + of[4:],
        lambda of: of[:-4] + bytes(4),
        lambda of: b"garbage",
        lambda of: b"garbage" * 100,
        lambda of: bytes(3) + of,
    ],
)
@pytest.mark.parametrize("watch", [False, True])
def test_what_follows_a_stream_of_xz_and_is_none_is_an_error(
    tmp_path: Path, damaged: Any, watch: bool
) -> None:
    one, two = (lzma.compress(lines(n).encode()) for n in (1, 2))
    (tmp_path / "a.jsonl.xz").write_bytes(one + damaged(two))
    with pytest.raises(BadInput, match=r"a\.jsonl\.xz cannot be unpacked"):
        Reader(watched(tmp_path, watch=watch))()


def test_an_xz_file_that_ends_in_the_middle_of_a_later_stream_is_waited_for(tmp_path: Path) -> None:
    whole = lzma.compress(lines(1).encode()) + lzma.compress(lines(2).encode())
    path = tmp_path / "a.jsonl.xz"
    read = Reader(watched(tmp_path))
    found = []
    for end in range(len(whole) - 70, len(whole) + 1, 7):
        path.write_bytes(whole[:end])
        found += read()
    path.write_bytes(whole)
    assert found + read() == [1, 2]


# -- patterns -----------------------------------------------------------------------------------------


def test_two_stars_at_the_end_stand_for_the_files_in_folders_of_any_depth(tmp_path: Path) -> None:
    for n, place in enumerate(["", "a", "a/b"]):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / "x.jsonl").write_text(lines(n))
    assert sorted(Reader(watched(tmp_path / "**"))()) == [0, 1, 2]
    assert sorted(Reader(watched(tmp_path / "a" / "**"))()) == [1, 2]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("{a,b}.jsonl", [0, 1]),
        ("{a,b{1,2}}.jsonl", [0, 2]),
        ("*.{json,jsonl}", [0, 1, 2, 3]),
        ("{d,e}/x.jsonl", [4]),
        ("{b1,d/x}.jsonl", None),
        ("[{]a,b}.jsonl", [5]),
    ],
)
def test_braces_stand_for_each_of_what_is_in_them(
    tmp_path: Path, pattern: str, expected: list[int] | None
) -> None:
    (tmp_path / "d").mkdir()
    for n, name in enumerate(["a.jsonl", "b.jsonl", "b1.jsonl", "c.json", "d/x.jsonl"]):
        (tmp_path / name).write_text(lines(n))
    if expected is None:
        with pytest.raises(PipelineError, match="braces cannot hold"):
            watched(tmp_path / pattern)
        return
    if expected == [5]:
        (tmp_path / "{a,b}.jsonl").write_text(lines(5))
    source = Files(tmp_path / pattern, event_time="at", schema=SCHEMA, time_unit="us")
    assert sorted(Reader(source)()) == expected


@pytest.mark.parametrize("name", ["r[1].jsonl", "d[1]/x.jsonl", "{r,s}.jsonl", "*.jsonl"])
def test_what_is_there_under_a_name_with_brackets_is_meant(tmp_path: Path, name: str) -> None:
    for n, other in enumerate(["r1.jsonl", "d1/x.jsonl", "r.jsonl", "s.jsonl"]):
        (tmp_path / other).parent.mkdir(exist_ok=True)
        (tmp_path / other).write_text(lines(n))
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(lines(9))
    expected = [9, 2, 0, 3] if name == "*.jsonl" else [9]
    assert Reader(watched(tmp_path / name))() == expected


def test_folders_of_a_directory_that_are_not_looked_into_are_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for place in ["_hidden", "n=1", "n=1/sub", "other", "plain"]:
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.jsonl").write_text(lines(1))
    read = Reader(watched(tmp_path))
    assert read() == [1]
    assert read() == []
    told = [of.getMessage() for of in caplog.records if "not looked into" in of.getMessage()]
    assert len(told) == 1
    assert "_hidden" not in told[0]
    caplog.clear()
    assert Reader(watched(tmp_path / "*.jsonl"))() == []
    assert "not looked into" not in caplog.text


def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(lines(*range(50)))
    source = watched(tmp_path)
    cut = formats.JsonLines.cut

    def cut_off(self: Any, opened: Any, *args: Any, **options: Any) -> Any:
        found = cut(self, opened, *args, **options)
        opened.file._pieces[-1] = (0, opened.file._pieces[-1][1][:100])
        return found

    monkeypatch.setattr(formats.JsonLines, "cut", cut_off)
    with pytest.raises(SourceChanged, match="shorter while it was read") as refused:
        source.offer(source.start(), LIMIT)
    assert refused.value.place == str(path)
