"""Per-worker state in a step.

If a process has another version of it, it is read from the ledger. If a step changes it, it is
reported whole.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.computation.per_worker import NOTHING
from headrace.ledger.head import Head
from headrace.protocol.plan import StepPlan, TaskReport
from headrace.state.per_worker import PerWorkerState
from headrace.tasks.user_code import raise_in_handler


def begin_per_worker(
    state: PerWorkerState,
    name: str,
    plan: StepPlan,
    worker: int,
    head: Callable[[], Head],
    report: TaskReport,
) -> None:
    """Bring a computation's per-worker state to the step before.

    State of workers that no longer exist is merged into it.

    Args:
        state: the state in this process.
        name: the computation.
        plan: the plan of the step.
        worker: the worker that the state belongs to.
        head: reads the ledger as of the step before.
        report: notes whose state was merged.

    Raises:
        UserCodeError: the user's merge raises.
    """
    expected = plan.per_worker.get(f"{name}/{worker}", NOTHING.digest)
    gone = [other for other in plan.orphans.get(name, []) if other % plan.layout.workers == worker]
    if state.digest == expected and not gone:
        return
    held = head().per_worker.get(name, {})
    state.set_key(held.get(worker, NOTHING))
    if not gone:
        return
    try:
        state.take_in(held[other] for other in gone)
    except BaseException as error:
        raise_in_handler(error, f"computation {name!r}, merge of per-worker state")
    report.taken_in[name] = gone


def end_per_worker(state: PerWorkerState, name: str, report: TaskReport) -> None:
    """Report a computation's per-worker state after a step, if it has changed.

    Raises:
        UserCodeError: a value cannot be stored.
    """
    try:
        held = state.take_changes()
    except (TypeError, ValueError) as error:
        raise_in_handler(error, f"computation {name!r}, per-worker state")
    if held is not None:
        report.per_worker[name] = held
