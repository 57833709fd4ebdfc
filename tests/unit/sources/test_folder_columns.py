"""What folders such as ``day=3`` say of records is a column: exactly, once, and not against the records."""

from __future__ import annotations

import json
import os
import tempfile
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import BadInput
from headrace.sources import Files, Limit

FORMATS = ["csv", "jsonl", "parquet"]
LIMIT = Limit(100, 1 << 20)


def put(folder: Path, form: str, columns: dict[str, list[Any]]) -> Path:
    """Write records into a folder; columns that are None are absent in JSON, null elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"a.{form}"
    if form == "csv":
        with path.open("wb") as file:
            pyarrow.csv.write_csv(pa.table(columns), file)
    elif form == "parquet":
        with path.open("wb") as file:
            pyarrow.parquet.write_table(pa.table(columns), file)
    else:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        there = [{name: v for name, v in row.items() if v is not None} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in there))
    return path


def read(source: Files) -> list[Any]:
    offer = source.offer(source.start(), LIMIT)
    assert offer is not None
    found: list[Any] = []
    for split in source.splits(None, offer.end):
        table = source.for_tasks().read(split)
        found += source.values().to_python([c.combine_chunks() for c in table.columns[1:]])
    return found


def below(top: Path, form: str, kind: Any, **options: Any) -> Files:
    """Return the source of files in folders that say what ``x`` is."""
    declared = kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None
    schema = None if declared else {"at": int, "x": kind}
    unit = {"time_unit": "us", **options}
    return Files(top, event_time="at", type=declared, schema=schema, format=form, **unit)


def of_folder(name: str, form: str, kind: Any, **columns: list[Any]) -> list[Any]:
    """Return what ``x`` is in records of a folder of a name."""
    with tempfile.TemporaryDirectory() as top:
        put(Path(top) / name, form, {"at": [1], **columns})
        return [row.x for row in read(below(Path(top), form, kind))]


def _as_iso(value: Any) -> tuple[str, Any]:
    return value.isoformat(), value


FLOAT32 = Annotated[float, pa.float32()]
VALUES: list[tuple[Any, Any]] = [
    (int, st.integers(-(2**63), 2**63 - 1).map(lambda n: (str(n), n))),
    (Annotated[int, pa.int16()], st.integers(-(2**15), 2**15 - 1).map(lambda n: (str(n), n))),
    (float, st.floats().map(lambda x: (repr(x), x))),
    (bool, st.booleans().map(lambda b: (str(b).lower(), b))),
    (Decimal, st.decimals(-(10**19), 10**19, places=18).map(lambda d: (f"{d:f}", d))),
    (date, st.dates().map(_as_iso)),
    (datetime, st.datetimes().map(lambda t: t.replace(tzinfo=UTC, fold=0)).map(_as_iso)),
    (time, st.times().map(lambda t: t.replace(fold=0)).map(_as_iso)),
    (timedelta, st.integers(-(2**60), 2**60).map(lambda n: (str(n), timedelta(microseconds=n)))),
    (
        str,
        st.text(max_size=20)
        .filter(lambda s: s.isprintable() or "\0" not in s)
        .map(lambda s: (s, s)),
    ),
]


@given(st.data(), st.sampled_from(VALUES), st.sampled_from(FORMATS))
@settings(max_examples=40, deadline=None)
def test_what_a_folder_says_is_the_value_that_it_shows(
    data: st.DataObject, of: tuple[Any, Any], form: str
) -> None:
    kind, values = of
    text, value = data.draw(values)
    assert repr(of_folder(f"x={quote(text, safe='')}", form, kind)) == repr([value])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (int, "0x10"),
        (int, "0xFFFFFFFFFFFFFFFF"),
        (int, "5.0"),
        (int, "1_0"),
        (int, ""),
        (Annotated[int, pa.int8()], "128"),
        (float, "1e400"),
        (float, str(2**53 + 1)),
        (float, "soon"),
        (FLOAT32, "1e300"),
        (FLOAT32, "16777217"),
        (Decimal, "1" * 25),
        (Decimal, "1e-19"),
        (Annotated[Decimal, pa.decimal128(38, 0)], "0.5"),
        (bool, "yes"),
        (date, "2024-05-32"),
        (datetime, "soon"),
        (time, "24:00:00"),
        (timedelta, "0x10"),
        (list[int], "1"),
        (Decimal, "NaN"),
        (int, str(2**63)),
        (int, "soon"),
    ],
)
def test_a_folder_that_says_no_value_of_its_column_is_bad_input(
    form: str, kind: Any, text: str
) -> None:
    if form == "csv" and kind == list[int]:
        return  # (refused when it is drawn)
    with pytest.raises(BadInput, match=r"by the folder's name|the time in column 'x' cannot"):
        of_folder(f"x={quote(text, safe='')}", form, kind)


@pytest.mark.parametrize("form", FORMATS)
def test_a_folder_says_a_column_once_and_in_utf_8(form: str) -> None:
    for name in ("x=5/x=6", "x=5/y=1/x=5"):
        with pytest.raises(BadInput, match="two folders stand for column 'x'"):
            of_folder(name, form, int)
    with pytest.raises(BadInput, match="not UTF-8"):
        of_folder("x=%ff", form, str)
    with pytest.raises(BadInput, match="not UTF-8"):
        of_folder(os.fsdecode(b"x=\xff"), form, str)
    assert of_folder("x=a\\b/y=%ff/y=2", form, str) == ["a\\b"], "what is not read may be anything"


# -- columns that records have themselves -------------------------------------------------------------


class Dated(msgspec.Struct):
    at: int
    x: int = 7


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", [int, int | None, Dated])
def test_a_column_of_the_records_may_say_the_same_as_their_folder_or_nothing(
    form: str, kind: Any
) -> None:
    with tempfile.TemporaryDirectory() as top:
        put(Path(top) / "x=05", form, {"at": [1, 2, 3], "x": [5, None, 5], "y": ["x", '"x":', "x"]})
        put(Path(top) / "x=6", form, {"at": [4]})
        found = sorted((row.at, row.x) for row in read(below(Path(top), form, kind)))
        assert found == [(1, 5), (2, 5), (3, 5), (4, 6)]


@given(
    st.lists(st.sampled_from([None, 5, 6, 7]), min_size=1, max_size=12),
    st.sampled_from(FORMATS),
    st.sampled_from(["x=5", "x=__HIVE_DEFAULT_PARTITION__"]),
)
@settings(max_examples=20, deadline=None)
def test_the_first_record_that_says_another_value_than_its_folder_is_bad_input(
    own: list[int | None], form: str, folder: str
) -> None:
    value = 5 if folder == "x=5" else None
    wrong = [row for row, x in enumerate(own) if x is not None and x != value]
    with tempfile.TemporaryDirectory() as top:
        put(
            Path(top) / folder,
            form,
            {"at": list(range(len(own))), "x": own},
        )
        source = below(Path(top), form, int | None)
        if wrong:
            with pytest.raises(BadInput, match=r"column 'x' is .* by the folder's name") as raised:
                read(source)
            place = raised.value.place
            assert place.endswith(f" {wrong[0] + (2 if form == 'csv' else 1)}")
        else:
            assert [row.x for row in read(source)] == [value] * len(own)
        offer = source.offer(source.start(), LIMIT)
        assert offer is not None
        (split,) = source.splits(None, offer.end)
        sifted = source.for_tasks().sift(split)
        good = [] if sifted.table is None else sifted.table["at"].to_pylist()
        assert good == [row for row in range(len(own)) if row not in wrong]
        assert len(sifted.bad) == len(wrong)


@pytest.mark.parametrize("form", FORMATS)
def test_times_are_compared_as_times_also_where_they_are_event_times(form: str) -> None:
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top) / "at=2024-05-01"
        put(folder, form, {"at": ["2024-05-01T00:00:00Z"], "x": [1]})
        source = Files(top, event_time="at", schema={"x": int, "at": datetime}, format=form)  # type: ignore[arg-type]
        assert [row.at for row in read(source)] == [datetime(2024, 5, 1, tzinfo=UTC)]
        put(folder, form, {"at": ["2024-05-01T00:00:01Z"], "x": [1]})
        source = Files(top, event_time="at", schema={"x": int}, format=form)  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="column 'at' is '2024-05-01' by the folder's name"):
            read(source)
