"""Sets of hashes as ranges: the hashes of some bins, of a worker, of a slice. Vectorised."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from headrace.keyspace.arrays import U64
from headrace.keyspace.spans import positions

Mask = npt.NDArray[np.bool_]

MAX_HASH = 2**64 - 1
_ONE = np.uint64(1)
_WIRE = np.dtype("<u8")


class Ranges:
    """Disjoint ranges of hashes, ascending.

    Args:
        firsts: the lowest hash of each range.
        lasts: the highest hash of each range (inclusive).
    """

    def __init__(self, firsts: U64, lasts: U64) -> None:
        self.firsts = firsts
        self.lasts = lasts

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, int]]) -> Ranges:
        """Return the ranges of (first, last) pairs, which must be ascending and disjoint."""
        found = list(pairs)
        return cls(
            np.array([first for first, _ in found], dtype=np.uint64),
            np.array([last for _, last in found], dtype=np.uint64),
        )

    @classmethod
    def everything(cls) -> Ranges:
        """Return the whole hash space."""
        return cls.of([(0, MAX_HASH)])

    def __len__(self) -> int:
        return len(self.firsts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranges):
            return NotImplemented
        return np.array_equal(self.firsts, other.firsts) and np.array_equal(self.lasts, other.lasts)

    __hash__ = None  # type: ignore[assignment]

    def pairs(self) -> list[tuple[int, int]]:
        """Return (first, last) of each range."""
        return list(zip(self.firsts.tolist(), self.lasts.tolist(), strict=True))

    def to_wire(self) -> bytes:
        """Return the ranges as bytes. However many there are, they are read without a loop."""
        return np.concatenate([self.firsts, self.lasts]).astype(_WIRE).tobytes()

    @classmethod
    def from_wire(cls, wire: bytes) -> Ranges:
        """Return the ranges that were written."""
        firsts, lasts = np.frombuffer(wire, dtype=_WIRE).astype(np.uint64).reshape(2, -1)
        return cls(firsts, lasts)

    def contain(self, hashes: U64) -> Mask:
        """Return, for each hash, whether it is in one of the ranges."""
        if not len(self):
            return np.zeros(len(hashes), dtype=np.bool_)
        at = np.searchsorted(self.firsts, hashes, side="right") - 1
        inside: Mask = (at >= 0) & (hashes <= self.lasts[at])
        return inside

    def overlapping(self, firsts: U64, lasts: U64) -> Mask:
        """Return, for each of some other ranges, whether it has a hash in common with these."""
        if not len(self):
            return np.zeros(len(firsts), dtype=np.bool_)
        at = np.searchsorted(self.lasts, firsts, side="left")
        found: Mask = (at < len(self)) & (self.firsts[np.minimum(at, len(self) - 1)] <= lasts)
        return found

    def within(self, other: Ranges) -> Ranges:
        """Return the hashes in both, as a range for each pair that has hashes in common."""
        if not len(self) or not len(other):
            return Ranges(self.firsts[:0], self.lasts[:0])
        begins = np.searchsorted(other.lasts, self.firsts, side="left")
        ends = np.searchsorted(other.firsts, self.lasts, side="right")
        counts = ends - begins  # (never negative: ranges are disjoint)
        own = np.repeat(np.arange(len(self)), counts)
        theirs = positions(begins, counts)
        return Ranges(
            np.maximum(self.firsts[own], other.firsts[theirs]),
            np.minimum(self.lasts[own], other.lasts[theirs]),
        )

    def without(self, other: Ranges) -> Ranges:
        """Return the hashes that are in these ranges and not in the others."""
        if not len(self) or not len(other):
            return self
        return self.within(other.complement()).joined()

    def complement(self) -> Ranges:
        """Return all other hashes."""
        if not len(self):
            return Ranges.everything()
        firsts = np.concatenate([np.zeros(1, np.uint64), self.lasts + _ONE])  # (0 again at the end)
        lasts = np.concatenate([self.firsts - _ONE, np.full(1, MAX_HASH, np.uint64)])
        there = np.concatenate([self.firsts, np.zeros(1, np.uint64)]) != firsts
        return Ranges(firsts[there], lasts[there])

    def plus(self, other: Ranges) -> Ranges:
        """Return the hashes that are in these ranges or in the others, in the fewest ranges."""
        firsts = np.concatenate([self.firsts, other.firsts])
        order = np.argsort(firsts, kind="stable")
        firsts, lasts = firsts[order], np.concatenate([self.lasts, other.lasts])[order]
        if not len(firsts):
            return self
        reach = np.maximum.accumulate(lasts)
        apart = (firsts[1:] > reach[:-1]) & (firsts[1:] - reach[:-1] != _ONE)
        return Ranges(firsts[np.append(True, apart)], reach[np.append(apart, True)])

    def cut_at(self, edges: U64) -> Ranges:
        """Return the same hashes, in ranges that are also cut before each of some hashes."""
        firsts = np.concatenate([self.firsts, edges[self.contain(edges)]])
        firsts.sort(kind="stable")  # (a stable sort profits from sorted parts)
        firsts = firsts[np.append(True, firsts[1:] != firsts[:-1])] if len(firsts) else firsts
        at = np.searchsorted(self.firsts, firsts, side="right") - 1
        lasts = self.lasts[at]
        within_one = at[1:] == at[:-1]
        lasts[:-1][within_one] = firsts[1:][within_one] - _ONE
        return Ranges(firsts, lasts)

    def where(self, chosen: Mask) -> Ranges:
        """Return some of the ranges, with neighbours joined."""
        return Ranges(self.firsts[chosen], self.lasts[chosen]).joined()

    def joined(self) -> Ranges:
        """Return the same hashes in the fewest ranges."""
        if len(self) < 2:
            return self
        apart = self.firsts[1:] != self.lasts[:-1] + _ONE
        begins, ends = np.append(True, apart), np.append(apart, True)
        return Ranges(self.firsts[begins], self.lasts[ends])
