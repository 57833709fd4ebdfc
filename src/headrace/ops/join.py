"""Join of two streams by key, within a bound of event time.

The records of each side are kept until the watermark shows that no partner can come. They lie in
*buckets* of event time, and are numbered within their bucket. So a record finds its partners
directly, and a bucket that is over is removed as a whole.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headrace.computation.batches import FiredBatch, KeyedBatch
from headrace.computation.columnar import BatchContext, ColumnarComputation, TableState
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration, Output, Timer
from headrace.errors import PipelineError
from headrace.eventtime.domains import EVENT_TIME
from headrace.eventtime.durations import DurationLike, duration_micros
from headrace.ops.columns import I64, distinct_names, expect_inputs, place_of, spread
from headrace.ops.payload import Payload, Stored, taken

How = Literal["inner", "left", "right", "full"]
Within = DurationLike | tuple[DurationLike, DurationLike] | None

#: Number of buckets in the bound. With more, unmatched records go on sooner; each costs look-ups.
_BUCKETS = 4
LEFT, RIGHT = "left", "right"


class _Side:
    """One input of a join.

    Attributes:
        name: ``left`` or ``right``. The names of its tables start with it.
        outer: whether its records go on without a partner.
        low, high: a record at *t* has partners in [*t* + low, *t* + high].
        stream: the name of the input stream.
        payload: the columns that are kept of its records.
        renamed: the name in the output of each of these columns.
    """

    def __init__(self, name: str, outer: bool, low: int, high: int) -> None:
        self.name, self.outer, self.low, self.high = name, outer, low, high
        self.stream = ""
        self.payload: Payload
        self.renamed: dict[str, str] = {}

    def columns(self, stored: Stored) -> dict[str, pa.Array]:
        """Return stored records as columns of the output."""
        return {self.renamed[name]: array for name, array in self.payload.arrow(stored).items()}

    def nothing(self, length: int) -> dict[str, pa.Array]:
        """Return nulls in place of partners, as columns of the output."""
        return {self.renamed[f.name]: pa.nulls(length, f.type) for f in self.payload.fields}


class Join(ColumnarComputation):
    """Pairs of records of two streams with the same key, and event times within a bound.

    The first stream in ``keys=`` is the left one. A pair is produced on ``out`` as a record with
    the columns of both. It is produced in the step in which the later of the two arrives, at the
    later of their event times.

    Args:
        how: ``"inner"`` produces pairs. ``"left"``, ``"right"`` and ``"full"`` also produce the
            records of that side, or of both, that find no partner, with nulls in its place. That
            happens once the watermark shows that no partner can come: when it is ``within`` after
            them, or up to a quarter of the bound's width later.
        within: the bound. A duration *d* means ``|t_right - t_left| <= d``. A pair (lowest,
            highest) of durations means ``lowest <= t_right - t_left <= highest``. None pairs any
            two records; then ``how`` must be ``"inner"``, and state is never removed.
        left, right: the columns of each side that go on; by default all.
        suffix: what is appended to the names of right columns that the left side has too.

    Guarantees: for records on time, the pairs do not depend on how the input was divided into
    steps. Late records are dropped and counted. With ``late="process"``, they meet what is still
    kept.

    State: the columns of each record, until no partner can come; a row and a timer for each quarter
    of the bound. Cost: for each record about six look-ups, and the records of its key within the
    bound.

    Example::

        join = hr.ops.Join(how="left", within=("0s", "1h"))
        paid = p.compute("paid", join, keys={orders: "id", payments: "order"})

    Raises:
        PipelineError: for an invalid bound. When the pipeline is built, for columns that cannot be
            kept or named.
    """

    deterministic = True

    def __init__(
        self,
        how: How = "inner",
        *,
        within: Within = None,
        left: Sequence[str] | None = None,
        right: Sequence[str] | None = None,
        suffix: str = "_right",
    ) -> None:
        if how not in ("inner", "left", "right", "full"):
            raise PipelineError(
                f"how={how!r} is not 'inner', 'left', 'right' or 'full'", place="ops.Join"
            )
        if within is None and how != "inner":
            raise PipelineError(
                f"a {how} join without a bound would wait forever for partners",
                place="ops.Join",
                remedy='give it within="1h", or use how="inner"',
            )
        self._bounded = within is not None
        low, high = _bounds(within)
        self._width = (high - low) // _BUCKETS + 1
        self._left = _Side(LEFT, how in ("left", "full"), low, high)
        self._right = _Side(RIGHT, how in ("right", "full"), -high, -low)
        self._chosen = {LEFT: left, RIGHT: right}
        self._suffix = suffix

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        place = place_of(self, inputs)
        expect_inputs(inputs, 2, place)
        # Copied, since the same object may be used in another pipeline with other streams.
        self._left, self._right = copy.copy(self._left), copy.copy(self._right)
        found: dict[str, Declaration | Output] = {}
        fields: list[pa.Field] = []
        for side, other, stream in (
            (self._left, self._right, inputs[0]),
            (self._right, self._left, inputs[1]),
        ):
            side.stream, side.renamed = stream.name, {}
            side.payload = Payload(stream, self._chosen[side.name], place)
            taken_names = {field.name for field in fields}
            for field in side.payload.fields:
                new = field.name + (self._suffix if field.name in taken_names else "")
                side.renamed[field.name] = new
                fields.append(field.with_name(new).with_nullable(field.nullable or other.outer))
            matched = {"matched": pa.bool_()} if side.outer else {}
            columns = {"at": pa.int64(), **matched, **side.payload.columns}
            found[f"{side.name}_heads"] = TableState({"count": int}, sub={"bucket": int})
            found[f"{side.name}_rows"] = TableState(columns, sub={"bucket": int, "number": int})
            if self._bounded:
                found[f"{side.name}_over"] = Timer(EVENT_TIME)
        distinct_names((field.name for field in fields), place)
        return {**found, "out": Output(pa.schema(fields))}

    def _table(self, side: _Side, what: str) -> Any:
        return getattr(self, f"{side.name}_{what}")

    def _bucket(self, times: I64) -> I64:
        return times // self._width if self._bounded else np.zeros(len(times), dtype=np.int64)

    # -- records ------------------------------------------------------------------------------

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        own, other = self._left, self._right
        if batch.stream != own.stream:
            own, other = other, own
        stored = {"at": batch.timestamps_us, **own.payload.of(batch)}
        found = self._pair(ctx, batch, stored, own, other)
        if own.outer:
            stored["matched"] = found
        self._keep(batch, stored, own)

    def _pair(
        self, ctx: BatchContext, batch: KeyedBatch, stored: Stored, own: _Side, other: _Side
    ) -> Any:
        """Produce the pairs of new records with kept ones. Return which records found a partner."""
        times = batch.timestamps_us
        first, last = self._bucket(times + own.low), self._bucket(times + own.high)
        at, step = spread(last - first + 1)
        buckets = first[at] + step
        counts = self._table(other, "heads").at(batch.row_keys[at], bucket=buckets)["count"]
        spot, numbers = spread(counts)
        mine, buckets = at[spot], buckets[spot]
        rows = self._table(other, "rows").at(batch.row_keys[mine], bucket=buckets, number=numbers)
        apart = rows["at"] - times[mine]
        near = np.ones(len(mine), dtype=np.bool_)
        if self._bounded:
            near = (own.low <= apart) & (apart <= own.high)
        mine, buckets, numbers = mine[near], buckets[near], numbers[near]
        partners = taken({"at": rows["at"], **other.payload.read(rows)}, near)
        values = {**own.columns(taken(stored, mine)), **other.columns(partners)}
        keys = batch.row_keys[mine]
        later = np.maximum(times[mine], partners["at"])
        ctx.produce("out", keys, values, timestamps_us=later)
        if other.outer:
            self._mark(batch, other, mine, buckets, numbers, rows["matched"][near])
        found = np.zeros(len(batch), dtype=np.bool_)
        found[mine] = True
        return found

    def _mark(
        self, batch: KeyedBatch, side: _Side, mine: I64, buckets: I64, numbers: I64, known: Any
    ) -> None:
        """Mark the kept records that have found their first partner."""
        new = np.flatnonzero(~known)
        places = np.stack([batch.group_of_row[mine[new]], buckets[new], numbers[new]])
        _, once = np.unique(places, axis=1, return_index=True)
        new = new[np.sort(once)]
        rows = self._table(side, "rows")
        keys = batch.row_keys[mine[new]]
        rows.at(keys, bucket=buckets[new], number=numbers[new]).upsert(matched=True)

    def _keep(self, batch: KeyedBatch, stored: Stored, side: _Side) -> None:
        parts = batch.by(bucket=self._bucket(batch.timestamps_us))
        bucket = parts.sub["bucket"]
        heads = self._table(side, "heads").at(parts.keys, bucket=bucket)
        before, fresh = heads["count"], ~heads.exists
        heads.upsert(count=before + parts.counts)
        group = parts.group_of_row
        rows = self._table(side, "rows")
        at = rows.at(parts.row_keys, bucket=bucket[group], number=before[group] + parts.ranks)
        at.upsert(**taken(stored, parts.positions))
        if self._bounded:
            # A bucket is over when no partner can come for its latest possible record.
            over = (bucket[fresh] + 1) * self._width + side.high
            self._table(side, "over").set(parts.keys[fresh], over, tags=bucket[fresh])

    # -- buckets that are over ----------------------------------------------------------------

    def process_timers(self, ctx: BatchContext, fired: FiredBatch) -> None:
        own, other = self._left, self._right
        if not fired.name.startswith(own.name):
            own, other = other, own
        heads = self._table(own, "heads").at(fired.keys, bucket=fired.tags)
        at, numbers = spread(heads["count"])
        rows = self._table(own, "rows").at(fired.keys[at], bucket=fired.tags[at], number=numbers)
        if own.outer:
            alone = np.flatnonzero(~rows["matched"])
            kept = taken({"at": rows["at"], **own.payload.read(rows)}, alone)
            values = {**own.columns(kept), **other.nothing(len(alone))}
            times = np.maximum(kept["at"], fired.times_us[at[alone]])
            ctx.produce("out", fired.keys[at[alone]], values, timestamps_us=times)
        rows.delete()
        heads.delete()


def _bounds(within: Within) -> tuple[int, int]:
    """Return the lowest and the highest value of ``t_right - t_left`` for a pair.

    Raises:
        PipelineError: if no time lies in between.
    """
    if within is None:
        return 0, 0
    if isinstance(within, tuple):
        low, high = (duration_micros(bound, "within", place="ops.Join") for bound in within)
    else:
        high = duration_micros(within, "within", place="ops.Join")
        low = -high
    if low > high:
        raise PipelineError(
            f"within={within!r} leaves no time for a partner",
            place="ops.Join",
            remedy="give a duration, or a pair (lowest, highest) of t_right - t_left",
        )
    return low, high
