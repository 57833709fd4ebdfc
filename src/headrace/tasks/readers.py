"""Which files are newer than what a process remembers, from a plan alone."""

from __future__ import annotations

from headrace.checkpoints.state_files import StateFiles
from headrace.protocol.plan import StepPlan


def newest_runs(plan: StepPlan, layer: int, after: int, since: str) -> StateFiles | None:
    """Return the runs of a layer between a step and a plan's, from the plan alone.

    Args:
        plan: the plan.
        layer: which layer.
        after: the step; its changes are not wanted.
        since: names the claim under which it was made.

    Returns:
        The runs; None when the plan does not reach back so far.
    """
    told = plan.relocated
    if told and told[0].version > 1 and after + 1 < told[0].step:
        return None  # nobody says who owned what
    runs = []
    for at, chain in plan.chains.items():
        if at.partition("/")[0] != str(layer):
            continue
        links = chain.recent
        if chain.soft:
            return None  # what has changed since the last checkpoint is not for others to read
        begins = links[0][0] if links else chain.digest
        if begins != since and (not links or links[0][1].step > after):
            return None
        runs += [run for _, run, _ in links if run.step > after]
    runs.sort(key=lambda run: run.step)
    return StateFiles([], runs, {}, plan.lineage, told)
