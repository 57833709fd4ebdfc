"""The project file: options of commands that are written down, so that nobody has to repeat them.

It is ``headrace.toml``, or the table ``[tool.headrace]`` of ``pyproject.toml``, in the current
directory or the nearest one above that has either. What it says takes the place of an option's
default. An option on the command line, and one in the environment, take precedence.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from headrace.cli.session import PROJECT_CONF
from headrace.errors import PipelineError

FILE = "headrace.toml"
PYPROJECT = "pyproject.toml"
#: Keys outside a table: they are for every command that has such an option.
SHARED = ("pipeline", "storage", "output", "master", "packages", "log-level")
#: The table of Spark's settings.
CONF = "conf"
#: Commands that take what is said for another command, unless it is said for them, too.
INHERITS = {"handover": "run"}
#: Keys of paths, from the directory of the project file.
_PATHS = ("pipeline", "storage")
#: The command whose options have nothing to do with a user's pipeline.
_APART = "nexmark"


class ProjectFile:
    """A project file, as read.

    Attributes:
        path: the file.
        table: its content.
    """

    def __init__(self, path: Path, table: Mapping[str, Any]) -> None:
        self.path = path
        self.table = table

    def error(self, key: str, what: str, remedy: str) -> PipelineError:
        """Return an error about one of the keys."""
        return PipelineError(
            what, place=f"{self.path}: {key}" if key else str(self.path), remedy=remedy
        )


def find_project(start: Path) -> ProjectFile | None:
    """Return the project file of a directory or the nearest one above; None if there is none.

    Raises:
        PipelineError: if it cannot be read.
    """
    for folder in [start, *start.parents]:
        if (folder / FILE).is_file():
            return read_project(folder / FILE)
        if (folder / PYPROJECT).is_file():
            found = read_project(folder / PYPROJECT)
            if found.table:
                return found
    return None


def read_project(path: Path) -> ProjectFile:
    """Read a project file.

    Raises:
        PipelineError: if it cannot be read.
    """
    remedy = "correct it, or name another with --project"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PipelineError(f"the project file: {error}", place=str(path), remedy=remedy) from None
    if path.name == PYPROJECT:
        tool = table.get("tool", {})
        table = tool.get("headrace", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise PipelineError("[tool.headrace] is not a table", place=str(path), remedy=remedy)
    return ProjectFile(path, table)


def location_of(project: ProjectFile) -> str | None:
    """Return the storage that a project file names for all commands."""
    found = project.table.get("storage")
    return _from(project.path.parent, found) if isinstance(found, str) else None


def use_project(context: click.Context, project: ProjectFile) -> None:
    """Let a project file give the defaults of all commands below a context.

    Raises:
        PipelineError: if the file has an unknown key or a value that an option cannot have.
    """
    group = context.command
    assert isinstance(group, click.Group)
    commands = dict(commands_of(group))
    _check_keys(project, group)
    found: dict[str, Any] = {}
    for words, command in commands.items():
        values = _values_of(project, words, command, context)
        table = found
        for word in words[:-1]:
            table = table.setdefault(word, {})
        table.setdefault(words[-1], {}).update(values)
    context.default_map = found
    context.meta[PROJECT_CONF] = dict(_flat(project, project.table.get(CONF, {}), (CONF,)))


def commands_of(
    group: click.Group, above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield all commands that are not groups, by the words that call them."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands_of(command, (*above, name))
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield (*above, name), command


def _values_of(
    project: ProjectFile, words: tuple[str, ...], command: click.Command, context: click.Context
) -> dict[str, Any]:
    """Return the values that a project file gives to the options of a command."""
    options = options_of(command)
    found = {}
    for key in SHARED:
        apart = words[0] == _APART and key in _PATHS
        if key in project.table and key in options and not apart:
            value = project.table[key]
            if key in _PATHS and _is_repeatable(command, options[key]):
                value = [value]
            found[options[key]] = _checked(project, (key,), value, command, options[key], context)
    for table_words in [(INHERITS[words[0]],)] if words[0] in INHERITS else []:
        found |= _table_of(project, table_words, command, context, foreign=True)
    return found | _table_of(project, words, command, context)


def _is_repeatable(command: click.Command, name: str) -> bool:
    return any(parameter.name == name and parameter.multiple for parameter in command.params)


def _table_of(
    project: ProjectFile,
    words: tuple[str, ...],
    command: click.Command,
    context: click.Context,
    *,
    foreign: bool = False,
) -> dict[str, Any]:
    """Return what the table of a command says. ``foreign``: it is the table of another command."""
    table: Any = project.table
    for word in words:
        table = table.get(word, {})
        if not isinstance(table, dict):
            raise project.error(
                ".".join(words),
                f"{word!r} is a command, so its options are a table",
                f"write [{_header(project, words)}], and the options below it",
            )
    options, found = options_of(command), {}
    subcommands = command.commands if isinstance(command, click.Group) else {}
    for key, value in table.items():
        if key in subcommands:
            continue
        if key in options:
            found[options[key]] = _checked(
                project, (*words, key), value, command, options[key], context
            )
        elif not foreign:
            raise _unknown(project, (*words, key), key, [*options, *subcommands])
    return found


def _check_keys(project: ProjectFile, group: click.Group) -> None:
    """Check the keys outside a table, and the tables of groups of commands."""
    known = [*SHARED, CONF, *group.commands]
    for key in project.table:
        if key not in known:
            options = {
                option: words
                for words, command in commands_of(group)
                for option in options_of(command)
            }
            if key in options:
                words = (key,) if key in SHARED else options[key]
                words = ("run",) if key in options_of(group.commands["run"]) else words
                raise project.error(
                    key,
                    f"{key!r} is an option of a command",
                    f"write it below [{_header(project, words)}]",
                )
            raise _unknown(project, (key,), key, known)
    _check_groups(project, project.table, group, ())


def _check_groups(
    project: ProjectFile, table: Mapping[str, Any], group: click.Group, above: tuple[str, ...]
) -> None:
    for name, command in group.commands.items():
        inner = table.get(name)
        if isinstance(command, click.Group) and isinstance(inner, dict):
            known = [
                *command.commands,
                *(options_of(command) if command.invoke_without_command else ()),
            ]
            for key in inner:
                if key not in known:
                    raise _unknown(project, (*above, name, key), key, known)
            _check_groups(project, inner, command, (*above, name))


def options_of(command: click.Command) -> dict[str, str]:
    """Return the names of a command's options in a project file, and in the code."""
    found = {}
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.expose_value and parameter.name:
            long = max(parameter.opts, key=len).lstrip("-")
            found[long] = parameter.name
        elif parameter.name == "target":
            found["pipeline"] = parameter.name
    return found


