"""What a weak sink may have seen is decided once: by the first intent of a step, whoever stalls.

Method: the real ledger, drivers that intend each step, show its results and then commit it, in every
interleaving with one pause, and in random ones; then the same with a protection switched off.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator

import msgspec
import pytest

from headrace.errors import Damaged, Fenced
from headrace.ledger.head import Head
from headrace.ledger.intent import INTENTS, Intent, intent_name
from headrace.ledger.ledger import Ledger
from headrace.pipeline.source import Offer
from headrace.storage.base import Store
from headrace.storage.memory import MemoryStore
from tests.support import ledger_drivers
from tests.support.ledger_drivers import manifest, run


def intent(order: int, nonce: str, step: int = 1) -> Intent:
    return Intent(order, step, nonce, 7, {"in": Offer({"at": [1, 2]}, 3, 40, final=True)}, {})


class Shows(ledger_drivers.Driver):
    """Claims, and then for each step: intends, shows what is intended, commits, cleans."""

    def __init__(self, name: str, commits: int, *, check_predecessor: bool = True) -> None:
        super().__init__(name, commits, check_predecessor=check_predecessor)
        self.shown: list[tuple[int, str]] = []
        self.inherited = ""  # what the newest manifest was of, as this driver came

    def _live_on(self, store: Store) -> None:
        ledger = Ledger(store, check_predecessor=self._check)
        head = ledger.open()
        if head is not None:
            self.inherited = ledger.read(head.step)[0].nonce
        head = ledger.commit(head, manifest(head, f"{self.name}-claim", claim=True))
        cleaned = 1
        for number in range(self._commits):
            mine = intent(head.done + 1, f"{self.name}-{number}", head.step + 1)
            first = (ledger.intent(head.done + 1) if number == 0 else None) or mine
            first = ledger.intend(head, first)
            self.shown.append((first.order, first.nonce))
            head = self._commit(ledger, head, first)
            self.acknowledge(head, first.nonce)
            ledger.clean([], range(1, head.boundary), range(cleaned, head.settled + 1))
            cleaned = head.settled + 1

    def _commit(self, ledger: Ledger, head: Head, first: Intent) -> Head:
        boundary = max([head.boundary, *(at for at in head.bases if at < head.step)])
        plain = manifest(head, first.nonce, claim=False, boundary=boundary, base=True)
        return ledger.commit(head, msgspec.structs.replace(plain, delivery=first.step))

    def _live(self, store: Store) -> None:
        try:
            self._live_on(store)
        except (Fenced, Damaged) as error:
            self.error = error
        finally:
            self.done = True
            self._back.release()


def different(drivers: list[Shows]) -> str | None:
    """Return what is wrong: two contents shown for one step, or None."""
    by_order: dict[int, set[str]] = defaultdict(set)
    for driver in drivers:
        for order, nonce in driver.shown:
            by_order[order].add(nonce)
    wrong = {order: nonces for order, nonces in by_order.items() if len(nonces) > 1}
    return f"shown: {wrong}" if wrong else None


def _until_done(driver: Shows, index: int) -> Iterator[int]:
    while not driver.done:
        yield index


def paused_at(stop_after: int, *, check: bool) -> tuple[list[Shows], list[str]]:
    """Driver a stops after so many operations; b takes over, commits and cleans; a goes on."""
    drivers = [Shows("a", 3, check_predecessor=check), Shows("b", 8, check_predecessor=check)]
    order = itertools.chain([0] * stop_after, _until_done(drivers[1], 1), itertools.repeat(0))
    return drivers, run(list(drivers), order)


@pytest.mark.parametrize("stop_after", range(30))
def test_a_driver_that_was_paused_anywhere_shows_nothing_else(stop_after: int) -> None:
    drivers, story = paused_at(stop_after, check=True)
    assert different(drivers) is None, story
    assert drivers[1].error is None, story
    assert [order for order, _ in drivers[1].shown] == sorted({o for o, _ in drivers[1].shown})


def test_without_the_check_of_the_head_a_paused_driver_shows_what_never_was() -> None:
    """The negative control: somewhere, the stale intent takes a name that was cleaned away."""
    assert any(different(paused_at(stop, check=False)[0]) for stop in range(30))


def test_what_was_shown_is_what_the_next_driver_commits() -> None:
    """Driver a dies at any point; b first commits what a has shown and not committed, if there is such."""
    inherited = 0
    for stop_after in range(30):
        drivers = [Shows("a", 3), Shows("b", 4)]
        order = itertools.chain([0] * stop_after, _until_done(drivers[1], 1), itertools.repeat(0))
        run(list(drivers), order)
        committed = {told.nonce for driver in drivers for told in driver.acknowledged}
        committed.add(drivers[1].inherited)  # its own driver may never have learned of it
        shown = {nonce for driver in drivers for _, nonce in driver.shown}
        if drivers[1].acknowledged:
            assert shown <= committed
        inherited += any(told.nonce.startswith("a") for told in drivers[1].acknowledged)
    assert inherited > 3


@pytest.mark.parametrize("seed", range(200))
def test_random_schedules_of_three_drivers_show_one_content_a_step(seed: int) -> None:
    rng = random.Random(seed)
    drivers = [Shows(name, rng.randint(2, 6)) for name in "abc"]

    def schedule() -> Iterator[int]:
        while True:  # in bursts, so that somebody gets far while the others stand still
            who = rng.randrange(3)
            yield from [who] * rng.choice([1, 1, 2, 5, 20, 60])

    story = run(list(drivers), schedule())
    assert different(drivers) is None, "\n".join([f"seed {seed}", *story])
    assert any(driver.acknowledged for driver in drivers)


def test_an_intent_is_what_was_written_or_named_as_damaged() -> None:
    data, name = INTENTS.encode(intent(4, "n")), intent_name(4)
    assert INTENTS.decode(data, name) == intent(4, "n")
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1
        with pytest.raises(Damaged, match=name):
            INTENTS.decode(bytes(flipped), name)
        with pytest.raises(Damaged, match=name):
            INTENTS.decode(data[:position], name)


def test_a_driver_that_is_behind_a_claim_cannot_intend() -> None:
    ledger = Ledger(MemoryStore())
    first = ledger.commit(None, manifest(None, "a", claim=True))
    ledger.commit(first, manifest(first, "b", claim=True))
    with pytest.raises(Fenced, match="claimed"):
        ledger.intend(first, intent(1, "late"))
