"""The load of bins: bytes, records and CPU, as one weight in microseconds of work a step."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import PipelineError, ensure
from headrace.keyspace.layout import Layout
from headrace.keyspace.refinement import refinement

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

#: The highest price. Weights of many bins must have a finite sum.
_MOST = 1e12


class Prices(msgspec.Struct, frozen=True):
    """What a bin's bytes, records and CPU cost, in microseconds of a worker's time in a step.

    Attributes:
        cpu: for each measured microsecond of CPU.
        record_us: for each record, if no CPU was measured at all.
        byte_us: for each byte of state that is kept; 0 if memory is no concern.
        idle: share of the whole work that is spread over all bins by their hashes, for work that
            may still come. With it, bins without work are spread, too.
    """

    cpu: float = 1.0
    record_us: float = 1.0
    byte_us: float = 0.0
    idle: float = 0.01

    def __post_init__(self) -> None:
        """Check the prices.

        Raises:
            PipelineError: for a price that is negative or out of bounds.
        """
        for price in (self.cpu, self.record_us, self.byte_us, self.idle):
            if not 0 <= price <= _MOST:
                raise PipelineError(
                    f"{price} is not a price of work", remedy=f"give a number from 0 to {_MOST:g}"
                )


#: CPU if it was measured, otherwise records. Memory is no concern.
PRICES = Prices()
#: State alone: all bytes of it weigh the same.
BY_STATE = Prices(cpu=0.0, record_us=0.0, byte_us=1.0)


@dataclass(frozen=True, eq=False)
class Load:
    """What was measured of each bin of a layout.

    Attributes:
        sizes: bytes of state.
        records: records in a step.
        cpu_us: microseconds of CPU in a step; all 0 if not measured.
        hashes: the share of all hashes that each bin can have; None if all hashes are equally
            likely.
    """

    sizes: F64
    records: F64
    cpu_us: F64
    hashes: F64 | None = None

    @classmethod
    def of(
        cls,
        layout: Layout,
        *,
        sizes: npt.ArrayLike | None = None,
        records: npt.ArrayLike | None = None,
        cpu_us: npt.ArrayLike | None = None,
        hashes: F64 | None = None,
    ) -> Load:
        """Return the load of a layout's bins, given in hash order.

        Columns that are left out are 0.
        """
        columns = []
        for values in (sizes, records, cpu_us):
            column = np.zeros(len(layout)) if values is None else np.asarray(values, np.float64)
            ensure(len(column) == len(layout), "a load needs one number a bin of its layout")
            ensure(bool((column >= 0).all()), "a load cannot be negative")
            columns.append(column)
        return cls(columns[0], columns[1], columns[2], hashes)

    def work(self, layout: Layout, prices: Prices = PRICES) -> F64:
        """Return what each bin costs its worker, in microseconds a step.

        If nothing was measured, bins weigh their share of all hashes.

        >>> layout = Layout([1, 2, 2], [0, 0, 0], 1)
        >>> Load.of(layout).work(layout).tolist()
        [0.5, 0.25, 0.25]
        >>> Load.of(layout, records=[0, 60, 40]).work(layout).tolist()
        [0.5, 60.25, 40.25]
        """
        busy = self.cpu_us * prices.cpu if self.cpu_us.any() else self.records * prices.record_us
        known = busy + self.sizes * prices.byte_us
        total = float(known.sum())
        width = np.exp2(-layout.bits.astype(np.float64)) if self.hashes is None else self.hashes
        return known + width * total * prices.idle if total else width

    def moved_to(self, before: Layout, after: Layout) -> Load:
        """Return the load in the bins of another layout.

        The load of a split bin is divided evenly.
        """
        columns = (self.sizes, self.records, self.cpu_us)
        sizes, records, cpu_us = (regroup(column, before, after) for column in columns)
        hashes = None if self.hashes is None else regroup(self.hashes, before, after)
        return Load(sizes, records, cpu_us, hashes)


def regroup(values: F64, before: Layout, after: Layout) -> F64:
    """Return the weights of one layout's bins as weights of another's, divided by common hashes."""
    _, _, old, new = refinement(before, after)
    finer = after.bits[new].astype(np.float64) - before.bits[old]
    parts = values[old] * np.exp2(-np.maximum(finer, 0))
    return np.bincount(new, parts, minlength=len(after)).astype(np.float64)
