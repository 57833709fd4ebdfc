"""`headrace load` says which worker, which computation and which key has the work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

import headrace as hr
from headrace.cli import main
from headrace.ledger.measurements import newest_measurements
from headrace.observe.metrics import exposition
from headrace.observe.observer import PipelineObserver
from headrace.observe.watching import StorageWatcher
from headrace.storage import LocalStore
from headrace.testing import Harness, drive
from tests.machine.driven.test_policies import Hours

SECRET = "ann's own page"
PAGES = [SECRET] * 6 + ["b", "b", "c", "d"]


class Hit(msgspec.Struct):
    page: str
    at: int


class Count(hr.Computation):
    """Counts, which takes a millisecond for each record."""

    deterministic = True
    total = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def __init__(self, hours: Hours) -> None:
        self._hours = hours

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self._hours.passes(0.001)
        self.total.value += 1
        ctx.produce("out", self.total.value)


@pytest.fixture(name="storage")
def _storage(tmp_path: Path) -> Iterator[Path]:
    hours = Hours()
    pipeline = hr.Pipeline("loaded")
    hits = pipeline.inject("hits", hr.sources.Iterable([], Hit, event_time="at"))
    pipeline.compute("count", Count(hours), keys={hits: "page"})
    with drive(pipeline, workers=2, bins=16, storage=tmp_path, timer=hours) as harness:
        for at in range(30):
            step(harness, at)
        yield tmp_path


def step(harness: Harness, at: int) -> None:
    harness.push_many("hits", [Hit(page, at) for page in PAGES])
    harness.step()
    harness.clock("+1s")


def load(storage: Path, *more: str, **how: Any) -> Result:
    found = CliRunner().invoke(main, ["load", "--storage", str(storage), *more], **how)
    assert found.exit_code == 0, found.output
    return found


def test_the_hottest_key_is_named_with_its_share_and_where_it_lives(storage: Path) -> None:
    facts = msgspec.json.decode(load(storage, "--output", "json").stdout)
    hottest, *others = facts["hot_keys"]
    assert (hottest["computation"], hottest["key"]) == ("count", [SECRET])
    assert hottest["share"] == 0.6
    assert hottest["at_least"] < 0.6 < hottest["at_most"]
    shares = {of["key"][0]: of["share"] for of in others}
    assert shares == {page: n / 10 for page, n in Counter(PAGES).items() if page != SECRET}
    stored = CliRunner().invoke(
        main, ["state", "get", "count", SECRET, "--storage", str(storage), "--output", "json"]
    )
    assert stored.exit_code == 0, "the key is as the command for state takes it"


def test_the_work_of_a_computation_is_that_of_its_records_on_each_worker(storage: Path) -> None:
    facts = msgspec.json.decode(load(storage, "--output", "json").stdout)
    (of,) = facts["work"].values()
    assert of["all_ms"] == pytest.approx(10)
    assert sum(of["by_worker_ms"]) == pytest.approx(10)
    assert of["skew"] == pytest.approx(max(of["by_worker_ms"]) / 5)
    on_hot = of["by_worker_ms"][facts["hot_keys"][0]["worker"]]
    assert on_hot >= 6


def test_people_read_the_same(storage: Path) -> None:
    text = load(storage).stdout
    assert SECRET in text and "60.0%" in text
    assert "busiest/mean" in text
    assert "memory" in text and "MiB" in text


def test_the_memory_of_workers_is_that_of_this_process(storage: Path) -> None:
    facts = msgspec.json.decode(load(storage, "--output", "json").stdout)
    sizes = {of["memory_bytes"] for of in facts["workers"]}
    assert all(20 << 20 < size < 16 << 30 for size in sizes)


@pytest.mark.parametrize("more", [["--hide-values"], []])
def test_keys_are_hidden_on_request(
    storage: Path, more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HIDE_VALUES", "" if more else "1")
    for output in ("text", "json"):
        found = load(storage, *more, "--output", output).stdout
        assert SECRET not in found
        assert "60.0%" in found or '"share":0.6' in found


def test_no_key_is_a_label_of_a_metric_or_in_what_a_server_of_metrics_shows(storage: Path) -> None:
    reading = StorageWatcher(1, LocalStore(storage), str(storage)).reading()
    text = exposition([reading])[0].decode()
    assert 'headrace_hot_key_ratio{computation="count",pipeline="loaded"} 0.6' in text
    assert SECRET not in text
    assert SECRET not in msgspec.json.encode(reading).decode()


def test_what_was_published_by_an_older_version_is_shown_without_what_it_lacks(
    storage: Path,
) -> None:
    store = LocalStore(storage)
    published = newest_measurements(store)
    assert published is not None
    old = msgspec.to_builtins(published)
    for field in ("computations_us", "hot_keys", "memory_bytes", "pids"):
        old.pop(field)
    older = msgspec.convert(old, type(published))
    assert (older.hot_keys, older.memory_bytes) == ([], [])
    observer = PipelineObserver(store)
    picture = observer.look(0)
    assert picture is not None and picture.load is not None and observer.seen is not None


def test_nothing_is_made_up_before_anything_is_measured(tmp_path: Path) -> None:
    pipeline = hr.Pipeline("new")
    hits = pipeline.inject("hits", hr.sources.Iterable([], Hit, event_time="at"))
    pipeline.compute("count", Count(Hours()), keys={hits: "page"})
    with drive(pipeline, storage=tmp_path) as harness:
        harness.step()
        facts = msgspec.json.decode(load(tmp_path, "--output", "json").stdout)
        assert (facts["step"], facts["work"], facts["hot_keys"]) == (None, {}, [])
        assert "nothing was measured yet" in load(tmp_path).stdout
