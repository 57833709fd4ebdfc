"""How each kind of object is taken apart: what it is, and its parts."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from headrace.pipeline import Injector, Node, SinkNode, Stream
from headrace.pipeline.graph import PipelineGraph
from headrace.pipeline.sink import Sink
from headrace.pipeline.source import Source
from headrace.runners.fingerprint.code import parts_of_code
from headrace.runners.fingerprint.imported import Imported, take_imported_apart
from headrace.runners.fingerprint.objects import members_of, take_object_apart
from headrace.runners.fingerprint.owners import is_static
from headrace.runners.fingerprint.referred import InModule, referred_by, take_module_apart
from headrace.runners.fingerprint.walk import Parts, Walk
from headrace.runners.spark.code_shipping import STRUCT_OPTIONS
from headrace.schema.nested import META

#: Names of a class that Python itself adds or derives from others.
_OF_PYTHON = frozenset(
    {
        "__module__",
        "__doc__",
        "__firstlineno__",
        "__static_attributes__",
        "__annotations_cache__",
        "__abstractmethods__",
        "_abc_impl",
        "__slots__",
        "__match_args__",
        "__parameters__",
    }
)
_BUILT_IN = (
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
)


def how(kind: type) -> Callable[[Walk, Any], Parts]:
    """Return the function that takes objects of a type apart."""
    exactly = _EXACTLY.get(kind)
    if exactly is not None:
        return exactly
    for kinds, take in _AND_BELOW:
        if issubclass(kind, kinds):
            return take
    return take_object_apart


# -- containers -------------------------------------------------------------------------------


def _dict(walk: Walk, item: dict[Any, Any]) -> Parts:
    pairs = list(item.items())
    parts = [part for pair in pairs for part in pair]
    if walk.flat("dict", parts):
        return []
    walk.say("dict", len(pairs))
    return parts


def _list(walk: Walk, item: list[Any] | tuple[Any, ...]) -> Parts:
    kind = type(item).__name__
    if walk.flat(kind, item):
        return []
    walk.say(kind, len(item))
    return list(item)


def _view(walk: Walk, item: Any) -> Parts:
    walk.say(type(item).__name__)
    return [list(item)]


def _memory(walk: Walk, item: memoryview) -> Parts:
    walk.say("memory", item.tobytes(), item.format)
    return []


def _set(walk: Walk, item: set[Any] | frozenset[Any]) -> Parts:
    if walk.flat_set("set", item):
        return []
    walk.say("set", len(item))
    return walk.in_order(item)


# -- code -------------------------------------------------------------------------------------


def _function(walk: Walk, item: types.FunctionType) -> Parts:
    registry = getattr(item, "registry", None)
    # functools.singledispatch: leave out its cache
    if isinstance(registry, types.MappingProxyType):
        walk.say("dispatch", item.__module__, item.__qualname__)
        return (
            [dict(registry)] if walk.owners.is_users(item.__module__) else _foreign(walk, registry)
        )
    if walk.owners.counts_by_name(item):
        walk.say("function", item.__module__, item.__qualname__)
        return []
    return [*_code_of(walk, item), *_held_by(item)]


def _foreign(walk: Walk, registry: types.MappingProxyType[type, Any]) -> Parts:
    """Return the functions that the user registered with a library's function."""
    by_name = walk.owners.counts_by_name
    return [part for pair in registry.items() if not by_name(pair[1]) for part in pair]


def _code_of(walk: Walk, item: types.FunctionType) -> Parts:
    """Return a function's code and what it refers to. Code of a library counts by its name."""
    owner, code = item.__globals__.get("__name__", item.__module__), item.__code__
    if not walk.owners.is_users(owner):
        walk.say("function of", owner, code.co_qualname)
        return []
    walk.say("code of", item.__qualname__)
    if walk.by_name:
        walk.say(item.__module__, code.co_firstlineno)
        return [code]
    return [code, *referred_by(walk, code, item.__globals__)]


def _held_by(item: types.FunctionType) -> Parts:
    parts: Parts = [item.__defaults__, item.__kwdefaults__]
    for cell in item.__closure__ or ():
        try:
            parts += ["cell", cell.cell_contents]
        except ValueError:  # it is still empty
            parts.append("empty cell")
    return [*parts, members_of(item)]


