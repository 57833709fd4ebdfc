"""The command line. Data goes to standard output, progress and errors to standard error.

Exit codes:

- 0: done
- 1: an error that is not typed, in user code or in Headrace
- 2: wrong usage
- 4: the pipeline or its storage failed, with a typed error
- 5: there is nothing to look at
- 6: a command was refused, or a migration that was followed was aborted
- 7: a command was not answered in time
- 8: a checkpoint is damaged
- 130: interrupted; the running step ended first, and everything is committed

Each module holds a group of commands, which it lists as ``COMMANDS``.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from headrace.cli import (
    checkpoints,
    commands,
    dashboard,
    doctor,
    hosts,
    load,
    metrics,
    migrations,
    nexmark,
    policy,
    run,
    sql,
    state,
    status,
    view,
    watermarks,
)
from headrace.cli.common import (
    DAMAGED,
    FAILED,
    INTERRUPTED,
    NOTHING_THERE,
    REFUSED,
    UNANSWERED,
    hide_option,
    log_as_json,
    typed_errors,
)
from headrace.cli.environment import name_variables
from headrace.cli.project import FILE, PYPROJECT, find_project, read_project, use_project
from headrace.errors.printable import MOST_MESSAGE, message

__all__ = ["DAMAGED", "FAILED", "INTERRUPTED", "NOTHING_THERE", "REFUSED", "UNANSWERED", "main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headrace")
@click.option(
    "--project",
    envvar="HEADRACE_PROJECT",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help=f"The file with the defaults of options.  [default: {FILE} or {PYPROJECT}, here or above]",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How log records are written to standard error; json is one object a line.",
)
@hide_option
@click.pass_context
def main(context: click.Context, project: Path | None, log_format: str) -> None:
    """Stateful stream processing on Apache Spark, exactly once."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        log_as_json(context) if log_format == "json" else _Printable("%(name)s: %(message)s")
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    with typed_errors():
        found = read_project(project) if project is not None else find_project(Path.cwd())
        if found is not None:
            use_project(context, found)


class _Printable(logging.Formatter):
    """Formats log records so that they are safe for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return message(super().format(record), 4 * MOST_MESSAGE)


_GROUPS = [
    run,
    sql,
    status,
    load,
    watermarks,
    metrics,
    dashboard,
    commands,
    migrations,
    hosts,
    policy,
    checkpoints,
    state,
    doctor,
    view,
    nexmark,
]
for _group in _GROUPS:
    for _command in _group.COMMANDS:
        main.add_command(_command)
name_variables(main)
