"""JSON of the command line holds facts: no value that stands for another one inside the engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.cli import main
from headrace.eventtime.timestamps import LAST_DATE_US, MAX_TIME, MIN_TIME, show_time
from tests.support.pipelines import Collected

#: Integers this far from zero are times before or after all time, and no quantities.
_NO_QUANTITY = 2**62

COMMANDS = [
    ["status"],
    ["top"],
    ["watermark", "list"],
    ["watermark", "why", "wakes"],
    ["watermark", "why", "in"],
    ["watermark", "bins", "wakes"],
    ["state", "get", "wakes", "a"],
    ["state", "scan", "wakes"],
    ["state", "scan", "wakes", "--section", "timers"],
    ["checkpoint", "list"],
    ["checkpoint", "verify"],
    ["layout"],
    ["migrations"],
    ["updates"],
    ["hosts"],
    ["policy", "show"],
    ["pause", "--wait", "0"],
    ["stop"],
    ["rescale", "3", "--dry-run"],
    ["remove", "wakes", "--dry-run"],
    ["drain-hosts", "nowhere", "--dry-run"],
    ["checkpoint", "clean", "--dry-run"],
]


class Item(msgspec.Struct):
    key: str
    at: int


class Wakes(hr.Computation):
    """Sets a timer that is due soon, one that is due never, and one by the clock."""

    soon = hr.Timer(hr.EVENT_TIME)
    never = hr.Timer(hr.EVENT_TIME)
    late = hr.Timer(hr.WALL_TIME)
    count = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.count.value += 1
        self.soon.set(record.timestamp_us + 10)
        self.never.set(MAX_TIME)
        self.late.set(10**16)
        ctx.produce("out", self.count.value)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        pass


def run(storage: Path, how: str) -> None:
    """Run a pipeline: without any record, until it has caught up, or until its input has ended."""
    pipeline = hr.Pipeline("clean")
    items = [] if how == "nothing came" else [Item("ab"[n % 2], n) for n in range(8)]
    stream = pipeline.inject("in", hr.sources.Iterable(items, Item, event_time="at"))
    node = pipeline.compute("wakes", Wakes(), keys={stream: "key"})
    pipeline.sink("out", node, Collected().sink("out"))
    with hr.run(pipeline, storage=storage, runner="inline", bins=16) as job:
        job.drain() if how == "ended" else job.catch_up()


def values_of(data: Any) -> Iterator[Any]:
    """Return all keys and values, however deep."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield name
            yield from values_of(value)
    elif isinstance(data, list):
        for value in data:
            yield from values_of(value)
    else:
        yield data


def is_clean(value: Any) -> bool:
    if isinstance(value, str):
        return value != "-" and "9999-12-31T23:59:59" not in value and "\U0010ffff" not in value
    if isinstance(value, bool) or value is None:
        return True
    return math.isfinite(value) and abs(value) < _NO_QUANTITY


@pytest.mark.parametrize("how", ["nothing came", "caught up", "ended"])
def test_no_json_of_a_command_leaks_a_value_of_the_engine(tmp_path: Path, how: str) -> None:
    run(tmp_path, how)
    for command in COMMANDS:
        asked = [*command, "--storage", str(tmp_path), "--output", "json"]
        found = CliRunner().invoke(main, asked)
        assert found.exit_code in (0, 5, 6, 7), (command, found.output)
        for line in found.stdout.splitlines():
            dirty = [value for value in values_of(msgspec.json.decode(line)) if not is_clean(value)]
            assert not dirty, (command, line)


def test_a_watermark_is_null_before_anything_is_known_and_end_after_all(tmp_path: Path) -> None:
    def watermarks(storage: Path) -> list[Any]:
        found = []
        for command in (["status"], ["top"], ["watermark", "list"], ["watermark", "why", "wakes"]):
            asked = [*command, "--storage", str(storage), "--output", "json"]
            data = msgspec.json.decode(CliRunner().invoke(main, asked).stdout)
            if "computations" in data and "wakes" not in data["computations"]:
                continue  # it has done nothing yet
            of = data["computations"]["wakes"] if "computations" in data else data
            of = of[0] if isinstance(of, list) else of
            found.append(of.get("output_watermark", of.get("watermark", of.get("output"))))
        return found

    run(tmp_path / "ended", "ended")
    assert watermarks(tmp_path / "ended") == ["end"] * 4
    run(tmp_path / "nothing", "nothing came")
    assert set(watermarks(tmp_path / "nothing")) == {None}


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (MIN_TIME, "-"),
        (MIN_TIME + 1, "-"),
        (0, "1970-01-01T00:00:00Z"),
        (LAST_DATE_US, "9999-12-31T23:59:59.999999Z"),
        (LAST_DATE_US + 1, "end"),
        (MAX_TIME - 1, "end"),
        (MAX_TIME, "end"),
    ],
)
def test_a_time_outside_of_all_event_times_is_shown_as_none(micros: int, text: str) -> None:
    assert show_time(micros) == text
