"""Per-worker state in a step: had from the ledger where a process has another, and reported whole."""

from __future__ import annotations

from collections.abc import Callable

from headrace.computation.per_worker import NOTHING
from headrace.ledger.head import Head
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.state.per_worker import PerWorkerState
from headrace.tasks.user_code import raise_in_handler


def begin_per_worker(
    state: PerWorkerState, name: str, plan: StepPlan, worker: int, head: Callable[[], Head],
    report: TaskReport,
) -> None:  # fmt: skip
    """Make a computation's per-worker state that of the step before, and take in that of workers gone.

    Args:
        state: what the process has.
        name: the computation.
        plan: of the step.
        worker: whose state it is.
        head: reads the ledger as of the step before.
        report: is told whose state was taken in.

    Raises:
        UserCodeError: when the user's merge raises.
    """
    expected = plan.per_worker.get(f"{name}/{worker}", NOTHING.digest)
    gone = [other for other in plan.orphans.get(name, []) if other % plan.layout.workers == worker]
    if state.digest == expected and not gone:
        return
    held = head().per_worker.get(name, {})
    state.stand_on(held.get(worker, NOTHING))
    if not gone:
        return
    try:
        state.take_in(held[other] for other in gone)
    except BaseException as error:
        raise_in_handler(error, f"computation {name!r}, merge of per-worker state")
    report.taken_in[name] = gone


def end_per_worker(state: PerWorkerState, name: str, report: TaskReport) -> None:
    """Report what a computation's per-worker state is after a step, if that has changed.

    Raises:
        UserCodeError: for values that cannot be kept.
    """
    try:
        held = state.take_changes()
    except (TypeError, ValueError) as error:
        raise_in_handler(error, f"computation {name!r}, per-worker state")
    if held is not None:
        report.per_worker[name] = held
