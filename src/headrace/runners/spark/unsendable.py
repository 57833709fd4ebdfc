"""Finds what cannot be sent to tasks: the lock, client or file in an object of the user's."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from headrace.computation.inspection import source_place
from headrace.computation.installed import is_users_module
from headrace.errors import PipelineError
from headrace.errors.user_code import error_text
from headrace.pipeline import Pipeline

Dump = Callable[[Any], bytes]
#: Deepest path that is followed.
_DEEPEST = 40
_REMEDY = (
    "make it where it is used, once in each process: in a functools.cached_property of the "
    "computation, or in a function with functools.cache that handlers call"
)
_OF_SOURCES = (
    "make it where it is used, in read(), or leave it out of the copy that for_tasks() returns"
)


def refuse_what_cannot_be_sent(pipeline: Pipeline, dump: Dump, error: Exception) -> NoReturn:
    """Raise the error for a pipeline that cannot be sent to tasks.

    Args:
        pipeline: the pipeline.
        dump: returns an object as bytes, or raises.
        error: what it raised for the pipeline.

    Raises:
        PipelineError: with the path to what cannot be sent, and its type.
    """
    owners = [
        (f"computation {name!r}", node.computation, "self", _REMEDY)
        for name, node in pipeline.nodes.items()
    ]
    owners += [
        (f"the source of injector {name!r}", injector.source, "self", _OF_SOURCES)
        for name, injector in pipeline.injectors.items()
    ]
    for owner, item, path, remedy in owners:
        if not _fails(item, dump):
            continue
        where, part = _deepest(item, path, dump)
        if part is item:
            break
        raise PipelineError(
            f"{owner}: {where} is a {_name(type(part))}, which cannot be sent to tasks",
            place=source_place(item),
            remedy=remedy,
        ) from None
    raise PipelineError(
        f"pipeline {pipeline.name!r} cannot be sent to tasks: {error_text(error)}",
        remedy="keep locks, clients, files and the like out of computations and sources; "
        + _REMEDY,
    ) from error


def _name(kind: type) -> str:
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _fails(item: Any, dump: Dump) -> bool:
    try:
        dump(item)
    except Exception:
        return True
    return False


def _deepest(item: Any, path: str, dump: Dump) -> tuple[str, Any]:
    """Return the innermost part of an object that cannot be sent, with the path to it."""
    seen = {id(item)}
    for _ in range(_DEEPEST):
        for label, part in _parts(item):
            if id(part) not in seen and _fails(part, dump):
                seen.add(id(part))
                path = label if label[:1] not in ".[" else path + label
                item = part
                break
        else:
            break
    return path, item


def _parts(item: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an object as (how one comes to it, the part)."""
    if isinstance(item, types.FunctionType):
        yield from _parts_of_function(item)
    elif isinstance(item, types.MethodType):
        yield from ((".__self__", item.__self__), (".__func__", item.__func__))
    elif isinstance(item, functools.cached_property):
        yield ".func", item.func
    elif isinstance(item, functools.partial):
        yield from ((".func", item.func), (".args", item.args), (".keywords", item.keywords))
    elif isinstance(item, staticmethod | classmethod):
        yield ".__func__", item.__func__
    elif isinstance(item, property):
        yield from ((f".{name}", getattr(item, name)) for name in ("fget", "fset", "fdel"))
    elif isinstance(item, type):
        if is_users_module(item.__module__):
            yield from (
                (f"{item.__qualname__}.{name}", of)
                for name, of in vars(item).items()
                if not isinstance(of, types.GetSetDescriptorType) and name != "_abc_impl"
            )
            yield from ((base.__qualname__, base) for base in item.__bases__)
    elif isinstance(item, dict):
        yield from ((f"[{key!r:.40}]", value) for key, value in item.items())
    elif isinstance(item, list | tuple | set | frozenset):
        yield from ((f"[{number}]", value) for number, value in enumerate(item))
    else:
        yield from _parts_of_object(item)


def _parts_of_function(item: types.FunctionType) -> Iterator[tuple[str, Any]]:
    of = item.__qualname__
    for name, cell in zip(item.__code__.co_freevars, item.__closure__ or (), strict=False):
        try:
            yield f"the variable {name!r} that {of} uses", cell.cell_contents
        except ValueError:  # it is still empty
            continue
    names = _names_of(item.__code__)
    for name in sorted(names & set(item.__globals__)):
        yield f"the global {name!r} that {of} uses", item.__globals__[name]
    yield f"a default of {of}", item.__defaults__
    yield f"a default of {of}", item.__kwdefaults__


def _names_of(code: types.CodeType) -> set[str]:
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*(_names_of(part) for part in inner))


def _parts_of_object(item: Any) -> Iterator[tuple[str, Any]]:
    kind = type(item)
    own = getattr(item, "__dict__", {})
    if isinstance(own, dict):
        yield from ((f".{name}", value) for name, value in own.items())
    for base in kind.__mro__:
        for name, slot in vars(base).items():
            if isinstance(slot, types.MemberDescriptorType) and is_users_module(base.__module__):
                yield f".{name}", getattr(item, name, None)
    wrapped = getattr(item, "__wrapped__", None)
    if wrapped is not None:
        yield ".__wrapped__", wrapped
    if is_users_module(kind.__module__):
        yield kind.__qualname__, kind
