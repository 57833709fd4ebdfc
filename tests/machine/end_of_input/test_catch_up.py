"""Runs that read what is there now, and end without declaring an end of time."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.cli import main
from headrace.driver.driver import Clock
from headrace.pipeline.source import Limit, Offer, Position
from headrace.sources.inbox.producer import Producer
from headrace.testing import drive
from tests.support.ending_runs import Hit, Site


def test_windows_stay_open_from_run_to_run(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write("day1.jsonl", [("a", 1), ("a", 12)])
    assert site.run("catch_up") == Counter({("a", 0): 1})
    assert site.ended == "caught up"
    assert site.run("catch_up") == Counter()
    site.write("day2.jsonl", [("a", 13), ("b", 14), ("a", 25)])
    assert site.run("catch_up") == Counter({("a", 10): 2, ("b", 10): 1})
    site.write("day3.jsonl", [("b", 26)])
    assert site.run("drain") == Counter({("a", 20): 1, ("b", 20): 1})
    assert site.late() == 0


def test_the_last_line_waits_for_its_newline(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write("day.jsonl", [("a", 1), ("a", 2)], end="")
    site.run("catch_up")
    assert site.head is not None and site.head.counts["counts"].records == 1
    site.write("day.jsonl", [("a", 1), ("a", 2), ("a", 3)])
    assert site.run("drain") == Counter({("a", 0): 3})


def test_input_that_has_ended_is_only_caught_up_with(tmp_path: Path) -> None:
    site = Site(tmp_path)
    source = hr.sources.Iterable([], Hit, event_time="at")
    with drive(site.pipeline([], source), clock=0) as driven:
        driven.push("hits", Hit("a", 1))
        driven.end()
        assert driven.catch_up() == "caught up"
        assert driven.watermark_of("counts").input_us == 1


def test_a_directory_without_files_is_caught_up_with(tmp_path: Path) -> None:
    site = Site(tmp_path)
    assert site.run("catch_up") == Counter()
    site.write("day.jsonl", [("a", 1)])
    assert site.run("drain") == Counter({("a", 0): 1})


def test_a_list_that_has_grown_is_read_on(tmp_path: Path) -> None:
    site, hits = Site(tmp_path), [Hit("a", 1), Hit("a", 12)]
    source = hr.sources.Iterable(hits, Hit, event_time="at")
    assert site.run("catch_up", source=source) == Counter({("a", 0): 1})
    hits += [Hit("a", 13), Hit("a", 30)]
    assert site.run("catch_up", source=source) == Counter({("a", 10): 2})


def test_producers_that_have_finished_do_not_end_the_input(tmp_path: Path) -> None:
    site = Site(tmp_path)
    source = hr.sources.Inbox(tmp_path / "inbox", Hit, event_time="at", producers=["p"])
    producer = Producer(tmp_path / "inbox", "p", type=Hit, event_time="at")
    producer.append([Hit("a", 1)])
    producer.finish()
    site.run("catch_up", source=source)
    assert site.head is not None and site.head.ended == []
    assert site.run("drain", source=source) == Counter({("a", 0): 1})
    assert site.head.ended == ["hits"]


class Flood(hr.sources.Iterable):
    """A source to which more comes than can be read, all the time."""

    def __init__(self) -> None:
        self.come = 10
        super().__init__(lambda: (Hit("a", n) for n in range(self.come)), Hit, event_time="at")

    def now(self, position: Position) -> Any:
        return self.come

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        self.come += 5
        self._iterator = None
        return super().offer(position, Limit(3, limit.bytes, until=limit.until))


def test_input_that_comes_faster_than_it_is_read_does_not_keep_it_going(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.run("catch_up", source=Flood())
    assert site.head is not None and site.head.counts["counts"].records == 10


def test_an_injector_that_was_read_is_not_asked_again_while_others_are(tmp_path: Path) -> None:
    asked: list[int] = []

    class Quick(hr.sources.Iterable):
        def offer(self, position: Position, limit: Limit) -> Offer | None:
            asked.append(position)
            return super().offer(position, limit)

    def pipeline(produced: list[Any], _: Any) -> hr.Pipeline:
        drawn = hr.Pipeline("two")
        quick = drawn.inject("quick", Quick([Hit("a", 1)], Hit, event_time="at"))
        slow = drawn.inject(
            "slow", hr.sources.Iterable([Hit("a", n) for n in range(9)], Hit, event_time="at")
        )
        drawn.compute("counts", hr.ops.TumblingCount("10us"), keys={quick: "page", slow: "page"})
        return drawn

    Site(tmp_path).run("catch_up", pipeline=pipeline, settings=hr.Settings(limit=Limit(1, 1 << 20)))
    assert asked == [0, 1]


def test_a_limit_on_skew_yields_where_nothing_else_is_left(tmp_path: Path) -> None:
    def pipeline(produced: list[Any], _: Any) -> hr.Pipeline:
        drawn = hr.Pipeline("skewed")
        far = [Hit("a", n * 1_000) for n in range(8)]
        near, far_source = [Hit("a", 1)], hr.sources.Iterable(far, Hit, event_time="at")
        one = drawn.inject("near", hr.sources.Iterable(near, Hit, event_time="at"))
        two = drawn.inject("far", far_source, skew_limit="1ms")
        drawn.compute("counts", hr.ops.TumblingCount("10us"), keys={one: "page", two: "page"})
        return drawn

    site = Site(tmp_path)
    site.run("catch_up", pipeline=pipeline, settings=hr.Settings(limit=Limit(1, 1 << 20)))
    assert site.head is not None and site.head.counts["counts"].records == 9


class Ticks(hr.Computation):
    """Sets a wall timer again and again, faster than a step takes."""

    tick = hr.Timer(hr.WALL_TIME)
    ticks = hr.ValueState(int, default=0)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.tick.set(ctx.now)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        self.ticks.value += 1
        self.tick.set(timer.time_us + 1)


def test_a_job_that_has_read_everything_before_it_is_asked_declares_no_end(tmp_path: Path) -> None:
    offered: list[bool] = []

    class Told(hr.sources.Iterable):
        def offer(self, position: Position, limit: Limit) -> Offer | None:
            offer = super().offer(position, limit)
            offered.append(offer is not None and offer.final and offer.empty)
            return offer

    site = Site(tmp_path)
    source = Told([Hit("a", 1), Hit("a", 12)], Hit, event_time="at")
    with hr.run(site.pipeline([], source), storage=site.storage, runner="inline") as job:
        while offered.count(True) < 3:
            assert job.pass_time()
        assert job.catch_up("60s")
    assert job.head is not None and job.head.ended == []
    assert site.run("drain", source=source) == Counter({("a", 10): 1})


@pytest.mark.parametrize("end", ["catch_up", "drain"])
def test_a_wall_timer_that_is_set_again_and_again_does_not_keep_it_going(
    tmp_path: Path, end: str
) -> None:
    class Passing(Clock):
        def __init__(self) -> None:
            self.readings = itertools.count(1_000, 1)

        def now_us(self) -> int:
            return next(self.readings)

    def pipeline(produced: list[Any], source: Any) -> hr.Pipeline:
        drawn = hr.Pipeline("ticking")
        hits = drawn.inject("hits", hr.sources.Iterable([Hit("a", 1)], Hit, event_time="at"))
        drawn.compute("ticks", Ticks(), keys={hits: "page"})
        return drawn

    site = Site(tmp_path)
    site.run(end, pipeline=pipeline, clock=Passing())
    assert site.head is not None and 1 <= site.head.counts["ticks"].timers < 1_000


PROGRAM = """
import headrace as hr
from tests.support.ending_runs import Hit
def pipeline():
    drawn = hr.Pipeline("site")
    source = hr.sources.Files("{hits}", type=Hit, event_time="at", format="jsonl")
    hits = drawn.inject("hits", source, watermark=hr.ascending())
    counts = drawn.compute("counts", hr.ops.TumblingCount("10us"), keys={{hits: "page"}})
    drawn.sink("out", counts, hr.sinks.Files("{out}"))
    return drawn
