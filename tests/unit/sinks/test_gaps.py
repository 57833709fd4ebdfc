"""An output that was delivered and has gone is a gap, and a gap is an error, as other content is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import PipelineError, SinkConflict
from headrace.sinks import Files
from tests.support.records import Item


class Echo(hr.Computation):
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.value.n % 2:
            ctx.produce("out", record.value.n)


def drawn(count: int, sink: hr.sinks.Sink) -> hr.Pipeline:
    pipeline = hr.Pipeline("gaps")
    items = [Item("k", n, n) for n in range(count)]
    stream = pipeline.inject(
        "items", hr.sources.Iterable(items, Item, event_time="at"), watermark=hr.ascending()
    )
    pipeline.sink("out", pipeline.compute("echo", Echo(), keys={stream: "key"}), sink)
    return pipeline


def run(storage: Path, count: int, sink: hr.sinks.Sink) -> None:
    settings = hr.Settings(limit=hr.Limit(1, 1 << 20))
    pipeline = drawn(count, sink)
    with hr.run(pipeline, storage=storage, runner="inline", settings=settings) as job:
        job.catch_up()


def files(out: Path) -> list[Path]:
    return sorted(out.glob("step-*"))


def test_an_output_that_has_gone_before_the_next_one_is_an_error_also_after_a_restart(
    tmp_path: Path,
) -> None:
    storage, out = tmp_path / "storage", tmp_path / "out"
    run(storage, 6, Files(out))
    gone = files(out)[-1]
    before = gone.read_bytes()
    gone.unlink()
    with pytest.raises(SinkConflict, match="results would have a gap") as found:
        run(storage, 10, Files(out))
    assert gone.name in found.value.what
    assert len(files(out)) == 2, "nothing is written behind a gap"
    gone.write_bytes(before)
    run(storage, 10, Files(out))
    assert len(files(out)) == 5


def test_a_gap_is_seen_within_a_run(tmp_path: Path) -> None:
    class Hasty(Files):
        """Loses its third file."""

        def deliver(self, step: int, rows: pa.Table) -> None:
            super().deliver(step, rows)
            if len(files(tmp_path / "out")) == 3:
                files(tmp_path / "out")[-1].unlink()

    with pytest.raises(SinkConflict, match="results would have a gap"):
        run(tmp_path / "storage", 12, Hasty(tmp_path / "out"))


def test_files_that_are_taken_away_on_purpose_may_be(tmp_path: Path) -> None:
    storage, out = tmp_path / "storage", tmp_path / "out"
    run(storage, 6, Files(out, gaps="allow"))
    for path in files(out):
        path.unlink()
    run(storage, 10, Files(out, gaps="allow"))
    assert len(files(out)) == 2


@pytest.mark.parametrize("by", [{"format": "csv"}, {"compression": "gzip"}])
def test_another_form_or_directory_at_a_restart_is_no_gap(
    tmp_path: Path, by: dict[str, Any]
) -> None:
    storage, out = tmp_path / "storage", tmp_path / "out"
    run(storage, 4, Files(out))
    run(storage, 8, Files(out, **by))
    run(storage, 10, Files(out))
    run(storage, 12, Files(tmp_path / "elsewhere"))
    shutil.rmtree(out)
    run(storage, 14, Files(tmp_path / "elsewhere"))
    assert len(files(tmp_path / "elsewhere")) == 2


def test_sinks_are_told_which_delivery_was_the_one_before(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    sink = hr.sinks.Calls(lambda delivery: told.append((delivery.previous, delivery.id)))
    run(tmp_path / "storage", 6, sink)
    run(tmp_path / "storage", 10, sink)
    ids = [id_ for _, id_ in told]
    assert len(ids) == len(set(ids)) == 5, "a step without rows is no delivery"
    assert [previous for previous, _ in told] == [-1, *ids[:-1]]


def test_what_to_do_about_gaps_is_checked(tmp_path: Path) -> None:
    wrong: Literal["allow"] = "ignore"  # type: ignore[assignment]
    with pytest.raises(PipelineError, match="gaps='ignore'"):
        Files(tmp_path, gaps=wrong)
