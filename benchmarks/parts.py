"""Experiments of hours, measured part by part: what is stopped goes on where it was.

An experiment's file of results holds what each part has found, with the tree of files, the programs, the
versions and the options that this is of. The same command, run again with the same, measures what is
missing; with others it begins anew. ``--anew`` measures again what is chosen. A part that fails is told,
and keeps none of the others from being measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from benchmarks.harness import facts, program, programs_tree, write

Found = TypeVar("Found")

#: The table and the figures that are made of what was found.
Told = tuple[list[list[str]], list[dict[str, Any]]]
#: What all parts of a file have in common.
_SAME = ("source_tree", "programs", "versions", "machine", "parameters")
#: What only tells of what was found.
_ONLY_TELL = ["benchmarks.evaluation.papers", "benchmarks.tables", "benchmarks.evaluation.page"]


class Parts(Generic[Found]):
    """What an experiment has found so far.

    Args:
        kind: what a part finds: a type that msgspec knows.
        names: all parts, in the order in which they are told.
        made: the options that there are; :meth:`add_option` has been called with them.
        chosen: those that are given.
        selecting: the option that chooses parts, if there is one.
    """

    def __init__(
        self,
        kind: type[Found],
        names: Sequence[str],
        made: argparse.ArgumentParser,
        chosen: argparse.Namespace,
        selecting: str = "",
    ) -> None:
        self._chosen, self._names = chosen, names
        self._facts = {**facts(chosen), "programs": programs_tree(_ONLY_TELL)}
        but = {"anew", selecting}
        for name in but:
            self._facts["parameters"].pop(name, None)
        self._facts["command"] = command_of(made, chosen, self._facts["parameters"])
        self._found: dict[str, Found] = _kept(chosen.json, self._facts, kind)
        self._failed: dict[str, str] = {}

    @staticmethod
    def add_option(made: argparse.ArgumentParser) -> None:
        """Add the option that all such experiments have."""
        made.add_argument("--anew", action="store_true", help="measure again what is there")

    def missing(self, some: Iterable[str] | None = None) -> list[str]:
        """Return which parts (of some) are to be measured."""
        asked = self._names if some is None else some
        return [name for name in asked if self._chosen.anew or name not in self._found]

    def measure(
        self, names: Iterable[str], work: Callable[[str], Found], told: Callable[[dict[str, Found]], Told]
    ) -> int:  # fmt: skip
        """Measure parts one after another, and write what there is after each.

        Args:
            names: which.
            work: measures one.
            told: makes a table and figures of all that was found.

        Returns:
            How many have failed. (They are missing still, and so are measured the next time.)
        """
        for name in names:
            try:
                self.add(name, work(name))
            except Exception as error:
                traceback.print_exc()
                self._failed[name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            self.write(*told(self.found))
        return len(self._failed)

    def add(self, name: str, found: Found) -> None:
        """Take in what a part has found."""
        self._found[name] = found

    @property
    def found(self) -> dict[str, Found]:
        """What each part has found, in the order of all parts."""
        return {name: self._found[name] for name in self._names if name in self._found}

    def write(self, rows: list[list[str]], figures: list[dict[str, Any]]) -> None:
        """Write what there is so far: the table and figures that were made of it, and the parts."""
        more = {
            "missing": [name for name in self._names if name not in self._found],
            "failed": self._failed,
            "parts": msgspec.to_builtins(self.found),
        }
        write(rows, figures, self._chosen, **self._facts, **more)


def command_of(
    made: argparse.ArgumentParser, chosen: argparse.Namespace, names: Iterable[str]
) -> str:
    """Return the command that measures all parts so: the program, and which options are not usual."""
    if chosen.quick:
        return shlex.join([*program(), "--quick"])
    usual, given = vars(made.parse_args([])), []
    for name in names:
        value = getattr(chosen, name)
        if value != usual[name]:
            values = value if isinstance(value, list) else [value]
            given += [f"--{name.replace('_', '-')}", *map(str, values)]
    return shlex.join([*program(), *given])


def _kept(file: Path | None, now: dict[str, Any], kind: type[Found]) -> dict[str, Found]:
    """Return the parts that a file has, if they are of what there is now."""
    if file is None or not file.exists():
        return {}
    known = json.loads(file.read_text())
    if other := [what for what in _SAME if known.get(what) != now[what]]:
        aside = _aside(file, known["source_tree"][:8])  # (hours may be in the file)
        file.replace(aside)
        told = f"{file.name} is of other {', '.join(other)}, and now {aside.name}: all is measured anew"
        print(told, flush=True)
        return {}
    return msgspec.convert(known["parts"], dict[str, kind], str_keys=True)  # type: ignore[valid-type]


def _aside(file: Path, tree: str) -> Path:
    """Return a name that no file has, beside a file that is of another tree, or was measured otherwise."""
    names = (file.with_suffix(f".{tree}-{number}.json") for number in itertools.count(1))
    return next(name for name in names if not name.exists())
