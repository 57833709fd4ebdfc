"""How much work each bin has had lately, added up from the reports of measured steps.

It is kept in memory, so a new driver starts measuring from nothing. The cost of noting a step
depends on the bins that it touched. Only a layout with other bins costs as much as it has bins.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from headrace.coordinator.load.decay import HALF_LIFE_US, ExponentialDecay
from headrace.keyspace.layout import Layout, LayoutWire
from headrace.migration.loads import Load, regroup
from headrace.protocol.loads import BinLoads

#: Loads of single bins are used only after this many records were sampled, in this many steps.
LEAST_RECORDS = 4_096
LEAST_STEPS = 16


class BinMeter:
    """Adds up the load of each bin.

    Splits and merges divide and join loads; moves leave them unchanged.

    Attributes:
        steps: how many steps were noted.
    """

    def __init__(self, half_life_us: int = HALF_LIFE_US) -> None:
        self._decay = ExponentialDecay(half_life_us)
        self._wire: LayoutWire | None = None
        self._layout = Layout([0], [0], 1)
        self._records = np.zeros(1)
        self._busy_us = np.zeros(1)
        self._weight = np.zeros(1)  # the total weight of the noted steps
        self.steps = 0
        self._seen = 0

    @property
    def is_known(self) -> bool:
        """Whether enough was sampled to know the loads of single bins."""
        return self.steps >= LEAST_STEPS and self._seen >= LEAST_RECORDS

    def note(self, wire: LayoutWire, clock_us: int, found: Iterable[BinLoads]) -> None:
        """Note a measured step.

        Args:
            wire: the layout that it was computed on.
            clock_us: its clock reading.
            found: the loads in its reports.
        """
        self._follow(wire)
        gain = self._decay.gain(clock_us, self._records, self._busy_us, self._weight)
        self._weight += gain
        self.steps += 1
        for part in found:
            bins, shares = part.positions, part.shares
            self._records[bins] += shares * (gain * part.records)
            self._busy_us[bins] += shares * (gain * part.took_us)
            self._seen += part.looked_at

    def load(self, layout: Layout) -> Load:
        """Return the mean load of each bin of a layout in a step; sizes are 0."""
        steps = float(self._weight[0])
        if not steps:
            return Load.of(layout)
        means = (self._records / steps, self._busy_us / steps)
        if not np.array_equal(layout.bits, self._layout.bits):
            means = tuple(regroup(mean, self._layout, layout) for mean in means)  # type: ignore[assignment]
        return Load.of(layout, records=means[0], cpu_us=means[1])

    def _follow(self, wire: LayoutWire) -> None:
        if wire is self._wire or wire == self._wire:
            return
        before, self._wire, self._layout = self._layout, wire, Layout.from_wire(wire)
        if not np.array_equal(before.bits, self._layout.bits):
            self._records = regroup(self._records, before, self._layout)
            self._busy_us = regroup(self._busy_us, before, self._layout)
