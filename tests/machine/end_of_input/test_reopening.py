"""Input that had ended, and goes on: refused at the start, or reopened on request."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import InputGoesOn, PipelineError
from headrace.sources.inbox.producer import Producer
from headrace.testing import drive
from tests.support.ending_runs import Hit, Site


def test_a_new_file_after_the_end_is_refused_until_it_is_said_what_to_do(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write("day1.jsonl", [("a", 1), ("a", 12)])
    assert site.run("drain") == Counter({("a", 0): 1, ("a", 10): 1})
    assert site.run("drain") == Counter()  # nothing has come
    site.write("day2.jsonl", [("a", 13), ("a", 25)])
    for end in ("drain", "catch_up"):
        with pytest.raises(InputGoesOn, match="injector 'hits': 2 records") as refused:
            site.run(end)
        assert "reopen=['hits']" in refused.value.remedy
    step = site.head.step if site.head is not None else -1
    assert site.run("drain", reopen=["hits"]) == Counter({("a", 20): 1})
    assert site.late() == 1  # of the window that had been produced
    assert site.head is not None and site.head.step > step


def test_watching_a_directory_that_had_ended_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write("day1.jsonl", [("a", 1)])
    site.run("drain")
    watched = hr.sources.Files(site.hits, type=Hit, event_time="at", format="jsonl", watch=True)
    with pytest.raises(InputGoesOn, match="waits for more"):
        site.run("catch_up", source=watched)
    site.write("day2.jsonl", [("a", 12)])
    site.run("catch_up", source=watched, reopen=["hits"])
    assert site.head is not None and site.head.counts["counts"].records == 2
    assert site.head.ended == []


@pytest.mark.parametrize("items", ["a list", "a function"])
def test_an_iterable_that_has_grown_is_refused(tmp_path: Path, items: str) -> None:
    site, hits = Site(tmp_path), [Hit("a", 1)]
    given: Any = hits if items == "a list" else lambda: iter(hits)
    source = hr.sources.Iterable(given, Hit, event_time="at")
    site.run("drain", source=source)
    hits.append(Hit("a", 12))
    with pytest.raises(InputGoesOn, match="1 records"):
        site.run("drain", source=source)
    assert site.run("drain", source=source, reopen="hits") == Counter({("a", 10): 1})


def test_a_producer_that_was_not_done_is_refused(tmp_path: Path) -> None:
    site, inbox = Site(tmp_path), tmp_path / "inbox"
    first = Producer(inbox, "p", type=Hit, event_time="at")
    first.append([Hit("a", 1)])
    first.finish()
    site.run("drain", source=hr.sources.Inbox(inbox, Hit, event_time="at", producers=["p"]))
    second = Producer(inbox, "q", type=Hit, event_time="at")
    second.append([Hit("a", 12)])
    both = hr.sources.Inbox(inbox, Hit, event_time="at", producers=["p", "q"])
    with pytest.raises(InputGoesOn, match="'hits'"):
        site.run("catch_up", source=both)
    second.append([Hit("a", 25)])
    assert site.run("catch_up", source=both, reopen=["hits"]) == Counter({("a", 10): 1})


def test_a_reopening_is_done_once_and_asked_for_as_often_as_one_likes(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write("1.jsonl", [("a", 1)])
    assert site.run("catch_up", reopen=["hits"]) == Counter()  # (it had not ended)
    site.run("drain")
    for number in range(2, 5):
        site.write(f"{number}.jsonl", [("a", 10 * number)])
        assert site.run("drain", reopen=["hits"]) == Counter({("a", 10 * number): 1})
    assert site.late() == 0
    with pytest.raises(PipelineError, match="no injector 'hit'"):
        site.run("drain", reopen=["hit"])


def test_a_refused_start_leaves_the_storage_to_whoever_leads(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write("1.jsonl", [("a", 1)])
    made = site.pipeline([])
    with hr.run(made, storage=site.storage, runner="inline") as job:
        while job.head is None or not job.head.ended:
            job.wait("0.01s")
        site.write("2.jsonl", [("a", 2)])
        with pytest.raises(InputGoesOn):
            site.run("drain", take_over=True)
        assert job.stop("60s")  # it was not fenced


def test_a_change_while_it_runs_is_refused_like_a_start(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write("1.jsonl", [("a", 1)])
    with hr.run(site.pipeline([]), storage=site.storage, runner="inline") as job:
        while job.head is None or not job.head.ended:
            job.wait("0.01s")
        watched = hr.sources.Files(site.hits, type=Hit, event_time="at", format="jsonl", watch=True)
        change = job.change(site.pipeline([], watched))
        with pytest.raises(InputGoesOn, match="waits for more"):
            change.wait("60s")
        assert job.running and job.stop("60s")


def two_inputs(*names: str) -> hr.Pipeline:
    drawn = hr.Pipeline("two")
    streams = [
        drawn.inject(name, hr.sources.Iterable([], Hit, event_time="at"), watermark=hr.ascending())
        for name in names
    ]
    drawn.compute("counts", hr.ops.TumblingCount("10us"), keys=dict.fromkeys(streams, "page"))
    return drawn


def test_a_new_injector_works_where_all_input_had_ended() -> None:
    with drive(two_inputs("one"), clock=0) as driven:
        driven.push_many("one", [Hit("a", 1), Hit("a", 25)])
        driven.end()
        assert driven.drain() == "drained"
        driven.resume(pipeline=two_inputs("one", "other"))
        driven.push_many("other", [Hit("a", 29), Hit("a", 31), Hit("a", 45)])
        driven.run()
        produced = [(out.value.window_start, out.value.count) for out in driven.outputs("counts")]
        assert [count for _, count in produced] == [1, 1, 1]
        assert driven.counts("counts").late == 1  # at 29: that window was produced
        assert driven.watermark_of("counts").input_us == 45


def test_partitions_that_had_ended_go_on_when_their_source_says_so() -> None:
    with drive(two_inputs("one"), clock=0) as driven:
        for partition in ("x", "y"):
            driven.push_many("one", [Hit("a", 1)], partition=partition)
        driven.end("one", partition="x")
        driven.run()
        driven.end()
        assert driven.drain() == "drained"
        driven.go_on()
        with pytest.raises(InputGoesOn):
            driven.resume()
        driven.resume(reopen=["one"])
        driven.push_many("one", [Hit("a", 90)], partition="y")
        driven.run()
        assert driven.watermark_of("counts").input_us == 10  # x holds it again
        driven.push_many("one", [Hit("a", 50)], partition="x")
        driven.run()
        assert driven.watermark_of("counts").input_us == 50


class Totals(hr.Computation):
    total = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.total.value += 1
        ctx.produce("out", self.total.value)


def test_ids_that_were_seen_before_the_end_are_known_after_it() -> None:
    drawn = hr.Pipeline("ids")
    hits = drawn.inject(
        "hits",
        hr.sources.Iterable([], Hit, event_time="at"),
        watermark=hr.ascending(),
        ids=("page", "at"),
        horizon="1ms",
    )
    drawn.compute("totals", Totals(), keys={hits: "page"}, late="process")
    with drive(drawn, clock=0) as driven:
        driven.push_many("hits", [Hit("a", 1), Hit("a", 500)])
        driven.run()
        driven.end()
        driven.drain()
        driven.go_on()
        driven.resume(reopen=["hits"])
        driven.push_many("hits", [Hit("a", 1), Hit("a", 500), Hit("a", 501)])
        driven.run()
        assert [out.value for out in driven.outputs("totals", everything=True)] == [1, 2, 3]
        assert driven.counts("hits.ids").duplicates == 2
