"""A sink of Iceberg tables: each delivery is one commit, which records the delivery's id."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Unpack

import msgspec
import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.errors.printable import without_secrets
from headrace.pipeline.sink import Deliverer, Delivery
from headrace.sinks.table_columns import Changes, filled, held, lakehouse_type, new_columns
from headrace.sinks.table_sink import (
    TableOptions,
    TableSink,
    check_installed,
    document_of,
    with_retries,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

try:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import (
        CommitFailedException,
        CommitStateUnknownException,
        NoSuchNamespaceError,
        NoSuchTableError,
        TableAlreadyExistsError,
    )
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.table import TableProperties
    from pyiceberg.table.upsert_util import create_match_filter
except ImportError as missing:  # pragma: no cover - an installation without the extra
    _MISSING: ImportError | None = missing
else:
    _MISSING = None

Mode = Literal["append", "upsert"]


class Iceberg(TableSink):
    """Writes each step that produced something to an Iceberg table, as one commit.

    It needs no Spark and no JVM: ``pip install "headrace[iceberg]"``, and what pyiceberg needs for
    the catalog.

    Args:
        catalog: the properties of a catalog, such as ``{"type": "rest", "uri": "https://…"}``, or its
            name in the configuration of pyiceberg. With ``name`` among the properties it has another
            name than ``default``: catalogs in SQL databases find only tables of their own name.
        table: its name with its namespace: ``shop.totals``.
        mode: ``append`` adds the rows. ``upsert`` replaces the rows of the same ``keys``, and adds
            the others.
        options: ``keys``, ``deletes``, ``columns`` and ``take_over``, as all sinks of tables have
            them (:class:`TableOptions`).

    Guarantees: exactly once. A commit adds the rows and the id of their delivery: in the summary of
    its snapshot, and in the table property ``headrace.PIPELINE.SINK``. A delivery that the table has
    is skipped. A driver that was replaced while it delivers cannot commit, since the table has
    changed since it looked; pyiceberg's own retries, which would add the rows again, are off for
    these commits. After a newer driver has delivered, an older one is refused (``Fenced``). Other
    writers may change the table: the delivery is then tried again, up to 30 times.

    The table and its namespace are made by the first delivery. All its columns may be null. A new
    column of the stream is added to the table. A column that the stream no longer has is null in new
    rows. Any other difference is refused in words before anything is written (``SinkConflict``), and
    so are new and missing columns at once, since a renamed column looks so.

    Nothing is converted with loss. Points in time are in UTC, to the microsecond; JSON is text.
    Durations and unsigned integers of 64 bits are refused.

    A process that is killed while it delivers may leave files that no snapshot names. Readers do not
    see them, and the removal of orphan files takes them away.

    Cost: with a catalog in SQLite, about 20 ms a step of 1,000 rows, and 120 ms for an upsert, which
    writes the files again that have rows of its keys. Each step makes a snapshot and at least one
    file: expire and compact them from time to time.

    Example::

        catalog = {"type": "sql", "uri": "sqlite:///catalog.db", "warehouse": "warehouse"}
        p.sink("totals", visits, hr.sinks.Iceberg(catalog, "shop.totals"))

    Raises:
        PipelineError: for an unknown mode, and for keys that do not go with it.
    """

    def __init__(
        self,
        catalog: str | Mapping[str, str],
        table: str,
        *,
        mode: Mode = "append",
        **options: Unpack[TableOptions],
    ) -> None:
        check_installed("Iceberg", "iceberg", _MISSING)
        super().__init__(
            "Iceberg",
            _iceberg_type,
            mode=mode,
            modes=("append", "upsert"),
            options=options,
        )
        self._given = catalog if isinstance(catalog, str) else dict(catalog)
        self._name = table
        self._catalog: Catalog | None = None
        self._taken_from = ""  # the storage in whose table this one goes on

    @property
    def _place(self) -> str:
        given = self._given
        catalog = given if isinstance(given, str) else given.get("uri", given.get("type", ""))
        return without_secrets(f"table {self._name} of catalog {catalog}")

    def _open(self, deliverer: Deliverer) -> None:
        self._taken_from = ""
        try:
            table = self._current()
        except Exception as error:
            raise self._failed(error) from error
        if table is None:
            return
        owner = _recorded(table, deliverer)
        if owner.get("lineage", deliverer.lineage) != deliverer.lineage:
            if not self._may_take_over:
                raise self._is_of_another(owner, deliverer)
            self._taken_from = str(owner["lineage"])
        if self._declared is not None:
            new_columns(_schema_of(table), self._declared, _iceberg_type, self._place)

    def _write(self, run: Deliverer, delivery: Delivery, changes: Changes) -> None:
        def attempt() -> None:
            table = self._current() or self._create(changes.rows.schema)
            if not self._has(table, run, delivery):
                self._commit(table, run, delivery, changes)

        try:
            with_retries(attempt, _may_pass)
        except HeadraceError:
            raise
        except Exception as error:
            if not self._has_after_all(run, delivery):
                raise self._failed(error) from error

    def _has(self, table: Table, run: Deliverer, delivery: Delivery) -> bool:
        """Return whether a table has a delivery.

        Raises:
            SinkConflict: if this sink of another storage has written to the table.
            Fenced: if a newer driver has delivered to it.
        """
        there = _recorded(table, run)
        if not there or there["lineage"] == self._taken_from:
            return False
        if there["lineage"] != run.lineage:
            raise self._is_of_another(there, run)
        if there["epoch"] > delivery.epoch:
            raise self._superseded(delivery.epoch, there["epoch"])
        return bool(there["delivery"] >= delivery.id)

    def _has_after_all(self, run: Deliverer, delivery: Delivery) -> bool:
        """Return whether a commit that failed did happen: its reply may have been lost."""
        try:
            table = self._current()
            return table is not None and self._has(table, run, delivery)
        except HeadraceError:
            raise
        except (
            Exception
        ):  # (libraries of catalogs raise anything; the first error is the better one)
            return False

    @property
    def _opened(self) -> Catalog:
        if self._catalog is None:
            given = self._given
            if isinstance(given, str):
                self._catalog = load_catalog(given)
            else:
                named = {"name": "default", **given}
                self._catalog = load_catalog(named.pop("name"), **named)
        return self._catalog

    def _current(self) -> Table | None:
        """Return the table in its newest version; None if there is none."""
        try:
            return self._opened.load_table(self._name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None

    def _create(self, schema: pa.Schema) -> Table:
        """Make the table, without rows, or return the one that another process makes meanwhile."""
        self._opened.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        with contextlib.suppress(TableAlreadyExistsError):
            self._opened.create_table(self._name, schema)
        return self._opened.load_table(self._name)

    def _commit(self, table: Table, run: Deliverer, delivery: Delivery, changes: Changes) -> None:
        """Write changes. The commit fails if the table has changed since it was loaded."""
        there = _schema_of(table)
        new = new_columns(there, changes.rows.schema, _iceberg_type, self._place)
        rows = filled(changes.rows, there, "Iceberg")
        about = {
            "lineage": run.lineage,
            "delivery": delivery.id,
            "step": delivery.step,
            "epoch": delivery.epoch,
            "storage": run.location,
        }
        recorded = {_property(run): msgspec.json.encode(about).decode()}
        # Only these commits are not retried; the property is not written to the table.
        table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
        with table.transaction() as commit:
            if new:
                with commit.update_schema() as update:
                    update.union_by_name(rows.schema)
            same_keys = self._of_same_keys(table, changes)
            if same_keys is not None and rows.num_rows:
                commit.overwrite(rows, same_keys, snapshot_properties=recorded)
            elif same_keys is not None:
                commit.delete(same_keys, snapshot_properties=recorded)
            elif rows.num_rows:
                commit.append(rows, snapshot_properties=recorded)
            commit.set_properties(recorded)

    def _of_same_keys(self, table: Table, changes: Changes) -> BooleanExpression | None:
        """Return what selects the rows that are replaced or deleted; None if there are none."""
        if not self._keys:
            return None
        selected = create_match_filter(changes.keys(self._keys), self._keys)
        return selected if _has_any(table, selected) else None

    def _is_of_another(self, there: Mapping[str, Any], run: Deliverer) -> HeadraceError:
        return self._belongs_to(run.pipeline, run.sink, str(there.get("storage", "")))

    def close(self) -> None:
        super().close()
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            catalog.close()


def _iceberg_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type as which Iceberg holds a plain type without loss; None if it cannot."""
    if pa.types.is_time(kind) and kind.unit != "ns":
        return pa.time64("us")
    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        return pa.int32()
    return lakehouse_type(kind)


