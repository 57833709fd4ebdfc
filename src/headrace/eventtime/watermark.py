"""Watermark strategies: how an injector seeds the low watermark from what is known of its source.

MillWheel §4: the low watermark of a computation is the minimum over its oldest work and the low
watermarks of its inputs. Injectors seed it. An injector that many processes feed takes the minimum
of theirs. Here a source's *partitions* are these processes. What is known of a partition is its
*frontier*. From it the injector's strategy derives up to where the partition is complete.

An injector may also have a *percentile watermark*. Judging by past delays, a given share of the
records before it has come. It is ahead of the low watermark. Records behind it are late for the
computations that use it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import ClassVar

import msgspec

from headrace.errors import PipelineError
from headrace.errors.user_code import goes_on, user_error
from headrace.eventtime.delays import Delays
from headrace.eventtime.durations import DurationLike, duration_micros
from headrace.eventtime.timestamps import (
    LAST_DATE_US,
    MAX_TIME,
    MIN_TIME,
    TimeLike,
    checked_micros,
)
from headrace.eventtime.units import check_unit
from headrace.storage.bounds import Micros

#: Most partitions of an injector at a time. Each of them is named in manifests.
MOST_PARTITIONS = 10_000
#: The watermark after all event times. Only a source that has ended is at ``MAX_TIME``.
_ALL_TIMES = LAST_DATE_US + 1


class Watermarks(msgspec.Struct, frozen=True, array_like=True):
    """How far a stream is complete.

    Attributes:
        low: no record before it is expected.
        percentile: only a small share of the records before it is still to come. It is never less
            than ``low``.
    """

    low: int = MIN_TIME
    percentile: int = MIN_TIME


class Frontier(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of one partition of a source.

    Attributes:
        highest: the highest event time seen.
        promise_us: the promise of the source: no record before it will come.
        active_us: the clock reading when something last came, or when the source first announced
            the partition.
        ended: whether nothing more will come.
        idle: whether the watermark does not wait for it, because nothing has come for long.
        heard: whether the source has announced it, possibly before its first record.

    Example::

        def cautious(seen: hr.Frontier) -> int:
            return seen.highest if seen.ended else seen.highest - 60_000_000


        assert hr.by_function(cautious)
    """

    highest: Micros = MIN_TIME
    promise_us: Micros = MIN_TIME
    active_us: Micros = 0
    ended: bool = False
    idle: bool = False
    heard: bool = False

    @property
    def counts(self) -> bool:
        """Whether the injector's watermark waits for this partition."""
        return not self.ended and not self.idle

    @property
    def came(self) -> bool:
        """Whether anything is known of this partition, rather than it being only expected."""
        return self.heard or self.ended or max(self.highest, self.promise_us) > MIN_TIME

    def stated(
        self, final: bool, promise_us: int | None, now_us: int, *, awaited: bool = False
    ) -> Frontier:
        """Return the frontier after a statement of the source about this partition.

        A first statement and a new promise count as activity. A partition that had ended, but has
        more after all (such as a file that has grown), is waited for again.

        Args:
            final: whether nothing more will come.
            promise_us: no record before it will come; None without such a promise.
            now_us: the clock reading.
            awaited: whether the partition is only expected, which is not activity.
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
        parts: the frontiers by partition. A source without partitions has one, called ``""``.
        low, percentile: the watermarks of the injector.
        coming: what the low watermark will be after the next step, for a strategy that lags.
        reached: for an injector whose input has ended, what its low watermark would be otherwise.
        delays: how far records came behind the newest one, for a percentile watermark.
        gone: in a manifest, partitions that are no longer remembered.
    """

    parts: dict[str, Frontier] = {}
    low: Micros = MIN_TIME
    percentile: Micros = MIN_TIME
    delays: Delays = Delays()
    gone: list[str] = []
    reached: int = MIN_TIME
    coming: Micros = MIN_TIME

    @property
    def watermarks(self) -> Watermarks:
        """How far the stream of the injector is complete."""
        return Watermarks(self.low, self.percentile)

    @property
    def is_idle(self) -> bool:
        """Whether no partition counts, although an idle one may come back."""
        parts = self.parts.values()
        return any(part.idle and not part.ended for part in parts) and not any(
            part.counts for part in parts
        )


