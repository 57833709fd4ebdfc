"""Any process that can write in its storage controls a pipeline: by commands, applied once, answered."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

import headrace as hr
from headrace.cli import main
from headrace.control.control import Control
from headrace.control.process_check import this_process
from headrace.driver import requests
from headrace.driver.driver import Driver
from headrace.errors import AlreadyExists, PipelineError, StorageError
from headrace.errors.user_code import FromOutside
from headrace.keyspace.updates import Update
from headrace.ledger.commands import Command, CommandLog, command_name
from headrace.ledger.heartbeats import HeartbeatRecord, Heartbeats, Role
from headrace.ledger.ledger import Ledger
from headrace.ledger.migrations import Goal
from headrace.migration.loads import Prices
from headrace.runners.inline import InlineRunner
from headrace.storage import LocalStore, MemoryStore, Store
from tests.support.changing import (
    Act,
    Count,
    CountOtherwise,
    Item,
    Remembers,
    begin,
    flat,
    items,
    rows_of,
    run,
)
from tests.support.faults import ACTS, FaultStore
from tests.support.pipelines import Collected, Elsewhere


def asks(store: Store, kind: Any, *names: str, **more: Any) -> Act:
    """Return what asks for something, and lets the driver look at once."""

    def act(driver: Driver) -> None:
        Control(store).ask(kind, list(names), **more)
        driver.requests.look_at_once()

    return act


def answers(store: Store) -> list[tuple[str, bool]]:
    """Return what the storage says became of its commands."""
    return [(answer.text, answer.applied) for answer in Control(store).head().answers]


def test_a_computation_is_removed_by_a_command_and_stays_removed_when_it_is_still_drawn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, collected = MemoryStore(), Collected()
    pipeline = begin(items(30), collected, count=Count(), old=Remembers())
    run(pipeline, store, {15: asks(store, "remove", "old", sinks=["old"])}, upto=25)
    assert len(flat(collected, "old")) == 15
    assert len(flat(collected, "count")) == 25
    assert answers(store) == [("remove old", True)]
    kept = rows_of(store, "old")
    again = Collected()
    run(begin(items(60), again, count=Count(), old=Remembers()), store, slices=8)
    assert "old" not in again.rows(), "nothing of it is run"
    assert len(flat(again, "count")) == 35
    assert "headrace restore old" in caplog.text
    assert rows_of(store, "old") == kept


def test_what_was_removed_is_brought_back_while_the_pipeline_runs() -> None:
    store, collected = MemoryStore(), Collected()
    pipeline = begin(items(60), collected, count=Count(), old=Count())
    removal = asks(store, "remove", "old", sinks=["old"])
    run(pipeline, store, {15: removal, 40: asks(store, "restore", "old")})
    error_text = [int(row[-1].split()[1]) for row in flat(collected, "old")]
    assert len(error_text) == 35
    assert max(error_text) == 7, "it went on counting"
    assert answers(store) == [("remove old", True), ("restore old", True)]


def test_state_can_be_given_up_later_than_the_computation_is_removed() -> None:
    store = MemoryStore()
    pipeline = begin(items(60), Collected(), count=Count(), old=Count())
    run(
        pipeline,
        store,
        {
            15: asks(store, "remove", "old", sinks=["old"]),
            30: asks(store, "remove", "old", forget=True),
        },
        upto=50,
    )
    assert answers(store) == [("remove old", True), ("remove old", True)]
    assert rows_of(store, "old") == {}
    collected = Collected()
    run(
        begin(items(90), collected, count=Count(), old=Count()),
        store,
        {65: asks(store, "restore", "old")},
    )
    assert min(row[-1] for row in flat(collected, "old")) == "v1 1"


def test_code_that_cannot_read_the_state_that_was_kept_does_not_bring_it_back() -> None:
    store, collected = MemoryStore(), Collected()
    pipeline = begin(items(60), collected, count=Count(), old=Count())
    run(pipeline, store, {15: asks(store, "remove", "old", sinks=["old"])}, upto=25)
    other = begin(items(60), collected, count=Count(), old=CountOtherwise())
    run(other, store, {35: asks(store, "restore", "old")}, upto=45)
    refused = Control(store).head().answers[-1]
    assert not refused.applied
    assert "'count' was value" in refused.why
    assert len(flat(collected, "count")) == 45
    run(
        begin(items(60), collected, count=Count(), old=Count()),
        store,
        {50: asks(store, "restore", "old")},
    )
    assert max(int(row[-1].split()[1]) for row in flat(collected, "old")) == 5


def chain(collected: Collected) -> hr.Pipeline:
    pipeline = begin(items(30), collected, first=Count())
    second = pipeline.compute("second", Count(), keys={pipeline.nodes["first"]: "value"})
    pipeline.sink("second", second, collected.sink("second"))
    return pipeline


@pytest.mark.parametrize(
    ("names", "sinks", "why"),
    [
        (["first"], [], "computation 'second', sink 'first' would have no input"),
        (["first", "second"], ["first"], "sink 'second'"),
        (["first"], ["second"], "computation 'second'"),
        (["second"], ["second", "first"], "sink 'first' takes no stream of what is removed"),
        (["second"], ["nobody"], "no sink 'nobody'"),
        (["nobody"], [], "there is no computation 'nobody'"),
        (["first", "second"], ["first", "second"], "no computation would be left"),
        ([], [], "names no computation"),
    ],
)
def test_a_removal_is_refused_with_the_reason_and_the_pipeline_goes_on(
    names: list[str], sinks: list[str], why: str
) -> None:
    store, collected = MemoryStore(), Collected()
    run(chain(collected), store, {15: asks(store, "remove", *names, sinks=sinks)})
    (answer,) = Control(store).head().answers
    assert not answer.applied
    assert why in answer.why
    assert len(flat(collected, "second")) == 30
    assert Control(store).head().epoch == 1


def test_what_was_refused_is_answered_once_and_what_was_asked_after_it_is_heard() -> None:
    store = MemoryStore()
    driver = Driver(begin(items(60), Collected(), count=Count()), store, InlineRunner(), workers=2)
    driver.open()
    while driver.coordinator.head is None:
        assert driver.turn() is None
    Control(store).ask("remove", ["nobody"])
    Control(store).ask("stop", [])
    driver.requests.look_at_once()
    ended = next(filter(None, (driver.turn() for _ in range(100))), None)
    assert ended is not None
    assert ended.why == "stopped"
    assert answers(store) == [("remove nobody", False), ("stop", True)]


def test_readers_and_sinks_may_be_removed_by_the_same_command() -> None:
    store, collected = MemoryStore(), Collected()
    pipeline = chain(collected)
    pipeline.compute("third", Count(), keys={pipeline.streams()["items"]: "page"})
    removal = asks(store, "remove", "first", "second", sinks=["first", "second"])
    driver = run(pipeline, store, {15: removal})
    assert [len(flat(collected, name)) for name in ("first", "second")] == [15, 15]
    assert list(driver.pipeline.nodes) == ["third"]


def with_ids(collected: Collected, *readers: str) -> hr.Pipeline:
    """Draw the items, and hits of which the outside sends each twice, some of them much later."""
    hits = [*items(20), *items(20), *items(50)[20:], *items(50)[20:]]
    pipeline = begin(items(60), collected, count=Count())
    source = hr.sources.Iterable(hits, Item, event_time="at")
    stream = pipeline.inject("hits", source, ids="at", horizon="1d")
    for name in readers:
        pipeline.sink(
            name, pipeline.compute(name, Count(), keys={stream: "page"}), collected.sink(name)
        )
    return pipeline


def test_the_last_reader_of_records_with_ids_is_removed_with_their_check_and_brought_back_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, collected, whole = MemoryStore(), Collected(), Collected()
    run(with_ids(whole, "old"), MemoryStore())
    run(
        with_ids(collected, "old"),
        store,
        {10: asks(store, "remove", "old", sinks=["old"])},
        upto=20,
    )
    head = Control(store).head()
    assert set(head.stored_schema["removed"]) == {"old", "hits.ids"}
    read, some = head.positions["hits"], len(flat(collected, "old"))
    assert 0 < some < 50
    run(with_ids(collected, "old"), store, {30: asks(store, "restore", "hits.ids")}, upto=40)
    assert "headrace restore old" in caplog.text
    assert "headrace restore hits.ids" not in caplog.text
    refused = Control(store).head().answers[-1]
    assert "comes back with the first computation that reads its injector" in refused.why
    assert Control(store).head().positions["hits"] == read
    assert len(flat(collected, "old")) == some
    run(with_ids(collected, "old"), store, {45: asks(store, "restore", "old")})
    assert sorted(flat(collected, "old")) == sorted(flat(whole, "old"))
    assert "removed" not in Control(store).head().stored_schema


def test_ids_are_known_also_to_who_is_the_first_to_read_their_injector_again() -> None:
    store, collected = MemoryStore(), Collected()
    run(
        with_ids(collected, "old"),
        store,
        {10: asks(store, "remove", "old", sinks=["old"])},
        upto=20,
    )
    some = len(flat(collected, "old"))
    run(with_ids(collected, "old", "new"), store)
    assert len(flat(collected, "new")) == 50 - some
    assert len(flat(collected, "old")) == some
    assert Control(store).head().counts["hits.ids"].duplicates == 50


def test_ids_can_be_given_up_by_naming_their_check() -> None:
    store, collected = MemoryStore(), Collected()
    removal = asks(store, "remove", "old", "hits.ids", sinks=["old"], forget=True)
    run(with_ids(collected, "old"), store, {10: removal}, upto=20)
    read = Control(store).head().positions["hits"]
    assert rows_of(store, "hits.ids") == rows_of(store, "old") == {}
    run(with_ids(collected, "old"), store, {30: asks(store, "restore", "old")})
    counts = Control(store).head().counts["hits.ids"]
    assert (counts.records, counts.duplicates) == (50, 50 - read), "those of before are new to it"


def test_a_check_alone_is_not_left_of_a_pipeline() -> None:
    store, pipeline = MemoryStore(), with_ids(Collected(), "old")
    removal = asks(store, "remove", "old", "count", sinks=["old", "count"])
    run(pipeline, store, {10: removal}, upto=20)
    (answer,) = Control(store).head().answers
    assert "no computation would be left" in answer.why


def test_a_stop_ends_the_run_once_and_does_not_end_the_next_one() -> None:
    store, collected = MemoryStore(), Collected()
    for upto in (15, 40):
        acts = {15: asks(store, "stop")} if upto == 15 else {}
        run(begin(items(40), collected, count=Count()), store, acts)
        assert len(flat(collected, "count")) == upto


def test_a_stop_delivers_what_was_committed_so_that_it_does_not_come_again() -> None:
    """The sink takes its first step only when the answer to the command is being committed."""
    store, taken, gate = MemoryStore(), [], threading.Event()

    def take(delivery: hr.sinks.Delivery) -> None:
        assert gate.wait(30)
        taken.append(delivery.rows.num_rows)

    def stop(driver: Driver) -> None:
        asks(store, "stop")(driver)
        commit = driver.ledger.commit

        def commit_and_open(*args: Any) -> Any:
            threading.Timer(0.05, gate.set).start()
            return commit(*args)

        driver.ledger.commit = commit_and_open  # type: ignore[method-assign]

    for acts in ({15: stop}, {}):
        pipeline = begin(items(40), Collected(), count=Count())
        pipeline.sink("slow", pipeline.nodes["count"], hr.sinks.Calls(take))
        driver = run(pipeline, store, acts, runner=Elsewhere())
        assert driver.coordinator.head is not None
        assert not driver.coordinator.head.unreleased
    assert taken == [5] * 8


def test_a_drain_lets_a_pipeline_end_that_would_wait_for_ever() -> None:
    store, collected = MemoryStore(), Collected()
    run(begin(items(40), collected, count=Count()), store, {15: asks(store, "drain")}, drain=False)
    assert len(flat(collected, "count")) == 40


def test_a_paused_pipeline_runs_no_step_until_it_may_go_on_also_after_a_restart() -> None:
    store, collected = MemoryStore(), Collected()

    class Ends(BaseException):
        """The end of a process."""

    looks: list[int] = []

    def wait_until(until_us: int, woken: Any) -> None:
        looks.append(len(flat(collected, "count")))
        if len(looks) == 3:
            raise Ends
        if len(looks) == 6:
            Control(store).ask("resume")

    for _ in range(2):
        pipeline = begin(items(40), collected, count=Count())
        driver = Driver(
            pipeline,
            store,
            InlineRunner(),
            drain=True,
            settings=hr.Settings(limit=hr.Limit(5, 1 << 20)),
        )
        driver.clock.wait_until = wait_until  # type: ignore[method-assign]

        def act(summary: hr.StepSummary, driver: Driver = driver) -> None:
            if summary.head.positions["items"] == 15:
                asks(store, "pause")(driver)

        driver.listeners.append(act)
        try:
            driver.run()
        except Ends:
            continue
        finally:
            driver.close()
    assert set(looks) == {15}
    assert len(looks) >= 6
    assert len(flat(collected, "count")) == 40
    assert answers(store) == [("pause", True), ("resume", True)]


def test_a_paused_pipeline_runs_what_an_earlier_driver_has_begun_only_when_it_may_go_on() -> None:
    store, shown = MemoryStore(), []

    class Ends(FromOutside):
        """The end of a process."""

    def weak(take: Any) -> hr.Pipeline:
        pipeline = begin(items(10), Collected(), count=Count())
        pipeline.sink("weak", pipeline.nodes["count"], hr.sinks.Calls(take), weak=True)
        return pipeline

    def take_and_end(delivery: hr.sinks.Delivery) -> None:
        shown.append((delivery.id, delivery.rows))
        raise Ends

    with pytest.raises(Ends):
        run(weak(take_and_end), store)
    Control(store).ask("pause")

    def wait_until(until_us: int, woken: Any) -> None:
        looks.append(len(shown))
        if len(looks) == 3:
            Control(store).ask("resume")

    looks: list[int] = []
    again = weak(lambda delivery: shown.append((delivery.id, delivery.rows)))
    driver = Driver(
        again, store, InlineRunner(), drain=True, settings=hr.Settings(limit=hr.Limit(5, 1 << 20))
    )
    driver.clock.wait_until = wait_until  # type: ignore[method-assign]
    driver.run()
    driver.close()
    assert looks[:3] == [1, 1, 1], "a step was run though the pipeline was paused"
    assert shown[0] == shown[1], "it is the very step that was begun"
    assert sum(rows.num_rows for _, rows in shown[1:]) == 10


def test_state_that_was_given_up_before_the_start_is_gone_also_if_it_is_brought_back_by_then() -> (
    None
):
    store = MemoryStore()
    run(begin(items(30), Collected(), count=Count(), old=Count()), store, upto=15)
    Control(store).ask("remove", ["old"], sinks=["old"], forget=True)
    Control(store).ask("restore", ["old"])
    collected = Collected()
    run(begin(items(30), collected, count=Count(), old=Count()), store)
    assert answers(store) == [("remove old", True), ("restore old", True)]
    assert {row[-1] for row in flat(collected, "old")} == {"v1 1", "v1 2", "v1 3"}


def test_a_source_that_cannot_be_opened_again_does_not_end_the_pipeline() -> None:
    class Gone(hr.sources.Iterable):
        closed = False

        def open(self, store: Store) -> None:
            if self.closed:
                raise OSError("no route to host")

        def close(self) -> None:
            self.closed = True

    store, collected = MemoryStore(), Collected()
    pipeline = begin(items(30), collected, count=Count())
    stream = pipeline.inject("more", Gone(items(30), Item, event_time="at"))
    node = pipeline.compute("old", Count(), keys={stream: "page"})
    pipeline.sink("old", node, collected.sink("old"))
    removal = asks(store, "remove", "old", sinks=["old"])
    run(pipeline, store, {5: removal, 15: asks(store, "restore", "old")})
    refused = Control(store).head().answers[-1]
    assert not refused.applied
    assert "no route to host" in refused.why
    assert len(flat(collected, "count")) == 30


def test_commands_that_nobody_answered_are_answered_when_the_pipeline_is_started() -> None:
    store = MemoryStore()
    run(begin(items(10), Collected(), count=Count(), old=Count()), store, upto=10)
    control = Control(store)
    for kind, names in (("stop", []), ("remove", ["old"]), ("pause", []), ("resume", [])):
        control.ask(kind, names)  # type: ignore[arg-type]
    collected = Collected()
    run(begin(items(20), collected, count=Count()), store)
    assert len(flat(collected, "count")) == 10
    assert answers(store) == [
        ("stop", False),
        ("remove old", True),
        ("pause", True),
        ("resume", True),
    ]
    assert rows_of(store, "old")["state"], "its state is kept though nothing draws it"


def test_a_drawing_that_reads_what_was_removed_is_refused_with_the_remedy() -> None:
    store, collected = MemoryStore(), Collected()
    pipeline = chain(collected)
    pipeline.compute("third", Count(), keys={pipeline.streams()["items"]: "page"})
    removal = asks(store, "remove", "first", "second", sinks=["first", "second"])
    run(pipeline, store, {15: removal}, upto=25)
    other = begin(items(40), Collected(), first=Count(), third=Count())
    other.compute("fourth", Count(), keys={other.nodes["first"]: "value"})
    with pytest.raises(PipelineError, match="headrace restore first"):
        run(other, store)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"kind": "explode"}',
        b'{"kind": "stop", "format": 2}',
        b'{"kind": "stop", "x": 1}',
    ],
)
def test_what_is_no_command_is_answered_and_executed_by_nobody(content: bytes) -> None:
    store, collected = MemoryStore(), Collected()

    def spoil(driver: Driver) -> None:
        store.create(command_name(0), content)
        asks(store, "stop")(driver)

    run(begin(items(40), collected, count=Count()), store, {15: spoil})
    refused, stopped = Control(store).head().answers
    assert not refused.applied
    assert stopped.applied
    assert len(flat(collected, "count")) == 15


NO_BINS = [(0, 65), (0, -1), (-8, 3), (1 << 64, 3), (1, 3), (0, 300)]


@pytest.mark.parametrize("bin_", NO_BINS)
def test_what_is_no_bin_is_refused_at_once_and_harms_nobody_where_it_is_asked_for_all_the_same(
    bin_: tuple[int, int],
) -> None:
    for kind in ("move", "split", "merge", "rebalance"):
        with pytest.raises(PipelineError, match="is not a bin"):
            Goal(kind, bins=[bin_], to=1)  # type: ignore[arg-type]
    for what in ({"splits": [bin_]}, {"merges": [bin_]}, {"moves": [(*bin_, 1, 1)]}):
        with pytest.raises(PipelineError, match="is not a bin"):
            Update(8, **what)  # type: ignore[arg-type]
    store, collected = MemoryStore(), Collected()
    goal = {"kind": "move", "bins": [bin_], "to": 1}
    command = {"kind": "migrate", "goal": goal, "nonce": "a"}

    def spoil(driver: Driver) -> None:
        store.create(command_name(0), json.dumps(command).encode())
        asks(store, "stop")(driver)

    run(begin(items(40), collected, count=Count()), store, {15: spoil})
    refused, stopped = Control(store).head().answers
    assert not refused.applied and "is not a command" in refused.why
    assert stopped.applied


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf"), 1e308])
def test_what_is_no_price_is_refused_at_once(price: float) -> None:
    for name in ("cpu", "record_us", "byte_us", "idle"):
        with pytest.raises(PipelineError, match="is not a price"):
            Prices(**{name: price})


@pytest.mark.parametrize("act", ["error", "lost reply"])
def test_a_command_is_put_once_whatever_its_storage_replies(act: str) -> None:
    for at in range(1, 6):
        inner = MemoryStore()
        log = CommandLog(FaultStore(inner, at, act))
        for nonce in ("a", "b", "c"):
            try:
                log.put(Command("pause", nonce=nonce), 0)
            except AlreadyExists:
                raise
            except StorageError:
                continue
        found = [item.command.nonce for item in CommandLog(inner).pending(0) if item.command]
        assert len(found) == len(set(found))
        assert set(found) >= {"c"} or at > 5


def test_after_a_look_that_took_long_the_next_one_comes_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a storage that stands still for seconds would leave commands unheard for minutes."""
    now = 1_000.0
    monkeypatch.setattr(
        requests, "time", SimpleNamespace(monotonic=lambda: now, perf_counter=lambda: now)
    )
    looks: list[float] = []

    class Stalls(MemoryStore):
        def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
            nonlocal now
            if name.startswith("commands/"):
                now += 10.0 if not looks else 0.001
                looks.append(now)
            return super().read(name, offset, length)

    def passes(summary: hr.StepSummary) -> None:
        nonlocal now
        now += 0.5

    pipeline = begin(items(60), Collected(), count=Count())
    driver = Driver(
        pipeline,
        Stalls(),
        InlineRunner(),
        workers=1,
        bins=4,
        drain=True,
        settings=hr.Settings(limit=hr.Limit(2, 1 << 20)),
    )
    driver.listeners.append(passes)
    driver.run()
    assert looks[0] == 1_010.0
    assert looks[1] < 1_020.0


