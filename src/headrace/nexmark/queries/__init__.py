"""NEXMark's queries. Each module has one, twice.

``migratable(market)`` draws it on computations and operators of Headrace, whose state can move; it
returns the computation whose output is the answer. ``native(market)`` is the same in plain PySpark,
where that can say it; it returns a streaming DataFrame. The module's text says by which rule, wherever
known versions differ; ``LATEST`` names the columns of which the last row is the answer, where a query
answers again and again; ``BY_HAND`` that ``native`` keeps state of its own.

Of events of one time the one with the lower number is the earlier. Auctions are decided when they
close.
"""

from __future__ import annotations

import importlib
from types import ModuleType

#: All queries there are.
NAMES = [f"q{number}" for number in range(23) if number != 10]


def module_of(query: str) -> ModuleType:
    """Return the module of a query, such as ``q5``."""
    return importlib.import_module(f"{__name__}.{query}")
