"""Files: divided the same way for ever, read whole, and what is wrong is named with its line."""

from __future__ import annotations

import contextlib
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadInput, PipelineError, SourceChanged
from headrace.pipeline.source import Split
from headrace.sources import Files, Limit
from headrace.storage import MemoryStore


class Hit(msgspec.Struct):
    page: str
    n: int
    note: str | None = None


LIMIT = Limit(100, 1 << 20)


def write(path: Path, rows: list[dict[str, Any]], kind: str) -> Path:
    path = path.with_suffix(f".{kind}")
    table = pa.Table.from_pylist(rows)
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "csv":
        pyarrow.csv.write_csv(table, path)
    else:
        pyarrow.parquet.write_table(table, path, row_group_size=7)
    return path


def rows_of(source: Files, limit: Limit) -> list[list[tuple[Any, ...]]]:
    """Drain a source; return the records of each division, read twice to see that they stay."""
    position, steps = source.start(), []
    for _ in range(10_000):
        offer = source.offer(position, limit)
        assert offer is not None
        if not offer.empty:
            splits = source.splits(position, json.loads(json.dumps(offer.end)))
            tables = [source.read(split) for split in splits]
            assert tables == [source.read(split) for split in splits]
            table = pa.concat_tables(tables)
            steps.append(list(zip(*(column.to_pylist() for column in table.columns), strict=True)))
        position = offer.end
        if offer.final:
            return steps
    raise AssertionError("the source never ended")


def example(count: int) -> list[dict[str, Any]]:
    return [
        {"at": f"2024-01-01T00:{i % 60:02d}:00Z", "page": f"p{i}", "n": i} for i in range(count)
    ]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_records_come_whole_and_in_order_in_divisions_of_a_size(
    tmp_path: Path, kind: str, rows: int
) -> None:
    for part in range(3):
        write(tmp_path / f"part-{part}", example(25)[part * 8 : part * 8 + 8], kind)
    source = Files(tmp_path, event_time="at", schema={"page": str, "n": int}, format=kind)  # type: ignore[arg-type]
    steps = rows_of(source, Limit(rows, 1 << 20))
    assert [row[2] for step in steps for row in step] == list(range(24))
    assert steps[0][0] == (1_704_067_200_000_000, "p0", 0)
    assert {len(step) for step in steps[:-1]} <= {rows}


@given(lines=st.lists(st.integers(0, 60), min_size=1, max_size=40), size=st.integers(80, 400))
def test_divisions_by_bytes_end_at_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[int], size: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "x.jsonl"
    rows = [{"at": i, "page": "x" * width, "n": i} for i, width in enumerate(lines)]
    path.write_text("\n".join(json.dumps(row) for row in rows))  # the last line has no newline
    source = Files(path, event_time="at", schema={"at": int, "page": str, "n": int})
    found = [row for step in rows_of(source, Limit(1000, size)) for row in step]
    assert [row[3] for row in found] == list(range(len(lines)))


def test_columns_and_their_types_are_those_of_the_beginning(tmp_path: Path) -> None:
    path = write(tmp_path / "x", example(5), "jsonl")
    source = Files(path, event_time="at")
    assert source.values().schema.names == ["at", "page", "n"]
    (step,) = rows_of(source, Limit(100, 1 << 20))
    assert step[1] == (1_704_067_260_000_000, datetime(2024, 1, 1, 0, 1, tzinfo=UTC), "p1", 1)


def test_a_watched_directory_waits_for_lines_and_files(tmp_path: Path) -> None:
    first = tmp_path / "a.jsonl"
    first.write_text('{"at": 1, "page": "x", "n": 1}\n{"at": 2, "pa')
    source = Files(
        tmp_path, event_time="at", schema={"at": int, "n": int}, format="jsonl", watch=True
    )
    limit = Limit(10, 1 << 20)
    offer = source.offer(source.start(), limit)
    assert offer is not None
    assert (offer.rows, offer.final) == (1, False)
    assert source.offer(offer.end, limit) is None, "half a line is not a record"
    first.write_text('{"at": 1, "page": "x", "n": 1}\n{"at": 2, "page": "y", "n": 2}\n')
    offer = source.offer(offer.end, limit)
    assert offer is not None
    (tmp_path / "b.jsonl").write_text('{"at": 3, "page": "z", "n": 3}\n')
    last = source.offer(offer.end, limit)
    assert last is not None
    (split,) = source.splits(offer.end, last.end)
    assert source.read(split).column("n").to_pylist() == [3]
    assert source.offer(last.end, limit) is None


