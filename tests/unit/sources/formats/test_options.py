"""Options: how times are written, and which CSV it is; against Python's csv module and zoneinfo."""

from __future__ import annotations

import csv
import gzip
import io
import tempfile
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import BadInput, PipelineError
from headrace.schema.reserved import TIMESTAMP_COLUMN
from headrace.sources import Files, Limit
from tests.unit.sources.formats.test_columns import records


def times(source: Files) -> list[datetime]:
    """Return the event times of all records."""
    offer = source.offer(source.start(), Limit(1000, 1 << 20))
    assert offer is not None
    found: list[datetime] = []
    for split in source.splits(source.start(), offer.end):
        micros = source.read(split).column(TIMESTAMP_COLUMN).to_pylist()
        found += [datetime.fromtimestamp(at / 1_000_000, UTC) for at in micros]
    return found


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_gaps_are_read_as_spark_has_them_and_repeated_hours_as_is_said(
    tmp_path: Path, kind: str
) -> None:
    texts = ["2024-03-10 01:30", "2024-03-10 02:30", "2024-11-03 01:30"]
    path = tmp_path / f"a.{kind}"
    path.write_text(
        "at\n" + "\n".join(texts) + "\n"
        if kind == "csv"
        else "".join(f'{{"at": "{text}"}}\n' for text in texts)
    )
    options: dict[str, Any] = {
        "event_time": "at",
        "time_zone": "America/New_York",
        "schema": {"at": datetime},
    }
    wanted = [utc(2024, 3, 10, 6, 30), utc(2024, 3, 10, 7, 30), utc(2024, 11, 3, 5, 30)]
    source = Files(path, **options)
    assert times(source) == wanted
    assert [row.at for row in records(source)] == wanted
    latest = Files(path, ambiguous="latest", **options)
    assert times(latest) == [*wanted[:2], utc(2024, 11, 3, 6, 30)]
    with pytest.raises(BadInput, match="twice") as caught:
        times(Files(path, ambiguous="raise", **options))
    assert f"line {4 if kind == 'csv' else 3}" in str(caught.value)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_date_that_is_a_number_is_no_microseconds_of_1970(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_text("at,n\n19580329,1\n" if kind == "csv" else '{"at": 19580329, "n": 1}\n')
    with pytest.raises(PipelineError, match="time_format="):  # the columns as found
        Files(path, event_time="at")
    for declared in (int, str, datetime):
        with pytest.raises(BadInput, match=r"time_format=|time_unit=|Expected"):
            times(Files(path, event_time="at", schema={"at": declared, "n": int}))
    for schema in (None, {"n": int}, {"at": int}, {"at": datetime}, {"at": date}):
        source = Files(path, event_time="at", schema=schema, time_format="%Y%m%d")
        assert times(source) == [utc(1958, 3, 29)], schema
    (row,) = records(Files(path, event_time="at", schema={"at": date}, time_format="%Y%m%d"))
    assert row.at == date(1958, 3, 29)
    zoned = Files(
        path, event_time="at", schema={"at": date}, time_format="%Y%m%d", time_zone="Europe/Berlin"
    )
    assert [of.at for of in records(zoned)] == [row.at]  # (the zone is for the event time)
    (row,) = records(Files(path, event_time="at", time_format="%Y%m%d"))
    assert row.at == 19580329
    assert times(Files(path, event_time="at", time_unit="us")) == [
        utc(1970, 1, 1, 0, 0, 19, 580329)
    ]


def test_each_column_may_have_a_format_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("day;Zeit;seen\n01.05.2024;14:05 2024-121;2024-05-01T12:00:00Z\n")
    source = Files(
        path,
        event_time="zeit",
        delimiter=";",
        columns={"zeit": "Zeit"},
        time_zone="Europe/Berlin",
        schema={"day": date, "zeit": datetime, "seen": datetime},
        time_format={"day": "%d.%m.%Y", "zeit": "%H:%M %Y-%j"},
    )
    (row,) = records(
        Files(
            path=path,
            event_time="zeit",
            delimiter=";",
            columns={"zeit": "Zeit"},
            schema={"day": date, "zeit": datetime, "seen": datetime},
            time_format={"day": "%d.%m.%Y", "zeit": "%H:%M %Y-%j"},
        )
    )
    assert (row.day, row.seen) == (date(2024, 5, 1), utc(2024, 5, 1, 12))
    assert times(source) == [utc(2024, 4, 30, 12, 5)]


def test_numbers_in_columns_of_times_have_the_unit_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"at": 1714557600}\n{"at": 1714557600.5}\n{"at": "2024-05-01T10:00:01Z"}\n')
    source = Files(path, event_time="at", schema={"at": datetime}, time_unit="s")
    noon = utc(2024, 5, 1, 10)
    assert times(source) == [noon, noon.replace(microsecond=500_000), noon.replace(second=1)]


