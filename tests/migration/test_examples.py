"""The examples in the docstrings of migration are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from headrace import migration

MODULES = [
    f"headrace.migration.{module.name}" for module in pkgutil.iter_modules(migration.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
