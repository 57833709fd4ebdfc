"""The command that shows a view: the result of a query over Z-sets, as of any retained step."""

from __future__ import annotations

import click

from headrace.checkpoints.views import read_view
from headrace.cli import completion
from headrace.cli.common import at_step_option, hide_option, opened, storage_option, typed_errors
from headrace.cli.tables import emit_rows, rows_option


@click.command()
@click.argument("name", shell_complete=completion.computations)
@storage_option
@at_step_option
@click.option("--limit", type=click.IntRange(1), help="The most rows to print.")
@rows_option
@hide_option
def view(name: str, storage: str, at_step: int | None, limit: int | None, output: str) -> None:
    """Show the rows of the view NAME as of a step, each as often as it is there."""
    with typed_errors(), opened(storage, at_step) as checkpoint:
        rows = read_view(checkpoint, name)
        emit_rows(rows if limit is None else rows.slice(0, limit), output)


COMMANDS = [view]
