"""Commands about low watermarks: what holds one, and the watermark of each bin."""

from __future__ import annotations

import time

import click
import pyarrow as pa

from headrace.checkpoints.checkpoint import Checkpoint
from headrace.cli import completion
from headrace.cli.common import (
    at_step_option,
    emit,
    head_of,
    ledger_of,
    opened,
    output_option,
    storage_option,
    typed_errors,
)
from headrace.cli.tables import emit_rows, rows_option
from headrace.eventtime.timestamps import show_time
from headrace.observe.bin_watermarks import bin_marks
from headrace.observe.plain import with_null_times
from headrace.observe.why import explain, why
from headrace.storage import open_store


@click.group()
def watermark() -> None:
    """Look at low watermarks."""


@watermark.command("list")
@storage_option
@at_step_option
@rows_option
def watermark_list(storage: str, at_step: int | None, output: str) -> None:
    """Show the watermarks of all computations. Changes nothing."""
    with typed_errors():
        found = opened(storage, at_step)
        # As times of Arrow, they cannot say that all input has ended.
        rows = found.watermarks() if output == "arrow" else _as_texts(found)
        emit_rows(rows, output, secret=False)


@watermark.command("why")
@click.argument("name", shell_complete=completion.computations_and_injectors)
@storage_option
@output_option
def watermark_why(name: str, storage: str, output: str) -> None:
    """Show what holds the watermark of NAME, since when, and what to do.

    NAME is a computation, a stream or an injector. Looks at the last committed step. Changes
    nothing.
    """
    with typed_errors():
        way = why(head_of(storage), name, time.time_ns() // 1_000)
        emit(with_null_times(way), explain(way), output)


@watermark.command("bins")
@click.argument("name", shell_complete=completion.computations)
@storage_option
@click.option(
    "--most",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="How many bins to show, those with the oldest work first.",
)
@output_option
def watermark_bins(name: str, storage: str, most: int, output: str) -> None:
    """Show the watermark of computation NAME bin by bin, the oldest pending work first.

    Reads the state of the last checkpoint. Changes nothing.
    """
    with typed_errors():
        head = head_of(storage)
        if head.is_behind:  # watermarks and state must be of the same step
            head = ledger_of(storage).open(head.checkpoint) or head
        found = bin_marks(open_store(storage), head, name, most)
        lines = [
            f"bin {mark.bin} on worker {mark.worker}: watermark {mark.watermark}, "
            f"oldest work {mark.oldest}, {mark.pending:,} pending"
            for mark in found
        ]
        emit(
            with_null_times(found),
            "\n".join(lines) or f"{name} has no work pending in event time",
            output,
        )


def _as_texts(found: Checkpoint) -> pa.Table:
    """Return the watermarks as RFC 3339: null before anything is known, ``end`` after all input."""
    of = found.components.values()
    columns = {
        "input": [each.input_watermark for each in of],
        "output": [each.output_watermark for each in of],
    }
    texts = {
        name: [None if (text := show_time(at)) == "-" else text for at in micros]
        for name, micros in columns.items()
    }
    names = pa.array([each.name for each in of], pa.string())
    return pa.table(
        {"computation": names} | {name: pa.array(each, pa.string()) for name, each in texts.items()}
    )


COMMANDS: list[click.Command] = [watermark]
