"""The metrics are those of the picture, by the names and rules of Prometheus."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

import headrace as hr
from headrace.driver.driver import Driver
from headrace.ledger.records import Counts
from headrace.observe.metric_definitions import BUILD_INFO, METRICS, STORAGE_METRICS, Definition
from headrace.observe.metrics import exposition
from headrace.observe.picture import Picture, picture_of
from headrace.observe.step_durations import BOUNDS, StepDurations
from headrace.observe.watching import Reading
from headrace.protocol.step_summary import StepSummary
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore, Store
from tests.faults.simulation.run import World
from tests.support.changing import Count, begin, flat, items
from tests.support.checkpointed import driven
from tests.support.faults import FaultStore, SimulatedCrash
from tests.support.pictures import NOW_US, pictures_of
from tests.support.pipelines import Collected
from tests.support.watched_storage import StoppedClock, WatchedStore, watched

DEFINED: list[Definition] = [BUILD_INFO, *STORAGE_METRICS, *METRICS]
RECORDS = 90
Series = tuple[str, frozenset[tuple[str, str]]]


def read(picture: Picture) -> Reading:
    return Reading(picture.pipeline, "x", "read", picture, NOW_US / 1e6, 0.0, None)


def series_of(*readings: Reading) -> dict[Series, float]:
    """Return all series as a scraper reads them."""
    text = exposition(readings)[0].decode()
    found = [
        ((sample.name, frozenset(sample.labels.items())), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert len(found) == len(dict(found)), "no series comes twice"
    return dict(found)


def value(series: dict[Series, float], name: str, **labels: str) -> float:
    return series[name, frozenset(labels.items())]


class Doubled(Count):
    """Counts twice what it does, in a counter of its own."""

    seen = hr.Counter()

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.seen.add(2)
        super().process_record(ctx, record)


def run(store: Store, collected: Collected, seen: list[Picture]) -> None:
    """Run until the input has ended; keep a picture of each step."""
    driver = Driver(
        begin(items(RECORDS), collected, count=Doubled()),
        store,
        InlineRunner(),
        workers=2,
        bins=8,
        drain=True,
        settings=hr.Settings(
            limit=hr.Limit(5, 1 << 30), base_every=2, slices=4, retain_steps=1, poll_us=0
        ),
    )
    driver.listeners.append(
        lambda s: seen.append(picture_of("changing", s.head, [], [], None, NOW_US))
    )
    try:
        driver.run()
    finally:
        driver.close()


def test_counters_equal_a_recount_of_the_outputs_wherever_a_driver_is_killed() -> None:
    counter = FaultStore(MemoryStore())
    run(counter, Collected(), [])
    kills = 0
    for at in range(1, counter.operations + 1):
        store, collected, seen = MemoryStore(), Collected(), list[Picture]()
        try:
            run(FaultStore(store, at, ["crash after", "crash before"][at % 2]), collected, seen)
        except SimulatedCrash:
            kills += 1
        run(store, collected, seen)
        rows = flat(collected, "count")
        *_, (_, last) = pictures_of(store)
        series = series_of(read(last))
        of = {"pipeline": "changing", "computation": "count"}
        assert value(series, "headrace_produced_records_total", **of) == len(rows) == RECORDS
        assert value(series, "headrace_records_total", **of) == RECORDS
        assert value(series, "headrace_counter_total", counter="seen", **of) == 2 * RECORDS
        assert value(series, "headrace_steps_total", pipeline="changing") == last.steps_done
        for earlier, later in zip(seen, seen[1:], strict=False):
            assert earlier.computations["count"].counts.records <= (
                later.computations["count"].counts.records
            ), "no counter goes back"
    assert kills >= 100


def test_counters_do_not_depend_on_when_one_looks() -> None:
    seen: list[Picture] = []
    run(MemoryStore(), Collected(), seen)
    counted = [
        value(
            series_of(read(picture)),
            "headrace_records_total",
            pipeline="changing",
            computation="count",
        )
        for picture in seen
    ]
    steps = RECORDS // 5
    assert counted[:steps] == [5 * step for step in range(1, steps + 1)]


@pytest.mark.parametrize("seed", [3, 5])
def test_whatever_a_simulation_leaves_has_metrics(seed: int) -> None:
    world = World(seed)
    assert world.run().problem == ""
    states = Counter[str]()
    for _, picture in pictures_of(world.disk.store):
        series = series_of(read(picture))
        now = [
            dict(labels)["state"]
            for (name, labels), number in series.items()
            if name == "headrace_migration_state" and number == 1
        ]
        assert len(now) == 1
        states.update(now)
        assert (now == ["none"]) == (picture.migration is None)
    assert states["moving"]


def test_series_are_the_numbers_of_the_picture() -> None:
    t = driven(store := MemoryStore())
    *_, (_, picture) = pictures_of(store)
    t.close()
    series = series_of(read(picture))
    assert value(series, "headrace_step", pipeline="everything") == picture.step
    assert value(series, "headrace_workers", pipeline="everything") == 3
    for worker, of in enumerate(picture.workers):
        labels = {"pipeline": "everything", "worker": str(worker)}
        assert value(series, "headrace_state_bytes", **labels) == of.state_bytes
        assert value(series, "headrace_worker_bins", **labels) == of.bins
    for name, computation in picture.computations.items():
        labels = {"pipeline": "everything", "computation": name}
        assert value(series, "headrace_watermark_lag_seconds", **labels) == computation.lag_s
        side = {**labels, "side": "output"}
        shown = value(series, "headrace_watermark_timestamp_seconds", **side)
        assert shown == computation.output.seconds
    assert picture.recent is not None
    for phase in picture.recent.phases:
        labels = {"pipeline": "everything", "phase": phase.name}
        assert value(series, "headrace_recent_phase_seconds", **labels) == phase.ms / 1e3
    assert value(series, "headrace_storage_reachable", pipeline="everything") == 1


def test_a_storage_that_cannot_be_read_has_no_series_but_that() -> None:
    store, clock = WatchedStore(), StoppedClock()
    t = driven(store, steps=1)
    watcher = watched(store, clock)
    assert len(series_of(watcher.reading())) > 50
    store.fails, clock.now_s = "no route to host", 10.0
    series = series_of(watcher.reading())
    assert {name for name, _ in series} == {
        "headrace_build_info",
        "headrace_storage_reachable",
        "headrace_storage_read_timestamp_seconds",
    }
    assert value(series, "headrace_storage_reachable", pipeline="everything") == 0
    t.close()


def test_two_pipelines_of_one_name_have_series_of_their_own() -> None:
    t = driven(store := MemoryStore(), steps=1)
    *_, (_, picture) = pictures_of(store)
    t.close()
    series = series_of(read(picture), read(picture))
    assert value(series, "headrace_step", pipeline="everything") == picture.step
    assert value(series, "headrace_step", pipeline="everything#2") == picture.step


def test_names_of_any_kind_stay_labels() -> None:
    t = driven(store := MemoryStore(), steps=1)
    *_, (head, _) = pictures_of(store)
    t.close()
    name = 'a"b\\c\n<img onerror=x> é'
    hostile = msgspec.structs.replace(head, counts={name: Counts(records=7)})
    series = series_of(read(picture_of(name, hostile, [], [], None, NOW_US)))
    assert value(series, "headrace_records_total", pipeline=name, computation=name) == 7


def test_a_terminal_obeys_no_name() -> None:
    t = driven(store := MemoryStore(), steps=1)
    *_, (head, _) = pictures_of(store)
    t.close()
    hostile = msgspec.structs.replace(
        head, counts={"a\x1b[31m\u202e": Counts(), "x" * 10**6: Counts()}
    )
    data, _ = exposition([read(picture_of("p", hostile, [], [], None, NOW_US))])
    assert "\x1b" not in data.decode()
    assert "\u202e" not in data.decode()
    assert max(map(len, data.splitlines())) < 2_000
    of = {"pipeline": "p", "computation": "a\\x1b[31m\\u202e"}
    series = series_of(read(picture_of("p", hostile, [], [], None, NOW_US)))
    assert value(series, "headrace_records_total", **of) == 0


def test_a_scraper_gets_the_format_that_it_asks_for() -> None:
    plain, kind = exposition([])
    assert kind.startswith("text/plain")
    data, kind = exposition([], "application/openmetrics-text;version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert data.endswith(b"# EOF\n")
    assert not plain.endswith(b"# EOF\n")


def labels_in_use() -> Iterator[str]:
    for definition in DEFINED:
        yield from definition.labels


def test_definitions_follow_the_rules() -> None:
    names = [definition.name for definition in DEFINED]
    assert len(names) == len(set(names))
    for definition in DEFINED:
        assert re.fullmatch(r"headrace_[a-z_]+[a-z]", definition.name)
        assert definition.name.endswith("_total") == (definition.kind == "counter")
        assert definition.help.endswith(".")
    names_in_pipelines = {"computation", "counter", "injector", "sink", "worker"}
    fixed = {"state", "side", "share", "phase", "how", "version", "layer"}
    assert set(labels_in_use()) == names_in_pipelines | fixed, "no label grows without bound"


def test_the_histogram_counts_each_step_in_its_bucket() -> None:
    rng = random.Random(3)
    took = [
        rng.choice([0.0, 0.005, 0.0051, 1.0, 299.9, 300.0, 301.0, rng.uniform(0, 2)])
        for _ in range(500)
    ]
    durations = StepDurations("visits")
    for seconds in took:
        durations(StepSummary(1, 0, seconds, {}, "driver", {}, None))  # type: ignore[arg-type]
    text = exposition([], durations=durations)[0].decode()
    found = re.findall(
        r'headrace_step_duration_seconds_bucket\{le="([^"]+)",pipeline="visits"\} (\S+)', text
    )
    assert len(found) == len(BOUNDS) + 1
    for bound, count in found:
        assert float(count) == sum(seconds <= float(bound) for seconds in took)
    assert f'headrace_step_duration_seconds_count{{pipeline="visits"}} {float(len(took))}' in text
    (total,) = re.findall(r"headrace_step_duration_seconds_sum\{[^}]*\} (\S+)", text)
    assert float(total) == pytest.approx(sum(took))
