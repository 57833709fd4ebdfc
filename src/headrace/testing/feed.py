"""The source that replaces an injector's source in a test.

It gives the records that were pushed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headrace.errors import BadInput, DriveError
from headrace.eventtime.timestamps import MIN_TIME
from headrace.eventtime.watermark import (
    Exact,
    Frontier,
    Frontiers,
    LikeSpark,
    Strategy,
    complete,
)
from headrace.pipeline.source import Limit, Offer, Part, Position, Source, Split
from headrace.schema import NotExact, ValueType
from headrace.schema.declared import type_name
from headrace.schema.reserved import TIMESTAMP_COLUMN
from headrace.storage.bounds import Whole
from headrace.testing.times import Moment, check_forward, moment_us


class _Pushed(msgspec.Struct, frozen=True):
    """Records that were pushed in one call, and the number of the first one in their partition."""

    partition: str
    first: int
    records: pa.Table

    @property
    def after(self) -> int:
        """The number after the last record."""
        return self.first + int(self.records.num_rows)


class _Part:
    """One partition as the test has fed it. A promise holds after the records pushed before it."""

    def __init__(self, *, awaited: bool = False) -> None:
        self.awaited = awaited  # whether it is expected, and the test has not used it
        self.pushed = 0
        self.promises: list[tuple[int, int]] = []  # (records before it, time)
        self.ended_at: int | None = None

    @property
    def promised_us(self) -> int:
        """The newest promise."""
        return self.promises[-1][1] if self.promises else MIN_TIME

    def as_of(self, read: int) -> Part:
        """Return what is known of the partition once this number of records was read."""
        made = [time for after, time in self.promises if after <= read]
        return Part(read == self.ended_at, made[-1] if made else None, self.awaited)


class Feed(Source):
    """Records that a test pushes. They survive a crash: those that no step recorded come again.

    Args:
        name: the injector's name.
        source: the source that it replaces; defines the type of the records.
        expected: partitions that are known before they have records.
    """

    #: The test cuts the divisions, not the duration of earlier steps.
    bounded = True
    partitioned = promises = holds_back = True

    def __init__(self, name: str, source: Source, expected: Sequence[str]) -> None:
        self.name = name
        self.most: int | None = None  # records that the next step may take; None for all
        self._values = source.values()
        self._source = source
        self._log: list[_Pushed] = []
        self._parts: dict[str, _Part] = {name: _Part(awaited=True) for name in expected}
        self._ended = False

    def go_on(self, position: Any, known: Frontiers, ended: bool) -> None:
        """Continue after what an earlier run on the same storage has recorded.

        New pushes come after it.

        Args:
            position: how far this injector was read.
            known: what is known of its partitions.
            ended: whether its input has ended.

        Raises:
            DriveError: if the injector was read from anything but a test.
        """
        try:
            read = msgspec.convert(position, dict[str, Whole])
        except msgspec.ValidationError as error:
            raise DriveError(
                f"injector {self.name!r} was read from its source on this storage, not from a test",
                remedy="drive on a storage of its own; or copy a checkpoint, and look into that",
            ) from error
        self._ended = ended
        for name in {*read, *known.parts}:
            part = self._parts.setdefault(name, _Part())
            part.pushed = read.get(name, 0)
            frontier = known.parts.get(name, Frontier())
            if frontier.promise_us > MIN_TIME:
                part.promises.append((part.pushed, frontier.promise_us))
            if frontier.ended:
                part.ended_at = part.pushed

    # -- the test's side ----------------------------------------------------------------------

    def push(self, values: Sequence[Any], times: Iterable[Moment] | None, partition: str) -> None:
        """Add records.

        Raises:
            DriveError: if the input has ended, or the number of times does not match, or the values
                have no event time and none is given.
            BadInput: if a value is not of the stream's type.
        """
        known = self._parts.get(partition)
        if self._ended or (known is not None and known.ended_at is not None):
            raise DriveError(
                f"{self._place(partition)} has ended, and takes no more records",
                remedy="push before end()",
            )
        typed = [self._typed(value, row) for row, value in enumerate(values)]
        columns = self._columns(typed)
        micros = self._times(typed) if times is None else [moment_us(when) for when in times]
        if len(micros) != len(typed):
            raise DriveError(f"{len(micros)} times were given for {len(typed)} values")
        part = self._part(partition)
        if not typed:
            return
        columns = [pa.array(micros, pa.int64()), *columns]
        table = pa.table(columns, names=[TIMESTAMP_COLUMN, *self._values.schema.names])
        self._log.append(_Pushed(partition, part.pushed, table))
        part.pushed += len(typed)

    def _place(self, partition: str) -> str:
        of = f"partition {partition!r} of " if partition else ""
        return f"{of}injector {self.name!r}"

    def _typed(self, value: Any, row: int) -> Any:
        """Return a dict of columns as a value of the stream's type.

        Other values stay as they are.
        """
        if not isinstance(value, dict) or self._values.is_scalar:
            return value
        parts = self._values.parts
        own = {part.outside: part.name for part in parts if part.name not in value}
        fields = {part.name: None for part in parts if part.nullable and part.default is None}
        fields |= {str(own.get(name, name)): item for name, item in value.items()}
        try:
            return self._values.python_type(**fields)
        except Exception as error:  # a class may check its fields and raise anything
            raise self._bad(row, str(error)) from error

    def _bad(self, row: int, why: str) -> BadInput:
        return BadInput(
            f"a value is not a {type_name(self._values.python_type)}: {why}",
            place=f"value {row + 1} of those pushed to {self.name!r}",
            remedy="push values of the stream's type, or dicts of its columns",
        )

    def _times(self, values: Sequence[Any]) -> list[int]:
        micros = self._source.times_of(values)
        if micros is None:
            raise DriveError(
                f"the values of {self.name!r} do not contain their event time",
                remedy='say it: push(..., at="2024-05-01T12:00:00Z")',
            )
        return micros

    def _columns(self, values: list[Any]) -> list[pa.Array]:
        try:
            return self._values.to_columns(values)
        except NotExact as error:
            raise self._bad(error.row, str(error)) from error

    def promise(self, when: Moment, partition: str | None) -> None:
        """Promise that no record before a time will come, for one partition or for all."""
        for name in self._named(partition):
            part = self._part(name)
            micros = moment_us(when, now_us=part.promised_us)
            check_forward(f"the watermark of {self._place(name)}", part.promised_us, micros)
            part.promises.append((part.pushed, micros))

    def end(self, partition: str | None) -> None:
        """Note that no more records will come, for one partition or for all."""
        if partition is None:
            self._ended = True
        else:
            part = self._part(partition)
            part.ended_at = part.pushed

    def has_more_to_come(self) -> None:
        """Note that more records may come after all, on the input and on each partition."""
        self._ended = False
        for part in self._parts.values():
            part.ended_at = None

    def _part(self, name: str) -> _Part:
        """Return a partition that the test uses. From now on it exists."""
        part = self._parts.setdefault(name, _Part())
        part.awaited = False
        return part

    def _named(self, partition: str | None) -> list[str]:
        return [partition] if partition is not None else list(self._parts) or [""]

    # -- the pipeline's side ------------------------------------------------------------------

    def values(self) -> ValueType:
        return self._values

    def start(self) -> Position:
        return {}

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        if not self._parts and not self._ended:
            return None
        most = limit.rows if self.most is None else min(self.most, limit.rows)
        end, rows, size = dict(position), 0, 0
        for pushed in self._log:
            at = end.get(pushed.partition, 0)
            taken = min(pushed.after - at, most - rows)
            if taken > 0 and pushed.partition not in limit.paused:
                end[pushed.partition] = at + taken
                rows += taken
                size += pushed.records.slice(at - pushed.first, taken).nbytes
        parts = {name: part.as_of(end.get(name, 0)) for name, part in self._parts.items()}
        final = self._ended and all(end.get(n, 0) == p.pushed for n, p in self._parts.items())
        return Offer(end, rows, size, final=final, empty=rows == 0, parts=parts)

    def splits(self, start: Position, end: Position) -> list[Split]:
        return [self._split(part, start.get(part, 0), end[part]) for part in sorted(end)]

    def _split(self, partition: str, first: int, last: int) -> Split:
        sink = pa.BufferOutputStream()
        schema = pa.schema([pa.field(TIMESTAMP_COLUMN, pa.int64()), *self._values.schema])
        with pa.ipc.new_stream(sink, schema) as writer:
            rows = 0
            for records in self._between(partition, first, last):
                writer.write_table(records.cast(schema))
                rows += records.num_rows
        if rows != last - first:
            raise DriveError(
                f"records {first + 1} to {last} of {self._place(partition)} were pushed by an earlier "
                "test, and are needed again",
                remedy="let that test end with a checkpoint: steps since the last one are computed again",
            )
        place = f"records {first + 1} to {last} pushed to {self.name!r}"
        return Split([first, last], sink.getvalue().to_pybytes(), place, partition)

    def _between(self, partition: str, first: int, last: int) -> Iterator[pa.Table]:
        for pushed in self._log:
            if pushed.partition == partition and pushed.first < last and pushed.after > first:
                low, high = max(first, pushed.first), min(last, pushed.after)
                yield pushed.records.slice(low - pushed.first, high - low)

    def read(self, split: Split) -> pa.Table:
        return pa.ipc.open_stream(split.data).read_all()

    def committed(self, position: Position) -> None:
        self._log = [p for p in self._log if p.after > position.get(p.partition, 0)]


def own_or_promised(own: Strategy) -> Any:
    """Return a strategy in which the pipeline's own, or the test's promise, counts: the later one."""
    return LikeSparkOrPromised(own.delay_us) if isinstance(own, LikeSpark) else OwnOrPromised(own)


class OwnOrPromised(msgspec.Struct, frozen=True):
    """The pipeline's own watermark strategy, or the test's promise: the later of the two counts."""

    own: Strategy

    def of(self, frontier: Frontier) -> int:
        """Return the time up to which a partition is complete."""
        return max(self.own.of(frontier), frontier.promise_us)

    @property
    def measures(self) -> str:
        """What the pipeline's own strategy goes by."""
        return self.own.measures

    @property
    def forgets(self) -> bool:
        """Whether partitions that have ended may be forgotten."""
        return self.own.forgets

    def __str__(self) -> str:
        return str(self.own)


class LikeSparkOrPromised(LikeSpark, frozen=True):
    """Spark's strategy, which is a step late, or the test's promise, which counts at once."""

    def of(self, frontier: Frontier) -> int:
        return max(super().of(frontier), frontier.promise_us)

    def of_all(self, parts: Collection[Frontier]) -> int:
        """Return what Spark's watermark will be. A promise has counted by then."""
        return LikeSpark(self.delay_us).of_all(parts)

    def at_once(self, parts: Collection[Frontier]) -> int:
        return max(1, complete(parts, Exact()))
