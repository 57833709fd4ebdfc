"""Heavy bins are known exactly, whatever the layout is by then; the others share what is left."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinator.load.bin_sizes import sizes_of_bins
from headrace.keyspace.layout import Layout
from headrace.ledger.folding import fold
from headrace.ledger.records import Slice, slice_range
from headrace.runfiles.format import RunPart
from headrace.schema.reserved import HASH
from headrace.tasks import heavy_bins as module
from headrace.tasks.heavy_bins import LEAST_TIMES, heavy_bins
from tests.unit.ledger.test_layouts import manifest

BINS, SLICES = 64, 4
LAYOUT = Layout.uniform(BINS, [0] * BINS, 1)
PER_SLICE = BINS // SLICES


def part(kind: str, rows: list[tuple[int, int]]) -> RunPart:
    """Rows of (hash, length of a text)."""
    rows = sorted(rows)
    columns = {
        HASH: pa.array([hash_ for hash_, _ in rows], pa.uint64()),
        "text": pa.array(["x" * length for _, length in rows], pa.string()),
    }
    return RunPart("c", kind, pa.record_batch(columns))


def bytes_of(parts: list[RunPart], at: int) -> int:
    """The bytes in a bin, by looking at each row."""
    start, end = int(LAYOUT.starts[at]), int(LAYOUT.ends[at])
    found = 0
    for of in parts:
        inside = [start <= h <= end for h in of.batch.column(HASH).to_pylist()]
        first = inside.index(True) if True in inside else 0
        found += of.batch.slice(first, sum(inside)).nbytes
    return found


ROWS = st.lists(
    st.tuples(
        st.integers(0, PER_SLICE - 1), st.integers(0, 1 << 50), st.sampled_from([0, 10, 3_000])
    ),
    max_size=40,
)


@given(st.integers(0, SLICES - 1), ROWS, ROWS)
@settings(max_examples=60)
def test_heavy_bins_are_those_with_much_more_than_others(
    number: int, ones: list[tuple[int, int, int]], others: list[tuple[int, int, int]]
) -> None:
    first = number * PER_SLICE

    def hashes(rows: list[tuple[int, int, int]]) -> list[tuple[int, int]]:
        return [(int(LAYOUT.starts[first + at]) + low, length) for at, low, length in rows]

    parts = [part("a", hashes(ones)), part("b", hashes(others))]
    least_bytes, module.LEAST_BYTES = module.LEAST_BYTES, 1_000
    try:
        found = heavy_bins(parts, LAYOUT, slice_range(number, SLICES))
    finally:
        module.LEAST_BYTES = least_bytes
    nbytes = sum(of.batch.nbytes for of in parts)
    least = max(1_000, LEAST_TIMES * nbytes // PER_SLICE)
    sizes = {at: bytes_of(parts, at) for at in range(first, first + PER_SLICE)}
    expected = {int(LAYOUT.starts[at]): size for at, size in sizes.items() if size >= least}
    assert {of.start: of.nbytes for of in found} == expected
    assert all(of.bits == 6 for of in found)


def test_a_bin_of_60_megabytes_counts_as_60_megabytes_among_its_neighbours() -> None:
    layout = Layout.uniform(4_096, [0] * 4_096, 1)
    rows = [(int(layout.starts[at]) + 1, 60_000_000 if at == 5 else 100) for at in range(16)]
    parts = [part("a", rows)]
    heavy = heavy_bins(parts, layout, slice_range(0, 256))
    slice_ = Slice(0, 256, 1, [], parts[0].batch.nbytes, heavy)
    first = manifest(0, claim=True, layout=layout.to_wire(), stored_schema={})
    head = fold(fold(None, first, "a"), manifest(1, slice=slice_), "b")
    sizes = sizes_of_bins(head, layout)
    assert sizes is not None
    assert abs(sizes[5] - 60_000_000) < 1_000
    assert max(sizes[:5] + sizes[6:]) < 1_000
    split = Layout(np.full(8_192, 13), [0] * 8_192, 1)
    halves = sizes_of_bins(head, split)
    assert halves is not None
    assert abs(halves[10] - 30_000_000) < 1_000 and abs(halves[11] - 30_000_000) < 1_000
    assert sum(halves[:32]) == sum(sizes[:16]) or abs(sum(halves[:32]) - sum(sizes[:16])) < 64
