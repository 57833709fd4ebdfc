"""The command that shows what loads a pipeline: workers, computations on workers, hot keys."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click
import msgspec
import pyarrow as pa

from headrace.cli.common import (
    emit,
    hide_option,
    no_pipeline,
    output_option,
    storage_option,
    store_of,
    typed_errors,
)
from headrace.cli.tables import aligned
from headrace.errors.printable import HIDDEN, hides_values
from headrace.observe.durations import show_duration
from headrace.observe.observer import PipelineObserver
from headrace.observe.picture import Picture

#: Columns of at most this many workers are shown to people: those that work most.
_MOST_COLUMNS = 8
_UNKNOWN = "-"


@click.command()
@storage_option
@output_option
@hide_option
def load(storage: str, output: str) -> None:
    """Show what loads a pipeline: its workers, how long each computation works on each, hot keys.

    The leader measures up to four steps a second, and publishes what it has measured every few
    seconds. Shares of keys are estimated from samples, with bounds that hold in 95 of 100 cases.
    Changes nothing.
    """
    with typed_errors():
        observer = PipelineObserver(store_of(storage), steps=1, show_values=not hides_values())
        picture = observer.look(time.time_ns() // 1_000)
        if picture is None:
            raise no_pipeline(storage)
        facts = load_of(picture)
        emit(facts, _text(picture), output)


def load_of(picture: Picture) -> dict[str, Any]:
    """Return the part of a pipeline's picture that is about its load, as plain data."""
    measured = picture.load
    return {
        "pipeline": picture.pipeline,
        "step": None if measured is None else measured.step,
        "age_s": None if measured is None else measured.age_s,
        "bin_skew": None if measured is None else measured.bin_skew,
        "worker_skew": None if measured is None else measured.worker_skew,
        "workers": msgspec.to_builtins(picture.workers),
        "work": {} if measured is None else msgspec.to_builtins(measured.work),
        "hot_keys": [] if measured is None else msgspec.to_builtins(measured.hot_keys),
    }


def _text(picture: Picture) -> str:
    measured = picture.load
    if measured is None:
        return f"{picture.pipeline}: nothing was measured yet, or only by an earlier driver"
    age = show_duration(round(measured.age_s * 1e6))
    lines = [f"{picture.pipeline}: as of step {measured.step}, {age} ago", "", "workers"]
    lines += _rows(
        ["worker", "host", "bins", "records/s", "busy", "state", "memory", "process"],
        [
            [
                str(number),
                of.host or "any",
                f"{of.bins:,}",
                _number(of.records_per_s),
                _share(of.busy),
                _bytes(of.state_bytes),
                _bytes(of.memory_bytes),
                _UNKNOWN if of.pid is None else str(of.pid),
            ]
            for number, of in enumerate(picture.workers)
        ],
    )
    lines += _work(picture)
    lines += ["", "hot keys (of the records of their computation)"]
    if not measured.hot_keys:
        return "\n".join([*lines, "  no key has more than 1 %"])
    lines += _rows(
        ["computation", "key", "share", "between", "bin", "worker"],
        [
            [
                of.computation,
                HIDDEN if of.key is None else ", ".join(of.key),
                _share(of.share),
                f"{_share(of.at_least)} and {_share(of.at_most)}",
                of.bin or "all keys",
                str(of.worker),
            ]
            for of in measured.hot_keys
        ],
    )
    return "\n".join(lines)


def _work(picture: Picture) -> list[str]:
    measured = picture.load
    if measured is None or not measured.work:
        return []
    totals = [
        sum(each) for each in zip(*(of.by_worker_ms for of in measured.work.values()), strict=True)
    ]
    busiest = sorted(range(len(totals)), key=lambda at: -totals[at])[:_MOST_COLUMNS]
    shown = sorted(busiest)
    title = "work in a step, in milliseconds"
    if len(shown) < len(totals):
        title += f" (on the {len(shown)} busiest of {len(totals)} workers)"
    header = ["computation", "all", "busiest/mean", *(f"worker {at}" for at in shown)]
    rows = [
        [
            name,
            f"{of.all_ms:.2f}",
            _UNKNOWN if of.skew is None else f"{of.skew:.1f}",
            *(f"{of.by_worker_ms[at]:.2f}" for at in shown),
        ]
        for name, of in sorted(measured.work.items(), key=lambda pair: -pair[1].all_ms)
    ]
    return ["", title, *_rows(header, rows)]


def _rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    columns = [[row[at] for row in rows] for at in range(len(header))]
    found = pa.table(
        {name: pa.array(of, pa.string()) for name, of in zip(header, columns, strict=True)}
    )
    return [f"  {line}" for line in aligned(found)]


def _number(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.1%}"


def _bytes(value: int | None) -> str:
    if value is None:
        return _UNKNOWN
    size, units = float(value), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, _ = size / 1024, units.pop(0)
    return f"{size:.3g} {units[0]}" if size < 1000 else f"{size:.0f} {units[0]}"


COMMANDS = [load]
