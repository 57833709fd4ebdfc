"""The suite, in two processes on two cores; what the second says comes when both are done.

The first has all tests that start Spark, since some of these look for processes of it that they can kill;
and rooms that make both take about as long.

(No shell does it: what it starts in the background is deaf to SIGINT, and so are the programs under test.
Where this was started so itself, those that it starts hear again.)
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile

WITH_SPARK = ["tests/docs", "tests/docs/examples", "tests/spark"]
BESIDE = ["tests/unit/checkpoints", "tests/machine/coordinator", "tests/machine/changes",
"tests/faults/kills", "tests/machine/leadership"]


def main() -> int:
    """Run both; return the worse of their exit codes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pytest = [sys.executable, "-m", "pytest", "-q", "-m", "not soak"]
    with tempfile.TemporaryFile() as said:
        others = [*pytest, "tests", *(f"--ignore={room}" for room in [*WITH_SPARK, *BESIDE])]
        rest = subprocess.Popen(others, stdout=said, stderr=subprocess.STDOUT)
        first = subprocess.run([*pytest, *WITH_SPARK, *BESIDE], check=False)
        code = rest.wait()
        said.seek(0)
        print(said.read().decode(), flush=True)
    return max(first.returncode, code)


if __name__ == "__main__":
    sys.exit(main())
