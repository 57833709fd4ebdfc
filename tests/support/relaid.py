"""An inline runner under which the layout changes live, at any step, whatever the driver thinks of it.

The driver plans with the layout that it began with. Before a plan is run, its layout becomes the one that
the changes so far have led to; and who reads the ledger, finds it there. So nothing of the system but
soft state and readers of files is on trial, and every change of layout must leave all results as they are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.coordinator.moved_files import moved_state
from headrace.errors import PipelineError
from headrace.keyspace.layout import Layout
from headrace.keyspace.ranges import Ranges
from headrace.keyspace.updates import Update, updated
from headrace.ledger.head import Head
from headrace.ledger.layouts import LayoutNow
from headrace.ledger.ledger import Ledger
from headrace.protocol.plan import ReadAhead, StepPlan, TaskReport
from headrace.runners.inline import InlineRunner
from headrace.storage.reading import InTurn, Reading
from headrace.tasks import committed_files
from headrace.tasks.state_cache import SoftState, WorkerState

#: What a change does: a kind, and numbers that choose bins and workers.
Change = tuple[str, int, int, int]


def update_of(layout: Layout, step: int, changes: list[Change]) -> Update:
    """Return changes as far as they fit a layout, as one configuration update; each on its own bins."""
    update = Update(step)
    for kind, which, count, worker in changes:
        at = which % len(layout)
        bits, start = int(layout.bits[at]), int(layout.starts[at])
        if kind == "split":
            more = msgspec.structs.replace(update, splits=[*update.splits, (start, bits)])
        elif kind == "merge" and bits:
            parent = (start >> (64 - bits + 1) << (64 - bits + 1), bits - 1)
            more = msgspec.structs.replace(update, merges=[*update.merges, parent])
        else:
            run = layout.bits[at : at + 1 + count] == bits
            length = len(run) if run.all() else int(np.argmin(run))
            move = (start, bits, length, worker % layout.workers)
            more = msgspec.structs.replace(update, moves=[*update.moves, move])
        try:
            updated(layout, more)
        except PipelineError:
            continue  # it does not fit, alone or with the others
        update = more
    return update


class Late(InTurn):
    """What is done beside the steps is done some steps later, under a seed.

    What a step will wait for has begun when it comes to that, or has not; then it does it itself.

    Args:
        seed: of how long each takes.
        most: so many steps at most.
    """

    def __init__(self, seed: int, most: int) -> None:
        self._rng = random.Random(seed)
        self._most = most
        self._waiting: list[tuple[list[int], Callable[[], None]]] = []

    def beside(self, work: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()

        def finish() -> None:
            now = super(Late, self).beside(work)
            error = now.exception()
            done.set_result(now.result()) if error is None else done.set_exception(error)

        self._waiting.append(([self._rng.randint(0, self._most)], finish))
        return done

    def soon(self, work: Callable[[], Any]) -> Future[Any]:
        return Future() if self._rng.random() < 0.5 else super().soon(work)

    def step(self) -> None:
        """A step later."""
        due = [entry for entry in self._waiting if entry[0][0] == 0]
        self._waiting = [entry for entry in self._waiting if entry[0][0] > 0]
        for left, _ in self._waiting:
            left[0] -= 1
        for _, finish in due:
            finish()


class Noting(SoftState):
    """Soft state of which it is noted what it reads ahead; and to ask twice for that costs nothing."""

    def __init__(self, prepared: list[tuple[int, int, int, int, bool]], reading: InTurn) -> None:
        super().__init__(reading)
        self._prepared_so_far = prepared

    def take(
        self,
        pipeline: Any,
        code: str,
        plan: StepPlan,
        layout: Layout,
        layer: int,
        worker: int,
        store: Any,
        opening: Any = None,
    ) -> tuple[WorkerState, str]:
        entry, how = super().take(pipeline, code, plan, layout, layer, worker, store, opening)
        prepare = type(entry).prepare

        def noted(ranges: Ranges, budget_bytes: int, reading: Reading) -> bool:
            before = entry.ahead.read_bytes
            done = prepare(entry, ranges, budget_bytes, reading)
            read = entry.ahead.read_bytes
            if done and not isinstance(reading, Late):
                assert prepare(entry, ranges, budget_bytes, reading)
                assert entry.ahead.read_bytes == read
            self._prepared_so_far.append((plan.step, layer, worker, read - before, done))
            return done

        entry.prepare = noted  # type: ignore[method-assign]
        return entry, how


class Relaid(InlineRunner):
    """Changes the layout as it was told.

    Args:
        changes: by step, what changes from that step on.
        reach: how many of the newest relocations a plan tells.
        ahead: how many steps workers look ahead to what they will own, and read it; in turns, so that they
            change their minds. None if they do not.
        budget: how many bytes a worker reads in a step.
        late: so many steps at most it takes to read them; None to do it in the step.
        named: whether plans name the files of what has moved.

    Attributes:
        how: how the soft state of each task was had.
        prepared: (step, layer, worker, bytes, whether that was all) of each time something was prepared.
    """

    def __init__(
        self,
        changes: dict[int, list[Change]],
        seed: int = 0,
        processes: int = 1,
        reach: int = 8,
        ahead: list[int] | None = None,
        budget: int = 1 << 30,
        late: int | None = None,
        *,
        named: bool = True,
    ) -> None:
        super().__init__(seed, processes)
        self._named = named
        self._reading = InTurn() if late is None else Late(seed, late)
        self.prepared: list[tuple[int, int, int, int, bool]] = []
        self._soft = [Noting(self.prepared, self._reading) for _ in range(processes)]
        self._ahead = ahead
        self._budget = budget
        self._changes = changes
        self._reach = reach
        self._now: dict[int, LayoutNow] = {}
        self._began = ""
        self.how: list[str] = []

    def begins(self, head: Head) -> bool:
        """Say whether a head is of another claim than what is known."""
        return head.chains_since != self._began

    def now(self, head: Head, step: int) -> LayoutNow:
        """Return the layout that is in force in a step of a claim."""
        if self.begins(head):
            self._began, self._now = head.chains_since, {head.step: LayoutNow(head.layout)}
            version = len(self._changes) * int(head.step > 0)  # (a claim changes no version back)
            lineage = f"{Layout.from_wire(head.layout).digest}, claim {head.step}"
            self._now[head.step] = LayoutNow(head.layout, lineage, version)
        return self.in_force(step)

    def in_force(self, step: int) -> LayoutNow:
        """Return the layout of a step of the claim at hand."""
        while step not in self._now:
            last = max(self._now)
            now = self._now[last]
            if last + 1 in self._changes:
                update = update_of(Layout.from_wire(now.wire), last + 1, self._changes[last + 1])
                now = now.with_published([update], False).at(last + 1)
            self._now[last + 1] = now
        return self._now[step]

    def run(self, plan: StepPlan) -> list[TaskReport]:
        head = Ledger(self._workers[0].store).open(plan.step - 1)
        assert head is not None
        now = self.now(head, plan.step)
        if isinstance(self._reading, Late):
            self._reading.step()
        relaid = msgspec.structs.replace(
            plan,
            layout=now.wire,
            lineage=now.lineage,
            layout_version=now.version,
            relocated=now.relocated[-self._reach :],
            moved=moved_state(head, now) if self._named else None,
            ahead=self._read_ahead(plan.step),
            measured=False,  # (the driver would take what is told for a part of its own layout)
        )
        reports = super().run(relaid)
        self.how += [r.notes["soft_state"] for r in reports if "soft_state" in r.notes]
        return reports

    def _read_ahead(self, step: int) -> list[ReadAhead]:
        if self._ahead is None:
            return []
        now = Layout.from_wire(self.in_force(step).wire)
        then = Layout.from_wire(self.in_force(step + self._ahead[step % len(self._ahead)]).wire)
        gains = [then.ranges_of(w).without(now.ranges_of(w)) for w in range(now.workers)]
        return [ReadAhead(w, of.to_wire(), self._budget) for w, of in enumerate(gains) if len(of)]


@contextmanager
def the_ledger_knows(runner: Relaid) -> Iterator[None]:
    """Let soft state find the runner's layouts in the ledger."""

    class Knowing(Ledger):
        def open(self, *args: Any) -> Head | None:
            head = super().open(*args)
            if head is None:
                return None
            now = runner.now(head, head.step)
            return msgspec.structs.replace(
                head,
                layout=now.wire,
                lineage=now.lineage,
                layout_version=now.version,
                relocated=now.relocated,
            )

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(committed_files, "Ledger", Knowing)
        yield
