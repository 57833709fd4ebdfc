"""``headrace watermark why`` answers from the storage alone, while nothing runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
from click.testing import CliRunner, Result

import headrace as hr
from headrace.cli import FAILED, NOTHING_THERE, main
from headrace.driver import Driver
from headrace.runners.inline import InlineRunner
from headrace.storage import LocalStore
from tests.support.pipelines import Collected
from tests.support.script import HandClock, Round, Said, Script


class Echo(hr.Computation):
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value.at)


def ask(storage: Path, *more: str) -> Result:
    return CliRunner().invoke(main, ["watermark", "why", "--storage", str(storage), *more])


def run(storage: Path) -> None:
    """Run until there is nothing to do but to wait for a partition."""
    clock = HandClock(10_000_000)
    pipeline = hr.Pipeline("asked")
    script = Script([Round({"eu": [Said("k", 50)]})] * 3, clock)
    stream = pipeline.inject("in", script, expect=("eu", "us"))
    node = pipeline.compute("echo", Echo(), keys={stream: "key"})
    pipeline.sink("out", node, Collected().sink("out"))
    driver = Driver(pipeline, LocalStore(storage), InlineRunner(), clock=clock)
    driver.listeners.append(lambda summary: driver.ask_to_stop(drain=False))
    driver.run()
    driver.close()


def test_it_names_the_partition_that_is_missing(tmp_path: Path) -> None:
    run(tmp_path)
    found = ask(tmp_path, "echo")
    assert found.exit_code == 0, found.output
    assert "partition 'us', which is expected: nothing has come from it yet" in found.stdout
    assert "what to do: start the process that feeds it" in found.stdout
    as_data = msgspec.json.decode(ask(tmp_path, "echo", "--output", "json").stdout)
    assert [stage["name"] for stage in as_data] == ["echo", "in"]


def test_what_is_not_there_has_its_exit_code(tmp_path: Path) -> None:
    assert ask(tmp_path / "nothing", "echo").exit_code == NOTHING_THERE
    run(tmp_path)
    assert ask(tmp_path, "nobody").exit_code == FAILED
