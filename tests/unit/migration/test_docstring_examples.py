"""The examples in the docstrings of migration, and of the layouts that it goes by, are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from headrace import keyspace, migration

MODULES = [
    f"{room.__name__}.{module.name}"
    for room in (keyspace, migration)
    for module in pkgutil.iter_modules(room.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
