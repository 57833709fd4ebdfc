"""Plants a bug in a copy of the project, and looks whether the tests find it.

python -m tests.faults.planted.planting [NAME …] [--jobs N] [--json benchmarks/results/planted.json]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from tests.faults.planted.bugs import BUGS, BY_NAME, Bug
from tests.support.results import KEPT_IN

ROOT = Path(__file__).parents[3]
PATCHES = Path(__file__).parent / "patches"
_PASSED = 0
_FAILED = 1  # pytest's exit code when tests have failed; anything else is no finding
_AT_MOST_S = 600
# (a test that cannot be collected, or whose fixture fails, is an ERROR, and no finding)
_FAILURE = re.compile(r"^FAILED (.+?)(?: - (.*))?$", re.MULTILINE)


@dataclass(frozen=True)
class Finding:
    """What came of a planted bug.

    Attributes:
        found: whether a test failed.
        by: the first that did.
        because: what it failed with: what one reads to see that it failed for the bug's effect.
        seconds: how long it took.
        said: the end of what pytest said, if nothing failed.
    """

    name: str
    what: str
    found: bool
    by: str
    because: str
    seconds: float
    said: str = ""


@contextmanager
def copied() -> Iterator[Path]:
    """Give a copy of the project."""
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
        yield copy


@contextmanager
def planted(bug: Bug) -> Iterator[Path]:
    """Give a copy of the project with a bug in it."""
    with copied() as copy:
        subprocess.run(["git", "apply", str(patch_of(bug))], cwd=copy, check=True)
        yield copy


def patch_of(bug: Bug) -> Path:
    """Return the patch that plants a bug."""
    return PATCHES / f"{bug.name}.patch"


def search(bug: Bug) -> Finding:
    """Plant a bug, and run the tests that must find it."""
    begun = time.monotonic()
    with planted(bug) as copy:
        code, said = _run_tests(copy, bug.finder)
    failure = _FAILURE.search(said)
    found = code == _FAILED and failure is not None
    return Finding(
        bug.name,
        bug.what,
        found,
        by=failure[1] if failure else "",
        because=_reason(failure[2] or "", said) if failure else "",
        seconds=round(time.monotonic() - begun, 1),
        said="" if found else said[-3_000:],
    )


def _reason(summary: str, said: str) -> str:
    """Return what a test failed with: its last line, and what was not so, if that has words of its own."""
    compared = re.findall(r"^E   (assert .*)$", said, re.MULTILINE)
    own_words = compared and not summary.startswith(("assert", "AssertionError: assert"))
    return f"{summary[:100]}: {compared[-1][:200]}" if own_words else summary[:300]


def search_all(bugs: Sequence[Bug], jobs: int = 1) -> Iterator[Finding]:
    """Search for bugs, some side by side, each in a copy of its own; give findings in their order."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(search, bugs)


def false_alarms(bugs: Sequence[Bug], jobs: int = 1) -> dict[str, str]:
    """Run the tests that must find bugs where none is planted; return what those say that do not pass."""
    finders = list(dict.fromkeys(bug.finder for bug in bugs))
    with copied() as copy, ThreadPoolExecutor(jobs) as pool:
        came = pool.map(partial(_run_tests, copy), finders)
        return {
            finder: said[-3_000:]
            for finder, (code, said) in zip(finders, came, strict=True)
            if code != _PASSED
        }


def _run_tests(copy: Path, finder: str) -> tuple[int, str]:
    """Run tests in a copy until one fails; return pytest's exit code, and what it said.

    What Hypothesis tries is the same each time, and what it finds is not made smaller: whether a bug
    is found should be neither luck nor long.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "not soak",
        "--tb=short",
        "-p",
        "no:cacheprovider",
        "--hypothesis-seed=0",
        "--hypothesis-profile=unshrunk",
        *shlex.split(finder),
    ]
    env = {**os.environ, "PYTHONPATH": f"{copy / 'src'}:{copy}", "COLUMNS": "200"}
    env.pop(KEPT_IN, None)  # (what such tests record is of the bug)
    try:
        run = subprocess.run(
            command,
            cwd=copy,
            env=env,
            check=False,
            capture_output=True,
            text=True,
            timeout=_AT_MOST_S,
        )
    except subprocess.TimeoutExpired:
        return -1, f"nothing failed in {_AT_MOST_S} s"
    return run.returncode, run.stdout + run.stderr[-1_000:]


def main() -> int:
    """Search for bugs; return 0 when all were found."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*", metavar="NAME")
    options.add_argument("--jobs", type=int, default=1, metavar="N", help="how many side by side")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    bugs = [BY_NAME[name] for name in chosen.names] or BUGS
    findings = []
    for finding in search_all(bugs, chosen.jobs):
        findings.append(finding)
        print(told(finding), flush=True)
    missed = [finding.name for finding in findings if not finding.found]
    print(f"{len(findings) - len(missed)} of {len(findings)} found", flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(one) for one in findings], indent=1) + "\n")
    return 1 if missed else 0


def told(finding: Finding) -> str:
    """Return a finding as people read it."""
    if not finding.found:
        return f"{finding.seconds:6.1f} s  {finding.name}: NOT FOUND\n{finding.said}"
    return f"{finding.seconds:6.1f} s  {finding.name}: {finding.by}\n          {finding.because}"


if __name__ == "__main__":
    sys.exit(main())
