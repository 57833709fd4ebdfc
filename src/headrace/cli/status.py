"""Commands that look at a pipeline as a whole: its progress, and where its time goes."""

from __future__ import annotations

import sys
import time
from typing import Any

import click
import msgspec
from rich.console import Console

from headrace.cli.common import (
    emit,
    no_pipeline,
    output_option,
    storage_option,
    store_of,
    typed_errors,
)
from headrace.computation.record_ids import IDS
from headrace.eventtime.timestamps import show_time
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.observe.event_times import EventTime
from headrace.observe.leaders import DriverView
from headrace.observe.observer import PipelineObserver
from headrace.observe.picture import Picture
from headrace.observe.plain import with_null_times
from headrace.observe.screen import render, show_live
from headrace.observe.top import View
from headrace.pipeline import DEAD_LETTER
from headrace.sources.files.position import files_that_must_stay

#: Explanations of the states of the input.
_INPUT = {
    "ended": " (all event timers have fired; to read more input, run with --reopen NAME)",
    "caught up": " (all that was there was read when the newest run ended)",
    "open": "",
}
#: Largest number of files that the text of a status names.
_SHOWN_FILES = 5


@click.command()
@storage_option
@output_option
def status(storage: str, output: str) -> None:
    """Show the progress of a pipeline as of its last committed step. Changes nothing."""
    with typed_errors():
        store = store_of(storage)
        observer = PipelineObserver(store, steps=1)
        picture = observer.look(time.time_ns() // 1_000)
        if picture is None or observer.head is None:
            raise no_pipeline(storage)
        facts = status_of(picture)
        _add_files(facts, observer.head, Ledger(store))
        emit(with_null_times(facts), _status_text(facts), output)


@click.command()
@storage_option
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=None,
    help="Number of newest steps to look at.  [default: those of the last 15 seconds]",
)
@click.option("--once", is_flag=True, help="Print one view, and exit.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
@output_option
def top(storage: str, steps: int | None, once: bool, every: float, output: str) -> None:
    """Show where the time of a pipeline's steps goes, live, from any process that sees its storage.

    Prints one view and ends if standard output is not a terminal, and for JSON. Ctrl-C ends it.
    Changes nothing.
    """
    with typed_errors():
        store = store_of(storage)
        observer = (
            PipelineObserver(store)
            if steps is None
            else PipelineObserver(store, steps, covers_all=True)
        )

        def look() -> View:
            picture = observer.look(time.time_ns() // 1_000)
            if picture is None or picture.recent is None:
                raise no_pipeline(storage)
            return picture.recent

        if output == "json":
            emit(with_null_times(look()), "", output)
        elif once or not sys.stdout.isatty():
            Console().print(render(look()))
        else:
            look()  # so that errors appear before the screen is taken
            show_live(Console(), look, lambda: time.sleep(every))


def _add_files(facts: dict[str, Any], head: Head, ledger: Ledger) -> None:
    """Add the input files that must stay, because no checkpoint holds what was read from them."""
    steps = [ledger.read(step)[0] for step in range(head.checkpoint + 1, head.step + 1)]
    for injector, of in facts["injectors"].items():
        ends = [step.divisions[injector].end for step in steps if injector in step.divisions]
        of["files_that_must_stay"] = files_that_must_stay(of["position"], ends)


def status_of(picture: Picture) -> dict[str, Any]:
    """Return the part of a pipeline's picture that its status shows, as plain data."""
    return {
        "pipeline": picture.pipeline,
        "step": picture.step,
        "epoch": picture.epoch,
        "workers": len(picture.workers),
        "paused": picture.paused,
        "scheduled_stop": None
        if picture.scheduled_stop is None
        else msgspec.to_builtins(picture.scheduled_stop),
        "drivers": [_driver(driver) for driver in picture.drivers],
        "removed": picture.removed,
        "backfilling": picture.backfilling,
        "bins": picture.bins,
        "ended": picture.ended,
        "input": picture.input,
        "released": picture.outbox.released,
        "outbox": {
            "steps": picture.outbox.steps,
            "bytes": picture.outbox.nbytes,
            "delivered": picture.outbox.delivered,
            "waits_for": picture.outbox.waits_for,
        },
        "injectors": {
            injector: {
                "position": of.position,
                "highest_event_time": None if of.highest is None else _time(of.highest),
                "read": of.read,
                "skipped": of.skipped,
                "waiting": of.waiting,
            }
            for injector, of in picture.injectors.items()
        },
        "computations": {
            node: {
                "input_watermark": _time(of.input),
                "output_watermark": _time(of.output),
                **msgspec.to_builtins(of.counts),
            }
            for node, of in picture.computations.items()
        },
    }


def _time(of: EventTime) -> str:
    return of.text or "-"


def _driver(of: DriverView) -> dict[str, Any]:
    """Return the heartbeat of a driver as plain data. Its times are those of the driver's clock."""
    return {
        "role": of.role,
        "where": of.where,
        "epoch": of.epoch,
        "why": of.why,
        "not_deleted": of.not_deleted,
        "since": show_time(of.since_us),
        "seen": show_time(of.seen_us),
    }


def _driver_text(of: dict[str, Any]) -> str:
    text = {"leads": "leads", "waits": "stands by", "asks": "wants to take over", "ended": "ended"}
    why = f" ({of['why']})" if of["why"] else ""
    left = of["not_deleted"]
    garbage = f", {left:,} unneeded files could not be deleted" if left else ""
    what = f"{text[of['role']]}{why}: since {of['since']}, last heartbeat {of['seen']}"
    return f"  {of['where']} {what}{garbage}"


def _status_text(facts: dict[str, Any]) -> str:
    """Return a status as text for people."""
    outbox = facts["outbox"]
    lines = [
        f"{facts['pipeline']}: step {facts['step']}, epoch {facts['epoch']}, "
        f"{facts['workers']} workers, {facts['bins']} bins{', paused' if facts['paused'] else ''}"
    ]
    if facts["scheduled_stop"] is not None:
        lines.append(
            f"  {facts['scheduled_stop']['kind']} after step {facts['scheduled_stop']['step']}"
        )
    lines += [_driver_text(driver) for driver in facts["drivers"]]
    if outbox["waits_for"]:
        lines.append(
            f"  the outbox is full ({outbox['steps']} steps, {outbox['bytes']:,} "
            f"bytes): the input waits for sink {', '.join(outbox['waits_for'])}"
        )
    lines.append(f"  input: {facts['input']}{_INPUT[facts['input']]}")
    for injector in facts["injectors"]:
        state = "ended" if injector in facts["ended"] else "reading"
        seen = facts["injectors"][injector]["highest_event_time"]
        skipped = facts["injectors"][injector]["skipped"]
        bad = f", {skipped:,} skipped" if skipped else ""
        waiting = facts["injectors"][injector]["waiting"]
        behind = "" if waiting is None else f", {waiting:,} waiting"
        read = facts["injectors"][injector]["read"]
        count = "" if read is None else f", {read:,} records read"
        lines.append(
            f"  injector {injector}: {state}, highest event time {seen or '-'}{count}{bad}{behind}"
        )
        files = facts["injectors"][injector].get("files_that_must_stay")
        if files:
            more = ", …" if len(files) > _SHOWN_FILES else ""
            lines.append(
                f"    {len(files):,} files must stay: {', '.join(files[:_SHOWN_FILES])}{more}"
            )
    for node, of in facts["computations"].items():
        injector, _, part = node.partition(".")
        if part == IDS:
            lines.append(
                f"  ids of {injector}: {of['records']:,} records went on, "
                f"{of['duplicates']:,} duplicates, {of['expired']:,} expired"
            )
            continue
        if part == DEAD_LETTER:
            lines.append(f"  dead letters of {injector}: {of['produced']:,}")
            continue
        lines.append(
            f"  computation {node}: watermark {of['output_watermark']}, {of['records']:,} records, "
            f"{of['late']:,} late, {of['skipped']:,} skipped, {of['timers']:,} timers fired, "
            f"{of['produced']:,} produced"
        )
        if of["counters"]:
            counted = (f"{name} {total:,}" for name, total in of["counters"].items())
            lines.append(f"  counters of {node}: {', '.join(counted)}")
    lines += [f"  computation {node}: still backfilling" for node in facts["backfilling"]]
    for node, since in facts["removed"].items():
        lines.append(f"  computation {node}: removed at step {since}")
    return "\n".join(lines)


COMMANDS = [status, top]
