"""Renders the view of a running pipeline on a terminal, once or live."""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.errors.printable import one_line
from headrace.observe.durations import show_duration
from headrace.observe.top import LayerView, Phase, View

_BAR = 24
_LEAST = 0.0005  # a phase with a smaller share is not shown


def render(view: View) -> RenderableType:
    """Return a view for a terminal: the totals, a bar for each phase, layers, computations."""
    layers: list[RenderableType] = [Text(), _layers(view.layers)] if view.layers else []
    return Group(*_totals(view), Text(), _phases(view.phases), *layers, Text(), _computations(view))


def show_live(
    console: Console, look: Callable[[], View], wait: Callable[[], None], *, screen: bool = True
) -> None:
    """Show the view until the user interrupts it.

    Args:
        console: a terminal.
        look: returns the present view. An error that it raises ends the show.
        wait: returns when it is time to look again.
        screen: whether to take the whole screen, and give it back at the end.
    """
    with Live(console=console, auto_refresh=False, screen=screen) as live:
        try:
            while True:
                live.update(render(look()), refresh=True)
                wait()
        except KeyboardInterrupt:
            return


def _totals(view: View) -> list[Text]:
    since = "-" if view.age_s is None else f"{show_duration(round(view.age_s * 1e6))} ago"
    lines = [f"{view.pipeline}  step {view.step}, epoch {view.epoch}, begun {since}"]
    lines.append(
        f"{_rate(view.records_per_s)} records/s  {_rate(view.steps_per_s)} steps/s  "
        f"busy {_share(view.busy)}  (last {view.steps} steps, {view.seconds:.1f} s)"
    )
    if view.step_ms is not None:
        of = view.step_ms
        lines.append(f"a step takes p50 {of.p50:.1f}  p95 {of.p95:.1f}  max {of.max:.1f} ms")
    if view.timed < view.steps:
        untimed = view.steps - view.timed
        lines.append(f"{untimed} of {view.steps} steps do not say where their time went")
    for label, counts in (("soft state", view.soft_state), ("carried by", view.exchange)):
        if counts:
            lines.append(f"{label}: {_counts(counts)}")
    if view.deliver_ms:
        each = ", ".join(f"{name} {ms:.1f}" for name, ms in sorted(view.sinks_ms.items()))
        lines.append(f"sinks take {view.deliver_ms:.1f} ms a step{each and f' ({each})'}")
    if view.waits_for:
        lines.append(f"the outbox is full: the input waits for sink {', '.join(view.waits_for)}")
    lines += [
        f"injector {name}: {count:,} records could not be read and were skipped"
        for name, count in sorted(view.unread.items())
    ]
    lines += [
        f"injector {name}: {count:,} records wait" for name, count in sorted(view.waiting.items())
    ]
    lines = [one_line(line) for line in lines]
    return [Text(line, style="bold" if number == 0 else "") for number, line in enumerate(lines)]


def _phases(phases: list[Phase]) -> Table:
    table = _table()
    table.add_column("phase", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("", width=_BAR)
    table.add_column("ms a step", justify="right", no_wrap=True)
    table.add_column("all tasks", justify="right", no_wrap=True)
    for phase in phases:
        if phase.share < _LEAST:
            continue
        table.add_row(
            Text(one_line(phase.name)),
            _share(phase.share),
            ProgressBar(total=1.0, completed=phase.share, width=_BAR),
            f"{phase.ms:.2f}",
            "" if phase.all_tasks_ms is None else f"{phase.all_tasks_ms:.2f}",
        )
    return table


def _layers(layers: list[LayerView]) -> Table:
    table = _table()
    table.add_column("layer", no_wrap=True)
    table.add_column("ms a step", justify="right", no_wrap=True)
    table.add_column("all tasks", justify="right", no_wrap=True)
    table.add_column("slowest", no_wrap=True)
    table.add_column("computations", overflow="fold")
    for of in layers:
        part = "worker" if of.layer else "reader"
        names = ", ".join(of.computations) if of.layer else "(reads and routes)"
        table.add_row(
            str(of.layer),
            f"{of.slowest_ms:.2f}",
            f"{of.all_ms:.2f}",
            f"{part} {of.slowest} in {of.slowest_share:.0%}",
            Text(one_line(names)),
        )
    return table


def _computations(view: View) -> Table:
    table = _table()
    table.add_column("computation", overflow="fold", min_width=8)
    for name in ("records/s", "timers/s", "late", "skipped", "lag"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("watermark", no_wrap=True)
    for name, of in view.computations.items():
        lag = "-" if of.lag_s is None else show_duration(round(of.lag_s * 1e6))
        table.add_row(
            Text(one_line(name)),
            _rate(of.records_per_s),
            _rate(of.timers_per_s),
            f"{of.late:,}",
            f"{of.skipped:,}",
            lag,
            _to_seconds(of.watermark),
        )
    return table


def _table() -> Table:
    return Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, padding=(0, 1)
    )


def _to_seconds(time: str) -> str:
    """Return a time without its fraction of a second, to keep lines short."""
    whole, dot, _ = time.partition(".")
    return f"{whole}Z" if dot else time


def _rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))
