"""Moves of one colour share no worker, and there are as few colours as is proved."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvariantBroken
from headrace.migration.colouring import edge_colours

WORKER = st.integers(0, 8)
ANY = st.lists(st.tuples(WORKER, WORKER).filter(lambda ends: ends[0] != ends[1]), max_size=60)
TWO_SIDED = st.lists(st.tuples(WORKER, st.integers(9, 15)), max_size=60)
Moves = list[tuple[int, int]]


def colours_of(moves: Moves) -> list[int]:
    return edge_colours([s for s, _ in moves], [t for _, t in moves]).tolist()


def largest_degree(moves: Moves) -> int:
    return max(Counter(worker for ends in moves for worker in ends).values(), default=0)


def assert_no_worker_twice(moves: Moves, colours: list[int]) -> None:
    seen = Counter((colour, w) for colour, ends in zip(colours, moves, strict=True) for w in ends)
    assert set(seen.values()) <= {1}
    assert set(colours) == set(range(len(set(colours))))


@given(TWO_SIDED)
def test_where_givers_do_not_take_colours_are_as_many_as_the_largest_degree(moves: Moves) -> None:
    colours = colours_of(moves)
    assert_no_worker_twice(moves, colours)
    assert len(set(colours)) == largest_degree(moves)


@given(ANY)
def test_elsewhere_they_are_within_shannons_bound(moves: Moves) -> None:
    colours = colours_of(moves)
    assert_no_worker_twice(moves, colours)
    degree = largest_degree(moves)
    assert degree <= len(set(colours)) <= 3 * ((degree + 1) // 2)


@given(TWO_SIDED, st.integers(2, 40))
def test_moves_between_the_same_two_workers_cost_no_more_for_being_many(
    moves: Moves, often: int
) -> None:
    colours = colours_of(moves * often)
    assert_no_worker_twice(moves * often, colours)
    assert len(set(colours)) == largest_degree(moves) * often


@given(ANY)
def test_earlier_moves_between_the_same_two_workers_have_lower_colours(moves: Moves) -> None:
    last: dict[frozenset[int], int] = {}
    for ends, colour in zip(moves, colours_of(moves), strict=True):
        assert last.get(frozenset(ends), -1) < colour
        last[frozenset(ends)] = colour


@pytest.mark.parametrize(
    ("sources", "targets", "least"),
    [
        ([0, 0], [1, 2], 2),
        ([0] * 6, [1, 1, 2, 2, 3, 3], 6),
        ([0, 1], [1, 2], 2),
        ([0, 1, 2], [1, 2, 0], 3),
        ([0, 1, 2, 3], [1, 2, 3, 0], 2),
        ([0, 1], [1, 0], 2),
    ],
)
def test_what_a_matching_loop_loses_is_not_lost(
    sources: list[int], targets: list[int], least: int
) -> None:
    moves = list(zip(sources, targets, strict=True))
    colours = colours_of(moves)
    assert_no_worker_twice(moves, colours)
    assert len(set(colours)) == least


def test_a_worker_that_moves_to_itself_is_no_move() -> None:
    with pytest.raises(InvariantBroken, match="from one worker to another"):
        edge_colours([1], [1])


@pytest.mark.parametrize(("workers", "sided"), [(8, True), (256, True), (8, False), (256, False)])
def test_a_hundred_thousand_moves_are_coloured_in_a_few_seconds(workers: int, sided: bool) -> None:
    random = np.random.default_rng(workers)
    sources = random.integers(0, workers, 100_000)
    step = random.integers(1, workers, 100_000)
    targets = workers + step if sided else (sources + step) % workers
    began = time.process_time()
    colours = edge_colours(sources, targets)
    assert time.process_time() - began < 5
    taken = np.concatenate([colours, colours]) * 2 * workers + np.concatenate([sources, targets])
    assert len(np.unique(np.sort(taken))) == 200_000
    degree = int(np.bincount(np.concatenate([sources, targets])).max())
    assert colours.max() + 1 == degree if sided else colours.max() + 1 <= 1.1 * degree
