"""Experiments that take hours, measured part by part: a run that was stopped resumes.

The file of results holds the result of each part, with the tree of files, the programs, the
versions and the options. If the same command runs again under the same conditions, it measures the
missing parts. Under other conditions it starts again. ``--anew`` measures the chosen parts again. A
part that fails is reported, and the others are still measured.
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

#: The table and the figures of a result.
Told = tuple[list[list[str]], list[dict[str, Any]]]
#: The facts that all parts of a file have in common.
_SAME = ("source_tree", "programs", "versions", "machine", "parameters")
#: Modules that only present results.
_ONLY_TELL = ["benchmarks.evaluation.papers", "benchmarks.tables", "benchmarks.evaluation.page"]


class Parts(Generic[Found]):
    """The results of an experiment so far.

    Args:
        kind: the type of a part's result, which msgspec must know.
        names: all parts, in the order of the report.
        made: the parser of options, to which :meth:`add_option` has been applied.
        chosen: the given options.
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
        """Return the parts (of some) that are still to be measured."""
        asked = self._names if some is None else some
        return [name for name in asked if self._chosen.anew or name not in self._found]

    def measure(
        self,
        names: Iterable[str],
        work: Callable[[str], Found],
        told: Callable[[dict[str, Found]], Told],
    ) -> int:
        """Measure parts one after another; write all results after each.

        Args:
            names: the parts.
            work: measures one part.
            told: makes a table and figures from all results.

        Returns:
            How many parts have failed. They are still missing, so the next run measures them.
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
        """Add the result of a part."""
        self._found[name] = found

    @property
    def found(self) -> dict[str, Found]:
        """The result of each part, in the order of all parts."""
        return {name: self._found[name] for name in self._names if name in self._found}

    def write(self, rows: list[list[str]], figures: list[dict[str, Any]]) -> None:
        """Write the results so far: a table and figures made from them, and the parts."""
        more = {
            "missing": [name for name in self._names if name not in self._found],
            "failed": self._failed,
            "parts": msgspec.to_builtins(self.found),
        }
        write(rows, figures, self._chosen, **self._facts, **more)


def command_of(
    made: argparse.ArgumentParser, chosen: argparse.Namespace, names: Iterable[str]
) -> str:
    """Return the command that measures all parts in this way, with its non-default options."""
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
    """Return the parts in a file if they were measured under the present conditions."""
    if file is None or not file.exists():
        return {}
    known = json.loads(file.read_text())
    if other := [what for what in _SAME if known.get(what) != now[what]]:
        aside = _aside(file, known["source_tree"][:8])  # (the file may hold the results of hours)
        file.replace(aside)
        told = f"{file.name} is of other {', '.join(other)}, and now {aside.name}: all is measured anew"
        print(told, flush=True)
        return {}
    return msgspec.convert(known["parts"], dict[str, kind], str_keys=True)  # type: ignore[valid-type]


def _aside(file: Path, tree: str) -> Path:
    """Return an unused name for a file that is of another tree or was measured otherwise."""
    names = (file.with_suffix(f".{tree}-{number}.json") for number in itertools.count(1))
    return next(name for name in names if not name.exists())