def test_a_file_that_sorts_before_those_that_were_read_is_read(tmp_path: Path) -> None:
    write(tmp_path / "m", example(2), "jsonl")
    source = watched(tmp_path)
    offer = source.offer(source.start(), Limit(10, 1 << 20))
    assert offer is not None
    write(tmp_path / "a", example(5)[3:], "jsonl")
    assert read_all(source, offer.end) == [3, 4]


@pytest.mark.parametrize("pattern", ["", "*.jsonl"])
@pytest.mark.parametrize("hidden", [["b"], ["bc", "bc", "b"]], ids=["at first", "later"])
def test_a_file_that_comes_while_one_looks_is_not_missed_where_a_later_one_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, hidden: list[str]
) -> None:
    """A folder is not shown as of one moment."""
    for name in "abc":
        (tmp_path / f"{name}.jsonl").write_text(f'{{"at": 1, "n": {ord(name)}}}\n')
    looks, scandir = iter(hidden), os.scandir

    def shown(folder: Any) -> Any:
        missed = next(looks, "")
        return contextlib.nullcontext([of for of in scandir(folder) if of.name[0] not in missed])

    def listed(folder: Path) -> list[Path]:
        return [folder / of.name for of in shown(folder).enter_result]

    columns = {"at": int, "n": int}
    source = Files(tmp_path / pattern, event_time="at", schema=columns, format="jsonl", watch=True)
    monkeypatch.setattr(os, "scandir", shown)
    monkeypatch.setattr(Path, "iterdir", listed)
    position, found = source.start(), []
    for _ in range(5):
        offer = source.offer(position, LIMIT)
        if offer is not None:
            for split in source.splits(position, offer.end):
                found += source.read(split).column("n").to_pylist()
            position = offer.end
    assert sorted(found) == [ord(name) for name in "abc"]


def watched(folder: Path) -> Files:
    return Files(folder, event_time="at", schema={"n": int}, format="jsonl", watch=True)


def test_a_late_file_is_read_also_when_files_that_were_read_are_gone(tmp_path: Path) -> None:
    for at, name in enumerate("abcd"):
        write(tmp_path / name, example(8)[2 * at : 2 * at + 2], "jsonl")
    source = watched(tmp_path)
    position = read_to(source)
    for name in "ab":
        (tmp_path / f"{name}.jsonl").unlink()
    assert source.offer(position, LIMIT) is None
    write(tmp_path / "a", example(2), "jsonl")  # (what was read may come back)
    assert source.offer(position, LIMIT) is None
    write(tmp_path / "cc", example(12)[10:], "jsonl")
    assert read_all(source, position) == [10, 11]


def test_what_another_driver_has_read_meanwhile_is_not_late(tmp_path: Path) -> None:
    write(tmp_path / "a", example(2), "jsonl")
    source, other = watched(tmp_path), watched(tmp_path)
    position = read_to(source)
    write(tmp_path / "b", example(2), "jsonl")
    write(tmp_path / "c", example(2), "jsonl")
    source.open(MemoryStore())
    assert source.offer(read_to(other, position), LIMIT) is None


@pytest.mark.parametrize("last", [False, True], ids=["earlier", "the last"])
def test_who_begins_at_the_beginning_is_refused_where_files_that_were_read_are_gone(
    tmp_path: Path, last: bool
) -> None:
    for name in "abc":
        write(tmp_path / name, example(2), "jsonl")
    source = watched(tmp_path)
    position = read_to(source)
    assert source.again().offer_until(source.start(), position, LIMIT) is not None
    (tmp_path / ("c.jsonl" if last else "a.jsonl")).unlink()
    write(tmp_path / "d", example(9)[5:], "jsonl")
    for until in (position, read_to(source, position)):
        with pytest.raises(SourceChanged, match="would not read the same"):
            source.again().offer_until(source.start(), until, LIMIT)


