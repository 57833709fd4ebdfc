"""How many lines of code each query takes, on our computations and in plain PySpark (the paper's Table 1).

Counted is what a query's function needs of this package: itself and all functions, classes and
constants that it names, directly or not; in the form that the formatter gives them, without blank
lines, comments and texts that document. What brings the events in is not counted.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType

from headrace.nexmark.queries import NAMES

_PACKAGE = "headrace.nexmark.queries"
_INPUT = {"Market", "SparkMarket"}


class _Definition:
    """Something that a module defines at its top level.

    Attributes:
        lines: the lines of the file that are its code.
        names: what it names.
    """

    def __init__(self, node: ast.stmt, file: list[str]) -> None:
        documented = {line for text in _texts(node) for line in _span(text)}
        documented |= {line for part in _imports(node) for line in _span(part)}
        texts = {line: file[line - 1].strip() for line in _span(node)}
        code = {line for line, text in texts.items() if text and not text.startswith("#")}
        self.lines = code - documented
        self.names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


class _Module:
    """What a module defines, and what it has from others of the package."""

    def __init__(self, module: ModuleType) -> None:
        self.defined: dict[str, _Definition] = {}
        self.imported: dict[str, tuple[str, str]] = {}
        source = inspect.getsource(module)
        tree = ast.parse(source)
        for part in ast.walk(tree):  # (also what a function imports)
            if isinstance(part, ast.ImportFrom) and str(part.module).startswith(_PACKAGE):
                origin = str(part.module)
                self.imported |= {a.asname or a.name: (origin, a.name) for a in part.names}
        for node in tree.body:
            for name in _defines(node):
                self.defined[name] = _Definition(node, source.splitlines())


def lines_of(query: str, function: str) -> int | None:
    """Return how many lines a query takes.

    Args:
        query: such as ``q5``.
        function: ``migratable`` or ``native``.

    Returns:
        None where there is no such function.
    """
    first = f"{_PACKAGE}.{query}"
    modules = {first: _Module(importlib.import_module(first))}
    if function not in modules[first].defined:
        return None
    counted: set[tuple[str, int]] = set()
    waiting, seen = [(first, function)], {(first, function)}
    while waiting:
        place, name = waiting.pop()
        found = modules[place].defined[name]
        counted |= {(place, line) for line in found.lines}
        for further in _needed(modules, place, found):
            if further not in seen:
                seen.add(further)
                waiting.append(further)
    return len(counted)


def _needed(
    modules: dict[str, _Module], place: str, found: _Definition
) -> Iterator[tuple[str, str]]:
    """Return what a definition needs, by module and name."""
    module = modules[place]
    for name in found.names - _INPUT:
        if name in module.defined:
            yield place, name
        elif name in module.imported:
            origin, known_as = module.imported[name]
            if origin not in modules:
                modules[origin] = _Module(importlib.import_module(origin))
            yield origin, known_as


def _defines(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _texts(node: ast.stmt) -> Iterator[ast.stmt]:
    """Return the texts that document a definition and what is in it."""
    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(part) is not None:
            yield part.body[0]


def _imports(node: ast.stmt) -> Iterator[ast.stmt]:
    """Return what a definition imports: others do so at the top of the module, where it is not counted."""
    return (part for part in ast.walk(node) if isinstance(part, ast.Import | ast.ImportFrom))


def _span(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def table() -> list[tuple[str, int | None, int | None]]:
    """Return all queries with how many lines they take: migratable, and native."""
    return [(query, lines_of(query, "migratable"), lines_of(query, "native")) for query in NAMES]


if __name__ == "__main__":
    for query, own, native in table():
        print(f"{query:4} {own:4} {native or '-':>4}")
