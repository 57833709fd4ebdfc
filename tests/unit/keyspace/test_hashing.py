"""The hash is XXH64 of documented bytes, the same for ever, one key at a time or a column at once."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headrace.keyspace.hashing import hash_columns, hash_key, hash_words

#: Golden values: these may never change, or state in storage could not be found again.
GOLDEN: list[tuple[Any, int]] = [
    (0, 0x34C96ACDCADB1BBB),
    (1, 0x9F29CB17A2A49995),
    (-1, 0x85D136ADB773C6C9),
    (2**63 - 1, 0xFF70CC60366E770C),
    (True, 0x9F29CB17A2A49995),
    ("", 0xEF46DB3751D8E999),
    ("JFK", 0xEFBB2A10102131A4),
    ("zürich", 0x49778A8D47A1AC40),
    (b"\x00\xff", 0xE0D97D9A03131D7D),
    (date(2013, 2, 8), 0x522C0F11BBA5B2DB),
    (datetime(2013, 2, 8, 12, 30, tzinfo=UTC), 0x47E4A71DAA7DF47B),
    (("JFK", "B6"), 0x07A8556A3DFFDFD6),
    ((1, "a", b"b"), 0xE99DA3718D4C0DF9),
]

INT64 = st.integers(-(2**63), 2**63 - 1)
TIMES = st.datetimes(timezones=st.just(UTC))


@pytest.mark.parametrize(("key", "expected"), GOLDEN, ids=[repr(key) for key, _ in GOLDEN])
def test_golden_values_never_change(key: Any, expected: int) -> None:
    assert hash_key(key) == expected


@given(st.lists(INT64, min_size=1))
def test_integers_hash_as_eight_little_endian_bytes(keys: list[int]) -> None:
    expected = [xxhash.xxh64_intdigest(key.to_bytes(8, "little", signed=True)) for key in keys]
    assert hash_columns([pa.array(keys, pa.int64())]).tolist() == expected
    assert [hash_key(key) for key in keys] == expected


@given(st.lists(st.binary(max_size=90), min_size=1, max_size=200))
def test_bytes_and_strings_hash_as_their_bytes(keys: list[bytes]) -> None:
    expected = [xxhash.xxh64_intdigest(key) for key in keys]
    assert hash_columns([pa.array(keys, pa.binary())]).tolist() == expected
    assert hash_columns([pa.array(keys, pa.large_binary())]).tolist() == expected


@pytest.mark.parametrize("length", [*range(40), 63, 64, 65, 100])
def test_many_strings_of_one_length_hash_as_the_library_hashes_each(length: int) -> None:
    """Goal: reach the matrix path for every length class of XXH64."""
    rng = np.random.default_rng(length)
    keys = [rng.bytes(length) for _ in range(50)]
    assert hash_columns([pa.array(keys)]).tolist() == [xxhash.xxh64_intdigest(k) for k in keys]


@given(st.lists(st.tuples(INT64, st.text(), TIMES, st.booleans(), st.dates()), min_size=1))
def test_a_tuple_hashes_the_same_as_columns_and_as_a_key(
    keys: list[tuple[int, str, datetime, bool, date]],
) -> None:
    columns = [
        pa.array([key[0] for key in keys]),
        pa.array([key[1] for key in keys]),
        pa.array([key[2] for key in keys], pa.timestamp("us", tz="UTC")),
        pa.array([key[3] for key in keys]),
        pa.array([key[4] for key in keys], pa.date32()),
    ]
    assert hash_columns(columns).tolist() == [hash_key(key) for key in keys]


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1))
def test_unsigned_integers_hash_as_their_bytes(keys: list[int]) -> None:
    assert hash_columns([pa.array(keys, pa.uint64())]).tolist() == [hash_key(key) for key in keys]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint32()])
def test_the_width_of_an_integer_column_does_not_matter(kind: pa.DataType) -> None:
    keys = list(range(100))
    assert hash_columns([pa.array(keys, kind)]).tolist() == [hash_key(key) for key in keys]


def test_a_dictionary_column_hashes_as_its_values() -> None:
    plain = pa.array(["a", "b", "a", "c"])
    assert (hash_columns([plain.dictionary_encode()]) == hash_columns([plain])).all()


def test_a_sliced_column_hashes_its_own_rows() -> None:
    whole = pa.array([f"key-{i}" for i in range(100)])
    assert (hash_columns([whole.slice(40, 20)]) == hash_columns([whole])[40:60]).all()


def test_the_zone_of_a_timestamp_does_not_matter() -> None:
    noon = datetime(2013, 2, 8, 12, tzinfo=UTC)
    assert hash_key(noon) == hash_key(noon.astimezone(timezone(timedelta(hours=-5))))


def test_blocks_of_words_hash_alike_whatever_their_number() -> None:
    words = np.arange(40_000, dtype=np.uint64)
    assert (hash_words(words)[20_000:20_010] == hash_words(words[20_000:20_010])).all()


@pytest.mark.parametrize(
    "column", [pa.array([1.0]), pa.array([[1]]), pa.array([0], pa.timestamp("us"))]
)
def test_what_cannot_be_a_key_is_refused(column: pa.Array) -> None:
    with pytest.raises(TypeError, match="not a key type"):
        hash_columns([column])
