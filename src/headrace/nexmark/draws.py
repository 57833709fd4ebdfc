"""Repeatable randomness: numbers and texts that follow from a seed, a field and a position.

A counter-based generator (Philox4x64-10; Salmon et al., "Parallel random numbers: as easy as 1, 2,
3", 2011) gives the 64 bits at any position of any field's sequence without those before it. So a
range of events is the same in whatever parts it is made, and another field does not change the
others.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

I64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Bits = npt.NDArray[np.uint64]

#: Number of 64-bit words for each count of the generator.
_WORDS = 4
_WORD_BYTES = 8
_LETTERS = 26
#: Number of extra symbols that stand for a blank: about one character in fourteen.
_BLANKS = 2


class Draws:
    """Random values for each position of each field.

    Args:
        seed: another seed gives other values.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def bits(self, field: str, first: int, last: int) -> Bits:
        """Return 64 random bits for each position from ``first`` to before ``last``."""
        seed = self._seed & 0xFFFF_FFFF_FFFF_FFFF
        key = np.array(
            [seed, zlib.crc32(field.encode())], dtype=np.uint64
        )  # (from a list NumPy might make floats)
        skipped = first % _WORDS
        generator = np.random.Philox(key=key, counter=[first // _WORDS, 0, 0, 0])
        drawn: Bits = generator.random_raw(skipped + last - first)[skipped:]
        return drawn

    def below(self, bound: Any, field: str, first: int, last: int) -> I64:
        """Return a whole number from 0 to below ``bound`` (one bound, or one for each position)."""
        return scaled(self.bits(field, first, last), bound)

    def letters(self, field: str, first: int, last: int, *, blanks: bool = False) -> Bytes:
        """Return the code of a letter for each position; with ``blanks``, sometimes of a blank."""
        begin = first // _WORD_BYTES
        words = self.bits(field, begin, -(-last // _WORD_BYTES)).astype("<u8", copy=False)
        symbols = _LETTERS + _BLANKS if blanks else _LETTERS
        drawn = _symbols(words, symbols)[first - begin * _WORD_BYTES : last - begin * _WORD_BYTES]
        if blanks:
            drawn[drawn >= ord("a") + _LETTERS] = ord(" ")
        return drawn

    def texts(
        self, field: str, first: int, last: int, *, mean: int, spread: int, blanks: bool = False
    ) -> pa.Array:
        """Return a text for each position, of ``mean`` letters, at most ``spread`` more or less.

        All texts of a field lie in one long sequence of letters. A text begins at ``mean`` times
        its position plus a random offset. So a range of texts is made as a whole.
        """
        begins = np.arange(first, last + 1, dtype=np.int64) * mean
        begins += self.below(spread + 1, f"{field} begins", first, last + 1)
        text = self.letters(field, int(begins[0]), int(begins[-1]), blanks=blanks)
        offsets = (begins - begins[0]).astype(np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), last - first, buffers)


def scaled(bits: Bits, bound: Any) -> I64:
    """Return whole numbers from 0 to below a bound (itself below 2^63), from random bits.

    The upper 53 bits are multiplied as a float. The result is exact to the last bit on every
    machine.
    """
    shares = (bits >> np.uint64(11)).astype(np.int64) * 2.0**-53
    found: I64 = (shares * bound).astype(np.int64)
    return found


def hit(bits: Bits, ratio: int) -> npt.NDArray[np.bool_]:
    """Return whether an event of probability (``ratio`` - 1) / ``ratio`` happens."""
    low = bits & np.uint64(0x7FF)  # (the bits that `scaled` does not use)
    found: npt.NDArray[np.bool_] = low * np.uint64(ratio) >= np.uint64(0x800)
    return found


def _symbols(words: Bits, many: int) -> Bytes:
    """Return one of ``many`` symbols from ``a`` on for each byte. Handles two bytes at a time."""
    pairs = words.view("<u2")
    even = pairs & np.uint16(0x00FF)
    even *= np.uint16(many)
    even >>= np.uint16(8)
    odd = pairs >> np.uint16(8)
    odd *= np.uint16(many)
    odd &= np.uint16(0xFF00)
    even |= odd
    even += np.uint16(ord("a") * 0x0101)
    return even.view(np.uint8)