class PartitionSeen(msgspec.Struct, frozen=True, array_like=True):
    """A summary of the records of one partition in one step.

    Attributes:
        highest: the highest event time.
        delays: the delays of the records, if a percentile watermark needs them.
    """

    highest: int
    delays: dict[int, int] = {}

    def plus(self, other: PartitionSeen) -> PartitionSeen:
        """Return the summary of both. Their order makes no difference."""
        delays = dict(self.delays)
        for bin_, count in other.delays.items():
            delays[bin_] = delays.get(bin_, 0) + count
        return PartitionSeen(max(self.highest, other.highest), delays)


def has_news(before: Frontiers, after: Frontiers) -> bool:
    """Return whether a step is worthwhile although nothing was read.

    It is, for a partition that was just announced, and for a partition's promise, end or idleness.
    An announcement that no step recorded would be forgotten, and the watermark would not wait for
    the partition.
    """
    return any(
        _word(part) != _word(before.parts.get(name, _UNKNOWN)) for name, part in after.parts.items()
    )


def lags(of: Frontiers) -> bool:
    """Return whether the watermark of an injector moves with the next step, whatever that reads."""
    return of.coming > of.low


def _word(of: Frontier) -> tuple[int, bool, bool, bool]:
    return of.promise_us, of.ended, of.idle, of.came


def changes(before: Frontiers, after: Frontiers) -> Frontiers | None:
    """Return what has changed, with only the partitions that have changed; None if nothing has."""
    if after == before:
        return None
    parts = {name: part for name, part in after.parts.items() if part != before.parts.get(name)}
    gone = sorted(before.parts.keys() - after.parts.keys())
    return msgspec.structs.replace(after, parts=parts, gone=gone)


def changed(before: Frontiers, by: Frontiers) -> Frontiers:
    """Return what is known after a change. This is the inverse of :func:`changes`."""
    parts = {name: part for name, part in before.parts.items() if name not in by.gone}
    return msgspec.structs.replace(by, parts={**parts, **by.parts}, gone=[])


def without_ended(of: Frontiers, named: Collection[str], rules: Rules) -> Frontiers:
    """Return what is known, without the ended partitions on which no watermark will depend.

    Args:
        of: what is known of an injector.
        named: the partitions that its source names now. An ended one stays as long as it is named.
            Otherwise it would be taken for a new one.
        rules: the rules of the injector. An expected partition stays. Otherwise it would be waited
            for again.

    The two partitions that came furthest stay, one by records and one by promise: if all that have
    not ended are idle, the watermark is as far as they were. If a user's function decides, all
    partitions stay, because only that function knows what it makes of each.
    """
    ended = [name for name, part in of.parts.items() if part.ended]
    if not ended or not rules.strategy.forgets:
        return of
    kept = {
        max(ended, key=lambda name: (of.parts[name].highest, name)),
        max(ended, key=lambda name: (of.parts[name].promise_us, name)),
    }
    gone = set(ended) - kept - {*named} - {*rules.expect}
    parts = {name: part for name, part in of.parts.items() if name not in gone}
    return msgspec.structs.replace(of, parts=parts)


def merged_seen(
    parts: Iterable[Mapping[str, Mapping[str, PartitionSeen]]],
) -> dict[str, dict[str, PartitionSeen]]:
    """Return what several tasks saw, by injector and partition. Their order makes no difference."""
    merged: dict[str, dict[str, PartitionSeen]] = {}
    for part in parts:
        for injector, by_partition in part.items():
            into = merged.setdefault(injector, {})
            for name, seen in by_partition.items():
                into[name] = seen.plus(into[name]) if name in into else seen
    return merged


class BoundedDelay(msgspec.Struct, frozen=True):
    """The strategy for records at most ``delay_us`` behind the newest one of their partition."""

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
    """The strategy for a source that knows how far it is complete, and promises it."""

    measures: ClassVar[str] = "promise"
    forgets: ClassVar[bool] = True

    def of(self, frontier: Frontier) -> int:
        """Return up to where a partition is complete."""
        return frontier.promise_us

    def __str__(self) -> str:
        return "the source's own promise"


