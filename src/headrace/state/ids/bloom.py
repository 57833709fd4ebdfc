"""Bloom filters over columns of 64-bit hashes, kept in generations that are dropped as time passes.

A filter is a *split block Bloom filter*, as in Parquet files (apache/parquet-format,
BloomFilter.md; Putze, Sanders, Singler: "Cache-, Hash- and Space-Efficient Bloom Filters"). A hash
chooses one block of eight 32-bit words, and one bit in each word. So a look-up touches one cache
line, and takes a few NumPy instructions for a whole column. docs/dependencies.md explains why this
is not a library's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.eventtime.timestamps import MIN_TIME
from headrace.keyspace.arrays import U64
from headrace.keyspace.hashing import hash_words

U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: Constants of the Parquet specification.
_SALTS = np.array(
    [
        0x47B6137B,
        0x44974D91,
        0x8824AD5B,
        0xA2B7289D,
        0x705495C7,
        0x2DF1424B,
        0x9EFC4947,
        0x5C6BFB31,
    ],
    dtype=np.uint32,
)
_WORDS = len(_SALTS)
#: The number of hashes for each block in a full filter: 32 bits for each hash. The filter then
#: reports fewer than one in 10 000 hashes that were never added.
_PER_BLOCK = 8
_FEWEST = 1_024
#: The number of hashes tested at a time, so that the comparison stays in the CPU's cache.
_CHUNK = 16_384


class BloomFilter:
    """A set of hashes that answers "never added" or "perhaps added".

    Args:
        capacity: the number of hashes that it is made for, rounded up to a power of two.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = 1 << (max(capacity, _FEWEST) - 1).bit_length()
        blocks = self.capacity // _PER_BLOCK
        self.count = 0
        self._words: U32 = np.zeros((blocks, _WORDS), dtype=np.uint32)
        self._shift = np.uint64(64 - (blocks.bit_length() - 1))

    @property
    def nbytes(self) -> int:
        """The memory that it takes, in bytes."""
        return self._words.nbytes

    def add(self, mixed: U64) -> None:
        """Add hashes, each once, that went through :func:`mixed`."""
        if not len(mixed):
            return
        self.count += len(mixed)
        blocks = self._blocks(mixed)
        order = np.argsort(blocks, kind="stable")
        blocks, masks = blocks[order], _masks(mixed[order])
        firsts = np.flatnonzero(np.diff(blocks, prepend=-1))
        self._words[blocks[firsts]] |= np.bitwise_or.reduceat(masks, firsts, axis=0)

    def test(self, mixed: U64) -> Mask:
        """Return for each hash whether it may have been added."""
        found = np.empty(len(mixed), dtype=np.bool_)
        for at in range(0, len(mixed), _CHUNK):
            part = mixed[at : at + _CHUNK]
            masks = _masks(part)
            masks &= ~self._words[self._blocks(part)]  # bits that are missing
            found[at : at + _CHUNK] = ~masks.any(axis=1)
        return found

    def _blocks(self, mixed: U64) -> I64:
        return (mixed >> self._shift).astype(np.int64)


def mixed(hashes: U64) -> U64:
    """Return hashes that are even over all 64 bits.

    A worker's own hashes start with the same bits.
    """
    return hash_words(hashes)


def _masks(mixed: U64) -> U32:
    """Return, for each hash, a mask with one bit in each of eight words."""
    low = mixed.astype(np.uint32)  # the lower half; the upper half chooses the block
    bits = (low[:, None] * _SALTS) >> np.uint32(27)
    masks: U32 = np.uint32(1) << bits
    return masks


class _Generation:
    """A filter, the newest time that was added to it, and the watermark at its creation."""

    def __init__(self, capacity: int, since: int) -> None:
        self.filter = BloomFilter(capacity)
        self.newest = MIN_TIME
        self.since = since


class Generations:
    """A moving window over what was added: the newest filter takes hashes, the oldest is dropped.

    A filter cannot forget, so several are kept. One is closed when it is full, or when time has
    moved on by half of the horizon. It is dropped once its newest hash need not be found any
    longer. At a steady rate there are three or four filters. Memory follows what is remembered: 4
    to 16 bytes for each hash.

    Args:
        horizon: for how long after its time a hash is remembered.
    """

    def __init__(self, horizon: int) -> None:
        self._half = max(1, horizon // 2)
        self._all: list[_Generation] = []
        self._now = MIN_TIME

    @property
    def nbytes(self) -> int:
        """The memory that the filters take, in bytes."""
        return sum(generation.filter.nbytes for generation in self._all)

    def __len__(self) -> int:
        return len(self._all)

    def forget(self, before: int, now: int) -> None:
        """Drop the filters that are no longer needed.

        Args:
            before: hashes of earlier times need not be found any longer.
            now: the current time.
        """
        self._now = now
        self._all = [generation for generation in self._all if generation.newest >= before]

    def add(self, hashes: U64, times: I64) -> None:
        """Add hashes, each with the time from which it is remembered.

        Hashes may be present already.
        """
        if not len(hashes):
            return
        words = mixed(hashes)
        generation = self._open(len(hashes))
        generation.newest = max(generation.newest, int(times.max()))
        generation.filter.add(words[~generation.filter.test(words)])

    def test(self, hashes: U64) -> Mask:
        """Return for each hash whether it may have been added to a filter that is still kept."""
        found = np.zeros(len(hashes), dtype=np.bool_)
        words = mixed(hashes)
        for generation in self._all:
            left = np.flatnonzero(~found)
            found[left] = generation.filter.test(words[left])
        return found

    def _open(self, more: int) -> _Generation:
        """Return a generation that has room for more hashes.

        A new one is started if the last is full or old.
        """
        last = self._all[-1] if self._all else None
        if last is None:
            capacity = more
        elif last.filter.count + more > last.filter.capacity:
            capacity = max(more, 2 * last.filter.capacity)
        elif self._now - last.since > self._half:
            capacity = max(more, last.filter.count)
        else:
            return last
        self._all.append(_Generation(capacity, self._now))
        return self._all[-1]
