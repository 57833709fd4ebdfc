"""A dashboard beside a job in Python: as long as the job, and whatever storage it has."""

from __future__ import annotations

import json
import logging
import urllib.error
import urllib.request
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.errors import PipelineError
from headrace.logs import JsonLines
from headrace.storage import LocalStore, MemoryStore


class Hit(msgspec.Struct):
    page: str
    at: int


class Count(hr.Computation):
    total = hr.ValueState(int, default=0)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.total.value += 1


def drawn() -> hr.Pipeline:
    pipeline = hr.Pipeline("beside")
    source = hr.sources.Iterable([Hit("a", 1), Hit("b", 2)], Hit, event_time="at")
    pipeline.compute("count", Count(), keys={pipeline.inject("hits", source): "page"})
    return pipeline


def asked(url: str, path: str) -> Any:
    base, _, token = url.partition("/?token=")
    request = urllib.request.Request(f"{base}{path}")
    request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


STORAGES: dict[str, Callable[[Path], Any]] = {
    "a directory": lambda folder: folder / "s",
    "a name in memory": lambda folder: "memory:beside-test",
    "a store": lambda folder: LocalStore(folder / "s"),
    "a store in memory": lambda folder: MemoryStore(),
}


@pytest.mark.parametrize("kind", STORAGES)
def test_it_shows_the_job_and_ends_with_it(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = STORAGES[kind](tmp_path)
    job = hr.run(drawn(), storage=storage, runner="inline", workers=2, bins=4, dashboard=0)
    assert job.dashboard is None, "it is not served before the job runs"
    with job:
        url = job.dashboard
        assert url is not None
        assert f"the dashboard is open: {url}\n" in capsys.readouterr().err
        job.drain()
        picture = asked(url, "/api/v1/live")["reading"]["picture"]
        assert job.head is not None
        assert picture["step"] == job.head.step
        assert picture["injectors"]["hits"]["read"] == 2
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{url.partition('/?')[0]}/api/v1/live", timeout=20)
    assert job.dashboard is None
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=20)


def test_with_a_log_in_json_its_address_is_a_line_of_it(tmp_path: Path) -> None:
    said = StringIO()
    handler = logging.StreamHandler(said)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("headrace")
    logger.addHandler(handler)
    try:
        with hr.run(drawn(), storage=tmp_path, runner="inline", dashboard=0) as job:
            url = job.dashboard
    finally:
        logger.removeHandler(handler)
    lines = [json.loads(line) for line in said.getvalue().splitlines()]
    assert url in [line.get("dashboard") for line in lines]


def test_two_jobs_have_one_each(tmp_path: Path) -> None:
    with (
        hr.run(drawn(), storage="memory:one", runner="inline", dashboard=True) as one,
        hr.run(drawn(), storage="memory:two", runner="inline", dashboard=True) as two,
    ):
        assert one.dashboard is not None and two.dashboard is not None
        assert one.dashboard.partition("/?")[0] != two.dashboard.partition("/?")[0]


@pytest.mark.parametrize("port", [-1, 70_000])
def test_what_is_no_port_is_refused(tmp_path: Path, port: int) -> None:
    job = hr.run(drawn(), storage=tmp_path, runner="inline", dashboard=port)
    with pytest.raises(PipelineError, match="any that is free"), job:
        pass


def test_without_it_nothing_is_served(tmp_path: Path) -> None:
    with hr.run(drawn(), storage=tmp_path, runner="inline") as job:
        assert job.dashboard is None
