"""Columnar user code: a computation that sees all records of many keys at once.

It has the declarations and the lifecycle of a per-record computation
(:mod:`headrace.computation.computation`), and is about ten times as fast. Handlers get whole
batches. State is in *tables*, which look up and change many rows in one call::

    class Totals(ColumnarComputation):
        totals = TableState({"count": int, "amount": float})
        changed = Output(Total)

        def process_batch(self, ctx, batch):
            rows = self.totals.at(batch.keys)
            count = rows["count"] + batch.counts
            amount = rows["amount"] + batch.sum("amount")
            rows.upsert(count=count, amount=amount)
            ctx.produce("changed", batch.keys, {"count": count, "amount": amount})

**Lifecycle.** In each step, handlers are called in this order:

1. ``process_batch`` with the step's records of each input stream, in the order of ``keys=``.
   Records are grouped by key.
2. ``process_batch`` with the posts that are due, stream by stream.
3. ``process_timers`` with the timers that are due, name by name.

Posts and timers that handlers set behind the clock lead to further rounds of 2 and 3 in the same
step.

**The one rule.** What you do to a key may depend on that key's rows alone, and a batch may be cut
in two between any two rows. If you keep to this rule, results do not depend on the number of
workers or bins. It also lets Headrace find and skip a record that raises.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, ClassVar, Protocol, overload

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.computation.batches import FiredBatch, KeyedBatch, Keys, StepBatches
from headrace.computation.computation import UserCode
from headrace.computation.declarations import (
    Declaration,
    Declares,
    renaming,
    time_domain,
    ttl_micros,
)
from headrace.computation.table_handles import TableHandle
from headrace.errors import PipelineError
from headrace.eventtime.domains import EVENT_TIME, TimeDomain
from headrace.eventtime.durations import DurationLike
from headrace.keyspace.hashing import key_type_problem
from headrace.schema.columns import ColumnType
from headrace.schema.upgrades import UpgradeLike, upgrades_of


class TableState(Declaration):
    """A table with one row for each key or, with ``sub``, any number of rows for each key.

    Like all state, a table is committed with the step's timers and productions, and moves with its
    bin. A step pays for the rows that it touches.

    Args:
        columns: name → type: ``int``, ``float``, ``bool``, ``str``, ``bytes``, ``date``,
            ``datetime``, ``timedelta``, ``Decimal``, or an Arrow type of fixed width. In handlers a
            column is a NumPy array: times are integers of microseconds, dates are integers of days,
            texts are objects. Decimals are whole numbers of their last digit: integers up to 18
            digits, and pairs of words (``lo``, ``hi``) beyond. Columns have no nulls. A row that
            does not exist reads as zeros and empty texts.
        sub: name → type of the columns that distinguish the rows of one key, such as the start of a
            window.
        ttl: how long a row lives after it was last written. In event time, this counts from the
            key's records that wrote the row; in wall time, from the step's clock reading. The row
            is removed at the end of the step in which that clock gets there, after the timers.
        ttl_domain: ``EVENT_TIME`` or ``WALL_TIME``.
        added: for each column that was added later, the value that older rows have there.
        dropped: names of columns that the code no longer declares and whose values are given up.
        version: version of the columns; see :class:`headrace.ValueState`.
        upgrade: how to read rows of older versions. It maps a version to a function, to a pair (the
            table as it was declared then, a function), or to None to give the rows up. The function
            gets a dict of arrays with many rows at once: the old columns and those of ``sub``. It
            returns a dict with all of today's columns.
        renamed_from: the table's name when it was first stored, if it has been renamed since.

    Example::

        class Users(hr.ColumnarComputation):
            visits = hr.TableState({"last": datetime}, sub={"user": str}, ttl=timedelta(days=30))

            def process_batch(self, ctx, batch):
                by_user = batch.by(user=batch["user"])
                rows = self.visits.at(by_user.keys, user=by_user.sub["user"])
                rows.upsert(last=by_user.max(by_user.timestamps_us))
    """

    kind: ClassVar[str] = "table"

    def __init__(
        self,
        columns: dict[str, Any],
        *,
        sub: dict[str, Any] | None = None,
        ttl: DurationLike | None = None,
        ttl_domain: TimeDomain = EVENT_TIME,
        added: dict[str, Any] | None = None,
        dropped: Collection[str] = (),
        version: int = 1,
        upgrade: Mapping[int, UpgradeLike] | None = None,
        renamed_from: str = "",
    ) -> None:
        self.renamed_from = renaming(renamed_from)
        for which, given in (("columns", columns), ("sub", sub or {})):
            if not isinstance(given, Mapping):
                raise PipelineError(
                    f"{which}={given!r} names no types",
                    remedy=f'give a dict of name → type: {which}={{"count": int}}',
                )
        if isinstance(dropped, str):
            raise PipelineError(
                f"dropped={dropped!r} is one text, and no list of columns",
                remedy=f"give a list: dropped=[{dropped!r}]",
            )
        self.columns = columns
        self.added = added or {}
        self.dropped = frozenset(dropped)
        self.version, self.upgrades = version, upgrades_of(version, upgrade)
        self.sub = sub or {}
        self.ttl_us = ttl_micros(ttl)
        self.ttl_domain = time_domain(ttl_domain)

    def column_types(self, *, place: str) -> tuple[list[ColumnType], list[ColumnType]]:
        """Return the sub columns and the other columns.

        Raises:
            PipelineError: for a type that a table cannot have, and for wrong ``added`` or
                ``dropped``.
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
        """Note the value that older rows have in each added column.

        Raises:
            PipelineError: for an added column that is not declared, a value that the column cannot
                hold, or a dropped column that is declared.
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
        """Return the stored form of the columns; see :mod:`headrace.pipeline.state_schemas`."""
        sub, columns = self.column_types(place=place)
        return {
            "sub": {kind.name: {"type": str(kind.arrow)} for kind in sub},
            "columns": {kind.name: _column_facts(kind) for kind in columns},
            **({"ttl": self.ttl_domain.value} if self.ttl_us is not None else {}),
            **({"dropped": sorted(self.dropped)} if self.dropped else {}),
        }

    def describe(self, *, place: str) -> str:
        """Return a stable description of the type. The storage keeps it to detect changes."""
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


def _column_facts(kind: ColumnType) -> dict[str, Any]:
    if kind.added is None:
        return {"type": str(kind.arrow)}
    (value,) = np.array([kind.added], dtype=kind.dtype).tolist()
    return {"type": str(kind.arrow), "default": msgspec.to_builtins(value)}


class BatchContext(Protocol):
    """What a columnar handler can use besides its own state.

    Example::

        def process_batch(self, ctx, batch):
            ctx.produce("slowest", batch.keys, batch.max("ms"))
            ctx.produce("seen", batch.row_keys, {"page": batch["page"]})  # one for each record
    """

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
        """The input watermark of the previous step, in microseconds.

        Lateness is judged by it, and timers up to it have fired. This step's input has moved it on
        to ``low_watermark_us``.
        """
        ...

    @property
    def now(self) -> datetime:
        """The step's clock reading. It is the same if the step is computed again."""
        ...

    @property
    def clock_us(self) -> int:
        """The highest clock reading of any step so far, this one included, in microseconds.

        It is that of :attr:`now`, unless the clock has gone back. So it never goes back.
        """
        ...

    @property
    def input_ended(self) -> bool:
        """Whether no more input will come, because all injectors upstream have ended."""
        ...

    def drop_late(self, count: int) -> None:
        """Count records of this call as late instead of as processed.

        For code that gets late records (``default_late = "process"``) and judges lateness itself
        (``judges_late = True``).
        """
        ...

    def produce(
        self,
        stream: str,
        keys: Keys,
        values: Any,
        *,
        timestamps_us: npt.NDArray[np.int64] | int | None = None,
    ) -> None:
        """Produce one record for each of the given keys on an output stream.

        Args:
            stream: the name of a declared output.
            keys: the key of each record; a key may occur more than once.
            values: column → array, an Arrow record batch or, for a scalar type, the array itself.
            timestamps_us: event times. They default to ``keys.times_us``, the times of the causes.
                Never before the key's earliest cause in this call.
        """
        ...

    def post(
        self,
        keys: Keys,
        values: Any,
        *,
        times_us: npt.NDArray[np.int64] | int,
        stream: str | None = None,
    ) -> None:
        """Send a record to each of some keys, to arrive when the input watermark reaches its time.

        Due posts arrive in ``process_batch``, as a batch whose ``stream`` is the name of the
        declared :class:`headrace.Posted`. The posts of a key ascend by time; posts of equal time
        keep the order in which they were sent. A post that is sent behind the watermark arrives in
        the same step.

        Args:
            keys: the key of each record; a key may occur more than once.
            values: as for :meth:`produce`.
            times_us: the records' event times. Never before the key's earliest cause in this call.
            stream: the name of a ``Posted``. It may be omitted if only one is declared.
        """
        ...


