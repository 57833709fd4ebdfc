"""The fingerprint of a pipeline's code: equal in two processes that run the same code, different otherwise.

A step that weak sinks have seen before its commit must be finished by the code that began it: other
code may come to other rows under the same id. The code itself cannot be kept, so its fingerprint is.

It covers what results depend on: how the pipeline is drawn, and the user's functions and classes with
all that they refer to. It leaves out where code is: lines, comments and file names. What is installed
(libraries, Headrace, Python itself) counts by its name alone. A pickle would not do: it differs between
two processes.
"""

from __future__ import annotations

import hashlib
import sys
import types
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from headrace.runners.shipping import is_installed
from headrace.topology import Pipeline

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
#: What Python itself notes of a class.
_OF_PYTHON = frozenset({
    "__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__static_attributes__",
    "__annotations_cache__", "__abstractmethods__", "_abc_impl", "__slots__", "__match_args__",
    "__struct_encode_fields__", "__parameters__",
})  # fmt: skip
#: So deep structures are looked into; what is deeper counts by its type.
_DEEPEST = 60


def fingerprint(pipeline: Pipeline) -> str:
    """Return the fingerprint of the code that computes a pipeline's results, without sources and sinks.

    Cost: a millisecond or so; all that the user's functions refer to is looked at once.
    """
    walk = _Walk()
    walk.add(pipeline.identity())
    for name, injector in sorted(pipeline.injectors.items()):
        walk.add([name, type(injector.source), injector.rules])
        if injector.on_error != "stop":
            walk.add(injector.on_error)
    for name, node in pipeline.nodes.items():
        walk.add([
            name, node.computation, node.key_columns, node.key_fields, node.on_error, node.late,
            node.allowed_lateness_us, node.by_percentile, node.ordered, node.chained,
            [stream.name for stream in node.inputs], sorted(node.outputs),
        ])  # fmt: skip
    walk.add({name: node.stream.name for name, node in sorted(pipeline.sinks.items())})
    return walk.digest


