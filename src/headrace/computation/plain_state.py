"""Finds what a computation keeps in plain Python objects, where declared state belongs.

Each worker process has one object of a computation, and uses it for all keys, again and again. So
what a handler puts into a plain attribute for one key, the next key sees; other processes do not;
and a restart forgets it. The same holds for module globals and variables of outer functions.

There are two rules, both checked while the pipeline is built:

- A class attribute that can be changed is refused, unless it is marked as a constant: by
  ``typing.Final``, or by a name in capitals (unless it is empty).
- What a handler changes in place, or assigns, is refused, whatever it is called: attributes of the
  class and of the object, globals, and variables of outer functions. Methods and functions of the
  user's modules that handlers call are looked at, too, as far as their source is there.
"""

from __future__ import annotations

import array
import collections
import inspect
import re
import types
from collections.abc import Collection, Iterator
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from headrace.computation.changed_names import (
    ATTRIBUTE,
    METHOD,
    NAME,
    PASSED,
    Changed,
    body_of,
)
from headrace.computation.computation import UserCode
from headrace.computation.declarations import Declaration, Output
from headrace.computation.inspection import source_place
from headrace.computation.installed import is_users_module
from headrace.errors import PipelineError

_CONTAINERS = (
    dict,
    list,
    set,
    bytearray,
    array.array,
    collections.deque,
    collections.UserDict,
    collections.UserList,
)
#: Modules whose objects draw random numbers. (Nothing here may draw one, so they are named.)
_RANDOM = ("random", "_random", "numpy.random")
_FINAL = re.compile(r"\bFinal\b")
#: Methods that run before any handler, and may set up the object.
_SETTING_UP = frozenset(
    {
        "__init__",
        "__new__",
        "__post_init__",
        "__init_subclass__",
        "__set_name__",
        "__setstate__",
        "__getstate__",
        "__reduce__",
        "__reduce_ex__",
        "__copy__",
        "__deepcopy__",
        "declare",
    }
)
#: Largest number of functions that are followed from the handlers of one computation.
_MOST_FUNCTIONS = 500
_NOWHERE = object()


class _Found(NamedTuple):
    """An object that code refers to by a path, and what the path is to a reader."""

    item: Any
    what: str
    name: str


def check_plain_state(computation: UserCode, declared: Collection[str], *, name: str) -> None:
    """Check that a computation keeps nothing in plain objects.

    Args:
        computation: the user's object.
        declared: the names of its declarations.
        name: the computation's name.

    Raises:
        PipelineError: naming the first attribute or variable that would be shared by all keys.
    """
    cls = type(computation)
    users = [base for base in cls.__mro__ if is_users_module(base.__module__)]
    if users[:1] == [cls]:
        _check_declarations(computation, users, declared, name)
    _check_class_attributes(users, declared, name)
    for owner, function in _reachable(computation, users):
        for change in body_of(function).changes:
            _check_change(computation, owner, function, change, declared, name)


# -- class attributes ------------------------------------------------------------------------------


def _check_declarations(
    computation: UserCode, users: list[type[Any]], declared: Collection[str], name: str
) -> None:
    """Check that state is declared in the class: neither in ``__init__``, nor as a bare type."""
    for attribute, value in vars(computation).items():
        if isinstance(value, Declaration | Output) and not value.name:
            kind = type(value).__name__
            raise PipelineError(
                f"computation {name!r}: {attribute!r} is made in __init__, and is not a declared state "
                "there",
                place=source_place(type(computation)),
                remedy=f"declare it at class level: {attribute} = hr.{kind}(…); or return it from "
                "declare(), if it depends on arguments",
            )
    for base in users:
        for attribute, value in vars(base).items():
            if attribute not in declared and _is_declaration_class(value):
                raise PipelineError(
                    f"computation {name!r}: {base.__name__}.{attribute} is the class "
                    f"{value.__name__}, and declares nothing",
                    place=source_place(base),
                    remedy=f"make a declaration: {attribute} = hr.{value.__name__}(…)",
                )


def _is_declaration_class(value: Any) -> bool:
    is_one = isinstance(value, type) and issubclass(value, Declaration | Output)
    return is_one and not is_users_module(value.__module__)


def _check_class_attributes(users: list[type[Any]], declared: Collection[str], name: str) -> None:
    seen: set[str] = set(declared)
    for base in users:
        for attribute, value in vars(base).items():
            if attribute in seen or (attribute.startswith("__") and attribute.endswith("__")):
                continue
            seen.add(attribute)
            kind = changeable(value)
            if kind and not _is_constant(base, attribute, value):
                raise PipelineError(
                    f"computation {name!r}: {base.__name__}.{attribute} is {kind}, which all keys "
                    "share and nothing keeps",
                    place=source_place(base),
                    remedy=f"{_declare(attribute, value)}; if nothing changes it, say so: "
                    f"{attribute}: Final = …{_frozen(value)}",
                )


