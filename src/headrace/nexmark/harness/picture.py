"""Pictures of a query under load: latency and memory over time, and the long tail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.nexmark.harness.latency import Latencies, ccdf
from headrace.nexmark.harness.load import LoadTest
from headrace.nexmark.harness.observed import Observations

TIME = "s since the first event"
#: Percentiles shown for each 250 ms, the highest first, and their colours.
_SHOWN = {100.0: "#c0392b", 99.0: "#e59866", 50.0: "#2471a3"}


def kinds() -> set[str]:
    """Return the kinds of pictures that can be written, by file suffix."""
    from matplotlib.figure import Figure

    return {*Figure().canvas.get_supported_filetypes()}


def draw(seen: Observations, load: LoadTest, title: str, file: Path) -> None:
    """Write a picture with latency, memory and the long tail. State moves in the grey spans."""
    picture, (late, memory, rare) = figure(3, 1, figsize=(9, 8), height_ratios=[3, 1, 2])
    over_time(late, seen, load)
    memory_over_time(memory, seen, load)
    rare.loglog(*ccdf(_window(seen, load).histogram()), color="#2471a3", lw=1)
    late.set(title=title)
    late.legend(ncols=len(_SHOWN), fontsize=8)
    memory.set(xlabel=TIME)
    rare.set(xlabel="ms", ylabel="share of events that are later")
    save(picture, file)


def draw_ways(ways: dict[str, Observations], load: LoadTest, file: Path) -> None:
    """Write a picture with the latencies of several runs below each other, on one scale."""
    picture, axes = figure(
        len(ways), 1, figsize=(9, 0.6 + 1.9 * len(ways)), sharex=True, sharey=True, squeeze=False
    )
    for (way, seen), axis in zip(ways.items(), axes[:, 0], strict=True):
        over_time(axis, seen, load)
        axis.set_title(way, fontsize=9, loc="left")
    axes[0, 0].legend(ncols=len(_SHOWN), fontsize=8)
    axes[-1, 0].set(xlabel=f"{TIME}; state moves in the grey spans")
    save(picture, file)


def over_time(axis: Any, seen: Observations, load: LoadTest) -> None:
    """Plot the latencies of each 250 ms."""
    buckets = list(_window(seen, load).buckets())
    for at, (share, colour) in enumerate(_SHOWN.items()):
        values = [one.percentiles_ms(list(_SHOWN))[at] for _, one in buckets]
        label = "max" if share == 100 else f"p{share:g}"
        axis.plot([begin for begin, _ in buckets], values, color=colour, lw=1, label=label)
    axis.set(yscale="log", ylabel="ms")
    _mark(axis, seen, load)


def memory_over_time(axis: Any, seen: Observations, load: LoadTest, **how: Any) -> None:
    """Plot the memory of all Python workers."""
    first, last = _span(seen, load)
    when = [(at, gib) for at, gib in seen.memory if first <= at < last]
    axis.plot(
        [at for at, _ in when], [gib for _, gib in when], **{"color": "#1e8449", "lw": 1} | how
    )
    axis.set(ylabel="GiB", ylim=(0, None))
    _mark(axis, seen, load)


def figure(*how: Any, **more: Any) -> Any:
    """Return a new figure and its axes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt.subplots(*how, **more)


def save(picture: Any, file: Path) -> None:
    """Write a figure to a file, and close it."""
    from matplotlib import pyplot as plt

    file.parent.mkdir(parents=True, exist_ok=True)
    picture.tight_layout()
    picture.savefig(file, dpi=110)
    plt.close(picture)


def _mark(axis: Any, seen: Observations, load: LoadTest) -> None:
    for one in seen.moved:
        axis.axvspan(one.began_s, one.ended_s, color="#cccccc", alpha=0.6)
    axis.set_xlim(*_span(seen, load))


def _window(seen: Observations, load: LoadTest) -> Latencies:
    return seen.latencies.between(*_span(seen, load))


def _span(seen: Observations, load: LoadTest) -> tuple[float, float]:
    """Return the span shown, in seconds. It includes the end of a migration that took longer."""
    first, last = load.window
    return first, max([last, *(one.ended_s for one in seen.moved)])
