"""The built-in policies: they turn measurements into a decision about the layout, with its reason.

A policy carries nothing out. It returns a *decision*, which the driver turns into a command, or
only reports in a dry run. Policies are pure and have no memory. What they need to know of the past,
such as when the layout last changed, is in the measurements. None is on by default.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import PipelineError
from headrace.keyspace.layout import Bin, Layout
from headrace.keyspace.updates import MAX_DEPTH
from headrace.migration.loads import BY_STATE, PRICES, Prices
from headrace.migration.measurements import Measurements
from headrace.migration.splitting import SplitRule, one_keys, reshape
from headrace.migration.targets import WORTH, Worth, balanced

# -- decisions ------------------------------------------------------------------------------------


class Nothing(msgspec.Struct, frozen=True, tag="nothing"):
    """The layout should stay as it is.

    >>> print(Nothing("all workers have about the same load"))
    nothing: all workers have about the same load
    """

    reason: str

    def __str__(self) -> str:
        return f"nothing: {self.reason}"


#: Bound on the number of workers if neither the policy nor the runner gives one.
_MOST_WORKERS = 1_024
_UNKNOWN = Nothing("too little was measured yet")


class Rescale(msgspec.Struct, frozen=True, tag="rescale"):
    """The number of workers should change; ``prices`` define the load that they share equally.

    >>> print(Rescale(4, "records wait for longer than a minute"))
    rescale to 4: records wait for longer than a minute
    """

    workers: int
    reason: str
    prices: Prices | None = None

    def __str__(self) -> str:
        return f"rescale to {self.workers}: {self.reason}"


class Rebalance(msgspec.Struct, frozen=True, tag="rebalance"):
    """The same workers should have more equal loads; ``prices`` define the load.

    >>> print(Rebalance("worker 2 has twice the load of the others"))
    rebalance: worker 2 has twice the load of the others
    """

    reason: str
    prices: Prices | None = None

    def __str__(self) -> str:
        return f"rebalance: {self.reason}"


class SplitBins(msgspec.Struct, frozen=True, tag="split"):
    """Bins, given as (start, bits), should be split in two.

    >>> print(SplitBins([(0, 4)], "half of all records are in one bin"))
    split 1 bins: half of all records are in one bin
    """

    bins: list[tuple[int, int]]
    reason: str

    def __str__(self) -> str:
        return f"split {len(self.bins)} bins: {self.reason}"


class MergeBins(msgspec.Struct, frozen=True, tag="merge"):
    """The bins within each of some prefixes, given as (start, bits), should become one.

    >>> print(MergeBins([(0, 4)], "they have next to nothing to do"))
    merge 1 bins: they have next to nothing to do
    """

    bins: list[tuple[int, int]]
    reason: str

    def __str__(self) -> str:
        return f"merge {len(self.bins)} bins: {self.reason}"


ScalingDecision = Nothing | Rescale | Rebalance | SplitBins | MergeBins


class Policy(Protocol):
    """Decides how the layout should change.

    Example::

        class Nightly:
            def decide(self, seen):
                hour = seen.now_us // 3_600_000_000 % 24
                return hr.policies.Rescale(4 if 6 <= hour < 22 else 1, f"it is {hour} o'clock")


        with hr.testing.drive(p, policy=Nightly()) as t:
            t.run()
    """

    def decide(self, seen: Measurements) -> ScalingDecision:
        """Return the decision as of now, with its reason."""


def decision_of(policy: Policy, seen: Measurements) -> ScalingDecision:
    """Ask a policy. One that was written for version 0.1 has ``wish()``, and is asked by that."""
    if hasattr(policy, "decide") or not hasattr(policy, "wish"):
        return policy.decide(seen)
    warnings.warn(
        f"policy {type(policy).__name__.lower()}: rename its method wish() to decide()",
        DeprecationWarning,
        stacklevel=2,
    )
    decided: ScalingDecision = policy.wish(seen)
    return decided


class Together(msgspec.Struct, frozen=True):
    """Several policies. The first that wants a change decides.

    Example::

        memory = hr.policies.Memory(most_bytes=512 << 20)
        policy = hr.policies.Together([memory, hr.policies.Balance()])
    """

    policies: Sequence[Policy]

    def decide(self, seen: Measurements) -> ScalingDecision:
        """Return the first decision for a change, or the reasons why no policy wants one."""
        reasons = []
        for policy in self.policies:
            decided = decision_of(policy, seen)
            if not isinstance(decided, Nothing):
                return decided
            reasons.append(decided.reason)
        return Nothing("; ".join(reasons) or "there is no policy")


# -- skew -----------------------------------------------------------------------------------------


class Balance(msgspec.Struct, frozen=True):
    """Evens out skew: moves bins if that is worth it, and splits bins that are too heavy.

    Bins that are light again are merged, as long as nothing else is to do.

    Attributes:
        worth: when moving is worth its cost.
        heavy: a bin with more than this part of a worker's fair share is split, if skew cannot be
            evened out otherwise.
        merge_below: two neighbouring bins of a worker are merged if they have together less than this
            part of a worker's fair share, of the work and of the state. At most half of ``heavy``,
            so that nothing is split and merged in turns; 0 merges nothing.
        deepest: bins of this depth are not split.
        shallowest: bins of this depth are not merged. The default is that of a new pipeline's bins,
            so what was split is merged, and nothing else.
        cooldown_us: how long to wait after a change.
        prices: what bytes, records and CPU time count for.

    Example::

        with hr.run(p, storage="state/hits", runner="inline", policy=hr.policies.Balance()) as job:
            job.drain()
    """

    worth: Worth = WORTH
    heavy: float = 0.5
    deepest: int = 32
    cooldown_us: int = 60_000_000
    prices: Prices = PRICES
    merge_below: float = 0.1
    shallowest: int = 8

    def __post_init__(self) -> None:
        _check(self.heavy > 0 and 0 <= self.deepest <= MAX_DEPTH, self)
        _check(0 <= 2 * self.merge_below <= self.heavy and 0 <= self.shallowest <= MAX_DEPTH, self)

    def decide(self, seen: Measurements) -> ScalingDecision:
        """Decide to rebalance, to split or merge bins, or to do nothing."""
        if not seen.known:
            return _UNKNOWN
        if cooling := _cooling(seen, self.cooldown_us):
            return cooling
        target = balanced(
            seen.layout, seen.load, worth=self.worth, avoid=seen.drained, prices=self.prices
        )
        if target.layout is not seen.layout:
            return Rebalance(target.reason, self.prices)
        split = self._split(seen)
        if isinstance(split, SplitBins):
            return split
        return self._merge(seen) or split or Nothing(target.reason)

    def _split(self, seen: Measurements) -> SplitBins | Nothing | None:
        """Decide to split the bins that make the heaviest worker too heavy."""
        work = seen.load.work(seen.layout, self.prices)
        sums = np.bincount(seen.layout.owners, work, minlength=seen.workers)
        mean, most = float(work.sum()) / seen.sharing, float(sums.max())
        if most < self.worth.gain * mean or most - mean < self.worth.floor_us:
            return None
        rule = SplitRule(min(self.heavy / seen.sharing, 1.0), deepest=self.deepest)
        splits = reshape(seen.layout, work, rule).splits.pairs()
        hot = _of_one_key(seen.layout, work)
        bins = [bin_ for bin_ in splits if bin_ not in hot]
        share = work.max() / work.sum()
        if splits and not bins:
            return Nothing(
                f"worker {sums.argmax()} has {most / mean:.2f} times the mean, since one key has "
                f"{share:.0%} of all work: {_in_vain(splits)}"
            )
        if not bins:
            return None
        return SplitBins(
            bins,
            f"worker {sums.argmax()} has {most / mean:.2f} times the mean, and no moves help, since "
            f"the heaviest bin has {share:.0%} of all work",
        )

    def _merge(self, seen: Measurements) -> MergeBins | None:
        """Decide to merge bins that are light in every respect."""
        work, sizes = seen.load.work(seen.layout, self.prices), seen.load.sizes
        if not self.merge_below or not work.any():
            return None
        share = work / work.sum()
        share = np.maximum(share, sizes / sizes.sum()) if sizes.any() else share
        # (in proportion to the sum of shares, since each bin counts by the larger of two)
        below = min(self.merge_below / seen.sharing, 0.5) / float(share.sum())
        rule = SplitRule(1.0, below, shallowest=self.shallowest)
        bins = [
            parent for level in reshape(seen.layout, share, rule).merges for parent in level.pairs()
        ]
        if not bins:
            return None
        return MergeBins(
            bins,
            f"their halves have less than {self.merge_below:.0%} of a worker's share, of work and of "
            "state",
        )


def _of_one_key(layout: Layout, weights: npt.NDArray[np.float64]) -> set[tuple[int, int]]:
    """Return the bins that no split would help."""
    at = one_keys(layout, weights)
    return set(zip(layout.starts[at].tolist(), layout.bits[at].tolist(), strict=True))


def _in_vain(bins: Sequence[tuple[int, int]]) -> str:
    named = ", ".join(str(Bin(*bin_)) for bin_ in bins[:3])
    return (
        f"bin {named} was split again and again, and nearly all stayed in one part. No split and no "
        f"move helps; work on the key in two phases (hr.ops.two_phase)"
    )


# -- memory ---------------------------------------------------------------------------------------


class Memory(msgspec.Struct, frozen=True):
    """Keeps the state of each worker below a bound.

    Attributes:
        most_bytes: largest amount of state that a worker may have.
        fill: how full workers should be after a change, as a share of ``most_bytes``.
        most_workers: largest number of workers. The default is how many can run at once (task
            slots): more would share their processors, and their memory.
        deepest: bins of this depth are not split.
        cooldown_us: how long to wait after a change.

    Example::

        policy = hr.policies.Memory(most_bytes=512 << 20, most_workers=16)
    """

    most_bytes: int
    fill: float = 0.75
    most_workers: int = 0
    deepest: int = 32
    cooldown_us: int = 60_000_000

    def __post_init__(self) -> None:
        _check(self.most_bytes > 0 and 0 < self.fill <= 1 and self.most_workers >= 0, self)
        _check(0 <= self.deepest <= MAX_DEPTH, self)

    def decide(self, seen: Measurements) -> ScalingDecision:
        """Decide on more workers, a better balance, smaller bins, or nothing."""
        worker, fullest = int(seen.state_bytes.argmax()), int(seen.state_bytes.max())
        if fullest <= self.most_bytes:
            return Nothing(f"no worker has more than {fullest} of {self.most_bytes} bytes of state")
        if cooling := _cooling(seen, self.cooldown_us):
            return cooling
        why = f"worker {worker} has {fullest} bytes of state, of {self.most_bytes} that it may have"
        room = self.most_bytes * self.fill
        large = (seen.load.sizes > room) & (seen.layout.bits < self.deepest)
        alone = large & one_keys(seen.layout, seen.load.sizes)
        large &= ~alone
        if alone.any() and not large.any():
            starts, bits = seen.layout.starts[alone].tolist(), seen.layout.bits[alone].tolist()
            return Nothing(f"{why}, of one key: {_in_vain(list(zip(starts, bits, strict=True)))}")
        if large.any():
            starts, bits = seen.layout.starts[large].tolist(), seen.layout.bits[large].tolist()
            bins = list(zip(starts, bits, strict=True))
            return SplitBins(bins, f"{why}, and {len(bins)} bins alone would fill a worker")
        needed = int(np.ceil(seen.state_bytes.sum() / room))
        if needed <= seen.sharing:
            return Rebalance(f"{why}, while all workers together have room", BY_STATE)
        most = self.most_workers or seen.places or _MOST_WORKERS
        wanted = min(seen.workers_for(needed), most)
        if wanted > seen.workers:
            return Rescale(wanted, f"{why}; all state needs {needed} workers", BY_STATE)
        return Nothing(f"{why}, but there are {seen.workers} workers, the most that there may be")


# -- scaling --------------------------------------------------------------------------------------


class Scaling(msgspec.Struct, frozen=True):
    """As many workers as the input needs, from their true processing rates.

    Source: DS2 (Kalavri et al., OSDI '18). How many records workers process per second *while they
    work* shows how many workers are needed, without trial and error. With measured rates it settles
    in a few changes. The band, the cooldowns and the treatment of a backlog are those of Flink's
    autoscaler.

    While most steps leave input waiting, the true rate of arrivals is unknown. Then workers count
    as always busy, so each change adds a share of the present number, until all input is read. But
    if the workers have time left although input waits, more of them would not help: something else
    is too slow.

    Attributes:
        target: how busy workers should be, as a share of the time.
        low, high: between these shares, nothing changes.
        catch_up_us: how soon a backlog should be worked off.
        least_gain: smallest change in the number of workers, as a share of it.
        fewest, most: bounds on the number of workers. The default for ``most`` is how many can run
            at once (task slots), since more would only share their time.
        cooldown_us: how long to wait after a change.
        shrink_after_us: how long to wait after a change before asking for fewer workers. It is
            longer, because too many workers cost money, and too few cost latency.
        most_bytes: largest amount of state that a worker may have after a change; 0 for any.

    Example::

        policy = hr.policies.Scaling(target=0.6, fewest=2, most=8)
        with hr.run(p, storage="state/hits", runner="inline", policy=policy) as job:
            job.drain()
    """

    target: float = 0.7
    low: float = 0.5
    high: float = 0.85
    catch_up_us: int = 300_000_000
    least_gain: float = 0.1
    fewest: int = 1
    most: int = 0
    cooldown_us: int = 60_000_000
    shrink_after_us: int = 600_000_000
    most_bytes: int = 0

    def __post_init__(self) -> None:
        band = 0 < self.low < self.target < self.high <= 1
        bounds = self.fewest >= 1 and (not self.most or self.fewest <= self.most)
        _check(band and bounds and self.catch_up_us > 0, self)

    def decide(self, seen: Measurements) -> ScalingDecision:
        """Decide on another number of workers, or on nothing."""
        rates = seen.true_rates[seen.true_rates > 0]
        if not len(rates):
            return Nothing("how fast workers are is not known: too little was measured yet")
        if cooling := _cooling(seen, self.cooldown_us):
            return cooling
        rate, demand = float(rates.mean()), self._demand(seen)
        busy = demand / (rate * seen.sharing)
        why = (
            f"{demand:.0f} records/s to work on keep {seen.sharing} workers of {rate:.0f} records/s each "
            f"{busy:.0%} busy, where {self.low:.0%} to {self.high:.0%} are wanted"
        )
        if seen.saturated:
            why += ", and more input is waiting"
            if busy < self.low:
                return Nothing(f"{why}, but not for the workers")
            demand, busy = max(demand, rate * seen.sharing), max(busy, 1.0)
        if self.low <= busy <= self.high and self.fewest <= seen.sharing <= self._most(seen):
            return Nothing(why)
        return self._rescale(seen, int(np.ceil(demand / (rate * self.target))), why)

    def _demand(self, seen: Measurements) -> float:
        """Return the records per second to work on, with those that wait."""
        come = seen.arrivals_per_s + seen.backlog * 1e6 / self.catch_up_us
        return come * seen.amplification

    def _rescale(self, seen: Measurements, needed: int, why: str) -> ScalingDecision:
        most = self._most(seen)
        wanted = min(max(needed, self.fewest, self._for_state(seen)), most)
        within = self.fewest <= seen.sharing <= most
        if wanted == seen.sharing:
            return Nothing(f"{why}, and {wanted} are what there may be")
        if within and abs(wanted - seen.sharing) < self.least_gain * seen.sharing:
            return Nothing(f"{why}, but {wanted} workers would be too small a change")
        if wanted < seen.sharing and (cooling := _cooling(seen, self.shrink_after_us)):
            return cooling
        return Rescale(seen.workers_for(wanted), why)

    def _most(self, seen: Measurements) -> int:
        """Return the largest number of workers."""
        return self.most or max(seen.places or _MOST_WORKERS, self.fewest)

    def _for_state(self, seen: Measurements) -> int:
        """Return the number of workers that the state needs."""
        return int(np.ceil(seen.state_bytes.sum() / self.most_bytes)) if self.most_bytes else 1


def _cooling(seen: Measurements, cooldown_us: int) -> Nothing | None:
    """Return a decision for nothing if the last change is too recent; None otherwise."""
    if seen.since_change_us >= cooldown_us:
        return None
    ago = seen.since_change_us / 1e6
    return Nothing(f"the layout changed {ago:.0f} s ago; {cooldown_us / 1e6:.0f} s are to pass")


def _check(right: bool, policy: object) -> None:
    if not right:
        raise PipelineError(
            f"a policy cannot be {policy}",
            place="policy",
            remedy=f"use shares between 0 and 1 in ascending order, numbers above 0, and bins of at "
            f"most {MAX_DEPTH} bits",
        )
