"""Columns as Python lists: the values are PyArrow's own, times included."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schema.pylists import pylist

_TIMES = st.datetimes(timezones=st.just(UTC))


@given(st.lists(st.one_of(st.none(), _TIMES)), st.sampled_from(["s", "ms", "us", "ns"]))
def test_times_are_those_of_pyarrow_whatever_their_unit(
    times: list[datetime | None], unit: str
) -> None:
    column = pa.array(times, pa.timestamp("us", "UTC"))
    try:
        column = column.cast(pa.timestamp(unit, "UTC"), safe=False)
        wanted = column.to_pylist()
    except ValueError:  # (beyond the unit, or Python)
        return
    assert pylist(column) == wanted
    assert [type(value) for value in pylist(column)] == [type(value) for value in wanted]


@given(st.lists(_TIMES, min_size=1), st.lists(_TIMES))
def test_pieces_and_slices_of_columns_keep_their_order(
    first: list[datetime], second: list[datetime]
) -> None:
    kind = pa.timestamp("us", "UTC")
    column = pa.chunked_array([pa.array(first, kind), pa.array(second, kind)], kind)
    assert pylist(column) == first + second
    assert pylist(column.slice(1)) == (first + second)[1:]
    assert pylist(column.slice(0, 0)) == []


@pytest.mark.parametrize("micros", [-(1 << 62), 1 << 62])
def test_a_time_that_python_cannot_hold_is_an_error_as_with_pyarrow(micros: int) -> None:
    column = pa.array([micros]).cast(pa.timestamp("us", "UTC"))
    for convert in (pylist, lambda of: of.to_pylist()):
        with pytest.raises((OverflowError, ValueError)):
            convert(column)
