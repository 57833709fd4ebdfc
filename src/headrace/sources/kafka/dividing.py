"""How much of each partition a step takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from headrace.sources.kafka.position import PartitionOf


def shares(waiting: Mapping[PartitionOf, int], most: int) -> dict[PartitionOf, int]:
    """Return how many offsets to take of each partition, ``most`` in all.

    Partitions share alike. What those with little leave goes to the others. If there are more
    partitions than offsets to take, those with most take one each.

    Args:
        waiting: how many offsets wait in each partition.
        most: how many may be taken; at least one is.

    >>> few, many = PartitionOf("t", 0), PartitionOf("t", 1)
    >>> shares({few: 2, many: 90}, 10)[many]
    8
    """
    of = [part for part, count in waiting.items() if count > 0]
    counts = np.array([waiting[part] for part in of], dtype=np.int64)
    if not of:
        return {}
    most = max(most, 1)
    if counts.sum() <= most:
        return dict(zip(of, counts.tolist(), strict=True))
    order = np.argsort(counts, kind="stable")
    taken = np.zeros_like(counts)
    left = most
    for place, at in enumerate(order.tolist()):
        taken[at] = min(int(counts[at]), left // (len(order) - place))
        left -= int(taken[at])
    return {part: count for part, count in zip(of, taken.tolist(), strict=True) if count}


class Sizes:
    """What a record of each topic takes in bytes, as far as records were seen."""

    def __init__(self) -> None:
        self._mean: dict[str, float] = {}

    def note(self, topic: str, records: int, size: int) -> None:
        """Note that some records have a size together. Later ones count most."""
        if records:
            mean = size / records
            before = self._mean.get(topic, mean)
            self._mean[topic] = before + (mean - before) / 4

    def unknown(self, topics: Collection[str]) -> list[str]:
        """Return the topics of which no record was seen."""
        return [topic for topic in topics if topic not in self._mean]

    def of(self, topic: str) -> float:
        """Return the mean size of a record of a topic, or a guess."""
        return self._mean.get(topic, _GUESS)


#: The size of a record of which nothing is known.
_GUESS = 200.0


def most_rows(waiting: Mapping[PartitionOf, int], rows: int, size: int, sizes: Sizes) -> int:
    """Return how many offsets a step may take, for limits in records and in bytes."""
    total = sum(waiting.values())
    if not total:
        return 0
    mean = sum(sizes.of(part.topic) * count for part, count in waiting.items()) / total
    return max(1, min(rows, int(size / max(mean, 1.0))))
