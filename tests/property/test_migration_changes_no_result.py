"""Megaphone's Correctness and Migration: whatever moves when, results are those of a pipeline left alone.

Random pipelines on random input are asked for random migrations while they run, which are paused, aborted
and hastened; tries fail, processes die, storage hiccups. Outputs and watermarks are compared with an
oracle that knows nothing of all that, states with a run in which nothing moves. (Completion, that
every migration ends, is in ``tests/machine/coordinator/test_migration_lifecycle.py``, and here too.)
"""

from __future__ import annotations

from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace import hash_key
from headrace.control.control import Control
from headrace.driver.driver import Driver
from headrace.errors import StepAbandoned, StorageError
from headrace.keyspace.layout import Layout
from headrace.keyspace.ranges import MAX_HASH
from headrace.ledger.commands import Command
from headrace.ledger.folding import fold
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.ledger.migrations import Goal
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.runfiles.format import RunReader
from headrace.runners.inline import InlineRunner
from headrace.schema.reserved import HASH
from headrace.storage import MemoryStore, Store
from tests.property.oracle.model import Model, Spec
from tests.property.steps.test_equivalence import FAULTS, Crashing
from tests.support.faults import FaultStore, SimulatedCrash
from tests.support.pipelines import Collected, draw, run_inline
from tests.support.specs import specs

_BINS = 16
_WIDTH = 1 << 60

some_bins = st.lists(st.integers(0, _BINS - 1), min_size=1, max_size=6, unique=True).map(
    lambda found: [(at * _WIDTH, 4) for at in found]
)
strategy = st.sampled_from(
    [
        hr.all_at_once(),
        hr.fluid(gap=False),
        hr.batched(gap=False),
        hr.batched(3, gap=False),
        hr.batched(8),
    ]
)
how: dict[str, Any] = {"strategy": strategy, "prepare": st.booleans()}
goals = st.one_of(
    st.builds(Goal, st.just("rescale"), st.integers(1, 5), **how),
    st.builds(Goal, st.just("rescale"), st.integers(1, 5), **how),
    st.builds(Goal, st.just("move"), bins=some_bins, to=st.integers(0, 3), **how),
    st.builds(Goal, st.just("split"), bins=some_bins),
    st.builds(Goal, st.just("merge"), bins=st.just([(0, 2)])),
    st.builds(Goal, st.just("drain_workers"), drained=st.just([0]), **how),
)
commands = st.one_of(
    st.builds(Command, st.just("migrate"), goal=goals),
    st.builds(Command, st.just("migrate"), goal=goals),
    st.builds(
        Command,
        st.sampled_from(
            ["pause_migration", "resume_migration", "abort_migration", "hasten_migration"]
        ),
        migration=st.integers(1, 3),
    ),
)
#: No example is as long, with its gaps.
_MOST_STEPS = 1_000
#: What is asked for when so many steps are done.
asked = st.lists(st.tuples(st.integers(1, 8), commands), min_size=1, max_size=6)
HICCUPS = st.lists(
    st.tuples(st.integers(1, 300), st.sampled_from(["crash before", "crash after", "lost reply"])),
    max_size=3,
)
WAYS = st.fixed_dictionaries(
    {
        "workers": st.sampled_from([1, 2, 3]),
        "exchange": st.sampled_from(["driver", "shuffle"]),
        "base_every": st.sampled_from([2, 64]),
        "slices": st.sampled_from([2, 16]),
        "cached_bytes": st.sampled_from([2_048, 1 << 30]),
        "ahead_bytes": st.sampled_from([4_096, 1 << 20]),
    }
)


class Asking:
    """Asks for things when their time has come, once each, however often the pipeline starts again."""

    def __init__(self, store: Store, wanted: list[tuple[int, Command]]) -> None:
        self._control = Control(store)
        self._wanted = sorted(wanted, key=lambda pair: -pair[0])
        self.steps = 0

    def __call__(self) -> None:
        self.steps += 1
        assert self.steps < _MOST_STEPS, "this does not come to an end"
        while self._wanted and self._wanted[-1][0] <= self.steps:
            self._control.put(self._wanted.pop()[1])


