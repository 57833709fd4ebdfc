"""``headrace watermark why`` answers from the storage alone, while nothing runs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from click.testing import CliRunner, Result

import headrace as hr
from headrace.cli import FAILED, NOTHING_THERE, main
from headrace.driver.driver import Driver
from headrace.eventtime.timestamps import show_time
from headrace.keyspace.layout import Layout
from headrace.ledger.ledger import Ledger
from headrace.runners.inline import InlineRunner
from headrace.storage import LocalStore
from tests.support.pipelines import Collected
from tests.support.script import HandClock, Round, Said, Script


class Wakes(hr.Computation):
    """Sets a timer, and a hold by the clock, as a record says."""

    due = hr.Timer(hr.EVENT_TIME)
    later = hr.Timer(hr.WALL_TIME, holds=True)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        if record.value.key == "held":
            self.later.set(10**15, hold=record.timestamp_us)
        else:
            self.due.set(record.timestamp_us + 100)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        ctx.produce("out", 1)


class Reads(hr.Computation):
    def process_record(self, ctx: hr.Context, record: hr.Record) -> None: ...


class Echo(hr.Computation):
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        ctx.produce("out", record.value.at)


def ask(storage: Path, *more: str) -> Result:
    return CliRunner().invoke(main, ["watermark", "why", "--storage", str(storage), *more])


def run(storage: Path, computation: hr.Computation | None = None, *keys: str) -> None:
    """Run until there is nothing to do but to wait for a partition."""
    clock = HandClock(10_000_000)
    pipeline = hr.Pipeline("asked")
    said = [Said(key, 50 + n) for n, key in enumerate(keys or ["k"])]
    script = Script([Round({"eu": said})] * 3, clock)
    expected = ("eu",) if computation else ("eu", "us")
    stream = pipeline.inject("in", script, expect=expected)
    node = pipeline.compute("echo", computation or Echo(), keys={stream: "key"})
    pipeline.sink("out", node, Collected().sink("out"))
    driver = Driver(pipeline, LocalStore(storage), InlineRunner(), clock=clock)
    driver.listeners.append(lambda summary: driver.request_stop(drain=False))
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


def test_watermarks_are_listed_as_of_any_step_that_is_kept(tmp_path: Path) -> None:
    run(tmp_path, Wakes(), "a", "held", "c", "d")

    def listed(*more: str) -> list[dict[str, str]]:
        command = ["watermark", "list", "--storage", str(tmp_path), "--output", "json", *more]
        found = CliRunner().invoke(main, command)
        assert found.exit_code == 0, found.output
        return [msgspec.json.decode(line) for line in found.stdout.splitlines()]

    assert listed() == [{"computation": "echo", "input": show_time(53), "output": show_time(51)}]
    assert listed("--at-step", "0")[0]["input"] is None


def bins(storage: Path, *more: str) -> Result:
    return CliRunner().invoke(main, ["watermark", "bins", "--storage", str(storage), *more])


def test_the_bins_with_the_oldest_work_come_first(tmp_path: Path) -> None:
    run(tmp_path, Wakes(), "a", "held", "c", "d")
    found = msgspec.json.decode(bins(tmp_path, "echo", "--output", "json").stdout)
    head = Ledger(LocalStore(tmp_path)).open()
    assert head is not None
    layout = Layout.from_wire(head.layout)
    expected: dict[str, list[int]] = {}
    for key, oldest in {"a": 150, "held": 51, "c": 152, "d": 153}.items():
        (at,) = layout.bins_of(np.array([hr.hash_key(key)], dtype=np.uint64)).tolist()
        expected.setdefault(str(layout.bin(at)), []).append(oldest)
    assert [(of["bin"], of["pending"]) for of in found] == [
        (name, len(times))
        for name, times in sorted(expected.items(), key=lambda pair: min(pair[1]))
    ]
    assert head.watermark_of("echo") == (53, 51), "the hold keeps the output watermark back"
    assert (found[0]["watermark"], found[0]["oldest"]) == (show_time(51), show_time(51))
    assert (found[-1]["watermark"], found[-1]["oldest"]) == (show_time(53), show_time(153))
    assert bins(tmp_path, "echo", "--most", "1").stdout.count("\n") == 1
    assert bins(tmp_path, "nobody").exit_code == FAILED


def test_the_computation_whose_own_work_holds_is_told(tmp_path: Path) -> None:
    run(tmp_path, Wakes(), "held", "d")
    assert "its own work at 1970-01-01T00:00:00.000050Z" in ask(tmp_path, "echo").stdout


def test_a_computation_without_pending_work_says_so(tmp_path: Path) -> None:
    run(tmp_path)
    assert bins(tmp_path, "echo").stdout == "echo has no work pending in event time\n"


def test_a_watermark_like_spark_s_waits_for_newer_records_and_for_no_idle_partition(
    tmp_path: Path,
) -> None:
    p = hr.Pipeline("asked")
    times = hr.sources.Iterable([5_000_000, 9_000_000], int, event_time=lambda n: n)
    p.compute("reads", Reads(), keys={p.inject("in", times, watermark=hr.spark("2s")): "value"})
    with hr.run(p, storage=tmp_path, runner="inline") as job:
        job.catch_up()
    said = ask(tmp_path, "in").output
    assert "the newest is at 1970-01-01T00:00:09Z" in said
    assert "it moves with newer records alone" in said
    assert "idle_after" not in said
