"""What bins give their workers to do: counted in the steps that are to be measured, told in few bytes.

A step that is measured tells for each computation which bins it touched and how many of its records each
got, by a sample of at most ``SAMPLE`` of them; so it costs a bounded time and a bounded number of bytes,
whatever the number of bins and of records. The time that the computation took is shared among its bins
by records: a columnar computation works on all bins in one call, and to read a clock for each key would
cost a per-record one more than many a handler does.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.keyspace.arrays import U64
from headrace.keyspace.layout import Layout
from headrace.schema.reserved import HASH

#: So many records of a computation are looked at in a step, at most.
SAMPLE = 4_096
#: Up to so many bins for each record that is looked at, counters for all bins are cheaper than a sort.
_FEW_BINS = 4


class BinLoads(msgspec.Struct, frozen=True, array_like=True):
    """What the bins of one worker gave one computation to do in a step.

    Attributes:
        bins: the bins that got records, as positions in the step's layout, ascending: 32 bits each,
            little-endian.
        counts: how many of the records that were looked at each got: 16 bits each, little-endian.
        records: how many records there were in all.
        took_us: how long the computation took, without opening bins.
    """

    bins: bytes
    counts: bytes
    records: int
    took_us: float

    @property
    def positions(self) -> npt.NDArray[np.uint32]:
        """The bins, as a column."""
        return np.frombuffer(self.bins, "<u4")

    @property
    def looked_at(self) -> int:
        """How many of the records were looked at."""
        return int(np.frombuffer(self.counts, "<u2").sum())

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """Which part of the records each bin got; together 1."""
        counts = np.frombuffer(self.counts, "<u2").astype(np.float64)
        shares: npt.NDArray[np.float64] = counts / counts.sum()
        return shares


class OpenedState(msgspec.Struct, frozen=True, array_like=True):
    """What of its state a worker has opened in a step.

    Attributes:
        bins, nbytes: how many bins, and how large their rows are.
        took_us: how long that took.
        relaid_us: how long it took to follow a change of the layout; 0 where there was none.
    """

    bins: int
    nbytes: int
    took_us: float
    relaid_us: float = 0.0


def loads_of(
    layout: Layout, inputs: Sequence[pa.RecordBatch | None], took_us: float, draw: int
) -> BinLoads | None:
    """Return what the bins gave a computation to do; None without records.

    Args:
        layout: bins of the step.
        inputs: the records of each input, with their hashes.
        took_us: how long the computation took.
        draw: any number that differs from step to step: which records are looked at.
    """
    hashes = [batch.column(HASH).to_numpy() for batch in inputs if batch is not None]
    records = sum(len(part) for part in hashes)
    if not records:
        return None
    bins, counts = _counted(layout, _sampled(hashes, records, draw))
    return BinLoads(bins.astype("<u4").tobytes(), counts.astype("<u2").tobytes(), records, took_us)


def _sampled(hashes: list[U64], records: int, draw: int) -> U64:
    """Return every so many'th hash, beginning with another one each time."""
    every = -(-records // SAMPLE)
    found = [part[draw % every :: every] for part in hashes] if every > 1 else hashes
    together = found[0] if len(found) == 1 else np.concatenate(found)
    return together if len(together) else hashes[0][:1]


def _counted(layout: Layout, hashes: U64) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the bins of some hashes, and how many of these each has."""
    bins = layout.bins_of(hashes)
    if len(layout) > _FEW_BINS * len(bins):
        found, counts = np.unique(bins, return_counts=True)
        return found, counts
    counted = np.bincount(bins)
    touched = np.flatnonzero(counted)
    return touched, counted[touched]