def _checked(
    project: ProjectFile,
    key: tuple[str, ...],
    value: Any,
    command: click.Command,
    name: str,
    context: click.Context,
) -> Any:
    """Return a value as an option takes it.

    Raises:
        PipelineError: if the option cannot have it.
    """
    parameter = next(found for found in command.params if found.name == name)
    place = ".".join(key)
    flag = isinstance(parameter, click.Option) and parameter.is_flag
    if flag != isinstance(value, bool):
        what = "true or false" if flag else "a text, a number or a list, not true or false"
        raise project.error(place, f"{value!r} is not {what}", "correct it")
    if parameter.multiple != isinstance(value, list):
        what = "a list" if parameter.multiple else "one value"
        raise project.error(place, f"{value!r} is not {what}", 'write a list as ["…", "…"]')
    texts = value if isinstance(value, list) else [value]
    for text in texts:
        if isinstance(text, dict | list) or not isinstance(text, str | int | float):
            raise project.error(place, f"{text!r} is not a text or a number", "correct it")
    if key[-1] in _PATHS:
        paths = [_from(project.path.parent, str(text)) for text in texts]
        value = paths if parameter.multiple else paths[0]
    elif not flag:
        value = [str(text) for text in texts] if parameter.multiple else str(value)
    try:
        parameter.type_cast_value(context, value)
    except click.UsageError as error:
        raise project.error(place, error.message.rstrip("."), "correct it") from None
    return value


def _from(folder: Path, text: str) -> str:
    """Return a location that is written in a file of a folder, as seen from here."""
    if "://" in text or os.path.isabs(text):
        return text
    return os.path.relpath(folder / text)


def _flat(project: ProjectFile, table: Any, above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield Spark's settings. TOML makes tables of names with dots that are not in quotes."""
    if not isinstance(table, dict):
        raise project.error(
            ".".join(above),
            "Spark's settings are a table",
            f'write [{_header(project, above)}], and below it "spark.driver.memory" = "4g"',
        )
    for key, value in table.items():
        name = (*above, key)
        if isinstance(value, dict):
            yield from _flat(project, value, name)
        elif isinstance(value, bool):
            yield ".".join(name[1:]), str(value).lower()
        elif isinstance(value, str | int | float):
            yield ".".join(name[1:]), str(value)
        else:
            raise project.error(
                ".".join(name), f"{value!r} is not a text or a number", "correct it"
            )


def _unknown(
    project: ProjectFile, words: tuple[str, ...], key: str, known: list[str]
) -> PipelineError:
    close = difflib.get_close_matches(key.replace("_", "-"), known, n=3, cutoff=0.5)
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    return project.error(
        ".".join(words),
        f"{key!r} is not a key of the project file",
        f"{meant}known here: {', '.join(sorted(known))}",
    )


def _header(project: ProjectFile, words: tuple[str, ...]) -> str:
    own = ("tool", "headrace") if project.path.name == PYPROJECT else ()
    return ".".join([*own, *words])
