"""The load of bins, as measured in a step and reported in few bytes.

If a step is measured, it reports for each computation which bins got records, and how many. It
looks at a sample of at most ``SAMPLE`` records. So its time and its size are bounded, whatever the
number of bins and of records.

The time of a computation is divided among its bins by their records. A columnar computation
processes all bins in one call. And for per-record code, reading a clock for each key would cost
more than many a handler.
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

#: Maximum number of records of a computation that are sampled in a step.
SAMPLE = 4_096
#: Up to this many bins for each sampled record, counting in an array of all bins is cheaper than
#: sorting.
_FEW_BINS = 4


class BinLoads(msgspec.Struct, frozen=True, array_like=True):
    """How much work the bins of one worker gave one computation in a step.

    Attributes:
        bins: the bins that got records, as positions in the step's layout, ascending: 32 bits each,
            little-endian.
        counts: how many of the sampled records each of them got: 16 bits each, little-endian.
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
        """The number of sampled records."""
        return int(np.frombuffer(self.counts, "<u2").sum())

    @property
    def shares(self) -> npt.NDArray[np.float64]:
        """The share of the records that each bin got; the sum is 1."""
        counts = np.frombuffer(self.counts, "<u2").astype(np.float64)
        shares: npt.NDArray[np.float64] = counts / counts.sum()
        return shares


class OpenedState(msgspec.Struct, frozen=True, array_like=True):
    """How much state a worker has opened in a step.

    Attributes:
        bins, nbytes: the number of bins, and the size of their rows. A bin of which several
            computations have state counts once for each.
        took_us: how long that took.
        relaid_us: how long it took to follow a change of the layout; 0 if there was none.
        states: how many computations have opened bins.
    """

    bins: int
    nbytes: int
    took_us: float
    relaid_us: float = 0.0
    states: int = 1


def loads_of(
    layout: Layout, inputs: Sequence[pa.RecordBatch | None], took_us: float, sample_seed: int
) -> BinLoads | None:
    """Return the load of a computation's bins; None if there were no records.

    Args:
        layout: the layout of the step.
        inputs: the records of each input, with their hashes.
        took_us: how long the computation took.
        sample_seed: any number that differs from step to step. It decides which records are
            sampled.
    """
    hashes = [batch.column(HASH).to_numpy() for batch in inputs if batch is not None]
    records = sum(len(part) for part in hashes)
    if not records:
        return None
    bins, counts = _counted(layout, sample(hashes, records, sample_seed))
    return BinLoads(bins.astype("<u4").tobytes(), counts.astype("<u2").tobytes(), records, took_us)


def sample(hashes: list[U64], records: int, sample_seed: int) -> U64:
    """Return every n-th hash, starting at a position that depends on ``sample_seed``.

    Args:
        hashes: the hashes of each input.
        records: how many there are.
        sample_seed: as for :func:`loads_of`.
    """
    every = -(-records // SAMPLE)
    found = [part[sample_seed % every :: every] for part in hashes] if every > 1 else hashes
    together = found[0] if len(found) == 1 else np.concatenate(found)
    return together if len(together) else hashes[0][:1]


def _counted(layout: Layout, hashes: U64) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the bins of some hashes, and how many hashes each bin has."""
    bins = layout.bins_of(hashes)
    if len(layout) > _FEW_BINS * len(bins):
        found, counts = np.unique(bins, return_counts=True)
        return found, counts
    counted = np.bincount(bins)
    touched = np.flatnonzero(counted)
    return touched, counted[touched]
