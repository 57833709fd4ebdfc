"""Columnar user code: a computation that sees all records of many keys at once.

The same declarations and the same life as per-record computations
(:mod:`headrace.computation.computation`), an order of magnitude faster: handlers get whole batches, and
state is *tables* that look up and change many rows in one call::

    class Totals(ColumnarComputation):
        totals = TableState({"count": int, "amount": float})
        changed = Output(Total)

        def process_batch(self, ctx, batch):
            rows = self.totals.at(batch.keys)
            count = rows["count"] + batch.counts
            amount = rows["amount"] + batch.sum("amount")
            rows.upsert(count=count, amount=amount)
            ctx.produce("changed", batch.keys, {"count": count, "amount": amount})

**Life.** In a step, for each input stream in the order of ``keys=``: ``process_batch`` with the
step's records of that stream, grouped by key; then, again and again until nothing is left that is
behind the clock, ``process_batch`` with the posts that are due, stream by stream, and ``process_timers``
with the timers that are due, name by name.

**The one rule.** What is done to a key may depend on that key's rows alone, and a batch may be cut in
two between any two rows: then results do not depend on the number of workers or bins, and a record
that raises can be found and skipped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, ClassVar, Protocol, overload

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.computation.batches import FiredBatch, KeyedBatch, Keys
from headrace.computation.computation import UserCode
from headrace.computation.declarations import Declaration, Declares
from headrace.computation.table_handles import TableHandle
from headrace.errors import PipelineError
from headrace.eventtime.domains import EVENT_TIME, TimeDomain
from headrace.eventtime.timestamps import DurationLike, duration_micros
from headrace.keyspace.hashing import key_type_problem
from headrace.schema.columns import ColumnType
from headrace.schema.upgrades import UpgradeLike, upgrades_of


class TableState(Declaration):
    """A table with a row for each key; with ``sub``, any number of rows a key.

    Args:
        columns: name → type: ``int``, ``float``, ``bool``, ``str``, ``bytes``, ``date``,
            ``datetime``, ``timedelta``, or an Arrow type of fixed width. In handlers a column is a
            NumPy array: times are integers of microseconds, dates of days, texts are objects.
            Columns have no nulls; a row that is not there reads as zeros and empty texts.
        sub: name → type of what tells the rows of a key apart, such as the start of a window.
        ttl: how long a row lives after it was last written: in event time after the key's records
            that wrote it, in wall time after the step's clock reading. It is removed at the end of
            the step in which that clock gets there, timers first.
        ttl_domain: ``EVENT_TIME`` or ``WALL_TIME``.
        added: of columns that were not there from the first: what rows have there that were stored before.
        dropped: columns that are declared no more, and whose values are given up.
        version: which version of its columns this is; see :class:`headrace.ValueState`.
        upgrade: how rows of older versions are read: version → a function of the old columns (those of
            ``sub`` too), a dict of arrays, many rows at once, that returns a dict with all of today's; or
            (the table as it was declared, such a function); or None, where such rows are given up.

    Guarantees: those of all state: it commits with the step's timers and productions, and moves with
    its bin. Cost: a step pays for the rows that it touches.
    """

    kind: ClassVar[str] = "table"

    def __init__(
        self, columns: dict[str, Any], *, sub: dict[str, Any] | None = None,
        ttl: DurationLike | None = None, ttl_domain: TimeDomain = EVENT_TIME,
        added: dict[str, Any] | None = None, dropped: Collection[str] = (),
        version: int = 1, upgrade: Mapping[int, UpgradeLike] | None = None,
    ) -> None:  # fmt: skip
        self.columns = columns
        self.added = added or {}
        self.dropped = frozenset(dropped)
        self.version, self.upgrades = version, upgrades_of(version, upgrade)
        self.sub = sub or {}
        self.ttl_us = None if ttl is None else duration_micros(ttl)
        self.ttl_domain = TimeDomain(ttl_domain)

    def column_types(self, *, place: str) -> tuple[list[ColumnType], list[ColumnType]]:
        """Return the sub columns and the other columns.

        Raises:
            PipelineError: for a type that a table cannot have.
        """
        sub = [ColumnType.declared(n, kind, place=place) for n, kind in self.sub.items()]
        for kind in sub:
            problem = key_type_problem(kind.arrow)
            if problem:
                raise PipelineError(f"sub column {kind.name!r}: {problem}", place=place)
        columns = [ColumnType.declared(n, kind, place=place) for n, kind in self.columns.items()]
        self._check_added({kind.name: kind for kind in columns}, place)
        return sub, columns

    def _check_added(self, columns: dict[str, ColumnType], place: str) -> None:
        """Note what older rows have in columns that were added.

        Raises:
            PipelineError: for columns that are not there, values that they cannot have, and what is dropped
                and there.
        """
        for name, value in self.added.items():
            try:
                columns[name].added = columns[name].coerced(value, 1)[0]
            except (KeyError, TypeError) as error:
                what = "no such column" if name not in columns else str(error)
                raise PipelineError(f"added={{{name!r}: {value!r}}}: {what}", place=place) from None
        for name in self.dropped:
            if name in columns:
                raise PipelineError(f"column {name!r} is declared, and dropped", place=place)

    def shape(self, *, place: str) -> dict[str, Any]:
        """Return the columns as the storage remembers them; see :mod:`headrace.pipeline.state_schemas`."""
        sub, columns = self.column_types(place=place)
        return {
            "sub": {kind.name: {"type": str(kind.arrow)} for kind in sub},
            "columns": {kind.name: _told(kind) for kind in columns},
            **({"ttl": self.ttl_domain.value} if self.ttl_us is not None else {}),
            **({"dropped": sorted(self.dropped)} if self.dropped else {}),
        }

    def describe(self, *, place: str) -> str:
        """Return a stable description of the type, kept in storage to recognise a change."""
        sub, columns = self.column_types(place=place)
        parts = [f"{kind.name}:{kind.arrow}" for kind in columns]
        keys = [f"{kind.name}:{kind.arrow}" for kind in sub]
        ttl = "" if self.ttl_us is None else f" ttl in {self.ttl_domain}"
        return f"table [{', '.join(keys)}] {', '.join(parts)}{ttl}"

    @overload
    def __get__(self, instance: None, owner: type) -> TableState: ...
    @overload
    def __get__(self, instance: Declares, owner: type) -> TableHandle: ...
    def __get__(self, instance: Declares | None, owner: type) -> Any:
        return self if instance is None else self._handle(instance)


def _told(kind: ColumnType) -> dict[str, Any]:
    if kind.added is None:
        return {"type": str(kind.arrow)}
    (value,) = np.array([kind.added], dtype=kind.dtype).tolist()
    return {"type": str(kind.arrow), "default": msgspec.to_builtins(value)}


class BatchContext(Protocol):
    """What a columnar handler may use besides its own state."""

    @property
    def low_watermark_us(self) -> int:
        """The input watermark of this step in microseconds."""
        ...

    @property
    def low_watermark(self) -> datetime:
        """The input watermark of this step."""
        ...

    @property
    def low_watermark_before_us(self) -> int:
        """The input watermark of the step before, by which lateness is judged: timers up to it
        have fired. Differs from ``low_watermark_us`` by how far this step's input has moved it."""
        ...

    @property
    def now(self) -> datetime:
        """The step's clock reading: the same when the step is computed again."""
        ...

    @property
    def input_ended(self) -> bool:
        """Whether no more input will come: all injectors upstream have ended."""
        ...

    def drop_late(self, count: int) -> None:
        """Count records of this call as late, and so not as records that were worked on.

        For code that is given late records (``default_late = "process"``) and judges them itself
        (``judges_late = True``).
        """
        ...

    def produce(
        self, stream: str, keys: Keys, values: Any, *,
        timestamps_us: npt.NDArray[np.int64] | int | None = None,
    ) -> None:  # fmt: skip
        """Produce a record for each of some keys on an output stream.

        Args:
            stream: the name of a declared output.
            keys: the key of each record; a key may come more than once.
            values: column → array, for a scalar type the array itself, or an Arrow record batch.
            timestamps_us: event times; by default ``keys.times_us``: those of the causes. Never
                before the key's earliest cause in this call.
        """
        ...

    def post(
        self, keys: Keys, values: Any, *, times_us: npt.NDArray[np.int64] | int,
        stream: str | None = None,
    ) -> None:  # fmt: skip
        """Send a record to each of some keys, to arrive when the input watermark reaches its time.

        What is due comes to ``process_batch``, as a batch whose ``stream`` is the name of the declared
        :class:`headrace.Posted`; each key's records ascend by time, and are as they were sent where
        times are equal. What is sent behind the watermark comes in the same step.

        Args:
            keys: the key of each record; a key may come more than once.
            values: as for :meth:`produce`.
            times_us: the records' event times. Never before the key's earliest cause in this call.
            stream: the name of a ``Posted``; not needed where only one is declared.
        """
        ...


class ColumnarComputation(UserCode):
    """Base of user code that works on many keys at once. See the module's text for its life."""

    on_records = "process_batch"
    on_timers = "process_timers"
    state_kinds = ("table",)

    def process_batch(self, ctx: Any, batch: KeyedBatch) -> None:
        """Work on the step's records of one input stream."""
        raise NotImplementedError

    def process_timers(self, ctx: Any, fired: FiredBatch) -> None:
        """Work on due timers of one name."""
        raise NotImplementedError
