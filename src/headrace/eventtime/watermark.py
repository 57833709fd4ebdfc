"""How an injector seeds the low watermark: what is known of its partitions, and what follows from it.

MillWheel §4: the low watermark of a computation is the minimum over its oldest work and the low
watermarks of what feeds it; injectors seed it, and an injector that many processes feed has the
minimum of theirs. A source's *partitions* are these processes: what is known of each is its
*frontier*, from which the injector's strategy tells up to where it is complete.

Beside the low watermark an injector may have a *percentile watermark*: up to there so many of a hundred
records have come, as far as past delays tell. It is ahead of the low one, and what comes behind it
is late for who goes by it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import ClassVar

import msgspec

from headrace.errors import PipelineError
from headrace.errors.user_code import goes_on, user_error
from headrace.eventtime.delays import Delays
from headrace.eventtime.timestamps import (
    LAST_DATE_US,
    MAX_TIME,
    MIN_TIME,
    DurationLike,
    TimeLike,
    checked_micros,
    duration_micros,
)
from headrace.storage.bounds import Micros

#: An injector has at most so many partitions at a time: each is named in manifests.
MOST_PARTITIONS = 10_000
#: The watermark behind all event times. It is not the end: only a source that has ended is at that.
_ALL_TIMES = LAST_DATE_US + 1


class Watermarks(msgspec.Struct, frozen=True, array_like=True):
    """How far a stream is complete.

    Attributes:
        low: no further on-time record is before it.
        percentile: only a small share of records is still to come before it; never before ``low``.
    """

    low: int = MIN_TIME
    percentile: int = MIN_TIME


class Frontier(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one partition of a source.

    Attributes:
        highest: the highest event time seen.
        promise_us: the source's own word: no record before it will come.
        active_us: the clock reading when something last came, or when it was first heard of.
        ended: whether nothing will come any more.
        idle: whether it is left out because nothing has come for long.
        heard: whether the source has said that it is there, be it before its first record.
    """

    highest: Micros = MIN_TIME
    promise_us: Micros = MIN_TIME
    active_us: Micros = 0
    ended: bool = False
    idle: bool = False
    heard: bool = False

    @property
    def counts(self) -> bool:
        """Whether the injector's watermark waits for it."""
        return not self.ended and not self.idle

    @property
    def came(self) -> bool:
        """Whether it was ever heard of, and is not only expected."""
        return self.heard or self.ended or max(self.highest, self.promise_us) > MIN_TIME

    def told(
        self, final: bool, promise_us: int | None, now_us: int, *, awaited: bool = False
    ) -> Frontier:
        """Return what is known when the source has said so.

        A first word and a new promise are signs of life; an awaited partition has shown none. One that has
        ended, and has not after all (a file that has grown), is waited for again.
        """
        active_us = self.active_us if awaited or self.came else now_us
        after = msgspec.structs.replace(
            self, ended=final, heard=self.heard or not awaited, active_us=active_us
        )
        if promise_us is not None:
            promise_us = min(promise_us, _ALL_TIMES)
        if promise_us is None or promise_us <= self.promise_us:
            return after
        return msgspec.structs.replace(after, promise_us=promise_us, active_us=now_us, idle=False)


_UNKNOWN = Frontier()


