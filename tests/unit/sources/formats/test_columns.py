"""Columns as others name and type them: odd names, and all types that Parquet files bring."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from pyspark.sql.types import LongType, StringType, StructType, TimestampNTZType

import headrace as hr
from headrace.errors import BadInput, PipelineError
from headrace.sources import Files, Limit

NAMES = ["Origin State", "a.b", "class", "__x", "2nd", "a", "é", "_"]


def records(source: Files) -> list[Any]:
    """Return all records of a source."""
    found: list[Any] = []
    position: Any = source.start()
    while (offer := source.offer(position, Limit(1000, 1 << 20))) is not None:
        for split in source.splits(position, offer.end):
            columns = source.read(split).columns[1:]
            found += source.values().to_python([c.combine_chunks() for c in columns])
        position = offer.end
        if offer.final:
            break
    return found


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    names, rows = list(columns), list(zip(*columns.values(), strict=True))
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    elif path.suffix == ".csv":
        lines = [",".join(f'"{name}"' for name in names)]
        lines += [",".join(str(value) for value in row) for row in rows]
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_bytes(
            msgspec.json.Encoder().encode_lines(
                [dict(zip(names, row, strict=True)) for row in rows]
            )
        )
    return path


KINDS = pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])


class Trip(msgspec.Struct):
    at: int
    origin_state: str
    dotted: int
    own: int


@KINDS
def test_columns_that_are_no_names_are_read_by_a_mapping(tmp_path: Path, kind: str) -> None:
    path = write(
        tmp_path / f"t.{kind}",
        {"The Time": [1, 2], "Origin State": ["NY", "NJ"], "a.b": [1, 2], "__x": [3, 4]},
    )
    names = {"at": "The Time", "origin_state": "Origin State", "dotted": "a.b", "own": "__x"}
    source = Files(path, event_time="at", type=Trip, columns=names, time_unit="s")
    assert records(source) == [Trip(1, "NY", 1, 3), Trip(2, "NJ", 2, 4)]
    (split,) = source.splits(None, source.offer(source.start(), Limit(9, 1 << 20)).end)  # type: ignore[union-attr]
    assert source.read(split).column(0).to_pylist() == [1_000_000, 2_000_000]


@KINDS
def test_columns_without_a_declared_type_have_derived_names(tmp_path: Path, kind: str) -> None:
    columns = {name: [f"v{at}"] for at, name in enumerate(NAMES[:-1])}
    path = write(tmp_path / f"t.{kind}", {"The Time": ["2024-05-01T12:00:00Z"], **columns})
    (row,) = records(Files(path, event_time="The Time"))
    wanted = ["The_Time", "Origin_State", "a_b", "class_", "_x", "_2nd", "a", "é"]
    assert list(row.__struct_fields__) == wanted
    assert [getattr(row, name) for name in wanted[1:]] == [f"v{at}" for at in range(7)]


@KINDS
def test_the_remedy_of_a_column_that_can_have_no_name_works(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / f"t.{kind}", {"at": [1], "_": [5], "a b": [6], "a.b": [7]})
    options: dict[str, Any] = {"event_time": "at", "time_unit": "us"}
    with pytest.raises(PipelineError, match="columns="):
        Files(path, **options)
    with pytest.raises(PipelineError, match=r"'a\.b'.*'a b'"):
        Files(path, columns={"underscore": "_"}, **options)
    named = {"underscore": "_", "dotted": "a.b"}
    (row,) = records(Files(path, columns=named, **options))
    assert (row.underscore, row.a_b, row.dotted) == (5, 6, 7)


def test_two_columns_of_one_name_are_refused_and_the_remedy_works(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("at,n,n\n2024-05-01,1,2\n")
    with pytest.raises(PipelineError, match="two columns 'n'"):
        Files(path, event_time="at")
    with pytest.raises(BadInput, match="more than one column 'n'"):
        records(Files(path, event_time="at", schema={"at": str, "n": int}))
    (row,) = records(Files(path, event_time="at", column_names=["at", "n", "m"], skip_rows=1))
    assert (row.n, row.m) == (1, 2)


@pytest.mark.parametrize("columns", [{"no_field": "a"}, {"own": "dotted", "dotted": "dotted"}])
def test_a_mapping_that_does_not_fit_is_refused(tmp_path: Path, columns: dict[str, str]) -> None:
    kind = msgspec.defstruct("Odd", [("at", int), ("dotted", int), ("own", str)])
    with pytest.raises(PipelineError):
        Files(tmp_path / "t.csv", event_time="at", type=kind, columns=columns)


class Renamed(msgspec.Struct, rename="camel"):
    event_at: int
    many_things: int = 7


@KINDS
def test_fields_have_the_names_and_defaults_that_they_have_outside(
    tmp_path: Path, kind: str
) -> None:
    path = write(tmp_path / f"a.{kind}", {"eventAt": [1, 2], "manyThings": [3, 4]})
    assert records(Files(path, event_time="event_at", type=Renamed)) == [
        Renamed(1, 3),
        Renamed(2, 4),
    ]
    path = write(tmp_path / f"b.{kind}", {"eventAt": [1]})
    assert records(Files(path, event_time="event_at", type=Renamed)) == [Renamed(1, 7)]


def test_a_key_that_is_absent_is_the_default_and_one_that_is_null_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"eventAt": 1}\n{"eventAt": 2, "manyThings": 8}\n')
    source = Files(path, event_time="event_at", type=Renamed)
    assert records(source) == [Renamed(1, 7), Renamed(2, 8)]
    path.write_text('{"eventAt": 1}\n{"eventAt": 2, "manyThings": null}\n')
    with pytest.raises(BadInput, match="line 2"):
        records(Files(path, event_time="event_at", type=Renamed))


# -- the types of Parquet -----------------------------------------------------------------------

YEAR_9999 = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
BEFORE = datetime(1900, 1, 1, 0, 0, 0, 1, tzinfo=UTC)


def parquet(path: Path, column: pa.Array, **options: Any) -> Path:
    at = pa.array(range(len(column)), pa.int64())
    pq.write_table(pa.table({"at": at, "it": column}), path, **options)
    return path


def test_int96_is_read_in_microseconds_whatever_the_year(tmp_path: Path) -> None:
    times = pa.array([YEAR_9999, BEFORE, None], pa.timestamp("us", tz="UTC"))
    path = parquet(tmp_path / "a.parquet", times, use_deprecated_int96_timestamps=True)
    for declared in ({"schema": {"it": datetime | None}}, {}):
        found = [row.it for row in records(Files(path, event_time="at", **declared))]  # type: ignore[arg-type]
        assert found == [YEAR_9999, BEFORE, None]


ID = uuid.UUID("12345678123456781234567812345678")
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
TYPES: list[tuple[pa.Array, Any, list[Any]]] = [
    (pa.array(["a", None], pa.string_view()), str | None, ["a", None]),
    (pa.array([b"a", None], pa.binary_view()), bytes | None, [b"a", None]),
    (pa.array(["a", "b"], pa.large_string()), str, ["a", "b"]),
    (pa.array([b"a"], pa.large_binary()), bytes, [b"a"]),
    (pa.array(["a", "a"]).dictionary_encode(), str, ["a", "a"]),
    (pa.array([1, 1], pa.int8()).dictionary_encode(), int, [1, 1]),
    (pa.array([[1, 2]], pa.large_list(pa.int16())), list[int], [[1, 2]]),
    (pa.array([[1, 2]], pa.list_(pa.int64(), 2)), list[int], [[1, 2]]),
    (pa.array([["a"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))), list[str], [["a"]]),
    (pa.array([Decimal("1.50")], pa.decimal128(10, 2)), Decimal, [Decimal("1.5")]),
    (pa.array([Decimal("12")], pa.decimal256(50, 0)), Decimal, [Decimal(12)]),
    (pa.array([Decimal("12")], pa.decimal128(5, 0)), int, [12]),
    (pa.array([1], pa.uint64()), int, [1]),
    (pa.array([0.5], pa.float32()), float, [0.5]),
    (pa.array([2], pa.int8()), float, [2.0]),
    (pa.array([2.0]), int, [2]),
    (pa.array([NOON], pa.timestamp("ns", tz="Asia/Tokyo")), datetime, [NOON]),
    (pa.array([NOON], pa.timestamp("ms", tz="UTC")), datetime, [NOON]),
    (pa.array([date(2024, 5, 1)], pa.date64()), date, [date(2024, 5, 1)]),
    (pa.array([time(12, 30)], pa.time32("ms")), time, [time(12, 30)]),
    (pa.array([timedelta(1)], pa.duration("ms")), timedelta, [timedelta(1)]),
    (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())), dict[str, int], [{"a": 1}]),
    (pa.array([ID.bytes], pa.binary(16)), uuid.UUID, [ID]),
]


@pytest.mark.parametrize(
    ("column", "kind", "values"), TYPES, ids=lambda of: str(getattr(of, "type", ""))
)
def test_each_type_of_parquet_is_read_as_what_it_holds(
    tmp_path: Path, column: pa.Array, kind: Any, values: list[Any]
) -> None:
    path = parquet(tmp_path / "a.parquet", column)
    source = Files(path, event_time="at", schema={"it": kind})
    assert [row.it for row in records(source)] == values
    Files(path, event_time="at").values()  # (and has a type where none is declared)


LOSSES: list[tuple[pa.Array, Any]] = [
    (pa.array([1.5]), int),
    (pa.array([2**63], pa.uint64()), int),
    (pa.array([2**53 + 1]), float),
    (pa.array(["1"]), int),
    (pa.array([1]), str),
    (pa.array([1]), bool),
    (pa.array([True]), int),
    (pa.array([NOON]), date),
    (pa.array([[1, None]]), list[int]),
    (pa.array([[[1], None]]), list[list[int]]),
    (pa.array([{"a": 1.5}]), dict[str, int]),
]


@pytest.mark.parametrize(("column", "kind"), LOSSES, ids=str)
def test_what_would_lose_something_is_refused_with_its_row(
    tmp_path: Path, column: pa.Array, kind: Any
) -> None:
    nothing = pa.nulls(1, column.type)
    path = parquet(tmp_path / "a.parquet", pa.concat_arrays([nothing, column]))
    with pytest.raises(BadInput, match="row 2"):
        records(Files(path, event_time="at", schema={"it": kind | None}))


class Strict(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    from_left: int = 0


class Circular(msgspec.Struct, tag="circle", tag_field="is"):
    at: int
    inner: Strict | None = None
    many: list[Strict] = []
    by: dict[str, Strict] = {}


class Alone(msgspec.Struct, forbid_unknown_fields=True):
    inner: Strict


@pytest.mark.parametrize(
    "more", ["", ', "many": [{"fromLeft": 2}]', ', "by": {"x": {"fromLeft": 3}}']
)
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"at": 1, "inner": {"fromLeft": 1}, "other": 5', None),
        ('{"at": 1, "is": "circle", "inner": null', None),
        ('{"at": 1, "is": "square"', r"'square' - at `\$\.is`"),
        ('{"at": 1, "inner": {"fromLeft": 1, "x": 1}', r"unknown field `x` - at `\$\.inner`"),
        ('{"at": 1, "inner": {"from_left": 1}', "unknown field `from_left`"),
    ],
)
def test_options_of_classes_hold_for_objects_in_json(
    tmp_path: Path, line: str, said: str | None, more: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"at": 1}\n' + line + more + "}\n")
    source = Files(path, type=Circular, event_time="at")
    if said is None:
        assert [row.at for row in records(source)] == [1, 1]
        return
    with pytest.raises(BadInput, match=said) as caught:
        records(source)
    assert "line 2" in str(caught.value)


def test_an_event_time_that_is_no_field_is_not_unknown(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"at": "2024-05-01T00:00:00Z", "inner": {"fromLeft": 1}}\n')
    assert records(Files(path, type=Alone, event_time="at")) == [Alone(Strict(1))]
    path.write_text('{"at": "2024-05-01T00:00:00Z", "inner": {"fromLeft": 1}, "more": 1}\n')
    with pytest.raises(BadInput, match="unknown field `more`"):
        records(Files(path, type=Alone, event_time="at"))


def with_decimal(folder: Path, kind: str, text: str) -> Path:
    """Return a file with a decimal beside an event time."""
    if kind == "parquet":
        return parquet(folder / "a.parquet", pa.array([Decimal(text)]))
    if kind == "folder":
        (folder / f"it={text}").mkdir()
        write(folder / f"it={text}" / "a.jsonl", {"at": [1]})
        return folder / "*" / "*.jsonl"
    return write(folder / f"a.{kind}", {"at": [1], "it": [text]})


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet", "folder"])
@pytest.mark.parametrize(("text", "scale"), [("1" * 25, 20), ("1e30", 2), ("1E-60", 60)])
def test_a_decimal_that_its_type_cannot_hold_is_no_other_number(
    tmp_path: Path, kind: str, text: str, scale: int
) -> None:
    path = with_decimal(tmp_path, kind, text)
    how: Any = {"event_time": "at", "time_unit": "us"}
    if kind == "parquet":
        how = {"event_time": "at"}
    with pytest.raises(BadInput, match="it"):
        records(Files(path, schema={"it": Decimal}, **how))
    found = records(Files(path, schema={"it": pa.decimal256(76, scale)}, **how))
    assert [row.it for row in found] == [Decimal(text)]


def test_decimals_of_csv_have_its_decimal_point_and_may_have_spaces_around(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("at;it\n1; 1,50 \n2;-2e-3\n3;\n")
    how: Any = {"event_time": "at", "time_unit": "us", "delimiter": ";", "decimal_point": ","}
    found = records(Files(path, schema={"it": Decimal | None}, **how))
    assert [row.it for row in found] == [Decimal("1.5"), Decimal("-0.002"), None]
    path.write_text("at;it\n1;1,5\n2;1.5\n")
    with pytest.raises(BadInput, match="line 3"):
        records(Files(path, schema={"it": Decimal}, **how))


def test_nanoseconds_are_cut_as_time_goes_on(tmp_path: Path) -> None:
    times = pa.array([-1, 1, 1_999], pa.timestamp("ns", tz="UTC"))
    path = parquet(tmp_path / "a.parquet", times)
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    found = [
        row.it - epoch for row in records(Files(path, event_time="at", schema={"it": datetime}))
    ]
    assert found == [timedelta(microseconds=us) for us in (-1, 0, 1)]


# -- sources of Spark ---------------------------------------------------------------------------


class Odd(DataSource):
    """Columns that are no names."""

    def schema(self) -> StructType:
        return (
            StructType()
            .add("The Time", TimestampNTZType())
            .add("Origin State", StringType())
            .add(self.options.get("third", "a.b"), LongType())
        )

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return OddReader()


class OddReader(SimpleDataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def read(self, start: Any) -> tuple[Iterator[Any], Any]:
        return self.readBetweenOffsets(start, {"at": 1}), {"at": 1}

    def readBetweenOffsets(self, start: Any, end: Any) -> Iterator[Any]:
        naive = datetime(2024, 3, 10, 2, 30)  # noqa: DTZ001
        return iter([(naive, "NY", 7)] if start["at"] < end["at"] else [])


def test_columns_of_a_spark_reader_have_derived_names_and_gaps_as_spark_has_them() -> None:
    source = hr.sources.SparkReader(Odd({}), event_time="The Time", time_zone="America/New_York")
    offer = source.offer(source.start(), Limit(10, 1 << 20))
    assert offer is not None
    (table,) = [source.read(split) for split in source.splits(source.start(), offer.end)]
    (row,) = source.values().to_python([c.combine_chunks() for c in table.columns[1:]])
    assert (row.The_Time, row.Origin_State, row.a_b) == (
        datetime(2024, 3, 10, 7, 30, tzinfo=UTC),
        "NY",
        7,
    )
    with pytest.raises(PipelineError, match="another name"):
        hr.sources.SparkReader(Odd({"third": "Origin-State"}), event_time="The Time")
