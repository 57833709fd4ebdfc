"""How long each computation works on each worker is the mean of the measured steps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.load.computation_work import MOST_CELLS, ComputationWork
from headrace.protocol.plan import NodeReport, TaskReport


def task(layer: int, worker: int, took_us: dict[str, int]) -> TaskReport:
    nodes = {name: NodeReport(took_us=took) for name, took in took_us.items()}
    return TaskReport(layer=layer, worker=worker, task_attempt="a", nodes=nodes)


@given(
    st.lists(st.lists(st.integers(0, 10**6), min_size=6, max_size=6), min_size=1, max_size=10),
    st.integers(10_000, 10**7),
)
def test_it_is_the_mean_of_the_steps_newer_ones_counting_more(
    steps: list[list[int]], half_us: int
) -> None:
    work = ComputationWork(half_us)
    for number, times in enumerate(steps):
        tasks = [task(1, at, {"a": times[at], "b": times[3 + at]}) for at in range(3)]
        work.note(3, number * 100_000, tasks)
    weights = [2.0 ** (number * 100_000 / half_us) for number in range(len(steps))]
    found = work.busy_us()
    for name, first in (("a", 0), ("b", 3)):
        for at in range(3):
            sums = sum(w * times[first + at] for w, times in zip(weights, steps, strict=True))
            assert found[name][at] == pytest.approx(sums / sum(weights), abs=0.1)


def test_a_rescale_begins_again_and_a_computation_that_is_gone_is_left_out() -> None:
    work = ComputationWork()
    work.note(2, 0, [task(1, 0, {"a": 5, "b": 5}), task(1, 1, {"a": 5, "b": 5})])
    work.note(2, 1, [task(1, 0, {"b": 7}), task(1, 1, {"b": 7})])
    assert work.computations == ["b"]
    work.note(3, 2, [task(1, at, {"b": 9}) for at in range(3)])
    assert work.busy_us() == {"b": [9.0, 9.0, 9.0]}


def test_what_is_published_is_bounded_and_those_that_work_most_are_kept() -> None:
    work, workers = ComputationWork(), MOST_CELLS // 4
    names: dict[str, Any] = {f"c{number}": number for number in range(9)}
    work.note(workers, 0, [task(1, at, names) for at in range(workers)])
    assert sorted(work.busy_us()) == ["c5", "c6", "c7", "c8"]