def test_a_storage_that_fails_while_a_command_is_looked_for_ends_nothing() -> None:
    class Fails(MemoryStore):
        looks = 0

        def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
            if name.startswith("commands/"):
                self.looks += 1
                if self.looks == 3:
                    raise StorageError("the disk hiccupped")
            return super().read(name, offset, length)

    store, collected = Fails(), Collected()

    def stop(driver: Driver) -> None:
        assert store.looks >= 3, "it was not tried"
        asks(store, "stop")(driver)

    def look(driver: Driver) -> None:
        driver.requests.look_at_once()

    run(begin(items(60), collected, count=Count()), store, {5: look, 10: look, 40: stop})
    assert len(flat(collected, "count")) == 40


REMOVAL = {"base_every": 2, "slices": 4, "retain_steps": 1}


def changing(collected: Collected) -> hr.Pipeline:
    return begin(items(20), collected, count=Count(), old=Remembers())


def change_by_commands(store: Store, inner: Store, collected: Collected) -> None:
    """Run a pipeline that is told to remove, pause, resume and restore; what was asked is not again."""

    def once(kind: str, *names: str, **more: Any) -> Act:
        def do(driver: Driver) -> None:
            asked = [item.command for item in CommandLog(inner).pending(0)]
            if kind not in [command.kind for command in asked if command is not None]:
                asks(store, kind, *names, **more)(driver)
            driver.requests.look_at_once()

        return do

    acts = {
        5: once("remove", "old", sinks=["old"]),
        10: once("pause"),
        11: once("resume"),
        15: once("restore", "old"),
    }
    ready = {at: act for at, act in acts.items() if at != 11}
    driver = Driver(
        changing(collected),
        store,
        InlineRunner(),
        workers=2,
        bins=16,
        drain=True,
        settings=hr.Settings(limit=hr.Limit(5, 1 << 30), **REMOVAL),
    )  # type: ignore[arg-type]

    def note(summary: hr.StepSummary) -> None:
        for at in sorted(ready):
            if summary.head.positions["items"] >= at:
                ready.pop(at)(driver)

    def wait_until(until_us: int, woken: Any) -> None:
        acts[11](driver)

    driver.listeners.append(note)
    driver.clock.wait_until = wait_until  # type: ignore[method-assign]
    try:
        driver.run()
    finally:
        driver.close()


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.drawn(2)
def test_a_fault_at_any_operation_of_a_change_leaves_no_trace(act: str, every: int) -> None:
    """Each command is answered once; what is not changed gives what it would have given."""
    from headrace.errors import HeadraceError
    from tests.support.faults import SimulatedCrash

    whole, counter = Collected(), FaultStore(MemoryStore())
    change_by_commands(counter, counter.inner, whole)
    assert len(answers(counter.inner)) == 4
    struck = 0
    for at in range(1 + ACTS.index(act) % every, counter.operations + 1, every):
        inner, collected = MemoryStore(), Collected()
        try:
            change_by_commands(FaultStore(inner, at, act), inner, collected)
        except SimulatedCrash:
            struck += 1
        except HeadraceError as error:
            assert error.code != "HR999", f"{act} at {at}: {error}"
            struck += 1
        change_by_commands(inner, inner, collected)
        assert collected.rows()["count"] == whole.rows()["count"], f"{act} at {at}"
        found = [text for text, applied in answers(inner) if applied]
        assert found[:1] == ["remove old"], f"{act} at {at}"
        assert sorted(found) == ["pause", "remove old", "restore old", "resume"], f"{act} at {at}"
        head = Ledger(inner).open()
        assert head is not None
        assert "removed" not in head.stored_schema
        assert head.commands == len(inner.list("commands/"))
        # How long it was away depends on where the fault struck; what it had had is there.
        seen = head.counts["old"].records
        error_text = [
            (k, int(v.split()[0])) for k, _, v in flat(collected, "old") if " at " not in v
        ]
        assert 5 <= seen <= 20
        assert len(error_text) == seen, f"{act} at {at}"
        for page in {key for key, _ in error_text}:
            counts = [count for key, count in error_text if key == page]
            assert counts == list(range(1, len(counts) + 1)), "it went on with its state"
    assert struck > counter.operations // (4 * every)