def test_who_begins_at_the_beginning_reads_no_file_that_came_since(tmp_path: Path) -> None:
    for name in "ac":
        write(tmp_path / name, example(2), "jsonl")
    source = Files(tmp_path, event_time="at", schema={"n": int}, format="jsonl")
    offer = source.offer(source.start(), LIMIT)
    assert offer is not None
    write(tmp_path / "b", example(2), "jsonl")
    again = source.again().offer_until(source.start(), offer.end, LIMIT)
    assert again is not None
    assert again.rows == offer.rows == 4


BAD_LINES = [
    ("jsonl", '{"at": "2024-01-01T00:00:00Z", "page": "p", "n": oops}', "cannot be read"),
    ("jsonl", '{"at": "2024-01-01T00:00:00Z", "page": "p", "n": "7"}', "cannot be read"),
    ("jsonl", '{"at": "2024-01-01T00:00:00Z", "page": "p"', "cannot be read"),
    ("jsonl", '{"at": "2024-01-01T00:00:00Z", "n": 1}', "'page' is null or missing"),
    ("jsonl", '{"page": "p", "n": 1}', "the time in column 'at' cannot be read: it is null"),
    ("jsonl", '{"at": "yesterday", "page": "p", "n": 1}', "'yesterday' is not a time"),
    ("jsonl", "null", "it is not an object"),
    ("jsonl", "  7", "it is not an object"),
    ("jsonl", '["2024-01-01T00:00:00Z", "p", 1]', "it is an array"),
    ("jsonl", '{"at": "2024-01-01T00:00:00Z", "page": "caf\udce9", "n": 1}', "it is not UTF-8"),
    ("csv", "2024-01-01T00:00:00Z,caf\udce9,1", "cannot be read"),
    ("csv", "2024-01-01T00:00:00Z,p,seven", "cannot be read"),
    ("csv", "2024-01-01T00:00:00Z,p", "cannot be read"),
    ("csv", "32 May,p,7", "'32 May' is not a time"),
    ("csv", ",p,7", "it is null"),
    ("csv", "2024-01-01T00:00:00Z,p,", "'n' is null or missing"),
]


@pytest.mark.parametrize(("kind", "line", "says"), BAD_LINES, ids=[b[1][:40] for b in BAD_LINES])
@pytest.mark.parametrize("before", [0, 1, 50])
def test_a_bad_line_is_named_with_file_and_number(
    tmp_path: Path, kind: str, line: str, says: str, before: int
) -> None:
    path = tmp_path / f"bad.{kind}"
    good = (
        '{"at": "2024-01-01T00:00:00Z", "page": "p", "n": 1}'
        if kind == "jsonl"
        else ("2024-01-01T00:00:00Z,p,1")
    )
    header = [] if kind == "jsonl" else ["at,page,n"]
    text = "\n".join([*header, *[good] * before, line, good]) + "\n"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    source = Files(path, event_time="at", schema={"at": str, "page": str, "n": int})
    with pytest.raises(BadInput) as caught:
        rows_of(source, Limit(1000, 1 << 20))
    assert says in str(caught.value)
    assert f"bad.{kind}, line {len(header) + before + 1}" in str(caught.value)
    assert "remedy" in str(caught.value)


def test_a_csv_without_a_declared_column_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x", [{"at": 1, "page": "p"}], "csv")
    source = Files(path, event_time="at", schema={"at": int, "page": str, "n": int})
    with pytest.raises(BadInput, match="has no column 'n'"):
        rows_of(source, Limit(10, 1 << 20))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"path": "missing/*.jsonl"}, "matches no file"),
        ({"path": "x.jsonl", "event_time": "when"}, "no column 'when'"),
        ({"path": "x.gz"}, "cannot be inferred"),
        ({"path": "x.zip"}, "cannot be read"),
        ({"path": "x.dat"}, "cannot be inferred"),
        ({"path": "x.jsonl", "format": "xml"}, "is not a file format"),
    ],
)
def test_a_source_that_cannot_work_is_refused_when_it_is_declared(
    tmp_path: Path, arguments: dict[str, Any], says: str
) -> None:
    write(tmp_path / "x", example(3), "jsonl")
    path = tmp_path / arguments.pop("path")
    with pytest.raises(PipelineError, match=says):
        Files(path, **{"event_time": "at", **arguments})


