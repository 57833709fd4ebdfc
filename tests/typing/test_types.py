"""Type checkers accept what users write, with the types inferred, and refuse what would fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ACCEPTED, REFUSED = HERE / "accepted.py", HERE / "refused.py"
GALLERY = sorted((ROOT / "examples" / "gallery").glob("*.py"))

#: Lines with errors, by file.
Errors = dict[Path, set[int]]


def of_mypy(files: Sequence[Path], scratch: Path) -> Errors:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(scratch / "mypy")]
    said = subprocess.run(
        [*command, "--no-error-summary", *map(str, files)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not said.stderr, said.stderr
    found: Errors = {file: set() for file in files}
    for name, line in re.findall(r"^(.+?):(\d+): error:", said.stdout, re.MULTILINE):
        found.setdefault((ROOT / name).resolve(), set()).add(int(line))
    return found


def of_pyright(files: Sequence[Path], scratch: Path) -> Errors:
    settings = scratch / "pyrightconfig.json"
    settings.write_text(
        json.dumps(
            {
                "include": [str(file) for file in files],
                "extraPaths": [str(ROOT / "src"), str(GALLERY[0].parent)],
                "typeCheckingMode": "strict",
                "pythonVersion": "3.11",
                "reportMissingModuleSource": "none",
            }
        )
    )
    command = [sys.executable, "-m", "basedpyright", "--project", str(settings), "--outputjson"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found: Errors = {file: set() for file in files}
    for item in json.loads(said.stdout)["generalDiagnostics"]:
        if item["severity"] == "error":
            line = item["range"]["start"]["line"] + 1
            found.setdefault(Path(item["file"]).resolve(), set()).add(line)
    return found


CHECKERS = [pytest.param(of_mypy, id="mypy"), pytest.param(of_pyright, id="pyright")]
Checker = Callable[[Sequence[Path], Path], Errors]


@pytest.mark.parametrize("checker", CHECKERS)
def test_what_users_write_is_accepted_and_mistakes_are_refused_where_they_are(
    checker: Checker, tmp_path: Path
) -> None:
    lines = REFUSED.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}
    found = checker([ACCEPTED, *GALLERY, REFUSED], tmp_path)
    clean: Errors = {file: set() for file in [ACCEPTED, *GALLERY]}
    assert found == {**clean, REFUSED: marked}
