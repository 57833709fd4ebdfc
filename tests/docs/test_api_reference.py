"""The reference of the Python API has every public name, once."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path
from typing import Any

import headrace as hr
from headrace import errors, messages, ops, policies, sinks, sources, spark, sql, testing, zsets

PAGES = Path(__file__).parents[2] / "docs" / "reference" / "api"
_DIRECTIVE = re.compile(r"^\.\. auto(class|function|data|module):: (\S+)$", re.MULTILINE)
#: Modules that are reached as attributes, and documented by their own names.
MODULES = {"messages", "ops", "policies", "sinks", "sources", "spark", "sql", "testing", "zsets"}


def found(name: str) -> Any:
    """Return what a dotted name stands for."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def documented() -> list[tuple[str, str]]:
    """Return (kind, name) of everything that the reference documents."""
    return [
        item for page in sorted(PAGES.glob("*.md")) for item in _DIRECTIVE.findall(page.read_text())
    ]


def test_every_public_name_is_in_the_reference_once() -> None:
    whole = {name for kind, name in documented() if kind == "module"}
    single = [name for kind, name in documented() if kind != "module"]
    assert not [name for name, count in Counter(single).items() if count > 1]
    assert whole == {module.__name__ for module in (ops, policies, testing, errors, zsets)}
    expected = {f"headrace.{name}" for name in hr.__all__ if name not in MODULES}
    expected |= {f"headrace.messages.{name}" for name in messages.__all__}
    expected |= {f"headrace.sources.{name}" for name in sources.__all__}
    expected |= {f"headrace.sinks.{name}" for name in sinks.__all__}
    expected |= {f"headrace.spark.{name}" for name in spark.__all__}
    expected |= {f"headrace.sql.{name}" for name in sql.__all__}
    expected.remove("headrace.sources.Limit")  # the same as headrace.Limit
    assert expected <= set(single)


def test_what_the_reference_documents_exists_and_has_a_docstring() -> None:
    for kind, name in documented():
        if kind == "module":
            module = importlib.import_module(name)
            members = getattr(module, "__all__", None) or [
                key
                for key, item in vars(module).items()
                if isinstance(item, type) and key[0] != "_"
            ]
            made = [getattr(module, member) for member in members]
            bare = [item for item in made if isinstance(item, type) and not item.__doc__]
            assert not bare, (name, bare)
        elif kind != "data":
            assert found(name).__doc__, name
