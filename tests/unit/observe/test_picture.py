"""The picture is what the head, the newest manifests and the measurements say, whatever they are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings

import headrace as hr
from headrace.cli import main
from headrace.cli.status import status_of
from headrace.driver.driver import Driver
from headrace.eventtime.timestamps import (
    FIRST_DATE_US,
    LAST_DATE_US,
    MAX_TIME,
    MIN_TIME,
    show_time,
)
from headrace.keyspace.layout import Layout
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.ledger.measurements import newest_measurements
from headrace.observe.event_times import EventTime
from headrace.observe.observer import PipelineObserver
from headrace.observe.picture import Picture, input_of, picture_of
from headrace.observe.plain import with_null_times
from headrace.observe.top import view_of
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.faults.simulation.run import World
from tests.machine.changes.test_added_from_the_beginning import begin_late
from tests.property.oracle.model import Spec
from tests.support.backfill import run_and_begin_late
from tests.support.changing import Count, add, begin, items
from tests.support.checkpointed import SECOND, driven
from tests.support.pictures import NOW_US, kept_heads, pictures_of
from tests.support.pipelines import Collected, draw, run_inline
from tests.support.specs import WAYS, specs


def status_by_hand(name: str, head: Head) -> dict[str, Any]:
    """Return what a status says without any driver, from the head alone."""
    stop = head.scheduled_stop
    return {
        "pipeline": name,
        "step": head.step,
        "epoch": head.epoch,
        "workers": head.layout.workers,
        "paused": head.paused,
        "scheduled_stop": None if stop is None else {"kind": stop.kind, "step": stop.step},
        "drivers": [],
        "removed": head.stored_schema.get("removed", {}),
        "backfilling": [] if head.backfill is None else head.backfill.names,
        "bins": len(Layout.from_wire(head.layout)),
        "ended": head.ended,
        "input": input_of(head),
        "released": head.released,
        "outbox": {
            "steps": len(head.unreleased),
            "bytes": sum(file.length for files in head.unreleased.values() for file in files),
            "delivered": head.delivered,
            "waits_for": head.waits_for,
        },
        "injectors": {
            injector: {
                "position": position,
                "highest_event_time": show_time(head.highest[injector])
                if injector in head.highest
                else None,
                "read": head.read.get(injector),
                "skipped": head.skipped.get(injector, 0),
                "waiting": head.waiting.get(injector),
            }
            for injector, position in head.positions.items()
        },
        "computations": {
            node: {
                "input_watermark": show_time(head.watermark_of(node)[0]),
                "output_watermark": show_time(head.watermark_of(node)[1]),
                **msgspec.to_builtins(counts),
            }
            for node, counts in sorted(head.counts.items())
        },
    }


def check(head: Head, picture: Picture) -> None:
    """Check a picture against its head, and that it can be sent."""
    without_drivers = {**status_of(picture), "drivers": []}
    assert without_drivers == status_by_hand(picture.pipeline, head)
    assert list(without_drivers) == list(status_by_hand(picture.pipeline, head))
    msgspec.json.encode(picture)
    for sink in picture.sinks.values():
        assert sink.behind_s >= 0
        assert sink.delivered >= picture.outbox.released
        assert sink.behind_steps <= picture.outbox.steps
    assert sum(worker.bins for worker in picture.workers) == picture.bins
    if picture.recent is not None:
        for name, of in picture.recent.computations.items():
            if name in picture.computations:
                assert of.lag_s == picture.computations[name].lag_s
                assert of.watermark == (picture.computations[name].output.text or "-")


@settings(max_examples=15, deadline=None)
@given(specs(), WAYS)
def test_every_step_of_any_pipeline_has_a_picture(spec: Spec, way: dict[str, Any]) -> None:
    store = MemoryStore()
    pictures: list[tuple[Head, Picture | None]] = []
    observer = PipelineObserver(store)
    driver = Driver(
        draw(spec, Collected()),
        store,
        InlineRunner(way["seed"], way["processes"]),
        workers=way["workers"],
        bins=way["bins"],
        drain=True,
        settings=hr.Settings(
            limit=hr.Limit(spec.rows, 1 << 30),
            **{name: way[name] for name in ("exchange", "base_every", "slices", "retain_steps")},
        ),
    )
    driver.listeners.append(lambda s: pictures.append((s.head, observer.look(NOW_US))))
    try:
        driver.run()
    finally:
        driver.close()
    for head, picture in pictures:
        assert picture is not None
        check(head, picture)
    for head, kept in pictures_of(store):
        check(head, kept)


@pytest.mark.parametrize("seed", [2, 3, 5])
def test_what_a_simulation_leaves_has_pictures(seed: int) -> None:
    """Claims, commands, pauses, and migrations that wait, move, and are aborted."""
    world = World(seed)
    assert world.run().problem == ""
    seen = list(pictures_of(world.disk.store))
    assert seen
    for head, picture in seen:
        check(head, picture)


def test_a_backfill_has_pictures() -> None:
    store, collected = MemoryStore(), Collected()
    seen: list[Picture] = []

    def begin_and_look(driver: Driver, into: Collected) -> Any:
        change = begin_late(driver, into)

        def look(_: hr.StepSummary) -> None:
            for head, picture in pictures_of(store):
                check(head, picture)
                seen.append(picture)

        driver.listeners.append(look)
        return change

    run_and_begin_late(
        store,
        store,
        collected,
        lambda into: begin(items(30), into, count=Count()),
        lambda pipeline, into: add(pipeline, "late", Count(), into),
        begin_and_look,
    )
    backfilling = [picture for picture in seen if picture.backfilling]
    assert backfilling
    assert all(of.backfilling == ["late"] for of in backfilling)


def test_a_pipeline_that_has_only_been_claimed_has_a_picture() -> None:
    t = driven(store := MemoryStore(), steps=0)
    ((head, picture),) = pictures_of(store)
    t.close()
    check(head, picture)
    assert (picture.steps_done, picture.injectors, picture.computations) == (0, {}, {})
    assert picture.recent is not None
    assert picture.recent.steps == 0


def test_status_and_top_show_the_picture() -> None:
    storage = "memory:picture"
    store = MemoryStore.named("picture")
    t = driven(store)
    picture = PipelineObserver(store).look(NOW_US)
    assert picture is not None

    def shown(command: str) -> Any:
        found = CliRunner().invoke(main, [command, "--storage", storage, "--output", "json"])
        assert found.exit_code == 0, found.output
        return msgspec.json.decode(found.stdout)

    status = shown("status")
    for of in status["injectors"].values():
        assert of.pop("files_that_must_stay") == []
    assert status == msgspec.json.decode(msgspec.json.encode(with_null_times(status_of(picture))))
    top = shown("top")
    expected = msgspec.json.decode(msgspec.json.encode(with_null_times(picture.recent)))
    assert top.pop("age_s") != expected.pop("age_s")
    assert top == expected
    t.close()


def test_measurements_of_the_present_driver_alone_are_shown() -> None:
    t = driven(store := MemoryStore())
    head, measured = t.current(), newest_measurements(store)
    assert measured is not None
    picture = picture_of("p", head, [], [], measured, measured.now_us + 3 * SECOND)
    assert picture.load is not None
    assert (picture.load.step, picture.load.age_s) == (measured.step, 3.0)
    assert [worker.state_bytes for worker in picture.workers] == measured.state_bytes
    assert all(0 <= (worker.busy or 0) <= 1 for worker in picture.workers)
    earlier = msgspec.structs.replace(measured, epoch=head.epoch - 1)
    assert picture_of("p", head, [], [], earlier, NOW_US).load is None
    for column in ("state_bytes", "records_per_s", "true_rates"):
        fewer = msgspec.structs.replace(measured, **{column: getattr(measured, column)[:-1]})
        shown = picture_of("p", head, [], [], fewer, NOW_US)
        assert [worker.state_bytes for worker in shown.workers] == [None] * 3
    t.close()


def test_a_sink_is_as_far_behind_as_its_oldest_result_is_old() -> None:
    t = driven(store := MemoryStore())
    *_, (head, window) = kept_heads(store)
    sinks = picture_of("p", head, window, [], None, NOW_US).sinks
    assert {sink.behind_steps for sink in sinks.values()} == {1}, "the next step notes its receipt"
    assert {sink.behind_s for sink in sinks.values()} == {0.0}
    slow = next(iter(sinks))
    behind = msgspec.structs.replace(
        head,
        released=head.step - 3,
        delivered={**head.delivered, slow: head.step - 3},
        unreleased={step: [] for step in range(head.step - 2, head.step + 1)},
    )
    sink = picture_of("p", behind, window, [], None, NOW_US).sinks[slow]
    assert (sink.delivered, sink.behind_steps, sink.behind_s) == (head.step - 3, 3, 20.0)
    t.close()


def test_a_sink_that_was_removed_is_not_shown() -> None:
    store = MemoryStore()
    with_two, collected = begin(items(10), Collected(), count=Count()), Collected()
    with_two.sink("other", with_two.streams()["count.out"], collected.sink("other"))
    run_inline(with_two, store=store)
    run_inline(begin(items(10), Collected(), count=Count()), store=store)
    *_, (head, picture) = pictures_of(store)
    assert set(head.delivered) == {"count", "other"}
    assert set(picture.sinks) == {"count"}


def test_the_lag_counts_from_all_injectors_whichever_the_newest_step_has_read() -> None:
    head = Ledger(run_store()).open()
    assert head is not None
    behind = msgspec.structs.replace(
        head, highest={"items": 90 * SECOND}, watermarks={"count": (0, 60 * SECOND)}
    )
    window = Ledger(run_store()).newest(100)
    picture = picture_of("p", behind, window, [], None, NOW_US)
    assert picture.computations["count"].lag_s == 30.0
    assert picture.recent is not None
    assert picture.recent.computations["count"].lag_s == 30.0
    assert view_of(window, NOW_US).computations["count"].lag_s is None, "its input has ended"


def run_store() -> MemoryStore:
    store = MemoryStore()
    run_inline(begin(items(10), Collected(), count=Count()), store=store)
    return store


@pytest.mark.parametrize(
    ("micros", "shown"),
    [
        (MIN_TIME, EventTime(None, None)),
        (FIRST_DATE_US - 1, EventTime(None, None)),
        (FIRST_DATE_US, EventTime("0001-01-01T00:00:00Z", FIRST_DATE_US / 1e6)),
        (LAST_DATE_US + 1, EventTime("end", None)),
        (MAX_TIME, EventTime("end", None)),
        (1_500_000, EventTime("1970-01-01T00:00:01.500000Z", 1.5)),
    ],
)
def test_an_event_time_is_shown_as_text_and_number(micros: int, shown: EventTime) -> None:
    assert EventTime.of(micros) == shown