def test_a_file_that_shrank_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "x", example(9), "jsonl")
    source = Files(path, event_time="at")
    offer = source.offer(source.start(), Limit(9, 1 << 20))
    assert offer is not None
    path.write_text("")
    with pytest.raises(SourceChanged, match="shorter"):
        source.read(source.splits(source.start(), offer.end)[0])


def csv_rows(path: Path, rows: int) -> list[tuple[Any, ...]]:
    source = Files(path, event_time="at", schema={"at": int, "txt": str})
    return [row[1:] for step in rows_of(source, Limit(rows, 1 << 20)) for row in step]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("watch", [False, True])
def test_a_file_that_is_shorter_than_what_was_read_of_it_has_not_ended(
    tmp_path: Path, kind: str, watch: bool
) -> None:
    """As when a log is cut and written anew: what came then would be skipped, or begin within a line."""
    path = write(tmp_path / "x", example(10), kind)
    source = Files(path, event_time="at", watch=watch)
    offer = source.offer(source.start(), Limit(4, 1 << 20))
    assert offer is not None and offer.rows == 4
    write(tmp_path / "x", example(2), kind)
    with pytest.raises(SourceChanged, match="was known to have"):
        source.offer(offer.end, Limit(4, 1 << 20))
    whole = Files(write(tmp_path / "y", example(10), kind), event_time="at")
    planned = whole.offer(whole.start(), Limit(8, 1 << 20))
    assert planned is not None
    splits = whole.splits(whole.start(), planned.end)
    write(tmp_path / "y", example(5), kind)
    with pytest.raises(SourceChanged):
        for split in splits:
            whole.read(split)


