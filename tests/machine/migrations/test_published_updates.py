"""Configuration updates that are published: bounded when asked and when read, listed, withdrawn."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.cli import main
from headrace.control.control import Control
from headrace.errors import ChangeRefused, PipelineError
from headrace.keyspace.updates import Update
from headrace.ledger.commands import Command, CommandLog
from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import MANIFESTS, manifest_name
from headrace.ledger.migrations import Goal
from headrace.storage import MemoryStore
from tests.faults.hostile.spoiling import sealed
from tests.machine.steps.test_soft_state import Count, drawn
from tests.support.jobs import ITEMS, waiting_job


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def job(store: MemoryStore) -> Iterator[hr.Job]:
    with waiting_job(store) as job:
        yield job


def later(job: hr.Job, steps: int = 1_000) -> int:
    return job.current().step + steps


def test_an_update_beyond_what_the_pipeline_can_have_is_refused_with_the_reason(
    job: hr.Job,
) -> None:
    with pytest.raises(ChangeRefused, match=r"5,000 workers are more than Settings\.most_workers"):
        job.publish(Update(later(job), workers=5_000))
    with pytest.raises(ChangeRefused, match=r"is more than Settings\.update_within_steps=100,000"):
        job.publish(Update(10**9, workers=3))
    with pytest.raises(ChangeRefused, match=r"are more than Settings\.most_workers"):
        job.rescale(5_000)
    assert job.current().updates == [] and job.current().layout.workers == 2


def test_a_command_with_a_million_workers_is_none(job: hr.Job, store: MemoryStore) -> None:
    head = job.current()
    number = CommandLog(store).put(Command("update", update=Update(head.step + 99)), head.commands)
    store.delete(f"commands/{number:09d}")
    million = {"kind": "update", "update": [head.step + 99, 10**6], "nonce": "n"}
    store.write(f"commands/{number:09d}", sealed(b"headrace-command", msgspec.json.encode(million)))
    answer = Control(store).wait(number, 30)
    assert answer is not None and not answer.applied and "65536" in answer.why


@pytest.mark.parametrize(("workers", "step"), [(5_000, 50), (3, 10**9)])
def test_one_that_is_read_from_a_manifest_is_withdrawn_at_the_start_and_the_pipeline_goes_on(
    store: MemoryStore, workers: int, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    with waiting_job(store) as job:
        at = job.current().step
    head = Ledger(store).open()
    assert head is not None and head.step >= at
    name = manifest_name(head.step)
    newest = msgspec.json.decode(store.read(name).split(b"\n")[1])
    newest["updates"] = [[head.step + step, workers]]
    store.delete(name)
    store.write(name, sealed(b"headrace-manifest", msgspec.json.encode(newest)))
    assert MANIFESTS.decode(store.read(name), name).updates
    with waiting_job(store) as job:
        assert job.current().updates == [] and job.current().layout.workers == 2
        assert job.rescale(3).wait("60s") == "done"
    assert "is withdrawn" in caplog.text


def test_a_layout_with_more_workers_than_the_pipeline_can_have_is_refused(
    store: MemoryStore,
) -> None:
    with waiting_job(store):
        pass
    pipeline, _ = drawn(Count(), ITEMS)
    few = hr.Settings(most_workers=1)
    with pytest.raises(PipelineError, match="the layout in storage has 2 workers"):  # noqa: SIM117
        with hr.run(pipeline, storage=store, runner="inline", settings=few) as job:
            job.wait()
    with pytest.raises(PipelineError, match="not a number of workers"):
        hr.run(pipeline, storage=MemoryStore(), runner="inline", workers=10**6)


def test_published_updates_are_listed_and_withdrawn(job: hr.Job, store: MemoryStore) -> None:
    step = later(job)
    job.publish(Update(step, workers=3))
    job.publish(Update(step + 1, moves=[(0, 4, 1, 2)]))
    assert [update.step for update in job.updates] == [step, step + 1]
    assert Control(store).updates == job.updates
    with pytest.raises(ChangeRefused, match="a later update rests on it"):
        job.withdraw(step)
    with pytest.raises(ChangeRefused, match=f"there are: {step}, {step + 1}"):
        job.withdraw(step + 7)
    assert Control(store).withdraw(step + 1).applied
    assert job.withdraw(step).applied
    assert job.updates == []
    with pytest.raises(ChangeRefused, match="there are: none"):
        job.withdraw(step)


def test_a_move_that_an_update_stands_against_is_aborted_with_the_reason_and_can_be_made_after(
    job: hr.Job,
) -> None:
    step = later(job)
    job.publish(Update(step, splits=[(0, 4)]))
    merging = job.merge("000/3")
    assert merging.wait("60s") == "aborted"
    assert f"updates are published for steps {step}: headrace updates withdraw" in merging.why
    job.withdraw(step)
    assert job.merge("000/3").wait("60s") == "done"


def test_it_is_listed_and_withdrawn_from_the_command_line(job: hr.Job, store: MemoryStore) -> None:
    step = later(job)
    job.publish(Update(step, workers=3, moves=[(0, 4, 2, 2)]))

    def said(*arguments: str) -> str:
        result = CliRunner().invoke(main, ["updates", *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    at = ("--storage", store.location)
    assert said(*at) == f"from step {step:,} on: 2 moves, 3 workers\n"
    assert json.loads(said(*at, "--output", "json"))[0]["step"] == step
    assert "applied" in said("withdraw", str(step), *at)
    assert said(*at) == "no update is published\n"


def test_withdrawals_are_obeyed_where_the_pipeline_does_not_run(store: MemoryStore) -> None:
    with waiting_job(store) as job:
        step = later(job)
        job.publish(Update(step, workers=3))
        commands = job.current().commands
    CommandLog(store).put(Command("withdraw_update", at_step=step, nonce="w"), commands)
    with waiting_job(store) as job:
        assert job.updates == []


def test_a_queued_goal_beyond_the_bounds_of_the_run_that_plans_it_is_refused(
    store: MemoryStore,
) -> None:
    with waiting_job(store) as job:
        commands = job.current().commands
    goal = Goal("rescale", workers=5_000)
    CommandLog(store).put(Command("migrate", goal=goal, nonce="g"), commands)
    with waiting_job(store) as job:
        answer = Control(store).answer(commands)
        assert answer is not None and not answer.applied and "most_workers" in answer.why
        assert job.current().layout.workers == 2