class Noticed(InlineRunner):
    """Lets somebody ask for things just before a try, so that they come in the midst of everything."""

    def __init__(self, asking: Asking, processes: int) -> None:
        super().__init__(0, processes)
        self._asking = asking

    def run(self, plan: StepPlan) -> list[TaskReport]:
        self._asking()
        return super().run(plan)


def run(
    spec: Spec,
    store: MemoryStore,
    way: dict[str, Any],
    asking: Asking,
    faults: list[str],
    hiccups: list[tuple[int, str]],
    collected: Collected,
    processes: int,
) -> Driver:
    """Run to the end of the input, starting again after each crash."""
    while True:
        asking.steps += 1
        fault = hiccups.pop() if hiccups else (0, "")
        runner = Crashing(Noticed(asking, processes), faults)
        try:
            return run_inline(
                draw(spec, collected),
                store=FaultStore(store, *fault),
                rows=spec.rows,
                runner=runner,
                bins=_BINS,
                retain_steps=10_000,
                **way,
            )
        except (Crashing.Crash, SimulatedCrash, StepAbandoned, StorageError):
            assert asking.steps < _MOST_STEPS, "it never runs to the end"


def heads(store: Store) -> list[tuple[Head, Any]]:
    """Return the pipeline after each of its steps, and the step's manifest."""
    ledger, head, found = Ledger(store), None, []
    last = ledger.open()
    assert last is not None
    for step in range(last.step + 1):
        manifest, digest = ledger.read(step)
        head = fold(head, manifest, digest)
        found.append((head, manifest))
    return found


def owners_are_who_wrote(store: Store) -> None:
    """Check that each worker has written rows of its own bins alone: a bin has one owner at each step."""
    for head, manifest in heads(store):
        layout = Layout.from_wire(head.layout)
        for file in manifest.runs:
            reader = RunReader(store.read, file)
            for owner, kind in [(o, k) for o in file.owners for k in reader.kinds_of(o)]:
                rows = reader.rows(owner, kind, 0, MAX_HASH)
                if rows is not None:
                    hashes = rows.column(HASH).to_numpy()
                    assert (layout.workers_of(hashes) == file.worker).all()


def what_was_computed(store: Store) -> list[Any]:
    """Return what steps recorded of their results, those that read something."""
    return [
        (
            {name: (part.rows, part.digest) for name, part in manifest.divisions.items()},
            manifest.state_digests,
            manifest.stream_digests,
            manifest.watermarks,
        )
        for _, manifest in heads(store)
        if manifest.divisions
    ]


@settings(max_examples=40)
@given(specs(), WAYS, asked, FAULTS, HICCUPS, st.sampled_from([1, 2]))
def test_whatever_moves_when_results_are_those_of_a_pipeline_left_alone(
    spec: Spec,
    way: dict[str, Any],
    wanted: list[tuple[int, Command]],
    faults: list[str],
    hiccups: list[tuple[int, str]],
    processes: int,
) -> None:
    model = Model(spec, hash_key)
    model.run()
    store, collected = MemoryStore(), Collected()
    asking = Asking(store, wanted)
    driver = run(spec, store, way, asking, faults, hiccups, collected, processes)
    assert collected.rows() == dict(model.outputs)
    head = driver.coordinator.head
    assert head is not None
    for state in {one.state for one in head.migrations}:
        event(f"ended {state}")
    event(f"{head.layout_version > 0=}")
    assert {name: marks[0] for name, marks in head.watermarks.items()} == model.watermarks
    assert {name: counts.late for name, counts in head.counts.items()} == model.late
    held = any(one.paused for one in head.migrations)
    assert held or all(one.is_over for one in head.migrations)
    owners_are_who_wrote(store)
    undisturbed = MemoryStore()
    run_inline(
        draw(spec, Collected()),
        store=undisturbed,
        rows=spec.rows,
        bins=_BINS,
        retain_steps=10_000,
        **way,
    )
    assert what_was_computed(store) == what_was_computed(undisturbed)
