"""What was measured of a pipeline's load, as planning uses it."""

from __future__ import annotations

import msgspec

from headrace.keyspace.groups import ALL_IN_ONE, Groups
from headrace.ledger.migrations import Latency
from headrace.migration.objective import (
    ASSUMED_BIN_US,
    ASSUMED_BYTES_PER_S,
    Costs,
)


class Measured(msgspec.Struct, frozen=True):
    """What is known of a pipeline for planning its migrations.

    Attributes:
        sizes: bytes of state of each bin of the layout; None before they were measured.
        steps: how long steps take.
        bytes_per_s: how fast a worker opens state.
        bin_us, round_us: the fixed time for any bin, and for any round, in microseconds.
        opened: whether the three were measured; otherwise they are assumed.
        records, busy_us: the number of records of each bin in a step, and how long they take; None
            before enough was measured to know single bins.
        groups: the groups of the pipeline. Bins in no group weigh nothing, and texts name bins by
            group.
    """

    sizes: list[int] | None = None
    steps: Latency = Latency()
    bytes_per_s: float = ASSUMED_BYTES_PER_S
    bin_us: float = ASSUMED_BIN_US
    round_us: float = 0.0
    opened: bool = False
    records: list[float] | None = None
    busy_us: list[float] | None = None
    groups: Groups = ALL_IN_ONE

    @property
    def costs(self) -> Costs:
        """The same, as the estimates need it."""
        return Costs(
            self.steps.p50_us, self.bytes_per_s, self.bin_us, self.round_us, measured=self.opened
        )
