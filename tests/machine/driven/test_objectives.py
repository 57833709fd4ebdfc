"""Objectives go by the size of each bin, where a bin has much more than its neighbours."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import headrace as hr
from headrace.coordinator.load.bin_sizes import sizes_of_bins
from headrace.coordinator.load.measured import Measured
from headrace.coordinator.migrations.goals import plan_goal
from headrace.errors import ChangeRefused
from headrace.ledger.migrations import Goal, Latency
from headrace.testing import drive


class Text(msgspec.Struct):
    page: int
    text: str


class Newest(hr.Computation):
    text = hr.ValueState(str, default="")

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.text.value = record.value.text


def test_one_large_bin_among_many_is_refused_by_its_name_and_moves_with_a_larger_objective() -> (
    None
):
    """Its share of the slice would be a sixteenth, which takes 5 ms to open."""
    bins, slices = 256, 16
    pipeline = hr.Pipeline("texts")
    texts = pipeline.inject("texts", hr.sources.Iterable([], Text, event_time="page"))
    pipeline.compute("newest", Newest(), keys={texts: "page"})
    settings = hr.Settings(slices=slices)
    with drive(pipeline, bins=bins, settings=settings) as harness:
        for page in range(200):
            harness.push("texts", Text(page, "x" * (8_000_000 if page == 7 else 10)))
        for _ in range(slices + 2):
            harness.step()
            harness.push("texts", Text(300, ""))
        name = f"{hr.hash_key(7) >> 56:08b}/8"
        layout = harness.layout
        assert harness._driver is not None and harness._driver.coordinator.head is not None
        sizes = sizes_of_bins(harness._driver.coordinator.head, layout)
        known = Measured(sizes=sizes, steps=Latency(64, 10_000, 12_000, 12_000))
        half = (int(name[0]) << 63, 1)
        target = 1 - int(layout.workers_of(np.array([hr.hash_key(7)], dtype=np.uint64))[0])
        goal = Goal("move", bins=[half], to=target, objective_us=60_000)
        with pytest.raises(ChangeRefused, match=f"bin {name} alone"):
            plan_goal(layout, goal, known)
        moved = harness.move(name[0] + "/1", target, objective="60s")
        assert moved.estimate is not None and moved.estimate.largest is not None
        assert moved.estimate.largest[0] == name
        assert moved.wait() == "done"
