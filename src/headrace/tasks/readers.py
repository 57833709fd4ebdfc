"""Which runs are newer than what a process remembers, according to the plan alone."""

from __future__ import annotations

from headrace.checkpoints.state_files import StateFiles
from headrace.protocol.plan import StepPlan


def newest_runs(plan: StepPlan, layer: int, after: int, since: str) -> StateFiles | None:
    """Return a layer's runs between a step and the plan's step, from the plan alone.

    Args:
        plan: the plan.
        layer: which layer.
        after: the step. Its own changes are left out.
        since: digest that stands for the claim under which that step was made.

    Returns:
        The runs, or None if the plan does not reach back that far.
    """
    relocated = plan.relocated
    if relocated and relocated[0].version > 1 and after + 1 < relocated[0].step:
        return None  # nothing says which worker owned what
    runs = []
    for at, chain in plan.chains.items():
        if at.partition("/")[0] != str(layer):
            continue
        links = chain.recent
        if chain.soft:
            return None  # changes since the last checkpoint are on their worker's host only
        begins = links[0][0] if links else chain.digest
        if begins != since and (not links or links[0][1].step > after):
            return None
        runs += [run for _, run, _ in links if run.step > after]
    runs.sort(key=lambda run: run.step)
    return StateFiles([], runs, {}, plan.lineage, relocated)