# -- the command line -------------------------------------------------------------------------


def headrace(storage: Path, *arguments: str) -> Result:
    command, *rest = arguments
    return CliRunner().invoke(main, [command, "--storage", str(storage), *rest])


def test_the_command_line_asks_and_tells_the_answer(tmp_path: Path) -> None:
    found: list[Result] = []
    collected = Collected()
    job = hr.run(
        begin(items(100_000), collected, count=Count(), old=Count()),
        storage=tmp_path,
        runner="inline",
        settings=hr.Settings(limit=hr.Limit(5, 1 << 20)),
    )
    with job:
        while job.head is None or not job.head.positions:
            job.wait("0.01s")
        for command in (
            ["remove", "old"],
            ["remove", "old", "--sink", "old", "--dry-run"],
            ["remove", "old", "--sink", "old"],
            ["pause"],
            ["status"],
            ["resume"],
            ["restore", "old", "--output", "json"],
            ["stop"],
        ):
            found.append(headrace(tmp_path, *command))
        assert job.wait("60s"), "it was stopped"
    refused, dry, removed, paused, status, resumed, restored, stopped = found
    assert refused.exit_code == 6
    assert "sink 'old' would have no input" in refused.stdout
    assert dry.exit_code == 0
    assert "its state is kept" in dry.stdout
    for result, word in ((removed, "remove old"), (paused, "pause"), (resumed, "resume")):
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith(f"{word}: applied at step "), result.stdout
    assert "paused" in status.stdout
    assert "computation old: removed at step" in status.stdout
    error_text = msgspec.json.decode(restored.stdout)
    assert error_text["applied"] is True
    assert stopped.exit_code == 0


