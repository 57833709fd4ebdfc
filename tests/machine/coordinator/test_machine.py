"""The machine driven by hand: what each event leads to, and which events cannot come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.coordinator.machine import Coordinator
from headrace.coordinator.messages import (
    AttemptEnded,
    AttemptFailed,
    AwaitClaim,
    Awaited,
    AwaitSinks,
    Commanded,
    Commit,
    DeliverBeforeCommit,
    DeliveredBeforeCommit,
    IntentLoaded,
    LedgerOpened,
    LoadIntent,
    ManifestCommitted,
    Offered,
    OutputsWritten,
    Poll,
    Release,
    Released,
    Run,
    Stop,
    StopRequested,
    Wait,
    Woken,
    WriteOutputs,
)
from headrace.coordinator.phases import Phase
from headrace.coordinator.pipeline_facts import PipelineFacts
from headrace.coordinator.settings import Settings
from headrace.driver.driver import Driver
from headrace.errors import InvariantBroken, StepAbandoned
from headrace.eventtime.timestamps import MAX_TIME
from headrace.eventtime.watermark import Rules, bounded_delay
from headrace.keyspace.planner import contiguous
from headrace.ledger.commands import Answer
from headrace.ledger.folding import fold
from headrace.pipeline.source import Offer
from headrace.protocol.plan import NodeReport, StreamReport, TaskReport
from headrace.runfiles.format import FileRef
from headrace.runners.inline import InlineRunner
from headrace.storage import MemoryStore
from tests.support.schemas import declares

SINK = "sink"


def facts(*, weak: bool = False) -> PipelineFacts:
    """Return the facts of a pipeline with one injector, one computation and one sink."""
    return PipelineFacts(
        name="p",
        layers=1,
        injectors={"in": 0},
        nodes=["n"],
        declared_schema=declares("n"),
        layout=contiguous(1, 1).to_wire(),
        store="memory:x",
        rules={"in": Rules(bounded_delay("0s"))},
        readers={"in": ["n"]},
        sinks={SINK: "n.out"},
        weak=[SINK] if weak else [],
    )


class Machine:
    """A coordinator, and the answers of a driver that does all it is asked for.

    Attributes:
        todo: what the coordinator asks for now.
    """

    def __init__(self, *, weak: bool = False, drain: bool = False, **settings: int) -> None:
        names = iter(f"nonce{n}" for n in range(10_000))
        self.coordinator = Coordinator(
            facts(weak=weak), Settings(**settings), lambda: next(names), drain=drain
        )
        self.now_us = 0
        self.records = 0  # how many records the source has given
        self.todo = self.coordinator.handle(LedgerOpened(None, self.now_us))

    @property
    def phase(self) -> Phase:
        return self.coordinator.phase

    def tell(self, event: Any) -> list[Any]:
        self.todo = self.coordinator.handle(event)
        return self.todo

    def last(self, kind: type[Any]) -> Any:
        """Return the newest instruction, which is of this kind."""
        assert type(self.todo[-1]) is kind, self.todo
        return self.todo[-1]

    def commit(self) -> list[Any]:
        commit = self.last(Commit)
        head = fold(commit.head, commit.manifest, f"digest{commit.manifest.step}")
        return self.tell(ManifestCommitted(head, commit.manifest))

    def offer(self, records: int, *, final: bool = False) -> list[Any]:
        self.last(Poll)
        self.now_us += 1_000
        offer = Offer(self.records + records, records, 8 * records, final=final)
        self.records += records
        return self.tell(Offered({"in": offer}, self.now_us))

    def finish_attempt(self, *, unstaged: bool = False) -> list[Any]:
        step = self.last(Run).plan.step
        output = FileRef(f"outputs/{step}", 10, "", step, 1, 0, ["n.out"], "")
        applied = TaskReport(
            1,
            0,
            "a",
            consumed=[(0, 0, "r")],
            nodes={"n": NodeReport(records=1, next_wall_timer=MAX_TIME)},
            streams={"n.out": StreamReport(1, 5)},
            outputs=None if unstaged else output,
            unstaged={"n.out": b"rows"} if unstaged else {},
        )
        reports = [TaskReport(0, 0, "r", read_rows={"in": 1}), applied]
        return self.tell(AttemptEnded(reports, 5))

    def to_polling(self) -> Machine:
        self.commit()
        if self.phase is Phase.LOADING_INTENT:
            self.tell(IntentLoaded(None))
        assert self.phase is Phase.POLLING
        return self


def kinds(instructions: list[Any]) -> list[type]:
    return [type(instruction) for instruction in instructions]


# -- the ordinary course ----------------------------------------------------------------------


def test_a_run_claims_loads_an_intent_polls_runs_and_commits() -> None:
    machine = Machine()
    assert machine.phase is Phase.COMMITTING and machine.last(Commit).manifest.claim
    machine.commit()
    assert machine.last(LoadIntent).order == 1
    assert kinds(machine.tell(IntentLoaded(None))) == [Poll]
    assert kinds(machine.offer(1)) == [Run]
    assert kinds(machine.finish_attempt()) == [Commit]
    assert kinds(machine.commit()) == [Release, Poll]


def test_without_input_the_machine_waits_and_polls_again() -> None:
    machine = Machine(poll_us=7_000).to_polling()
    assert machine.tell(Offered({"in": None}, 1_000)) == [Wait(8_000), machine.todo[-1]]
    assert machine.phase is Phase.POLLING


def test_a_run_that_drains_stops_when_the_input_has_ended_and_everything_is_delivered() -> None:
    machine = Machine(drain=True).to_polling()
    machine.offer(1, final=True)
    machine.finish_attempt()
    machine.commit()
    machine.tell(Offered({}, 9_000))
    assert machine.last(AwaitSinks).until == {SINK: 1}
    machine.coordinator.handle(Released(SINK, 1))
    machine.tell(Woken())
    machine.tell(Offered({}, 9_000))
    assert machine.last(Commit).manifest.released == 1
    assert machine.commit() == [Stop("drained")]
    assert machine.phase is Phase.ENDED


# -- attempts ---------------------------------------------------------------------------------


def test_an_attempt_that_failed_is_run_again_with_the_same_division() -> None:
    machine = Machine().to_polling()
    machine.offer(3)
    first = machine.last(Run)
    machine.tell(AttemptFailed("an executor is gone"))
    again = machine.last(Run)
    assert again.divisions == first.divisions
    assert again.plan.step == first.plan.step and again.plan.attempt == first.plan.attempt + 1


def test_a_step_is_given_up_after_as_many_attempts_as_the_settings_say() -> None:
    machine = Machine(max_attempts=3).to_polling()
    machine.offer(1)
    for _ in range(2):
        machine.tell(AttemptFailed("an executor is gone"))
        assert machine.phase is Phase.RUNNING
    machine.tell(AttemptFailed("an executor is gone"))
    assert isinstance(machine.last(Stop).error, StepAbandoned)


def test_an_attempt_that_was_superseded_makes_way_for_the_intent_that_was_first() -> None:
    machine = Machine(weak=True).to_polling()
    machine.offer(1)
    assert kinds(machine.tell(AttemptEnded([], superseded=True))) == [LoadIntent]


# -- sinks ------------------------------------------------------------------------------------


def test_output_that_a_late_weak_sink_lacks_is_in_the_manifest_and_in_memory_no_more() -> None:
    machine = Machine(weak=True).to_polling()
    machine.offer(1)
    machine.finish_attempt(unstaged=True)
    given = machine.last(DeliverBeforeCommit)
    assert given.await_ == [SINK] and not given.delivery.committed
    machine.tell(DeliveredBeforeCommit([SINK]))
    assert machine.last(WriteOutputs).output == given.delivery.output
    file = FileRef("outputs/late", 4, "", 1, 0, 0, ["n.out"], "")
    machine.tell(OutputsWritten(file))
    commit = machine.last(Commit)
    assert commit.manifest.outputs == [file]
    assert commit.adopted.output.files == [file] and not commit.adopted.output.unstaged


def test_a_full_outbox_is_waited_for_and_names_the_step_that_makes_room() -> None:
    machine = Machine(outbox_steps=2).to_polling()
    machine.offer(1)
    machine.finish_attempt()
    machine.commit()
    machine.offer(1)
    machine.finish_attempt()
    machine.commit()
    assert machine.last(AwaitSinks).until == {SINK: 1}
    machine.coordinator.handle(Released(SINK, 1))
    assert kinds(machine.tell(Woken())) == [Poll]


# -- commands ---------------------------------------------------------------------------------


def test_a_stop_that_comes_while_an_attempt_runs_takes_effect_after_the_step() -> None:
    machine = Machine().to_polling()
    machine.offer(1)
    assert machine.coordinator.handle(StopRequested()) == []
    assert machine.phase is Phase.RUNNING
    machine.finish_attempt()
    machine.commit()
    assert kinds(machine.todo) == [Release, AwaitSinks]


def test_a_handover_answers_and_waits_for_the_claim_and_goes_on_if_none_comes() -> None:
    machine = Machine().to_polling()
    machine.tell(Commanded(Answer(0, "hand over", True, 1, ""), "hand_over", to="b"))
    assert machine.last(Commit).hands_over
    assert kinds(machine.commit()) == [AwaitClaim]
    machine.tell(Awaited(False))
    assert machine.phase is Phase.POLLING


def test_a_pause_is_committed_and_no_source_is_asked_until_the_pipeline_goes_on() -> None:
    machine = Machine().to_polling()
    machine.tell(Commanded(Answer(0, "pause", True, 1, ""), "pause"))
    machine.commit()
    assert machine.last(Poll).positions == {}
    machine.tell(Offered({}, 5_000))
    assert machine.last(Poll).positions == {}
    machine.tell(Commanded(Answer(1, "resume", True, 2, ""), "resume"))
    machine.commit()
    assert machine.last(Poll).positions == {"in": 0}


# -- what cannot come -------------------------------------------------------------------------

EVENTS: dict[Phase, Any] = {
    Phase.OPENING: LedgerOpened(None, 0),
    Phase.LOADING_INTENT: IntentLoaded(None),
    Phase.POLLING: Offered({}, 1),
    Phase.RUNNING: AttemptFailed("gone"),
    Phase.DELIVERING: DeliveredBeforeCommit([]),
    Phase.AWAITING_SINKS: Woken(),
    Phase.AWAITING_CLAIM: Awaited(True),
}


def at_claim() -> Machine:
    return Machine()


def at_poll() -> Machine:
    return Machine().to_polling()


def at_run() -> Machine:
    machine = Machine().to_polling()
    machine.offer(1)
    return machine


def at_end() -> Machine:
    machine = Machine().to_polling()
    machine.coordinator.handle(StopRequested())
    machine.tell(Offered({}, 1))
    assert machine.phase is Phase.ENDED
    return machine


@pytest.mark.parametrize("reach", [at_claim, at_poll, at_run, at_end])
def test_an_event_that_cannot_come_is_refused_and_changes_nothing(
    reach: Callable[[], Machine],
) -> None:
    machine = reach()
    phase, head = machine.phase, machine.coordinator.head
    for of, event in EVENTS.items():
        if of is not phase:
            with pytest.raises(InvariantBroken, match=f"is {phase.value} got"):
                machine.coordinator.handle(event)
    assert machine.phase is phase and machine.coordinator.head is head


def test_an_error_that_should_not_be_possible_tells_how_the_run_came_there() -> None:
    pipeline = hr.Pipeline("p")
    source = hr.sources.Iterable([Hit("a", 1), Hit("b", 2)], Hit, event_time="at")
    stream = pipeline.inject("in", source)
    pipeline.compute("n", Counting(), keys={stream: "key"})
    driver = Driver(pipeline, MemoryStore(), InlineRunner(), workers=1, drain=True)
    driver.open()
    driver.turn()
    driver.coordinator.handle(IntentLoaded(None))  # the driver is to be told so only once
    with pytest.raises(InvariantBroken) as failed:
        while driver.turn() is None:
            pass
    (story,) = failed.value.__notes__
    assert "opening: LedgerOpened → Commit" in story
    assert "loading the intent: IntentLoaded → Poll" in story


class Hit(msgspec.Struct):
    key: str
    at: int


class Counting(hr.Computation):
    """Counts the records of each key."""

    number = hr.ValueState(int, default=0)

    def process_record(self, ctx: hr.Context, record: hr.Record[Hit]) -> None:
        self.number.value += 1


# -- any course -------------------------------------------------------------------------------


@given(st.data())
def test_in_any_course_of_events_each_record_is_committed_once_and_in_order(
    data: st.DataObject,
) -> None:
    machine = Machine(outbox_steps=3, max_attempts=100).to_polling()
    committed = 0
    for _ in range(data.draw(st.integers(5, 40))):
        match machine.phase:
            case Phase.POLLING:
                if data.draw(st.booleans()):
                    machine.offer(data.draw(st.integers(1, 5)))
                else:
                    machine.tell(Offered({"in": None}, machine.now_us))
            case Phase.RUNNING:
                if data.draw(st.booleans()):
                    machine.finish_attempt()
                else:
                    machine.tell(AttemptFailed("an executor is gone"))
            case Phase.COMMITTING:
                for start, end in [
                    (part.start, part.end)
                    for part in machine.last(Commit).manifest.divisions.values()
                ]:
                    assert start == committed
                    committed = end
                machine.commit()
            case Phase.AWAITING_SINKS:
                for sink, step in machine.last(AwaitSinks).until.items():
                    machine.coordinator.handle(Released(sink, step))
                machine.tell(Woken())
    assert committed in (
        machine.records,
        getattr(machine.coordinator.head, "positions", {}).get("in", 0),
    )


@given(st.lists(st.integers(0, 4), max_size=30))
def test_the_story_holds_the_newest_events_in_order_and_stays_short(gaps: list[int]) -> None:
    machine = Machine().to_polling()
    for gap in gaps * 20:
        machine.tell(Offered({"in": None}, machine.now_us + gap))
    entries = machine.coordinator.story.entries
    assert len(entries) == min(200, 3 + len(gaps) * 20)
    assert all(a.after is b.before for a, b in zip(entries[:-1], entries[1:], strict=True))
