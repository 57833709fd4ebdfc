"""Lookup: each record with the row that a slowly changing table had for its key at its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headrace.computation.batches import FiredBatch, KeyedBatch, Keys
from headrace.computation.columnar import BatchContext, ColumnarComputation, TableState
from headrace.computation.computation import InputStream
from headrace.computation.declarations import Declaration, Output, PassedTimer, Timer
from headrace.computation.table_handles import TableHandle
from headrace.errors import PipelineError
from headrace.eventtime.domains import EVENT_TIME
from headrace.ops.columns import (
    I64,
    distinct_names,
    expect_inputs,
    place_of,
    spread,
    starts_of,
    with_nulls,
)
from headrace.ops.payload import Payload, Stored, joined, taken


class Lookup(ColumnarComputation):
    """Each record of a stream, with the version of its key's row that was valid at its event time.

    The first input in ``keys=`` is the stream, the second one is the table. Each record of the
    table is a *version* of its key's row. It is valid from its event time until that of the next
    one. Of two versions of one time, the one that arrived later counts. The productions on ``out``
    have the columns of the record, followed by those of the version.

    Args:
        how: ``"left"``: a record without a valid version goes on with nulls. ``"inner"``: it does
            not go on.
        wait: whether a record waits until the watermark has passed it, so that all versions that it
            may meet have come. Then the result does not depend on how the input was divided into
            steps. If False, a record is matched at once, with the versions known by then: those of
            earlier steps and, with ``table=0``, of this step.
        table: which input is the table: 1 for the second one, 0 for the first one.
        stream_columns, table_columns: the columns that go on; by default all.
        suffix: what is appended to the names of the table's columns that the stream has too.

    Late records of the stream are dropped and counted. Late versions are accepted. A version is
    forgotten when the watermark has reached the next one, since no further record can meet it.

    State: the last version of each key, which is never removed; earlier versions that records may
    still meet; with ``wait``, the records that wait. Cost: for each record the versions of its key,
    usually one, and for each version the versions of its key.

    Example::

        euros = hr.ops.Lookup(table_columns=["rate"])
        p.compute("euros", euros, keys={payments: "currency", rates: "currency"})

    Raises:
        PipelineError: for invalid arguments. When the pipeline is built, for columns that cannot be
            kept or named.
    """

    deterministic = True

    # Lateness is judged here: late versions are accepted, late records are not.
    default_late = "process"
    judges_late = True

    heads: TableHandle
    versions: TableHandle
    waiting_heads: TableHandle
    waiting: TableHandle
    due: Any
    old: Any

    def __init__(
        self,
        how: Literal["left", "inner"] = "left",
        *,
        wait: bool = True,
        table: int = 1,
        stream_columns: Sequence[str] | None = None,
        table_columns: Sequence[str] | None = None,
        suffix: str = "_table",
    ) -> None:
        if how not in ("left", "inner") or table not in (0, 1):
            raise PipelineError(
                f"how={how!r}, table={table!r}: how is 'left' or 'inner', table is 0 or 1",
                place="ops.Lookup",
            )
        self._inner = how == "inner"
        self._wait = wait
        self._number = table
        self._chosen = (stream_columns, table_columns)
        self._suffix = suffix

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        place = place_of(self, inputs)
        expect_inputs(inputs, 2, place)
        table, stream = inputs[self._number], inputs[1 - self._number]
        self._table = table.name
        self._record = Payload(stream, self._chosen[0], place)
        self._version = Payload(table, self._chosen[1], place)
        names = {field.name for field in self._record.fields}
        self._renamed = {
            f.name: f.name + (self._suffix if f.name in names else "") for f in self._version.fields
        }
        fields = list(self._record.fields)
        for field in self._version.fields:
            nullable = field.nullable or not self._inner
            fields.append(field.with_name(self._renamed[field.name]).with_nullable(nullable))
        distinct_names((field.name for field in fields), place)
        found: dict[str, Declaration | Output] = {
            "heads": TableState({"count": int}),
            "versions": TableState({"at": int, **self._version.columns}, sub={"number": int}),
            "old": Timer(EVENT_TIME),
            "out": Output(pa.schema(fields)),
        }
        if self._wait:
            waiting = TableState(self._record.columns, sub={"at": int, "number": int})
            found["waiting_heads"] = TableState({"count": int}, sub={"at": int})
            found["waiting"] = waiting
            found["due"] = PassedTimer()  # fires before "old", since timers fire by name
        return found

    # -- records ------------------------------------------------------------------------------

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        if batch.stream == self._table:
            self._learn(batch)
            return
        late = batch.timestamps_us < ctx.low_watermark_before_us
        if late.any():
            ctx.drop_late(int(late.sum()))
            if late.all():
                return
            batch = batch.where(~late)
        if self._wait:
            self._hold_back(batch)
            return
        records = self._record.of(batch)
        self._match(
            ctx, batch.keys, batch.group_of_row, batch.timestamps_us, batch.row_keys, records
        )

    def _hold_back(self, batch: KeyedBatch) -> None:
        parts = batch.by(at=batch.timestamps_us)
        times, group = parts.sub["at"], parts.group_of_row
        heads = self.waiting_heads.at(parts.keys, at=times)
        before, fresh = heads["count"], ~heads.exists
        heads.upsert(count=before + parts.counts)
        numbers = before[group] + parts.ranks
        rows = self.waiting.at(parts.row_keys, at=times[group], number=numbers)
        rows.upsert(**self._record.of(parts))
        self.due.set(parts.keys[fresh], times[fresh], tags=times[fresh])

    def _match(
        self,
        ctx: BatchContext,
        keys: Keys,
        groups: I64,
        times: I64,
        row_keys: Keys,
        records: Stored,
    ) -> None:
        """Produce records with the versions that they meet.

        Args:
            ctx: the context of the handler.
            keys: the keys, each once.
            groups: for each record, the position of its key.
            times: the event time of each record.
            row_keys: the key with which each record is produced.
            records: the columns of the records.
        """
        at, versions = self._known(keys, self.heads.at(keys)["count"])
        met = _as_of(at, versions["at"], groups, times)
        if self._inner:
            rows = np.flatnonzero(met >= 0)
            met, row_keys, records = met[rows], row_keys[rows], taken(records, rows)
        values = self._record.arrow(records)
        if len(at):
            found = self._version.arrow(taken(versions, np.maximum(met, 0)))
            found = {name: with_nulls(array, met >= 0) for name, array in found.items()}
        else:
            found = {f.name: pa.nulls(len(met), f.type) for f in self._version.fields}
        values |= {self._renamed[name]: array for name, array in found.items()}
        ctx.produce("out", row_keys, values)

    # -- versions -----------------------------------------------------------------------------

    def _known(self, keys: Keys, counts: I64) -> tuple[I64, Stored]:
        """Return the kept versions of some keys: the positions of their keys, and their columns."""
        at, numbers = spread(counts)
        rows = self.versions.at(keys[at], number=numbers)
        return at, {"at": rows["at"], **self._version.read(rows)}

    def _learn(self, batch: KeyedBatch) -> None:
        """Add new versions."""
        counts = self.heads.at(batch.keys)["count"]
        at, known = self._known(batch.keys, counts)
        both = joined(known, {"at": batch.timestamps_us, **self._version.of(batch)})
        groups = np.concatenate([at, batch.group_of_row])
        order = np.lexsort((both["at"], groups))
        times = both["at"][order]
        same = (groups[order][1:] == groups[order][:-1]) & (times[1:] == times[:-1])
        order = order[np.append(~same, True)]  # of versions of one time, the last
        self._write(batch.keys, counts, groups[order], taken(both, order))

    def _write(self, keys: Keys, before: I64, groups: I64, versions: Stored) -> None:
        """Store these versions for their keys, and delete rows beyond them."""
        counts = np.bincount(groups, minlength=len(keys))
        firsts = starts_of(groups)
        numbers = np.arange(len(groups)) - np.repeat(firsts, counts[counts > 0])
        self.versions.at(keys[groups], number=numbers).upsert(**versions)
        at, extra = spread(np.maximum(before - counts, 0))
        self.versions.at(keys[at], number=counts[at] + extra).delete()
        self.heads.at(keys).upsert(count=counts)
        second = np.flatnonzero(numbers == 1)
        self.old.set(keys[groups[second]], versions["at"][second])

    # -- what the watermark brings ------------------------------------------------------------

    def process_timers(self, ctx: BatchContext, fired: FiredBatch) -> None:
        if fired.name == "old":
            self._forget(ctx, fired.keys)
            return
        heads = self.waiting_heads.at(fired.keys, at=fired.tags)
        at, numbers = spread(heads["count"])
        rows = self.waiting.at(fired.keys[at], at=fired.tags[at], number=numbers)
        starts = fired.keys.starts
        key_of = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(fired)))
        records = self._record.read(rows)
        row_keys = fired.keys[at]
        self._match(ctx, fired.keys[starts], key_of[at], fired.tags[at], row_keys, records)
        rows.delete()
        heads.delete()

    def _forget(self, ctx: BatchContext, keys: Keys) -> None:
        """Delete versions whose successor the watermark has reached."""
        counts = self.heads.at(keys)["count"]
        at, known = self._known(keys, counts)
        reached = known["at"] <= ctx.low_watermark_us
        followed = np.append((at[1:] == at[:-1]) & reached[1:], False)
        self._write(keys, counts, at[~followed], taken(known, ~followed))


def _as_of(version_of: I64, versions: I64, record_of: I64, records: I64) -> I64:
    """Return, for each record, the last version of its group at or before it; -1 for none.

    Args:
        version_of, record_of: the group of each version, and of each record.
        versions, records: their times.
    """
    groups = np.concatenate([version_of, record_of])
    is_record = np.arange(len(groups)) >= len(version_of)
    order = np.lexsort((is_record, np.concatenate([versions, records]), groups))
    ordered = groups[order]
    place = np.maximum.accumulate(np.where(is_record[order], -1, np.arange(len(order))))
    there = (place >= 0) & (ordered[np.maximum(place, 0)] == ordered)
    met: I64 = np.full(len(groups), -1, dtype=np.int64)
    met[order] = np.where(there, order[np.maximum(place, 0)], -1)
    return met[len(version_of) :]
