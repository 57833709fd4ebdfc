"""The progress line says what becomes of migrations, also where there is no terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import UserCodeError
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
        pipeline,
        storage=tmp_path,
        workers=2,
        bins=8,
        runner="inline",
        listeners=[ProgressLine("counting", every_s=never)],
    )
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


def line_of_a_run(storage: Path, capsys: pytest.CaptureFixture[str], *, fails: bool = False) -> str:
    """Run a pipeline with late, bad and repeated records to its end; return the closing line."""
    pipeline = hr.Pipeline("counting")
    numbers = pipeline.inject(
        "numbers",
        hr.sources.Iterable([5, 9, 13, 2, 20, 1, 9], int, event_time=lambda n: n),
        ids="value",
        horizon="1h",
    )
    pipeline.compute(
        "refuses", Refuses(), keys={numbers: "value"}, on_error="stop" if fails else "skip"
    )
    pipeline.compute("aside", Count(), keys={numbers: "value"}, late="side")
    with ProgressLine("counting", every_s=1e9, dropping={"refuses"}) as line:
        settings = hr.Settings(limit=hr.Limit(1, 1 << 20))
        with hr.run(
            pipeline, storage=storage, runner="inline", listeners=[line], settings=settings
        ) as job:
            line.ended = lambda: job.ended
            job.drain()
    *_, last = capsys.readouterr().err.splitlines()
    return last


def test_the_closing_line_has_the_totals_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = line_of_a_run(tmp_path, capsys)
    assert re.fullmatch(
        r"counting  drained: 7 records in \d+ steps?, \d+\.\d s  late 4 \(dropped 2\)  skipped 1  "
        r"duplicates 1  expired 0",
        last,
    )


def test_a_run_that_finds_nothing_new_says_so_and_counts_nothing_of_the_run_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line_of_a_run(tmp_path, capsys)
    last = line_of_a_run(tmp_path, capsys)
    assert re.fullmatch(
        r"counting  drained, nothing new: 0 records in 0 steps, \d+\.\d s  late 0 \(dropped 0\)  "
        r"skipped 0  duplicates 0  expired 0",
        last,
    )


def test_a_run_that_fails_has_a_closing_line_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserCodeError):
        line_of_a_run(tmp_path, capsys, fails=True)
    *_, last = capsys.readouterr().err.splitlines()
    assert re.match(r"counting  failed: 2 records in 2 steps, .*  late 0 \(dropped 0\)", last)


def test_a_pipeline_that_says_nothing_of_watermarks_says_at_the_start_what_that_means(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def told(watermark: Any) -> list[str]:
        caplog.clear()
        pipeline = hr.Pipeline("counting")
        source = hr.sources.Iterable([1], int, event_time=lambda number: number)
        numbers = pipeline.inject("numbers", source, watermark=watermark)
        pipeline.compute("count", Count(), keys={numbers: "value"})
        hr.run(pipeline, storage=tmp_path, runner="inline")
        return [record.getMessage() for record in caplog.records]

    (line,) = told(None)
    assert "no watermark= for 'numbers': records are expected in order of event time" in line
    assert 'watermark=hr.bounded_delay("10s")' in line
    assert told(hr.bounded_delay("10s")) == told(hr.ascending()) == []