# -- CSV ----------------------------------------------------------------------------------------

VALUES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\r\0\ufeff"), max_size=6
)
DIALECTS = st.sampled_from(
    [
        {"delimiter": ","},
        {"delimiter": ";"},
        {"delimiter": "\t"},
        {"delimiter": "|", "quotechar": "'"},
        {"delimiter": ",", "escapechar": "\\", "doublequote": False},
        {"delimiter": ";", "escapechar": "\\", "quoting": csv.QUOTE_NONE},
    ]
)


@settings(max_examples=80)
@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=6), DIALECTS, st.booleans())
def test_csv_of_any_dialect_is_read_as_the_csv_module_wrote_it(
    rows: list[tuple[str, str]], dialect: dict[str, Any], crlf: bool
) -> None:
    options = {"quoting": csv.QUOTE_ALL, "lineterminator": "\r\n" if crlf else "\n", **dialect}
    if (
        options["quoting"] == csv.QUOTE_NONE
    ):  # (no empty values, which are null; no line breaks with \r)
        rows = [tuple(value or "x" for value in row) for row in rows]  # type: ignore[misc]
    text = io.StringIO()
    csv.writer(text, **options).writerows(
        [("at", "a", "b"), *((n, *r) for n, r in enumerate(rows))]
    )
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a.csv"
        path.write_bytes(text.getvalue().encode())
        source = Files(
            path,
            event_time="at",
            schema={"at": int, "a": str, "b": str},
            delimiter=dialect["delimiter"],
            escape=dialect.get("escapechar"),
            quote=None
            if dialect.get("quoting") == csv.QUOTE_NONE
            else dialect.get("quotechar", '"'),
        )
        found = [(row.a, row.b) for row in records(source)]
    assert found == [tuple(row) for row in rows]


def test_files_without_names_or_with_lines_before_them_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("# a comment\n# another\n2024-05-01;1,5\n2024-05-02;-2\n")
    source = Files(
        path,
        event_time="at",
        column_names=["at", "x"],
        skip_rows=2,
        delimiter=";",
        decimal_point=",",
        schema={"x": float},
    )
    assert [row.x for row in records(source)] == [1.5, -2.0]
    assert times(source) == [utc(2024, 5, 1), utc(2024, 5, 2)]
    path.write_text("# a comment\nat;x\n2024-05-01;1\n2024-05-02;oh\n")
    with pytest.raises(BadInput, match="line 4"):
        records(Files(path, event_time="at", skip_rows=1, delimiter=";", schema={"x": int}))


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "iso8859_15", "cp437"])
def test_text_of_other_encodings_is_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("größe,at\nné,2024-05-01\n".encode(encoding))
    (row,) = records(Files(path, event_time="at", encoding=encoding))
    assert row.größe == "né"


def test_a_byte_that_an_encoding_has_not_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"at,a\n2024-05-01,x\n2024-05-01,\x81\n")
    with pytest.raises(BadInput, match="line 3"):
        records(Files(path, event_time="at", encoding="cp1252", schema={"at": str, "a": str}))


def test_a_time_of_day_is_cut_to_microseconds_and_names_no_zone(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("at,x\n1,12:30\n1,23:59:59.9999999\n1,00:00:00.000001\n")
    source = Files(path, event_time="at", schema={"at": int, "x": time})
    assert [row.x for row in records(source)] == [time(12, 30), time.max, time(0, 0, 0, 1)]
    path.write_text("at,x\n1,12:30:00+01:00\n")
    with pytest.raises(BadInput, match="line 2"):
        records(Files(path, event_time="at", schema={"at": int, "x": time}))


def test_numbers_keep_all_their_digits_where_types_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("at,zip,id,x\n2024-05-01,02134,12345678901234567890,1.5\n")
    (row,) = records(Files(path, event_time="at"))
    assert (row.zip, row.id, row.x) == ("02134", "12345678901234567890", 1.5)


def test_a_number_that_is_too_large_is_named_and_infinity_is_one(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("at,x\n2024-05-01,inf\n2024-05-01,-Infinity\n")
    source = Files(path, event_time="at", schema={"x": float})
    assert [row.x for row in records(source)] == [float("inf"), float("-inf")]
    path.write_text("at,x\n2024-05-01,inf\n2024-05-01,1e400\n")
    with pytest.raises(BadInput, match="line 3"):
        records(Files(path, event_time="at", schema={"x": float}))


AT_AND_TEXT: dict[str, Any] = {"event_time": "at", "schema": {"at": int, "x": str}}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"at,x\r1,a\r2,b\r", "carriage returns"),
        (gzip.compress(b"at,x\n1,a\n", mtime=0), "no text"),
        (b"1,a", "no column 'at'"),
        (b"x", "no column 'at'"),
    ],
    ids=["carriage returns", "compressed", "a record alone", "another column"],
)
def test_a_first_line_without_an_end_is_looked_at_as_any_other(
    tmp_path: Path, content: bytes, why: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=why) as caught:
        records(Files(path, **AT_AND_TEXT))
    assert "line 1" in str(caught.value)
    waiting = Files(path, watch=True, **AT_AND_TEXT)  # (the rest of the line may come)
    offer = waiting.offer(waiting.start(), Limit(9, 1 << 20))
    assert offer is None or not waiting.splits(waiting.start(), offer.end)


