"""The outbox: what sinks have received, when it is full, and what the coordinator then does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.machine import Coordinator
from headrace.coordinator.messages import (
    AttemptEnded,
    AwaitSinks,
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
    Woken,
    WriteOutputs,
)
from headrace.coordinator.outbox import SinkOutbox
from headrace.coordinator.pipeline_facts import PipelineFacts
from headrace.coordinator.settings import Settings
from headrace.errors import PipelineError
from headrace.eventtime.watermark import Rules, bounded_delay
from headrace.keyspace.planner import contiguous
from headrace.ledger.folding import fold
from headrace.ledger.head import Head
from headrace.ledger.intent import Intent
from headrace.pipeline.source import Offer
from headrace.protocol.plan import NodeReport, StreamReport, TaskReport
from headrace.runfiles.format import FileRef
from tests.support.durations import us
from tests.support.schemas import declares

SINKS = ["fast", "slow"]


def file(step: int, length: int = 10) -> FileRef:
    return FileRef(f"outputs/{step}", length, "", step, 1, 0, ["n.out"], "")


# -- the outbox alone -------------------------------------------------------------------------

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(1, 50)),
        st.tuples(st.just("deliver"), st.sampled_from(SINKS)),
    ),
    max_size=60,
)


@given(ACTIONS, st.integers(1, 5), st.integers(1, 120))
def test_it_is_full_as_a_list_for_each_sink_says(
    actions: list[tuple[str, Any]], most: int, size: int
) -> None:
    outbox = SinkOutbox(SINKS, steps=most, size=size)
    queues: dict[str, list[int]] = {sink: [] for sink in SINKS}
    lengths: dict[int, int] = {}
    unreleased: dict[int, list[FileRef]] = {}
    for what, of in actions:
        if what == "commit":
            step = len(lengths) + 1
            lengths[step] = of
            unreleased[step] = [file(step, of)]
            assert outbox.give_all(unreleased) == [(step, SINKS)]
            for queue in queues.values():
                queue.append(step)
        elif queues[of]:
            outbox.note(of, queues[of].pop(0))
        waiting = {step for queue in queues.values() for step in queue}
        full = len(waiting) >= most or (
            len(waiting) > 1 and sum(lengths[step] for step in waiting) >= size
        )
        behind = [sink for sink in SINKS if queues[sink] and queues[sink][0] == min(waiting)]
        assert outbox.undelivered(unreleased) == sorted(waiting)
        assert outbox.waits_for(unreleased) == (behind if full else [])
        assert outbox.lagging(SINKS) == [sink for sink in SINKS if queues[sink]]


def test_an_outbox_that_could_take_no_step_is_refused() -> None:
    with pytest.raises(PipelineError, match="outbox_steps"):
        SinkOutbox(SINKS, steps=0, size=1)


# -- the coordinator --------------------------------------------------------------------------


class Shell:
    """Plays the driver's shell for a pipeline of one computation, by hand."""

    def __init__(self, head: Head | None = None, *, weak: tuple[str, ...] = (), **settings: int):
        shape = PipelineFacts(
            name="p",
            layers=1,
            injectors={"in": 0},
            nodes=["n"],
            declared_schema=declares("n"),
            layout=contiguous(1, 1).to_wire(),
            store="memory:x",
            rules={"in": Rules(bounded_delay(us(0)))},
            readers={"in": ["n"]},
            sinks=dict.fromkeys(SINKS, "n.out"),
            weak=list(weak),
        )
        names = iter(f"nonce{n}" for n in range(1_000))
        self.coordinator = Coordinator(shape, Settings(**settings), lambda: next(names), drain=True)
        (claim,) = self.coordinator.handle(LedgerOpened(head, 0))
        self.told: list[Any] = self.commit(claim)

    def commit(self, instruction: Commit) -> list[Any]:
        self.manifest = instruction.manifest
        head = fold(instruction.head, instruction.manifest, f"digest{instruction.manifest.step}")
        return self.coordinator.handle(ManifestCommitted(head, instruction.manifest))

    @property
    def head(self) -> Head:
        assert self.coordinator.head is not None
        return self.coordinator.head

    def begin(self) -> Run:
        """Offer a record; return the step's try."""
        end = self.head.positions.get("in", 0) + 1
        (run,) = self.coordinator.handle(Offered({"in": Offer(end, 1, 8)}, 100 + end))
        return run

    def end(self, *, unstaged: bool = False, superseded: bool = False) -> list[Any]:
        """Let the try end, with a staged output of 10 bytes, or one that is not staged."""
        step = self.head.step + 1
        apply = TaskReport(
            1,
            0,
            "a",
            consumed=[(0, 0, "r")],
            nodes={"n": NodeReport(records=1)},
            streams={"n.out": StreamReport(1, 5)},
            outputs=None if unstaged else file(step),
            unstaged={"n.out": b"rows"} if unstaged else {},
        )
        reports = [TaskReport(0, 0, "r", read_rows={"in": 1}), apply]
        return self.coordinator.handle(AttemptEnded(reports, 5, superseded))

    def step(self) -> list[Any]:
        """Run a whole step; return what is asked for after its commit."""
        self.begin()
        (commit,) = self.end()
        return self.commit(commit)


