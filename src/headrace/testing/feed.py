"""What a test pushes, in the place of an injector's source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headrace.errors import BadInput, DriveError
from headrace.eventtime.timestamps import MIN_TIME
from headrace.eventtime.watermark import BoundedDelay
from headrace.schema import ValueType
from headrace.sources.base import TIMESTAMP_COLUMN, Limit, Offer, Position, Source, Split
from headrace.testing.times import Moment, check_forward, moment_us


class _Pushed(msgspec.Struct, frozen=True):
    """Records that were pushed at once, and the number of the first one in their partition."""

    partition: str
    first: int
    records: pa.Table

    @property
    def after(self) -> int:
        """The number after the last one."""
        return self.first + int(self.records.num_rows)


class Feed(Source):
    """Records that a test pushes. They are outside of what crashes: what no step recorded comes again.

    Args:
        name: the injector's name.
        source: the source that it stands for; gives the type of the records.
    """

    #: Divisions are cut by the test, never by how long the steps before took.
    bounded = True

    def __init__(self, name: str, source: Source) -> None:
        self.name = name
        self.most: int | None = None  # records that the next step may take; None for all
        self.promise_us = MIN_TIME
        self.ended = False
        self._values = source.values()
        self._source = source
        self._log: list[_Pushed] = []
        self._pushed: dict[str, int] = {}
        self._settled_us = MIN_TIME  # the promise that a committed step knows of

    # -- the test's side ----------------------------------------------------------------------

    def push(self, values: Sequence[Any], times: Iterable[Moment] | None, partition: str) -> None:
        """Add records.

        Raises:
            DriveError: after the end of the input, or for values without a time.
            BadInput: for values that are not of the stream's type.
        """
        if self.ended:
            raise DriveError(
                f"injector {self.name!r} has ended, and takes no more records",
                remedy="push before end()",
            )
        typed = [self._typed(value) for value in values]
        micros = self._times(typed) if times is None else [moment_us(when) for when in times]
        if len(micros) != len(typed):
            raise DriveError(f"{len(micros)} times were given for {len(typed)} values")
        if not typed:
            return
        columns = [pa.array(micros, pa.int64()), *self._columns(typed)]
        table = pa.table(columns, names=[TIMESTAMP_COLUMN, *self._values.schema.names])
        first = self._pushed.get(partition, 0)
        self._log.append(_Pushed(partition, first, table))
        self._pushed[partition] = first + len(typed)

    def _typed(self, value: Any) -> Any:
        kind = self._values.python_type
        return kind(**value) if isinstance(value, dict) and not self._values.is_scalar else value

    def _times(self, values: Sequence[Any]) -> list[int]:
        micros = self._source.times_of(values)
        if micros is None:
            raise DriveError(
                f"the values of {self.name!r} do not tell their event time",
                remedy='say it: push(..., at="2024-05-01T12:00:00Z")',
            )
        return micros

    def _columns(self, values: list[Any]) -> list[pa.Array]:
        try:
            return self._values.to_columns(values)
        except (TypeError, AttributeError) as error:
            raise BadInput(
                f"a value is not a {self._values.python_type!r}: {error}",
                place=f"values pushed to {self.name!r}",
                remedy="push values of the stream's type, or dicts of its columns",
            ) from error

    def promise(self, when: Moment) -> None:
        """Say that no record before a time is to come."""
        now = None if self.promise_us <= MIN_TIME else self.promise_us
        micros = moment_us(when, now_us=now)
        check_forward(f"the watermark of {self.name!r}", self.promise_us, micros)
        self.promise_us = micros

    def settle(self) -> None:
        """Learn that a step was committed: what the watermark was moved to is known."""
        self._settled_us = self.promise_us

    # -- the pipeline's side ------------------------------------------------------------------

    def values(self) -> ValueType:
        return self._values

    def start(self) -> Position:
        return {}

    def offer(self, position: Position, limit: Limit) -> Offer | None:
        most = limit.rows if self.most is None else min(self.most, limit.rows)
        end, rows = dict(position), 0
        for pushed in self._log:
            at = end.get(pushed.partition, 0)
            taken = min(pushed.after - at, most - rows)
            if taken > 0:
                end[pushed.partition] = at + taken
                rows += taken
        final = self.ended and end == self._pushed
        if not rows and not final and self.promise_us == self._settled_us:
            return None
        return Offer(end, rows, rows * 64, final=final, empty=rows == 0)

    def splits(self, start: Position, end: Position) -> list[Split]:
        return [self._split(part, start.get(part, 0), end[part]) for part in sorted(end)]

    def _split(self, partition: str, first: int, last: int) -> Split:
        sink = pa.BufferOutputStream()
        schema = pa.schema([pa.field(TIMESTAMP_COLUMN, pa.int64()), *self._values.schema])
        with pa.ipc.new_stream(sink, schema) as writer:
            for records in self._between(partition, first, last):
                writer.write_table(records.cast(schema))
        place = f"records {first + 1} to {last} pushed to {self.name!r}"
        return Split([partition, first, last], sink.getvalue().to_pybytes(), place)

    def _between(self, partition: str, first: int, last: int) -> Iterator[pa.Table]:
        for pushed in self._log:
            if pushed.partition == partition and pushed.first < last and pushed.after > first:
                low, high = max(first, pushed.first), min(last, pushed.after)
                yield pushed.records.slice(low - pushed.first, high - low)

    def read(self, split: Split) -> pa.Table:
        return pa.ipc.open_stream(split.data).read_all()

    def committed(self, position: Position) -> None:
        self._log = [p for p in self._log if p.after > position.get(p.partition, 0)]


class MovedByHand(msgspec.Struct, frozen=True):
    """A strategy that is in force as before, and besides knows what the test has promised."""

    own: BoundedDelay
    feed: Feed

    def after(self, highest_us: int) -> int:
        """Return the watermark after records up to a time were seen."""
        return max(self.own.after(highest_us), self.feed.promise_us)
