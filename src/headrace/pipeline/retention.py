"""How long retained productions are kept."""

from __future__ import annotations

import msgspec

from headrace.errors import PipelineError
from headrace.eventtime.durations import DurationLike, duration_micros


class Keep(msgspec.Struct, frozen=True):
    """How much of a retained stream is kept, at least; see :func:`keep`.

    Attributes:
        age_us: keep what is younger, by the steps' clock readings. 0 for no bound.
        steps: keep this number of newest steps. 0 for no bound.

    >>> keep(steps=100)
    Keep(age_us=0, steps=100)
    """

    age_us: int = 0
    steps: int = 0


def keep(age: DurationLike | None = None, *, steps: int | None = None) -> Keep:
    """Return for how long to keep the productions of a retained output.

    Use it in ``compute``: ``retain={"out": hr.keep("7d")}``. A step's productions stay while either
    bound includes them, or while a backfill still has to read them. They are removed some steps
    later, when a base manifest is written, and their files with the next clean-up.

    Args:
        age: how long, by the steps' clock readings, such as ``"7d"``.
        steps: how many of the newest steps.

    Example::

        week = hr.keep(timedelta(days=7))
        p.compute("visits", Visits(), keys={hits: "page"}, retain={"totals": week})

    Raises:
        PipelineError: if no bound is given, or one is not positive.
    """
    age_us = 0 if age is None else duration_micros(age, "age", place="keep")
    bounds = [*([] if age is None else [age_us]), *([] if steps is None else [steps])]
    if not bounds or min(bounds) <= 0:
        raise PipelineError(
            f"keep({age!r}, steps={steps!r}) says no bound above 0",
            remedy="give an age such as '7d', or steps=1000; without keep() all is retained",
        )
    return Keep(age_us, steps or 0)
