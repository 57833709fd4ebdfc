"""The reference of SQL has what the planner knows."""

from __future__ import annotations

from pathlib import Path

from scripts.sql_reference import tables

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "sql.md"


def test_the_page_has_the_functions_and_refusals_of_the_planner() -> None:
    assert tables() in PAGE.read_text(), (
        "run python -m scripts.sql_reference, and put it into the page"
    )
