"""How far behind the newest record others come: a sketch of that, for percentile watermarks.

A DDSketch (Masson, Rim, Lee, VLDB 2019): counts in bins of constant relative width. Adding two is adding
their counts, so what comes out does not depend on who read what; sketches that sample (KLL) or
whose merging depends on the order (t-digest) would leave a trace of the layout in the watermark.
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
#: After so many records the older half is forgotten, so that the sketch follows the stream.
_GENERATION = 100_000
#: The bin of records that are not behind at all.
_NONE = -1

_mapping = LogarithmicMapping(_ACCURACY)
_LOG_GAMMA = math.log(_mapping.gamma)


class Delays(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counts of delays by bin: of the newest records, and of those before."""

    newest: dict[DelayBin, Whole] = {}
    before: dict[DelayBin, Whole] = {}

    def plus(self, more: dict[int, int]) -> Delays:
        """Return the counts with those of further records."""
        if not more:
            return self
        newest = dict(self.newest)
        for bin_, count in more.items():
            newest[bin_] = newest.get(bin_, 0) + count
        if sum(newest.values()) < _GENERATION:
            return Delays(newest, self.before)
        return Delays({}, newest)

    def quantile_us(self, share: float) -> int:
        """Return the delay that so large a share of records did not exceed; 2 % accurate."""
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

    What earlier splits of the partition brought in the same step is not known here: another task may be
    reading them. So a record that is behind those counts as less behind than it is, and a percentile
    watermark is a little early where a source cuts a partition into several splits a step. Counts cannot be
    mended when splits are merged: by how much a record's delay grows depends on how high its own split had
    come before it, so it takes counts by both, or the records.
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