@pytest.mark.parametrize("rows", [1, 2, 100])
def test_a_line_break_between_quotes_ends_no_record(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "quoted.csv"
    path.write_text('at,txt\n1,"x\n2,y"\n3,w\n4,"a ""b""\n"\n')
    assert csv_rows(path, rows) == [(1, "x\n2,y"), (3, "w"), (4, 'a "b"\n')]


def test_a_watched_file_may_go_when_all_of_it_was_read(tmp_path: Path) -> None:
    write(tmp_path / "a", [{"at": i, "n": i} for i in range(3)], "jsonl")
    source = Files(
        tmp_path, event_time="at", schema={"at": int, "n": int}, format="jsonl", watch=True
    )
    offer = source.offer(source.start(), Limit(10, 1 << 20))
    assert offer is not None
    (tmp_path / "a.jsonl").unlink()
    write(tmp_path / "b", [{"at": i, "n": i} for i in range(10, 17)], "jsonl")
    after = source.offer(offer.end, Limit(10, 1 << 20))
    assert after is not None
    (split,) = source.splits(offer.end, after.end)
    assert source.read(split).column("n").to_pylist() == list(range(10, 17))


def test_a_file_that_goes_half_read_is_an_error_and_not_an_offset_into_the_next(
    tmp_path: Path,
) -> None:
    write(tmp_path / "a", [{"at": i, "n": i} for i in range(9)], "jsonl")
    source = Files(
        tmp_path, event_time="at", schema={"at": int, "n": int}, format="jsonl", watch=True
    )
    offer = source.offer(source.start(), Limit(3, 1 << 20))
    assert offer is not None
    (tmp_path / "a.jsonl").unlink()
    write(tmp_path / "b", [{"at": i, "n": i} for i in range(9)], "jsonl")
    with pytest.raises(SourceChanged, match="is gone, and was read only up to"):
        source.offer(offer.end, Limit(3, 1 << 20))


def test_a_path_that_matches_nothing_is_not_the_end_of_the_input(tmp_path: Path) -> None:
    source = Files(tmp_path / "typo.jsonl", event_time="at", schema={"at": int})
    with pytest.raises(BadInput, match="matches no file"):
        source.offer(source.start(), Limit(1, 1))
    for name in "abc":
        write(tmp_path / name, [{"at": 1}], "jsonl")
    source = Files(tmp_path, event_time="at", schema={"at": int}, format="jsonl")
    offer = source.offer(source.start(), Limit(2, 1 << 20))
    assert offer is not None
    for name in "abc":
        (tmp_path / f"{name}.jsonl").unlink()
    again = Files(tmp_path, event_time="at", schema={"at": int}, format="jsonl")
    with pytest.raises(SourceChanged, match="there are only 0"):
        again.offer(offer.end, Limit(2, 1 << 20))


@pytest.mark.parametrize("null", [False, True])
def test_times_are_read_the_same_with_a_null_beside_them(tmp_path: Path, null: bool) -> None:
    naive = datetime(2024, 7, 1, 12, 0)  # noqa: DTZ001
    rows = [{"at": 1, "when": naive}, {"at": 2, "when": None if null else naive}]
    path = write(tmp_path / "x", rows, "parquet")
    source = Files(
        path,
        event_time="at",
        schema={"at": int, "when": datetime | None},
        time_zone="America/New_York",
    )
    ((first, second),) = rows_of(source, Limit(10, 1 << 20))
    assert first[2] == datetime(2024, 7, 1, 16, 0, tzinfo=UTC)
    assert second[2] == (None if null else first[2])


@pytest.mark.parametrize(
    ("name", "content", "error", "says"),
    [
        ("x.csv", b"at,txt\r1,a\r2,b\r\n", BadInput, "carriage returns"),
        ("x.parquet", b"PAR1 and no more", BadInput, "not what its format says"),
    ],
)
def test_a_file_of_another_kind_is_named(
    tmp_path: Path, name: str, content: bytes, error: Any, says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    source = Files(tmp_path / name, event_time="at", schema={"at": int, "txt": str})
    with pytest.raises(error, match=says):
        source.offer(source.start(), Limit(10, 1 << 20))


def test_a_watched_csv_that_is_only_begun_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("")
    source = Files(
        tmp_path, event_time="at", schema={"at": int, "txt": str}, format="csv", watch=True
    )
    assert source.offer(source.start(), Limit(10, 1 << 20)) is None
    path.write_text("at,t")
    assert source.offer(source.start(), Limit(10, 1 << 20)) is None
    path.write_text("at,txt\n1,a\n")
    offer = source.offer(source.start(), Limit(10, 1 << 20))
    assert offer is not None
    assert offer.rows == 1


def test_a_file_that_vanishes_is_a_typed_error(tmp_path: Path) -> None:
    path = write(tmp_path / "x", example(3), "jsonl")
    source = Files(path, event_time="at")
    offer = source.offer(source.start(), Limit(2, 1 << 20))
    assert offer is not None
    splits = source.splits(source.start(), offer.end)
    path.unlink()
    with pytest.raises(SourceChanged, match="cannot be read"):
        source.read(splits[0])


def test_times_finer_than_a_microsecond_are_cut_and_numbers_that_are_none_are_refused(
    tmp_path: Path,
) -> None:
    table = pa.table(
        {"at": pa.array([1_000_000_001, 2_000_000_002], pa.timestamp("ns")), "n": [1, 2]}
    )
    pyarrow.parquet.write_table(table, tmp_path / "ns.parquet")
    source = Files(tmp_path / "ns.parquet", event_time="at", schema={"n": int})
    assert [row[0] for row in rows_of(source, Limit(9, 1 << 20))[0]] == [1_000_000, 2_000_000]
    table = pa.table({"at": [1.0, float("nan")], "n": [1, 2]})
    pyarrow.parquet.write_table(table, tmp_path / "nan.parquet")
    source = Files(tmp_path / "nan.parquet", event_time="at", schema={"n": int})
    with pytest.raises(BadInput, match="it is not a number") as caught:
        rows_of(source, Limit(9, 1 << 20))
    assert "row 2" in str(caught.value)


def test_a_parquet_file_with_dictionaries_is_read_as_what_they_stand_for(tmp_path: Path) -> None:
    table = pa.table(
        {"c": pa.array(["a", None, "b"]).dictionary_encode(), "at": pa.array([1, 2, 3])}
    )
    pa.parquet.write_table(table, tmp_path / "a.parquet")
    source = Files(tmp_path / "a.parquet", event_time="at")
    offer = source.offer(source.start(), Limit(10, 1 << 20))
    assert offer is not None
    (split,) = source.splits(source.start(), offer.end)
    read = source.read(split)
    assert read.column("c").type == pa.string()
    assert read.column("c").to_pylist() == ["a", None, "b"]


def test_a_large_parquet_file_is_cut_between_row_groups(tmp_path: Path) -> None:
    table = pa.table({"n": range(300_000), "at": range(300_000)})
    pa.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=50_000)
    source = Files(tmp_path / "a.parquet", event_time="at")
    position, read = source.start(), []
    while (offer := source.offer(position, Limit(220_000, 1 << 40))) is not None:
        splits = source.splits(position, offer.end)
        read += [source.read(split).column("n").to_pylist() for split in splits]
        position = offer.end
        if offer.final:
            break
    assert [n for part in read for n in part] == list(range(300_000))
    assert [len(part) for part in read] == [100_000, 100_000, 20_000, 80_000]


def test_a_row_group_is_decoded_once_however_many_steps_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"n": list(range(100)), "at": list(range(100))})
    pa.parquet.write_table(table, path, row_group_size=40)
    decoded: list[list[int]] = []
    whole = pa.parquet.ParquetFile.read_row_groups

    def read_row_groups(file: Any, groups: list[int], **options: Any) -> pa.Table:
        decoded.append(groups)
        return whole(file, groups, **options)

    monkeypatch.setattr(pa.parquet.ParquetFile, "read_row_groups", read_row_groups)
    source = Files(str(path), event_time="at")

    def part(first: int, last: int) -> list[Any]:
        return [str(tmp_path), path.name, first, last, "", "", path.name]

    found: list[int] = []
    for first in range(0, 100, 10):
        split = Split(spec=part(first, first + 10), place="")
        found += source.read(split).column("n").to_pylist()
    assert found == list(range(100))
    assert decoded == [[0], [1], [2]]
    pa.parquet.write_table(pa.table({"n": [7] * 100, "at": [7] * 100}), path, row_group_size=40)
    changed = source.read(Split(spec=part(90, 95), place=""))
    assert changed.column("n").to_pylist() == [7] * 5