class ByFunction(msgspec.Struct, frozen=True):
    """The strategy in which a user's function decides, from what is known of a partition."""

    measures: ClassVar[str] = "highest"
    forgets: ClassVar[bool] = False
    function: Callable[[Frontier], TimeLike]

    def of(self, frontier: Frontier) -> int:
        """Return up to where a partition is complete.

        Raises:
            UserCodeError: when the function raises an error, or does not return a time.
        """
        try:
            micros = checked_micros(self.function(frontier))
            check_unit(micros, frontier.highest)
            return min(micros, _ALL_TIMES)
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


class LikeSpark(msgspec.Struct, frozen=True):
    """Spark's own strategy: at most ``delay_us`` behind the newest record of all, a step later."""

    measures: ClassVar[str] = "highest"
    forgets: ClassVar[bool] = True
    delay_us: int

    def of(self, frontier: Frontier) -> int:
        """Return up to where a partition is complete, in Spark's sense.

        Spark counts in milliseconds, and a record *at* its watermark is late. Here one *before* the
        watermark is. So this is a microsecond later.
        """
        return frontier.highest // 1_000 * 1_000 - self.delay_us + 1

    def of_all(self, parts: Collection[Frontier]) -> int:
        """Return up to where an injector is complete. Spark's watermark is never before 1970."""
        return max([1, *(self.of(part) for part in parts if part.highest > MIN_TIME)])

    def at_once(self, parts: Collection[Frontier]) -> int:
        """Return up to where an injector is complete without waiting for the next step."""
        return 1

    def __str__(self) -> str:
        return f"as Spark's: {self.delay_us / 1e6:g} s behind the newest record, a step later"


Strategy = BoundedDelay | Exact | ByFunction | LikeSpark


class Rules(msgspec.Struct, frozen=True):
    """How an injector's watermark follows from what is known of its partitions.

    Attributes:
        strategy: decides up to where a partition is complete.
        expect: partitions that hold the watermark from the start, even before they are announced.
        idle_after_us: how long a partition may bring nothing before the watermark stops waiting for
            it; None for no limit.
        skew_us: how far a partition may be ahead of what the readers of the injector have reached.
            One that is further ahead is not read. None for no limit.
        percentile: the share of records that a percentile watermark waits for, from 0 to 1; None
            if there is no percentile watermark.
        partitioned: whether the source's partitions have names. If not, all of its records are in
            one partition, ``""``.
    """

    strategy: Strategy = BoundedDelay(0)
    expect: tuple[str, ...] = ()
    idle_after_us: int | None = None
    skew_us: int | None = None
    percentile: float | None = None
    partitioned: bool = False


