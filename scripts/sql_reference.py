"""Print the tables of docs/reference/sql.md: what views can have, and what they refuse.

They are made from the tables by which the planner works. ``tests/docs/test_sql_reference.py`` checks
that the page has them.
"""

from __future__ import annotations

import re

from headrace.sql.translation.functions import AGGREGATES, SCALAR, WINDOW
from headrace.sql.translation.refused import REFUSED


def tables() -> str:
    """Return the tables as Markdown."""
    parts = [
        "| | |\n|---|---|",
        f"| scalar functions | {_listed(SCALAR.values())} |",
        f"| aggregates | {_listed(name for name in AGGREGATES.values() if name not in _ORDERED)} |",
        f"| window functions | {_listed((*WINDOW.values(), *_ORDERED))} |",
        "",
        "| refused | reason | instead |\n|---|---|---|",
    ]
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, why in REFUSED.items():
        reasons.setdefault(why, []).append(name)
    for (reason, remedy), names in reasons.items():
        parts.append(f"| {', '.join(f'`{one}`' for one in names)} | {reason} | {remedy} |")
    return "\n".join(parts) + "\n"


#: Aggregates that need an order, and so a window.
_ORDERED = ("first", "last")


def _listed(names: object) -> str:
    unique = sorted({re.sub(r"^same$", "", str(name)) for name in names} - {""})  # type: ignore[attr-defined]
    return ", ".join(f"`{name}`" for name in unique)


if __name__ == "__main__":
    print(tables(), end="")
