"""Names of an earlier version, which work until the next minor version, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Renamed:
    """Old names of something public, with the new ones.

    Args:
        names: the new name of each old one.
    """

    def __init__(self, **names: str) -> None:
        self._names = names

    def warn(self, old: str, where: str, level: int = 3) -> None:
        """Warn that an old name was used."""
        warnings.warn(
            f"{where}: {old} is called {self._names[old]} now", DeprecationWarning, level + 1
        )

    def attribute(self, name: str, module: Mapping[str, Any]) -> Any:
        """Return what an old name of a module stands for, with a warning.

        Raises:
            AttributeError: if the module never had this name.
        """
        if name not in self._names:
            raise AttributeError(f"module {module['__name__']!r} has no attribute {name!r}")
        self.warn(name, module["__name__"])
        return module[self._names[name]]

    def arguments(self, passed: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return keyword arguments under their new names.

        Raises:
            TypeError: if an argument was passed under both names.
        """
        for old, new in self._names.items():
            if old in passed and new in passed:
                raise self._passed_twice(old, where)
            if old in passed:
                self.warn(old, where)
        return {self._names.get(name, name): value for name, value in passed.items()}

    def value(self, old: str, former: T | None, value: T | None, where: str) -> T | None:
        """Return an argument that may have been passed under its old name; None if it was not passed.

        Raises:
            TypeError: if it was passed under both names.
        """
        if former is None:
            return value
        if value is not None:
            raise self._passed_twice(old, where)
        self.warn(old, where)
        return former

    def _passed_twice(self, old: str, where: str) -> TypeError:
        new = self._names[old]
        return TypeError(f"{where}: {old} is the old name of {new}; pass only {new}")
