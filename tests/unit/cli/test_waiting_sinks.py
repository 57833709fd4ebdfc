"""From outside one can tell which sink the input waits for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.cli import main
from headrace.driver.driver import Driver
from headrace.errors import UserCodeError
from headrace.observe.progress import ProgressLine
from headrace.storage import LocalStore
from tests.support.pipelines import Elsewhere


class Item(msgspec.Struct):
    n: int
    at: int


class Echo(hr.Computation):
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value.n)


def fill_the_outbox(storage: Path, listeners: list[Any]) -> None:
    """Run until the sink ``slow`` holds up the input, and fails."""
    full = threading.Event()

    def take(step: int, rows: Any) -> None:
        assert full.wait(30)
        raise OSError("no room")

    pipeline = hr.Pipeline("full")
    items = [Item(n, n) for n in range(9)]
    stream = pipeline.inject("items", hr.sources.Iterable(items, Item, event_time="at"))
    node = pipeline.compute("echo", Echo(), keys={stream: "n"})
    pipeline.sink("slow", node, hr.sinks.Calls(take))
    driver = Driver(
        pipeline,
        LocalStore(storage),
        Elsewhere(),
        workers=1,
        bins=4,
        drain=True,
        settings=hr.Settings(limit=hr.Limit(1, 1 << 20), outbox_steps=3),
    )
    driver.listeners += [*listeners, lambda s: full.set() if s.head.waits_for else None]
    try:
        with pytest.raises(UserCodeError, match="no room"):
            driver.run()
    finally:
        full.set()
        driver.close()


def output(*arguments: str) -> str:
    found = CliRunner().invoke(main, [*arguments], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return " ".join(found.stdout.split())


def test_status_top_and_progress_name_the_sink_that_the_input_waits_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = []
    progress = ProgressLine("full")
    fill_the_outbox(tmp_path, [lambda summary: lines.append(progress._text(summary))])
    where = ("--storage", str(tmp_path))
    assert "(3 steps, " in output("status", *where)
    assert "the input waits for sink slow" in output("status", *where)
    outbox = msgspec.json.decode(output("status", "--output", "json", *where))["outbox"]
    assert (outbox["steps"], outbox["delivered"]) == (3, {"slow": -1})
    assert outbox["bytes"] > 0 and outbox["waits_for"] == ["slow"]
    assert "the input waits for sink slow" in output("top", "--once", *where)
    assert [("waits for sink slow" in line) for line in lines] == [False, False, True]
