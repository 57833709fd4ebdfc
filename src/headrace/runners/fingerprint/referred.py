"""What code refers to by name: globals, attributes of modules among them, and imports."""

from __future__ import annotations

from types import CodeType, ModuleType
from typing import Any, NamedTuple

from headrace.runners.fingerprint.code import names_of
from headrace.runners.fingerprint.imported import imported_by
from headrace.runners.fingerprint.walk import Parts, Walk

#: Names that say where a module is and how it was loaded. They are left out.
_PLACE = frozenset(
    {
        "__builtins__",
        "__cached__",
        "__doc__",
        "__file__",
        "__loader__",
        "__name__",
        "__package__",
        "__path__",
        "__spec__",
    }
)
#: Code that uses these may use names that it does not spell out: of any module, or of its own.
_ANY_NAME = frozenset({"getattr", "vars", "__dict__", "attrgetter", "methodcaller"})
_ANY_GLOBAL = frozenset({"eval", "exec", "globals"})
_NOWHERE = object()


class InModule(NamedTuple):
    """What code refers to in a module: some names, or all of it."""

    name: str
    space: dict[str, Any]
    names: tuple[str, ...]
    whole: bool = False


def referred_by(walk: Walk, code: CodeType, space: dict[str, Any]) -> Parts:
    """Return what code refers to.

    Args:
        walk: the walk.
        code: the code.
        space: its globals.
    """
    names = tuple(names_of(code))
    any_name = not _ANY_NAME.isdisjoint(names)
    any_global = not _ANY_GLOBAL.isdisjoint(names) or {"modules", "__name__"}.issubset(names)
    parts: Parts = []
    for name in names:
        found = _NOWHERE if name in _PLACE else space.get(name, _NOWHERE)
        if isinstance(found, ModuleType):
            parts.append(InModule(found.__name__, vars(found), names, any_name or any_global))
        elif found is not _NOWHERE:
            parts += [name, found]
    if any_global:
        parts.append(InModule(str(space.get("__name__")), space, names, whole=True))
    return [*parts, *imported_by(code, str(space.get("__package__") or ""))]


def take_module_apart(walk: Walk, item: InModule) -> Parts:
    """Return what is referred to in a module, and in modules that it holds under these names."""
    parts: Parts = []
    seen, todo = set(), [item]
    while todo:
        name, space, names, whole = todo.pop()
        walk.say("module", name)
        if walk.by_name or id(space) in seen or not walk.owners.is_users(name):
            continue
        seen.add(id(space))
        walk.say(walk.owners.compiled(name))
        for wanted in _wanted(space, names, whole):
            found = space.get(wanted, _NOWHERE)
            if isinstance(found, ModuleType):
                todo.append(InModule(found.__name__, vars(found), names))
            elif found is not _NOWHERE and walk.is_new_name(space, wanted):
                parts += [wanted, found]
    return parts


def _wanted(space: dict[str, Any], names: tuple[str, ...], whole: bool) -> list[str]:
    if whole:
        return sorted(name for name in space if name not in _PLACE)
    # A function of this name creates attributes on demand.
    return [*(name for name in names if name not in _PLACE), "__getattr__"]
