"""Invariant 10: one result, whatever the layout, the exchange, the processes and the arrival order.

Random pipelines on random input are compared with an oracle that knows nothing of all that, and with
themselves run otherwise: outputs to the bit, watermarks, counts, and the recorded digests.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace import hash_key
from headrace.driver.driver import Driver
from headrace.errors import StepAbandoned
from headrace.errors.user_code import FromOutside
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.runners.base import EngineFailed, Runner
from headrace.runners.inline import InlineRunner
from headrace.storage.memory import MemoryStore
from tests.property.oracle.model import Model, Spec
from tests.support.durations import us
from tests.support.pipelines import Collected, draw, run_inline
from tests.support.script import Round, Said, Script
from tests.support.specs import WAYS, specs


def digests(driver: Driver) -> list[Any]:
    """Return what each retained step recorded of its result."""
    found = []
    head = driver.coordinator.head
    assert head is not None
    for step in range(head.boundary + 1, head.step + 1):
        manifest, _ = driver.ledger.read(step)
        if not manifest.counts:  # a claim, or the note of what was delivered
            continue
        reads = {name: (d.rows, d.digest) for name, d in manifest.divisions.items()}
        found.append((reads, manifest.state_digests, manifest.stream_digests, manifest.watermarks))
    return found


@settings(max_examples=60)
@given(specs(), WAYS, st.booleans())
def test_a_pipeline_computes_what_the_oracle_says(
    spec: Spec, way: dict[str, Any], weak: bool
) -> None:
    model = Model(spec, hash_key)
    model.run()
    collected = Collected()
    driver = run_inline(draw(spec, collected, weak=weak), rows=spec.rows, **way)
    assert collected.rows() == dict(model.outputs)
    head = driver.coordinator.head
    assert head is not None
    assert {name: counts.late for name, counts in head.counts.items()} == model.late
    assert {name: marks[0] for name, marks in head.watermarks.items()} == model.watermarks


@settings(max_examples=40)
@given(specs(), WAYS, WAYS)
def test_two_ways_to_run_give_the_same_digests(
    spec: Spec, one: dict[str, Any], other: dict[str, Any]
) -> None:
    keep = {"retain_steps": 10_000}
    first = run_inline(draw(spec, Collected()), rows=spec.rows, **{**one, **keep})
    weak = draw(spec, Collected(), weak=True)
    second = run_inline(weak, rows=spec.rows, **{**other, **keep})
    assert digests(first) == digests(second)


class Crashing(Runner):
    """An inline runner that breaks tries, and ends the process now and then."""

    class Crash(FromOutside):
        """The end of a process: nothing may catch it."""

    def __init__(self, inner: InlineRunner, plan: list[str]) -> None:
        self._inner = inner
        self._plan = plan

    def start(self, pipeline: Any, store: Any, workers: int) -> None:
        self._inner.start(pipeline, store, workers)

    def run(self, plan: StepPlan) -> list[TaskReport]:
        what = self._plan.pop() if self._plan else "go"
        if what == "fail before":
            raise EngineFailed("planned")
        reports = self._inner.run(plan)
        if what == "fail after":
            raise EngineFailed("planned")
        if what == "crash":
            raise self.Crash
        if what == "stray attempt" and reports:
            stray = reports[-1].__class__(reports[-1].layer, reports[-1].worker, "stray")
            return [*reports, stray]
        return reports

    def close(self) -> None:
        self._inner.close()


FAULTS = st.lists(
    st.sampled_from(["go", "go", "fail before", "fail after", "crash", "stray attempt"]),
    max_size=12,
)


@settings(max_examples=60)
@given(specs(), st.lists(WAYS, min_size=1, max_size=4), FAULTS, st.booleans())
def test_crashes_failed_tries_and_other_layouts_after_them_change_nothing(
    spec: Spec, ways: list[dict[str, Any]], faults: list[str], weak: bool
) -> None:
    """Each crash is followed by a start with another number of workers, bins and processes."""
    model = Model(spec, hash_key)
    model.run()
    collected, store = Collected(), MemoryStore()
    starts = 0
    while True:
        way = dict(ways[starts % len(ways)])
        starts += 1
        runner = Crashing(InlineRunner(way.pop("seed"), way.pop("processes")), faults)
        try:
            drawn = draw(spec, collected, weak=weak)
            run_inline(drawn, store=store, rows=spec.rows, runner=runner, **way)
            break
        except (Crashing.Crash, StepAbandoned):
            continue
    assert collected.rows() == dict(model.outputs)


class Follows(hr.Computation):
    """Tells each record as it comes, with how many have come before it."""

    deterministic = True
    before = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", self.before.value * 1_000 + record.value.at)
        self.before.value += 1


@pytest.mark.parametrize("exchange", ["shuffle", "host"])
@pytest.mark.parametrize("seed", range(6))
def test_a_keys_records_are_applied_by_partition_and_position_in_whatever_order_they_arrive(
    seed: int, exchange: str
) -> None:
    """Several tasks read, each some of the partitions; who is first is chance (and the seed's)."""
    names, keys = [f"p{number}" for number in range(7)], "abc"
    rounds = [
        Round(
            {
                name: [Said(keys[(n + at) % 3], first + 10 * n + at) for at in range(5 + n)]
                for n, name in enumerate(names)
            }
        )
        for first in (0, 100)
    ]
    pipeline, collected = hr.Pipeline("arrival"), Collected()
    stream = pipeline.inject("in", Script(rounds), watermark=hr.bounded_delay(us(1_000)))
    node = pipeline.compute("follows", Follows(), keys={stream: "key"})
    pipeline.sink("out", node, collected.sink("out"))
    run_inline(pipeline, rows=1_000, workers=4, seed=seed, exchange=exchange)
    error_text: dict[str, list[int]] = {}
    for step in collected.rows()["out"]:
        for key, _, value in step:
            error_text.setdefault(key, []).append(value)
    sent = [one for round_ in rounds for name in names for one in round_.records[name]]
    for key in keys:
        ats = [one.at for one in sent if one.key == key]
        assert error_text[key] == [number * 1_000 + at for number, at in enumerate(ats)]
