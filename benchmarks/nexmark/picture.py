"""What was seen of a query under load, as a picture: latency and memory over time, and the long tail."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.nexmark.latency import ccdf

if TYPE_CHECKING:
    from benchmarks.nexmark.load import Load, Seen

#: Percentiles of each 250 ms, the highest first.
_SHOWN = {100.0: "#c0392b", 99.0: "#e59866", 50.0: "#2471a3"}


def draw(seen: Seen, load: Load, title: str, file: Path) -> None:
    """Draw it into a file. Grey is when state moves."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    picture, (late, memory, rare) = plt.subplots(3, 1, figsize=(9, 8), height_ratios=[3, 1, 2])
    first, last = load.warm_s, load.warm_s + load.seconds
    window = seen.latencies.between(first, last)
    _over_time(late, window)
    when = [(at, gib) for at, gib in seen.memory if first <= at < last]
    memory.plot([at for at, _ in when], [gib for _, gib in when], color="#1e8449", lw=1)
    for axis in (late, memory):
        for one in seen.moved:
            axis.axvspan(one.began_s, one.ended_s, color="#cccccc", alpha=0.6)
        axis.set_xlim(first, last)
    rare.loglog(*ccdf(window.histogram()), color="#2471a3", lw=1)
    late.set(yscale="log", ylabel="ms", title=title)
    memory.set(ylabel="GiB", xlabel="s since events began to come", ylim=(0, None))
    rare.set(xlabel="ms", ylabel="share of events that are later")
    picture.tight_layout()
    picture.savefig(file, dpi=110)
    plt.close(picture)


def _over_time(axis: Any, window: Any) -> None:
    buckets = list(window.buckets())
    for at, (share, colour) in enumerate(_SHOWN.items()):
        values = [one.percentiles_ms(list(_SHOWN))[at] for _, one in buckets]
        label = "max" if share == 100 else f"p{share:g}"
        axis.plot([begin for begin, _ in buckets], values, color=colour, lw=1, label=label)
    axis.legend(ncols=len(_SHOWN), fontsize=8)
