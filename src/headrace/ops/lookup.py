"""Lookup: each record with the rows that slowly changing tables had for its key at its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

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


class _Table(NamedTuple):
    """One table of a lookup.

    Attributes:
        stream: the stream of its versions.
        number: its number among the tables, from 1.
        payload: its columns as they are kept.
        names: the names of its columns in productions.
    """

    stream: str
    number: int
    payload: Payload
    names: dict[str, str]

    @property
    def _suffix(self) -> str:
        return str(self.number) if self.number > 1 else ""

    @property
    def heads(self) -> str:
        """The name of the state with how many versions each key has."""
        return f"heads{self._suffix}"

    @property
    def versions(self) -> str:
        """The name of the state with the versions."""
        return f"versions{self._suffix}"

    @property
    def old(self) -> str:
        """The name of the timer by which versions are forgotten."""
        return f"old{self._suffix}"


class Lookup(ColumnarComputation):
    """Each record of a stream, with the version of its key's row that was valid at its event time.

    The first input in ``keys=`` is the stream, the second one is the table. Each record of the
    table is a *version* of its key's row. It is valid from its event time until that of the next
    one. Of two versions of one time, the one that arrived later counts. The productions on ``out``
    have the columns of the record, followed by those of the version.

    There may be several tables with the same key: further inputs. Their columns follow in the order
    of ``keys=``. For tables with other keys, chain lookups.

    Args:
        how: ``"left"``: a record without a valid version goes on with nulls. ``"inner"``: it goes
            on only if each table has a valid version.
        wait: whether a record waits until the watermark has passed it, so that all versions that it
            may meet have come. Then the result does not depend on how the input was divided into
            steps. If False, a record is matched at once, with the versions known by then: those of
            earlier steps and, with ``table=0``, of this step.
        table: where the tables are among the inputs: 1 for behind the stream, 0 for before it.
        stream_columns, table_columns: the columns that go on; by default all. With several tables,
            ``table_columns`` is a dict by the names of their streams.
        suffix: what is appended to the names of the table's columns that the stream has too. The
            columns of a second table get ``<suffix>2`` if an earlier input has them, and so on.

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

    waiting_heads: TableHandle
    waiting: TableHandle
    due: Any

    def __init__(
        self,
        how: Literal["left", "inner"] = "left",
        *,
        wait: bool = True,
        table: int = 1,
        stream_columns: Sequence[str] | None = None,
        table_columns: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        suffix: str = "_table",
    ) -> None:
        if how not in ("left", "inner") or table not in (0, 1):
            raise PipelineError(
                f"how={how!r}, table={table!r}: how is 'left' or 'inner', table is 0 or 1",
                place="ops.Lookup",
            )
        self._inner = how == "inner"
        self._wait = wait
        self._tables_first = table == 0
        self._chosen = stream_columns
        self._chosen_of_tables = table_columns
        self._suffix = suffix

    def declare(self, inputs: Sequence[InputStream]) -> Mapping[str, Declaration | Output]:
        place = place_of(self, inputs)
        if len(inputs) < 2:
            expect_inputs(inputs, 2, place)
        *tables, stream = inputs if self._tables_first else [*inputs[1:], inputs[0]]
        self._record = Payload(stream, self._chosen, place)
        fields = list(self._record.fields)
        self._tables = []
        for number, table in enumerate(tables, 1):
            payload = Payload(table, self._columns_of(table, tables, place), place)
            known = {field.name for field in fields}
            suffix = self._suffix + (str(number) if number > 1 else "")
            names = {f.name: f.name + (suffix if f.name in known else "") for f in payload.fields}
            self._tables.append(_Table(table.name, number, payload, names))
            for field in payload.fields:
                nullable = field.nullable or not self._inner
                fields.append(field.with_name(names[field.name]).with_nullable(nullable))
        distinct_names((field.name for field in fields), place)
        found: dict[str, Declaration | Output] = {"out": Output(pa.schema(fields))}
        for of in self._tables:
            found[of.heads] = TableState({"count": int})
            found[of.versions] = TableState({"at": int, **of.payload.columns}, sub={"number": int})
            found[of.old] = Timer(EVENT_TIME)
        if self._wait:
            waiting = TableState(self._record.columns, sub={"at": int, "number": int})
            found["waiting_heads"] = TableState({"count": int}, sub={"at": int})
            found["waiting"] = waiting
            found["due"] = PassedTimer()  # fires before "old", since timers fire by name
        return found

    def _columns_of(
        self, table: InputStream, tables: Sequence[InputStream], place: str
    ) -> Sequence[str] | None:
        """Return the columns of a table that go on; None for all."""
        chosen = self._chosen_of_tables
        if not isinstance(chosen, Mapping):
            if chosen is not None and len(tables) > 1:
                raise PipelineError(
                    f"table_columns={chosen!r} does not say of which table",
                    place=place,
                    remedy=f"give a dict by stream: {{{tables[0].name!r}: [...]}}",
                )
            return chosen
        unknown = [name for name in chosen if name not in {one.name for one in tables}]
        if unknown:
            raise PipelineError(
                f"table_columns names {unknown[0]!r}, which is none of its tables",
                place=place,
                remedy=f"its tables are: {', '.join(one.name for one in tables)}",
            )
        return chosen.get(table.name)

    # -- records ------------------------------------------------------------------------------

    def process_batch(self, ctx: BatchContext, batch: KeyedBatch) -> None:
        for table in self._tables:
            if batch.stream == table.stream:
                self._learn(table, batch)
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
        rows: I64 = np.arange(len(times))
        met_in: list[tuple[I64, I64, Stored]] = []
        for table in self._tables:
            counts = self._handle(table.heads).at(keys)["count"]
            at, versions = self._known(table, keys, counts)
            met = _as_of(at, versions["at"], groups, times)
            met_in.append((met, at, versions))
            if self._inner:
                rows = rows[met[rows] >= 0]
        if self._inner:
            row_keys, records = row_keys[rows], taken(records, rows)
        values = self._record.arrow(records)
        for table, (met, at, versions) in zip(self._tables, met_in, strict=True):
            values |= _shown(table, met[rows], at, versions)
        ctx.produce("out", row_keys, values)

    # -- versions -----------------------------------------------------------------------------

    def _handle(self, name: str) -> Any:
        """Return the handle of a declared table or timer."""
        return getattr(self, name)

    def _known(self, table: _Table, keys: Keys, counts: I64) -> tuple[I64, Stored]:
        """Return the kept versions of some keys: the positions of their keys, and their columns."""
        at, numbers = spread(counts)
        rows = self._handle(table.versions).at(keys[at], number=numbers)
        return at, {"at": rows["at"], **table.payload.read(rows)}

    def _learn(self, table: _Table, batch: KeyedBatch) -> None:
        """Add new versions."""
        counts = self._handle(table.heads).at(batch.keys)["count"]
        at, known = self._known(table, batch.keys, counts)
        both = joined(known, {"at": batch.timestamps_us, **table.payload.of(batch)})
        groups = np.concatenate([at, batch.group_of_row])
        order = np.lexsort((both["at"], groups))
        times = both["at"][order]
        same = (groups[order][1:] == groups[order][:-1]) & (times[1:] == times[:-1])
        order = order[np.append(~same, True)]  # of versions of one time, the last
        self._write(table, batch.keys, counts, groups[order], taken(both, order))

    def _write(self, table: _Table, keys: Keys, before: I64, groups: I64, versions: Stored) -> None:
        """Store these versions for their keys, and delete rows beyond them."""
        counts = np.bincount(groups, minlength=len(keys))
        firsts = starts_of(groups)
        numbers = np.arange(len(groups)) - np.repeat(firsts, counts[counts > 0])
        stored = self._handle(table.versions)
        stored.at(keys[groups], number=numbers).upsert(**versions)
        at, extra = spread(np.maximum(before - counts, 0))
        stored.at(keys[at], number=counts[at] + extra).delete()
        self._handle(table.heads).at(keys).upsert(count=counts)
        second = np.flatnonzero(numbers == 1)
        self._handle(table.old).set(keys[groups[second]], versions["at"][second])

    # -- what the watermark brings ------------------------------------------------------------

    def process_timers(self, ctx: BatchContext, fired: FiredBatch) -> None:
        for table in self._tables:
            if fired.name == table.old:
                self._forget(table, ctx, fired.keys)
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

    def _forget(self, table: _Table, ctx: BatchContext, keys: Keys) -> None:
        """Delete versions whose successor the watermark has reached."""
        counts = self._handle(table.heads).at(keys)["count"]
        at, known = self._known(table, keys, counts)
        reached = known["at"] <= ctx.low_watermark_us
        followed = np.append((at[1:] == at[:-1]) & reached[1:], False)
        self._write(table, keys, counts, at[~followed], taken(known, ~followed))


def _shown(table: _Table, met: I64, at: I64, versions: Stored) -> dict[str, pa.Array]:
    """Return the columns of the versions that records meet; -1 for none."""
    if len(at):
        found = table.payload.arrow(taken(versions, np.maximum(met, 0)))
        found = {name: with_nulls(array, met >= 0) for name, array in found.items()}
    else:
        found = {f.name: pa.nulls(len(met), f.type) for f in table.payload.fields}
    return {table.names[name]: array for name, array in found.items()}


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
