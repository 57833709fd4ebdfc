"""Configuration updates: changes of a layout that take effect at one step, as data.

Megaphone §3.3: a configuration update is (time, bin, worker), and takes effect at exactly its time.
Here one update is everything that takes effect at one step, which is a *round* of a migration. Its
parts take effect in this order: more workers, splits, moves, merges, fewer workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.errors import PipelineError
from headrace.keyspace.layout import HASH_BITS, Bin, Layout, check_bin
from headrace.keyspace.ranges import MAX_HASH
from headrace.keyspace.refinement import refinement
from headrace.storage.bounds import Bins, Bits, StepNumber, Whole, WorkerNumber, Workers

#: Greatest depth to which a bin can be split, in bits.
MAX_DEPTH = 48


class Update(msgspec.Struct, frozen=True, array_like=True):
    """The changes at one step. Bins are named by prefix: (first hash, depth in bits).

    Attributes:
        step: the first step with the changes.
        workers: how many workers there are then; 0 for as many as before.
        splits: bins that become their two children. These may be split in turn.
        moves: (first hash, depth, count, worker): ``count`` neighbouring bins of that depth go to
            the worker.
        merges: bins whose two children become one. The children must have one owner by then. Such a
            bin may be merged with its sibling in turn.
    """

    step: StepNumber
    workers: Workers = 0
    splits: list[tuple[int, Bits]] = []
    moves: list[tuple[int, Bits, Bins, WorkerNumber]] = []
    merges: list[tuple[int, Bits]] = []

    def __post_init__(self) -> None:
        """Check that the update names bins.

        Raises:
            PipelineError: when something that it names is not a bin.
        """
        for start, bits in self.splits:
            check_bin(start, bits)
        for start, bits in self.merges:
            check_bin(start, bits)
            check_bin(start, bits + 1)  # its first child
        for start, bits, _, _ in self.moves:
            check_bin(start, bits)


class Relocated(msgspec.Struct, frozen=True, array_like=True):
    """The hashes that changed their owner at a step.

    Attributes:
        version: how many live changes of the layout there were by then, including this one.
        step: the first step with the new owners.
        moves: (first hash, last hash, worker before, worker after), ascending.
    """

    version: Whole
    step: StepNumber
    moves: list[tuple[int, int, WorkerNumber, WorkerNumber]]

    def __post_init__(self) -> None:
        """Check that the moves name ranges of hashes.

        Raises:
            PipelineError: when one does not.
        """
        if not all(0 <= first <= last <= MAX_HASH for first, last, _, _ in self.moves):
            raise PipelineError(
                "a change of owners names no range of hashes",
                remedy="restore the manifests from one copy of the storage",
            )


def updated(layout: Layout, update: Update) -> Layout:
    """Return a layout after an update.

    Raises:
        PipelineError: when the update does not fit the layout. It names a bin or a worker that does
            not exist, splits too deeply, merges bins that are split further or have two owners, or
            removes a worker that still owns a bin.
    """
    workers = max(layout.workers, update.workers)
    layout = Layout(layout.bits, layout.owners, workers)
    for level in _by_depth(update.splits):
        layout = _split(layout, level)
    if update.moves:
        layout = _moved(layout, update.moves)
    for level in reversed(_by_depth(update.merges)):
        layout = _merged(layout, level)
    if 0 < update.workers < workers:
        staying = layout.owners < update.workers
        if not staying.all():
            at = int(np.flatnonzero(~staying)[0])
            raise _unfit(f"worker {layout.owners[at]} is to go, and still owns {layout.bin(at)}")
        layout = Layout(layout.bits, layout.owners, update.workers)
    return layout


def relocated(before: Layout, after: Layout) -> list[tuple[int, int, int, int]]:
    """Return the hashes whose owner differs: (first, last, worker before, worker after), ascending.

    Neighbouring hashes with the same owners are joined, whatever bins they are in.
    """
    common = refinement(before, after)
    edges, was, now = common.starts, before.owners[common.before], after.owners[common.after]
    begins = np.flatnonzero((np.diff(was, prepend=-1) != 0) | (np.diff(now, prepend=-1) != 0))
    firsts = edges[begins]
    lasts = np.append(firsts[1:] - np.uint64(1), np.uint64(MAX_HASH))
    moved = was[begins] != now[begins]
    columns = (firsts[moved], lasts[moved], was[begins][moved], now[begins][moved])
    return list(zip(*(column.tolist() for column in columns), strict=True))


def runs_of(moves: Iterable[tuple[Bin, int]]) -> list[tuple[int, int, int, int]]:
    """Return moves of single bins (ascending) as an update has them, with similar ones joined."""
    found: list[tuple[int, int, int, int]] = []
    for bin_, worker in moves:
        if found:
            start, bits, count, to = found[-1]
            if (
                bits == bin_.bits
                and to == worker
                and bin_.start == start + (count << (HASH_BITS - bits))
            ):
                found[-1] = (start, bits, count + 1, to)
                continue
        found.append((bin_.start, bin_.bits, 1, worker))
    return found


def _by_depth(bins: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Return bins grouped by depth, the shallowest first."""
    if len({bits for _, bits in bins}) < 2:
        return [list(bins)] if bins else []
    levels: dict[int, list[tuple[int, int]]] = {}
    for bin_ in bins:
        levels.setdefault(bin_[1], []).append(bin_)
    return [levels[bits] for bits in sorted(levels)]


