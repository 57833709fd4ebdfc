"""The demo of a rescale under load: it starts with one command, and says truly how it went."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[3] / "examples" / "rescale" / "demo.py"
SHORT = ["--meters", "3000", "--rate", "3000", "--bins", "16", "--quiet", "2"]


@pytest.fixture(scope="module")
def shown() -> subprocess.CompletedProcess[str]:
    """What the demo prints where there is no terminal."""
    return subprocess.run(
        [sys.executable, str(DEMO), *SHORT],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.spark
def test_both_migrations_are_done_and_no_reading_is_missing_or_billed_twice(
    shown: subprocess.CompletedProcess[str],
) -> None:
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for workers in (4, 2):
        assert re.search(
            rf"^rescale to {workers} workers: done, 8 bins and \d+\.\d MB moved in \d+ rounds",
            shown.stdout,
            re.MULTILINE,
        ), shown.stdout
    counted = re.search(
        r"([\d,]+) readings sent, ([\d,]+) billed, of 3,000 meters: 0 missing, 0 twice, 0 sums wrong",
        shown.stdout,
    )
    assert counted, shown.stdout
    sent, billed = (int(number.replace(",", "")) for number in counted.groups())
    assert sent == billed > 3 * 3_000, "the load went on through both migrations"


@pytest.mark.spark
def test_the_table_has_steps_before_during_and_after_each_migration(
    shown: subprocess.CompletedProcess[str],
) -> None:
    rows = re.findall(r"(before|during|after) +(\d+) +(\d+) +(\d+) +(\d+)", shown.stdout)
    assert [row[0] for row in rows] == ["before", "during", "after"] * 2, shown.stdout
    for _, *numbers in rows:
        steps, p50, p99, most = map(int, numbers)
        assert steps > 0 and 0 < p50 <= p99 <= most


@pytest.mark.spark
def test_the_progress_lines_follow_workers_and_migrations(
    shown: subprocess.CompletedProcess[str],
) -> None:
    lines = [line for line in shown.stderr.splitlines() if line.startswith("meters  step ")]
    assert all(re.search(r"/s .* last step \d+ ms  [24] workers", line) for line in lines)
    for workers in (4, 2):
        of = [line for line in lines if f"rescale to {workers} workers: " in line]
        assert re.search("(preparing|moving|gap), round [1-9] of ", of[0])
        assert f"{workers} workers  rescale to {workers} workers: done, 8 of 8 bins" in of[-1]
    assert "  4 workers" in lines[-1] or "  2 workers" in lines[-1]