def _is_constant(base: type[Any], attribute: str, value: Any) -> bool:
    """Return whether an attribute is marked as a constant."""
    annotation = inspect.get_annotations(base).get(attribute)
    if annotation is not None and _FINAL.search(str(annotation)):
        return True
    in_capitals = attribute.isupper()
    return in_capitals and not (isinstance(value, _CONTAINERS) and not len(value))


def changeable(value: Any) -> str:
    """Return in words what a value is if it can be changed in place; "" if it cannot, or may not.

    Objects of libraries count as constants: what they do is theirs.
    """
    if isinstance(value, type | types.ModuleType | Enum | Declaration | Output):
        return ""
    kind = type(value)
    if isinstance(value, _CONTAINERS):
        return "" if "frozen" in kind.__name__.lower() else f"a plain {kind.__name__}"
    if isinstance(value, np.ndarray):
        return "a NumPy array that can be written" if value.flags.writeable else ""
    if _is_random(value):
        return f"a generator of random numbers ({kind.__name__})"
    if hasattr(kind, "__get__") or inspect.isroutine(value):
        return ""
    if hasattr(kind, "__next__") and not hasattr(kind, "read"):
        return f"an iterator ({kind.__name__})"
    if is_users_module(kind.__module__) and _changes_itself(kind, value):
        return f"an object of {kind.__name__}, which changes itself"
    return ""


def _is_random(value: Any) -> bool:
    modules = {base.__module__ for base in type(value).__mro__}
    return any(module.startswith(_RANDOM) for module in modules)


def _changes_itself(kind: type[Any], value: Any) -> bool:
    """Return whether a user's class has methods that change its objects."""
    parameters = getattr(kind, "__dataclass_params__", None)
    config = getattr(kind, "__struct_config__", None)
    if getattr(parameters, "frozen", False) or getattr(config, "frozen", False):
        return False
    for base in kind.__mro__:
        if not is_users_module(base.__module__):
            continue
        for name, member in vars(base).items():
            if not isinstance(member, types.FunctionType) or name in _SETTING_UP:
                continue
            own = member.__code__.co_varnames[:1]
            if any(
                change.path[:1] == own and len(change.path) > 1
                for change in body_of(member).changes
            ):
                return True
    return False


# -- what handlers change --------------------------------------------------------------------------


def _reachable(
    computation: UserCode, users: list[type[Any]]
) -> Iterator[tuple[type[Any] | None, types.FunctionType]]:
    """Yield the user's functions that handlers may call, each with its class.

    These are the handlers, the methods and functions that they name, and functions that were given
    to the object.
    """
    libraries = [base for base in type(computation).__mro__ if base not in users]
    handlers = {n for base in libraries for n in vars(base) if not n.startswith("__")}
    todo: list[tuple[type[Any] | None, Any]] = [
        member for name in sorted(handlers - _SETTING_UP) for member in _members(users, name)
    ]
    todo += [(None, part) for part in _given(computation)]
    seen: set[int] = set()
    while todo and len(seen) < _MOST_FUNCTIONS:
        owner, found = todo.pop()
        for function in _functions_of(found):
            if id(function.__code__) in seen or not is_users_module(function.__module__):
                continue
            seen.add(id(function.__code__))
            yield (None if isinstance(found, staticmethod) else owner), function
            body = body_of(function)
            if owner is not None:
                wanted = sorted(body.members - _SETTING_UP)
                todo += [member for name in wanted for member in _members(users, name)]
            space = function.__globals__
            todo += [(None, space[name]) for name in sorted(body.names) if name in space]
            todo += [(None, of) for of in _closure(function).values()]


def _members(users: list[type[Any]], name: str) -> list[tuple[type[Any] | None, Any]]:
    return [(base, vars(base)[name]) for base in users if name in vars(base)]


def _given(computation: UserCode) -> list[Any]:
    found = []
    for value in vars(computation).values():
        if isinstance(value, list | tuple) and len(value) <= _MOST_FUNCTIONS:
            found += list(value)
        elif isinstance(value, dict) and len(value) <= _MOST_FUNCTIONS:
            found += list(value.values())
        else:
            found.append(value)
    return found


def _functions_of(item: Any) -> Iterator[types.FunctionType]:
    if isinstance(item, staticmethod | classmethod | types.MethodType):
        item = item.__func__
    if isinstance(item, property):
        yield from (
            of for of in (item.fget, item.fset, item.fdel) if isinstance(of, types.FunctionType)
        )
        return
    item = getattr(item, "func", item) if type(item).__name__ == "partial" else item
    if isinstance(item, types.FunctionType):
        yield item


def _closure(function: types.FunctionType) -> dict[str, Any]:
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # it is still empty
            continue
    return found


def _check_change(
    computation: UserCode,
    owner: type[Any] | None,
    function: types.FunctionType,
    change: Changed,
    declared: Collection[str],
    name: str,
) -> None:
    found = _what_is_changed(computation, owner, function, change, declared)
    if found is None:
        return
    where = f"{function.__code__.co_filename}:{change.line}"
    raise PipelineError(
        f"computation {name!r}: {function.__qualname__} changes {found.what}, which all keys share "
        "and nothing keeps",
        place=where,
        remedy=f"{_declare(found.name, found.item)}; for a cache of a pure function, use "
        "functools.lru_cache",
    )


