"""Whether the steps of a pipeline can be computed again, so that some need no checkpoint."""

from __future__ import annotations

from headrace.computation.record_ids import RecordIds
from headrace.coordinator.settings import Settings
from headrace.errors import PipelineError
from headrace.pipeline import Pipeline


def check_replayable(pipeline: Pipeline, settings: Settings) -> None:
    """Check that uncheckpointed steps can be computed again, if the settings allow such steps.

    Raises:
        PipelineError: naming what prevents it.
    """
    if not settings.has_uncheckpointed_steps:
        return
    problems = [
        f"injector {name!r}: {type(injector.source).__name__} cannot give again what it gave"
        for name, injector in pipeline.injectors.items()
        if not injector.source.replays
    ]
    problems += [
        f"sink {name!r}: it is weak, and is shown results before they are recorded"
        for name, sink in pipeline.sinks.items()
        if sink.weak
    ]
    for name, node in pipeline.nodes.items():
        own = node.computation
        if not (own.deterministic or isinstance(own, RecordIds)):
            problems.append(f"computation {name!r}: it is not declared deterministic")
        if node.declarations.per_worker:
            problems.append(f"computation {name!r}: what it holds per worker depends on the layout")
    if problems:
        raise PipelineError(
            "not all steps of this pipeline could be computed again:\n    "
            + "\n    ".join(problems),
            remedy="say `deterministic = True` in computations whose results follow from records, state "
            "and context alone, whatever the order of sets; or let each step be a checkpoint "
            "(checkpoint_every=1)",
        )
