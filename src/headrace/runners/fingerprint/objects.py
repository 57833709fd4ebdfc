"""How instances of classes are taken apart: by their members, or in the way of pickle."""

from __future__ import annotations

import copyreg
import functools
import gc
import types
from typing import Any

import msgspec

from headrace.runners.fingerprint.owners import is_static
from headrace.runners.fingerprint.walk import PLAIN, Parts, Walk

_CALLED = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial, type)


def take_object_apart(walk: Walk, item: object) -> Parts:
    """Return an object's class and its content."""
    kind = type(item)
    walk.say("object")
    return [kind, *_content(walk, item, kind)]


def members_of(item: object) -> dict[str, Any]:
    """Return an object's attributes and slots, without docstring and cached properties."""
    kind = type(item)
    try:
        found = dict(vars(item))
    except Exception:  # it has none, or computes them
        found = {}
    found.pop("__doc__", None)
    for name in list(found):
        if isinstance(getattr(kind, name, None), functools.cached_property):
            del found[name]
    return found | _slots_of(item, kind)


def _slots_of(item: object, kind: type) -> dict[str, Any]:
    found = {}
    for base in kind.__mro__:
        if "__slots__" not in vars(base):
            continue
        for name, slot in vars(base).items():
            if type(slot) is types.MemberDescriptorType:
                try:
                    found[f"{base.__qualname__}.{name}"] = slot.__get__(item, kind)
                except AttributeError:  # the slot is empty
                    continue
    return found


def _content(walk: Walk, item: Any, kind: type) -> Parts:
    if kind in copyreg.dispatch_table:
        return _reduced(walk, item, copyreg.dispatch_table[kind](item))
    if issubclass(kind, msgspec.Struct):
        values = [getattr(item, name, None) for name in kind.__struct_fields__]
        return [values, members_of(item)]
    if issubclass(kind, set | frozenset):
        walk.say("set", len(item))
        base: Any = set if issubclass(kind, set) else frozenset
        return [*walk.in_order(base.__iter__(item)), members_of(item)]
    if walk.owners.is_users(kind.__module__):
        return [*_from_above(walk, item, kind), members_of(item)]
    members = members_of(item)
    if members and not _reduces_itself(kind):
        return [members]
    return _as_pickled(walk, item)


def _from_above(walk: Walk, item: Any, kind: type) -> Parts:
    """Return the content that an object of a user's class has as one of Python's classes."""
    if issubclass(kind, dict):
        return [dict(dict.items(item))]
    if issubclass(kind, list):
        return [list(list.__iter__(item))]
    if issubclass(kind, tuple):
        return [tuple(tuple.__iter__(item))]
    above = next(base for base in kind.__mro__ if is_static(base))
    return [] if above is object else _as_pickled(walk, item)


def _as_pickled(walk: Walk, item: Any) -> Parts:
    try:
        reduced = item.__reduce_ex__(4)
    except Exception:  # it cannot be taken apart: use what can be seen in it
        walk.say("whole")
        return [members_of(item), *_seen_in(walk, item)]
    return _reduced(walk, item, reduced)


def _reduced(walk: Walk, item: Any, reduced: Any) -> Parts:
    if isinstance(reduced, str):
        module = getattr(item, "__module__", None)
        walk.say("named", reduced, module, walk.owners.compiled(module))
        return [] if walk.owners.counts_by_name(item) else [members_of(item)]
    parts = list(reduced)
    walk.say("reduced", len(parts))
    return [*parts[:3], *(None if part is None else list(part) for part in parts[3:5]), *parts[5:]]


def _seen_in(walk: Walk, item: Any) -> Parts:
    """Return code and plain values in an object, as Python's garbage collector sees it."""
    found = [part for part in gc.get_referents(item) if part is not type(item)]
    return [part for part in found if _is_significant(walk, part)]


def _is_significant(walk: Walk, part: Any) -> bool:
    kind = type(part)
    return kind in PLAIN or isinstance(part, _CALLED) or walk.owners.is_users(kind.__module__)


def _reduces_itself(kind: type) -> bool:
    """Return whether a class defines how pickle takes its objects apart."""
    own = [vars(base) for base in kind.__mro__[:-1]]
    return any(name in of for of in own for name in ("__reduce_ex__", "__reduce__", "__getstate__"))