def _code(walk: Walk, item: types.CodeType) -> Parts:
    data, consts = parts_of_code(item)
    walk.say("code", *data, len(consts))
    return consts


def _class(walk: Walk, item: type) -> Parts:
    walk.say("class", item.__qualname__)
    if walk.by_name or is_static(item) or walk.owners.counts_by_name(item):
        walk.say(item.__module__)
        return []
    parts: Parts = [type(item), item.__bases__]
    for name, value in sorted(vars(item).items()):
        if name not in _OF_PYTHON and not isinstance(value, _BUILT_IN):
            parts += [name, value]
    if isinstance(item, msgspec.StructMeta):
        parts += _fields_of(item)
    return parts


def _fields_of(item: Any) -> Parts:
    config = item.__struct_config__
    return [
        item.__struct_fields__,
        item.__struct_encode_fields__,
        item.__struct_defaults__,
        [getattr(config, name) for name in STRUCT_OPTIONS],
    ]


def _module(walk: Walk, item: types.ModuleType) -> Parts:
    """Take apart a module that is a value. Anything in it may be used."""
    return [InModule(item.__name__, vars(item), (), whole=True)]


def _built_in(walk: Walk, item: types.BuiltinFunctionType) -> Parts:
    owner = item.__self__
    walk.say("built in", item.__qualname__)
    if owner is None or isinstance(owner, types.ModuleType):
        walk.say(item.__module__, walk.owners.compiled(item.__module__))
        return []
    return [owner]


def _method(walk: Walk, item: types.MethodType) -> Parts:
    walk.say("method")
    return [item.__func__, item.__self__]


def _wrapped(walk: Walk, item: Any) -> Parts:
    walk.say(type(item).__name__)
    return [item.__func__]


def _property(walk: Walk, item: property) -> Parts:
    walk.say("property")
    return [type(item), item.fget, item.fset, item.fdel]


def _partial(walk: Walk, item: partial[Any]) -> Parts:
    walk.say("partial")
    return [item.func, item.args, item.keywords, members_of(item)]


# -- others -----------------------------------------------------------------------------------


def _constraints(walk: Walk, item: msgspec.Meta) -> Parts:
    walk.say("constraints")
    return [getattr(item, name) for name in META]


def _factory(walk: Walk, item: Any) -> Parts:
    walk.say("factory")
    return [item.factory]


def _weak(walk: Walk, item: object) -> Parts:
    """Leave out the target of a weak reference. It may disappear at any time."""
    walk.say("weak", type(item).__qualname__)
    return []


def _graph_parts(walk: Walk, item: object) -> Parts:
    """Count a part of the pipeline by its type. The topology counts elsewhere.

    Handlers do not use such objects.
    """
    walk.say("drawn", type(item).__qualname__)
    return []


class _WithFactory(msgspec.Struct):
    made: list[int] = []


_EXACTLY: dict[type, Callable[[Walk, Any], Parts]] = {
    dict: _dict,
    types.MappingProxyType: _dict,
    list: _list,
    tuple: _list,
    set: _set,
    frozenset: _set,
    memoryview: _memory,
    **dict.fromkeys([type({}.keys()), type({}.values()), type({}.items())], _view),
    types.FunctionType: _function,
    types.CodeType: _code,
    types.MethodType: _method,
    types.BuiltinFunctionType: _built_in,
    partial: _partial,
    msgspec.Meta: _constraints,
    type(_WithFactory.__struct_defaults__[0]): _factory,
    InModule: take_module_apart,
    Imported: take_imported_apart,
}
_AND_BELOW: list[tuple[Any, Callable[[Walk, Any], Parts]]] = [
    (type, _class),
    (types.ModuleType, _module),
    ((classmethod, staticmethod), _wrapped),
    (property, _property),
    (
        (
            weakref.ref,
            weakref.ProxyType,
            weakref.CallableProxyType,
            weakref.WeakSet,
            weakref.WeakKeyDictionary,
            weakref.WeakValueDictionary,
        ),
        _weak,
    ),
    ((PipelineGraph, Source, Sink, Node, Injector, SinkNode, Stream), _graph_parts),
]
