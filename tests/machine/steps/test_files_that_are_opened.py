"""Which files are opened for some hashes: those of who owned them, as far as that is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.checkpoints.state_files import StateFiles, StateReaders
from headrace.keyspace.layout import Layout
from headrace.keyspace.ranges import Ranges
from headrace.keyspace.updates import Relocated, relocated
from headrace.ledger.records import Slice
from headrace.runfiles.format import FileRef, RunPart, write_run
from headrace.runfiles.sections import COLUMN_PREFIX, DELETED, whole_section
from headrace.schema.reserved import HASH
from headrace.storage import MemoryStore

BINS, WORKERS = 8, 3
WIDTH = 2**64 // BINS
SECTION = "table:t"
SCHEMA = pa.schema(
    [
        pa.field(HASH, pa.uint64()),
        pa.field("key0", pa.int64()),
        pa.field(COLUMN_PREFIX + "step", pa.int64()),
        pa.field(DELETED, pa.bool_()),
    ]
)


class Counting(MemoryStore):
    """Knows the names of the files that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_names: set[str] = set()

    def read(self, name: str, offset: int, length: int) -> bytes:
        self.read_names.add(name)
        return super().read(name, offset, length)


class World:
    """A row for each bin, which its owner writes again in each step; and one slice, now and then."""

    def __init__(self, owners: list[int]) -> None:
        self.store = Counting()
        self.layout = Layout.uniform(BINS, owners, WORKERS)
        self.lineage = self.layout.digest
        self.relocated: list[Relocated] = []
        self.runs: list[FileRef] = []
        self.slice: Slice | None = None
        self.step = 0

    def claim(self, owners: list[int]) -> None:
        self.layout = Layout.uniform(BINS, owners, WORKERS)
        self.lineage, self.relocated = f"{self.layout.digest}, again", []

    def move(self, owners: list[int]) -> None:
        after = Layout.uniform(BINS, owners, WORKERS)
        moves = relocated(self.layout, after)
        self.relocated.append(Relocated(len(self.relocated) + 1, self.step + 1, moves))
        self.layout = after

    def run(self, *, whole: bool) -> None:
        self.step += 1
        written = []
        for worker in range(WORKERS):
            bins = np.flatnonzero(self.layout.owners == worker)
            if not len(bins):
                continue
            batch = pa.record_batch(
                [
                    pa.array(self.layout.starts[bins] + np.uint64(5)),
                    pa.array(bins),
                    pa.array(np.full(len(bins), self.step)),
                    pa.array(np.zeros(len(bins), dtype=bool)),
                ],
                schema=SCHEMA,
            )
            parts = [RunPart("n", SECTION, batch)]
            parts += [RunPart("n", whole_section(SECTION), batch)] if whole else []
            data, checksum = write_run(parts, self.layout)
            name = f"{self.step}/{worker}"
            self.store.create(name, data)
            written.append(
                FileRef(name, len(data), checksum, self.step, 1, worker, ["n"], self.lineage)
            )
        self.runs += written
        if whole:
            self.slice = Slice(0, 1, self.step, written)

    def files(self) -> StateFiles:
        slices = [self.slice] if self.slice else []
        return StateFiles(slices, self.runs, {}, self.lineage, self.relocated)


def ranges_of(bins: list[int]) -> Ranges:
    return Ranges.of((b * WIDTH, b * WIDTH + WIDTH - 1) for b in bins).joined()


owners = st.lists(st.integers(0, WORKERS - 1), min_size=BINS, max_size=BINS)
events = st.tuples(st.sampled_from(["run", "run", "run", "whole", "move", "move", "claim"]), owners)


@settings(max_examples=150)
@given(owners, st.lists(events, max_size=12), st.sets(st.integers(0, BINS - 1), min_size=1))
def test_some_bins_are_read_from_the_files_of_their_owners_and_no_others(
    first: list[int], history: list[tuple[str, list[int]]], asked: set[int]
) -> None:
    world = World(first)
    wrote: dict[str, set[int]] = {}  # what is in each file
    this_lineage: set[str] = set()
    for what, drawn in [*history, ("run", first)]:
        if what == "claim":
            world.claim(drawn)
            this_lineage.clear()
        elif what == "move":
            world.move(drawn)
        else:
            world.run(whole=what == "whole")
            for worker in range(WORKERS):
                name = f"{world.step}/{worker}"
                wrote[name] = set(np.flatnonzero(world.layout.owners == worker).tolist())
                this_lineage.add(name)
    bins = sorted(asked)
    readers = StateReaders(world.store, world.layout, 0, world.files())
    sources = readers.sources("n", ranges_of(bins))
    assert not world.store.read_names, "nothing is opened before something is asked"
    found: Any = sources.rows(SECTION, ranges_of(bins))
    assert found.column("key0").to_pylist() == bins
    assert set(found.column(COLUMN_PREFIX + "step").to_pylist()) == {world.step}
    for name in world.store.read_names & this_lineage:
        assert wrote[name] & asked, f"{name} holds nothing of what was asked"
    if world.slice is not None:  # what is older than the slice says nothing new
        old = {name for name in wrote if int(name.split("/")[0]) < world.slice.as_of}
        assert not world.store.read_names & old