def advance(
    before: Mapping[str, Frontiers],
    seen: Mapping[str, Mapping[str, PartitionSeen]],
    finals: Iterable[str],
    rules: Mapping[str, Rules],
    clock_us: int,
) -> dict[str, Frontiers]:
    """Return what is known of all injectors after a step. Pure: tasks and the coordinator agree.

    Args:
        before: what was known before, including what the sources stated for this step.
        seen: summaries of the step's records, by injector and partition.
        finals: injectors whose input has ended.
        rules: the rules by injector.
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
            if of.is_idle and name not in ended:  # it does not hold back the others
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
    coming = MIN_TIME
    if isinstance(rules.strategy, LikeSpark):
        low = max(before.low, before.coming, rules.strategy.at_once(parts.values()))
        coming = rules.strategy.of_all(parts.values())
    else:
        low = max(before.low, complete(parts.values(), rules.strategy))
    percentile, delays = low, before.delays
    if rules.percentile is not None:
        for of in seen.values():
            delays = delays.plus(of.delays)
        most = delays.quantile_us(rules.percentile)
        early = complete(parts.values(), BoundedDelay(most))
        percentile = max(low, before.percentile, early)
    return Frontiers(parts, low, percentile, delays, coming=coming)


def complete(parts: Collection[Frontier], strategy: Strategy) -> int:
    """Return up to where partitions are complete together: the minimum over those that count.

    If none counts and some are idle, it is the maximum over all partitions. So it makes no
    difference whether they fell silent (or ended) one after another or all at once.
    """
    counted = [strategy.of(part) for part in parts if part.counts]
    if counted:
        return min(counted)
    if not any(part.idle and not part.ended for part in parts):
        return MIN_TIME
    return max(strategy.of(part) for part in parts)


def _delay_micros(delay: DurationLike, place: str) -> int:
    """Return in microseconds how far records may be behind the newest one.

    Raises:
        PipelineError: for a value that is not a duration, or a negative one.
    """
    delay_us = duration_micros(delay, "delay", place=place)
    if delay_us < 0:
        raise PipelineError(
            f"a delay of {delay!r} is negative",
            remedy="say how far records may be behind: 0 or more",
        )
    return delay_us


def bounded_delay(delay: DurationLike) -> BoundedDelay:
    """Return the strategy for records at most ``delay`` behind the newest of their partition.

    Args:
        delay: a timedelta, or a text such as ``"10s"``. Records that come later are late.

    Example::

        source = hr.sources.Files("hits.jsonl", event_time="at", type=Hit)
        p.inject("files", source, watermark=hr.bounded_delay(timedelta(seconds=10)))

    Raises:
        PipelineError: for a value that is not a duration, or a negative one.
    """
    return BoundedDelay(_delay_micros(delay, "bounded_delay"))


def ascending() -> BoundedDelay:
    """Return the strategy for records whose event time never goes back within their partition.

    Example::

        source = hr.sources.Files("hits.jsonl", event_time="at", type=Hit)
        p.inject("files", source, watermark=hr.ascending())
    """
    return BoundedDelay(0)


def spark(delay: DurationLike) -> LikeSpark:
    """Return the strategy of Spark's ``withWatermark``, for code that must give Spark's results.

    It differs from :func:`bounded_delay` in three ways. The watermark of a step follows from the
    records of the steps *before* it. It goes by the newest record of all partitions. And a record
    at the watermark is late, as well as one before it. So timers fire, and records are late, in the
    same step as in Spark. In exchange everything waits for one more step, and a partition that is
    behind the others loses its records.

    Args:
        delay: how far records may be behind the newest one, as in ``withWatermark``: a timedelta,
            or a text such as ``"10s"``. Spark counts in milliseconds, and so does this.

    Example::

        source = hr.sources.Files("hits.jsonl", event_time="at", type=Hit)
        p.inject("files", source, watermark=hr.spark("10s"))

    Raises:
        PipelineError: for a value that is not a duration, or a negative one.
    """
    return LikeSpark(_delay_micros(delay, "spark") // 1_000 * 1_000)


def exact() -> Exact:
    """Return the strategy for sources that know up to where they are complete, and promise it.

    An example is :class:`headrace.sources.Inbox`, whose producers make such promises.

    Example::

        inbox = hr.sources.Inbox("inbox", Hit, event_time="at")
        p.inject("pushed", inbox, watermark=hr.exact())
    """
    return Exact()


def by_function(function: Callable[[Frontier], TimeLike]) -> ByFunction:
    """Return the strategy in which a function decides for each partition.

    Args:
        function: takes what is known of a partition, and returns up to where it is complete. It
            must depend on nothing else, because it is called in several processes and must return
            the same in all. Its result may go back; the watermark does not.

    Example::

        def night(seen: hr.Frontier) -> int:
            return seen.highest - seen.highest % 86_400_000_000  # complete up to the last midnight


        source = hr.sources.Files("hits.jsonl", event_time="at", type=Hit)
        p.inject("files", source, watermark=hr.by_function(night))
    """
    return ByFunction(function)


def lowest(watermarks: Iterable[int]) -> int:
    """Return the lowest of some watermarks; ``MAX_TIME`` (nothing will come) if there are none."""
    return min(watermarks, default=MAX_TIME)


def check_number_of_partitions(number: int, place: str) -> None:
    """Check that an injector does not have too many partitions at a time.

    Raises:
        PipelineError: when it has more than ``MOST_PARTITIONS``.
    """
    if number > MOST_PARTITIONS:
        raise PipelineError(
            f"{number:,} partitions at a time are too many: {MOST_PARTITIONS:,} are the most",
            place=place,
            remedy="name what has few values as partition=: a host, a shard, a folder, "
            "and no user or session",
        )
