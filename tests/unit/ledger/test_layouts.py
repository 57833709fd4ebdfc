"""The layout in force, step by step: as published, no sooner and no later."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.keyspace.layout import Layout
from headrace.keyspace.owners import PastOwners
from headrace.keyspace.ranges import Ranges
from headrace.keyspace.updates import Update, relocated
from headrace.ledger.folding import fold
from headrace.ledger.head import Head
from headrace.ledger.layouts import LayoutNow
from headrace.ledger.manifest import Manifest

_BINS = 8
_WIDTH = 1 << 61


def manifest(step: int, **more: object) -> Manifest:
    facts: dict[str, object] = {
        "pipeline": "p",
        "step": step,
        "epoch": 1,
        "attempt": 0,
        "nonce": "",
        "predecessor": "",
        "claim": False,
        "clock_us": 0,
        "seed": 0,
        **more,
    }
    return Manifest(**facts)  # type: ignore[arg-type]


def begun() -> Head:
    layout = Layout.uniform(_BINS, [0, 0, 0, 0, 1, 1, 1, 1], 2)
    first = manifest(0, claim=True, layout=layout.to_wire(), stored_schema={})
    return fold(None, first, "first")


@given(
    st.lists(
        st.tuples(st.integers(1, 12), st.integers(1, 5), st.integers(0, 7), st.integers(0, 1)),
        max_size=8,
    )
)
def test_updates_take_effect_at_exactly_their_step_whenever_they_were_published(
    moves: list[tuple[int, int, int, int]],
) -> None:
    """Moves are (published at, so many steps ahead, bin, worker); the oracle is a dictionary a step."""
    head = begun()
    owners = dict(enumerate(Layout.from_wire(head.layout).owners.tolist()))
    due: dict[int, list[tuple[int, int]]] = {}
    for step in range(1, 20):
        published = [(step + ahead, bin_, to) for at, ahead, bin_, to in moves if at == step]
        updates = [Update(at, moves=[(bin_ * _WIDTH, 3, 1, to)]) for at, bin_, to in published]
        planned = head.layout_now.at(step)
        head = fold(head, manifest(step, updates=updates), str(step))
        before = dict(owners)
        owners.update(due.get(step, []))
        for at, bin_, to in published:
            due.setdefault(at, []).append((bin_, to))
        assert Layout.from_wire(head.layout).owners.tolist() == list(owners.values())
        assert planned.wire == head.layout
        changed = {
            bin_: (before[bin_], owners[bin_]) for bin_ in owners if before[bin_] != owners[bin_]
        }
        told = {}
        for change in head.relocated:
            if change.step == step:
                for first, last, source, target in change.moves:
                    for bin_ in range(first // _WIDTH, last // _WIDTH + 1):
                        told[bin_] = (told.get(bin_, (source,))[0], target)
        assert {bin_: pair for bin_, pair in told.items() if pair[0] != pair[1]} == changed


def test_what_is_withdrawn_never_takes_effect_but_what_is_due_does() -> None:
    head = begun()
    updates = [Update(3, moves=[(0, 3, 1, 1)]), Update(2, moves=[(_WIDTH, 3, 1, 1)])]
    head = fold(head, manifest(1, updates=updates), "1")
    assert [update.step for update in head.updates] == [2, 3]
    head = fold(head, manifest(2, withdrawn=True), "2")
    head = fold(head, manifest(3), "3")
    assert Layout.from_wire(head.layout).owners.tolist() == [0, 1, 0, 0, 1, 1, 1, 1]
    assert head.layout_version == 1


def test_a_claim_with_another_layout_is_a_change_like_any_other_and_forgets_what_was_published() -> (
    None
):
    head = begun()
    head = fold(head, manifest(1, updates=[Update(2, moves=[(0, 3, 1, 1)]), Update(9)]), "1")
    head = fold(head, manifest(2), "2")
    assert [change.version for change in head.relocated] == [1]
    before = Layout.from_wire(head.layout)
    other = Layout.uniform(_BINS, [0, 0, 0, 1, 1, 1, 2, 2], 3)
    head = fold(head, manifest(3, claim=True, layout=other.to_wire()), "3")
    assert (head.layout, head.updates) == (other.to_wire(), [])
    assert head.lineage == Layout.from_wire(begun().layout).digest
    assert [(one.version, one.step) for one in head.relocated] == [(1, 2), (2, 3)]
    assert head.relocated[1].moves == relocated(before, other)


def test_a_claim_without_another_layout_keeps_what_was_published() -> None:
    head = fold(begun(), manifest(1, updates=[Update(2, moves=[(0, 3, 1, 1)])]), "1")
    head = fold(head, manifest(2, claim=True), "2")
    assert Layout.from_wire(head.layout).owners.tolist() == [1, 0, 0, 0, 1, 1, 1, 1]


def test_relocations_that_no_file_needs_any_more_are_forgotten() -> None:
    now = LayoutNow(Layout.uniform(2, np.array([0, 1]), 2).to_wire())
    for step in (3, 5, 8):
        to = step % 2
        now = now.with_published([Update(step, moves=[(0, 1, 1, to)])], withdrawn=False).at(step)
    assert [change.step for change in now.relocated] == [3, 5, 8]
    assert [change.step for change in now.since(2).relocated] == [3, 5, 8]
    assert [change.step for change in now.since(5).relocated] == [8]


def test_a_layout_that_comes_back_does_not_make_forgotten_who_had_what_meanwhile() -> None:
    """Files of its first time hold bins that had moved."""
    head = begun()
    began = head.layout
    head = fold(head, manifest(1, updates=[Update(2, moves=[(0, 3, 4, 1)])]), "1")
    head = fold(head, manifest(2), "2")
    other = Layout.uniform(_BINS, [0, 0, 1, 1, 1, 1, 1, 1], 2).to_wire()
    head = fold(head, manifest(3, claim=True, layout=other), "3")
    head = fold(head, manifest(4, claim=True, layout=began), "4")
    assert head.layout == began
    past = PastOwners(Ranges.everything(), Layout.from_wire(head.layout), head.relocated)
    assert [sorted(past.at(step)) for step in range(5)] == [[0, 1], [0, 1], [1], [0, 1], [0, 1]]


def test_a_run_that_asks_for_the_layout_that_there_is_changes_nothing() -> None:
    head = begun()
    after = fold(head, manifest(1, claim=True, layout=head.layout), "1")
    assert (after.lineage, after.layout_version, after.relocated) == (head.lineage, 0, [])
