"""Modules that code imports when it runs.

They count by their source, whether they are loaded or not. Loading them would run the user's code
too early. Also, one process may have loaded other modules than the next when the fingerprint is
taken. So each module counts as a whole, along with the modules that it imports.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from headrace.runners.fingerprint.code import Import, imports_of, names_of, texts_of
from headrace.runners.fingerprint.owners import compiled_file
from headrace.runners.fingerprint.walk import Parts, Walk

#: Code that uses these may import a module whose name is in a text.
_ANY_MODULE = frozenset({"import_module", "__import__"})
_MODULE = re.compile(r"\.*[^\W\d]\w*(\.[^\W\d]\w*)*")


class Imported(NamedTuple):
    """A module that running code imports, if it exists."""

    name: str


def imported_by(code: CodeType, package: str) -> Parts:
    """Return the modules that code of a package imports when it runs, as far as it names them."""
    names = names_of(code)
    found: dict[str, None] = {}
    for item in imports_of(code):
        found |= dict.fromkeys(_modules_of(item, package, names))
    if not _ANY_MODULE.isdisjoint(names):
        texts = [text for text in texts_of(code) if _MODULE.fullmatch(text)]
        found |= dict.fromkeys(name for text in texts if (name := _absolute(text, package)))
    return [Imported(name) for name in found]


def _modules_of(item: Import, package: str, names: list[str]) -> list[str]:
    name = _absolute("." * item.level + item.module, package)
    if name is None:
        return []
    if item.names:
        return [name, *(f"{name}.{taken}" for taken in item.names)]
    return [of for above in _with_parents(name) for of in (above, *(f"{above}.{n}" for n in names))]


def _absolute(name: str, package: str) -> str | None:
    try:
        return importlib.util.resolve_name(name, package)
    except ImportError:  # outside of a package: this import fails when it runs
        return None


def _with_parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def take_imported_apart(walk: Walk, item: Imported) -> Parts:
    """Return the code of a module, and the modules that it imports."""
    if not walk.is_new_name(Imported, item.name):
        return []
    spec = _found(walk, item.name)
    if spec is None:
        return []
    walk.say("imported", item.name, compiled_file(spec.origin))
    code = _code_of(item.name, spec)
    if code is None:
        return []
    return [code, *imported_by(code, spec.parent or "")]


def _found(walk: Walk, name: str) -> ModuleSpec | None:
    """Return the spec of a user's module without loading anything. None for other modules."""
    path: list[str] | None = None
    spec = None
    for above in _with_parents(name):
        if above != name.partition(".")[0] and path is None:
            return None
        spec = _spec_of(above, path)
        if spec is None or not walk.owners.is_users_spec(above, spec):
            return None
        path = spec.submodule_search_locations
    return spec


def _spec_of(name: str, path: list[str] | None) -> ModuleSpec | None:
    loaded = sys.modules.get(name)
    if loaded is None:
        finders = (finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec"))
        return next((spec for find in finders if (spec := find(name, path)) is not None), None)
    spec, file = getattr(loaded, "__spec__", None), getattr(loaded, "__file__", None)
    if spec is None and isinstance(file, str):  # it runs as a script
        return importlib.util.spec_from_file_location(name, file)
    return spec


def _code_of(name: str, spec: ModuleSpec) -> CodeType | None:
    source = _source_of(name, spec)
    if source is not None:
        return _compiled(source)
    get_code: Any = getattr(spec.loader, "get_code", None)
    try:
        code = None if get_code is None else get_code(name)
    except ImportError:
        return None
    return code if isinstance(code, CodeType) else None


def _source_of(name: str, spec: ModuleSpec) -> bytes | str | None:
    if spec.origin is not None and spec.origin.endswith(".py") and Path(spec.origin).is_file():
        return _read(spec.origin, _loaded(name))
    get_source: Any = getattr(spec.loader, "get_source", None)
    try:
        return None if get_source is None else get_source(name)
    except (ImportError, OSError):
        return None


def _loaded(name: str) -> object:
    """Return an object that changes when a module is loaded again; None if it is not loaded."""
    module = sys.modules.get(name)
    return module and (getattr(module, "__spec__", None) or module)


#: File name → the module as it was loaded when the file was read, and the content.
_AS_LOADED: dict[str, tuple[object, bytes]] = {}


def _read(file: str, loaded: object) -> bytes:
    """Return a file's content as the process has loaded it or will load it.

    Later changes of the file do not count, unless the module is loaded again.
    """
    before, text = _AS_LOADED.get(file, (None, None))
    is_as_it_was = loaded is not None and (before is None or before is loaded)
    if text is None or not is_as_it_was:
        text = Path(file).read_bytes()
    _AS_LOADED[file] = loaded, text
    return text


@functools.lru_cache(maxsize=1024)
def _compiled(source: bytes | str) -> CodeType | None:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # it cannot be imported
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            _drop_docstring(node)
    return compile(tree, "", "exec", dont_inherit=True)


def _drop_docstring(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> None:
    # a body with nothing else must not become empty
    if ast.get_docstring(node, clean=False) is not None:
        nothing = ast.copy_location(ast.Pass(), node.body[0])
        node.body[:1] = [] if len(node.body) > 1 else [nothing]
