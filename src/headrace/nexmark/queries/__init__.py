"""NEXMark's queries. Each module has one query, in two forms.

``migratable(market)`` builds it from Headrace's computations and operators, whose state can move.
It returns the computation whose output is the answer. ``native(market)`` is the same in plain
PySpark, as far as PySpark can express it. It returns a streaming DataFrame.

Where known versions of a query differ, the module's docstring says which rule it follows.
``LATEST`` names columns, for queries that update their answer: the last row for each of their
values is the answer. ``BY_HAND`` says that ``native`` keeps state of its own.

Of events at the same time, the one with the lower number is the earlier. Auctions are decided when
they close.
"""

from __future__ import annotations

import importlib
from types import ModuleType

#: The names of all queries.
NAMES = [f"q{number}" for number in range(23) if number != 10]


def module_of(query: str) -> ModuleType:
    """Return the module of a query, such as ``q5``."""
    return importlib.import_module(f"{__name__}.{query}")