def _schema_of(table: Table) -> pa.Schema:
    """Return the columns of a table, in the types in which rows are written."""
    fields = []
    for field in schema_to_pyarrow(table.schema(), include_field_ids=False):
        kind = held(field.type, _iceberg_type)
        fields.append(pa.field(field.name, kind or field.type, nullable=field.nullable))
    return pa.schema(fields)


def _has_any(table: Table, selected: BooleanExpression) -> bool:
    """Return whether a table has one of the selected rows. (To delete none of them is a warning.)"""
    if table.current_snapshot() is None:
        return False
    return bool(table.scan(row_filter=selected, limit=1).to_arrow().num_rows)


def _property(run: Deliverer) -> str:
    return f"headrace.{run.pipeline}.{run.sink}"


def _recorded(table: Table, run: Deliverer) -> dict[str, Any]:
    """Return what a table records of a sink: lineage, delivery, epoch, storage. Empty if nothing.

    The property may have been removed. Then the newest snapshot that has it says it.
    """
    name = _property(run)
    texts = [table.properties.get(name)]
    if texts == [None]:
        summaries = [of.summary for of in reversed(table.metadata.snapshots)]
        texts = [of[name] for of in summaries if of is not None and of.get(name) is not None]
    found = document_of(texts[0]) if texts else {}
    known = {"lineage", "delivery", "epoch"} <= found.keys()
    return found if known else {}


def _may_pass(error: Exception) -> bool:
    """Return whether an error may be gone at the next attempt."""
    return isinstance(error, CommitFailedException | CommitStateUnknownException)
