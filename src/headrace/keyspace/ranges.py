"""Sets of hashes as ranges: what belongs to some bins, to a worker, to a slice. Vectorised."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

MAX_HASH = 2**64 - 1
_ONE = np.uint64(1)


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

    def pairs(self) -> list[tuple[int, int]]:
        """Return (first, last) of each range."""
        return list(zip(self.firsts.tolist(), self.lasts.tolist(), strict=True))

    def contain(self, hashes: U64) -> Mask:
        """Say for each hash whether it is in one of the ranges."""
        if not len(self):
            return np.zeros(len(hashes), dtype=np.bool_)
        at = np.searchsorted(self.firsts, hashes, side="right") - 1
        inside: Mask = (at >= 0) & (hashes <= self.lasts[at])
        return inside

    def overlapping(self, firsts: U64, lasts: U64) -> Mask:
        """Say for each of some other ranges whether it has a hash in common with these."""
        if not len(self):
            return np.zeros(len(firsts), dtype=np.bool_)
        at = np.searchsorted(self.lasts, firsts, side="left")
        found: Mask = (at < len(self)) & (self.firsts[np.minimum(at, len(self) - 1)] <= lasts)
        return found

    def within(self, other: Ranges) -> Ranges:
        """Return what is in both."""
        if not len(self) or not len(other):
            return Ranges(self.firsts[:0], self.lasts[:0])
        pieces = self.cut_at(other.firsts).cut_at(other.lasts + _ONE)
        inside = other.contain(pieces.firsts)
        return Ranges(pieces.firsts[inside], pieces.lasts[inside])

    def without(self, other: Ranges) -> Ranges:
        """Return what is in these and not in the others."""
        if not len(self) or not len(other):
            return self
        pieces = self.cut_at(other.firsts).cut_at(other.lasts + _ONE)
        return pieces.where(~other.contain(pieces.firsts))

    def plus(self, other: Ranges) -> Ranges:
        """Return what is in these or in the others, in as few ranges as there can be."""
        firsts = np.concatenate([self.firsts, other.firsts])
        order = np.argsort(firsts, kind="stable")
        firsts, lasts = firsts[order], np.concatenate([self.lasts, other.lasts])[order]
        if not len(firsts):
            return self
        reach = np.maximum.accumulate(lasts)
        apart = (firsts[1:] > reach[:-1]) & (firsts[1:] - reach[:-1] != _ONE)
        return Ranges(firsts[np.append(True, apart)], reach[np.append(apart, True)])

    def cut_at(self, edges: U64) -> Ranges:
        """Return the same hashes in ranges that begin anew at each of some hashes."""
        inner = edges[self.contain(edges)]
        firsts = np.unique(np.concatenate([self.firsts, inner]))
        at = np.searchsorted(self.firsts, firsts, side="right") - 1
        lasts = self.lasts[at]
        within_one = at[1:] == at[:-1]
        lasts[:-1][within_one] = firsts[1:][within_one] - _ONE
        return Ranges(firsts, lasts)

    def where(self, chosen: Mask) -> Ranges:
        """Return some of the ranges, neighbours joined."""
        return Ranges(self.firsts[chosen], self.lasts[chosen]).joined()

    def joined(self) -> Ranges:
        """Return the same hashes in as few ranges as there can be."""
        if len(self) < 2:
            return self
        apart = self.firsts[1:] != self.lasts[:-1] + _ONE
        begins, ends = np.append(True, apart), np.append(apart, True)
        return Ranges(self.firsts[begins], self.lasts[ends])
