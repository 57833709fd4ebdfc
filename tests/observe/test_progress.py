"""The progress line says what becomes of migrations, also where there is no terminal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headrace as hr
from headrace.observe.progress import ProgressLine


class Count(hr.Computation):
    seen = hr.ValueState(int, default=0)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.seen.value += 1


def test_each_migration_has_a_line_when_it_begins_and_one_when_it_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = hr.Pipeline("counting")
    numbers = pipeline.inject(
        "numbers", hr.sources.Iterable(list(range(100)), int, event_time=lambda number: number)
    )
    pipeline.compute("count", Count(), keys={numbers: "value"})
    never = 1e9
    job = hr.run(
        pipeline, storage=tmp_path, workers=2, bins=8, runner="inline",
        listeners=[ProgressLine("counting", every_s=never)],
    )  # fmt: skip
    with job:
        moves = [job.rescale(workers) for workers in (4, 2)]  # the second waits for its turn
        assert [move.wait("1m") for move in moves] == ["done", "done"]
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("counting")]
    said = " ".join(lines)
    assert 2 <= len(lines) <= 4, lines  # an end and a begin may be of one step
    for workers in (4, 2):
        begun = re.search(rf"rescale to {workers} workers: \w+, round \d of 2, ", said)
        done = said.index(f"rescale to {workers} workers: done, 4 of 4 bins, ")
        assert begun and begun.start() < done
    assert said.index("rescale to 4 workers: done") < said.index("rescale to 2 workers: done")


class Refuses(hr.Computation):
    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.value == 13:
            raise ValueError("thirteen")


def test_the_last_line_says_what_was_late_and_skipped_in_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = hr.Pipeline("counting")
    numbers = pipeline.inject(
        "numbers", hr.sources.Iterable([5, 9, 13, 2, 20, 1], int, event_time=lambda number: number)
    )
    pipeline.compute("refuses", Refuses(), keys={numbers: "value"}, on_error="skip")
    with ProgressLine("counting", every_s=1e9) as line:
        settings = hr.Settings(limit=hr.Limit(1, 1 << 20))
        with hr.run(
            pipeline, storage=tmp_path, runner="inline", listeners=[line], settings=settings
        ) as job:
            job.drain()
    *_, last = capsys.readouterr().err.splitlines()
    assert "6 records" in last
    assert "late 2  skipped 1  " in last
