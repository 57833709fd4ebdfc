"""A variable of the environment for each option: ``HEADRACE_RUN_WORKERS`` for ``run --workers``."""

from __future__ import annotations

import click

from headrace.cli.project import INHERITS, commands_of, options_of


def name_variables(group: click.Group) -> None:
    """Give each option of all commands of a group its variable, unless it has one."""
    for words, command in commands_of(group):
        names = {name: long for long, name in options_of(command).items()}
        above = [words, *([(INHERITS[words[0]],)] if words[0] in INHERITS else [])]
        for option in command.params:
            if isinstance(option, click.Option) and option.name in names and option.envvar is None:
                option.envvar = [_variable(*of, names[option.name]) for of in above]


def _variable(*words: str) -> str:
    return "_".join(["HEADRACE", *words]).upper().replace("-", "_")
