"""A try is adopted only if each (layer, worker) maps to exactly one attempt over all reports."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.adoption import Adopted, Conflict, adopt
from headrace.eventtime.watermark import Frontiers, PartitionSeen
from headrace.keyspace.planner import contiguous
from headrace.protocol.plan import Failure, InjectorPlan, NodeReport, StepPlan, TaskReport
from headrace.runfiles.format import FileRef

PLAN = StepPlan(
    step=5,
    epoch=2,
    attempt=0,
    clock_us=0,
    seed=0,
    layout=contiguous(4, 2).to_wire(),
    store="memory:x",
    injectors={"in": InjectorPlan(before=Frontiers(), final=False)},
    watermarks={},
    chains={},
    exchange="shuffle",
    cached_bytes=1,
)
LAYERS = 2


def good() -> list[TaskReport]:
    """Two readers, and two layers of two workers: attempt names are their numbers."""
    reports = [
        TaskReport(0, w, f"r{w}", seen={"in": {"": PartitionSeen(20 + w)}}, read_rows={"in": 5})
        for w in (0, 1)
    ]
    for layer in (1, 2):
        before = [(0, 0, "r0"), (0, 1, "r1")] if layer == 1 else [(1, 0, "l10"), (1, 1, "l11")]
        for worker in (0, 1):
            name = f"l{layer}{worker}"
            run = FileRef(f"runs/{name}", 9, "0" * 16, 5, layer, worker, ["n"], "x")
            nodes = {
                "n": NodeReport(
                    records=3,
                    input_watermark=7 + worker,
                    output_watermark=6,
                    next_wall_timer=100 - worker,
                    state_digest=2**63,
                )
            }
            reports.append(TaskReport(layer, worker, name, consumed=before, run=run, nodes=nodes))
    return reports


def test_reports_that_agree_add_up() -> None:
    found = adopt(PLAN, LAYERS, good())
    assert isinstance(found, Adopted)
    assert found.seen == {"in": {"": PartitionSeen(21)}}
    assert found.read_rows == {"in": 10}
    assert found.watermarks == {"n": (7, 6)}
    assert found.next_wall_timer == 99
    assert found.counts["n"].records == 12
    assert found.state_digests == {"n": 0}, "digests are sums modulo 2^64"
    assert sorted(run.name for run in found.runs) == [
        "runs/l10",
        "runs/l11",
        "runs/l20",
        "runs/l21",
    ]


@given(st.permutations(range(6)), st.lists(st.integers(0, 5), max_size=4))
def test_order_and_repetition_of_reports_do_not_matter(order: list[int], again: list[int]) -> None:
    reports = good()
    shuffled = [reports[i] for i in order] + [reports[i] for i in again]
    assert adopt(PLAN, LAYERS, shuffled) == adopt(PLAN, LAYERS, reports)


@given(st.integers(0, 5))
def test_a_missing_report_is_a_conflict(at: int) -> None:
    reports = good()
    del reports[at]
    assert isinstance(adopt(PLAN, LAYERS, reports), Conflict)


@given(st.integers(0, 5))
def test_two_attempts_of_one_task_are_a_conflict(at: int) -> None:
    reports = good()
    stray = good()[at]
    stray.task_attempt = "stray"
    assert isinstance(adopt(PLAN, LAYERS, [*reports, stray]), Conflict)


@given(st.integers(2, 5), st.integers(0, 1))
def test_a_consumer_of_another_attempt_is_a_conflict(at: int, which: int) -> None:
    reports = good()
    layer, worker, _ = reports[at].consumed[which]
    reports[at].consumed[which] = (layer, worker, "another")
    assert isinstance(adopt(PLAN, LAYERS, reports), Conflict)


def test_a_failure_in_an_agreed_try_is_the_answer() -> None:
    reports = good()
    reports[3].failure = Failure("UserCodeError", "thirteen")
    assert adopt(PLAN, LAYERS, reports) == Failure("UserCodeError", "thirteen")