@pytest.mark.parametrize("content", [b"", b"at,x", b"at,x\n", b"\xef\xbb\xbfat,x"], ids=repr)
def test_a_file_of_names_alone_has_no_records(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    assert records(Files(path, **AT_AND_TEXT)) == []


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le"])
@pytest.mark.parametrize("declared", [{"schema": {"at": int, "höhe": int}}, {"time_unit": "us"}])
def test_names_of_columns_that_are_no_utf8_are_refused_with_the_remedy(
    tmp_path: Path, encoding: str, declared: dict[str, Any]
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("at,höhe\n1,2\n".encode(encoding))
    with pytest.raises(BadInput, match="encoding=") as caught:
        records(Files(path, event_time="at", **declared))
    assert "line 1" in str(caught.value)


def test_text_in_another_encoding_is_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("at,x\n1,a\n1,é\n".encode("latin-1"))
    with pytest.raises(BadInput, match="encoding=") as caught:
        records(Files(path, **AT_AND_TEXT))
    assert "line 3" in str(caught.value)
    with pytest.raises(BadInput, match="encoding="):
        Files(path, event_time="at", time_unit="us")


def test_another_delimiter_than_that_of_the_file_is_named_by_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for delimiter in (";", "\t", "|"):
        path.write_text(f'at{delimiter}"x"\n1{delimiter}2\n')
        with pytest.raises(BadInput) as caught:
            records(Files(path, **AT_AND_TEXT))
        assert f"separated by {delimiter!r}: say delimiter=" in str(caught.value)
        assert len(records(Files(path, delimiter=delimiter, **AT_AND_TEXT))) == 1


def sifted(path: Path) -> tuple[list[int], list[str]]:
    """Return the event times of good records and the places of bad ones."""
    source = Files(path, **AT_AND_TEXT)
    offer = source.offer(source.start(), Limit(99, 1 << 20))
    assert offer is not None
    (split,) = source.splits(source.start(), offer.end)
    table, bad = source.sift(split)
    good: list[int] = [] if table is None else table.column(TIMESTAMP_COLUMN).to_pylist()
    return good, [letter.place.rpartition(", ")[2] for letter in bad]


@pytest.mark.parametrize("bad", [b"", b"bad,c\n"])
def test_a_carriage_return_that_ends_a_value_is_refused_whatever_is_beside_it(
    tmp_path: Path, bad: bytes
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'at,x\n0,"\r"\n1,a\r2,b\n' + bad + b"3,c\n")
    assert sifted(path) == ([0, 3], ["line 3", "line 4"] if bad else ["line 3"])
    with pytest.raises(BadInput, match="line 3"):
        records(Files(path, **AT_AND_TEXT))


def test_a_quote_that_is_never_closed_is_refused_where_it_opens(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'at,x\n0,5" disk\n1,a\n2,"b\n3,c\n4,d\n')
    assert sifted(path) == ([0, 1], ["line 4"])
    with pytest.raises(BadInput, match="line 4"):
        records(Files(path, **AT_AND_TEXT))
    with path.open("ab") as file:
        file.write(b'"\n')
    assert sifted(path) == ([0, 1, 2], [])


@pytest.mark.parametrize(
    "options",
    [
        {"delimiter": ""},
        {"delimiter": "ab"},
        {"delimiter": "é"},
        {"quote": ","},
        {"escape": "\n"},
        {"encoding": "utf-16"},
        {"encoding": "shift_jis"},
        {"encoding": "klingon"},
        {"decimal_point": ":"},
        {"time_zone": "Europe/Pariss"},
        {"time_unit": "h"},
        {"ambiguous": "later"},
        {"time_format": "%Q"},
        {"time_format": {"nothing": "%Y"}},
    ],
    ids=str,
)
def test_an_option_that_means_nothing_is_refused_when_it_is_drawn(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(PipelineError):
        Files(tmp_path / "a.csv", event_time="at", schema={"at": str}, **options)


def test_options_of_csv_are_refused_for_other_formats(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="delimiter"):
        Files(tmp_path / "a.jsonl", event_time="at", schema={"at": str}, delimiter=";")
