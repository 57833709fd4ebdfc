"""Small worlds of drivers on one store, whose every interleaving can be tried.

A driver's life is cut at each operation of the store; a schedule says who goes next. The real ledger
runs, in threads that pass a token, so that nothing here can differ from what runs in production.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.errors import HeadraceError
from headrace.keyspace.planner import contiguous
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import MANIFEST_FOLDER, Manifest
from headrace.storage.base import Store
from headrace.storage.memory import MemoryStore


class SteppedStore(Store):
    """A store that waits for its turn before each operation.

    Args:
        inner: the store.
        turn: waits; is told of which operation.
        created: is told the name of what was created.
    """

    def __init__(
        self,
        inner: Store,
        turn: Callable[[str], None],
        created: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._inner = inner
        self._turn = turn
        self._created = created

    @property
    def location(self) -> str:
        return self._inner.location

    def create(self, name: str, data: bytes) -> None:
        self._turn(f"create {name}")
        self._inner.create(name, data)
        self._created(name)

    def write(self, name: str, data: bytes) -> None:
        self._turn(f"write {name}")
        self._inner.write(name, data)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self._turn(f"read {name}")
        return self._inner.read(name, offset, length)

    def list(self, prefix: str) -> list[str]:
        self._turn(f"list {prefix}")
        return self._inner.list(prefix)

    def delete(self, name: str) -> None:
        self._turn(f"delete {name}")
        self._inner.delete(name)


def manifest(
    head: Head | None, nonce: str, *, claim: bool, boundary: int = 0, base: bool = False
) -> Manifest:
    """Return the next manifest of a driver: empty, for the protocol's sake alone."""
    return Manifest(
        pipeline="world",
        step=0 if head is None else head.step + 1,
        epoch=(0 if head is None else head.epoch) + (1 if claim else 0),
        attempt=0,
        nonce=nonce,
        predecessor="" if head is None else head.digest,
        claim=claim,
        clock_us=0,
        seed=0,
        layout=contiguous(1, 1).to_wire() if head is None else None,
        boundary=boundary,
        base=head if base else None,
    )


class Acknowledged(NamedTuple):
    """A step that a driver takes for committed.

    Attributes:
        step, epoch, nonce: what it is.
        created, told: after how many operations its manifest was created, and that was acknowledged.
    """

    step: int
    epoch: int
    nonce: str
    created: int
    told: int


class Driver:
    """One driver: claims, commits some steps, cleaning behind itself; each acknowledged step noted."""

    def __init__(self, name: str, commits: int, *, check_predecessor: bool, keep: int = 1) -> None:
        self.name = name
        self.acknowledged: list[Acknowledged] = []
        self._now = 0  # how many operations there were before its newest
        self._created = 0  # when it created its newest manifest
        self.error: BaseException | None = None
        self._commits = commits
        self._check = check_predecessor
        self._keep = keep
        self._go = threading.Semaphore(0)
        self._back = threading.Semaphore(0)
        self.done = False
        self.at = "start"

    def start(self, store: Store) -> None:
        stepped = SteppedStore(store, self._turn, self._note_created)
        self._thread = threading.Thread(target=self._live, args=(stepped,), daemon=True)
        self._thread.start()
        self._back.acquire()

    def _turn(self, what: str) -> None:
        self.at = what
        self._back.release()
        self._go.acquire()

    def _note_created(self, name: str) -> None:
        if name.startswith(MANIFEST_FOLDER):
            self._created = self._now

    def acknowledge(self, head: Head, nonce: str) -> None:
        """Note that the newest step is committed."""
        told = Acknowledged(head.step, head.epoch, nonce, self._created, self._now)
        self.acknowledged.append(told)

    def step(self, now: int) -> None:
        """Let the driver do one operation of the store; so many there were before."""
        self._now = now
        self._go.release()
        self._back.acquire()

    def _live(self, store: Store) -> None:
        try:
            ledger = Ledger(store, check_predecessor=self._check)
            head = ledger.open()
            for number in range(self._commits):
                boundary = max(0, (head.step if head else 0) - self._keep) if number else 0
                nonce = f"{self.name}-{number}"
                head = (
                    ledger.commit(
                        head, manifest(head, nonce, claim=number == 0, boundary=boundary, base=True)
                    )
                    if head is not None
                    else ledger.commit(None, manifest(None, nonce, claim=True))
                )
                self.acknowledge(head, nonce)
                ledger.clean([], range(1, head.boundary))
        except HeadraceError as error:
            self.error = error
        finally:
            self.done = True
            self._back.release()


def run(drivers: list[Driver], schedule: Iterator[int], store: Store | None = None) -> list[str]:
    """Run drivers on a fresh store by a schedule; return what happened."""
    store = store or MemoryStore()
    for driver in drivers:
        driver.start(store)
    story = []
    while not all(driver.done for driver in drivers):
        ready = [driver for driver in drivers if not driver.done]
        chosen = ready[next(schedule) % len(ready)]
        story.append(f"{chosen.name}: {chosen.at}")
        chosen.step(len(story))
    return story


def split_brain(drivers: list[Driver]) -> str | None:
    """Return what is wrong, or None: a step acknowledged to two drivers, or of an epoch that was over."""
    owner: dict[int, str] = {}
    every = [one for driver in drivers for one in driver.acknowledged]
    for one in every:
        if owner.setdefault(one.step, one.nonce) != one.nonce:
            return f"step {one.step} was acknowledged as {owner[one.step]} and as {one.nonce}"
    for one, other in itertools.permutations(every, 2):
        if one.epoch < other.epoch and one.created > other.told:
            return f"{one} was committed although a later epoch had begun: {other}"
    return None
