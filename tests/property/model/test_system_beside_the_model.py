"""The system and the model side by side, through whatever Hypothesis thinks of."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import headrace as hr
from headrace.errors import DriveError
from headrace.eventtime.timestamps import LAST_DATE_US
from headrace.testing import CrashPoint, Harness, drive
from tests.property.model.model import Model
from tests.property.model.plain import START, InjectorSpec, Item, Key, NodeSpec
from tests.property.model.programs import Sent, drawn

_CLOCK = 1_000
_FEW = st.integers(0, 3)


@st.composite
def injector_specs(draw: st.DrawFn) -> list[InjectorSpec]:
    found = []
    for name in ["in", "other"][: draw(st.sampled_from([1, 1, 2]))]:
        found.append(
            InjectorSpec(
                name,
                bound=draw(st.sampled_from([None, 0, 10])),
                expect=draw(st.sampled_from([(), (), ("x",), ("x", "y")])),
                idle_after=draw(st.sampled_from([None, 20])),
                horizon=draw(st.sampled_from([None, 5, 50])),
            )
        )
    return found


@st.composite
def node_specs(draw: st.DrawFn, injectors: list[InjectorSpec], before: list[NodeSpec]) -> NodeSpec:
    """One more computation. The first one reads all injectors, so that none is without a reader."""
    streams = _streams(injectors, before)
    some = st.lists(st.sampled_from(streams), min_size=1, max_size=2, unique_by=lambda s: s[0])
    chosen = draw(some) if before else streams
    columnar = draw(st.booleans())
    return NodeSpec(
        f"node{len(before)}",
        inputs=tuple((name, draw(st.sampled_from(keyed))) for name, keyed in chosen),
        delay=draw(st.sampled_from([None, 0, 5, 25])),
        wall=draw(st.sampled_from([None, 0, 15])),
        chain=0 if columnar else draw(st.sampled_from([0, 2])),
        echo=draw(st.booleans()),
        late=draw(st.sampled_from(["drop", "side", "process"])),
        allowed=draw(st.sampled_from([0, 0, 10])),
        columnar=columnar,
    )


def _streams(injectors: list[InjectorSpec], nodes: list[NodeSpec]) -> list[tuple[str, list[str]]]:
    """Return what can be read, and by what it can be keyed."""
    found = [(spec.name, ["a", "b"]) for spec in injectors]
    for node in nodes:
        found.append((f"{node.name}.out", ["a", "b", "same"]))
        if node.late == "side":
            sides = [""] if len(node.inputs) == 1 else [str(n) for n in range(len(node.inputs))]
            found += [(f"{node.name}.late{side}", ["a", "b", "same"]) for side in sides]
    return found


UPKEEP = st.builds(
    hr.Settings,
    base_every=st.sampled_from([2, 64]),
    slices=st.sampled_from([1, 4]),
    slice_every=st.sampled_from([1, 3]),
    retain_steps=st.sampled_from([1, 16]),
    cached_bytes=st.sampled_from([512, 1 << 30]),
    exchange=st.sampled_from(["driver", "shuffle"]),
)
# Times are multiples of five, so that many are the same, or just where a watermark or timer is.
RECORDS = st.lists(
    st.tuples(_FEW, _FEW, st.integers(-6, 4).map(lambda n: n * 5), st.none() | st.integers(0, 9)),
    min_size=1,
    max_size=5,
)
AHEAD = st.sampled_from([0, 5, 10, 30])
PARTITIONS = st.sampled_from([["x"], ["x"], ["x", "y"], ["x", "y", "z"]])
WORKERS = st.sampled_from([1, 2, 3, 5])
NUMBER = st.integers(0, 5)
#: Which computations move together; mostly all.
GROUPS = st.sampled_from([(), (), ("one", "two"), ("one", "two", "three")])


class Together(RuleBasedStateMachine):
    """Does the same to a driven pipeline and to the model, and compares all that can be seen."""

    harness: Harness
    model: Model
    changed = False

    @initialize(
        data=st.data(),
        upkeep=UPKEEP,
        workers=WORKERS,
        bins=st.sampled_from([1, 8, 64]),
        seed=st.integers(0, 99),
        processes=st.sampled_from([1, 2]),
        groups=GROUPS,
    )
    def begin(
        self,
        data: Any,
        upkeep: hr.Settings,
        workers: int,
        bins: int,
        seed: int,
        processes: int,
        groups: tuple[str, ...],
    ) -> None:
        self.groups = groups
        self.injectors = data.draw(injector_specs(), label="injectors")
        self.nodes: list[NodeSpec] = []
        for _ in range(data.draw(st.integers(1, 3), label="computations")):
            self.nodes.append(data.draw(node_specs(self.injectors, self.nodes)))
        self.model = Model(self.injectors, self.nodes, _CLOCK)  # it sees nodes that are added
        self.harness = drive(
            drawn(self.injectors, self.nodes, self.groups),
            workers=workers,
            bins=bins,
            clock=_CLOCK,
            seed=seed,
            processes=processes,
            settings=upkeep,
        )
        partitions = data.draw(st.lists(PARTITIONS, min_size=2, max_size=2), label="partitions")
        self.places = [
            (spec.name, name)
            for spec, names in zip(self.injectors, partitions, strict=False)
            for name in names
        ]
        self.crashed = False
        self.removed: list[NodeSpec] = []
        self.time = 0  # about where event time is
        self.found: dict[str, list[tuple[Any, ...]]] = defaultdict(list)

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            with self.harness:
                if not self.changed:  # it has agreed so far
                    self.compare_state_and_timers()

    def place(self, number: int) -> tuple[str, str]:
        """Return an injector and one of its partitions."""
        return self.places[number % len(self.places)]

    # -- what comes from outside --------------------------------------------------------------

    def bring(self, injector: str, partition: str, records: list[Any]) -> None:
        outside = self.model.outside[injector]
        part = outside.parts.get(partition)
        if outside.ended or (part is not None and part.ended_at is not None):
            return
        items = [Item(None, a, b, self.time + offset, id_) for a, b, offset, id_ in records]
        self.model.push(injector, partition, items)
        self.harness.push_many(
            injector,
            [Sent(item.a, item.b, item.id) for item in items],
            at=[item.time for item in items],
            partition=partition,
        )

    def tell(self, injector: str, partition: str, time: int) -> None:
        part = self.model.outside[injector].parts.get(partition)
        before = part.promises[-1][1] if part is not None and part.promises else time
        self.model.promise(injector, partition, max(before, time))
        self.harness.watermark(injector, max(before, time), partition=partition)

    @rule(number=NUMBER, records=RECORDS, ahead=AHEAD)
    def push(self, number: int, records: list[Any], ahead: int) -> None:
        self.time += ahead
        self.bring(*self.place(number), records)

    @rule(records=st.lists(RECORDS, min_size=4, max_size=4), ahead=AHEAD)
    def push_everywhere_and_run(self, records: list[list[Any]], ahead: int) -> None:
        self.time += ahead
        for number, place in enumerate(self.places):
            self.bring(*place, records[number % 4])
        self.run()

    @rule(number=NUMBER, records=RECORDS, behind=AHEAD)
    def push_what_is_behind_and_run(self, number: int, records: list[Any], behind: int) -> None:
        late = [(a, b, offset - behind, id_) for a, b, offset, id_ in records]
        self.bring(*self.place(number), late)
        self.run()

    @rule(number=NUMBER, offset=st.integers(-2, 3))
    def promise(self, number: int, offset: int) -> None:
        self.tell(*self.place(number), self.time + offset * 5)

    @rule(offset=st.integers(-2, 3))
    def promise_everywhere_and_run(self, offset: int) -> None:
        for place in self.places:
            self.tell(*place, self.time + offset * 5)
        self.run()

    @rule(by=st.integers(1, 25))
    def move_clock(self, by: int) -> None:
        self.model.clock += by
        self.harness.clock(self.model.clock)

    @rule(by=st.integers(1, 25))
    def move_clock_and_run(self, by: int) -> None:
        self.move_clock(by)
        self.run()

    @rule(number=NUMBER, luck=st.integers(0, 15))
    def end(self, number: int, luck: int) -> None:
        injector, partition = self.place(number)
        outside = self.model.outside[injector]
        part = outside.parts.get(partition)
        if luck == 0:
            outside.ended = True
            self.harness.end(injector)
        elif luck < 4 and part is not None and part.ended_at is None:
            self.model.end_partition(injector, partition)
            self.harness.end(injector, partition=partition)

    # -- steps and crashes --------------------------------------------------------------------

    @rule(most=st.sampled_from([None, None, 1, 3]))
    def step(self, most: int | None) -> None:
        self.restarted()
        self.model.step(most)
        self.harness.step(most)

    @rule()
    def run(self) -> None:
        self.restarted()
        while self.model.step():
            pass
        self.harness.run(at_most=100)

    @rule(
        point=st.sampled_from(["between_steps", "before_commit", "before_release"]),
        workers=st.none() | WORKERS,
    )
    def crash(self, point: CrashPoint, workers: int | None) -> None:
        """Die; and start again at once with other workers, or with whatever comes next."""
        self.restarted()
        made = False
        try:
            self.harness.crash(point)
            made = point == "before_release"
        except DriveError:
            self.harness.crash()
        if made:
            self.model.step()
        self.crashed = True
        if workers is not None:
            self.harness.resume(workers=workers)
            self.restarted()

    def add(self, data: Any) -> None:
        """Draw one more computation; it begins with what comes from now on."""
        new = data.draw(node_specs(self.injectors, self.nodes))
        new = replace(new, name=f"node{len(self.nodes) + len(self.removed)}")
        self.nodes.append(new)
        self.model.marks[new.name] = START
        self.model.due = START  # a step is made at once, so that its watermark begins there

    @precondition(lambda self: len(self.nodes) + len(self.removed) < 4)
    @rule(data=st.data())
    def start_again_with_one_more(self, data: Any) -> None:
        self.add(data)
        self.harness.crash()
        self.harness.resume(pipeline=drawn(self.injectors, self.nodes, self.groups))
        self.crashed = True
        self.restarted()

    @rule(data=st.data(), how=st.sampled_from(["add", "remove", "draw again", "replace"]))
    def change_what_runs(self, data: Any, how: str) -> None:
        """Draw the pipeline anew while it runs; all steps from then on are those of the new drawing."""
        read = {stream.partition(".")[0] for node in self.nodes for stream, _ in node.inputs}
        can_go = [node for node in self.nodes[1:] if node.name not in read]
        there = {name for name, _ in _streams(self.injectors, self.nodes)}
        can_come = [n for n in self.removed if {stream for stream, _ in n.inputs} <= there]
        if how == "add" and len(self.nodes) + len(self.removed) < 5:
            self.add(data)
        elif how == "remove" and can_go:
            gone = data.draw(st.sampled_from(can_go))
            self.nodes.remove(gone)
            self.removed.append(gone)  # and keeps its state
        elif how == "draw again" and can_come:
            back = data.draw(st.sampled_from(can_come))
            self.removed.remove(back)
            self.model.due = START  # its timers may be due: a step is made to see
            self.nodes.append(back)
        elif how == "replace":
            number = data.draw(st.integers(0, len(self.nodes) - 1))
            other = {
                "delay": data.draw(st.sampled_from([None, 0, 15])),
                "echo": data.draw(st.booleans()),
            }
            self.nodes[number] = replace(self.nodes[number], **other)
        else:
            return
        if self.crashed:
            self.harness.resume()
        self.harness.change(drawn(self.injectors, self.nodes, self.groups))
        self.crashed = True  # a change begins as a restart does
        self.restarted()

    def restarted(self) -> None:
        """Note that what follows is seen, and begins with a restart if something has crashed."""
        self.changed = True
        if self.crashed:
            self.model.opened = self.model.clock  # idleness counts anew
            self.crashed = False

    # -- what can be seen ---------------------------------------------------------------------

    @invariant()
    def all_that_can_be_seen_agrees(self) -> None:
        if not self.changed:  # only steps change it
            return
        self.compare_watermarks()
        self.compare_counts()
        if self.crashed:
            self.compare_state_and_timers()  # takes longest; what differs does so at the end, too
        else:
            self.compare_outputs()  # a crash before the release leaves some for after the restart
        self.changed = False

    def compare_watermarks(self) -> None:
        for node in self.nodes:
            name, mark = node.name, self.model.marks[node.name]
            seen = self.harness.watermark_of(name)
            assert (seen.input_us, seen.output_us) == (mark, mark), name
        for name, outside in self.model.outside.items():
            assert self.harness.watermark_of(name).input_us == outside.low, name

    def compare_counts(self) -> None:
        of_ids = [f"{spec.name}.ids" for spec in self.injectors if spec.horizon is not None]
        for name in of_ids:
            for what in ("duplicates", "expired"):
                seen = getattr(self.harness.counts(name), what)
                assert seen == self.model.counts[name, what], (name, what)
        for node in self.nodes:
            for what in ("records", "late", "timers", "produced"):
                seen = getattr(self.harness.counts(node.name), what)
                assert seen == self.model.counts[node.name, what], (node.name, what)

    def compare_outputs(self) -> None:
        there = {name for name, _ in _streams(self.injectors, self.nodes)}
        for name, expected in self.model.outputs.items():
            if name not in there:
                continue  # of a computation that is not drawn now
            for out in self.harness.outputs(name):
                self.found[name].append((out.key, out.value.a, out.value.b, out.timestamp_us))
            shown = [(i.key, i.a, i.b, min(i.time, LAST_DATE_US)) for i in expected]
            assert _by_key(self.found[name]) == _by_key(shown), name

    def compare_state_and_timers(self) -> None:
        for node in self.nodes:
            assert set(self.harness.keys(node.name)) == set(self.model.keys[node.name]), node.name
            for key, expected in self.model.keys[node.name].items():
                timers = [
                    (t.domain.removesuffix("_time"), t.name, str(t.tag), t.time_us)
                    for t in self.harness.timers(node.name, key)
                ]
                wanted = [(*which, time) for which, time in expected.timers.items()]
                assert sorted(timers) == sorted(wanted), (node.name, key)
                state = self.harness.state(node.name, key)
                assert state == _shown(node, expected), (node.name, key)


def _shown(node: NodeSpec, key: Key) -> dict[str, Any]:
    """Return the model's state of a key as the harness shows it."""
    if node.columnar:
        by_b = {b: {"count": count} for b, count in key.by_b.items()}
        return {"sums": {"total": key.total, "seen": len(key.seen)}, "by_b": by_b}
    return {"total": key.total, "seen": key.seen, "by_b": key.by_b, "left": key.left}


def _by_key(items: list[tuple[Any, ...]]) -> dict[Any, list[tuple[Any, ...]]]:
    found: dict[Any, list[tuple[Any, ...]]] = defaultdict(list)
    for item in items:
        found[item[0]].append(item)
    return found


@pytest.mark.drawn(2, "beside the model")
def test_the_system_does_what_the_model_does() -> None:
    run_state_machine_as_test(
        Together, settings=settings(max_examples=80, stateful_step_count=30, derandomize=True)
    )


@pytest.mark.soak
def test_the_system_does_what_the_model_does_five_thousand_times() -> None:
    run_state_machine_as_test(
        Together, settings=settings(max_examples=5_000, stateful_step_count=40)
    )


def test_the_model_is_small_and_imports_nothing_of_the_package() -> None:
    assert len(_text("model.py").splitlines()) <= 215
    plain = {"__future__", "collections", "collections.abc", "dataclasses", "typing", "xxhash"}
    assert _imported("model.py") <= plain | {"tests.property.model.plain"}
    assert _imported("plain.py") <= plain


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


def _imported(name: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(_text(name))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found