def released(told: list[Any]) -> list[tuple[int, list[str]]]:
    """Return which steps are given to which sinks."""
    return [(item.delivery.step, item.sinks) for item in told if isinstance(item, Release)]


def kinds(instructions: list[Any]) -> list[type]:
    return [type(item) for item in instructions]


def started(**more: Any) -> Shell:
    shell = Shell(**more)
    assert kinds(shell.told)[-1] is LoadIntent
    assert kinds(shell.coordinator.handle(IntentLoaded(None))) == [Poll]
    return shell


def test_the_input_goes_on_until_the_outbox_is_full_and_then_waits_for_the_sink() -> None:
    shell = started(outbox_steps=3)
    for number in (1, 2):
        assert kinds(shell.step()) == [Release, Poll]
        shell.coordinator.handle(Released("fast", number))
    release, wait = shell.step()
    assert kinds([release, wait]) == [Release, AwaitSinks], "no injector is polled"
    assert shell.head.waits_for == ["slow"]
    assert wait.until == {"slow": 1}, "one step less makes room"
    shell.coordinator.handle(Released("fast", 3))
    shell.coordinator.handle(Released("slow", 1))
    assert kinds(shell.coordinator.handle(Woken())) == [Poll]


def test_bytes_fill_it_too_but_one_step_alone_never_does() -> None:
    shell = started(outbox_bytes=1)
    assert kinds(shell.step()) == [Release, Poll]
    assert kinds(shell.step()) == [Release, AwaitSinks]


def test_a_restart_with_a_full_outbox_delivers_first() -> None:
    before = started(outbox_steps=2)
    before.step()
    before.coordinator.handle(Released("fast", 1))
    before.step()
    shell = Shell(before.head, outbox_steps=2)
    releases = released(shell.told)
    assert releases == [(1, ["slow"]), (2, SINKS)], "fast is not given step 1 again"
    assert kinds(shell.told)[-1] is AwaitSinks
    assert shell.head.waits_for == ["slow"]
    shell.coordinator.handle(Released("slow", 1))
    assert kinds(shell.coordinator.handle(Woken())) == [LoadIntent]


def test_a_stop_delivers_what_was_committed_and_notes_it() -> None:
    shell = started()
    shell.step()
    shell.coordinator.handle(StopRequested(drain=False))
    assert shell.coordinator.handle(Offered({"in": None}, 200)) == [
        AwaitSinks(dict.fromkeys(SINKS, 1))
    ]
    for sink in SINKS:
        shell.coordinator.handle(Released(sink, 1))
    (note,) = shell.coordinator.handle(Woken())
    assert isinstance(note, Commit) and note.manifest.released == 1
    assert shell.commit(note) == [Stop("stopped")]
    assert shell.head.unreleased == {}