class ColumnarComputation(UserCode):
    """Base class of user code that works on many keys at once.

    :mod:`headrace.computation.columnar` describes its lifecycle, with an example.

    Example::

        class Visits(hr.ColumnarComputation):
            counts = hr.TableState({"visits": int})
            totals = hr.Output(int)

            def process_batch(self, ctx, batch):
                rows = self.counts.at(batch.keys)
                rows.upsert(visits=rows["visits"] + batch.counts)
                ctx.produce("totals", batch.keys, rows["visits"])
    """

    on_records = "process_batch"
    on_timers = "process_timers"
    state_kinds = ("table",)

    def process_batch(self, ctx: Any, batch: KeyedBatch) -> None:
        """Process the step's records, or due posts, of one stream."""
        raise NotImplementedError

    def process_timers(self, ctx: Any, fired: FiredBatch) -> None:
        """Process the due timers of one name."""
        raise NotImplementedError

    def recompute(self, ctx: Any, output: str, keys: Keys) -> None:
        """Produce the rows that all changes on an output add up to, of some keys.

        It is called for the outputs in ``recomputes``, after a step, if a computation was added that
        begins with these rows. It reads state, and changes none.
        """
        raise NotImplementedError


class StepComputation(ColumnarComputation):
    """Base class of columnar code that sees the records of all its streams at once, once a step.

    Use it if what a step produces follows from all of its input: a pair and the row that it
    replaces, a ranking, a difference of two streams. A :class:`ColumnarComputation` is called for
    one stream after the other, and could only produce a result and take it back.

    ``process_step`` is called in place of ``process_batch``, if the step has any record. Timers
    follow as usual. It cannot have posts, and cannot be ``ordered``. The one rule holds here too: a
    call may be cut in two between any two records.

    Example::

        class Balance(hr.StepComputation):
            open = hr.TableState({"cents": int})
            out = hr.Output(int)

            def process_step(self, ctx, batches):
                for sign, stream in ((1, "credits"), (-1, "debits")):
                    if stream in batches:
                        rows = self.open.at(batches[stream].keys)
                        rows.upsert(cents=rows["cents"] + sign * batches[stream].sum("cents"))
                keys = batches.keys_of_all
                ctx.produce("out", keys, self.open.at(keys)["cents"])
    """

    on_records = "process_step"

    def process_step(self, ctx: Any, batches: StepBatches) -> None:
        """Process the step's records of all streams."""
        raise NotImplementedError
