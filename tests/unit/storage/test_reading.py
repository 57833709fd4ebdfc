"""Reads in turn, side by side, and beside the steps come to the same."""

from __future__ import annotations

import threading

import pytest

from headrace.storage.reading import InTurn, Reading, Threads

WAYS = pytest.mark.parametrize("reading", [InTurn(), Threads(2)], ids=["in turn", "threads"])


@WAYS
def test_each_returns_results_in_the_order_of_the_items(reading: Reading) -> None:
    assert list(reading.each(lambda n: n * n, range(9))) == [n * n for n in range(9)]


@WAYS
def test_what_fails_beside_the_steps_is_told_to_who_asks_for_it(reading: Reading) -> None:
    broken = reading.beside(lambda: 1 // 0)
    assert isinstance(broken.exception(), ZeroDivisionError)
    assert reading.beside(lambda: 7).result() == 7


def test_in_turn_is_done_at_once() -> None:
    assert InTurn().beside(lambda: 7).done()


def test_threads_let_the_step_go_on_and_work_beside_it_may_read_side_by_side() -> None:
    reading, go = Threads(1), threading.Event()

    def work() -> list[int]:
        go.wait()
        return list(reading.each(lambda n: -n, range(3)))

    pending = reading.beside(work)
    assert not pending.done()
    go.set()
    assert pending.result() == [0, -1, -2]


def test_what_a_step_will_wait_for_does_not_stand_behind_what_none_does() -> None:
    reading, go = Threads(1), threading.Event()
    beside = reading.beside(go.wait)
    assert reading.soon(lambda: 7).result() == 7
    go.set()
    assert beside.result()