def test_a_command_to_a_pipeline_that_does_not_run_waits_for_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    run(begin(items(10), Collected(), count=Count(), old=Count()), store)
    asked = headrace(tmp_path, "remove", "old", "--wait", "0")
    assert (asked.exit_code, "not answered yet" in asked.stdout) == (0, True)
    unanswered = headrace(tmp_path, "stop", "--wait", "0.01")
    assert unanswered.exit_code == 7, "it may run, as far as the storage shows"
    run(begin(items(10), Collected(), count=Count()), store)
    assert answers(store) == [("remove old", True), ("stop", False)]


@pytest.mark.parametrize("how", ["ended", "killed"])
@pytest.mark.parametrize(
    "command", ["stop", "drain", "catch-up", "stop --now", "stop --at-step 99"]
)
def test_what_ends_a_run_is_refused_at_once_where_none_is(
    tmp_path: Path, command: str, how: str
) -> None:
    store = LocalStore(tmp_path)
    run(begin(items(10), Collected(), count=Count()), store)
    process = msgspec.structs.replace(this_process(), started="1")  # one that had the id before
    why = "drained" if how == "ended" else ""
    role: Role = "ended" if why else "leads"
    Heartbeats(store).show(
        HeartbeatRecord("a", 1, role, 1, "host:7", 0, 0, 500_000, why, process=process)
    )
    before = store.list("commands/")
    refused = headrace(tmp_path, *command.split(), "--wait", "1000000", "--output", "json")
    assert refused.exit_code == 6
    error_text = msgspec.json.decode(refused.stdout)
    assert error_text["applied"] is False
    ends = "has ended (drained)" if why else "is gone, and has noted no end"
    assert error_text["why"] == f"no process runs the pipeline: host:7 {ends}"
    assert store.list("commands/") == before, "nothing is left to be refused at the next start"


