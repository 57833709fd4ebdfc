"""What was measured of a pipeline's load, as planning sees it."""

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
    """What is known of a pipeline that its migrations can be planned by.

    Attributes:
        sizes: bytes of state of each bin of the layout, where they were measured.
        steps: how long steps take.
        bytes_per_s, bin_us, round_us: how fast a worker opens state, and what any bin and any round take.
        opened: whether that was measured; otherwise it is assumed.
        records, busy_us: how many records each bin has in a step, and how long these take, where enough
            was measured to tell bins apart.
        groups: of the pipeline: bins that are in none weigh nothing, and texts name bins by them.
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
        """The same as the estimates want it."""
        return Costs(
            self.steps.p50_us, self.bytes_per_s, self.bin_us, self.round_us, measured=self.opened
        )
