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

import click

from headrace.cli import (
    checkpoints,
    commands,
    hosts,
    migrations,
    nexmark,
    policy,
    run,
    state,
    status,
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
)
from headrace.errors.printable import MOST_MESSAGE, message

__all__ = ["DAMAGED", "FAILED", "INTERRUPTED", "NOTHING_THERE", "REFUSED", "UNANSWERED", "main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headrace")
@hide_option
def main() -> None:
    """Stateful stream processing on Apache Spark, exactly once."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Printable("%(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


class _Printable(logging.Formatter):
    """Formats log records so that they are safe for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return message(super().format(record), 4 * MOST_MESSAGE)


_ROOMS = [
    run, status, watermarks, commands, migrations, hosts, policy, checkpoints, state, nexmark
]  # fmt: skip
for _room in _ROOMS:
    for _command in _room.COMMANDS:
        main.add_command(_command)