def _positions(layout: Layout, bins: Sequence[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """Return the positions of bins in hash order.

    Raises:
        PipelineError: when one is not a bin of the layout.
    """
    starts = np.array([start for start, _ in bins], dtype=np.uint64)
    bits = np.array([depth for _, depth in bins], dtype=np.uint8)
    at = layout.bins_of(starts)
    wrong = (layout.starts[at] != starts) | (layout.bits[at] != bits)
    if wrong.any():
        raise _unfit(f"there is no bin {Bin(*bins[int(np.flatnonzero(wrong)[0])])}")
    return at


def _split(layout: Layout, bins: Sequence[tuple[int, int]]) -> Layout:
    at = np.unique(_positions(layout, bins))
    if (layout.bits[at] >= MAX_DEPTH).any():
        raise _unfit(f"a bin cannot have more than {MAX_DEPTH} bits")
    times = np.ones(len(layout), dtype=np.int64)
    times[at] = 2
    bits = layout.bits.copy()
    bits[at] += 1
    return Layout(np.repeat(bits, times), np.repeat(layout.owners, times), layout.workers)


def _moved(layout: Layout, moves: Sequence[tuple[int, int, int, int]]) -> Layout:
    owners = layout.owners.copy()
    first = _positions(layout, [(start, bits) for start, bits, _, _ in moves])
    for at, (start, bits, count, worker) in zip(first.tolist(), moves, strict=True):
        if not 0 <= worker < layout.workers:
            raise _unfit(f"there is no worker {worker}; there are {layout.workers}")
        if count < 1 or (layout.bits[at : at + count] != bits).any() or at + count > len(layout):
            raise _unfit(f"there are no {count} bins of {bits} bits from {Bin(start, bits)} on")
        owners[at : at + count] = worker
    return Layout(layout.bits, owners, layout.workers)


def _merged(layout: Layout, parents: Sequence[tuple[int, int]]) -> Layout:
    parents = sorted(set(parents))
    first = _positions(layout, [(start, bits + 1) for start, bits in parents])
    for at, (start, bits) in zip(first.tolist(), parents, strict=True):
        parent = Bin(start, bits)
        if layout.bits[at + 1] != bits + 1:
            raise _unfit(f"{parent} cannot be merged: one of its children is split further")
        if layout.owners[at] != layout.owners[at + 1]:
            raise _unfit(f"{parent} cannot be merged: its children have two owners")
    depths = layout.bits.copy()
    depths[first] -= 1
    keep = np.ones(len(layout), dtype=np.bool_)
    keep[first + 1] = False
    return Layout(depths[keep], layout.owners[keep], layout.workers)


def _unfit(what: str) -> PipelineError:
    return PipelineError(
        f"this configuration update does not fit the layout: {what}",
        remedy="see the layout in force: headrace layout, or the plan of the migration",
    )
