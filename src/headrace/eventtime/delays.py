"""Delays: how far records come behind the newest one, as a sketch, for percentile watermarks.

The sketch is a DDSketch (Masson, Rim, Lee, VLDB 2019): counts in bins of constant relative width.
Two sketches are added by adding their counts, so the result does not depend on which task read
what. Sketches that sample (KLL), or whose merging depends on the order (t-digest), would leave a
trace of the layout in the watermark.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt
from ddsketch import DDSketch
from ddsketch.mapping import LogarithmicMapping

from headrace.eventtime.timestamps import MIN_TIME
from headrace.storage.bounds import DelayBin, Whole

_ACCURACY = 0.02
#: Records in a generation. Once the newest is full, the one before it is forgotten, so that the
#: sketch follows the stream.
_GENERATION = 100_000
#: The bin of records without delay.
_NONE = -1

_mapping = LogarithmicMapping(_ACCURACY)
_LOG_GAMMA = math.log(_mapping.gamma)


class Delays(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counts of delays by bin, for the newest generation of records and for the one before."""

    newest: dict[DelayBin, Whole] = {}
    before: dict[DelayBin, Whole] = {}

    def plus(self, more: dict[int, int]) -> Delays:
        """Return these counts plus those of further records."""
        if not more:
            return self
        newest = dict(self.newest)
        for bin_, count in more.items():
            newest[bin_] = newest.get(bin_, 0) + count
        if sum(newest.values()) < _GENERATION:
            return Delays(newest, self.before)
        return Delays({}, newest)

    def quantile_us(self, share: float) -> int:
        """Return the delay that a given share of records did not exceed, accurate to 2 %."""
        sketch = DDSketch(_ACCURACY)
        for counts in (self.newest, self.before):
            for bin_, count in counts.items():
                sketch.add(0.0 if bin_ == _NONE else _mapping.value(bin_), count)
        found = sketch.get_quantile_value(share)
        return 0 if found is None else math.ceil(found)


def delays_of(times: npt.NDArray[np.int64], highest: int) -> dict[int, int]:
    """Return the delays of the records of a split, counted by bin.

    Args:
        times: event times in the order of the records, at least one.
        highest: the highest event time of their partition before this step.

    Earlier splits of the partition may be read by other tasks in the same step, so their records
    are not known here. A record that is behind one of those counts as less delayed than it is. So a
    percentile watermark is a little early if a source cuts a partition into several splits a step.

    The counts cannot be corrected when splits are merged. How much a record's delay grows depends
    on how far its own split had come before it. A correction would need counts by both, or the
    records.
    """
    newest = np.maximum.accumulate(times)
    if highest > MIN_TIME:
        newest = np.maximum(newest, highest)
    behind = newest - times
    bins = np.full(len(times), _NONE, dtype=np.int64)
    late = behind > 0
    bins[late] = np.ceil(np.log(behind[late]) / _LOG_GAMMA).astype(np.int64)
    found, counts = np.unique(bins, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))
