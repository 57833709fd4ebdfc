"""What is read ahead says what files say, whatever was wanted meanwhile, and stays in few pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.keyspace.layout import Layout
from headrace.keyspace.ranges import Ranges
from headrace.runfiles import format
from headrace.runfiles.format import FileRef, RunPart, RunReader, write_run
from headrace.runfiles.merging import SlicePart, StateSources
from headrace.runfiles.sections import DELETED, column_name, table_section, whole_section
from headrace.schema.reserved import HASH
from headrace.tasks.prefetch import kept, prepared
from headrace.tasks.prefetch.prepared import Prepared

BINS, OWNER, SECTION = 8, "c", table_section("t")
LAYOUT = Layout.uniform(BINS, [0] * BINS, 1)
SCHEMA = pa.schema(
    {HASH: pa.uint64(), "key": pa.int64(), column_name("v"): pa.int64(), DELETED: pa.bool_()}
)
HASHES = [int(start) + at for start in LAYOUT.starts for at in (0, 3, 9)]


@pytest.fixture(autouse=True, scope="module", params=[0, 1 << 20], ids=["long runs", "short runs"])
def turns_bring_a_bin_or_more(request: pytest.FixtureRequest) -> Iterator[None]:
    """Else what is read in a turn mostly has no row here. Long runs are read in parts, short ones once."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(prepared, "_LEAST_PART", BINS)
        patched.setattr(kept, "_LONGEST", request.param)
        patched.setattr(format, "SMALL_FILE", 0)
        patched.setattr(format, "_LAST", 24)  # (else that is read once more)
        yield


class Stored:
    """State in files: the changes of each step, and slices.

    Attributes:
        reads: what was read: of which files, and from where.
    """

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.runs: list[RunReader] = []
        self.slices: dict[int, SlicePart] = {}
        self.reads: list[tuple[str, int]] = []

    @property
    def step(self) -> int:
        return len(self.runs) - 1

    def change(self, changes: dict[int, int | None]) -> None:
        """Write a step: hash → value, or None for "deleted"."""
        step = len(self.runs)
        self.runs.append(self._file(f"{step}", step, SECTION, changes))
        for h, value in sorted(changes.items()):
            self.rows.pop(h, None)
            if value is not None:
                self.rows[h] = value

    def slice(self, number: int) -> None:
        """Write all rows of a bin as of the newest step."""
        first, last = ranges_of({number}).pairs()[0]
        rows = self.within(ranges_of({number}))
        name = f"slice {number} as of {self.step}"
        files = [self._file(name, self.step, whole_section(SECTION), dict(rows))] if rows else []
        self.slices[number] = SlicePart(first, last, self.step, files)

    def _file(
        self, name: str, step: int, section: str, changes: Mapping[int, int | None]
    ) -> RunReader:
        rows = sorted(changes.items())
        batch = pa.record_batch(
            [
                pa.array([h for h, _ in rows], pa.uint64()),
                pa.array([h % 1_000 for h, _ in rows]),
                pa.array([0 if v is None else v for _, v in rows]),
                pa.array([v is None for _, v in rows]),
            ],
            schema=SCHEMA,
        )
        data, checksum = write_run([RunPart(OWNER, section, batch)], LAYOUT)

        def read(name: str, at: int, length: int) -> bytes:
            self.reads.append((name, at))
            return data[at : at + length]

        return RunReader(read, FileRef(name, len(data), checksum, step, 0, 0, [OWNER], ""))

    def within(self, ranges: Ranges) -> dict[int, int]:
        """Return the rows of some hashes."""
        inside = ranges.contain(np.array(HASHES, dtype=np.uint64)).tolist()
        there = {h for h, is_in in zip(HASHES, inside, strict=True) if is_in}
        return {h: value for h, value in self.rows.items() if h in there}

    def files(self) -> dict[str, StateSources]:
        slices = [self.slices[number] for number in sorted(self.slices)]
        return {OWNER: StateSources(OWNER, slices, self.runs)}


def ranges_of(bins: set[int]) -> Ranges:
    at = np.array(sorted(bins), dtype=np.int64)
    return LAYOUT.ranges_of_bins(at) if len(at) else Ranges.of([])


def said(ahead: Prepared) -> dict[int, int]:
    """Return what was read ahead, of the hashes that it says to be all of."""
    table = ahead.sources(OWNER).rows(SECTION, ahead.ranges)
    if table is None:
        return {}
    columns = table.column(HASH).to_pylist(), table.column(column_name("v")).to_pylist()
    return dict(zip(*columns, strict=True))


def turn(ahead: Prepared, stored: Stored, wanted: Ranges, budget: int) -> None:
    """Do what a turn does: forget what is not wanted, follow the steps since, and read more."""
    ahead.keep(wanted) if len(wanted) else ahead.clear()
    sections = {OWNER: [SECTION]}
    if len(ahead.ranges):
        ahead.follow(stored.files(), sections, stored.step)
    ahead.as_of = stored.step
    if len(wanted):
        ahead.read(wanted, stored.files(), sections, budget)


changes = st.dictionaries(
    st.sampled_from(HASHES), st.none() | st.integers(0, 99), min_size=1, max_size=6
)
wishes = st.sets(st.integers(0, BINS - 1), max_size=BINS)
slices = st.none() | st.integers(0, BINS - 1)
budgets = st.sampled_from([1, 64 << 10, 1 << 30])


@settings(max_examples=200)
@given(st.lists(st.tuples(changes, st.none() | wishes, slices, budgets), min_size=1, max_size=40))
def test_what_was_read_ahead_is_what_is_stored_whatever_was_wanted_before(
    steps: list[tuple[dict[int, int | None], set[int] | None, int | None, int]],
) -> None:
    stored, ahead, wanted = Stored(), Prepared(), ranges_of(set())
    for change, wish, slice_, budget in steps:
        stored.change(change)
        if slice_ is not None:
            stored.slice(slice_)
        wanted = wanted if wish is None else ranges_of(wish)
        turn(ahead, stored, wanted, budget)
        assert said(ahead) == stored.within(ahead.ranges)
    for _ in range(4 * BINS + len(steps)):
        turn(ahead, stored, wanted, 1)
    assert ahead.ranges.joined().pairs() == wanted.joined().pairs(), "all of it comes at last"


def test_a_short_run_is_read_once_however_many_turns_it_takes() -> None:
    stored, ahead, wanted = Stored(), Prepared(), Ranges.everything()
    for number in range(20):
        stored.change(dict.fromkeys(HASHES, number))
    turns = 0
    while len(wanted.without(ahead.ranges)):
        turn(ahead, stored, wanted, 1)
        turns += 1
    assert turns > BINS
    assert said(ahead) == stored.rows
    most = max(Counter(stored.reads).values())
    assert (most == 1) == (kept._LONGEST > 0), "long ones are read in parts"


def test_pieces_are_few_after_many_turns_and_steps() -> None:
    stored, ahead = Stored(), Prepared()
    stored.change(dict.fromkeys(HASHES, 1))
    wanted = Ranges.everything()
    most = 0
    for number in range(400):
        stored.change({HASHES[number % len(HASHES)]: number})
        turn(ahead, stored, wanted, 1)
        most = max(most, len(ahead.sources(OWNER).runs))
        assert said(ahead) == stored.within(ahead.ranges)
    assert said(ahead) == stored.rows
    assert most <= 2 * (prepared._ALIKE - 1) * 5, "in each of two lists, of each size"
