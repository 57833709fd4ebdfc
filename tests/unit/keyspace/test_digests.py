"""Digests add up: a batch's is the sum of its rows', however it is cut, for every type."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.keyspace.digests import add_digests, digest_of

COLUMNS = {
    "int": pa.array([1, None, 2]),
    "uint64": pa.array([2**64 - 1, None, 0], pa.uint64()),
    "float": pa.array([1.0, None, float("nan")]),
    "bool": pa.array([True, None, False]),
    "text": pa.array(["", None, "b"]),
    "bytes": pa.array([b"", None, b"a"], pa.large_binary()),
    "time": pa.array([1, None, 2], pa.timestamp("us")),
    "time of day": pa.array([1, None, 2], pa.time32("s")),
    "date": pa.array([1, None, 2], pa.date32()),
    "duration": pa.array([1, None, 2], pa.duration("us")),
    "decimal": pa.array([Decimal("1.20"), None, Decimal(-3)], pa.decimal128(20, 2)),
    "list": pa.array([[1], None, [2]]),
    "dictionary": pa.array([5, None, 6]).dictionary_encode(),
    "texts in a dictionary": pa.array(["a", None, "b"]).dictionary_encode(),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_the_digest_of_a_batch_is_the_sum_of_its_parts(name: str) -> None:
    column = COLUMNS[name]
    whole = digest_of(pa.table({"x": column}))
    rows = [digest_of(pa.table({"x": column.slice(row, 1)})) for row in range(3)]
    assert len(set(rows)) == 3, "different rows have different digests"
    assert whole == add_digests(add_digests(rows[0], rows[1]), rows[2])


def test_rows_of_zeros_count_as_well() -> None:
    one, two = (digest_of(pa.table({"a": [0] * n, "b": [0] * n})) for n in (1, 2))
    assert one
    assert two == add_digests(one, one)


def test_the_digest_of_decimals_is_the_one_by_which_files_are_named() -> None:
    column = COLUMNS["decimal"]
    assert digest_of(pa.table({"x": column})) == 17658592287595953418


@given(scale=st.integers(0, 38), data=st.data())
def test_a_decimal_has_the_digest_of_the_same_one_with_more_digits(
    scale: int, data: st.DataObject
) -> None:
    whole = st.none() | st.integers(-(10**38) + 1, 10**38 - 1)
    numbers = data.draw(st.lists(whole, min_size=1, max_size=20))
    texts = [None if n is None else f"{n}e-{scale}" for n in numbers]
    values = [None if text is None else Decimal(text) for text in texts]
    narrow = pa.array(values, pa.decimal128(38, scale))
    wide = pa.array(values, pa.decimal256(60, scale))  # encoded one by one
    assert digest_of(pa.table({"x": narrow})) == digest_of(pa.table({"x": wide}))
