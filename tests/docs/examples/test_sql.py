"""The page on pipelines in SQL: its file is the example, and does what the page shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.processes import ROOT

PAGE = ROOT / "docs" / "how-to" / "write-a-pipeline-in-sql.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_page_shows_the_example_and_what_it_gives(tmp_path: Path) -> None:
    (text,) = blocks("sql")
    assert text == (ROOT / "examples" / "sql" / "shop.sql").read_text()
    (tmp_path / "shop.sql").write_text(text)
    for name, rows in zip(("orders", "customers"), blocks("json"), strict=True):
        (tmp_path / "shop-data" / name).mkdir(parents=True)
        (tmp_path / "shop-data" / name / "1.jsonl").write_text(rows)
    console = blocks("console")[0]
    commands = [line[2:] for line in console.splitlines() if line.startswith("$ ")]
    shown = [line for line in console.splitlines() if not line.startswith("$ ")]
    printed = ""
    for command in commands:
        found = subprocess.run(
            [sys.executable, "-m", "headrace.cli", *command.split()[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert found.returncode == 0, found.stderr
        printed += found.stdout
    assert printed.splitlines() == shown