def _what_is_changed(
    computation: UserCode,
    owner: type[Any] | None,
    function: types.FunctionType,
    change: Changed,
    declared: Collection[str],
) -> _Found | None:
    """Return what a change applies to, if it is shared by all keys; None if it is not."""
    first, *rest = change.path
    closure, own = _closure(function), _first_parameter(function)
    if first in (own, "super()", f"type({own})"):
        return None if owner is None else _of_object(computation, change, rest, declared)
    if first in closure:
        return _of_variable(closure[first], "the outer variable", change)
    if first in function.__globals__:
        return _of_variable(function.__globals__[first], "the global", change)
    return None


def _first_parameter(function: types.FunctionType) -> str:
    code = function.__code__
    return code.co_varnames[0] if code.co_argcount else ""


def _of_object(
    computation: UserCode, change: Changed, rest: list[str], declared: Collection[str]
) -> _Found | None:
    if not rest or rest[0] in declared:
        return None
    item: Any = vars(computation).get(rest[0], _NOWHERE)
    if item is _NOWHERE:
        item = inspect.getattr_static(type(computation), rest[0], _NOWHERE)
    if isinstance(item, Declaration | Output | property):
        return None
    what = f"self.{rest[0]}"
    if change.how == ATTRIBUTE and len(rest) == 1:
        return _Found(None if item is _NOWHERE else item, what, rest[0])
    return _inside(item, rest[1:], change, what, rest[0])


def _of_variable(item: Any, kind: str, change: Changed) -> _Found | None:
    first, *rest = change.path
    if change.how == NAME:
        return _Found(item, f"{kind} {first!r}", first)
    if isinstance(item, type):
        if not issubclass(item, UserCode) or not rest:
            return None
        value = inspect.getattr_static(item, rest[0], _NOWHERE)
        if change.how == ATTRIBUTE and len(rest) == 1:
            return _Found(value, f"the class attribute {first}.{rest[0]}", rest[0])
        return _inside(value, rest[1:], change, f"the class attribute {first}.{rest[0]}", rest[0])
    if isinstance(item, types.ModuleType):
        if not rest or not is_users_module(item.__name__):
            return None
        value = vars(item).get(rest[0], _NOWHERE)
        if change.how == ATTRIBUTE and len(rest) == 1:
            return _Found(value, f"the global {first}.{rest[0]}", rest[0])
        return _inside(value, rest[1:], change, f"the global {first}.{rest[0]}", rest[0])
    return _inside(item, rest, change, f"{kind} {first!r}", first)


def _inside(item: Any, rest: list[str], change: Changed, what: str, name: str) -> _Found | None:
    """Return an object if the change is of it, or of something in it."""
    for number, attribute in enumerate(rest):
        if change.how == ATTRIBUTE and number == len(rest) - 1:
            break
        item = getattr(item, attribute, _NOWHERE) if _is_plain(item) else _NOWHERE
    if change.how == ATTRIBUTE:
        return _Found(item, what, name) if _is_plain(item) else None
    is_container = isinstance(item, (*_CONTAINERS, np.ndarray, tuple, types.MappingProxyType))
    if isinstance(item, tuple | types.MappingProxyType) and change.exact:
        return None  # (it cannot be changed: the handler will say so)
    if change.how in (METHOD, PASSED) and not change.exact and not is_container:
        return None
    if change.how == PASSED and change.exact and (changeable(item) or is_container):
        return _Found(item, what, name)
    return _Found(item, what, name) if is_container else None


def _is_plain(item: Any) -> bool:
    """Return whether an object is of a user's class, so that its attributes are plain."""
    return isinstance(item, types.SimpleNamespace) or is_users_module(type(item).__module__)


# -- what to do about it ---------------------------------------------------------------------------


def _declare(attribute: str, value: Any) -> str:
    """Return how to declare state in the place of a plain value."""
    name = attribute.lower()
    if isinstance(value, (dict, collections.UserDict)):
        return f"declare state of each key: {name} = hr.MapState(str, int), with your types"
    if isinstance(value, (list, collections.deque, collections.UserList, array.array)):
        return f"declare state of each key: {name} = hr.ListState(int), with your type"
    if isinstance(value, set):
        return f"declare state of each key: {name} = hr.ValueState(set[str], default=set())"
    if _is_random(value):
        return "use ctx.random(), which is the same if the step is computed again"
    of = type(value).__name__ if isinstance(value, bool | int | float | str | bytes) else "int"
    return f"declare state of each key: {name} = hr.ValueState({of}, …), with your type"


def _frozen(value: Any) -> str:
    """Return which constant can stand for a value."""
    if isinstance(value, dict):
        return ", or use types.MappingProxyType(…)"
    if isinstance(value, list | set):
        return f", or use a {'tuple' if isinstance(value, list) else 'frozenset'}"
    if isinstance(value, np.ndarray):
        return ", or .setflags(write=False)"
    return ""
