"""Groups: sets of computations whose state moves together, each in its own part of the hash space.

A pipeline has one layout, and one prefix tree over the 64-bit hash space. If groups are named, they
are numbered, and the leading bits of a position in that space are the number of its group. A key
lies at its *place*: the number of the group, followed by the leading bits of the key's hash. So a
group has bins of its own, which move, split and merge without touching the state of another group.
Code that deals with bins need not know about groups. (Megaphone §3.3 has a stream of configuration
updates for each operator, or one for several.)

Groups cost the last bits of the hash. Keys whose hashes differ only in these share a place, and are
distinguished by the keys themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import PipelineError
from headrace.keyspace.arrays import U64
from headrace.keyspace.layout import HASH_BITS, Bin, Layout
from headrace.keyspace.planner import contiguous
from headrace.keyspace.ranges import Ranges

F64 = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

#: Largest number of groups. Each doubling costs a bit of the hash.
MAX_GROUPS = 256


class Group(msgspec.Struct, frozen=True):
    """A group's part of the hash space: all places that begin with its number.

    Attributes:
        number: the position of the group among all groups.
        bits: how many bits distinguish it from the others; 0 for a group that is alone.
    """

    number: int = 0
    bits: int = 0

    @property
    def bin(self) -> Bin:
        """The prefix that all bins of the group share."""
        return Bin(self.number << (HASH_BITS - self.bits) if self.bits else 0, self.bits)

    def place(self, hash_: int) -> int:
        """Return the place of a key, given its hash.

        >>> hex(Group(number=2, bits=4).place(0xEFBB2A10102131A4))
        '0x2efbb2a10102131a'
        """
        return self.bin.start | (hash_ >> self.bits)

    def places(self, hashes: U64) -> U64:
        """Return the places of keys, given their hashes; the same array if the group is alone."""
        if not self.bits:
            return hashes
        places: U64 = (hashes >> np.uint64(self.bits)) | np.uint64(self.bin.start)
        return places

    def own(self, ranges: Ranges) -> Ranges:
        """Return the part of some ranges that belongs to the group."""
        return ranges.within(Ranges.of([(self.bin.start, self.bin.end)])) if self.bits else ranges

    def bins_in(self, layout: Layout) -> Mask:
        """Return, for each bin of a layout, whether it can hold keys of the group."""
        if not self.bits:
            return np.ones(len(layout), dtype=np.bool_)
        part = Ranges.of([(self.bin.start, self.bin.end)])
        return part.overlapping(layout.starts, layout.ends)


#: The group of all computations if none are named: the place of a key is its hash.
ALONE = Group()


class Groups:
    """The groups of a pipeline, by name. None are named if all state moves together.

    Args:
        names: the names in the order of their numbers.

    Attributes:
        bits: how many bits distinguish the groups.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = tuple(names)
        self.bits = max(len(self.names) - 1, 0).bit_length()

    def __len__(self) -> int:
        return max(len(self.names), 1)

    def group(self, name: str | None = None) -> Group:
        """Return a group by its name; without a name, the first one.

        Raises:
            PipelineError: for an unknown name.
        """
        if name is None:
            return Group(0, self.bits)
        if name not in self.names:
            known = ", ".join(self.names) or "none: name them with Pipeline(…, groups=[…])"
            raise PipelineError(
                f"the pipeline has no group {name!r}", remedy=f"its groups are: {known}"
            )
        return Group(self.names.index(name), self.bits)

    # -- names of bins ------------------------------------------------------------------------

    def bin(self, text: str) -> Bin:
        """Return a bin by its name: a prefix in a group, a group (all its bins), or a prefix.

        >>> Groups(["orders", "clicks"]).bin("clicks:0110/4") == Bin.named("10110/5")
        True

        Raises:
            PipelineError: for a text that does not name a bin.
        """
        name, in_group, prefix = text.partition(":")
        if not in_group and text not in self.names:
            return Bin.named(text)
        outer = self.group(name).bin
        inner = Bin.named(prefix) if in_group else Bin(0, 0)
        if inner.bits > HASH_BITS - outer.bits:
            raise PipelineError(
                f"{text!r} names no bin",
                remedy=f"a prefix in a group has at most {HASH_BITS - outer.bits} bits",
            )
        return Bin(outer.start | (inner.start >> outer.bits), outer.bits + inner.bits)

    def prefixes(self, bins: str | Bin | Iterable[str | Bin]) -> list[tuple[int, int]]:
        """Return bins, given as such or by name, as goals have them: (first hash, depth) of each.

        Raises:
            PipelineError: for a text that does not name a bin.
        """
        several = [bins] if isinstance(bins, str | Bin) else bins
        found = [self.bin(one) if isinstance(one, str) else one for one in several]
        return [(one.start, one.bits) for one in found]

    def name(self, bin_: Bin) -> str:
        """Return the name of a bin; its plain prefix if it does not belong to a single group.

        >>> Groups(["orders", "clicks"]).name(Bin.named("10110/5"))
        'clicks:0110/4'
        """
        number = bin_.start >> (HASH_BITS - self.bits) if self.bits else 0
        if not self.bits or bin_.bits < self.bits or number >= len(self.names):
            return str(bin_)
        if bin_.bits == self.bits:
            return self.names[number]
        start = (bin_.start << self.bits) & ((1 << HASH_BITS) - 1)
        return f"{self.names[number]}:{Bin(start, bin_.bits - self.bits)}"

    # -- layouts ------------------------------------------------------------------------------

    def layout(self, bins: int, workers: int) -> Layout:
        """Return the layout of a new pipeline: equal bins for each group, over all workers.

        Each group has ``bins`` bins. A part of the space that belongs to no group is one bin.

        Raises:
            PipelineError: when ``bins`` is not a power of two up to 2^20.
        """
        each = contiguous(bins, workers)
        if not self.bits:
            return each
        spare = (1 << self.bits) - len(self)
        bits = np.append(np.tile(each.bits + self.bits, len(self)), [self.bits] * spare)
        return Layout(bits, np.append(np.tile(each.owners, len(self)), [0] * spare), workers)

    def grown(self, layout: Layout, known: int, new: Layout) -> Layout:
        """Return a layout in which groups that were added have their own bins, over all workers.

        Args:
            layout: the present layout.
            known: how many groups there were.
            new: the layout of a new pipeline, with the bins that added groups get.
        """
        for number in range(max(known, 1), len(self)):
            group = Group(number, self.bits)
            there = np.flatnonzero(group.bins_in(layout))
            if layout.bits[there[0]] < self.bits:
                continue  # (its part was merged with that of another group)
            bits = new.bits[group.bins_in(new)]
            owners = contiguous(len(bits), layout.workers).owners
            before, after = there[0], there[-1] + 1
            layout = Layout(
                np.concatenate([layout.bits[:before], bits, layout.bits[after:]]),
                np.concatenate([layout.owners[:before], owners, layout.owners[after:]]),
                layout.workers,
            )
        return layout

    def used(self, layout: Layout) -> Mask:
        """Return, for each bin of a layout, whether it can hold keys of any group."""
        last = Group(len(self) - 1, self.bits).bin.end
        return Ranges.of([(0, last)]).overlapping(layout.starts, layout.ends)

    def expected(self, layout: Layout) -> F64 | None:
        """Return each bin's share of the space, 0 if no group uses it; None if all are in use."""
        if len(self) == 1 << self.bits:
            return None
        return np.where(self.used(layout), np.exp2(-layout.bits.astype(np.float64)), 0.0)


#: The groups of a pipeline that names none.
ALL_IN_ONE = Groups()
