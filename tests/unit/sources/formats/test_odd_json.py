"""Odd lines of JSON: each is read as Python's json module reads it, or named with its file and line."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import BadInput
from headrace.sources import Files, Limit
from headrace.sources.formats import JsonLines, OpenedFile
from tests.support.values import same
from tests.unit.sources.formats.test_columns import records


class Plain(msgspec.Struct):
    """What Arrow's reader can read."""

    i: int | None = None
    f: float | None = None
    s: str | None = None
    b: bool | None = None
    many: list[int] | None = None


class Mapped(Plain):
    """What it cannot."""

    d: dict[str, int] | None = None


NUMBERS = [
    "0",
    "-0",
    "1",
    "-1",
    "1.0",
    "1e3",
    "1E400",
    "-1e400",
    "1.7976931348623159e308",
    "5e-324",
    "1e-400",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "9007199254740993",
    "123456789012345678901234567890",
    "01",
    "+1",
    ".5",
    "1.",
    "-",
    "0x10",
    "1_000",
    "1e",
]
TEXTS = [
    '""',
    '"1"',
    '"a"',
    '"\\u0000"',
    '"\\ud800"',
    '"\\ud83d\\ude00"',
    '"\\q"',
    '"a\tb"',
    '"\\',
    '"a',
    '"NaN"',
    '"Infinity"',
    '"-Infinity"',
    '"nan"',
    '"é"',
    '"\\/"',
    '"true"',
    '"\x00"',
]
OTHERS = [
    "null",
    "true",
    "false",
    "NaN",
    "Infinity",
    "-Infinity",
    "[]",
    "{}",
    "[1]",
    "[1, null]",
    "[1.0]",
    '["1"]',
    '{"a": 1}',
    '{"a": 1, "a": 2}',
    '{"a": null}',
    "[[1]]",
    "nul",
    "",
    "[" * 600 + "]" * 600,
    "[1",
    '{"a"',
    '{"i": 1}',
    "[1,]",
    "[,1]",
]
VALUES = st.sampled_from([*NUMBERS, *TEXTS, *OTHERS])
NAMES = st.sampled_from(["i", "f", "s", "b", "many", "d", "x", "i ", "", "\\u0069"])
OBJECTS = st.lists(st.tuples(NAMES, VALUES), max_size=3).map(
    lambda pairs: '{"at": 1' + "".join(f', "{name}": {value}' for name, value in pairs) + "}"
)
GOOD = st.sampled_from(['{"at": 1, "i": 7}', '{"at": 1, "s": "x", "f": 0.5}', '{"at": 1}', ""])
LINES = st.one_of(
    GOOD,
    GOOD,
    OBJECTS,
    OBJECTS,
    OBJECTS,
    OBJECTS.map(lambda line: line + " "),
    OBJECTS.map(lambda line: line + "\r"),
    OBJECTS.map(lambda line: line + line),
    OBJECTS.map(lambda line: line + "x"),
    OBJECTS.map(lambda line: "\x00" + line),
    OBJECTS.map(lambda line: line + "\x00"),
    OBJECTS.map(lambda line: line[:-1]),
    OBJECTS.map(lambda line: "[" + line + "]"),
    OBJECTS.map(lambda line: "  " + line),
    st.sampled_from(["null", "{", "}", "7", "[]", '"a"', "//"]),
)


class Bad(ValueError):
    pass


class Pairs(list[Any]):
    """An object in JSON: its names and values."""


def expected(line: str, kind: Any) -> Any:
    """Return what Python's json module makes of a line, checked by hand; or None for a blank one.

    Raises:
        Bad: when it is no record of the type.
    """
    if not line.strip(" \t\r"):
        return None
    wanted = {field.name for field in msgspec.structs.fields(kind)} | {"at"}
    try:
        pairs = json.loads(line, object_pairs_hook=Pairs)
        line.encode()
    except (ValueError, RecursionError) as error:
        raise Bad from error
    if not isinstance(pairs, Pairs):
        raise Bad
    names = [name for name, _ in pairs]
    if any(names.count(name) > 1 for name in wanted):
        raise Bad
    found = dict(pairs)
    if "at" not in found:
        raise Bad
    return {name: checked(name, found.get(name)) for name in wanted if name != "at"}


