"""How much state each bin has is known from the slices that were written."""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.coordinator.load.bin_sizes import sizes_of_bins
from headrace.keyspace.hashing import hash_columns
from headrace.keyspace.layout import Layout
from headrace.testing import drive


class Note(msgspec.Struct):
    key: int
    text: str
    at: int


class Notes(hr.Computation):
    """Keeps what comes."""

    note = hr.ValueState(str)
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.note.value = record.value.text


def pipeline() -> hr.Pipeline:
    drawn = hr.Pipeline("notes")
    stream = drawn.inject("notes", hr.sources.Iterable([], Note, event_time="at"))
    drawn.compute("keep", Notes(), keys={stream: "key"})
    return drawn


def test_a_bin_with_much_state_is_known_once_its_slice_was_written() -> None:
    keys = np.arange(400)
    hashes = hash_columns([pa.array(keys)])
    fat = hashes >> np.uint64(62) == 2  # the third quarter of all hashes
    layout = Layout.uniform(4, [0, 0, 1, 1], 2)
    settings = hr.Settings(slices=8)
    with drive(pipeline(), workers=2, bins=4, settings=settings) as driven:
        assert sizes_of_bins(driven._stored_head, layout) is None
        for key, many in zip(keys.tolist(), fat.tolist(), strict=True):
            driven.push("notes", Note(key, "long " * 100 if many else "x", 0))
        driven.run()
        for at in range(1, 10):
            driven.push("notes", Note(0, "x", at))
            driven.run()
        sizes = sizes_of_bins(driven._stored_head, layout)
    assert sizes is not None
    text = int(fat.sum()) * 500
    assert text < sizes[2] < text + 400 * 100
    assert all(size < text / 5 for at, size in enumerate(sizes) if at != 2)
