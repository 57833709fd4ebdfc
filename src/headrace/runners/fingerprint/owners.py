"""Which code in a process is the user's, and which is installed.

Installed code belongs to a library, to Python or to Headrace.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import os
import random
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.computation.installed import NEVER_THE_USERS, is_installed

_PYTHON = frozenset({*sys.builtin_module_names, *sys.stdlib_module_names})
_COMPILED = tuple(importlib.machinery.EXTENSION_SUFFIXES)
#: Names of folders into which packages are installed.
_SITES = frozenset({"site-packages", "dist-packages"})
_MADE_AT_RUN_TIME = 1 << 9  # a flag of a class


class Owners:
    """Decides which modules are the user's.

    Args:
        modules: names of modules that are the user's wherever they are, along with their packages.

    Attributes:
        of_process: names of objects that every process has, but with other content, by ``id()``.
    """

    def __init__(self, modules: Iterable[str] = ()) -> None:
        self._own = {_top(name) for name in modules} | {_package_of(name) for name in modules}
        self._own -= _PYTHON | NEVER_THE_USERS | {""}
        self._known: dict[str | None, bool] = {None: True}
        self.of_process = _of_process()

    def is_users(self, name: str | None) -> bool:
        """Return whether a module is the user's. One without a file is, unless it is Python's."""
        known = self._known.get(name)
        if known is None:
            assert name is not None
            known = self._known[name] = self._find_out(name)
        return known

    def is_users_spec(self, name: str, spec: ModuleSpec) -> bool:
        """Return whether a module is the user's. It need not be loaded."""
        if name in sys.modules:
            return self.is_users(name)
        return self._is_own(name) or (
            _top(name) not in NEVER_THE_USERS and not _is_installed(name, spec)
        )

    def _find_out(self, name: str) -> bool:
        if name == "__main__" or self._is_own(name):
            return True
        module = sys.modules.get(name) or sys.modules.get(_top(name))
        return _top(name) not in NEVER_THE_USERS and not _is_in_installed_file(name, module)

    def _is_own(self, name: str) -> bool:
        return _top(name) in self._own

    def compiled(self, name: str | None) -> bytes | None:
        """Return the digest of a user's module that is machine code; None for any other module."""
        if name is None or not self.is_users(name):
            return None
        return compiled_file(getattr(sys.modules.get(name), "__file__", None))

    def counts_by_name(self, item: Any) -> bool:
        """Return whether a function or class is a library's and can be found there by its name."""
        module, name = getattr(item, "__module__", None), getattr(item, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(name, str) or self.is_users(module):
            return False
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, "__dict__", {}).get(part)
            found = getattr(found, "__func__", found)  # a static method or a class method
        return found is item


@functools.cache
def compiled_file(file: str | None) -> bytes | None:
    """Return the digest of a module's file if it is machine code, not Python."""
    if file is None or not file.endswith(_COMPILED):
        return None
    try:
        return hashlib.blake2b(Path(file).read_bytes(), digest_size=16).digest()
    except OSError:  # it was deleted, and the process runs on
        return None


def is_static(kind: type) -> bool:
    """Return whether a class is defined in C, so that no program creates it at run time."""
    return not kind.__flags__ & _MADE_AT_RUN_TIME


def _of_process() -> dict[int, str]:
    held: dict[str, Any] = {
        name: getattr(sys, name)
        for name in ("argv", "path", "modules", "stdin", "stdout", "stderr")
    }
    held |= {
        "environ": os.environ,
        "environb": os.environb,
        "random": getattr(random, "_inst", None),
    }
    generator = sys.modules.get("numpy.random.mtrand")
    held["numpy.random"] = getattr(generator, "_rand", None)
    return {id(item): name for name, item in held.items() if item is not None}


def _top(name: str) -> str:
    return name.partition(".")[0]


def _package_of(name: str) -> str:
    """Return the installed package that a module's file belongs to; "" if it belongs to none.

    The package may have another name than the module.
    """
    file = getattr(sys.modules.get(name), "__file__", None)
    parts = Path(file).resolve().parts if isinstance(file, str) else ()
    after = [index + 1 for index, part in enumerate(parts[:-1]) if part in _SITES]
    return parts[after[-1]].partition(".")[0] if after else ""


def _is_in_installed_file(name: str, module: ModuleType | None) -> bool:
    file = getattr(module, "__file__", None)
    if isinstance(file, str):  # a user's file may have the name of a module of Python
        return is_installed(file)
    return _are_installed(name, getattr(module, "__path__", ()))


def _is_installed(name: str, spec: ModuleSpec) -> bool:
    if spec.has_location and spec.origin is not None:
        return is_installed(spec.origin)
    return _are_installed(name, spec.submodule_search_locations or ())


def _are_installed(name: str, folders: Iterable[Any]) -> bool:
    """Return whether a module without a file is installed. It may have folders."""
    return _top(name) in _PYTHON or any(is_installed(str(folder)) for folder in folders)