"""


def test_the_command_line_catches_up_ends_and_reopens(tmp_path: Path) -> None:
    site = Site(tmp_path)
    (tmp_path / "site.py").write_text(PROGRAM.format(hits=site.hits, out=tmp_path / "out"))
    cli = CliRunner()

    def run(*options: str) -> Any:
        target = [str(tmp_path / "site.py"), "--storage", str(site.storage), "--runner", "inline"]
        return cli.invoke(main, ["run", *target, *options])

    def status() -> Any:
        done = cli.invoke(main, ["status", "--storage", str(site.storage), "--output", "json"])
        return json.loads(done.stdout)["input"]

    def produced() -> int:
        return sum(
            len(path.read_text().splitlines()) for path in (tmp_path / "out").rglob("*.jsonl")
        )

    site.write("1.jsonl", [("a", 1), ("a", 12)])
    done = run("--available-now")
    assert (done.exit_code, status(), produced()) == (0, "caught up", 1), done.output
    assert "caught up" in done.stderr
    site.write("2.jsonl", [("a", 13)])
    assert (run().exit_code, status(), produced()) == (0, "ended", 2)
    site.write("3.jsonl", [("a", 14), ("a", 25)])
    done = run()
    assert done.exit_code == 4 and "HR210" in done.stderr and "--reopen hits" in done.stderr
    assert (status(), produced()) == ("ended", 2)
    done = run("--reopen", "hits", "--available-now")
    assert (done.exit_code, status(), produced()) == (0, "caught up", 2), done.output
    assert (run("--reopen", "hits").exit_code, produced()) == (0, 3)
    assert run("--reopen", "hit").exit_code == 4
    assert run("--available-now", "--keep-running").exit_code == 2


def test_a_running_pipeline_can_be_asked_from_outside_to_catch_up(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write("1.jsonl", [("a", 1), ("a", 12)])
    watched = hr.sources.Files(site.hits, type=Hit, event_time="at", format="jsonl", watch=True)
    made = site.pipeline([], watched)
    with hr.run(made, storage=site.storage, runner="inline") as job:
        while job.head is None:
            job.pass_time()
        asked = CliRunner().invoke(main, ["catch-up", "--storage", str(site.storage)])
        assert asked.exit_code == 0, asked.output
        assert job.wait("60s")
    assert job.ended == "caught up"
    assert job.head is not None and job.head.counts["counts"].records == 2
