"""The table of types: each Python type in Arrow, JSON, CSV and Parquet, and what it refuses.

``python -m headrace.schema.table`` generates ``docs/reference/types.md`` from it. Tests check that
the engine behaves as it says.
"""

from __future__ import annotations

import enum
import math
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec

from headrace.schema.declared import part_of


class Colour(enum.Enum):
    """An enum, for the table."""

    RED = "red"


class Point(msgspec.Struct, frozen=True, rename="camel"):
    """A struct, for the table."""

    from_left: int
    note: str | None = None


class Circle(msgspec.Struct, tag="circle", frozen=True):
    """A member of a union, for the table."""

    radius: float


class Square(msgspec.Struct, tag="square", frozen=True):
    """Another member of a union, for the table."""

    side: float


class Row(NamedTuple):
    """A row of the table: one type.

    Attributes:
        kind: the type.
        name: how the type is written.
        example: a value of the type.
        json: that value in JSON.
        csv: that value in CSV; None if CSV has no form for the type.
        parquet: the name of the type in Parquet.
        refuses: similar values that are refused.
        note: further remarks.
    """

    kind: Any
    name: str
    example: Any
    json: str
    csv: str | None
    parquet: str
    refuses: tuple[Any, ...]
    note: str = ""


_NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
_UUID = UUID("12345678-1234-5678-1234-567812345678")

TABLE: list[Row] = [
    Row(int, "int", 7, "7", "7", "INT64", (2.0, True, "7", 2**63),
        "64 bits; `Annotated[int, pa.int16()]` for another width"),
    Row(float, "float", 0.5, "0.5", "0.5", "DOUBLE", (True, 2**53 + 1, Decimal("0.5")),
        "integers that a float can show are taken; in JSON `NaN`, `Infinity` and `-Infinity` are texts"),
    Row(bool, "bool", True, "true", "true", "BOOLEAN", (1, "true")),
    Row(str, "str", "é", '"é"', '"é"', "BYTE_ARRAY (String)", (b"x", 7, "\ud800"),
        "what UTF-8 cannot write is refused"),
    Row(bytes, "bytes", b"\x00\xff", '"AP8="', None, "BYTE_ARRAY", ("x", [0, 255]),
        "Base64 in JSON"),
    Row(date, "date", date(2024, 1, 1), '"2024-01-01"', "2024-01-01", "INT32 (Date)",
        (_NOON, "2024-01-01"), "of the years 1 to 9999"),
    Row(datetime, "datetime", _NOON, '"2024-01-01T12:00:00Z"', "2024-01-01 12:00:00.000000Z",
        "INT64 (Timestamp, microseconds, UTC)",
        (datetime(2024, 1, 1, 12), date(2024, 1, 1), 1704110400),  # noqa: DTZ001
        "a point in time: with a time zone; comes back in UTC; finer parts than microseconds are "
        "cut where files have them"),
    Row(timedelta, "timedelta", timedelta(hours=1, microseconds=5), '"PT3600.000005S"',
        "3600000005", "INT64", (1.5, 3, timedelta.max), "in microseconds"),
    Row(time, "time", time(12, 30), '"12:30:00"', "12:30:00.000000", "INT64 (Time, microseconds)",
        (time(12, tzinfo=UTC), _NOON), "of no time zone"),
    Row(Decimal, "Decimal", Decimal("1.5"), '"1.500000000000000000"', "1.500000000000000000",
        "FIXED_LEN_BYTE_ARRAY (Decimal(38, 18))", (0.5, Decimal("1e-19"), Decimal("NaN")),
        "20 digits before the point and 18 behind it, never rounded; "
        "`Annotated[Decimal, pa.decimal128(10, 2)]` for others"),
    Row(UUID, "UUID", _UUID, f'"{_UUID}"', f'"{_UUID}"', "BYTE_ARRAY (String)", ("seven", 7),
        "its text of 36 characters, which Spark, DuckDB and pandas read"),
    Row(Colour, "Enum", Colour.RED, '"red"', '"red"', "BYTE_ARRAY (String) or INT64",
        ("green", 1), "by value: all texts, or all integers"),
    Row(Literal["a", "b"], 'Literal["a", "b"]', "a", '"a"', '"a"', "BYTE_ARRAY (String) or INT64",
        ("c", 1)),
    Row(int | None, "int | None", None, "null", "", "INT64", ("7",),
        "and so for any other type"),
    Row(list[int], "list[int]", [1, 2], "[1,2]", None, "LIST", ([1, None], [1, 2.5], "12"),
        "`tuple[int, ...]` and `set[int]` alike"),
    Row(tuple[int, str], "tuple[int, str]", (1, "x"), '{"_1":1,"_2":"x"}', None, "group",
        ((1,), (1, 2)), 'read of `[1,"x"]` in JSON, too, as msgspec writes it'),
    Row(dict[str, int | None], "dict[str, int | None]", {"x": 1, "y": None}, '{"x":1,"y":null}',
        None, "MAP", ({"x": "1"}, [("x", 1)])),
    Row(Point, "Struct, dataclass", Point(1), '{"fromLeft":1,"note":null}', None, "group",
        (Circle(1.0), 7), "fields by the names that `rename=` and `field(name=)` give them"),
    Row(Circle | Square, "Circle | Square", Circle(1.0), '{"type":"circle","radius":1.0}',
        '"{""type"":""circle"",""radius"":1.0}"', "BYTE_ARRAY (JSON)", (Point(1), Circle(math.nan)),
        "unions, `Any`, types that are made of themselves: as JSON, in a column of texts"),
]  # fmt: skip