class _Walk:
    """Goes through objects, each once, in an order that does not depend on where they lie in memory."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # what has a number must keep its address
        self._depth = 0

    @property
    def digest(self) -> str:
        """The fingerprint of what was added so far."""
        return self._hash.hexdigest()

    def _say(self, *words: object) -> None:
        for word in words:
            said = repr(word).encode("utf-8", "backslashreplace")
            self._hash.update(b"%d:" % len(said) + said)

    def add(self, item: Any) -> None:
        """Add an object, and all that it refers to."""
        if isinstance(item, _PLAIN) and type(item) in _PLAIN:
            self._say(type(item).__name__, item)
            return
        if type(item) not in (
            tuple,
            frozenset,
        ):  # (whether equal ones are one object is Python's affair)
            number = self._numbers.get(id(item))
            if number is not None:
                self._say("again", number)
                return
            self._numbers[id(item)] = len(self._numbers)
            self._kept.append(item)
        if self._depth >= _DEEPEST:
            self._say("deep", type(item).__qualname__)
            return
        self._depth += 1
        try:
            self._add_structure(item)
        finally:
            self._depth -= 1

    def _add_all(self, kind: str, items: Iterable[Any]) -> None:
        found = list(items)
        self._say(kind, len(found))
        for item in found:
            self.add(item)

    def _add_structure(self, item: Any) -> None:
        for kinds, add in _HOW:
            if isinstance(item, kinds):
                add(self, item)
                return
        self._add_object(item)

    def _add_dict(self, item: dict[Any, Any]) -> None:
        self._say("dict", len(item))
        for key, value in item.items():
            self.add(key)
            self.add(value)

    def _add_set(self, item: Iterable[Any]) -> None:
        self._say("set", sorted(_alone(of) for of in item))

    def _add_function(self, item: types.FunctionType) -> None:
        if not _is_users(item.__module__):
            self._say("function", item.__module__, item.__qualname__)
            return
        self._say("code of", item.__qualname__)
        self._add_code(item.__code__)
        self._add_all("defaults", item.__defaults__ or ())
        self.add(item.__kwdefaults__ or {})
        for cell in item.__closure__ or ():
            try:
                self.add(cell.cell_contents)
            except ValueError:  # it is empty as yet
                self._say("empty cell")
        self._add_globals(item.__code__, item.__globals__)

    def _add_globals(self, code: types.CodeType, there: dict[str, Any]) -> None:
        """Add what code refers to: global names, and names in modules of the user's."""
        names = _names_of(code)
        for name in names:
            found = there.get(name, _Missing)
            if isinstance(found, types.ModuleType):
                self._add_module(found, names)
            elif found is not _Missing:
                self._say("global", name)
                self.add(found)

    def _add_module(self, module: types.ModuleType, names: list[str]) -> None:
        self._say("module", module.__name__)
        if not _is_users(module.__name__):
            return
        for name in names:
            found = vars(module).get(name, _Missing)
            if isinstance(found, types.ModuleType) and found is not module:
                if id(found) not in self._numbers:
                    self._numbers[id(found)] = len(self._numbers)
                    self._kept.append(found)
                    self._add_module(found, names)
            elif found is not _Missing:
                self._say("of module", name)
                self.add(found)

    def _add_code(self, code: types.CodeType) -> None:
        self._say(
            code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
            code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags,
            code.co_exceptiontable,
        )  # fmt: skip
        for const in code.co_consts:
            if isinstance(const, types.CodeType):
                self._add_code(const)
            else:
                self.add(const)

    def _add_class(self, item: type) -> None:
        self._say("class", item.__qualname__)
        if not _is_users(item.__module__):
            self._say(item.__module__)
            return
        self._add_all("bases", item.__bases__)
        for name, value in sorted(vars(item).items()):
            if name not in _OF_PYTHON and not isinstance(value, _BUILT_IN):
                self._say("attribute", name)
                self.add(value)

    def _add_property(self, item: property) -> None:
        self._add_all("property", (item.fget, item.fset, item.fdel))

    def _add_wrapped(self, item: Any) -> None:
        self._say(type(item).__name__)
        self.add(item.__func__)

    def _add_method(self, item: types.MethodType) -> None:
        self._say("method")
        self.add(item.__func__)
        self.add(item.__self__)

    def _add_partial(self, item: partial[Any]) -> None:
        self._add_all("partial", (item.func, item.args, item.keywords))

    def _add_object(self, item: Any) -> None:
        """Add an object as pickling would take it apart."""
        self.add(type(item))
        if isinstance(item, msgspec.Struct):
            self._add_all("struct", msgspec.structs.astuple(item))
            return
        state = getattr(item, "__dict__", None)
        if isinstance(state, dict) and not _reduces_itself(type(item)):
            self.add(state)
            return
        try:
            reduced = item.__reduce_ex__(4)
        except Exception:  # what cannot be taken apart counts by its type
            self._say("whole")
            return
        if isinstance(reduced, str):
            self._say("named", reduced)
            return
        self._add_all(
            "reduced", (list(part) if hasattr(part, "__next__") else part for part in reduced)
        )


class _Missing:
    """Stands for a name that is nowhere."""


_BUILT_IN = (
    types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType,
    types.MethodDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip

_HOW: list[tuple[Any, Callable[[_Walk, Any], None]]] = [
    (dict, _Walk._add_dict),
    ((set, frozenset), _Walk._add_set),
    (types.FunctionType, _Walk._add_function),
    (types.CodeType, _Walk._add_code),
    (types.MethodType, _Walk._add_method),
    (types.ModuleType, lambda walk, item: walk._say("module", item.__name__)),
    (types.BuiltinFunctionType, lambda walk, item: walk._say("built in", item.__qualname__)),
    (type, _Walk._add_class),
    ((classmethod, staticmethod), _Walk._add_wrapped),
    (property, _Walk._add_property),
    (partial, _Walk._add_partial),
    ((tuple, list), lambda walk, item: walk._add_all(type(item).__name__, item)),
]


def _reduces_itself(kind: type) -> bool:
    """Say whether objects of a class say themselves how they are taken apart."""
    own = [vars(base) for base in kind.__mro__[:-1]]
    return any("__reduce_ex__" in of or "__reduce__" in of for of in own)


def _alone(item: Any) -> str:
    walk = _Walk()
    walk.add(item)
    return walk.digest


def _names_of(code: types.CodeType) -> list[str]:
    """Return the names that code, and the code within it, refers to."""
    names = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names.update(_names_of(const))
    return sorted(names)


def _is_users(module_name: str | None) -> bool:
    """Say whether a module is the user's: neither installed, nor of Python, nor of Headrace."""
    if module_name is None or module_name.partition(".")[0] in ("headrace", "builtins"):
        return False
    if module_name == "__main__":
        return True
    file = getattr(sys.modules.get(module_name), "__file__", None)
    if file is None:
        return module_name not in sys.builtin_module_names
    return not is_installed(file)
