"""Numbers in text are those that are written, or are refused; where types are found, all digits stay."""

from __future__ import annotations

import re
import tempfile
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import BadInput
from headrace.sources import Files, Limit
from tests.unit.sources.formats.test_columns import records

FLOAT32 = Annotated[float, pa.float32()]
LARGE = st.integers(-(2**70), 2**70) | st.integers(2**24, 2**25) | st.integers(2**53, 2**54)


def column(texts: list[str], kind: Any, form: str = "csv") -> list[Any]:
    """Return a column that is read of texts, declared as a type or (None) as it is found."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"a.{form}"
        if form == "csv":
            path.write_text("at,x\n" + "".join(f"1,{text}\n" for text in texts))
        else:
            path.write_text("".join(f'{{"at": 1, "x": {text}}}\n' for text in texts))
        schema = None if kind is None else {"at": int, "x": kind}
        source = Files(path, event_time="at", schema=schema, time_unit="us")
        return [row.x for row in records(source)]


def nearest(number: int, kind: Any) -> float:
    """Return the float that is nearest to an integer."""
    return float(np.float32(float(number))) if kind is FLOAT32 else float(number)


@settings(max_examples=30)
@given(st.lists(LARGE, min_size=1, max_size=3), st.sampled_from([float, FLOAT32]))
@example([2**53 + 1], float)
@example([0, 2**24 + 1], FLOAT32)
def test_an_integer_is_the_float_that_shows_it_or_is_refused(numbers: list[int], kind: Any) -> None:
    fits = [Fraction(nearest(n, kind)) == n for n in numbers]
    texts = [str(n) for n in numbers]
    if all(fits):
        assert column(texts, kind) == numbers
    elif not any(
        str(n) == f"{nearest(n, kind):.0f}" or len(str(n).strip("-0")) < 9 for n in numbers
    ):
        with pytest.raises(BadInput, match=f"line {fits.index(False) + 2}"):
            column(texts, kind)


@settings(max_examples=10)
@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=4))
@example([1e300, 5e-324, 1.7976931348623157e308])
def test_floats_are_read_as_each_program_writes_them(numbers: list[float]) -> None:
    for texts in (
        [repr(x) for x in numbers],
        [f"{x:.17g}" for x in numbers],
        [f"{x:.20e}" for x in numbers],
    ):
        assert column(texts, float) == numbers


@pytest.mark.parametrize(
    "text", ["3.5e38", "1e300", "-1e39", "16777217", "340282366920938463463374607431768211456"]
)
def test_a_number_that_32_bits_cannot_show_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="line 3"):
        column(["0.1", text], FLOAT32)


@pytest.mark.parametrize("kind", [int, Annotated[int, pa.uint64()], Annotated[int, pa.int8()]])
@pytest.mark.parametrize("text", ["0x1F", "0xFF", "0Xa", " 0x10"])
def test_hexadecimal_is_no_number(text: str, kind: Any) -> None:
    with pytest.raises(BadInput, match="line 3"):
        column(["7", text], kind)
    assert column(["7", text], None) == ["7", text]


def test_a_duration_is_no_hexadecimal() -> None:
    with pytest.raises(BadInput, match="line 2"):
        column(["0x10"], timedelta)


# -- as they are found --------------------------------------------------------------------------

DIGITS = st.text("0123456789", min_size=1, max_size=22)
WRITTEN = st.builds(
    "".join,
    st.tuples(
        st.sampled_from(["", "", "-", "+"]),
        st.sampled_from(["", "", "0", "0x"]),
        DIGITS,
        st.sampled_from(["", "", ".", ".5", ".25000", "e3"]),
    ),
) | st.sampled_from(["nan", "inf", "02134", "1", "0.5", "0.30000000000000004"])


def says_the_same(text: str, value: Any) -> bool:
    """Say whether nothing is lost of a text by what it was read as."""
    if isinstance(value, str) or text in ("nan", "inf"):
        return value == text or not isinstance(value, str)
    if re.match(r"[+-]?0[0-9x]|\+", text):
        return False
    if re.fullmatch(r"-?\d+", text) and not isinstance(value, float):
        return bool(value == int(text))
    return Decimal(text) in (Decimal(repr(float(value))), Decimal(value))


@settings(max_examples=30)
@given(st.lists(WRITTEN, min_size=1, max_size=4))
@example(["02134", "nan"])
@example(["+491234"])
@example(["123456789012345678.5"])
def test_where_types_are_found_nothing_is_lost_of_numbers(texts: list[str]) -> None:
    for text, value in zip(texts, column(texts, None), strict=True):
        assert says_the_same(text, value), (text, value)


def test_a_one_is_not_true_where_types_are_found() -> None:
    assert column(["true", "false"], None) == [True, False]
    assert column(["true", "1"], None) == ["true", "1"]
    assert column(["1", "0"], None) == [1, 0]


@pytest.mark.parametrize("text", ["02134", "+49", "0x1F", "1234567890123456789012.5"])
def test_a_number_that_loses_digits_far_from_the_beginning_is_refused(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "a.csv"
    first = "2134.5" if "." in text or "+" in text else "2134"
    path.write_text("at,x,y\n" + f"1,{first},a\n" * 200_000 + f"1,{text},a\n")
    source = Files(path, event_time="at", time_unit="us")
    offer = source.offer(source.start(), Limit(1 << 20, 1 << 26))
    assert offer is not None
    with pytest.raises(BadInput, match="line 200002"):
        for split in source.splits(source.start(), offer.end):
            source.read(split)
    declared = Files(path, event_time="at", time_unit="us", schema={"x": str})
    (split, *_) = declared.splits(declared.start(), offer.end)
    assert declared.read(split).column("x")[-1].as_py() == text


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("kind", "text"),
    [(int, "0x10"), (float, str(2**53 + 1)), (float, "1e400"), (FLOAT32, "16777217")],
)
def test_a_column_with_a_time_format_holds_the_numbers_that_it_shows(
    tmp_path: Path, form: str, kind: Any, text: str
) -> None:
    path = tmp_path / f"a.{form}"
    if form == "csv":
        path.write_text(f"at,x\n1,5\n1,{text}\n")
    else:
        path.write_text(f'{{"at": 1, "x": 5}}\n{{"at": 1, "x": "{text}"}}\n')
    source = Files(
        path,
        event_time="at",
        schema={"at": int, "x": kind},
        time_unit="us",
        time_format={"x": "%Y%m%d"},
    )
    with pytest.raises(BadInput, match="line 3" if form == "csv" else "line 2"):
        records(source)
