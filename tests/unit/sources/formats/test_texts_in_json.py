"""Values that stand in JSON as texts, and times that are numbers: each digit counts, or is refused."""

from __future__ import annotations

import json
import math
import tempfile
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import BadInput
from headrace.sources import Files
from tests.unit.sources.formats.test_columns import records


def value(text: str, kind: Any, **options: Any) -> Any:
    """Return a value of a type that is read of JSON."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "a.jsonl"
        path.write_text(f'{{"at": 0, "x": {text}}}\n')
        (row,) = records(Files(path, event_time="at", schema={"at": int, "x": kind}, **options))
        return row.x


@pytest.mark.parametrize("zone", ["Z", "+05:00", "-00:00"])
def test_a_time_of_day_names_no_zone(zone: str) -> None:
    assert value('"12:30:00"', time) == time(12, 30)
    with pytest.raises(BadInput, match="line 1"):
        value(f'"12:30:00{zone}"', time)


@settings(max_examples=15)
@given(st.times(), st.text("0123456789", max_size=6))
@example(time(23, 59, 59, 999999), "9")
def test_what_is_finer_in_a_time_of_day_is_cut(wanted: time, finer: str) -> None:
    text = f'"{wanted.isoformat("microseconds")}{finer}"'
    assert value(text, time) == wanted
    assert value(f"[{text}]", list[time]) == [wanted]


NUMBERS = st.builds(
    "{}{}".format, st.integers(0, 10**6), st.from_regex(r"(\.[0-9]{1,9})?", fullmatch=True)
)
MICROS = {"D": 86_400 * 10**6, "H": 3_600 * 10**6, "M": 60 * 10**6, "S": 10**6}


@settings(max_examples=40)
@given(NUMBERS, st.sampled_from("DHMS"), st.sampled_from(["", "-"]))
@example("0.1234567", "S", "")
@example("0.33333333333", "H", "")
@example("0.1234560", "S", "-")
def test_a_duration_is_all_that_is_written_or_is_refused(number: str, unit: str, sign: str) -> None:
    wanted = Fraction(number) * MICROS[unit] * (-1 if sign else 1)
    text = f'"{sign}P{"" if unit == "D" else "T"}{number}{unit}"'
    if wanted.denominator == 1:
        assert value(text, timedelta) == timedelta(microseconds=int(wanted))
    else:
        with pytest.raises(BadInput, match="finer than a microsecond"):
            value(text, timedelta)


KEYS: list[tuple[Any, list[str], list[str]]] = [
    (int, ["7", "-3", "0"], ["1_000", " 5", "5 ", "٣", "+1", "01", "0x1", "1.0", ""]),
    (
        float,
        ["0.5", "1e300", "-2", "Infinity"],
        ["1_000", " 5", "NaN", "nan", "1e999", "9007199254740993", "inf"],
    ),
    (Decimal, ["1.5", "-2"], ["1_0", "NaN", "1.5.1", "٣"]),
    (bool, ["true"], ["True", "1"]),
    (date, ["2024-05-01"], [" 2024-05-01", "20240501"]),
]


@pytest.mark.parametrize(
    ("kind", "text", "good"),
    [
        (kind, text, good)
        for kind, *lists in KEYS
        for good, texts in zip((True, False), lists, strict=True)
        for text in texts
    ],
)
def test_the_key_of_a_map_is_written_as_the_value_would_be(
    kind: Any, text: str, good: bool
) -> None:
    line = json.dumps({text: 1})
    if good:
        (key,) = value(line, dict[kind, int])
        assert str(key).lower() == text.lower() or float(key) == float(text)
    else:
        with pytest.raises(BadInput, match="line 1"):
            value(line, dict[kind, int])


@settings(max_examples=40)
@given(st.floats(-5e10, 5e10), st.sampled_from(["s", "ms", "us"]))
@example(0.00001, "s")
@example(1e-7, "us")
def test_times_that_are_numbers_are_read_however_large_or_small(number: float, unit: str) -> None:
    per = {"s": 10**6, "ms": 10**3, "us": 1}[unit]
    micros = math.floor(Decimal(repr(number)) * per)
    wanted = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    assert value(repr(number), datetime, time_unit=unit) == wanted
    assert value(f'"{number!r}"', datetime, time_unit=unit) == wanted


@settings(max_examples=30)
@given(st.integers(-(10**9), 2 * 10**9), st.text("0123456789", min_size=1, max_size=20))
@example(1714557600, "123456999")
@example(1714557600, "99999999999999")
def test_what_is_finer_in_a_time_that_is_a_number_is_cut(seconds: int, fraction: str) -> None:
    text = f"{seconds}.{fraction}"
    micros = math.floor(Decimal(text) * 10**6)
    wanted = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    assert value(text, datetime, time_unit="s") == wanted
    assert value(f"[{text}]", list[datetime], time_unit="s") == [wanted]


@pytest.mark.parametrize("text", ["true", "{}", "[1]", "NaN", '"NaN"', "1e400"])
def test_what_is_neither_text_nor_number_is_no_time(text: str) -> None:
    with pytest.raises(BadInput, match="line 1"):
        value(text, datetime, time_unit="s")
    assert value("null", datetime | None, time_unit="s") is None
    assert value('"2024-05-01T12:00:00\\u005a"', datetime) == datetime(2024, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("text", ['"1_0"', '"NaN"', '"٣"', "NaN", "true", "[1]", '"1.5x"'])
@pytest.mark.parametrize("beside", ["", ', "m": {"a": 1}'])
def test_what_is_no_decimal_is_none_whatever_is_beside_it(
    tmp_path: Path, text: str, beside: str
) -> None:
    path = tmp_path / "a.jsonl"
    schema = {"at": int, "x": Decimal} | ({"m": dict[str, int]} if beside else {})
    for good in ('"1.5"', "1.5", '"15e-1"', "15e-1"):
        path.write_text(f'{{"at": 0, "x": {good}{beside}}}\n')
        assert records(Files(path, event_time="at", schema=schema))[0].x == Decimal("1.5")
    path.write_text(f'{{"at": 0, "x": {text}{beside}}}\n')
    with pytest.raises(BadInput, match="line 1"):
        records(Files(path, event_time="at", schema=schema))


def test_times_in_nanoseconds_may_have_an_exponent() -> None:
    assert value("1.7145648e18", datetime, time_unit="ns") == datetime(2024, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "lines", [['{"x": {}}'], ['{"x": {}}', '{"x": null}'], ['{"x": [{}, null, {}]}']]
)
def test_objects_without_names_are_read_where_types_are_found(
    tmp_path: Path, lines: list[str]
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(line.replace("{", '{"at": "2024-05-01", ', 1) + "\n" for line in lines))
    found = [row.x for row in records(Files(path, event_time="at"))]
    assert found == [json.loads(line)["x"] for line in lines]
