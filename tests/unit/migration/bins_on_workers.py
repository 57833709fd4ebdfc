"""What migrations act upon, as simple as can be: a dictionary from bins to workers. And random layouts."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np

from headrace.keyspace.layout import Layout
from headrace.keyspace.updates import Update

Prefix = tuple[int, int]


class World:
    """Bins and their workers, changed by configuration updates and by nothing else.

    It refuses what cannot be: a split of a bin that is not there, a move to a worker that is not
    there or has the bin already, a merge of bins that two workers have.
    """

    def __init__(self, layout: Layout) -> None:
        self.owner = owners(layout)
        self.workers = layout.workers
        self.moved: Counter[Prefix] = Counter()

    def apply(self, update: Update) -> None:
        self.workers = max(self.workers, update.workers)
        for start, bits in update.splits:
            worker = self.owner.pop((start, bits))
            for child in children(start, bits):
                self.owner[child] = worker
        for start, bits, count, worker in update.moves:
            for nth in range(count):
                self._move((start + nth * (1 << (64 - bits)), bits), worker)
        for start, bits in update.merges:
            (one,) = {self.owner.pop(child) for child in children(start, bits)}
            self.owner[start, bits] = one
        if update.workers:
            self.workers = update.workers
        assert all(worker < self.workers for worker in self.owner.values())

    def _move(self, bin_: Prefix, worker: int) -> None:
        assert 0 <= worker < self.workers
        assert self.owner[bin_] != worker
        self.owner[bin_] = worker
        self.moved[bin_] += 1

    def layout(self) -> Layout:
        bins = sorted(self.owner)
        return Layout([bits for _, bits in bins], [self.owner[b] for b in bins], self.workers)


def owners(layout: Layout) -> dict[Prefix, int]:
    columns = (layout.starts.tolist(), layout.bits.tolist(), layout.owners.tolist())
    return {(start, bits): owner for start, bits, owner in zip(*columns, strict=True)}


def children(start: int, bits: int) -> list[Prefix]:
    return [(start, bits + 1), (start + (1 << (64 - bits - 1)), bits + 1)]


def random_layout(random: Random, *, splits: int = 12, workers: int = 5) -> Layout:
    """A layout of unequal bins: leaves of a random prefix tree, with random owners."""
    bits = [0]
    for _ in range(random.randint(0, splits)):
        at = random.randrange(len(bits))
        bits[at : at + 1] = [bits[at] + 1, bits[at] + 1]
    count = random.randint(1, workers)
    return Layout(bits, [random.randrange(count) for _ in bits], count)


def samples(*layouts_: Layout) -> np.ndarray:
    """Hashes that tell layouts apart: the first and the last of each bin of each."""
    starts = np.unique(np.concatenate([layout.starts for layout in layouts_]))
    return np.concatenate([starts, starts - np.uint64(1)])
