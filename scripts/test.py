"""The suite, in two processes on two cores; what the second says comes when both are done.

python scripts/test.py [--fast]

Of the whole suite, the first process has all tests that start Spark, since some of these look for processes
of it that they can kill; and folders that make both take about as long. With ``--fast``, most units, the
coordinator and some properties are run, with few examples, without Spark and without any other process.

(No shell does it: what it starts in the background is deaf to SIGINT, and so are the programs under test.
Where this was started so itself, those that it starts hear again.)
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile

WITH_SPARK = ["tests/docs", "tests/spark"]
BESIDE = ["tests/faults/kills", "tests/faults/power", "tests/faults/tables"]
FAST = (
    [
        "tests/machine/coordinator",
        "tests/machine/driven",
        "tests/property/steps",
        "tests/unit/schema",
        "tests/unit/sinks",
        "tests/unit/storage",
    ],
    ["tests/unit", *(f"--ignore=tests/unit/{name}" for name in ("schema", "sinks", "storage"))],
)
#: Units that run whole pipelines, and what takes some ten seconds: too long for a fast run.
NOT_FAST = [
    "tests/unit/checkpoints",
    "tests/unit/cli",
    "tests/unit/nexmark",
    "tests/unit/ops",
    "tests/unit/migration/test_plans.py",
    "tests/unit/schema/test_compatibility.py",
    "tests/unit/schema/test_map_keys.py",
    "tests/unit/sources/test_files_as_others_write_them.py",
    "tests/unit/sources/test_public_files.py",
    "tests/machine/coordinator/test_storage_stays_small.py",
    "tests/machine/driven/test_many_timers.py",
    "tests/machine/driven/test_policies.py",
    "tests/machine/driven/test_timer_backlog.py",
    "tests/property/steps/test_timelines.py",
]


def main() -> int:
    """Run both halves; return the worse of their exit codes."""
    options = argparse.ArgumentParser(description="Run the tests in two processes.")
    options.add_argument("--fast", action="store_true", help="only what takes little time")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # tests start many processes
    pytest = [sys.executable, "-m", "pytest", "-q"]
    if options.parse_args().fast:
        fast = [*pytest, "-m", "not soak and not spark", "--hypothesis-profile=fast", "-r", "fE"]
        fast += [f"--ignore={path}" for path in NOT_FAST]
        return both([*fast, *FAST[0]], [*fast, *FAST[1]])
    first = [*WITH_SPARK, *BESIDE]
    whole = [*pytest, "-m", "not soak"]
    return both([*whole, *first], [*whole, "tests", *(f"--ignore={folder}" for folder in first)])


def both(first: list[str], second: list[str]) -> int:
    """Run two commands side by side; print what the second says when both are done."""
    with tempfile.TemporaryFile() as said:
        rest = subprocess.Popen(second, stdout=said, stderr=subprocess.STDOUT)
        done = subprocess.run(first, check=False)
        code = rest.wait()
        said.seek(0)
        print(said.read().decode(), flush=True)
    return max(done.returncode, code)


if __name__ == "__main__":
    sys.exit(main())
