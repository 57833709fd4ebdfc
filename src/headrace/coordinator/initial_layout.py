"""The layout that a run starts with: the stored one, unless the run asks for other numbers."""

from __future__ import annotations

import msgspec
import numpy as np

from headrace.coordinator.load.bin_sizes import sizes_of_bins
from headrace.coordinator.pipeline_facts import PipelineFacts
from headrace.keyspace.layout import Layout, LayoutWire
from headrace.ledger.head import Head
from headrace.ledger.stored_schema import groups_of
from headrace.migration.loads import Load, Prices
from headrace.migration.sharding import LayoutRules, later_layout

#: All bytes of state weigh the same.
_BY_STATE = Prices(byte_us=1.0)


def requested_sizes(head: Head | None, pipeline_facts: PipelineFacts) -> tuple[int, int]:
    """Return the (workers, bins) that were asked for last; 0 where none were."""
    workers, bins = pipeline_facts.requested_sizes
    before = (0, 0) if head is None else head.requested_sizes
    return workers or before[0], bins or before[1]


def layout_to_begin_with(head: Head | None, pipeline_facts: PipelineFacts) -> LayoutWire | None:
    """Return the layout that a run starts with; None if it keeps the stored one.

    If the run asks for the same numbers and the same sharding as before, or for none, it keeps the
    layout as migrations have left it.

    * For another number of workers, the way of sharding says what moves. By default that is as
      little state as possible, and bins stay as they are.
    * For another number of bins, each group gets this many equal bins. A bin belongs to the former
      owner of its first hash.
    * For another way of sharding, the layout is planned by it.
    * New groups get the bins that they have in a new pipeline.

    Drained workers get nothing, unless all that are asked for are drained.
    """
    if head is None:
        return pipeline_facts.layout
    workers, bins = requested_sizes(head, pipeline_facts)
    known, groups = groups_of(head.stored_schema), groups_of(pipeline_facts.declared_schema)
    rules = rules_to_begin_with(head, pipeline_facts)
    resharded = rules.sharding != head.layout_rules.sharding
    if (workers, bins) == head.requested_sizes and len(known) >= len(groups) and not resharded:
        return None
    wire = head.layout_now.at(head.step + 1).wire
    begun = layout = Layout.from_wire(wire)
    if bins and bins != head.requested_sizes[1]:
        alike = groups.layout(bins, 1)
        layout = Layout(alike.bits, layout.workers_of(alike.starts), layout.workers)
    layout = groups.grown(layout, len(known), Layout.from_wire(pipeline_facts.layout))
    workers = workers or layout.workers
    rules = rules.started_with(workers)
    drained = np.isin(layout.owners, rules.drained).any()
    if workers != layout.workers or resharded or drained:
        load = Load.of(layout, sizes=sizes_of_bins(head, layout), hashes=groups.expected(layout))
        layout = later_layout(layout, workers, load, rules, groups=groups, prices=_BY_STATE)
    return None if layout == begun else layout.to_wire()


def rules_to_begin_with(head: Head | None, pipeline_facts: PipelineFacts) -> LayoutRules:
    """Return what later layouts keep to, with the sharding that the run asks for."""
    before = LayoutRules() if head is None else head.layout_rules
    if pipeline_facts.sharding is None:
        return before
    return msgspec.structs.replace(before, sharding=pipeline_facts.sharding)
