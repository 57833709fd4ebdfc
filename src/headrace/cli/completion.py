"""What the shell proposes after Tab: files with pipelines, and the names that a storage knows.

A proposal never fails and prints nothing. Where something cannot be read, there is none.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from headrace.checkpoints.catalog import Checkpoints
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.ledger.stored_schema import groups_of
from headrace.storage import LocalStore, Store, open_store

#: Proposes values of a parameter: (context, parameter, the beginning of a word) → proposals.
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
_STORAGE = "HEADRACE_STORAGE"


def files(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Propose Python files, and after a colon the names in one that may be pipelines."""
    file, colon, name = begun.rpartition(":")
    if colon:
        return [
            CompletionItem(f"{file}:{found}")
            for found in _names_in(Path(file))
            if found.startswith(name)
        ]
    folder, _, start = begun.rpartition("/")
    try:
        entries = sorted(os.scandir(folder or ("/" if begun[:1] == "/" else ".")), key=_name)
    except OSError:
        return []
    fit = [entry for entry in entries if entry.name.startswith(start) and not _hidden(entry, start)]
    if any(entry.is_dir() for entry in fit):
        return [CompletionItem(begun, type="file")]  # the shell itself walks through folders
    above = begun[: len(begun) - len(start)]
    return [CompletionItem(above + entry.name) for entry in fit if entry.name.endswith(".py")]


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _hidden(entry: os.DirEntry[str], start: str) -> bool:
    return entry.name.startswith((".", "__")) and not start


def _names_in(file: Path) -> list[str]:
    """Return the functions without arguments and the variables of a file. Does not run it."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return []
    found = []
    for statement in body:
        if isinstance(statement, ast.FunctionDef):
            needed = len(statement.args.args) - len(statement.args.defaults)
            if needed + len(statement.args.posonlyargs) == 0:
                found.append(statement.name)
        elif isinstance(statement, ast.Assign):
            found += [to.id for to in statement.targets if isinstance(to, ast.Name)]
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found.append(statement.target.id)
    return [name for name in found if not name.startswith("_")]


def folders(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Let the shell propose directories. Locations of other storages are not looked for."""
    return [] if "://" in begun else [CompletionItem(begun, type="dir")]


def _proposing(names: Callable[[Store], Iterable[Any]]) -> Complete:
    """Return a function that proposes what it finds in the storage of the command line."""

    def complete(
        context: click.Context, parameter: click.Parameter, begun: str
    ) -> list[CompletionItem]:
        try:
            store = _store_of(context)
            found = [] if store is None else [str(name) for name in names(store)]
        except Exception:  # a proposal is a help: whatever is wrong, the command will say it
            return []
        given = context.params.get(parameter.name or "") or ()
        taken = given if parameter.nargs == -1 else ()
        return [CompletionItem(it) for it in found if it.startswith(begun) and it not in taken]

    return complete


def _store_of(context: click.Context) -> Store | None:
    """Return the storage that is meant; None if none is, or it is not there."""
    location = context.params.get("storage") or os.environ.get(_STORAGE) or _of_project(context)
    if not location:
        return None
    store = open_store(str(location))
    return None if isinstance(store, LocalStore) and not Path(store.location).is_dir() else store


def _of_project(context: click.Context) -> str | None:
    """Return the storage of the project file, which is not read while the shell asks."""
    from headrace.cli.project import find_project, location_of, read_project

    chosen = context.find_root().params.get("project")
    project = read_project(Path(chosen)) if chosen else find_project(Path.cwd())
    return None if project is None else location_of(project)


def _head(store: Store) -> Head | None:
    return Ledger(store).open()


def _in_head(names: Callable[[Head], Iterable[Any]]) -> Complete:
    def find(store: Store) -> Iterable[Any]:
        head = _head(store)
        return [] if head is None else names(head)

    return _proposing(find)


#: Computations.
computations = _in_head(lambda head: head.counts)
#: Computations and injectors.
computations_and_injectors = _in_head(lambda head: [*head.counts, *head.positions])
#: Injectors.
injectors = _in_head(lambda head: head.positions)
#: Migrations, the newest first.
migrations = _in_head(lambda head: [one.id for one in reversed(head.migrations)])
#: Steps for which an update of the layout is published.
updates = _in_head(lambda head: [one.step for one in head.updates if one.step > head.step])
#: Groups.
groups = _in_head(lambda head: groups_of(head.stored_schema).names)
#: Hosts.
hosts = _in_head(lambda head: sorted({*head.places.there, *head.drained_hosts} - {""}))
#: Steps that can be opened, the newest first.
steps = _proposing(lambda store: reversed(Checkpoints(store).versions()))
