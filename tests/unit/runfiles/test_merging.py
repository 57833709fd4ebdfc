"""Rows of files are merged by what they are: of one key the newest row counts, whatever its hash."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.keyspace.hashing import hash_words
from headrace.runfiles.newest_rows import Dated, merge
from headrace.runfiles.sections import COLUMN_PREFIX, DELETED
from headrace.schema.reserved import HASH

_N = COLUMN_PREFIX + "n"
#: Of each step: what it wrote of which key (None for a deletion).
STEPS = st.lists(st.dictionaries(st.integers(-4, 12), st.none() | st.integers(0, 99)), max_size=6)


def written(step: int, rows: dict[int, int | None], distinct: int) -> Dated:
    """Return the rows of a step as a file has them, with so many distinct hashes."""
    keys = np.array(list(rows), dtype=np.int64)
    hashes = hash_words(keys.view(np.uint64)) % np.uint64(distinct)
    order = np.argsort(hashes, kind="stable")
    values = [rows[key] for key in keys[order].tolist()]
    return step, pa.table(
        {
            HASH: pa.array(hashes[order], pa.uint64()),
            "key0": pa.array(keys[order], pa.int64()),
            _N: pa.array([value or 0 for value in values], pa.int64()),
            DELETED: pa.array([value is None for value in values], pa.bool_()),
        }
    )


@given(
    STEPS,
    st.sampled_from([1, 2, 3, 2**64 - 1]),
    st.randoms(use_true_random=False),
)
def test_the_newest_row_of_each_key_is_left_also_where_keys_share_hashes(
    steps: list[dict[int, int | None]], distinct: int, random: object
) -> None:
    parts = [written(number, rows, distinct) for number, rows in enumerate(steps) if rows]
    random.shuffle(parts)  # type: ignore[attr-defined]
    expected: dict[int, int | None] = {}
    for rows in steps:
        expected.update(rows)
    left = {key: n for key, n in expected.items() if n is not None}
    merged = merge(parts)
    if merged is None:
        assert not left
        return
    hashes = merged.column(HASH).to_numpy()
    assert (hashes[1:] >= hashes[:-1]).all()
    pairs = zip(merged.column("key0").to_pylist(), merged.column(_N).to_pylist(), strict=True)
    assert sorted(pairs) == sorted(left.items())
