"""Bins and layouts: which worker owns which part of the hash space.

A *bin* is all keys whose hash starts with the same bits. It is named by that prefix (Megaphone
§4.2: "the most significant bits of the hash"). A *layout* gives each bin a worker. Bins need not
be of one size: the bins of a layout are the leaves of a prefix tree. So a leaf can be split in two,
and two siblings can be merged, without touching any other bin.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from headrace.errors import PipelineError, ensure
from headrace.keyspace.ranges import MAX_HASH, Ranges
from headrace.storage.bounds import MOST_BINS, MOST_WORKERS, Bins, Bits, WorkerNumber, Workers

HASH_BITS = 64
_BIN_NAME = re.compile(r"([01]{1,64})(?:/(0|[1-9][0-9]?))?")
_SHOWN = 80
#: Largest number of bins that a layout can start with, as a power of two.
MAX_BIN_BITS = 20


class Bin(NamedTuple):
    """A prefix of the hash space.

    Attributes:
        start: the lowest hash in the bin.
        bits: how many leading bits its hashes share.
    """

    start: int
    bits: int

    @classmethod
    def named(cls, text: str) -> Bin:
        """Return the bin with a name, as ``str`` gives it.

        >>> Bin.named("0110/4") == Bin(0b0110 << 60, 4)
        True

        Raises:
            PipelineError: for a text that does not name a bin.
        """
        found = _BIN_NAME.fullmatch(text)
        prefix, depth = found.groups() if found is not None else ("", None)
        bits = len(prefix) if depth is None else int(depth)
        if found is None or len(prefix) != max(bits, 1) or (not bits and prefix != "0"):
            raise PipelineError(
                f"{text[:_SHOWN]!r} names no bin",
                remedy='give its prefix and how long that is: "0110/4"; several bins one by one',
            )
        return cls(int(prefix, 2) << (HASH_BITS - bits) if bits else 0, bits)

    @property
    def end(self) -> int:
        """The highest hash in the bin (inclusive)."""
        return self.start + (1 << (HASH_BITS - self.bits)) - 1

    def children(self) -> tuple[Bin, Bin]:
        """Return the two halves of this bin."""
        half = 1 << (HASH_BITS - self.bits - 1)
        return Bin(self.start, self.bits + 1), Bin(self.start + half, self.bits + 1)

    def __str__(self) -> str:
        prefix = self.start >> (HASH_BITS - self.bits) if self.bits else 0
        return f"{prefix:0{max(self.bits, 1)}b}/{self.bits}"


def check_bin(start: int, bits: int) -> None:
    """Check that a first hash and a depth name a bin.

    Raises:
        PipelineError: when they do not.
    """
    if not (0 <= bits <= HASH_BITS and 0 <= start <= MAX_HASH) or start % (1 << (HASH_BITS - bits)):
        raise PipelineError(
            f"({start}, {bits}) is not a bin",
            remedy="give its first hash, and how many bits are fixed",
        )


#: Most runs with which a layout is written. One with more is written as columns.
_MOST_RUNS = 4_096
_OWNER = np.dtype("<u2")


class LayoutWire(msgspec.Struct, frozen=True, array_like=True):
    """A layout as it is written. Equal layouts are written alike.

    Attributes:
        workers: how many workers there are.
        runs: bins of equal depth and owner, in hash order: (depth in bits, how many bins, owner).
        columns: used instead of very many runs: the depth of each bin as one byte, then the owner
            of each as two bytes, the lower one first. Each task decodes the plan, and decoding 2^16
            runs took a task 10 to 20 ms.
    """

    workers: Workers
    runs: list[tuple[Bits, Bins, WorkerNumber]]
    columns: bytes = b""


class Layout:
    """Bins and their owners. Immutable, and valid from a given step on.

    Args:
        bits: the depth of each bin, in hash order. Bins must cover the hash space exactly.
        owners: the worker of each bin.
        workers: how many workers there are; a worker may own nothing.
    """

    def __init__(self, bits: npt.ArrayLike, owners: npt.ArrayLike, workers: int) -> None:
        self.bits = np.asarray(bits, dtype=np.uint8)
        self.owners = np.asarray(owners, dtype=np.int32)
        self.workers = workers
        ensure(len(self.bits) == len(self.owners) > 0, "a layout needs one owner a bin")
        ensure(
            bool((self.owners >= 0).all() and (self.owners < workers).all()),
            "a bin of the layout has an owner that is not a worker",
        )
        self.starts = _starts_of(self.bits)
        self._depth = int(self.bits[0]) if (self.bits == self.bits[0]).all() else None
        cut = np.flatnonzero(np.diff(self.owners, prepend=-1))
        self._cut_starts = self.starts[cut]
        self._cut_owners = self.owners[cut]

    @classmethod
    def uniform(cls, bins: int, owners: npt.ArrayLike, workers: int) -> Layout:
        """Return a layout of ``bins`` equal bins.

        Raises:
            PipelineError: when ``bins`` is not a power of two up to 2^20.
        """
        bits = bins.bit_length() - 1
        if bins < 1 or bins != 1 << bits or bits > MAX_BIN_BITS:
            raise PipelineError(
                f"{bins} is not a number of bins",
                remedy=f"use a power of two from 1 to {1 << MAX_BIN_BITS}",
            )
        return cls(np.full(bins, bits), owners, workers)

    def __len__(self) -> int:
        return len(self.bits)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.to_wire() == other.to_wire()

    def __hash__(self) -> int:
        return hash(self.digest)

    def bin(self, index: int) -> Bin:
        """Return the bin at a position in hash order."""
        return Bin(int(self.starts[index]), int(self.bits[index]))

    def bins_of(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return the position of each hash's bin. Vectorised: one binary search per hash."""
        if self._depth == 0:
            return np.zeros(len(hashes), dtype=np.int64)
        if self._depth is not None:
            return (hashes >> np.uint64(HASH_BITS - self._depth)).astype(np.int64)
        return np.searchsorted(self.starts, hashes, side="right") - 1

    def first_rows_of_bins(
        self, hashes: npt.NDArray[np.uint64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the first row of each bin that has rows, and the bins' positions, ascending.

        Args:
            hashes: the hash of each row, ascending. Where they are many, bins look for their rows,
                and not each row for its bin.
        """
        if len(hashes) < len(self):
            bins = self.bins_of(hashes)
            first = np.flatnonzero(np.diff(bins, prepend=-1))
            return first, bins[first]
        first = np.searchsorted(hashes, self.starts)
        held = np.flatnonzero(np.append(first[1:], len(hashes)) > first)
        return first[held], held

    def starts_of(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return the first hash of each hash's bin. It names a bin until it is split or merged."""
        if self._depth is not None and self._depth > 0:
            shift = np.uint64(HASH_BITS - self._depth)
            return hashes >> shift << shift
        return self.starts[self.bins_of(hashes)]

    @cached_property
    def ends(self) -> npt.NDArray[np.uint64]:
        """The last hash of each bin."""
        ends: npt.NDArray[np.uint64] = np.append(self.starts[1:], np.uint64(0)) - np.uint64(1)
        return ends  # (the last one wraps)

    def workers_of(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
        """Return the worker of each hash. Searches only among the *changes* of owner."""
        if len(self._cut_starts) == 1:
            return np.full(len(hashes), self._cut_owners[0], dtype=np.int32)
        at = np.searchsorted(self._cut_starts, hashes, side="right") - 1
        return self._cut_owners[at]

    def ranges_of(self, worker: int) -> Ranges:
        """Return the hashes that a worker owns."""
        lasts = np.append(self._cut_starts[1:], np.uint64(0)) - np.uint64(1)  # wraps at the end
        own = self._cut_owners == worker
        return Ranges(self._cut_starts[own], lasts[own])

    def ranges_of_bins(self, bins: npt.NDArray[np.int64]) -> Ranges:
        """Return the hashes of some bins (positions, ascending), with neighbours joined."""
        after = bins + 1
        starts = np.where(after < len(self), self.starts[after % len(self)], np.uint64(0))
        return Ranges(self.starts[bins], starts - np.uint64(1)).joined()

    @cached_property
    def digest(self) -> str:
        """A name that identifies exactly this layout."""
        return xxhash.xxh3_64_hexdigest(msgspec.msgpack.encode(self.to_wire()))

    def to_wire(self) -> LayoutWire:
        """Return the layout as it is written: as runs of similar bins, or as columns."""
        begins = self._begins_of_runs()
        if len(begins) > _MOST_RUNS:
            columns = self.bits.tobytes() + self.owners.astype(_OWNER).tobytes()
            return LayoutWire(self.workers, [], columns)
        return LayoutWire(self.workers, self._runs_from(begins))

    def runs(self) -> list[tuple[int, int, int]]:
        """Return the runs of similar bins, in hash order: (depth in bits, how many bins, owner)."""
        return self._runs_from(self._begins_of_runs())

    def _begins_of_runs(self) -> npt.NDArray[np.int64]:
        deeper = np.diff(self.bits.astype(np.int16), prepend=-1) != 0
        return np.flatnonzero(deeper | (np.diff(self.owners, prepend=-1) != 0))

    def _runs_from(self, begins: npt.NDArray[np.int64]) -> list[tuple[int, int, int]]:
        counts = np.diff(begins, append=len(self.bits))
        columns = (self.bits[begins], counts, self.owners[begins])
        return list(zip(*(column.tolist() for column in columns), strict=True))

    @classmethod
    def from_wire(cls, wire: LayoutWire) -> Layout:
        """Return the layout that was written.

        Raises:
            PipelineError: for one that cannot have been written. No memory is taken for it.
        """
        _check_wire(wire)
        if wire.columns:
            bins = len(wire.columns) // (1 + _OWNER.itemsize)
            owners_of = np.frombuffer(wire.columns, dtype=_OWNER, offset=bins)
            return cls(np.frombuffer(wire.columns, np.uint8, bins), owners_of, wire.workers)
        depths, counts, owners = (np.array(column) for column in zip(*wire.runs, strict=True))
        bits, bin_owners = np.repeat(depths, counts), np.repeat(owners, counts)
        return cls(bits, bin_owners, wire.workers)


def _check_wire(wire: LayoutWire) -> None:
    """Check that what was written is of a size that a layout can have."""
    if wire.columns:
        bins, left = divmod(len(wire.columns), 1 + _OWNER.itemsize)
        good = not left and not wire.runs
    else:
        bins = sum(count for _, count, _ in wire.runs)
        good = all(count > 0 for _, count, _ in wire.runs)
    if not good or not 0 < bins <= MOST_BINS or not 0 < wire.workers <= MOST_WORKERS:
        raise PipelineError(
            f"a layout of {bins} bins and {wire.workers} workers is none",
            remedy=f"use at most {MOST_BINS:,} bins and {MOST_WORKERS:,} workers",
        )


def _starts_of(bits: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Return the first hash of each bin, and check that the bins cover the space exactly."""
    if len(bits) == 1:
        ensure(int(bits[0]) == 0, "a single bin must be the whole hash space")
        return np.zeros(1, dtype=np.uint64)
    ensure(bool((bits <= HASH_BITS).all()), "a bin has more bits than a hash")
    ensure(bool((bits > 0).all()), "the bin without a prefix must be alone")
    widths = np.uint64(1) << (np.uint64(HASH_BITS) - bits.astype(np.uint64))
    ends = np.cumsum(widths, dtype=np.uint64)
    starts = np.concatenate([np.zeros(1, dtype=np.uint64), ends[:-1]])
    aligned = not (starts & (widths - np.uint64(1))).any()
    total = sum(int(width) for width in widths.tolist()) if len(bits) < 4096 else None
    covers = total == 2**HASH_BITS if total is not None else int(ends[-1]) == 0
    covers = covers and bool((starts[1:] > starts[:-1]).all())
    ensure(aligned and covers, "the bins of a layout must cover the hash space, each on its prefix")
    return starts
