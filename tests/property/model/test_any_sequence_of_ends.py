"""Runs that catch up, end, are reopened, and get new injectors, in any order: beside the model.

All that the machine in ``tests/property/model`` does happens here, too: partitions, late records,
ids, crashes,
changes of what is drawn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

import headrace as hr
from headrace.errors import InputGoesOn
from tests.property.model.ends import EndingModel
from tests.property.model.plain import InjectorSpec
from tests.property.model.programs import drawn
from tests.property.model.test_system_beside_the_model import (
    AHEAD,
    NUMBER,
    RECORDS,
    UPKEEP,
    WORKERS,
    Together,
)


class Ends(Together):
    """Does the same to a driven pipeline and to the model, and compares all that can be seen."""

    model: EndingModel

    @initialize(
        data=st.data(),
        upkeep=UPKEEP,
        workers=WORKERS,
        bins=st.sampled_from([1, 8]),
        seed=st.integers(0, 99),
    )
    def begin(self, data: Any, upkeep: hr.Settings, workers: int, bins: int, seed: int) -> None:  # type: ignore[override]
        super().begin(data, upkeep, workers, bins, seed, 1, ())
        self.model = EndingModel(self.injectors, self.nodes, self.model.clock)

    def ended(self) -> None:
        """Note that the run is over: the next step begins with a restart."""
        self.all_that_can_be_seen_agrees()
        self.crashed = True

    @rule()
    def catch_up(self) -> None:
        self.restarted()
        self.model.catch_up()
        assert self.harness.catch_up() == "caught up"
        self.ended()

    @rule(records=RECORDS, ahead=AHEAD, number=NUMBER)
    def push_and_catch_up(self, records: list[Any], ahead: int, number: int) -> None:
        self.push(number, records, ahead)
        self.catch_up()

    @rule()
    def drain(self) -> None:
        self.restarted()
        self.model.drain()
        self.harness.end()
        assert self.harness.drain() == "drained"
        self.ended()

    @precondition(lambda self: any(outside.ended for outside in self.model.outside.values()))
    @rule(data=st.data(), records=RECORDS, ahead=AHEAD)
    def grow_and_reopen(self, data: Any, records: list[Any], ahead: int) -> None:
        """Let inputs that have ended go on; a start is refused until it says that they do."""
        ended = [name for name, outside in self.model.outside.items() if outside.ended]
        grown = data.draw(st.lists(st.sampled_from(ended), min_size=1, unique=True), label="grown")
        for name in grown:
            self.model.go_on(name)
            self.harness.go_on(name)
        if data.draw(st.booleans(), label="with records"):
            self.time += ahead
            for place in self.places:
                if place[0] in grown:
                    self.bring(*place, records)
        self.harness.crash()
        more = self.model.more()
        if more:
            with pytest.raises(InputGoesOn) as refused:
                self.harness.resume()
            for name in self.model.outside:
                assert (f"injector {name!r}" in refused.value.what) == (name in more)
        self.harness.resume(reopen=more)
        self.model.reopen(more)
        self.crashed = True
        self.restarted()

    @precondition(lambda self: len(self.injectors) < 3 and takes_more(self.nodes[0]))
    @rule(data=st.data())
    def add_an_injector(self, data: Any) -> None:
        """Draw one more injector, which a computation reads beside what it has read so far."""
        name = f"more{len(self.injectors)}"
        spec = InjectorSpec(name, bound=data.draw(st.sampled_from([None, 0, 10]), label="bound"))
        node = self.nodes[0]  # (which is never removed: no injector is to be without a reader)
        self.nodes[0] = replace(node, inputs=(*node.inputs, (name, "a")))
        self.injectors.append(spec)
        self.places.append((name, "x"))
        self.model.add(spec)
        self.model.due = -(2**63)  # a step is made at once, so that its watermark begins there
        self.model.begin()
        self.harness.crash()
        self.harness.resume(pipeline=drawn(self.injectors, self.nodes, self.groups))
        self.crashed = True
        self.restarted()


def takes_more(node: Any) -> bool:
    """Say whether a computation may be drawn with one more input, and nothing else changes."""
    return len(node.inputs) < 2 and node.late != "side"


@pytest.mark.drawn(2, "beside the model")
def test_any_sequence_of_ends_is_what_the_model_says() -> None:
    run_state_machine_as_test(
        Ends, settings=settings(max_examples=40, stateful_step_count=20, derandomize=True)
    )


@pytest.mark.soak
def test_any_of_two_thousand_sequences_of_ends_is_what_the_model_says() -> None:
    run_state_machine_as_test(Ends, settings=settings(max_examples=2_000, stateful_step_count=30))
