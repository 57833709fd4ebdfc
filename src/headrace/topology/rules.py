"""What is said of an injector's time: how it seeds the watermark, and what that waits for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.errors import PipelineError
from headrace.eventtime.timestamps import DurationLike
from headrace.eventtime.watermark import BoundedDelay, Rules, Strategy
from headrace.topology.arguments import positive


def rules_of(
    name: str, *, watermark: Strategy | None, expect: Sequence[str], idle_after: DurationLike | None,
    skew_limit: DurationLike | None, percentile: float | None,
) -> Rules:  # fmt: skip
    """Return an injector's rules; the arguments are those of :meth:`Pipeline.inject`.

    Raises:
        PipelineError: for a rule that cannot be kept.
    """
    if percentile is not None and not (isinstance(percentile, int | float) and 0 < percentile < 1):
        raise PipelineError(
            f"injector {name!r}: percentile {percentile!r} is no share of the records",
            remedy="give a number between 0 and 1, such as 0.99",
        )
    if watermark is not None and not _is_strategy(watermark):
        raise PipelineError(
            f"injector {name!r}: {watermark!r} is no way to seed a watermark",
            remedy='use hr.bounded_delay("10s"), hr.ascending(), hr.exact() or hr.by_function(f)',
        )
    if isinstance(expect, str) or not all(isinstance(part, str) for part in expect):
        raise PipelineError(
            f"injector {name!r}: expect={expect!r} names no partitions",
            remedy='give a tuple of names, such as expect=("eu",)',
        )
    return Rules(
        strategy=BoundedDelay(0) if watermark is None else watermark,
        expect=tuple(expect),
        idle_after_us=positive(idle_after, "idle_after", name),
        skew_us=positive(skew_limit, "skew_limit", name),
        percentile=percentile,
    )


def _is_strategy(watermark: Any) -> bool:
    """Say whether this tells up to where a partition is complete; a class of such does not."""
    return not isinstance(watermark, type) and all(
        hasattr(watermark, name) for name in ("of", "measures")
    )