def test_a_stop_in_front_of_a_full_outbox_is_heard() -> None:
    shell = started(outbox_steps=1)
    assert kinds(shell.step())[-1] is AwaitSinks
    shell.coordinator.handle(StopRequested(drain=False))
    assert kinds(shell.coordinator.handle(Woken())) == [AwaitSinks], "now for all of it"
    for sink in SINKS:
        shell.coordinator.handle(Released(sink, 1))
    assert kinds(shell.coordinator.handle(Woken())) == [Commit]


# -- weak sinks -------------------------------------------------------------------------------


def test_weak_sinks_get_a_step_before_its_commit_and_strong_ones_after() -> None:
    shell = started(weak=("fast",))
    run = shell.begin()
    assert run.intent is not None and run.intent.step == run.plan.step == 1
    (hand_out,) = shell.end()
    assert isinstance(hand_out, DeliverBeforeCommit)
    assert (hand_out.sinks, hand_out.await_) == (["fast"], []), "it is staged, so nobody waits"
    delivery = hand_out.delivery
    assert delivery.origin.id == 1 and delivery.origin.positions == {"in": (0, 1)}
    assert not delivery.committed
    shell.coordinator.handle(Released("fast", 1))
    (commit,) = shell.coordinator.handle(DeliveredBeforeCommit([]))
    assert commit.manifest.delivered == {"fast": 1, "slow": -1}
    assert (1, ["slow"]) in released(shell.commit(commit))


def test_without_weak_sinks_nothing_is_intended() -> None:
    shell = started()
    assert shell.begin().intent is None
    assert kinds(shell.end()) == [Commit]


def test_what_is_staged_nowhere_and_not_acknowledged_is_checkpointed() -> None:
    shell = started(weak=tuple(SINKS), straggler_us=900)
    shell.begin()
    (hand_out,) = shell.end(unstaged=True)
    assert (hand_out.await_, hand_out.patience_us) == (SINKS, 900)
    shell.coordinator.handle(Released("fast", 1))
    (checkpoint,) = shell.coordinator.handle(DeliveredBeforeCommit(["slow"]))
    assert isinstance(checkpoint, WriteOutputs) and checkpoint.output.streams == ["n.out"]
    (commit,) = shell.coordinator.handle(OutputsWritten(file(1)))
    assert kinds(shell.commit(commit)) == [Poll], "both were given it already"
    assert shell.head.unreleased == {1: [file(1)]}
    shell.begin()
    (hand_out,) = shell.end(unstaged=True)
    assert hand_out.patience_us == 0, "one that is behind is not waited for again"


def test_what_was_acknowledged_in_time_is_staged_nowhere() -> None:
    shell = started(weak=tuple(SINKS))
    shell.begin()
    shell.end(unstaged=True)
    (commit,) = shell.coordinator.handle(DeliveredBeforeCommit([]))
    assert kinds(shell.commit(commit)) == [Poll]
    assert shell.head.unreleased == {}


def test_what_an_earlier_driver_has_begun_is_run_first_and_keeps_its_id() -> None:
    first = started(weak=("fast",))
    intent = first.begin().intent
    shell = Shell(first.head, weak=("fast",))
    assert LoadIntent(1, {"in": 0}) in shell.told
    wait = shell.coordinator.handle(IntentLoaded(intent, ready=False, now_us=500))
    assert kinds(wait)[-1] is LoadIntent, "its sources are not ready"
    (run,) = shell.coordinator.handle(IntentLoaded(intent, ready=True))
    assert (run.plan.step, run.plan.clock_us) == (2, intent.clock_us), "the claim took step 1"
    assert run.divisions == {"in": (0, 1)}
    (hand_out,) = shell.end()
    assert (hand_out.delivery.step, hand_out.delivery.origin.id) == (2, 1)


def test_the_intent_of_a_rival_that_was_first_is_run_instead() -> None:
    shell = started(weak=("fast",))
    shell.begin()
    rival = Intent(1, 1, "other", 77, {"in": Offer(5, 5, 40)}, {})
    assert shell.end(superseded=True) == [LoadIntent(1, {"in": 0})]
    (run,) = shell.coordinator.handle(IntentLoaded(rival))
    assert (run.divisions, run.plan.clock_us, run.plan.attempt) == ({"in": (0, 5)}, 77, 1)
    assert run.intent == rival
