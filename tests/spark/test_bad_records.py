"""Records that a source cannot read, where tasks run on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.runners.spark.runner import SparkRunner
from headrace.sources import Files
from headrace.storage import LocalStore
from tests.unit.sources.test_bad_records import Row, run

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("exchange", ["driver", "shuffle"])
@pytest.mark.drawn(1)
def test_bad_lines_become_letters_on_spark(local_spark: Any, tmp_path: Path, exchange: str) -> None:
    lines = [f'{{"at": 1, "n": {n}}}' if n % 7 else f"bad {n}" for n in range(60)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines))
    good, letters, skipped = run(
        Files(path, event_time="at", type=Row, time_unit="us"),
        "dead_letter",
        rows=25,
        workers=2,
        exchange=exchange,
        runner=SparkRunner(local_spark.sparkContext),
        store=LocalStore(tmp_path / "storage"),
    )
    assert good == [n for n in range(60) if n % 7]
    wanted = [(f"{path}, line {n + 1}", f"bad {n}") for n in range(0, 60, 7)]
    assert [letter[:2] for letter in letters] == sorted(wanted)
    assert skipped == len(wanted)
