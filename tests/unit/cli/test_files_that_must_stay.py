"""`headrace status` names the input files that must stay."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

import headrace as hr
from headrace.cli import main


class Pass(hr.Computation):
    deterministic = True
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value.n)


def test_status_names_files_that_no_checkpoint_has_or_that_are_not_read_wholly(
    tmp_path: Path,
) -> None:
    for name in range(4):
        rows = range(name * 10, name * 10 + 10)
        text = "".join(f'{{"at": {n}, "n": {n}}}\n' for n in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)
    pipeline = hr.Pipeline("files")
    files = hr.sources.Files(
        tmp_path / "*.jsonl", event_time="at", schema={"at": int, "n": int}, time_unit="us"
    )
    stream = pipeline.inject("files", files)
    pipeline.compute("pass", Pass(), keys={stream: "n"})
    storage = tmp_path / "state"
    settings, seen = hr.Settings(limit=hr.Limit(15, 1 << 20)), []

    def look(_: hr.StepSummary) -> None:
        said = CliRunner().invoke(main, ["status", "--storage", str(storage), "--output", "json"])
        (injector,) = json.loads(said.output)["injectors"].values()
        seen.append([name.partition(".")[0] for name in injector["files_that_must_stay"]])

    with hr.run(
        pipeline,
        storage=storage,
        runner="inline",
        settings=settings,
        checkpoint_every="1h",
        listeners=[look],
    ) as job:
        job.drain()
    assert ["0", "1"] in seen, "the step is in no checkpoint, and the second file is half-read"
    assert ["0", "1", "2"] in seen
    assert seen[-1] == [], "the last step of a run is a checkpoint"
    said = CliRunner().invoke(main, ["status", "--storage", str(storage)])
    assert "must stay" not in said.output
