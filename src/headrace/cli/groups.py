"""The layout group by group, as ``headrace layout`` shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from headrace.keyspace.groups import Groups
from headrace.keyspace.layout import Layout


def group_facts(
    layout: Layout, groups: Groups, sizes: Sequence[int] | None
) -> list[dict[str, Any]]:
    """Return which workers own what of each group; nothing if the pipeline names no groups.

    Args:
        layout: bins and owners.
        groups: the groups of the pipeline.
        sizes: bytes of state of each bin, if they are known.
    """
    found = []
    for name in groups.names:
        at = np.flatnonzero(groups.group(name).bins_in(layout))
        owners, width = layout.owners[at], np.exp2(-layout.bits[at].astype(np.float64))
        share = np.bincount(owners, width, minlength=layout.workers) / width.sum()
        nbytes = (
            None if sizes is None else np.bincount(owners, np.asarray(sizes)[at], layout.workers)
        )
        bins = np.bincount(owners, minlength=layout.workers)
        workers = [
            {
                "worker": worker,
                "bins": int(bins[worker]),
                "share": float(share[worker]),
                "bytes": None if nbytes is None else int(nbytes[worker]),
            }
            for worker in np.flatnonzero(bins).tolist()
        ]
        found.append({"group": name, "bins": len(at), "workers": workers})
    return found


def group_lines(facts: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the same as text, one line for each group."""
    for of in facts:
        holders = ", ".join(
            f"worker {has['worker']} {has['bins']:,} ({has['share']:.1%})" for has in of["workers"]
        )
        yield f"  group {of['group']}: {of['bins']:,} bins, {holders}"


def runs_of(layout: Layout, groups: Groups) -> Iterator[tuple[int, int, int, int]]:
    """Yield runs of similar bins of one group.

    Each is (index of the first bin, depth in bits, number of bins, owner).
    """
    starts = [groups.group(name).bin.start for name in groups.names]
    edges = np.searchsorted(layout.starts, np.array(starts, dtype=np.uint64)).tolist()
    at = 0
    for depth, count, owner in layout.runs():
        cuts = [at, *(edge for edge in edges if at < edge < at + count), at + count]
        for first, after in zip(cuts[:-1], cuts[1:], strict=True):
            yield first, depth, after - first, owner
        at += count
