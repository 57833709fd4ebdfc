"""Configuration updates: a layout after them is what a dictionary of bins says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import PipelineError
from headrace.keyspace.layout import HASH_BITS, Bin, Layout
from headrace.keyspace.updates import Update, relocated, runs_of, updated
from tests.support.layouts import layouts

#: (first hash, depth) -> worker
Owners = dict[tuple[int, int], int]


def owners_of(layout: Layout) -> Owners:
    return {tuple(layout.bin(at)): int(layout.owners[at]) for at in range(len(layout))}  # type: ignore[misc]


@st.composite
def updates(draw: st.DrawFn, layout: Layout) -> tuple[Update, Owners]:
    """Return an update that fits, and the bins after it, found one by one."""
    bins = owners_of(layout)
    some = st.lists(st.sampled_from(sorted(bins)), unique=True, max_size=3)
    splits = draw(some)
    for start, bits in splits:
        owner = bins.pop((start, bits))
        bins.update(dict.fromkeys(map(tuple, Bin(start, bits).children()), owner))  # type: ignore[arg-type]
    workers = max(layout.workers, draw(st.integers(1, 6)))
    moved = draw(st.lists(st.sampled_from(sorted(bins)), unique=True, max_size=6))
    to = {bin_: draw(st.integers(0, workers - 1)) for bin_ in sorted(moved)}
    bins.update(to)
    merges = []
    for start, bits in sorted(bins):
        aligned = bits and start % (1 << (HASH_BITS - bits + 1)) == 0
        if aligned and draw(st.booleans()):
            one, other = map(tuple, Bin(start, bits - 1).children())
            if bins.get(other, -1) == bins.get(one, -2):  # type: ignore[arg-type]
                merges.append((start, bits - 1))
                bins[start, bits - 1] = bins.pop(one)  # type: ignore[arg-type]
                del bins[other]  # type: ignore[arg-type]
    if draw(st.booleans()):
        workers = max([1, *(owner + 1 for owner in bins.values())])
    moves = runs_of((Bin(*bin_), worker) for bin_, worker in to.items())
    return Update(7, workers, splits, moves, merges), bins


@given(st.data())
def test_an_update_makes_of_a_layout_what_it_says_bin_by_bin(data: st.DataObject) -> None:
    before = data.draw(layouts())
    update, expected = data.draw(updates(before))
    after = updated(before, update)
    assert owners_of(after) == expected
    assert after.workers == update.workers


@given(st.data())
def test_what_is_relocated_is_every_hash_with_another_owner(data: st.DataObject) -> None:
    before = data.draw(layouts())
    after = updated(before, data.draw(updates(before))[0])
    found = relocated(before, after)
    assert all(a[1] < b[0] for a, b in zip(found, found[1:], strict=False))
    edges = {0, 2**HASH_BITS - 1}
    for first, last, _, _ in found:
        edges |= {first, last, max(first - 1, 0), min(last + 1, 2**HASH_BITS - 1)}
    hashes = np.array(
        sorted(edges | set(before.starts.tolist()) | set(after.starts.tolist())), "u8"
    )
    was, now = before.workers_of(hashes), after.workers_of(hashes)
    for hash_, source, target in zip(hashes.tolist(), was.tolist(), now.tolist(), strict=True):
        told = [move[2:] for move in found if move[0] <= hash_ <= move[1]]
        assert told == ([(source, target)] if source != target else [])


def test_neighbours_that_move_to_one_worker_are_one_run() -> None:
    layout = Layout.uniform(8, [0] * 8, 3)
    moves = runs_of((layout.bin(at), 2 if at == 7 else 1) for at in (1, 2, 3, 6, 7))
    assert [(bits, count, worker) for _, bits, count, worker in moves] == [
        (3, 3, 1),
        (3, 1, 1),
        (3, 1, 2),
    ]
    assert updated(layout, Update(1, moves=moves)).owners.tolist() == [0, 1, 1, 1, 0, 0, 1, 2]


_QUARTER = 1 << 62


@pytest.mark.parametrize(
    ("update", "why"),
    [
        (Update(1, splits=[(0, 1)]), "there is no bin"),
        (Update(1, moves=[(0, 2, 1, 2)]), "there is no worker 2; there are 2"),
        (Update(1, moves=[(0, 2, 5, 1)]), "there are no 5 bins"),
        (Update(1, moves=[(3 * _QUARTER, 2, 2, 1)]), "there are no 2 bins"),
        (Update(1, merges=[(0, 0)]), "there is no bin"),
        (Update(1, merges=[(0, 1)], moves=[(0, 2, 1, 1)]), "its children have two owners"),
        (Update(1, splits=[(_QUARTER, 2)], merges=[(0, 1)]), "is split further"),
        (Update(1, workers=1), "worker 1 is to go, and still owns"),
    ],
)
def test_an_update_that_does_not_fit_is_refused_with_the_reason(update: Update, why: str) -> None:
    layout = Layout.uniform(4, [0, 0, 1, 1], 2)
    with pytest.raises(PipelineError, match=why):
        updated(layout, update)
