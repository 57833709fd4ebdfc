"""The page about the log has each line that the code can write, at its level, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import headrace

SOURCE = Path(headrace.__file__).parent
PAGE = SOURCE.parents[1] / "docs/reference/log-messages.md"
LEVELS = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
}


def shown(text: str) -> str:
    """Return a text of a log record as the page has it."""
    return re.sub(r"%(?:[-.\d]*[a-z])", "…", text)


def lines_of(file: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(file.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        logger = node.func.value
        if not (isinstance(logger, ast.Name) and logger.id in ("log", "_log")):
            continue
        if node.func.attr in LEVELS:
            text = ast.literal_eval(node.args[0])
            yield shown(text), LEVELS[node.func.attr]


def test_the_page_has_each_line_and_its_level() -> None:
    written = {line for file in SOURCE.rglob("*.py") for line in lines_of(file)}
    rows = [row.split(" | ") for row in PAGE.read_text().splitlines() if row.startswith("| ")]
    known = {(row[0].removeprefix("| "), row[1]) for row in rows if row[1] in LEVELS.values()}
    whole = {line for line in written if line[0].strip("…: ")}  # (others come from elsewhere)
    assert known == whole
