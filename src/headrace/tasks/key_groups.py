"""Runs a computation on more state than fits into memory: a step, one group of bins after another.

A step usually touches keys of all bins. If these are more than a worker may remember, only the keys
of the step are loaded, and bins in which something may be due. If these are more, too, they are
loaded, worked on and evicted in groups, ascending by hash. What a group has changed is set aside
until the step is written. Keys do not depend on each other, so the results are those of a step in
one piece, and in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.eventtime.domains import TimeDomain
from headrace.keyspace.distinct import distinct
from headrace.protocol.plan import NodeReport
from headrace.runfiles.batches import as_one_batch
from headrace.schema.reserved import HASH
from headrace.state.bins import BinnedState, Needs

Mask = npt.NDArray[np.bool_]
Inputs = list[pa.RecordBatch | None]
Outputs = dict[str, pa.RecordBatch]


class Divisible(Protocol):
    """A visitor, as far as it is needed here."""

    @property
    def state(self) -> BinnedState:
        """Its state."""

    @property
    def divisible(self) -> bool:
        """Whether a step may work on its keys in groups."""

    def take_outputs(self) -> Outputs:
        """Return the productions of the step by output, and forget them."""


def run_in_groups(
    visitor: Divisible,
    inputs: Inputs,
    owned: Mask,
    until: dict[TimeDomain, int],
    step: Callable[[Inputs, Mask], NodeReport],
) -> tuple[NodeReport, Callable[[], Outputs]]:
    """Run a step of a computation, in as many groups of bins as memory requires. Usually one.

    Args:
        visitor: runs the computation.
        inputs: records of each input, in order.
        owned: for each bin whether the worker owns it.
        until: the clocks of the step. What is due by them is needed.
        step: runs the step for some records and bins.

    Returns:
        The report, and a function that returns what was produced.
    """
    state = visitor.state
    if state.is_loaded or not visitor.divisible:
        return step(inputs, owned), visitor.take_outputs
    needs = _needs(state, inputs, owned, until)
    first, end = 0, state.fill(0, needs)
    if end == len(owned):
        report = step(inputs, owned)
        _set_aside_keys(state)
        return report, visitor.take_outputs
    reports: list[NodeReport] = []
    outputs: list[Outputs] = []
    while True:
        within = np.zeros(len(owned), dtype=bool)
        within[first:end] = True
        reports.append(step(_of_bins(state, inputs, first, end), owned & within))
        outputs.append(visitor.take_outputs())
        if end == len(owned):
            _set_aside_keys(state)
            return _merged(reports), lambda: _together(outputs)
        state.set_aside()
        first, end = end, state.fill(end, needs)


def _needs(state: BinnedState, inputs: Inputs, owned: Mask, until: dict[TimeDomain, int]) -> Needs:
    """Return what a step needs: what may be due, and the keys that have records."""
    of = [batch.column(HASH).to_numpy() for batch in inputs if batch is not None]
    hashes = distinct(np.concatenate(of)) if of else np.empty(0, dtype=np.uint64)
    touched = np.zeros(len(state.layout), dtype=bool)
    touched[state.layout.bins_of(hashes)] = True
    return Needs(owned, owned & touched, hashes, until)


def _set_aside_keys(state: BinnedState) -> None:
    """Evict bins of which a step has loaded some keys only."""
    if state.is_partly_loaded:
        state.set_aside()


def _of_bins(state: BinnedState, inputs: Inputs, first: int, end: int) -> Inputs:
    """Return the records of some bins, in their order."""
    low, high = state.layout.starts[first], state.layout.ends[end - 1]
    return [None if batch is None else _between(batch, low, high) for batch in inputs]


def _between(batch: pa.RecordBatch, low: Any, high: Any) -> pa.RecordBatch | None:
    hashes = batch.column(HASH).to_numpy()
    inside = (hashes >= low) & (hashes <= high)
    return batch.filter(pa.array(inside)) if inside.any() else None


def _merged(reports: list[NodeReport]) -> NodeReport:
    """Return the report of a step whose groups have these."""
    whole = reports[0]
    for part in reports[1:]:
        for count in _COUNTS:
            setattr(whole, count, getattr(whole, count) + getattr(part, count))
        whole.output_watermark = min(whole.output_watermark, part.output_watermark)
        whole.next_wall_timer = min(whole.next_wall_timer, part.next_wall_timer)
        whole.oldest = min(whole.oldest, part.oldest)
        whole.backlog |= part.backlog
        whole.reached = max(whole.reached, part.reached)
        whole.counters = _sums([whole.counters, part.counters])
    return whole


_COUNTS = ("records", "late", "skipped", "keys", "timers", "produced", "duplicates", "expired")


def _sums(counters: Iterable[dict[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for of in counters:
        for name, count in of.items():
            found[name] = found.get(name, 0) + count
    return found


def _together(outputs: list[Outputs]) -> Outputs:
    names = dict.fromkeys(name for of in outputs for name in of)
    return {name: as_one_batch([of[name] for of in outputs if name in of]) for name in names}
