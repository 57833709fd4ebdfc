"""Parts of pages with figures: files of results, and tables."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.harness import ROOT

RESULTS = ROOT / "benchmarks" / "results"
PAGES = ROOT / "benchmarks" / "pages"

Result = dict[str, Any]


def page(name: str) -> str:
    """Return the text that explains a program's figures."""
    return (PAGES / f"{name}.md").read_text()


def load(name: str) -> Result:
    """Return a file of results."""
    loaded: Result = json.loads((RESULTS / f"{name}.json").read_text())
    return loaded


def table(rows: list[list[Any]]) -> str:
    """Return rows (the first is the head) as Markdown."""
    lines = [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join([lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]])
