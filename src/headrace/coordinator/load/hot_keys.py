"""Which keys have a large share of the records of a computation, and how sure that is.

Tasks report the busiest keys of a sample (:mod:`headrace.protocol.key_loads`). Here they are added
up over steps, with exponential decay. Two kinds of error are known, and told as bounds:

- Sampling. A share of p in n sampled records has a standard error of the square root of p(1-p)/n.
- What was not reported. A key that a report leaves out had at most as many records as the last of
  those that it names. As in the Space-Saving summary (Metwally et al., ICDT '05), a key that is
  remembered later may have missed that much before.

It is kept in memory, so a new driver starts measuring from nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from headrace.coordinator.load.decay import HALF_LIFE_US
from headrace.ledger.measurements import HotKey
from headrace.protocol.key_loads import KeyLoads

#: At most this many keys of a computation are remembered, and this many of them are named.
MOST_REMEMBERED, MOST_NAMED = 128, 5
#: At most this many keys are named in all: those with the largest shares.
MOST_IN_ALL = 100
#: Keys with a smaller share are not named.
LEAST_SHARE = 0.01
#: Bounds are this many standard errors away: 95 % of intervals hold the true share.
_DEVIATIONS = 1.96


class KeyMeter:
    """Adds up the busiest keys of each computation."""

    def __init__(self, half_life_us: int = HALF_LIFE_US) -> None:
        self._half_life_us = half_life_us
        self._of: dict[str, _Computation] = {}

    def note(self, clock_us: int, found: Iterable[KeyLoads]) -> None:
        """Note the reports of a measured step."""
        by_name: dict[str, list[KeyLoads]] = {}
        for report in found:
            by_name.setdefault(report.computation, []).append(report)
        for name, reports in by_name.items():
            of = self._of.setdefault(name, _Computation(self._half_life_us))
            of.note(clock_us, reports)

    def forget_others(self, computations: Iterable[str]) -> None:
        """Forget computations that are not among these."""
        kept = set(computations)
        self._of = {name: of for name, of in self._of.items() if name in kept}

    def hottest(self) -> list[HotKey]:
        """Return the busiest keys, those with the largest shares first."""
        found = [key for name, of in self._of.items() for key in of.hottest(name)]
        return sorted(found, key=lambda key: -key.share)[:MOST_IN_ALL]


class _Key:
    """A remembered key: its records, and how many of its records may have been missed."""

    __slots__ = ("missed", "parts", "records")

    def __init__(self, parts: list[str], missed: float) -> None:
        self.parts = parts
        self.records = 0.0
        self.missed = missed


class _Computation:
    def __init__(self, half_life_us: int) -> None:
        self._half_life_us = half_life_us
        self._last_us: int | None = None
        self._keys: dict[int, _Key] = {}
        self._records = 0.0  # of all keys
        self._squares = 0.0  # sum of the squares of what each sampled record stands for
        self._missed = 0.0  # most records of any key that is not remembered

    def note(self, clock_us: int, reports: list[KeyLoads]) -> None:
        self._decay(clock_us)
        seen: set[int] = set()
        left = 0.0
        for report in reports:
            weight = report.records / report.sampled
            self._records += report.records
            self._squares += report.sampled * weight**2
            left = max(left, report.most_left * weight)
            for hash_, count, parts in report.counted:
                key = self._keys.setdefault(hash_, _Key(parts, self._missed))
                key.records += count * weight
                seen.add(hash_)
        for hash_, key in self._keys.items():
            if hash_ not in seen:
                key.missed += left
        self._missed += left
        self._evict()

    def hottest(self, name: str) -> list[HotKey]:
        if not self._records:
            return []
        sampled = self._records**2 / self._squares
        ranked = sorted(self._keys.items(), key=lambda pair: -pair[1].records)[:MOST_NAMED]
        found = []
        for hash_, key in ranked:
            share = min(1.0, key.records / self._records)
            most = min(1.0, (key.records + key.missed) / self._records)
            if share >= LEAST_SHARE:
                low, high = _spread(share, sampled)[0], _spread(most, sampled)[1]
                found.append(
                    HotKey(
                        name,
                        key.parts,
                        f"{hash_:016x}",
                        *(round(of, 4) for of in (share, low, high)),
                    )
                )
        return found

    def _decay(self, clock_us: int) -> None:
        passed_us = 0 if self._last_us is None else max(0, clock_us - self._last_us)
        self._last_us = clock_us
        factor = 0.5 ** (passed_us / self._half_life_us)
        self._records *= factor
        self._squares *= factor**2
        self._missed *= factor
        for key in self._keys.values():
            key.records *= factor
            key.missed *= factor

    def _evict(self) -> None:
        """Forget the keys with the fewest records. What they had may be missed later."""
        if len(self._keys) <= MOST_REMEMBERED:
            return
        ranked = sorted(self._keys, key=lambda hash_: -self._keys[hash_].records)
        for hash_ in ranked[MOST_REMEMBERED:]:
            key = self._keys.pop(hash_)
            self._missed = max(self._missed, key.records + key.missed)


def _spread(share: float, sampled: float) -> tuple[float, float]:
    """Return the bounds of a share by Wilson's interval, which is right for small samples, too."""
    z2 = _DEVIATIONS**2
    middle = (share + z2 / (2 * sampled)) / (1 + z2 / sampled)
    reach = (
        _DEVIATIONS
        / (1 + z2 / sampled)
        * math.sqrt(share * (1 - share) / sampled + z2 / (4 * sampled**2))
    )
    return max(0.0, middle - reach), min(1.0, middle + reach)
