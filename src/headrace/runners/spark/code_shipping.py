"""Sends the pipeline's code to tasks, by value.

All user modules are pickled with their content. These are the modules that are neither installed
nor part of Python. So a Python worker has exactly the code that the driver had when the run
started, whatever the worker imported before and whatever is on its disk. The digest of the code is
part of the key for soft state.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import io
import operator
import sys
import types
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import cloudpickle
import msgspec

from headrace.computation.installed import NEVER_THE_USERS, is_installed, is_users_module
from headrace.errors import HeadraceError, PipelineError
from headrace.pipeline import Pipeline
from headrace.runners.spark.unsendable import refuse_what_cannot_be_sent
from headrace.schema.nested import META


def for_tasks(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline as tasks need it: with sources that they can read, without sinks."""
    slim = copy.copy(pipeline)
    slim.injectors = {}
    for name, injector in pipeline.injectors.items():
        shared = copy.copy(injector)
        shared.source = injector.source.for_tasks()
        slim.injectors[name] = shared
    slim.sinks = {}
    for name, node in pipeline.sinks.items():
        named = copy.copy(node)
        named.sink = None
        slim.sinks[name] = named
    return slim


def pickled(pipeline: Pipeline) -> bytes:
    """Return the pipeline with the user's code as bytes, for ``pickle.loads`` in a task.

    Raises:
        PipelineError: if something cannot be sent to tasks, with its place in the user's objects.
    """
    slim = for_tasks(pipeline)
    with user_modules_by_value():
        try:
            return dumped(slim)
        except HeadraceError:
            raise
        except Exception as error:
            refuse_what_cannot_be_sent(slim, dumped, error)


def check_sendable(pipeline: Pipeline) -> None:
    """Check that all computations could be sent to tasks, for runners that do not send them.

    A pipeline that runs in one process should run on Spark as well.

    Raises:
        PipelineError: if one cannot be sent.
    """
    with user_modules_by_value():
        try:
            dumped([node.computation for node in pipeline.nodes.values()])
        except HeadraceError:
            raise
        except Exception as error:
            refuse_what_cannot_be_sent(pipeline, dumped, error)


def dumped(item: Any) -> bytes:
    """Return an object as bytes, with the user's code."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(item)
    return buffer.getvalue()


#: Where msgspec keeps what it has found out about a class.
_MSGSPEC_CACHE = "__msgspec_cache__"
#: The type of functions with ``functools.lru_cache`` or ``cache``.
_CACHED = type(functools.lru_cache(lambda: None))


def _make_cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _make_cached_property(function: Any, name: str | None) -> Any:
    made = functools.cached_property(function)
    made.attrname = name
    return made


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A cloudpickle that also sends ``msgspec.Struct`` classes by value, and file names of code.

    Functions with a cache are sent by value like others, with an empty cache. Cached properties are
    sent without their locks, which they have before Python 3.12.

    cloudpickle creates an empty class and fills it afterwards. But a struct must have its fields
    when it is created. Since version 3.1.3 cloudpickle leaves out file names, so that its result
    does not depend on them. But without them an error cannot show lines of source code.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._begun: set[Any] = set()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and _MSGSPEC_CACHE in vars(obj):
            # What msgspec remembers of a dataclass or a named tuple cannot be sent. It makes it anew.
            delattr(obj, _MSGSPEC_CACHE)
        if isinstance(obj, msgspec.StructMeta) and not _importable(obj):
            self._check_new(obj)
            return _reduce_struct(obj)
        if isinstance(obj, msgspec.Meta):
            limits = {name: getattr(obj, name) for name in META}
            return _make_meta, ({name: of for name, of in limits.items() if of is not None},)
        if isinstance(obj, _CACHED) and is_users_module(obj.__module__):
            return _make_cached, (obj.__wrapped__, obj.cache_parameters())
        if type(obj) is functools.cached_property:
            return _make_cached_property, (obj.func, obj.attrname)
        if isinstance(obj, types.CodeType):
            made, of = self.dispatch_table[types.CodeType](obj)
            return _in_file, (obj.co_filename, made, of)
        return super().reducer_override(obj)

    def _check_new(self, cls: Any) -> None:
        """Check that the fields of a class do not refer to the class itself.

        A struct has its fields from its creation, so such a class cannot be sent. Classes that were
        pickled completely are remembered by pickle, and do not get here again.

        Raises:
            PipelineError: the fields refer to the class.
        """
        if cls in self._begun:
            raise PipelineError(
                f"the fields of {cls.__qualname__} refer to {cls.__qualname__} itself, so it cannot be "
                "sent to tasks by value",
                place=f"class {cls.__qualname__} in {cls.__module__}",
                remedy="put the class into a module that is installed where tasks run",
            )
        self._begun.add(cls)


def _in_file(name: str, made: Callable[..., types.CodeType], of: tuple[Any, ...]) -> types.CodeType:
    return made(*of).replace(co_filename=name)


def _importable(cls: Any) -> bool:
    module = sys.modules.get(cls.__module__)
    by_value = cls.__module__ in ("__main__", *cloudpickle.list_registry_pickle_by_value())
    return not by_value and getattr(module, cls.__qualname__, None) is cls


def _reduce_struct(cls: Any) -> Any:
    inherited = _inherited(cls)
    fields = [f for f, by_name in _fields(cls) if not _is_same(f, by_name, inherited.get(f.name))]
    described = [(f.name, f.type, f.default, f.default_factory, f.encode_name) for f in fields]
    config = {name: getattr(cls.__struct_config__, name) for name in STRUCT_OPTIONS}
    made_of_it = {*cls.__struct_fields__, "__match_args__", "__weakref__", "__dict__", "__init__"}
    namespace = {
        name: value
        for name, value in vars(cls).items()
        if name not in made_of_it and _is_the_users(name, value)
    }
    parameters = inspect.signature(cls).parameters.values()
    own = {item.name for item in fields}
    keyword_only = [p.kind is p.KEYWORD_ONLY for p in parameters if p.name in own]
    config["kw_only"] = bool(keyword_only) and all(keyword_only)
    is_checked = _POST_INIT in namespace
    arguments = (
        cls.__name__,
        cls.__module__,
        cls.__qualname__,
        vars(cls).get("__orig_bases__", cls.__bases__),
        described,
        config,
        is_checked,
    )
    return _make_struct, arguments, namespace, None, None, _fill_struct


def _inherited(cls: Any) -> dict[str, Any]:
    """Return the fields that a class inherits, by name."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__[1:]):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            found |= {item.name: (item, by_name) for item, by_name in _fields(base)}
    return found