def page() -> str:
    """Return the page that is generated from the table."""
    return "\n".join([*_lines(), ""])


def _lines() -> Iterator[str]:
    yield _HEAD
    yield "| Python | Arrow | JSON | CSV | Parquet |"
    yield "|---|---|---|---|---|"
    for row in TABLE:
        arrow = part_of("it", row.kind, "").form.arrow
        csv = "none" if row.csv is None else _code(row.csv) or "empty"
        yield f"| {_code(row.name)} | {_code(arrow)} | {_code(row.json)} | {csv} | {row.parquet} |"
    yield ""
    yield "| Python | refuses | |"
    yield "|---|---|---|"
    for row in TABLE:
        refused = ", ".join(_code(_shown(value)) for value in row.refuses)
        yield f"| {_code(row.name)} | {refused} | {row.note} |"
    yield ""
    yield _TAIL


def _code(text: Any) -> str:
    shown = str(text).replace("|", "\\|")
    return f"`{shown}`" if shown else ""


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 2**53:
        return f"2**{(value - 1).bit_length() if value & 1 == 0 else 53}" + " + 1" * (value & 1)
    return repr(value).replace("datetime.", "").replace("timezone.utc", "UTC")


_HEAD = """# Types of values

<!-- made by `python -m headrace.schema.table`; tests hold the engine to it -->

A stream's values are structs (`msgspec.Struct`), dataclasses, or single values. Each field is a column,
and each type has one form as a column: the same in sources, outputs, posts, inboxes, sinks and tests.
Nothing is converted with loss, in either direction. A value that its field cannot hold as it is is
refused with the field's name (for a part of a nested value the path to it, such as `items[3].price`), the
place and the remedy:

- in a source, with the item, the file and line, or the row of a batch (`BadInput`, HR201);
- from a handler, with the key (`UserCodeError`, HR102); `on_error="skip"` and `"dead_letter"` apply.
"""

_TAIL = """## Names and defaults

`rename=` and `field(name=)` of msgspec give fields other names outside: in files that are read, in what
sinks get, in the mappings that `Producer.append` takes. In Python, in `keys=` and in columnar handlers
fields have their own names. A field that is absent in a record gets its default, as in
`msgspec.json.decode`; null is null, and no default. A `default_factory` is called for each record, and must
give the same each time, since a step may read its records again. A default must be of its field's type.

`tag=` and `forbid_unknown_fields=` hold for objects in JSON lines, at any depth: another tag, or a field
that is not known, makes a bad line. Columns of CSV and Parquet say neither. All that `Annotated` notes
holds: an Arrow type, and limits (`msgspec.Meta`). A class that refuses its values (`__post_init__`) makes
a bad record of them, in the source that brings them.

A sink gets the key as `key` (`key0`, `key1`, … if it has several parts), the event time as `timestamp`,
then the value's columns. Where the value has a column of that name, in capitals or not, ours gets an
underscore in front, and a second one if that is taken too.

## Numbers of NumPy

A NumPy scalar is taken wherever a Python number is: in records, state, keys, times of timers and posts,
and durations. It is kept as the Python number that it equals. Arrays of columnar handlers follow the
same table: integers that a float cannot show, floats that lose digits in 32 bits, and times that are no
whole days for a date are refused.

## Columns of others

A column of a file, an inbox or Spark may be of another Arrow type than the field's, as long as each value
is the same: integers of any width that fit, floats that are whole for an `int` (pandas writes integers with
gaps so), decimals that a `float` shows digit by digit, bytes that are UTF-8 for a `str`, dictionaries,
views, large types, and times of any unit and zone. Of points in time and times of day what is finer than
a microsecond is cut. Points in time and dates beyond the years 1 to 9999 are refused, and times of day that
are none. A member of an enum, or a UUID, is kept in one way, however it was written.

In Python: `headrace.schema.exact_cast(column, field)` is that cast, and raises
`headrace.schema.NotExact` with the row and the reason.

## Keys and floats

A stream can be keyed by integers, booleans, texts, bytes, dates, times, enums, literals and UUIDs. A key is
what the column holds: `ctx.key` is the value of an enum's member, and a UUID's text. NaN is a value as any
other, equal to itself where rows are compared; a float cannot be a key, nor NaN the key of a map.

## State

State takes the same types, and a few more: any type that msgspec knows. It keeps integers up to 64 bits
without a sign, decimals of any length, and times without a zone. In what is of no declared type (`Any`, a
`dict` or `list` of anything) values are refused that would come back as others: a `Decimal` as a text, a
tuple as a list; in streams as in state. Columns of a `TableState` are `int`,
`float`, `bool`, `str`, `bytes`, `date`, `datetime`, `timedelta`, `Decimal`, or an Arrow type of fixed
width. Rows of a `ZSetState` take the types of streams; of nested ones, lists.
"""


if __name__ == "__main__":
    sys.stdout.write(page())