NOTES = 'at,note,n\n2024-01-01T00:00:01Z,NA,1\n2024-01-01T00:00:02Z,"",2\n2024-01-01T00:00:03Z,,\n'


class Noted(msgspec.Struct):
    note: str | None
    n: int | None


def notes_of(path: Path, **options: Any) -> list[tuple[Any, ...]]:
    source = Files(path, event_time="at", type=Noted, **options)
    return [row[1:] for step in rows_of(source, Limit(100, 1 << 20)) for row in step]


def test_csv_is_null_where_nothing_stands_and_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(NOTES)
    assert notes_of(path) == [("NA", 1), ("", 2), (None, None)]


def test_csv_has_other_nulls_if_told_so(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(NOTES)
    told = {"null_values": ["", "NA"]}
    assert notes_of(path, **told) == [(None, 1), ("", 2), (None, None)]
    assert notes_of(path, **told, quoted_nulls=True) == [(None, 1), (None, 2), (None, None)]


def test_a_quote_within_a_field_of_csv_is_a_character(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('at,page,n\n2024-01-01T00:00:01Z,5" disk,1\n2024-01-01T00:00:02Z,"a\nb",2\n')
    source = Files(path, event_time="at", schema={"page": str, "n": int}, watch=True)
    offer = source.offer(source.start(), Limit(100, 1 << 20))
    assert offer is not None
    (split,) = source.splits(source.start(), offer.end)
    assert source.read(split)["page"].to_pylist() == ['5" disk', "a\nb"]


def test_a_bad_line_of_csv_is_named_after_values_with_newlines(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('at,page,n\n2024-01-01T00:00:01Z,"a\n\nb",1\n2024-01-01T00:00:02Z,c,many\n')
    source = Files(path, event_time="at", schema={"page": str, "n": int})
    with pytest.raises(BadInput, match="many") as caught:
        rows_of(source, Limit(100, 1 << 20))
    assert caught.value.place.endswith("a.csv, line 5")


@pytest.mark.parametrize("pattern", ["", "*.jsonl", "b*/*.jsonl"])
def test_a_directory_may_be_renamed_between_two_starts(tmp_path: Path, pattern: str) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    inner = before / "b" if "/" in pattern else before
    inner.mkdir(parents=True)
    for part in range(3):
        write(inner / f"part-{part}", example(9)[part * 3 : part * 3 + 3], "jsonl")
    columns = {"n": int}
    first = Files(before / pattern, event_time="at", schema=columns, format="jsonl")
    position = first.start()
    for _ in range(2):
        offer = first.offer(position, Limit(2, 1 << 20))
        assert offer is not None
        position = json.loads(json.dumps(offer.end))
    before.rename(after)
    then = Files(after / pattern, event_time="at", schema=columns, format="jsonl")
    # (what was divided before is read again as well)
    assert [then.read(split)["n"].to_pylist() for split in then.splits(None, position)] == [
        [2],
        [3],
    ]
    left = []
    while (offer := then.offer(position, Limit(100, 1 << 20))) and not offer.empty:
        splits = then.splits(position, offer.end)
        left += [n for split in splits for n in then.read(split)["n"].to_pylist()]
        position = offer.end
    assert left == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_nested_times_that_name_no_zone_are_of_the_one_that_is_given(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / f"a.{kind}"
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    if kind == "parquet":
        naive = pa.array([[noon.replace(tzinfo=None)]], pa.list_(pa.timestamp("us")))
        pyarrow.parquet.write_table(pa.table({"at": [1], "all": naive}), path)
    else:
        path.write_text('{"at": 1, "all": ["2024-01-01T12:00:00"]}\n')
    columns = {"all": list[datetime]}
    ((row,),) = rows_of(Files(path, event_time="at", schema=columns, time_unit="us"), LIMIT)
    assert row[1] == [noon]
    zoned = Files(path, event_time="at", schema=columns, time_zone="Asia/Tokyo", time_unit="us")
    ((row,),) = rows_of(zoned, LIMIT)
    assert row[1] == [noon - timedelta(hours=9)]


def read_all(source: Files, position: Any) -> list[int]:
    """Return the numbers of all records that come after a position."""
    found = []
    while (offer := source.offer(position, Limit(100, 1 << 20))) is not None and not offer.empty:
        splits = source.splits(position, json.loads(json.dumps(offer.end)))
        found += [n for split in splits for n in source.read(split)["n"].to_pylist()]
        position = offer.end
    return found


def read_to(source: Files, position: Any = None) -> Any:
    """Read all that is there; return the position after it."""
    position = source.start() if position is None else position
    while (offer := source.offer(position, Limit(100, 1 << 20))) is not None and not offer.empty:
        position = json.loads(json.dumps(offer.end))
    return position


OLD_PARTS = [["part-0.jsonl", 0, 106], ["part-1.jsonl", 0, 106]]
OLD_POSITION = {
    "done": 1,
    "name": "part-1.jsonl",
    "offset": 106,
    "ended": True,
    "parts": OLD_PARTS,
    "levels": 1,
    "read": 1,
}


@pytest.mark.parametrize("whole_path", [False, True])
def test_a_position_of_an_older_version_is_read_on_from(tmp_path: Path, whole_path: bool) -> None:
    for part in range(2):
        write(tmp_path / f"part-{part}", example(4)[part * 2 : part * 2 + 2], "jsonl")
    source = watched(tmp_path)
    once = dict(OLD_POSITION)
    if whole_path:
        once |= {
            "name": str(tmp_path / "part-1.jsonl"),
            "levels": 0,
            "parts": [[str(tmp_path / str(name)), *of] for name, *of in OLD_PARTS],
        }
    splits = source.splits(None, once)
    assert [n for of in splits for n in source.read(of)["n"].to_pylist()] == [0, 1, 2, 3]
    assert source.offer(once, LIMIT) is None
    with (tmp_path / "part-1.jsonl").open("a") as file:
        file.write(json.dumps(example(5)[4]) + "\n")
    write(tmp_path / "part-2", example(7)[5:], "jsonl")
    assert read_all(source, once) == [4, 5, 6]
    with pytest.raises(SourceChanged, match="is not of"):
        source.offer({**once, "name": "/elsewhere/part-1.jsonl"}, LIMIT)


def test_files_that_an_older_version_may_not_have_read_are_refused(tmp_path: Path) -> None:
    for part in range(2):
        write(tmp_path / f"part-{part}", example(4)[part * 2 : part * 2 + 2], "jsonl")
    write(tmp_path / "a", example(9)[7:], "jsonl")
    with pytest.raises(SourceChanged, match="sort before"):
        watched(tmp_path).offer(OLD_POSITION, LIMIT)


@pytest.mark.parametrize(
    ("first", "then"), [("*/*.jsonl", "s/*.jsonl"), ("s/*.jsonl", "*/*.jsonl")]
)
def test_a_pattern_over_other_levels_of_folders_is_refused(
    tmp_path: Path, first: str, then: str
) -> None:
    (tmp_path / "s").mkdir()
    write(tmp_path / "s" / "a", example(2), "jsonl")
    columns = {"n": int}
    position = read_to(Files(tmp_path / first, event_time="at", schema=columns, watch=True))
    other = Files(tmp_path / then, event_time="at", schema=columns, watch=True)
    with pytest.raises(SourceChanged, match="is not of"):
        other.offer(position, Limit(100, 1 << 20))


def test_folders_of_any_depth_are_looked_through(tmp_path: Path) -> None:
    for at, folder in enumerate(["", "x", "x/y", "_hidden", "x/.hidden", "z/y/x"]):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        write(tmp_path / folder / "a", example(at + 1)[at:], "jsonl")
    source = Files(tmp_path / "**" / "*.jsonl", event_time="at", schema={"n": int})
    assert sorted(row[1] for step in rows_of(source, LIMIT) for row in step) == [0, 1, 2, 5]


def test_a_pattern_through_a_link_and_back_names_what_the_file_system_says(tmp_path: Path) -> None:
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "inner")
    write(tmp_path / "real" / "a", example(2), "jsonl")
    source = Files(tmp_path / "link" / ".." / "*.jsonl", event_time="at", schema={"n": int})
    assert [row[1] for step in rows_of(source, Limit(9, 1 << 20)) for row in step] == [0, 1]


def test_a_record_of_csv_may_be_of_any_length(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    text = "x" * 3_000_000
    path.write_text(f'at,page,n\n2024-01-01T00:00:01Z,"{text}",1\n2024-01-01T00:00:02Z,b,2\n')
    source = Files(path, event_time="at", schema={"page": str, "n": int})
    assert [row[1:] for step in rows_of(source, Limit(9, 1 << 20)) for row in step] == [
        (text, 1),
        ("b", 2),
    ]


def test_a_watched_file_of_csv_may_be_a_header_alone_at_first(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("at,n\n")
    source = Files(path, event_time="at", schema={"n": int}, watch=True)
    assert source.offer(source.start(), Limit(9, 1 << 20)) is None
    path.write_text("at,n\n2024-01-01T00:00:01Z,1\n")
    offer = source.offer(source.start(), Limit(9, 1 << 20))
    assert offer is not None
    (split,) = source.splits(None, offer.end)
    assert source.read(split)["n"].to_pylist() == [1]


def test_a_field_that_is_called_timestamp_is_no_time(tmp_path: Path) -> None:
    nested = pa.struct([("timestamp", pa.int64())])
    columns = {"at": str, "nested": nested}
    Files(tmp_path / "a.jsonl", event_time="at", schema=columns, time_zone="America/New_York")


def test_what_begins_at_the_beginning_also_reads_files_that_came_while_it_caught_up(
    tmp_path: Path,
) -> None:
    write(tmp_path / "b", example(2), "jsonl")
    source = watched(tmp_path)
    again = source.again()
    first = read_to(source)
    behind = again.offer_until(again.start(), first, LIMIT)
    assert behind is not None
    assert again.offer_until(behind.end, first, LIMIT) is None
    write(tmp_path / "a", example(4)[2:], "jsonl")
    then = read_to(source, first)
    rest = again.offer_until(behind.end, then, LIMIT)
    assert rest is not None
    assert [n for of in again.splits(None, rest.end) for n in again.read(of)["n"].to_pylist()] == [
        2,
        3,
    ]
    assert again.offer_until(rest.end, then, LIMIT) is None
