"""Commands that show state as of any retained step. They change nothing and fence no driver."""

from __future__ import annotations

import sys

import click
import pyarrow as pa

from headrace.checkpoints.contents import conformed
from headrace.checkpoints.difference import difference
from headrace.cli import completion
from headrace.cli.common import (
    NOTHING_THERE,
    Duration,
    at_step_option,
    hide_option,
    opened,
    say,
    storage_option,
    typed_errors,
)
from headrace.cli.tables import emit_rows, rows_option

#: Number of parts that a scan reads one after another. Parts behind a limit are not read.
_PARTS = 16

_section_option = click.option(
    "--section", help='What of it: "state", "timers", "table:NAME", …; by default its state.'
)
_pin_option = click.option(
    "--pin-for",
    type=Duration(),
    default="0s",
    help="How long a running pipeline keeps the step for this reader.",
)


@click.group()
def state() -> None:
    """Look into the state of a pipeline, without its code. Changes nothing, fences no driver."""


@state.command()
@click.argument("computation", shell_complete=completion.computations)
@click.argument("key", nargs=-1, required=True, metavar="KEY...")
@storage_option
@_section_option
@at_step_option
@rows_option
@hide_option
def get(
    computation: str,
    key: tuple[str, ...],
    storage: str,
    section: str | None,
    at_step: int | None,
    output: str,
) -> None:
    """Show what COMPUTATION keeps for KEY: one argument for each part of the key.

    Numbers are decimal, bytes hexadecimal, dates and times ISO 8601. The exit code is 5 if nothing
    is kept.
    """
    with typed_errors():
        checkpoint = opened(storage, at_step)
        parsed = checkpoint.component(computation).parse_key(list(key))
        rows = checkpoint.read(computation, section, key=parsed)
        emit_rows(rows, output)
    if not rows.num_rows:
        say(f"{computation} keeps nothing of {' '.join(key)}", err=True)
        sys.exit(NOTHING_THERE)


@state.command()
@click.argument("computation", shell_complete=completion.computations)
@storage_option
@_section_option
@at_step_option
@click.option(
    "--bin",
    "bins",
    multiple=True,
    metavar="PREFIX",
    help='Only this bin, such as "0110/4"; repeatable.',
)
@click.option("--limit", type=click.IntRange(1), help="The most rows to print.")
@_pin_option
@rows_option
@hide_option
def scan(
    computation: str,
    storage: str,
    section: str | None,
    at_step: int | None,
    bins: tuple[str, ...],
    limit: int | None,
    pin_for: int,
    output: str,
) -> None:
    """Show all that COMPUTATION keeps, in the order of the hashes of its keys."""
    with typed_errors(), opened(storage, at_step, pin_for) as checkpoint:
        found: list[pa.Table] = []
        left = limit
        for part in checkpoint.ranges(computation, _PARTS):
            rows = checkpoint.read(computation, section, bins=bins or None, ranges=part)
            found.append(rows if left is None else rows.slice(0, left))
            left = None if left is None else left - found[-1].num_rows
            if left == 0 or section == "workers":
                break
        emit_rows(pa.concat_tables(found, promote_options="default"), output)


@state.command()
@click.argument("before", type=click.IntRange(0), shell_complete=completion.steps)
@click.argument("after", type=click.IntRange(0), shell_complete=completion.steps)
@click.argument("computation", shell_complete=completion.computations)
@storage_option
@_section_option
@_pin_option
@rows_option
@hide_option
def diff(
    before: int,
    after: int,
    computation: str,
    storage: str,
    section: str | None,
    pin_for: int,
    output: str,
) -> None:
    """Show the rows of COMPUTATION that were added, removed or changed between two steps."""
    with (
        typed_errors(),
        opened(storage, before, pin_for) as old,
        opened(storage, after, pin_for) as new,
    ):
        identity, schema = new.identity(computation, section), new.schema(computation, section)
        parts = new.ranges(computation, 1 if section == "workers" else _PARTS)
        found = [
            difference(
                conformed(old.read(computation, section, ranges=part), schema),
                conformed(new.read(computation, section, ranges=part), schema),
                identity,
            )
            for part in parts
        ]
        emit_rows(pa.concat_tables(found), output)


COMMANDS = [state]
