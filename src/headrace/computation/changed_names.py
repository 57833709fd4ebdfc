"""What a function changes in place, as far as its source says so.

A function changes ``self.seen`` by ``self.seen[key] = 1``, ``self.seen.append(1)``, ``del``, and
so on; a global and a variable of an outer function likewise. What it passes on to other code is not
followed.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

#: Methods by which Python's own containers are changed.
CHANGING = frozenset(
    {
        "add",
        "append",
        "appendleft",
        "clear",
        "difference_update",
        "discard",
        "extend",
        "extendleft",
        "fill",
        "insert",
        "intersection_update",
        "move_to_end",
        "pop",
        "popitem",
        "popleft",
        "remove",
        "reverse",
        "rotate",
        "setdefault",
        "sort",
        "subtract",
        "symmetric_difference_update",
        "update",
    }
)
#: Functions that change their first argument.
_CHANGING_FUNCTIONS = frozenset(
    {
        "heappush",
        "heappop",
        "heapify",
        "heapreplace",
        "heappushpop",
        "insort",
        "insort_left",
        "insort_right",
        "shuffle",
        "next",
        "setattr",
        "delattr",
    }
)

#: How something is changed: an item of it, by one of its methods, an attribute of it, or the name.
ITEM, METHOD, ATTRIBUTE, NAME, PASSED = "item", "method", "attribute", "name", "passed"


#: Statements and patterns that bind a name of their own.
_BINDING = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.ExceptHandler,
    ast.MatchAs,
    ast.MatchStar,
)


class Changed(NamedTuple):
    """Something that a function changes.

    Attributes:
        path: the name that it begins with and the attributes that follow, such as ``("self",
            "seen")``. For ``ATTRIBUTE`` and ``NAME``, the last one is what is assigned.
        how: how it is changed.
        line: the line in the file.
        exact: whether the change is of the object at the path itself, not of something in it.
    """

    path: tuple[str, ...]
    how: str
    line: int
    exact: bool = True


class Body(NamedTuple):
    """What is known of a function from its source.

    Attributes:
        changes: what it changes.
        names: the names that it uses and does not assign.
        members: the attributes of its first parameter that it uses.
    """

    changes: tuple[Changed, ...] = ()
    names: frozenset[str] = frozenset()
    members: frozenset[str] = frozenset()


def body_of(function: FunctionType) -> Body:
    """Return what is known of a function. Without its source, nothing is."""
    return _body_of_code(function.__code__)


@functools.lru_cache(maxsize=4096)
def _body_of_code(code: CodeType) -> Body:
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError, IndexError):
        return Body()  # made without a file, or a lambda within a longer statement
    found = next((of for of in ast.walk(tree) if _is_of(of, code)), None)
    return Body() if found is None else _Reader(found, first).body()


def _is_of(node: ast.AST, code: CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name


class _Reader:
    """Reads the body of one function, with all that is nested in it."""

    def __init__(self, function: Any, first_line: int) -> None:
        self._function = function
        self._first = first_line
        of = function.args
        parameters = [
            *of.posonlyargs,
            *of.args,
            *of.kwonlyargs,
            *filter(None, (of.vararg, of.kwarg)),
        ]
        self._own = next((arg.arg for arg in (*of.posonlyargs, *of.args)), "")
        self._outer: set[str] = set()  # declared global or nonlocal
        for node in ast.walk(function):
            if isinstance(node, ast.Global | ast.Nonlocal):
                self._outer |= set(node.names)
        self._local = {arg.arg for arg in parameters} | self._assigned()
        self._same = self._other_names()

    def _assigned(self) -> set[str]:
        found: set[str] = set()
        for node in ast.walk(self._function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.arg):  # of a nested function
                found.add(node.arg)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                found |= {(of.asname or of.name).partition(".")[0] for of in node.names}
            elif isinstance(node, _BINDING) and node is not self._function and node.name:
                found.add(node.name)
        return found - self._outer

    def _other_names(self) -> dict[str, tuple[str, ...]]:
        """Return local names that only stand for something else: ``seen = self.seen``."""
        given: dict[str, list[ast.expr]] = {}
        for node in ast.walk(self._function):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                target = node.targets[0]
                if isinstance(target, ast.Name):
                    given.setdefault(target.id, []).append(node.value)
        stores = [
            node.id
            for node in ast.walk(self._function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
        found = {}
        for name, values in given.items():
            path = _path(values[0])
            if len(values) == 1 and stores.count(name) == 1 and path and path[0] != name:
                found[name] = path
        return found

    def body(self) -> Body:
        changes = [
            Changed(path, how, self._first + node.lineno - 1, exact)
            for node, target, how in self._changing()
            for path, exact in [self._resolved(target)]
            if path
        ]
        names = {
            node.id
            for node in ast.walk(self._function)
            if isinstance(node, ast.Name) and node.id not in self._local
        }
        members = {
            node.attr
            for node in ast.walk(self._function)
            if isinstance(node, ast.Attribute) and _path(node.value) in (("super()",), (self._own,))
        }
        return Body(tuple(changes), frozenset(names), frozenset(members))

    def _resolved(self, target: ast.expr) -> tuple[tuple[str, ...], bool]:
        """Return the path of what is changed, and whether it is that itself. No path for locals."""
        exact = True
        while _path(target) is None:
            if not isinstance(target, ast.Attribute | ast.Subscript):
                return (), False
            target, exact = target.value, False
        path = _path(target) or ()
        for _ in range(8):
            if path[0] in self._same and path[0] not in self._outer:
                path = (*self._same[path[0]], *path[1:])
        is_own = path[0] == self._own or path[0].startswith("type(")
        return (path, exact) if is_own or path[0] not in self._local else ((), False)

    def _changing(self) -> Iterator[tuple[Any, ast.expr, str]]:
        for node in ast.walk(self._function):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
                yield node, node.value, ITEM
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
                yield node, node, ATTRIBUTE
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
                if node.id in self._outer:
                    yield node, node, NAME
            elif isinstance(node, ast.Call):
                yield from self._called(node)

    def _called(self, node: ast.Call) -> Iterator[tuple[Any, ast.expr, str]]:
        of = node.func
        if isinstance(of, ast.Attribute) and of.attr in CHANGING:
            yield node, of.value, METHOD
        name = of.attr if isinstance(of, ast.Attribute) else getattr(of, "id", "")
        if name in _CHANGING_FUNCTIONS and node.args:
            yield node, node.args[0], PASSED


def _path(node: ast.expr) -> tuple[str, ...] | None:
    """Return a name and the attributes that follow it; None for any other expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        return (node.id, *reversed(names))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "super":
            return ("super()", *reversed(names))
        if node.func.id == "type" and len(node.args) == 1 and isinstance(node.args[0], ast.Name):
            return (f"type({node.args[0].id})", *reversed(names))
    return None