def test_a_command_to_a_pipeline_that_has_ended_waits_in_the_storage_and_nobody_for_its_answer(
    tmp_path: Path,
) -> None:
    store = LocalStore(tmp_path)
    run(begin(items(10), Collected(), count=Count()), store)
    Heartbeats(store).show(HeartbeatRecord("a", 1, "ended", 1, "host:7", 0, 0, 500_000, "stopped"))
    asked = headrace(tmp_path, "pause", "--wait", "1000000")
    assert asked.exit_code == 7
    assert "is applied when the pipeline runs (no process runs the pipeline: host:7" in asked.stdout


def test_where_a_driver_stands_by_an_answer_is_waited_for(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    run(begin(items(10), Collected(), count=Count()), store)
    Heartbeats(store).show(HeartbeatRecord("a", 1, "ended", 1, "host:7", 0, 0, 500_000, "failed"))
    assert "host:7 has ended (failed)" in Control(store).why_nobody_answers()
    Heartbeats(store).show(HeartbeatRecord("b", 1, "waits", 0, "host:8", 0, 0, 500_000))
    assert Control(store).why_nobody_answers() == ""


@pytest.mark.parametrize("command", [["remove", "x"], ["stop"], ["pause"], ["restore", "x"]])
def test_a_command_needs_a_pipeline(tmp_path: Path, command: list[str]) -> None:
    assert headrace(tmp_path / "missing", *command).exit_code == 5
    assert headrace(tmp_path, *command).exit_code == 5
    assert list(tmp_path.iterdir()) == []


def test_a_removal_that_storage_can_tell_is_wrong_is_refused_in_a_dry_run(tmp_path: Path) -> None:
    run(begin(items(10), Collected(), count=Count()), LocalStore(tmp_path))
    found = headrace(tmp_path, "remove", "nobody", "--dry-run")
    assert found.exit_code == 6
    assert "there is no computation 'nobody'; there are: count" in found.stdout
    assert not (tmp_path / "commands").exists()
