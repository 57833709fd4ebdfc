"""Who owned which hashes when, worked out backwards, against a history that was written down."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.keyspace.layout import Layout
from headrace.keyspace.owners import PastOwners
from headrace.keyspace.ranges import MAX_HASH, Ranges
from headrace.keyspace.updates import Relocated, relocated

CELLS, WORKERS = 16, 4
WIDTH = 2**64 // CELLS

owners = st.lists(st.integers(0, WORKERS - 1), min_size=CELLS, max_size=CELLS)
cells = st.sets(st.integers(0, CELLS - 1))


def ranges_of(chosen: set[int]) -> Ranges:
    return Ranges.of((c * WIDTH, c * WIDTH + WIDTH - 1) for c in sorted(chosen)).joined()


def cells_of(ranges: Ranges) -> set[int]:
    starts = np.arange(CELLS, dtype=np.uint64) * np.uint64(WIDTH)
    found = set(np.flatnonzero(ranges.contain(starts)).tolist())
    assert ranges.pairs() == ranges_of(found).pairs(), "in as few ranges as there can be"
    return found


@settings(max_examples=300)
@given(st.lists(st.tuples(owners, st.integers(0, 2)), min_size=1, max_size=6), cells)
def test_owners_of_the_past_are_those_that_were_written_down(
    history: list[tuple[list[int], int]], asked: set[int]
) -> None:
    step, version = 0, 0
    before = Layout.uniform(CELLS, history[0][0], WORKERS)
    changes: list[Relocated] = []
    written = {step: before}
    for drawn, later in history[1:]:
        step, version = step + later, version + 1
        after = Layout.uniform(CELLS, drawn, WORKERS)
        changes.append(Relocated(version, step, relocated(before, after)))
        written[step] = before = after
    past = PastOwners(ranges_of(asked), before, changes)
    layout = written[0]
    for at in range(step + 2):
        layout = written.get(at, layout)
        expected = {
            worker: mine
            for worker in range(WORKERS)
            if (mine := asked & {c for c in range(CELLS) if layout.owners[c] == worker})
        }
        assert {worker: cells_of(found) for worker, found in past.at(at).items()} == expected
        for worker in range(WORKERS):
            held = past.held(worker, at)
            assert (set() if held is None else cells_of(held)) == expected.get(worker, set())


@settings(max_examples=200)
@given(cells, cells)
def test_ranges_are_sets(one: set[int], other: set[int]) -> None:
    mine, theirs = ranges_of(one), ranges_of(other)
    assert cells_of(mine.plus(theirs)) == one | other
    assert cells_of(mine.without(theirs)) == one - other
    assert cells_of(mine.within(theirs)) == one & other


def test_ranges_that_overlap_or_touch_are_joined() -> None:
    first = Ranges.of([(0, 9), (20, MAX_HASH)])
    assert first.plus(Ranges.of([(5, 19)])).pairs() == [(0, MAX_HASH)]
    assert first.plus(Ranges.of([(11, 12)])).pairs() == [(0, 9), (11, 12), (20, MAX_HASH)]
    assert Ranges.of([]).plus(Ranges.of([])).pairs() == []
