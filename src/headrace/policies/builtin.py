"""The policies: from measurements to a decision about the layout, with the reason in words.

A policy carries nothing out: it returns a *decision*, which the driver turns into a command, or only
reports (a dry run). Policies are pure and have no memory: what they must know of the past, such as when the
layout last changed, is in the measurements. None is on by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np

from headrace.errors import PipelineError
from headrace.keyspace.updates import MAX_DEPTH
from headrace.migration.loads import BY_STATE, PRICES, Prices
from headrace.migration.measurements import Measurements
from headrace.migration.splitting import SplitRule, reshape
from headrace.migration.targets import WORTH, Worth, balanced

# -- decisions ------------------------------------------------------------------------------------


class Nothing(msgspec.Struct, frozen=True, tag="nothing"):
    """The layout is to stay as it is."""

    reason: str

    def __str__(self) -> str:
        return f"nothing: {self.reason}"


#: Where nobody says how many there may be.
_MOST_WORKERS = 1_024
_UNKNOWN = Nothing("too little was measured yet")


class Rescale(msgspec.Struct, frozen=True, tag="rescale"):
    """There are to be so many workers; ``prices`` say what they are to share equally."""

    workers: int
    reason: str
    prices: Prices | None = None

    def __str__(self) -> str:
        return f"rescale to {self.workers}: {self.reason}"


class Rebalance(msgspec.Struct, frozen=True, tag="rebalance"):
    """The same workers are to have more equal work; ``prices`` say what counts as work."""

    reason: str
    prices: Prices | None = None

    def __str__(self) -> str:
        return f"rebalance: {self.reason}"


class SplitBins(msgspec.Struct, frozen=True, tag="split"):
    """Bins, as (start, bits), are to become their two children."""

    bins: list[tuple[int, int]]
    reason: str

    def __str__(self) -> str:
        return f"split {len(self.bins)} bins: {self.reason}"


ScalingDecision = Nothing | Rescale | Rebalance | SplitBins


class Policy(Protocol):
    """Says what a layout should become."""

    def decide(self, seen: Measurements) -> ScalingDecision:
        """Return what is wanted now, and why."""


class Together(msgspec.Struct, frozen=True):
    """Several policies; the first that wants a change decides."""

    policies: Sequence[Policy]

    def decide(self, seen: Measurements) -> ScalingDecision:
        """Return the first decision for a change, or why no policy wants one."""
        reasons = []
        for policy in self.policies:
            decided = policy.decide(seen)
            if not isinstance(decided, Nothing):
                return decided
            reasons.append(decided.reason)
        return Nothing("; ".join(reasons) or "there is no policy")


# -- skew -----------------------------------------------------------------------------------------


class Balance(msgspec.Struct, frozen=True):
    """Levels skew: moves bins where that is worth it, and splits a bin that nobody could carry.

    Attributes:
        worth: when moving is worth it.
        heavy: a bin with more than this share of a worker's fair share is split, when skew
            cannot be levelled otherwise.
        deepest: bins of this depth are not split.
        cooldown_us: how long nothing is wanted after a change.
        prices: how bytes, records and CPU count.
    """

    worth: Worth = WORTH
    heavy: float = 0.5
    deepest: int = 32
    cooldown_us: int = 60_000_000
    prices: Prices = PRICES

    def __post_init__(self) -> None:
        _check(self.heavy > 0 and 0 <= self.deepest <= MAX_DEPTH, self)

    def decide(self, seen: Measurements) -> ScalingDecision:
        """Decide to rebalance, to split, or nothing."""
        if not seen.known:
            return _UNKNOWN
        if cooling := _cooling(seen, self.cooldown_us):
            return cooling
        target = balanced(seen.layout, seen.load, worth=self.worth, prices=self.prices)
        if target.layout is not seen.layout:
            return Rebalance(target.reason, self.prices)
        return self._split(seen) or Nothing(target.reason)

    def _split(self, seen: Measurements) -> SplitBins | None:
        """Decide to split the bins that make the heaviest worker too heavy."""
        work = seen.load.work(seen.layout, self.prices)
        sums = np.bincount(seen.layout.owners, work, minlength=seen.workers)
        mean, most = float(work.sum()) / seen.workers, float(sums.max())
        if most < self.worth.gain * mean or most - mean < self.worth.floor_us:
            return None
        rule = SplitRule(min(self.heavy / seen.workers, 1.0), deepest=self.deepest)
        bins = reshape(seen.layout, work, rule).splits.pairs()
        if not bins:
            return None
        share = work.max() / work.sum()
        return SplitBins(
            bins,
            f"worker {sums.argmax()} has {most / mean:.2f} times the mean, and no moves help, since "
            f"the heaviest bin has {share:.0%} of all work",
        )


# -- memory ---------------------------------------------------------------------------------------


class Memory(msgspec.Struct, frozen=True):
    """Keeps the state of each worker below a bound.

    Attributes:
        most_bytes: how much state a worker may have.
        fill: how full workers are to be after a change, as a share of that.
        most_workers: how many there may be.
        deepest: bins of this depth are not split.
        cooldown_us: how long nothing is wanted after a change.
    """

    most_bytes: int
    fill: float = 0.75
    most_workers: int = 1_024
    deepest: int = 32
    cooldown_us: int = 60_000_000

    def __post_init__(self) -> None:
        _check(self.most_bytes > 0 and 0 < self.fill <= 1 and self.most_workers > 0, self)
        _check(0 <= self.deepest <= MAX_DEPTH, self)

    def decide(self, seen: Measurements) -> ScalingDecision:
        """Decide for more workers, a better balance, smaller bins, or nothing."""
        worker, fullest = int(seen.state_bytes.argmax()), int(seen.state_bytes.max())
        if fullest <= self.most_bytes:
            return Nothing(f"no worker has more than {fullest} of {self.most_bytes} bytes of state")
        if cooling := _cooling(seen, self.cooldown_us):
            return cooling
        why = f"worker {worker} has {fullest} bytes of state, of {self.most_bytes} that it may have"
        room = self.most_bytes * self.fill
        large = (seen.load.sizes > room) & (seen.layout.bits < self.deepest)
        if large.any():
            starts, bits = seen.layout.starts[large].tolist(), seen.layout.bits[large].tolist()
            bins = list(zip(starts, bits, strict=True))
            return SplitBins(bins, f"{why}, and {len(bins)} bins alone would fill a worker")
        needed = int(np.ceil(seen.state_bytes.sum() / room))
        if needed <= seen.workers:
            return Rebalance(f"{why}, while all workers together have room", BY_STATE)
        wanted = min(needed, self.most_workers)
        if wanted > seen.workers:
            return Rescale(wanted, f"{why}; all state needs {needed} workers", BY_STATE)
        return Nothing(f"{why}, but there are {seen.workers} workers, the most that there may be")


# -- scaling --------------------------------------------------------------------------------------


class Scaling(msgspec.Struct, frozen=True):
    """As many workers as the input needs, by their true processing rates.

    Source: DS2 (Kalavri et al., OSDI '18): what workers do per second *while they work* tells how
    many are needed, without trial and error; with measured rates it takes few changes to settle. The
    band, the cooldowns and the catching-up are those of Flink's autoscaler.

    While most steps leave input waiting, nobody knows how much more would come in than is read. Workers
    count as busy all the time then, so that each change brings a share more of them, until all is read;
    but where the ones there are have time left, others would not help: something else is too slow.

    Attributes:
        target: how busy workers are to be, as a share of the time.
        low, high: while they are as busy as between these, nothing is wanted.
        catch_up_us: how soon a backlog is to be worked off.
        least_gain: by what share the number of workers must change at least.
        fewest, most: how many workers there may be; at most, by default, as many as can work at once (task
            slots): more would only share their time.
        cooldown_us: how long nothing is wanted after a change.
        shrink_after_us: how long before fewer workers are wanted, after a change; longer, since too
            many cost money and too few cost latency.
        most_bytes: how much state a worker may have after a change; 0 for any.
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
        """Decide for another number of workers, or nothing."""
        rates = seen.true_rates[seen.true_rates > 0]
        if not len(rates):
            return Nothing("how fast workers are is not known: too little was measured yet")
        if cooling := _cooling(seen, self.cooldown_us):
            return cooling
        rate, demand = float(rates.mean()), self._demand(seen)
        busy = demand / (rate * seen.workers)
        why = (
            f"{demand:.0f} records/s to work on keep {seen.workers} workers of {rate:.0f} records/s each "
            f"{busy:.0%} busy, where {self.low:.0%} to {self.high:.0%} are wanted"
        )
        if seen.saturated:
            why += ", and more input is waiting"
            if busy < self.low:
                return Nothing(f"{why}, but not for the workers")
            demand, busy = max(demand, rate * seen.workers), max(busy, 1.0)
        if self.low <= busy <= self.high and self.fewest <= seen.workers <= self._most(seen):
            return Nothing(why)
        return self._rescale(seen, int(np.ceil(demand / (rate * self.target))), why)

    def _demand(self, seen: Measurements) -> float:
        """Return how many records a second are to be worked on, those that wait included."""
        come = seen.arrivals_per_s + seen.backlog * 1e6 / self.catch_up_us
        return come * seen.amplification

    def _rescale(self, seen: Measurements, needed: int, why: str) -> ScalingDecision:
        most = self._most(seen)
        wanted = min(max(needed, self.fewest, self._for_state(seen)), most)
        within = self.fewest <= seen.workers <= most
        if wanted == seen.workers:
            return Nothing(f"{why}, and {wanted} are what there may be")
        if within and abs(wanted - seen.workers) < self.least_gain * seen.workers:
            return Nothing(f"{why}, but {wanted} workers would be too small a change")
        if wanted < seen.workers and (cooling := _cooling(seen, self.shrink_after_us)):
            return cooling
        return Rescale(wanted, why)

    def _most(self, seen: Measurements) -> int:
        """Return how many workers there may be."""
        return self.most or max(seen.places or _MOST_WORKERS, self.fewest)

    def _for_state(self, seen: Measurements) -> int:
        """Return how many workers the state needs."""
        return int(np.ceil(seen.state_bytes.sum() / self.most_bytes)) if self.most_bytes else 1


def _cooling(seen: Measurements, cooldown_us: int) -> Nothing | None:
    """Decide for nothing while the last change is recent."""
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
