"""A pause that was agreed on for a step may begin while state is not in storage: at a note, or a claim."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import headrace as hr
from headrace.driver.driver import Driver
from headrace.keyspace.layout import Layout
from headrace.ledger.commands import Answer, Command, CommandLog
from headrace.ledger.head import Head
from headrace.ledger.migrations import Goal
from headrace.storage import MemoryStore
from tests.machine.uncheckpointed.test_steps import Seen, draw, expected, finish, run_to, start

AT = 9
Paused = Callable[..., tuple[Driver, "Asking"]]


class Asking:
    """Gives a driver commands, and lets it go on until they are answered."""

    def __init__(self, store: MemoryStore) -> None:
        self._log, self._given = CommandLog(store), 0

    def ask(self, driver: Driver, command: Command) -> Answer:
        self._log.put(command, self._given)
        self._given += 1
        driver.look_for_commands()
        while head_of(driver).commands < self._given:
            assert driver.turn() is None
        return head_of(driver).answers[-1]


def head_of(driver: Driver) -> Head:
    assert driver.coordinator.head is not None
    return driver.coordinator.head


def idle(driver: Driver, turns: int = 20) -> None:
    for _ in range(turns):
        assert driver.turn() is None


def paused_by_a_note(store: MemoryStore, seen: Seen, *, every: int) -> tuple[Driver, Asking]:
    """Return a driver whose pause began with the answer to another command."""
    driver, asking = start(draw(seen), store, every=every), Asking(store)
    run_to(driver, 3)
    assert asking.ask(driver, Command("pause", at_step=AT, nonce="a")).applied
    run_to(driver, AT - 1)
    assert not asking.ask(driver, Command("restore", ["nothing"], nonce="b")).applied
    idle(driver)
    assert head_of(driver).paused and head_of(driver).step == AT
    return driver, asking


def paused_by_a_claim(store: MemoryStore, seen: Seen, *, every: int) -> tuple[Driver, Asking]:
    """Return a driver whose pause began as it took over."""
    first, asking = start(draw(seen), store, every=every), Asking(store)
    run_to(first, 3)
    assert asking.ask(first, Command("pause", at_step=AT, nonce="a")).applied
    run_to(first, AT - 1)
    driver = start(draw(seen), store, every=every)
    run_to(driver, AT)
    idle(driver)
    assert head_of(driver).paused
    return driver, asking


BEGINNINGS = [paused_by_a_note, paused_by_a_claim]


@pytest.mark.parametrize("paused", BEGINNINGS)
@pytest.mark.parametrize("every", [1, 50])
def test_state_that_moves_while_it_is_paused_is_all_there(paused: Paused, every: int) -> None:
    store, seen = MemoryStore(), Seen()
    driver, asking = paused(store, seen, every=every)
    layout = Layout.from_wire(head_of(driver).layout)
    own = [at for at in range(len(layout)) if layout.owners[at] == 0]
    bins = [(int(layout.starts[at]), int(layout.bits[at])) for at in own]
    goal = Goal("move", bins=bins, to=1, strategy=hr.all_at_once())
    assert bins and asking.ask(driver, Command("migrate", goal=goal, nonce="c")).applied
    assert asking.ask(driver, Command("resume", nonce="d")).applied
    finish(driver)
    assert set(Layout.from_wire(head_of(driver).layout).owners.tolist()) == {1}
    assert seen.by_key == expected()


@pytest.mark.parametrize("paused", BEGINNINGS)
def test_it_can_be_paused_once_more_and_goes_on(paused: Paused) -> None:
    store, seen = MemoryStore(), Seen()
    driver, asking = paused(store, seen, every=50)
    assert asking.ask(driver, Command("pause", nonce="c")).applied
    idle(driver)
    assert asking.ask(driver, Command("resume", nonce="d")).applied
    finish(driver)
    assert seen.by_key == expected()


@pytest.mark.parametrize("ahead", [1, 2, 3])
@pytest.mark.parametrize("every", [1, 50])
def test_a_pause_at_a_step_that_comes_soon_is_not_forgotten(every: int, ahead: int) -> None:
    store, seen = MemoryStore(), Seen()
    driver, asking = start(draw(seen), store, every=every), Asking(store)
    run_to(driver, 5)
    at = head_of(driver).step + ahead
    assert asking.ask(driver, Command("pause", at_step=at, nonce="a")).applied
    idle(driver, 60)
    assert head_of(driver).paused
    assert head_of(driver).step <= at + 1, "a note may follow the step"
    assert asking.ask(driver, Command("resume", nonce="b")).applied
    finish(driver)
    assert seen.by_key == expected()