def _fields(cls: Any) -> list[tuple[Any, bool]]:
    """Return the fields of a class, and whether each is keyword-only."""
    parameters = inspect.signature(cls).parameters
    return [
        (item, parameters[item.name].kind is inspect.Parameter.KEYWORD_ONLY)
        for item in msgspec.structs.fields(cls)
    ]


def _is_same(field: Any, by_name: bool, inherited: tuple[Any, bool] | None) -> bool:
    """Return whether a field is as it was inherited, and not declared again."""
    if inherited is None:
        return False
    before, was_by_name = inherited
    return bool(
        field.type == before.type
        and field.default is before.default
        and field.default_factory is before.default_factory
        and field.encode_name == before.encode_name
        and by_name == was_by_name
    )


def _is_the_users(name: str, value: Any) -> bool:
    """Return whether the user wrote a class attribute: a method, property or class variable."""
    if isinstance(value, types.FunctionType | property | classmethod | staticmethod):
        return not name.startswith("__struct_")
    return not name.startswith("__")


_POST_INIT, _LATER = "__post_init__", "__headrace_post_init__"
STRUCT_OPTIONS = (
    "frozen",
    "eq",
    "order",
    "array_like",
    "gc",
    "weakref",
    "dict",
    "cache_hash",
    "tag",
    "tag_field",
    "omit_defaults",
    "forbid_unknown_fields",
)


def _make_struct(
    name: str,
    module: str,
    qualname: str,
    bases: tuple[type, ...],
    described: list[Any],
    config: dict[str, Any],
    is_checked: bool,
) -> Any:
    make_field: Any = msgspec.field
    fields: list[Any] = []
    for field, kind, default, factory, encode_name in described:
        item: Any = make_field(default=default, default_factory=factory, name=encode_name)
        fields.append((field, kind, item))
    namespace: dict[str, Any] = {"__qualname__": qualname}
    made_of = types.resolve_bases(bases)
    if made_of is not bases:  # the bases have type parameters
        namespace["__orig_bases__"] = bases
    if is_checked:
        namespace |= _checked_later()
    return msgspec.defstruct(
        name, fields, bases=made_of, module=module, namespace=namespace, **config
    )


def _checked_later() -> dict[str, Any]:
    """Return the namespace of a class whose ``__post_init__`` follows when the class is filled.

    A struct has a ``__post_init__`` from its creation, or never.
    """
    later: list[Any] = []

    def __post_init__(self: Any) -> None:  # noqa: N807 (msgspec calls it so)
        later[0](self)

    return {_POST_INIT: __post_init__, _LATER: later}


def _fill_struct(cls: Any, namespace: dict[str, Any]) -> None:
    for name, value in namespace.items():
        if name == _POST_INIT:
            vars(cls)[_LATER].append(value)
        else:
            setattr(cls, name, value)


def _make_meta(limits: dict[str, Any]) -> Any:
    return msgspec.Meta(**limits)


@contextlib.contextmanager
def user_modules_by_value() -> Iterator[None]:
    """Make cloudpickle send user modules by value within a ``with`` block."""
    registered = []
    known = cloudpickle.list_registry_pickle_by_value()
    for module in _user_modules():
        if module.__name__ not in known:
            cloudpickle.register_pickle_by_value(module)
            registered.append(module)
    try:
        yield
    finally:
        for module in registered:
            cloudpickle.unregister_pickle_by_value(module)


class _UserModules:
    """Finds the user's modules, and looks again only if others are loaded than the last time."""

    def __init__(self) -> None:
        self._loaded: dict[str, ModuleType] = {}
        self._found: list[ModuleType] = []

    def __call__(self) -> list[ModuleType]:
        loaded = dict(sys.modules)
        # (by identity: what stands for a module may have an equality of its own)
        if list(loaded) != list(self._loaded) or not all(
            map(operator.is_, loaded.values(), self._loaded.values())
        ):
            self._loaded = loaded
            self._found = [
                module for name, module in loaded.items() if _is_user_module(name, module)
            ]
        return self._found


def _is_user_module(name: str, module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if name == "__main__" or name.partition(".")[0] in NEVER_THE_USERS or file is None:
        return False
    return getattr(module, "__name__", None) == name and not is_installed(file)


_user_modules = _UserModules()
