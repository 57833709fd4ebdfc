"""The type checkers, and what they find."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Stubs for Pyright of libraries without types. For mypy, pyproject.toml says the same.
UNTYPED = ROOT / "tests" / "docs" / "typing" / "untyped"


@dataclasses.dataclass(frozen=True)
class Finding:
    """An error that a type checker reports; lines count from 1."""

    file: Path
    line: int
    text: str
    code: str


#: Checks groups of files, each a folder whose modules import each other by their bare names.
Checker = Callable[[Sequence[Sequence[Path]], Path], list[Finding]]


def of_mypy(groups: Sequence[Sequence[Path]], scratch: Path) -> list[Finding]:
    """Return what ``mypy --strict`` finds.

    Each group is a run of its own, since two of them may have modules of the same name. They share
    a cache, and no other run does: mypy also keeps errors there, with the paths that files had.
    """
    found: list[Finding] = []
    for files in groups:
        command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary"]
        command += ["--cache-dir", str(scratch / "mypy")]
        said = subprocess.run(
            [*command, *map(str, files)],
            cwd=ROOT,
            env={**os.environ, "MYPYPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not said.stderr, said.stderr
        assert said.returncode in (0, 1), said.stdout
        errors = re.findall(r"^(.+?):(\d+): error: (.*?)(?:  \[([\w-]+)\])?$", said.stdout, re.M)
        assert bool(errors) == bool(said.returncode), said.stdout
        found += [
            Finding((ROOT / name).resolve(), int(line), text, code)
            for name, line, text, code in errors
        ]
    return found


def of_pyright(groups: Sequence[Sequence[Path]], scratch: Path) -> list[Finding]:
    """Return what Pyright finds in its strict mode."""
    settings = scratch / "pyrightconfig.json"
    settings.write_text(
        json.dumps(
            {
                "include": [str(file) for files in groups for file in files],
                "extraPaths": [str(ROOT / "src"), str(ROOT)],
                "stubPath": str(UNTYPED),
                "executionEnvironments": [{"root": str(files[0].parent)} for files in groups],
                "typeCheckingMode": "strict",
                "pythonVersion": "3.11",
                "reportMissingModuleSource": "none",
            }
        )
    )
    # Without it, pyright takes the packages of whatever `python` is first on PATH.
    packages = ["--pythonpath", sys.executable]
    command = [sys.executable, "-m", "basedpyright", "--project", str(settings), *packages]
    command.append("--outputjson")
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    result = json.loads(said.stdout)
    assert result["summary"]["filesAnalyzed"] == sum(map(len, groups)), said.stdout
    return [
        Finding(
            Path(item["file"]).resolve(),
            item["range"]["start"]["line"] + 1,
            item["message"],
            item.get("rule", ""),
        )
        for item in result["generalDiagnostics"]
        if item["severity"] == "error"
    ]
