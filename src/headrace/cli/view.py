"""The command that shows a view: the result of a query over Z-sets, as of any retained step."""

from __future__ import annotations

import click

from headrace.checkpoints.views import read_view, write_view
from headrace.cli import completion
from headrace.cli.common import (
    at_step_option,
    hide_option,
    opened,
    say,
    storage_option,
    typed_errors,
)
from headrace.cli.tables import emit_rows, rows_option


@click.command()
@click.argument("name", shell_complete=completion.computations)
@storage_option
@at_step_option
@click.option("--limit", type=click.IntRange(1), help="The most rows to print.")
@click.option(
    "--to",
    "place",
    metavar="FILE",
    help="Write all rows to this Parquet file, and print none. It may be an s3:// location, and must "
    "not be there yet.",
)
@rows_option
@hide_option
def view(
    name: str,
    storage: str,
    at_step: int | None,
    limit: int | None,
    place: str | None,
    output: str,
) -> None:
    """Show the rows of the view NAME as of a step, each as often as it is there."""
    if place is not None and limit is not None:
        raise click.UsageError("--to writes all rows, and has no --limit.")
    with typed_errors(), opened(storage, at_step) as checkpoint:
        if place is not None:
            count = write_view(checkpoint, name, place)
            say(f"{place}: {count:,} rows of view {name} as of step {checkpoint.step}")
            return
        rows = read_view(checkpoint, name)
        emit_rows(rows if limit is None else rows.slice(0, limit), output)


COMMANDS = [view]
