"""Plants a bug in a copy of the project, and looks whether the tests find it.

python -m tests.planted.planting [NAME …] [--json benchmarks/results/planted.json]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.planted.bugs import BUGS, BY_NAME, Bug

ROOT = Path(__file__).parents[2]
PATCHES = Path(__file__).parent / "patches"
_FAILED = 1  # pytest's exit code when tests have failed; anything else is no finding
_AT_MOST_S = 1_200


@dataclass(frozen=True)
class Finding:
    """What came of a planted bug.

    Attributes:
        found: whether a test failed.
        by: the first that did.
        seconds: how long it took.
        said: the end of what pytest said, if nothing failed.
    """

    name: str
    what: str
    found: bool
    by: str
    seconds: float
    said: str = ""


@contextmanager
def planted(bug: Bug) -> Iterator[Path]:
    """Give a copy of the project with a bug in it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "project"
        for name in ("src", "tests", "examples", "docs", "benchmarks"):
            shutil.copytree(
                ROOT / name,
                copy / name,
                ignore=shutil.ignore_patterns("__pycache__", ".hypothesis"),
            )
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, copy / name)
        subprocess.run(["git", "apply", str(patch_of(bug))], cwd=copy, check=True)
        yield copy


def patch_of(bug: Bug) -> Path:
    """Return the patch that plants a bug."""
    return PATCHES / f"{bug.name}.patch"


def search(bug: Bug) -> Finding:
    """Plant a bug, and run the tests that must find it."""
    begun = time.monotonic()
    with planted(bug) as copy:
        run = subprocess.run(
            [
                sys.executable, "-m", "pytest", "-q", "-x", "-m", "not soak", "-p", "no:cacheprovider",
                "-p", "no:randomly", *bug.finder.split(),
            ],
            cwd=copy, env={**os.environ, "PYTHONPATH": f"{copy / 'src'}:{copy}"}, check=False,
            capture_output=True, text=True, timeout=_AT_MOST_S,
        )  # fmt: skip
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
    found = run.returncode == _FAILED and failed is not None
    return Finding(
        bug.name, bug.what, found, failed[1] if failed else "", round(time.monotonic() - begun, 1),
        "" if found else run.stdout[-2_000:] + run.stderr[-1_000:],
    )  # fmt: skip


def main() -> int:
    """Search for bugs; return 0 when all were found."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*", metavar="NAME")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    bugs = [BY_NAME[name] for name in chosen.names] or BUGS
    findings = []
    for bug in bugs:
        finding = search(bug)
        findings.append(finding)
        how = f"found by {finding.by}" if finding.found else "NOT FOUND"
        print(f"{finding.seconds:6.1f} s  {bug.name}: {how}", flush=True)
        if not finding.found:
            print(finding.said, flush=True)
    missed = [finding.name for finding in findings if not finding.found]
    print(f"{len(findings) - len(missed)} of {len(findings)} found", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(one) for one in findings], indent=1) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
