"""Which modules are installed, or part of Python, and which are the user's."""

from __future__ import annotations

import functools
import site
import sys
import sysconfig
from pathlib import Path

#: Packages that are never the user's, wherever they are. Under ``spark-submit``, PySpark comes from
#: Spark's folder, which looks like one of the user's.
NEVER_THE_USERS = frozenset({"headrace", "pyspark", "py4j"})

_PACKAGES = {"site-packages", "dist-packages"}


def is_users_module(name: str | None) -> bool:
    """Return whether a module is the user's: not installed, not Python's, Headrace's, or Spark's."""
    top = (name or "").partition(".")[0]
    if not top or top in NEVER_THE_USERS or top in sys.stdlib_module_names:
        return top == "__main__"
    module = sys.modules.get(str(name)) or sys.modules.get(top)
    file = getattr(module, "__file__", None)
    return not (isinstance(file, str) and is_installed(file))


@functools.lru_cache(maxsize=4096)
def is_installed(file: str) -> bool:
    """Return whether a module's file belongs to an installed package or to Python.

    A folder of packages is recognised by its name, wherever it is: a ``.pth`` file may add one of
    another environment.
    """
    path = Path(file).resolve()
    if not _PACKAGES.isdisjoint(path.parts):
        return True
    return any(path.is_relative_to(folder) for folder in _installed_folders())


@functools.cache
def _installed_folders() -> list[Path]:
    paths = sysconfig.get_paths()
    folders = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    return [Path(folder).resolve() for folder in [*folders, str(Path(sys.base_prefix) / "lib")]]
