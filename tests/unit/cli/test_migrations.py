"""State is moved from the command line, while another process (here: thread) runs the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

import headrace as hr
from headrace.cli import REFUSED, UNANSWERED, main
from tests.machine.steps.test_soft_state import Count, Item, drawn
from tests.support.jobs import ITEMS, waiting_job


def cli(storage: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--storage", str(storage)])


def said(storage: Path, *arguments: str, code: int = 0) -> str:
    found = cli(storage, *arguments)
    assert found.exit_code == code, found.output
    return " ".join(found.stdout.split())


def facts(storage: Path, *arguments: str) -> Any:
    found = cli(storage, *arguments, "--output", "json")
    assert found.exit_code == 0, found.output
    return msgspec.json.decode(found.stdout)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[hr.Job]:
    """A pipeline that has worked on all of its input, and waits for more."""
    with waiting_job(tmp_path) as job:
        yield job


def test_a_pipeline_is_rescaled_and_one_can_watch(tmp_path: Path, job: hr.Job) -> None:
    would = said(tmp_path, "rescale", "4", "--dry-run")
    assert int(would.removeprefix("rescale to 4 workers: ").split()[0]) >= 6
    assert facts(tmp_path, "migrations") == []
    text = said(tmp_path, "rescale", "4", "--follow", "--strategy", "batched:3", "--prepare")
    (migration,) = facts(tmp_path, "migrations")
    bins = migration["estimate"]["bins"]
    done = f"migration 1: rescale to 4 workers done, {bins} of {bins} bins asked by "
    assert text.startswith(done)
    layout = facts(tmp_path, "layout")
    assert len(layout["workers"]) == 4 and all(of["bins"] for of in layout["workers"])
    assert sum(of["share"] for of in layout["workers"]) == 1
    assert sum(of["bytes"] for of in layout["workers"]) > 0
    assert sum(run["bins"] for run in layout["runs"]) == 16
    assert (migration["state"], migration["strategy"]) == (
        "done",
        "batched, 3 bins a round, prepared",
    )
    assert migration["progress"]["bins"] == bins
    assert migration["during"]["steps"] >= migration["progress"]["of_rounds"]
    assert said(tmp_path, "migrations").startswith("1 rescale to 4 workers: done")
    before = CliRunner().invoke(
        main, ["migrations", "--storage", str(tmp_path), "--output", "json", "show", "1"]
    )
    assert before.exit_code == 0, before.output
    assert msgspec.json.decode(before.stdout)["state"] == "done"


def test_bins_are_named_by_their_prefix(tmp_path: Path, job: hr.Job) -> None:
    said(tmp_path, "split", "0000/4", "--follow")
    said(tmp_path, "move", "00001/5", "01/2", "--to", "1", "--follow")
    layout = said(tmp_path, "layout")
    assert "17 bins on 2 workers" in layout
    assert "00000/5: worker 0 00001/5: worker 1 0001/4 to 0011/4 (3): worker 0 0100/4 to" in layout
    said(tmp_path, "merge", "0000/4", "--follow")
    said(tmp_path, "drain-workers", "1", "--follow")
    assert "worker 1: 0 bins, 0.0% of the keys" in said(tmp_path, "layout")
    assert "nothing would have to be done" in said(
        tmp_path, "move", "0/1", "--to", "0", "--dry-run"
    )


def test_what_cannot_be_is_refused_with_what_can(tmp_path: Path, job: hr.Job) -> None:
    text = said(tmp_path, "move", "0000/4", "--to", "9", code=REFUSED)
    assert "there is no worker 9; there are 2, from 0 to 1" in text
    text = said(tmp_path, "move", "00000/5", "--to", "1", "--dry-run", code=REFUSED)
    assert "headrace split 0000/4" in text
    assert "there is no migration 7" in said(tmp_path, "migrations", "pause", "7", code=REFUSED)
    for wrong in [
        ("move", "012/3", "--to", "1"),
        ("rescale", "4", "--strategy", "batched:0"),
        ("rescale", "4", "--objective", "soon"),
        ("rescale", "0"),
    ]:
        assert cli(tmp_path, *wrong).exit_code == 2


def test_a_migration_is_paused_and_taken_back(tmp_path: Path, job: hr.Job) -> None:
    before = facts(tmp_path, "layout")["runs"]
    said(tmp_path, "pause")
    said(tmp_path, "rescale", "3", "--strategy", "fluid")
    said(tmp_path, "migrations", "pause", "1")
    said(tmp_path, "resume")
    assert facts(tmp_path, "migrations", "show", "1")["state"] == "paused"
    said(tmp_path, "rescale", "4", "--if-busy", "refuse", code=REFUSED)
    said(tmp_path, "pause")
    said(tmp_path, "migrations", "resume", "1")
    said(tmp_path, "migrations", "hasten", "1")
    said(tmp_path, "resume")
    assert job.migration(1).wait("30s") == "done"
    after = facts(tmp_path, "layout")["runs"]
    said(tmp_path, "pause")
    said(tmp_path, "rescale", "2", "--strategy", "fluid")
    said(tmp_path, "migrations", "abort", "2")
    said(tmp_path, "resume")
    assert job.migration(2).wait("30s") == "aborted"
    assert facts(tmp_path, "layout")["runs"] == after != before


def test_what_is_asked_of_a_pipeline_that_does_not_run_is_done_when_it_does(tmp_path: Path) -> None:
    pipeline, _ = drawn(Count(), ITEMS)
    with hr.run(pipeline, storage=tmp_path, workers=2, bins=16, runner="inline") as job:
        job.drain()
    text = said(tmp_path, "rescale", "5", "--wait", "0.1", code=UNANSWERED)
    assert "it is applied when the pipeline runs" in text
    pipeline, _ = drawn(Count(), ITEMS)
    with hr.run(pipeline, storage=tmp_path, bins=16, runner="inline") as job:
        job.drain()
        assert job.migration(1).state == "done"
    assert len(facts(tmp_path, "layout")["workers"]) == 5


@pytest.fixture
def grouped(tmp_path: Path) -> Iterator[hr.Job]:
    """A pipeline whose computations are of two groups; it has worked on all of its input."""
    pipeline = hr.Pipeline("grouped", groups=["orders", "clicks"])
    items = pipeline.inject("items", hr.sources.Iterable(ITEMS, Item, event_time="at"))
    for name in ("orders", "clicks"):
        pipeline.compute(name, Count(), keys={items: "key"}, group=name)
    with hr.run(pipeline, storage=tmp_path, workers=2, bins=16, runner="inline") as job:
        while job.head is None or job.head.positions.get("items") != len(ITEMS):
            job.pass_time()
        yield job


def test_bins_of_a_group_are_named_with_it(tmp_path: Path, grouped: hr.Job) -> None:
    layout = said(tmp_path, "layout")
    assert "group orders: 16 bins, worker 0 8 (50.0%), worker 1 8 (50.0%)" in layout
    assert "orders:0000/4 to orders:0111/4 (8): worker 0 orders:1000/4 to orders:1111/4" in layout
    assert said(tmp_path, "move", "clicks", "--to", "1", "--dry-run").startswith(
        "move clicks to worker 1: 8 bins"
    )
    said(tmp_path, "split", "clicks:0000/4", "--follow")
    said(tmp_path, "move", "clicks:00000/5", "orders:01/2", "--to", "1", "--follow")
    (clicks,) = (of for of in facts(tmp_path, "layout")["groups"] if of["group"] == "clicks")
    assert [(of["worker"], of["bins"], of["share"]) for of in clicks["workers"]] == [
        (0, 8, 15 / 32),
        (1, 9, 17 / 32),
    ]
    assert "move clicks:00000/5 orders:01/2 to worker 1" in said(tmp_path, "migrations")
    said(tmp_path, "move", "orders", "clicks", "--to", "0", "--follow")
    assert said(tmp_path, "rebalance", "--group", "clicks", "--follow").startswith(
        "migration 4: rebalance clicks done"
    )
    by_group = {of["group"]: len(of["workers"]) for of in facts(tmp_path, "layout")["groups"]}
    assert by_group == {"orders": 1, "clicks": 2}
    for wrong in (("move", "views", "--to", "1"), ("rebalance", "--group", "views")):
        assert cli(tmp_path, *wrong).exit_code == 2
