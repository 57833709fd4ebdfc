"""A stop, or a pause, after a step that was agreed on: exactly then, whatever crashes before."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.cli import main
from headrace.control.control import Control
from headrace.driver.driver import Clock, Driver
from headrace.errors import ChangeRefused, HeadraceError
from headrace.ledger.commands import Command
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.storage import LocalStore, MemoryStore, Store
from tests.machine.changes.test_commands import asks
from tests.support.changing import Act, Count, begin, flat, items, run
from tests.support.faults import FaultStore, SimulatedCrash
from tests.support.pipelines import Collected

#: Nothing is cleaned away, so that all manifests can be looked at.
KEPT = {"retain_steps": 1_000}


def computed(store: Store) -> list[int]:
    """Return the steps that have computed something."""
    ledger, head = Ledger(store), head_of(store)
    return [step for step in range(head.step + 1) if ledger.read(step)[0].delivery >= 0]


def head_of(store: Store) -> Head:
    return Control(store).head()


def halts(store: Store, kind: Any, step: int) -> Act:
    """Return what asks for a stop or a pause at a step."""

    def act(driver: Driver) -> None:
        Control(store).ask(kind, at_step=step)
        driver.requests.look_at_once()

    return act


class Again(Count):
    """Code whose steps may be computed again."""

    deterministic = True


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([5, 15, 30]), st.integers(2, 12), st.sampled_from([1, 4, 100]))
def test_a_pipeline_stops_exactly_after_the_step_or_says_why_not(
    asked: int, at: int, checkpoint_steps: int
) -> None:
    """However often state goes to storage: the step that was agreed on is a checkpoint."""
    store, collected = MemoryStore(), Collected()
    how = {"checkpoint_steps": checkpoint_steps, **KEPT}
    run(begin(items(50), collected, count=Again()), store, {asked: halts(store, "stop", at)}, **how)
    (answer,) = head_of(store).answers
    newest = asked // 5  # (step 0 is the claim, then each takes five records)
    if at <= newest:
        assert not answer.applied
        assert answer.why == f"step {at} is committed already; the next one is {newest + 1}"
        assert len(flat(collected, "count")) == 50
        return
    assert answer.applied
    note = newest + 1  # nothing is computed by the step that answers; the last one ends the input
    expected = [step for step in range(1, 13) if step != note and step <= at]
    assert computed(store) == expected
    assert len(flat(collected, "count")) == min(50, 5 * len(expected)), "all of it is delivered"
    run(begin(items(50), collected, count=Again()), store, **how)
    assert len(flat(collected, "count")) == 50, "the next run is not stopped"


def test_a_stop_at_a_step_is_kept_by_whoever_runs_the_pipeline_until_then() -> None:
    """Every second operation of the storage is the last of its process, once; the step is the same."""
    reference, counted = MemoryStore(), Collected()
    store = FaultStore(reference)
    run(begin(items(50), counted, count=Count()), store, {5: halts(store, "stop", 9)}, **KEPT)
    assert computed(reference)[-1] == 9
    ended = 0
    for at in range(1, store.operations + 1):
        inner, collected = MemoryStore(), Collected()
        faulty = FaultStore(inner, at, "crash after")
        with contextlib.suppress(SimulatedCrash):
            run(
                begin(items(50), collected, count=Count()),
                faulty,
                {5: halts(inner, "stop", 9)},
                **KEPT,
            )
        head = Ledger(inner).open()
        agreed = head is not None and head.scheduled_stop is not None and head.step < 9
        run(begin(items(50), collected, count=Count()), inner, **KEPT)
        if agreed:
            ended += 1
            assert head_of(inner).step >= 9
            assert max(computed(inner)) <= 9
            run(begin(items(50), collected, count=Count()), inner, **KEPT)
        assert len(flat(collected, "count")) == 50
    assert ended > 10


def test_a_pause_at_a_step_holds_after_a_restart_and_until_it_may_go_on() -> None:
    store, collected = MemoryStore(), Collected()
    waits: list[int] = []

    class Ends(BaseException):
        """The end of a process."""

    def wait_until(until_us: int, woken: Any) -> None:
        waits.append(len(flat(collected, "count")))
        if len(waits) == 2:
            raise Ends
        if len(waits) == 5:
            Control(store).ask("resume")

    clock = Clock()
    clock.wait_until = wait_until  # type: ignore[method-assign]
    with pytest.raises(Ends):
        run(
            begin(items(50), collected, count=Count()),
            store,
            {10: halts(store, "pause", 6)},
            clock=clock,
            **KEPT,
        )
    head = head_of(store)
    assert (head.step, head.paused, computed(store)[-1]) == (6, True, 6)
    run(begin(items(50), collected, count=Count()), store, clock=clock, **KEPT)
    assert set(waits) == {25}, "steps 1, 2, 4, 5, 6 of five records; the third is the answer"
    assert len(flat(collected, "count")) == 50


@pytest.mark.parametrize("other", ["resume", "pause"])
def test_what_is_asked_for_at_once_takes_back_what_was_to_be_later(other: Any) -> None:
    store, collected = MemoryStore(), Collected()

    def act(driver: Driver) -> None:
        halts(store, "stop", 8)(driver)
        asks(store, other)(driver)
        asks(store, "resume")(driver)

    run(begin(items(50), collected, count=Count()), store, {10: act}, **KEPT)
    assert head_of(store).scheduled_stop is None
    assert len(flat(collected, "count")) == 50


def test_a_pause_at_a_step_is_agreed_on_also_while_nobody_runs_the_pipeline() -> None:
    store, collected = MemoryStore(), Collected()
    run(begin(items(50), collected, count=Count()), store, upto=10, **KEPT)
    step = head_of(store).step
    Control(store).ask("pause", at_step=step + 3)
    Control(store).ask("stop", at_step=step + 3)

    class Ends(BaseException):
        """The end of a process."""

    def wait_until(until_us: int, woken: Any) -> None:
        raise Ends

    clock = Clock()
    clock.wait_until = wait_until  # type: ignore[method-assign]
    with pytest.raises(Ends):
        run(begin(items(50), collected, count=Count()), store, clock=clock, **KEPT)
    head = head_of(store)
    assert (head.step, head.paused) == (step + 3, True)
    assert [(one.applied, one.why) for one in head.answers] == [
        (True, ""),
        (False, "the pipeline was not running"),
    ]


def test_a_job_is_stopped_and_paused_at_steps(tmp_path: Path) -> None:
    collected = Collected()
    small = hr.Settings(limit=hr.Limit(5, 1 << 20), retain_steps=1_000)
    pipeline = begin(items(5_000), collected, count=Count())
    with hr.run(pipeline, storage=tmp_path, runner="inline", settings=small) as job:
        job.pause()
        at = job.current().step + 5
        job.pause(at_step=at)
        job.resume()
        job.pause(at_step=job.current().step + 4)
        paused = job.current().step
        with pytest.raises(ChangeRefused, match="committed already"):
            job.stop(at_step=max(1, paused - 1))
        job.resume()
        end = job.current().step + 6
        assert job.stop("60s", at_step=end)
    done = computed(LocalStore(tmp_path))
    assert done[-1] == end
    assert job.ended == "stopped"


def test_who_stops_at_once_takes_back_a_stop_that_was_to_come(tmp_path: Path) -> None:
    collected, store = Collected(), LocalStore(tmp_path)
    small = hr.Settings(limit=hr.Limit(5, 1 << 20), retain_steps=1_000)
    pipeline = begin(items(5_000), collected, count=Count())
    with hr.run(pipeline, storage=tmp_path, runner="inline", settings=small) as job:
        job.pause()
        assert not job.stop("0.0s", at_step=job.current().step + 500)
        assert job.stop("60s")
    assert head_of(store).scheduled_stop is None
    assert job.ended == "stopped"


def test_the_command_line_stops_at_a_step_and_tells_when_it_is_too_late(tmp_path: Path) -> None:
    store, collected = LocalStore(tmp_path), Collected()

    def invoke(*arguments: str) -> Any:
        return CliRunner().invoke(main, [*arguments, "--storage", str(tmp_path), "--wait", "0"])

    def act(driver: Driver) -> None:
        assert invoke("stop", "--at-step", "2").exit_code == 0
        assert invoke("stop", "--at-step", "9").exit_code == 0
        driver.requests.look_at_once()

    run(begin(items(50), collected, count=Count()), store, {10: act}, **KEPT)
    assert computed(store)[-1] == 9
    answers = [(one.text, one.applied) for one in head_of(store).answers]
    assert answers == [("stop at step 2", False), ("stop at step 9", True)]
    late = invoke("pause", "--at-step", "0")
    assert late.exit_code == 2, "there is no such step"


def test_going_on_at_a_step_makes_no_sense() -> None:
    store, collected = MemoryStore(), Collected()

    def act(driver: Driver) -> None:
        Control(store).put(Command("resume", at_step=9))
        driver.requests.look_at_once()

    run(begin(items(20), collected, count=Count()), store, {5: act})
    (answer,) = head_of(store).answers
    assert not answer.applied


def test_errors_of_a_storage_that_fails_are_typed_while_a_stop_is_agreed_on() -> None:
    for at in range(30, 60):
        inner, collected = MemoryStore(), Collected()
        store = FaultStore(inner, at, "lost reply")
        try:
            run(
                begin(items(50), collected, count=Count()),
                store,
                {5: halts(inner, "stop", 7)},
                **KEPT,
            )
        except HeadraceError as error:
            assert error.code != "HR999"
        assert max(computed(inner)) <= 7
