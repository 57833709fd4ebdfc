"""The rules of an injector's watermark: how it is seeded, and which partitions it waits for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from headrace.errors import PipelineError
from headrace.eventtime.durations import DurationLike
from headrace.eventtime.watermark import BoundedDelay, Rules, Strategy
from headrace.pipeline.arguments import positive
from headrace.pipeline.nodes import Injector, Node
from headrace.pipeline.source import Source


def rules_of(
    name: str,
    source: Source,
    *,
    watermark: Strategy | None,
    expect: Sequence[str],
    idle_after: DurationLike | None,
    skew_limit: DurationLike | None,
    percentile: float | None,
) -> Rules:
    """Return an injector's rules. The arguments are those of :meth:`Pipeline.inject`.

    Raises:
        PipelineError: for a rule that no source, or not this one, can keep.
    """
    if percentile is not None and not (isinstance(percentile, int | float) and 0 < percentile < 1):
        raise PipelineError(
            f"injector {name!r}: percentile {percentile!r} is not a share of the records",
            remedy="give a number between 0 and 1, such as 0.99",
        )
    if watermark is not None and not _is_strategy(watermark):
        raise PipelineError(
            f"injector {name!r}: {watermark!r} is not a way to seed a watermark",
            remedy='use hr.bounded_delay("10s"), hr.ascending(), hr.exact() or hr.by_function(f)',
        )
    if isinstance(expect, str) or not all(isinstance(part, str) for part in expect):
        raise PipelineError(
            f"injector {name!r}: expect={expect!r} names no partitions",
            remedy='give a tuple of names, such as expect=("eu",)',
        )
    rules = Rules(
        strategy=BoundedDelay(0) if watermark is None else watermark,
        expect=tuple(expect),
        idle_after_us=positive(idle_after, "idle_after", name),
        skew_us=positive(skew_limit, "skew_limit", name),
        percentile=percentile,
        partitioned=source.partitioned,
    )
    _check_known(name, source, rules)
    return rules


def _check_known(name: str, source: Source, rules: Rules) -> None:
    """Refuse rules that need something which the source does not know.

    Raises:
        PipelineError: if the watermark would never move, or records would be held back without end.
    """
    place, kind = f"injector {name!r}", type(source).__name__
    if rules.strategy.measures == "promise" and not source.promises:
        raise PipelineError(
            f"{kind} does not know up to where it is complete, so its watermark cannot be exact()",
            place=place,
            remedy='use hr.bounded_delay("10s") or hr.ascending(); sources.Inbox makes promises, and so '
            "can a source of your own (promises = True, Part.promise_us)",
        )
    if rules.expect and not source.partitioned:
        raise PipelineError(
            f"{kind} does not say whose its records are, so expect={rules.expect!r} would hold the "
            "watermark without end",
            place=place,
            remedy="give the source partition= if it has that option, or leave expect= out; a source of "
            "your own says partitioned = True and names them (Split.partition)",
        )
    if rules.skew_us is not None and source.partitioned and not source.holds_back:
        raise PipelineError(
            f"{kind} cannot hold back one of its partitions, so it cannot keep a skew_limit",
            place=place,
            remedy="leave skew_limit= out; or give each partition an injector of its own, without "
            "partition=; or use a source that can: sources.Inbox, or one of your own (holds_back = True)",
        )


def assumptions(injectors: Collection[Injector], nodes: Collection[Node]) -> str:
    """Return a line about what a pipeline assumes because it says nothing about watermarks.

    Empty if it assumes nothing, or if no computation depends on it.
    """
    unset = [injector.name for injector in injectors if injector.assumes_order]
    own = [node for injector in injectors for node in injector.own]
    if not unset or all(node in own for node in nodes):
        return ""
    names = ", ".join(map(repr, unset))
    return (
        f"no watermark= for {names}: records are expected in order of event time, and any that come "
        'later than that are late. If they come out of order, give watermark=hr.bounded_delay("10s"); '
        "if they do not, hr.ascending() says so"
    )


def _is_strategy(watermark: Any) -> bool:
    """Return whether an object is a watermark strategy. A class of strategies is not."""
    return not isinstance(watermark, type) and all(
        hasattr(watermark, name) for name in ("of", "measures")
    )