class Frontiers(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of an injector: its partitions, and the watermarks that it has reached.

    Attributes:
        parts: by partition; a source that has none has one called ``""``.
        low, percentile: its watermarks.
        reached: of an injector whose input has ended, what its low watermark would be without the end.
        delays: how far behind the newest record others came, for a percentile watermark.
        gone: in what a manifest says of a step: partitions that are not remembered any more.
    """

    parts: dict[str, Frontier] = {}
    low: Micros = MIN_TIME
    percentile: Micros = MIN_TIME
    delays: Delays = Delays()
    gone: list[str] = []
    reached: int = MIN_TIME

    @property
    def watermarks(self) -> Watermarks:
        """How far its stream is complete."""
        return Watermarks(self.low, self.percentile)

    @property
    def is_idle(self) -> bool:
        """Whether no partition counts, though some may come back."""
        parts = self.parts.values()
        return any(part.idle and not part.ended for part in parts) and not any(
            part.counts for part in parts
        )


class PartitionSeen(msgspec.Struct, frozen=True, array_like=True):
    """What the records of one partition in one step came to.

    Attributes:
        highest: the highest event time.
        delays: of the records, where a percentile watermark wants them.
    """

    highest: int
    delays: dict[int, int] = {}

    def plus(self, other: PartitionSeen) -> PartitionSeen:
        """Return what both came to; in any order the same."""
        delays = dict(self.delays)
        for bin_, count in other.delays.items():
            delays[bin_] = delays.get(bin_, 0) + count
        return PartitionSeen(max(self.highest, other.highest), delays)


def news(before: Frontiers, after: Frontiers) -> bool:
    """Say whether a step is worth while though nothing was read.

    It is for a partition that has just been announced, and for a partition's promise, end or idleness. An
    announcement that no step kept would be forgotten, and the watermark would pass what it announces.
    """
    return any(
        _word(part) != _word(before.parts.get(name, _UNKNOWN)) for name, part in after.parts.items()
    )


def _word(of: Frontier) -> tuple[int, bool, bool, bool]:
    return of.promise_us, of.ended, of.idle, of.came


def changes(before: Frontiers, after: Frontiers) -> Frontiers | None:
    """Return what has changed, of the partitions only those that have; None for nothing."""
    if after == before:
        return None
    parts = {name: part for name, part in after.parts.items() if part != before.parts.get(name)}
    gone = sorted(before.parts.keys() - after.parts.keys())
    return msgspec.structs.replace(after, parts=parts, gone=gone)


def changed(before: Frontiers, by: Frontiers) -> Frontiers:
    """Return what is known after a change; undoes :func:`changes`."""
    parts = {name: part for name, part in before.parts.items() if name not in by.gone}
    return msgspec.structs.replace(by, parts={**parts, **by.parts}, gone=[])


def without_ended(of: Frontiers, named: Collection[str], rules: Rules) -> Frontiers:
    """Return what is known without partitions that have ended: those that no watermark will depend on.

    Args:
        of: what is known of an injector.
        named: the partitions that its source names now. One that has ended stays while it is named, or
            it would be taken for a new one.
        rules: of the injector. What is expected stays, or it would be waited for again.

    The two that came furthest stay, by records and by promise: when all that have not ended are idle, the
    watermark is as far as they were. Where a user's function decides, all stay: what it makes of one is
    its own.
    """
    ended = [name for name, part in of.parts.items() if part.ended]
    if not ended or not rules.strategy.forgets:
        return of
    furthest = {
        max(ended, key=lambda name: (of.parts[name].highest, name)),
        max(ended, key=lambda name: (of.parts[name].promise_us, name)),
    }
    gone = set(ended) - furthest - {*named} - {*rules.expect}
    parts = {name: part for name, part in of.parts.items() if name not in gone}
    return msgspec.structs.replace(of, parts=parts)


def merged_seen(
    parts: Iterable[Mapping[str, Mapping[str, PartitionSeen]]],
) -> dict[str, dict[str, PartitionSeen]]:
    """Return what several readers saw, by injector and partition; in any order the same."""
    merged: dict[str, dict[str, PartitionSeen]] = {}
    for part in parts:
        for injector, by_partition in part.items():
            into = merged.setdefault(injector, {})
            for name, seen in by_partition.items():
                into[name] = seen.plus(into[name]) if name in into else seen
    return merged


class BoundedDelay(msgspec.Struct, frozen=True):
    """Records are at most ``delay_us`` behind the newest one of their partition."""

    measures: ClassVar[str] = "highest"
    forgets: ClassVar[bool] = True
    delay_us: int

    def of(self, frontier: Frontier) -> int:
        """Return up to where a partition is complete."""
        highest = frontier.highest
        return highest if highest <= MIN_TIME else max(MIN_TIME, highest - self.delay_us)

    def __str__(self) -> str:
        return f"at most {self.delay_us / 1e6:g} s behind the newest record"


class Exact(msgspec.Struct, frozen=True):
    """The source knows, and says so."""

    measures: ClassVar[str] = "promise"
    forgets: ClassVar[bool] = True

    def of(self, frontier: Frontier) -> int:
        """Return up to where a partition is complete."""
        return frontier.promise_us

    def __str__(self) -> str:
        return "the source's own promise"


class ByFunction(msgspec.Struct, frozen=True):
    """A user's function of what is known of a partition."""

    measures: ClassVar[str] = "highest"
    forgets: ClassVar[bool] = False
    function: Callable[[Frontier], TimeLike]

    def of(self, frontier: Frontier) -> int:
        """Return up to where a partition is complete.

        Raises:
            UserCodeError: when the function raises, or returns no time.
        """
        try:
            return min(checked_micros(self.function(frontier)), _ALL_TIMES)
        except BaseException as error:
            if goes_on(error):
                raise
            raise user_error(
                error,
                f"watermark function, for {frontier}",
                "return an aware datetime, or microseconds since 1970 UTC",
                "the watermark function failed",
            ) from error

    def __str__(self) -> str:
        return f"function {getattr(self.function, '__qualname__', self.function)}"


Strategy = BoundedDelay | Exact | ByFunction


class Rules(msgspec.Struct, frozen=True):
    """How an injector's watermark follows from what is known of it.

    Attributes:
        strategy: up to where a partition is complete.
        expect: partitions that hold the watermark from the beginning, also before they were heard of.
        idle_after_us: a partition that brings nothing for so long is left out; None: never.
        skew_us: partitions that are further ahead of what their readers have reached are not read.
        percentile: the share of records that a percentile watermark waits for, 0 to 1; None: no such.
        partitioned: whether the source's partitions have names; else all is one partition, ``""``.
    """

    strategy: Strategy = BoundedDelay(0)
    expect: tuple[str, ...] = ()
    idle_after_us: int | None = None
    skew_us: int | None = None
    percentile: float | None = None
    partitioned: bool = False


def advance(
    before: Mapping[str, Frontiers], seen: Mapping[str, Mapping[str, PartitionSeen]],
    finals: Iterable[str], rules: Mapping[str, Rules], clock_us: int,
) -> dict[str, Frontiers]:  # fmt: skip
    """Return what is known of all injectors after a step. Pure: tasks and the coordinator agree.

    Args:
        before: what was known before, with the facts that the sources told for this step.
        seen: what the step's records came to, by injector and partition.
        finals: injectors whose input has ended.
        rules: by injector.
        clock_us: the step's clock reading.
    """
    ended = set(finals)
    after = {
        name: of if of.low >= MAX_TIME else _advanced(of, seen.get(name, {}), rules[name], clock_us)
        for name, of in before.items()
    }
    after = {
        name: _ended(of) if name in ended and of.low < MAX_TIME else of
        for name, of in after.items()
    }
    live = [of for name, of in after.items() if name not in ended and not of.is_idle]
    if live:
        low, percentile = min(of.low for of in live), min(of.percentile for of in live)
        for name, of in after.items():
            if of.is_idle and name not in ended:  # it does not hold up those that are not
                after[name] = msgspec.structs.replace(
                    of, low=max(of.low, low), percentile=max(of.percentile, percentile)
                )
    return after


def _ended(before: Frontiers) -> Frontiers:
    return msgspec.structs.replace(before, low=MAX_TIME, percentile=MAX_TIME, reached=before.low)


def _advanced(
    before: Frontiers, seen: Mapping[str, PartitionSeen], rules: Rules, clock_us: int
) -> Frontiers:
    parts = dict(before.parts)
    for name, of in seen.items():
        part = parts.get(name, Frontier())
        highest = max(part.highest, of.highest)
        parts[name] = msgspec.structs.replace(part, highest=highest, active_us=clock_us, idle=False)
    low = max(before.low, _complete(parts.values(), rules.strategy))
    percentile, delays = low, before.delays
    if rules.percentile is not None:
        for of in seen.values():
            delays = delays.plus(of.delays)
        most = delays.quantile_us(rules.percentile)
        early = _complete(parts.values(), BoundedDelay(most))
        percentile = max(low, before.percentile, early)
    return Frontiers(parts, low, percentile, delays)


def _complete(parts: Collection[Frontier], strategy: Strategy) -> int:
    """Return up to where partitions are complete together: as far as the last of those that count.

    Where none counts and some are idle, it is as far as the one that came furthest: whether they fell
    silent (or ended) one after the other or at once then makes no difference.
    """
    counted = [strategy.of(part) for part in parts if part.counts]
    if counted:
        return min(counted)
    if not any(part.idle and not part.ended for part in parts):
        return MIN_TIME
    return max(strategy.of(part) for part in parts)


def bounded_delay(delay: DurationLike) -> BoundedDelay:
    """Return the strategy for records that come at most ``delay`` behind the newest of their partition.

    Args:
        delay: a timedelta, or a string such as ``"10s"``. What comes later is late.

    Raises:
        PipelineError: for what is no duration, or a negative one.
    """
    delay_us = duration_micros(delay)
    if delay_us < 0:
        raise PipelineError(
            f"a delay of {delay!r} is negative",
            remedy="say how far records may be behind: 0 or more",
        )
    return BoundedDelay(delay_us)


def ascending() -> BoundedDelay:
    """Return the strategy for records whose event time never goes back within their partition."""
    return BoundedDelay(0)


def exact() -> Exact:
    """Return the strategy for sources that know up to where they are complete, and promise it.

    For instance :class:`headrace.sources.Inbox`, whose producers do.
    """
    return Exact()


def by_function(function: Callable[[Frontier], TimeLike]) -> ByFunction:
    """Return the strategy that a function decides, partition by partition.

    Args:
        function: takes what is known of a partition, returns up to where it is complete. Must depend on
            nothing else: it is called in several processes, and must return the same in all. What it
            returns may go back; the watermark does not.
    """
    return ByFunction(function)


def lowest(watermarks: Iterable[int]) -> int:
    """Return the minimum; without any, nothing is to come (``MAX_TIME``)."""
    return min(watermarks, default=MAX_TIME)


def check_number_of_partitions(number: int, place: str) -> None:
    """Check that an injector does not have too many partitions at a time.

    Raises:
        PipelineError: when it has.
    """
    if number > MOST_PARTITIONS:
        raise PipelineError(
            f"{number:,} partitions at a time are too many: {MOST_PARTITIONS:,} are the most",
            place=place,
            remedy="name what has few values as partition=: a host, a shard, a folder, "
            "and no user or session",
        )
