"""Rows of files are merged by what they are: of one key the newest row counts, whatever its hash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.keyspace.hashing import hash_words
from headrace.keyspace.planner import contiguous
from headrace.keyspace.ranges import Ranges
from headrace.runfiles import merging
from headrace.runfiles.batches import combined
from headrace.runfiles.format import FileRef, RunPart, RunReader, write_run
from headrace.runfiles.merging import SlicePart, StateSources, rows_of
from headrace.runfiles.newest_rows import Dated, merge
from headrace.runfiles.sections import COLUMN_PREFIX, DELETED, whole_section
from headrace.schema.reserved import HASH
from headrace.storage.memory import MemoryStore

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


def read_back(store: MemoryStore, step: int, kind: str, rows: pa.Table) -> RunReader:
    """Return the reader of a file with the rows of a step."""
    layout = contiguous(4, 1)
    data, checksum = write_run([RunPart("c", kind, combined(rows))], layout)
    name = f"runs/{kind.replace(':', '-')}-{step}"
    store.write(name, data)
    ref = FileRef(name, len(data), checksum, step, 1, 0, ["c"], layout.digest)
    return RunReader(store.read, ref)


@given(STEPS, st.integers(0, 6), st.sampled_from([1, 2, 2**64 - 1]), st.integers(0, 2_000))
def test_files_that_are_read_little_by_little_have_the_rows_of_all_at_once(
    steps: list[dict[int, int | None]], as_of: int, distinct: int, most: int
) -> None:
    """The rows up to a step are in a slice, and those of later steps in a file each."""
    store = MemoryStore()
    parts = [written(number, rows, distinct) for number, rows in enumerate(steps) if rows]
    before = merge([part for part in parts if part[0] <= as_of])
    whole = [] if before is None else [read_back(store, as_of, whole_section("t"), before)]
    runs = [read_back(store, step, "t", rows) for step, rows in parts if step > as_of]
    sources = StateSources("c", [SlicePart(0, 2**64 - 1, as_of, whole)], runs)
    found, expected = (
        rows_of(sources, ["t"], Ranges.everything(), bound) for bound in (most, None)
    )
    assert [(name, rows.to_pylist()) for name, rows in found] == [
        (name, rows.to_pylist()) for name, rows in expected
    ]


def test_superseded_values_are_let_go_while_files_are_read() -> None:
    """All versions of a value were in memory at once: of 10 MB and 256 steps, 2.5 GB."""
    store, text = MemoryStore(), "x" * 100_000
    runs = [
        read_back(
            store,
            step,
            "t",
            pa.table(
                {
                    HASH: pa.array([5], pa.uint64()),
                    "key0": pa.array([5], pa.int64()),
                    COLUMN_PREFIX + "text": pa.array([f"{step} {text}"]),
                    DELETED: pa.array([False]),
                }
            ),
        )
        for step in range(20)
    ]
    held: list[int] = []
    before = merging._Found.add

    def noted(self: merging._Found, place: Any, table: pa.Table | None) -> None:
        before(self, place, table)
        held.append(sum(rows.nbytes for _, rows in self.dated[0][0]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging._Found, "add", noted)
        sources = StateSources("c", [], runs)
        ((_, rows),) = rows_of(sources, ["t"], Ranges.everything(), 150_000)
    assert rows.column(COLUMN_PREFIX + "text").to_pylist() == [f"19 {text}"]
    assert len(held) == 20 and max(held) < 350_000
