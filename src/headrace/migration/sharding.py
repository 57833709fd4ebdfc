"""Sharding: which bins there are, and how they are shared when the number of workers changes.

A pipeline has one way of sharding, which ``headrace.run(..., layout=)`` sets and the ledger keeps.
A single rescale may use another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
import numpy as np

from headrace.errors import ChangeRefused
from headrace.keyspace.groups import ALL_IN_ONE, Groups
from headrace.keyspace.layout import Layout
from headrace.keyspace.planner import contiguous_owners
from headrace.migration.loads import PRICES, Load, Prices
from headrace.migration.targets import bits_for, minimum_movement
from headrace.storage.bounds import WorkerNumber


class Fixed(msgspec.Struct, frozen=True, tag="fixed"):
    """The bins stay as they are, however many workers share them, and the least state moves.

    Example::

        with hr.run(p, storage="state/hits", runner="inline", layout=hr.fixed()) as job:
            job.drain()
    """

    def __str__(self) -> str:
        return "fixed"


class Dynamic(msgspec.Struct, frozen=True, tag="dynamic"):
    """As many bins as it takes for workers not to differ by more than a tolerated share.

    There are ``workers / imbalance`` bins, rounded up to a power of two. Bins are split or merged
    when that number changes; then the least state moves.

    Attributes:
        imbalance: how much more than another a worker may have, as a share.

    Example::

        with hr.run(p, storage="state/hits", runner="inline", layout=hr.dynamic(0.05)) as job:
            job.drain()
    """

    imbalance: float = 0.1

    def __post_init__(self) -> None:
        self.bits(1)

    def bits(self, workers: int) -> int:
        """Return the depth of the bins for a number of workers.

        Raises:
            PipelineError: if the share is not between 0 and 1.
        """
        return bits_for(workers, self.imbalance)

    def __str__(self) -> str:
        return f"dynamic ({self.imbalance:g})"


class Contiguous(msgspec.Struct, frozen=True, tag="contiguous"):
    """Each worker has neighbouring bins, by Heron's equations. Layouts are short; more state moves.

    Each worker gets the same number of bins; the first workers get one more if they do not divide
    evenly. In a pipeline with groups, that holds for each group.

    Example::

        with hr.run(p, storage="state/hits", runner="inline", layout=hr.contiguous()) as job:
            job.drain()
    """

    def __str__(self) -> str:
        return "contiguous"


Sharding = Fixed | Dynamic | Contiguous


def fixed() -> Fixed:
    """Keep the bins, and move the least state when the number of workers changes (the default).

    >>> print(fixed())
    fixed
    """
    return Fixed()


def dynamic(imbalance: float = 0.1) -> Dynamic:
    """Have as many bins as it takes for workers to differ by no more than a share.

    Args:
        imbalance: how much more than another a worker may have, between 0 and 1.

    Raises:
        PipelineError: for another share.

    >>> dynamic(0.1).bits(4)  # 64 bins for 4 workers
    6
    """
    return Dynamic(imbalance)


def contiguous() -> Contiguous:
    """Give each worker neighbouring bins, by Heron's equations.

    >>> print(contiguous())
    contiguous
    """
    return Contiguous()


class LayoutRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """What every later layout of a pipeline keeps to.

    Attributes:
        drained: workers that own nothing until they are undrained.
        sharding: the way of sharding.
        reading: by injector and partition, the worker whose task reads it in large steps. Others
            are dealt out in turn.
    """

    drained: list[WorkerNumber] = []
    sharding: Sharding = Fixed()
    reading: dict[str, dict[str, WorkerNumber]] = {}

    def within(self, workers: int) -> LayoutRules:
        """Return the rules for a number of workers: those that are gone are not drained."""
        left = [worker for worker in self.drained if worker < workers]
        return self if left == self.drained else msgspec.structs.replace(self, drained=left)

    def started_with(self, workers: int) -> LayoutRules:
        """Return the rules for a run that is started with a number of workers.

        If all of them are drained, the run undrains them: somebody has to own the state.
        """
        left = self.within(workers)
        return left.undraining(left.drained) if len(left.drained) == workers else left

    def draining(self, workers: Collection[int]) -> LayoutRules:
        """Return the rules with more drained workers."""
        return msgspec.structs.replace(self, drained=sorted({*self.drained, *workers}))

    def with_readers(self, injector: str, readers: Mapping[str, int]) -> LayoutRules:
        """Return the rules with other readers of some partitions; -1 for none in particular."""
        after = {**self.reading.get(injector, {}), **readers}
        kept = {partition: worker for partition, worker in after.items() if worker >= 0}
        others = {name: of for name, of in self.reading.items() if name != injector}
        reading = {**others, injector: kept} if kept else others
        return msgspec.structs.replace(self, reading=reading)

    def undraining(self, workers: Collection[int]) -> LayoutRules:
        """Return the rules without some drained workers."""
        return msgspec.structs.replace(self, drained=sorted({*self.drained} - {*workers}))


#: What later layouts keep to unless somebody has said otherwise.
NO_RULES = LayoutRules()


def first_layout(sharding: Sharding, bins: int, workers: int, groups: Groups) -> Layout:
    """Return the layout of a new pipeline.

    Args:
        sharding: the way of sharding.
        bins: the number of bins, unless the sharding says it.
        workers: the number of workers.
        groups: the pipeline's groups.
    """
    if isinstance(sharding, Dynamic):
        bins = 1 << sharding.bits(workers)
    return groups.layout(bins, workers)


def later_layout(
    layout: Layout,
    workers: int,
    load: Load,
    rules: LayoutRules,
    *,
    groups: Groups = ALL_IN_ONE,
    prices: Prices = PRICES,
) -> Layout:
    """Return the layout for another number of workers.

    Args:
        layout: the present layout.
        workers: the new number of workers.
        load: the load of its bins.
        rules: what it keeps to.
        groups: the pipeline's groups.
        prices: how bytes, records and CPU count.

    Raises:
        ChangeRefused: when no worker is left that may own a bin.
    """
    rules = rules.within(workers)
    if len(rules.drained) == workers:
        raise ChangeRefused(
            f"all {workers} workers that would be left are drained",
            place="planning a layout",
            remedy="undrain some (headrace undrain-workers), or ask for more workers",
        )
    match rules.sharding:
        case Contiguous():
            return _contiguous_in(groups, layout, workers, rules.drained)
        case Dynamic() as sharding:
            bits = sharding.bits(workers - len(rules.drained))
            shards = groups.layout(1 << bits, 1)
            return minimum_movement(
                layout, workers, load, shards=shards, avoid=rules.drained, prices=prices
            )
        case Fixed():
            return minimum_movement(layout, workers, load, avoid=rules.drained, prices=prices)


def _contiguous_in(groups: Groups, layout: Layout, workers: int, avoid: Collection[int]) -> Layout:
    """Return the same bins with neighbours on one worker, in each group."""
    numbers = layout.starts >> np.uint64(64 - groups.bits) if groups.bits else layout.starts * 0
    owners = np.empty(len(layout), dtype=np.int32)
    stays = np.array([worker for worker in range(workers) if worker not in avoid])
    for number in np.unique(numbers):
        at = np.flatnonzero(numbers == number)
        owners[at] = stays[contiguous_owners(len(at), len(stays))]
    return Layout(layout.bits, owners, workers)
