"""What sinks to tables have in common: whose deliveries a table has, and what comes next."""

from __future__ import annotations

import hashlib
import random
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

import pyarrow as pa

from headrace.errors import Fenced, HeadraceError, PipelineError, SinkConflict, StorageError
from headrace.errors.user_code import error_text
from headrace.pipeline.sink import Deliverer, Delivery, Sink
from headrace.sinks.conflicts import belongs_to, superseded
from headrace.sinks.table_columns import Changes, Leaf, TableColumns

#: How often a delivery is tried that conflicts with those of other writers, and the longest pause.
_ATTEMPTS = 30
_LONGEST_PAUSE_S = 1.0

_Result = TypeVar("_Result")


class TableOptions(TypedDict, total=False):
    """Options that all sinks of tables have.

    Attributes:
        keys: the columns of the table by which ``mode="upsert"`` finds rows again. They may not be
            null. If a delivery has several rows of a key, the last one wins.
        deletes: in ``upsert``, a column of booleans of the stream: whether a row deletes the row of
            its keys, such as ``"_deleted"`` of a :class:`headrace.zsets.View`. It is no column of
            the table. A row that is not there is deleted without a word. By default nothing is
            deleted.
        columns: the columns to write: a list of names, or a mapping of names in the stream to names
            in the table. By default all.
        take_over: whether to go on in a table to which this sink has delivered from another
            storage. By default that is refused.

    Example::

        options: hr.sinks.TableOptions = {"keys": ["key"], "columns": ["key", "value"]}
        p.sink("totals", visits, hr.sinks.Delta("out/totals", mode="upsert", **options))
    """

    keys: Sequence[str]
    deletes: str | None
    columns: Sequence[str] | Mapping[str, str] | None
    take_over: bool


class TableSink(Sink):
    """A sink that writes the rows of a delivery and its id in one transaction of a table.

    Args:
        kind: what the table is, for errors.
        leaf: the types that it can hold.
        mode: what a delivery does; one of ``modes``.
        options: see :class:`TableOptions`.
    """

    idempotent = True

    def __init__(
        self,
        kind: str,
        leaf: Leaf,
        *,
        mode: str,
        modes: Sequence[str],
        options: TableOptions,
    ) -> None:
        unknown = sorted(options.keys() - TableOptions.__annotations__.keys())
        if unknown:
            raise TypeError(f"sinks.{type(self).__name__} has no option {unknown[0]!r}")
        keys, deletes = options.get("keys", ()), options.get("deletes")
        if mode not in modes:
            raise PipelineError(f"mode={mode!r}", remedy=f"use {' or '.join(modes)}")
        if isinstance(keys, str):
            raise PipelineError(
                f"keys={keys!r} is one text, and no list of names",
                remedy=f"give a list: keys=[{keys!r}]",
            )
        if (mode == "upsert") != bool(keys):
            raise PipelineError(
                f"mode={mode!r} with keys={list(keys)!r}",
                remedy='name the columns that make a row: mode="upsert", keys=["key"]; other modes '
                "have no keys",
            )
        if deletes is not None and mode != "upsert":
            raise PipelineError(
                f"deletes={deletes!r} with mode={mode!r}",
                remedy='only mode="upsert" deletes rows, by their keys=',
            )
        self._mode = mode
        self._keys = list(keys)
        self._columns = TableColumns(kind, leaf, options.get("columns"), keys, deletes)
        self._declared: pa.Schema | None = None
        self._may_take_over = options.get("take_over", False)
        self._run: Deliverer | None = None

    @property
    @abstractmethod
    def _place(self) -> str:
        """The table, for people; without passwords."""

    def target(self) -> str:
        return self._place

    def check(self, columns: pa.Schema) -> None:
        """Refuse columns that the table cannot have."""
        self._declared = self._columns.schema(columns)
        self._columns.check_present(columns)

    def begin(self, deliverer: Deliverer) -> None:
        """Check that the table can take the deliveries of a run.

        Raises:
            SinkConflict: if this sink of another storage has written to the table, or if the table
                has other columns.
        """
        run = self._run
        if run is not None and _sink_of(run) != _sink_of(deliverer):
            raise PipelineError(
                f"one {type(self).__name__} is the sink {run.sink!r} of pipeline {run.pipeline!r}, "
                f"and {deliverer.sink!r} of {deliverer.pipeline!r}",
                place=self._place,
                remedy="make one for each",
            )
        self._open(deliverer)
        self._run = deliverer

    @abstractmethod
    def _open(self, deliverer: Deliverer) -> None:
        """Check whose the table is, and its columns."""

    def deliver(self, step: int, rows: pa.Table) -> None:
        self.receive(Delivery(step, step, rows, {}))

    def receive(self, delivery: Delivery) -> None:
        if self._run is None:
            raise PipelineError(
                "a delivery came before begin()",
                place=self._place,
                remedy="call begin(deliverer) first: the table records whose delivery it is",
            )
        self._write(self._run, delivery, self._columns.changes(delivery.rows))

    @abstractmethod
    def _write(self, run: Deliverer, delivery: Delivery, changes: Changes) -> None:
        """Write the changes and the id of their delivery, unless the table has it."""

    def close(self) -> None:
        self._run = None

    def _belongs_to(self, pipeline: str, sink: str, storage: str) -> SinkConflict:
        return belongs_to("table", pipeline, sink, storage, self._place)

    def _failed(self, error: Exception) -> HeadraceError:
        if isinstance(error, HeadraceError):
            return error
        return StorageError(
            f"the table could not be written: {error_text(error)}",
            place=self._place,
            remedy="the step is committed, and is delivered again at the next start",
        )

    def _superseded(self, epoch: int, newer: int) -> Fenced:
        return superseded("table", epoch, newer, self._place)


def _sink_of(run: Deliverer) -> tuple[str, str, str]:
    return run.lineage, run.pipeline, run.sink


def check_installed(sink: str, extra: str, missing: ImportError | None) -> None:
    """Check that the package of a sink was imported.

    Raises:
        PipelineError: if it was not.
    """
    if missing is not None:
        raise PipelineError(
            f"sinks.{sink} needs a package that is not there: {missing}",
            remedy=f'pip install "headrace[{extra}]"',
        )


def number_of(lineage: str) -> int:
    """Return a lineage as a number, for tables that keep nothing else. It fits into a double."""
    return int.from_bytes(hashlib.blake2b(lineage.encode(), digest_size=6).digest())


def with_retries(attempt: Callable[[], _Result], may_pass: Callable[[Exception], bool]) -> _Result:
    """Return the result of an attempt; repeat it while other writers come first.

    Args:
        attempt: begins by looking at what is there, so it may be repeated in any case.
        may_pass: whether an error may be gone at the next attempt.
    """
    for number in range(_ATTEMPTS - 1):
        try:
            return attempt()
        except Exception as error:
            if not may_pass(error):
                raise
            time.sleep(random.uniform(0.5, 1.0) * min(0.005 * 2**number, _LONGEST_PAUSE_S))
    return attempt()


def document_of(text: Any) -> dict[str, Any]:
    """Return a JSON object, or an empty one for anything else."""
    import msgspec

    try:
        found = msgspec.json.decode(text) if isinstance(text, str | bytes) else text
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