def checked(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name == "i" and type(value) is int and -(2**63) <= value < 2**63:
        return value
    if name == "f":
        if value in ("NaN", "Infinity", "-Infinity"):
            return float(value)
        if type(value) is float or (type(value) is int and int(float(value)) == value):
            return float(value)
    if name == "s" and type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Bad from error
        return value
    if name == "b" and type(value) is bool:
        return value
    if name == "many" and type(value) is list:
        return [strict_int(v) for v in value]
    if name == "d" and type(value) is Pairs:
        if len(dict(value)) < len(value):
            raise Bad
        return {key: strict_int(v) for key, v in value}
    raise Bad


def strict_int(value: Any) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise Bad
    return value


def is_lenient(line: str, found: Any) -> bool:
    """Say whether a line may be refused although Python's reader takes it: what it adds to JSON."""
    return any(
        word in line for word in ("NaN", "Infinity", "1E400", "-1e400", "e308", "ud800")
    ) or (
        # names twice in what is not read, and depth
        "\x00" in line or line.count("[") > 500 or '"a": 1, "a": 2' in line or twice(line)
    )


def twice(line: str) -> bool:
    found = json.loads(line, object_pairs_hook=list)
    names = [name for name, _ in found]
    return len(set(names)) < len(names)


@pytest.mark.parametrize("kind", [Plain, Mapped])
@settings(max_examples=250)
@given(st.lists(LINES, min_size=1, max_size=4), st.booleans())
@example(['{"at": 1, "many": [1, null]}'], True)
@example(['{"at": 1, "i": "1"}'], True)
@example(['{"at": 1, "i": 1, "i": 2}'], True)
@example(['{"at": 1, "f": 1.7976931348623159e308}'], True)
@example(['{"at": 1, "many": [', '{"at": 1}]}'], True)
@example(['{"at": 1}{"at": 1}'], True)
@example(["", '{"at": 1}{"at": 1}'], False)
@example(['{"at": 1, "f": -0}', '{"at": 1, "f": -0.0}'], True)
@example(["null", '{"at": 1}'], True)
def test_a_line_is_read_as_it_is_or_named(kind: Any, lines: list[str], mark: bool) -> None:
    wanted: list[Any] = []
    first_bad = None
    for number, line in enumerate(lines, 1):
        try:
            value = expected(line, kind)
        except Bad:
            first_bad = number
            break
        wanted += [] if value is None else [value]
    text = "\n".join(lines).encode("utf-8", "surrogatepass") + b"\n"
    found, error = read(b"\xef\xbb\xbf" * mark + text, kind)
    if first_bad is not None:
        assert error is not None, (found, first_bad)
        assert f"line {first_bad}" in error or any(
            is_lenient(x, None) for x in lines[: first_bad - 1] if x.strip(" \t\r")
        )
    elif error is not None:
        assert any(is_lenient(line, None) for line in lines if line.strip()), error
    else:
        assert len(found) == len(wanted)
        for row, want in zip(found, wanted, strict=True):
            assert all(same(getattr(row, name), value) for name, value in want.items()), (row, want)


def read(content: bytes, kind: Any) -> tuple[list[Any], str | None]:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "odd.jsonl"
        path.write_bytes(content)
        schema = {"at": int, **{f.name: f.type for f in msgspec.structs.fields(kind)}}
        source = Files(path, event_time="at", schema=schema)
        values = source.values()
        found: list[Any] = []
        position: Any = source.start()
        try:
            while (offer := source.offer(position, Limit(100, 1 << 20))) is not None:
                for split in source.splits(position, offer.end):
                    columns = source.read(split).columns[1:]
                    found += values.to_python([c.combine_chunks() for c in columns])
                position = offer.end
                if offer.final:
                    break
        except BadInput as error:
            assert "odd.jsonl" in str(error)
            return [], str(error)
        return found, None


def test_nan_and_infinity_are_read_as_texts_and_as_python_writes_them(tmp_path: Path) -> None:
    for text in ('"NaN"', "NaN"):
        (row,), error = read(b'{"at": 1, "f": %s}\n' % text.encode(), Plain)
        assert error is None and math.isnan(row.f)


WANTED = {
    "at": pa.int64(),
    "i": pa.int64(),
    "f": pa.float64(),
    "s": pa.string(),
    "b": pa.bool_(),
    "many": pa.list_(pa.int64()),
    "floats": pa.list_(pa.float32()),
    "o": pa.struct({"i": pa.int64()}),
}
ODD = st.sampled_from(
    [
        '{"at": 1, "f": NaN}',
        '{"at": 1, "f": "NaN"}',
        '{"at": 1, "x": NaN}',
        '{"at": 1, "f": -Infinity}',
        '{"at": 1, "s": NaN}',
        '{"at": 1, "s": "a NaN, b"}',
        '{"at": 1, "s": "NaN"}',
        '{"at": 1, "i": NaN}',
        '{"at": 1, "f": Inf}',
        '{"at": 1, "x": -NaN}',
        '{"at": 1, "floats": [NaN, 0.1]}',
        '{"at": 1, "x": [Inf]}',
        '{"at": 1, "s": "x: Inf"}',
        '{"at": 1, "f": 1e400}',
        '{"at": 1, "f": 9007199254740993}',
        '{"at": 1, "floats": [16777217]}',
        '{"at": 1, "f": 1e300}',
        '{"at": 1, "floats": [1e300]}',
        '{"at": 1, "floats": [16777216]}',
        '{"at": 1, "x": %s}' % ("[" * 2_000 + "]" * 2_000),
        '{"at": 1, "x": %s}' % ("[" * 399 + "]" * 399),
        '{"at": 1, "x": "%s"}' % ("[" * 2_000),
        '{"at": 1, "x": [' + ", ".join(["[]"] * 500) + "]}",
        '{"at": 1, "x": {"a": 1, "a": 2}}',
        '{"at": 1, "x": 1, "x": 2}',
        '{"at": 1, "i": 1, "i": 2}',
        '{"at": 1, "o": {"i": 1, "x": 1, "x": 2}}',
        '{"at": 1, "o": {"i": 1, "i": 2}}',
    ]
)


OPENED = OpenedFile("a.jsonl", io.BytesIO(), "a")


def parsed(format: JsonLines, lines: list[str], wanted: dict[str, pa.DataType]) -> list[Any] | None:
    """Return what a format makes of lines; None when it takes them not."""
    data = "".join(line + "\n" for line in lines).encode("utf-8", "surrogatepass")
    try:
        rows: list[Any] = format.parse(OPENED, data, wanted).to_pylist()
    except pa.ArrowInvalid:
        return None
    return rows


@pytest.mark.parametrize(
    "more", [{}, {"d": pa.map_(pa.string(), pa.int64())}], ids=["plain", "maps"]
)
@settings(max_examples=60)
@given(st.lists(st.one_of(ODD, ODD, ODD, OBJECTS), min_size=2, max_size=5))
@example(['{"at": 1, "f": NaN}', '{"at": 1, "f": "NaN"}'])
@example(['{"at": 1, "f": 1e400}', '{"at": 1, "f": Infinity}'])
@example(['{"at": 1, "x": {"a": 1, "a": 2}}', '{"at": 1, "f": "NaN"}'])
def test_whether_a_line_is_good_does_not_depend_on_those_beside_it(
    more: dict[str, pa.DataType], lines: list[str]
) -> None:
    format, wanted = JsonLines(), WANTED | more
    alone = [parsed(format, [line], WANTED) for line in lines]
    if '"d"' in "".join(lines):
        alone = [parsed(format, [line], wanted) for line in lines]
    together = parsed(format, lines, wanted)
    if None in alone:
        assert together is None
    else:
        assert together is not None
        expected = [row for rows in alone for row in rows or []]
        assert len(together) == len(expected)
        for row, want in zip(together, expected, strict=True):
            assert all(same(row[name], value) for name, value in want.items())


@pytest.mark.parametrize(
    "text", ["9007199254740993", "18446744073709551614", "[18446744073709551617]"]
)
def test_integers_that_no_float_shows_are_refused_where_types_are_found(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "a.jsonl"
    first = "[0.5]" if text.startswith("[") else "0.5"
    path.write_text("".join(f'{{"at": "2024-05-01", "x": {x}}}\n' for x in (first, text)))
    with pytest.raises(BadInput, match="declare"):
        Files(path, event_time="at")


class Pair(NamedTuple):
    left: int
    right: str


def test_tuples_are_read_as_msgspec_writes_them_and_as_sinks_do(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"at": 1, "t": [1, "a"], "n": {"left": 2, "right": "b"}, "m": [[3, [0.5]]]}\n'
        '{"at": 1, "t": {"_1": 1, "_2": "a"}, "n": [2, "b"], "m": [{"_1": 3, "_2": [0.5]}]}\n'
    )
    kind = msgspec.defstruct(
        "T",
        [("at", int), ("t", tuple[int, str]), ("n", Pair), ("m", list[tuple[int, list[float]]])],
    )
    expected = kind(1, (1, "a"), Pair(2, "b"), [(3, [0.5])])
    assert records(Files(path, event_time="at", type=kind)) == [expected, expected]
    for bad in ("[1]", '[1, "a", 2]', '["a", 1]', "[1, null]"):
        path.write_text(f'{{"at": 1, "t": {bad}}}\n')
        with pytest.raises(BadInput, match="line 1"):
            records(Files(path, event_time="at", schema={"at": int, "t": tuple[int, str]}))
