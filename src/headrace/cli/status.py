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
    head_of,
    ledger_of,
    no_pipeline,
    output_option,
    storage_option,
    typed_errors,
    with_null_times,
)
from headrace.computation.record_ids import IDS
from headrace.eventtime.timestamps import show_time
from headrace.keyspace.layout import Layout
from headrace.ledger.head import Head
from headrace.ledger.heartbeats import HeartbeatRecord, Heartbeats
from headrace.ledger.ledger import Ledger
from headrace.observe.recent import Recent
from headrace.observe.screen import render, show_live
from headrace.observe.top import View, view_of
from headrace.pipeline import DEAD_LETTER
from headrace.sources.files.position import files_that_must_stay
from headrace.storage import open_store

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
        head = head_of(storage)
        ledger = ledger_of(storage)
        name = ledger.read(0)[0].pipeline
        facts = status_of(name, head, Heartbeats(open_store(storage)).all())
        _add_files(facts, head, ledger)
        emit(with_null_times(facts), _status_text(facts), output)


@click.command()
@storage_option
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Number of newest steps to look at.",
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
def top(storage: str, steps: int, once: bool, every: float, output: str) -> None:
    """Show where the time of a pipeline's steps goes, live, from any process that sees its storage.

    Prints one view and ends if standard output is not a terminal, and for JSON. Ctrl-C ends it.
    Changes nothing.
    """
    with typed_errors():
        recent = Recent(ledger_of(storage), steps)

        def look() -> View:
            window = recent.look()
            if not window:
                raise no_pipeline(storage)
            return view_of(window, time.time_ns() // 1_000)

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


def status_of(name: str, head: Head, heartbeats: list[HeartbeatRecord]) -> dict[str, Any]:
    """Return a pipeline's status as plain data, with the newest heartbeats of its drivers."""
    return {
        "pipeline": name,
        "step": head.step,
        "epoch": head.epoch,
        "workers": head.layout.workers,
        "paused": head.paused,
        "scheduled_stop": None
        if head.scheduled_stop is None
        else msgspec.to_builtins(head.scheduled_stop),
        "drivers": [
            _driver(heartbeat)
            for heartbeat in heartbeats
            if heartbeat.epoch >= head.epoch or not heartbeat.epoch
        ],
        "removed": head.stored_schema.get("removed", {}),
        "backfilling": head.backfilling,
        "bins": len(Layout.from_wire(head.layout)),
        "ended": head.ended,
        "input": input_of(head),
        "released": head.released,
        "outbox": {
            "steps": len(head.unreleased),
            "bytes": sum(file.length for files in head.unreleased.values() for file in files),
            "delivered": head.delivered,
            "waits_for": head.waits_for,
        },
        "injectors": {
            injector: {
                "position": position,
                "highest_event_time": show_time(head.highest[injector])
                if injector in head.highest
                else None,
                "skipped": head.skipped.get(injector, 0),
                "waiting": head.waiting.get(injector),
            }
            for injector, position in head.positions.items()
        },
        "computations": {
            node: {
                "input_watermark": show_time(head.watermark_of(node)[0]),
                "output_watermark": show_time(head.watermark_of(node)[1]),
                **msgspec.to_builtins(counts),
            }
            for node, counts in sorted(head.counts.items())
        },
    }


def input_of(head: Head) -> str:
    """Return the state of the input: ``ended``, ``caught up`` (by the newest run), or ``open``."""
    injectors = set(head.stored_schema.get("injectors") or head.positions)
    if injectors and injectors <= set(head.ended):
        return "ended"
    return "caught up" if head.caught_up else "open"


def _driver(heartbeat: HeartbeatRecord) -> dict[str, Any]:
    """Return the heartbeat of a driver as plain data. Its times are those of the driver's clock."""
    return {
        "role": heartbeat.role,
        "where": heartbeat.where,
        "epoch": heartbeat.epoch,
        "why": heartbeat.why,
        "not_deleted": heartbeat.not_deleted,
        "since": show_time(heartbeat.since_us),
        "seen": show_time(heartbeat.now_us),
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
        lines.append(
            f"  injector {injector}: {state}, highest event time {seen or '-'}{bad}{behind}"
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
    lines += [f"  computation {node}: still backfilling" for node in facts["backfilling"]]
    for node, since in facts["removed"].items():
        lines.append(f"  computation {node}: removed at step {since}")
    return "\n".join(lines)


COMMANDS = [status, top]
