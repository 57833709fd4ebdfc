"""Explains why a watermark is where it is: what holds it, since when, and what to do.

Pure: it takes the pipeline as of a committed step and a clock reading, and returns the way to the
holder. From a computation, the way leads upstream through what it waits for. It ends at the
partition of an injector, or at a computation's own work, for which everything else waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.errors import PipelineError
from headrace.eventtime.timestamps import MAX_TIME, MIN_TIME, show_time
from headrace.eventtime.watermark import Frontier
from headrace.ledger.head import Head
from headrace.observe.durations import show_duration
from headrace.observe.event_times import EventTime


class Waits(msgspec.Struct, frozen=True):
    """One stage on the way to the holder of a watermark.

    Attributes:
        name: an injector or a computation.
        watermark: its output watermark, RFC 3339; ``-`` before any, ``end`` after all.
        since_step: the step that last moved it; None if none did.
        since_s: how many seconds ago that was, by the clock; None if no step moved it.
        waits_for: what holds it, in words.
        remedy: what to do; empty if the next stage says so, or nothing is wrong.
        partition: the partition that holds it; None if none does.
        newest: the event time of the newest record of that partition; None if none has come.
        newest_age_s: how many seconds before now that is.
    """

    name: str
    watermark: str
    since_step: int | None
    since_s: float | None
    waits_for: str
    remedy: str = ""
    partition: str | None = None
    newest: EventTime | None = None
    newest_age_s: float | None = None


def why(head: Head, name: str, now_us: int) -> list[Waits]:
    """Return the way from an injector, a computation or its stream to the holder of its watermark.

    Args:
        head: the pipeline.
        name: the injector, computation or stream.
        now_us: the time of day.

    Raises:
        PipelineError: if the pipeline has nothing of that name.
    """
    known = _Known(head, now_us)
    name = name if known.has(name) else name.partition(".")[0]
    if not known.has(name):
        raise PipelineError(
            f"the pipeline has no injector or computation {name!r}",
            remedy=f"it has: {', '.join([*known.injectors, *known.computations])}",
        )
    way = []
    while name in known.computations:
        stage, following = known.computation(name)
        way.append(stage)
        if following is None:
            return way
        name = following
    return [*way, known.injector(name)]


class _Known:
    def __init__(self, head: Head, now_us: int) -> None:
        self._head = head
        self._now_us = now_us
        self.computations: dict[str, Any] = head.stored_schema["computations"]
        self.injectors: dict[str, Any] = head.stored_schema.get("injectors", {})

    def has(self, name: str) -> bool:
        return name in self.computations or name in self.injectors

    def computation(self, name: str) -> tuple[Waits, str | None]:
        """Return what a computation waits for, and the name of the next stage, if there is one."""
        before, after = self._head.watermark_of(name)
        if after < before:
            text = f"its own work at {show_time(after)}, held by a timer or record"
            remedy = "it goes on when that fires; see what sets the hold"
            return self._stage(name, after, text, remedy), None
        by_percentile = self.computations[name].get("watermark") == "percentile"
        found = [
            (self._of_stream(stream, by_percentile), stream)
            for stream in self.computations[name].get("reads", [])
        ]
        if not found:
            return self._stage(name, after, "streams that this version did not note"), None
        lowest, stream = min(found)
        if lowest >= MAX_TIME:
            return self._stage(name, after, "nothing: all input has ended"), None
        others = [other for _, other in found if other != stream]
        text = f"stream {stream!r}, at {show_time(lowest)}"
        text += f" (the others are ahead: {', '.join(others)})" if others else ""
        return self._stage(name, after, text), stream.partition(".")[0]

    def _of_stream(self, stream: str, by_percentile: bool) -> int:
        owner = stream.partition(".")[0]
        if owner in self.computations:
            low = self._head.watermark_of(owner)[1]
            return self._head.percentiles.get(owner, low) if by_percentile else low
        of = self._head.frontiers_of(owner)
        return of.percentile if by_percentile else of.low

    def injector(self, name: str) -> Waits:
        """Return the partition of an injector that holds its watermark."""
        of, rules = self._head.frontiers_of(name), self.injectors.get(name, {})
        if of.low >= MAX_TIME:
            return self._stage(name, of.low, "nothing: its input has ended")
        counted = {part: f for part, f in of.parts.items() if f.counts}
        if not counted:
            text = "all its partitions, which are idle" if of.parts else "its first record"
            return self._stage(name, of.low, text, "see why its source brings nothing")
        if of.coming > MIN_TIME:
            return self._stage(name, of.low, *self._like_spark(counted.values()))
        exact = rules.get("measures") == "promise"
        lowest = min(counted, key=lambda p: (_reached(counted[p], exact), p))
        text, remedy = self._partition(lowest, counted[lowest], rules)
        stage = self._stage(name, of.low, text, remedy)
        newest = counted[lowest].highest
        return msgspec.structs.replace(
            stage,
            partition=lowest or None,
            newest=EventTime.of(newest) if newest > MIN_TIME else None,
            newest_age_s=(self._now_us - newest) / 1e6 if newest > MIN_TIME else None,
        )

    def _like_spark(self, parts: Iterable[Frontier]) -> tuple[str, str]:
        """Return what a watermark waits for that goes by the newest record of all partitions."""
        newest = max(parts, key=lambda part: part.highest)
        quiet = show_duration(max(0, self._now_us - newest.active_us))
        if newest.highest <= MIN_TIME:
            return "its first record", "see why its source brings nothing"
        return (
            f"newer records: the newest is at {show_time(newest.highest)}, last heard of {quiet} ago, "
            "and the watermark follows a step later",
            "as Spark's, it moves with newer records alone",
        )

    def _partition(self, name: str, part: Frontier, rules: dict[str, Any]) -> tuple[str, str]:
        called = f"partition {name!r}" if name else "its newest record"
        quiet = show_duration(max(0, self._now_us - part.active_us))
        if not part.came:
            return (
                f"{called}, which is expected: nothing has come from it yet",
                "start the process that feeds it, or do not expect it",
            )
        if part.highest <= MIN_TIME and part.promise_us <= MIN_TIME:
            idle = rules.get("idle_after_us") is not None
            return (
                f"{called}: it was announced {quiet} ago, and has brought nothing yet",
                ""
                if idle
                else "see to the process that feeds it, or give the injector idle_after=, after "
                "which the watermark does not wait for it",
            )
        if rules.get("measures") == "promise":
            text = f"{called}: it promised {show_time(part.promise_us)}, last heard of {quiet} ago"
            return text, "let its process promise more as it gets on"
        text = (
            f"{called}, at {show_time(part.highest)}, last heard of {quiet} ago; "
            f"rule: {rules.get('watermark', '')}"
        )
        if rules.get("idle_after_us") is not None:
            return text, ""
        return text, (
            "see why nothing comes from it; if it may be quiet for long, give the injector "
            "idle_after=, after which the watermark does not wait for it"
        )

    def _stage(self, name: str, watermark: int, text: str, remedy: str = "") -> Waits:
        moved = self._head.moved.get(name)
        return Waits(
            name,
            show_time(watermark),
            None if moved is None else moved[0],
            None if moved is None else max(0.0, (self._now_us - moved[1]) / 1e6),
            text,
            remedy,
        )


def _reached(part: Frontier, exact: bool) -> int:
    return part.promise_us if exact else part.highest


def explain(way: list[Waits]) -> str:
    """Return the way as text for people, with a few lines for each stage."""
    lines = []
    for depth, stage in enumerate(way):
        since = "has not moved yet"
        if stage.since_step is not None and stage.since_s is not None:
            ago = show_duration(round(stage.since_s * 1e6))
            since = f"there since step {stage.since_step}, {ago} ago"
        indent = "  " * depth
        lines.append(f"{indent}{stage.name}: watermark {stage.watermark}, {since}")
        lines.append(f"{indent}  waits for {stage.waits_for}")
        if stage.remedy:
            lines.append(f"{indent}  what to do: {stage.remedy}")
    return "\n".join(lines)
