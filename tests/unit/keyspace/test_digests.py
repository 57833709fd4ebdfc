"""Digests add up: a batch's is the sum of its rows', however it is cut, for every type."""

from __future__ import annotations

from decimal import Decimal
from math import nan
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.keyspace.digests import add_digests, digest_of
from headrace.keyspace.row_hashing import hash_rows

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


#: Types, values and a null after them, the digest, and the sum of the hashes of the rows.
STORED: list[tuple[pa.DataType, list[Any], int, int]] = [
    (pa.int64(), [0, -5, 2**62], 0x998401506D112BBA, 0x5F22322EA07BE42B),
    (pa.int32(), [0, -5, 7], 0xD39DC2392F75C19A, 0x9F2EB5AC03E49713),
    (pa.int16(), [-3, 9], 0xE0C748B46FE79F58, 0x177FD04FA68F861E),
    (pa.uint64(), [2**64 - 1, 5], 0x800019092BC64A31, 0x144060798AE06E93),
    (pa.uint8(), [255, 0], 0x938F6AFF801F8CBE, 0x626CB0CF0D5BB599),
    (pa.float64(), [0.0, -0.0, nan, 1.5], 0xD4778F8177F49828, 0xB15F1F56A7AFDFBB),
    (pa.float32(), [-0.0, 1.5], 0x28D9C9082FDEF1EC, 0x275299806CC3D321),
    (pa.timestamp("us", "UTC"), [1, -7], 0x8026D7E0B47F58F8, 0x87ADEDA1622F0CC6),
    (pa.timestamp("ns"), [1, -1001], 0xAFA33B6798F1171B, 0xA29C29410C3AF97),
    (pa.duration("us"), [1, -7], 0x8026D7E0B47F58F8, 0x87ADEDA1622F0CC6),
    (pa.duration("ms"), [1, -7], 0x8026D7E0B47F58F8, 0x19940C478744224C),
    (pa.date32(), [1, -7], 0x8026D7E0B47F58F8, 0x87ADEDA1622F0CC6),
    (pa.date64(), [86_400_000, 0], 0x2296CB49633FD180, 0xFA46692A01989E4E),
    (pa.time32("s"), [1, 70], 0xF1FE79DE0972BB74, 0xE93A03297F15E3AD),
    (pa.time64("us"), [1, 70], 0xF1FE79DE0972BB74, 0xE93A03297F15E3AD),
    (pa.string(), ["a", "", "ü"], 0x67DB9AD2593CA7E2, 0x4F4D2DCDBD5BCB3D),
    (pa.binary(), [b"a", b""], 0x88BD927602B601FD, 0xC9EA1FB9466136F5),
    (pa.bool_(), [True, False], 0x84C048FF5EC5E317, 0xE3B6C51329BE8586),
    (pa.decimal128(9, 2), [Decimal("1.10"), Decimal(-3)], 0x23E07CF3BDAA6F24, 0xA741DD07427C8F98),
    (pa.decimal128(30, 2), [Decimal("1.10")], 0x486CC6DC6EBEB8A7, 0x1CBC200B4E105CBE),
]


@pytest.mark.parametrize(("kind", "values", "digest", "hashes"), STORED)
def test_digests_and_hashes_of_rows_stay_what_is_stored(
    kind: pa.DataType, values: list[Any], digest: int, hashes: int
) -> None:
    column = pa.array([*values, None], kind)
    within = pa.array([None, *values, None, values[0]], kind).slice(1, len(column))
    for given_as in (column, within, column.dictionary_encode()):
        assert digest_of(pa.table({"x": given_as})) == digest
        assert sum(hash_rows([given_as], len(column)).tolist()) % 2**64 == hashes
