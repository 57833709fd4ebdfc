"""How long a call of the pipeline's storage takes, and a byte, as workers and the driver see it."""

from __future__ import annotations

import numpy as np

from headrace.migration.costs import StoreTimes
from headrace.storage.timed import ReadTimes

#: The factor by which what was seen loses weight with each report.
_DECAY = 0.98


class StoreMeter:
    """Learns how long reads take: a part for the call, and a part for each byte.

    Small reads say what a call takes, and large ones what a byte takes.
    """

    def __init__(self) -> None:
        self._sums = np.zeros(6)

    def note(self, reads: ReadTimes) -> None:
        """Note some reads."""
        if reads:
            seen = (reads.calls, reads.nbytes, reads.took_us)
            large = (reads.large_calls, reads.large_bytes, reads.large_us)
            self._sums = self._sums * _DECAY + np.array([*seen, *large])

    @property
    def times(self) -> StoreTimes:
        """What is known; times of 0 before anything was read."""
        calls, nbytes, took, large_calls, large_bytes, large = self._sums.tolist()
        if not calls:
            return StoreTimes() if not large_calls else StoreTimes(0.0, large / large_bytes)
        byte_us = 0.0
        if large_bytes:
            per_call = took / calls
            byte_us = max(0.0, (large - large_calls * per_call) / large_bytes)
        return StoreTimes(max(0.0, took - nbytes * byte_us) / calls, byte_us)
