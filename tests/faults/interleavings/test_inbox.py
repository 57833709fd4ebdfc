"""Producers that append, repeat, stall and are started again; a pipeline that crashes: each batch once.

The oracle is a dictionary: what each (producer, sequence) was acknowledged to hold.
"""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headrace.errors import StorageError
from headrace.sources.inbox import Producer, recorded
from headrace.storage import MemoryStore
from tests.support.faults import FaultStore, SimulatedCrash
from tests.support.inboxes import items, pipeline, producer, run_until_idle
from tests.support.pipelines import Collected
from tests.unit.sources.test_inbox import SentAgain, Stalling

NAMES = ["a", "b", "c"]
names = st.sampled_from(NAMES)
sizes = st.integers(0, 3)


class Interleavings(RuleBasedStateMachine):
    """Rules of the outside (producers) and of the inside (runs of the pipeline)."""

    @initialize(clean=st.booleans(), workers=st.integers(1, 2))
    def begin(self, clean: bool, workers: int) -> None:
        self.inbox, self.storage = MemoryStore(), MemoryStore()
        self.clean, self.workers = clean, workers
        self.batches = 0
        self.acknowledged: dict[str, dict[int, list[Any]]] = {name: {} for name in NAMES}
        self.collected = Collected()
        self.sink = self.collected.sink("told")
        self.producers: dict[str, Producer] = {}
        self.stale: list[Producer] = []

    def of(self, name: str) -> Producer:
        if name not in self.producers:
            self.producers[name] = producer(self.inbox, name)
        return self.producers[name]

    def new(self, name: str, rows: int) -> list[Any]:
        self.batches += 1
        return items(name, self.batches, rows)

    def note(self, name: str, sequence: int, batch: list[Any]) -> None:
        assert sequence not in self.acknowledged[name], "one number was given to two batches"
        self.acknowledged[name][sequence] = batch

    @rule(name=names, rows=sizes, numbered=st.booleans())
    def append(self, name: str, rows: int, numbered: bool) -> None:
        if numbered:  # who gives numbers is alone under its name
            self.producers.pop(name, None)
        batch, of = self.new(name, rows), self.of(name)
        self.note(name, of.append(batch, sequence=of.next if numbered else None), batch)

    @rule(
        name=names,
        rows=sizes,
        act=st.sampled_from(["crash before", "crash after", "error"]),
        at=st.integers(1, 2),
    )
    def append_and_die(self, name: str, rows: int, act: str, at: int) -> None:
        """The process ends as it creates, or reads back; the next one appends the same batch again."""
        batch, failing = self.new(name, rows), FaultStore(self.inbox)
        dying = producer(failing, name)
        sequence = dying.next
        failing._at, failing._act = failing.operations + at, act
        with contextlib.suppress(SimulatedCrash, StorageError):
            dying.append(batch, sequence=sequence)
        self.producers.pop(name, None)
        self.note(name, self.of(name).append(batch, sequence=sequence), batch)

    @rule(name=names, data=st.data(), again=st.booleans())
    def repeat(self, name: str, data: st.DataObject, again: bool) -> None:
        """Any batch may be appended again, by the same process or the next, whenever."""
        known = self.acknowledged[name]
        if not known:
            return
        if again:
            self.producers.pop(name, None)
        sequence = data.draw(st.sampled_from(sorted(known)))
        assert self.of(name).append(known[sequence], sequence=sequence) == sequence

    @rule(name=names)
    def is_taken_for_dead(self, name: str) -> None:
        """The next process comes, and the one before lives on."""
        if name in self.producers:
            self.stale.append(self.producers.pop(name))

    @precondition(lambda self: self.stale)
    @rule(data=st.data(), rows=sizes)
    def comes_back(self, data: st.DataObject, rows: int) -> None:
        stale = data.draw(st.sampled_from(self.stale), label="which")
        batch = self.new(stale.name, rows)
        self.note(stale.name, stale.append(batch), batch)

    @rule(name=names, rows=sizes, more=st.integers(1, 4))
    def stalls_while_others_go_on(self, name: str, rows: int, more: int) -> None:
        """A process stalls in its append, past appends of the next one, steps, and a clean-up."""
        stalling = Stalling(self.inbox)
        stale = producer(stalling, name)

        def meanwhile() -> None:
            self.producers.pop(name, None)
            for _ in range(more):
                self.append(name, 1, False)
                self.run(7)

        stalling.meanwhile = meanwhile
        batch = self.new(name, rows)
        self.note(name, stale.append(batch), batch)

    @rule(name=names, rows=sizes, more=st.integers(0, 4))
    def is_slower_than_others(self, name: str, rows: int, more: int) -> None:
        """A process stalls in its append once its batch is there; it is read, and others go on."""
        stalling = Stalling(self.inbox, after=True)
        slow = producer(stalling, name)
        sequence, batch = slow.next, self.new(name, rows)

        def meanwhile() -> None:
            self.note(name, sequence, batch)
            self.producers.pop(name, None)
            self.run(7)
            for _ in range(more):
                self.append(name, 1, False)
                self.run(7)

        stalling.meanwhile = meanwhile
        try:
            assert slow.append(batch) == sequence
        except StorageError:
            assert more > 1
            assert slow.append(batch, sequence=sequence) == sequence

    @rule(name=names, rows=sizes, more=st.integers(0, 4), lands=st.booleans())
    def sends_again_while_others_go_on(self, name: str, rows: int, more: int, lands: bool) -> None:
        """A process is not told what became of its batch, stalls, and sends it again."""
        again = SentAgain(self.inbox, lands=lands)
        stale = producer(again, name)
        sequence, batch = stale.next, self.new(name, rows)

        def meanwhile() -> None:
            if lands:
                self.note(name, sequence, batch)
            self.producers.pop(name, None)
            for _ in range(more):
                self.append(name, 1, False)
                self.run(7)

        again.meanwhile = meanwhile
        try:
            number = stale.append(batch)
        except StorageError:
            assert more > 1
            if lands:
                assert stale.append(batch, sequence=sequence) == sequence
            return
        if lands:
            assert number == sequence
        else:
            self.note(name, number, batch)

    @rule(rows=st.integers(1, 7))
    def run(self, rows: int) -> None:
        """The pipeline is started, reads what is there, and is stopped."""
        run_until_idle(self.drawn(), self.storage, rows=rows, workers=self.workers)
        self.check()

    @rule(rows=st.integers(1, 7), at=st.integers(1, 60), act=st.sampled_from(["before", "after"]))
    def run_and_crash(self, rows: int, at: int, act: str) -> None:
        """The driver ends at any of its operations on the storage."""
        failing = FaultStore(self.storage, at, f"crash {act}")
        try:
            run_until_idle(self.drawn(), failing, rows=rows, workers=self.workers)
        except SimulatedCrash:
            for name in NAMES:
                at_most = len(self.acknowledged[name])
                assert recorded(name, inbox=self.inbox, storage=self.storage) <= at_most

    def drawn(self) -> Any:
        return pipeline(self.inbox, self.sink, clean=self.clean)

    def check(self) -> None:
        """Compare what came out with what was acknowledged."""
        told = [row for _, rows in self.collected.steps["told"] for row in rows]
        for name in NAMES:
            batches = self.acknowledged[name]
            assert sorted(batches) == list(range(len(batches))), "the numbers are dense"
            assert recorded(name, inbox=self.inbox, storage=self.storage) == len(batches)
            expected = [item for number in sorted(batches) for item in batches[number]]
            found = [row[3:] for row in told if row[0] == name]
            assert found == [(i.batch, i.n, before) for before, i in enumerate(expected)]

    def teardown(self) -> None:
        if hasattr(self, "inbox"):
            self.run(5)
            if self.clean:
                for name in NAMES:
                    self.append(name, 1, False)
                    self.append(name, 1, False)
                self.run(5)
                for name in NAMES:
                    assert len(self.inbox.list(f"from-{name}/0")) == 2


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=60, stateful_step_count=20)
