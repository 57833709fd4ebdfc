"""Deliveries for tests of sinks to tables."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.pipeline.sink import Deliverer, Delivery, Sink

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("n", pa.int64()),
    ]
)


def run(lineage: str = "1a", sink: str = "out", storage: str = "s1") -> Deliverer:
    return Deliverer(lineage, storage, "p", sink)


def delivery(number: int, values: dict[str, int] | pa.Table, epoch: int = 1) -> Delivery:
    """Return a delivery of a row for each key, or of a table."""
    if isinstance(values, dict):
        columns = [
            pa.array(list(values), pa.string()),
            pa.array([number] * len(values), pa.timestamp("us", tz="UTC")),
            pa.array(list(values.values()), pa.int64()),
        ]
        values = pa.table(columns, schema=SCHEMA)
    return Delivery(number, number, values, {}, epoch=epoch)


def begun(sink: Sink, of: Deliverer | None = None, schema: pa.Schema = SCHEMA) -> Sink:
    """Return a sink that has been checked, and has begun."""
    sink.check(schema)
    sink.begin(of or run())
    return sink


def json_of(values: list[str | None]) -> pa.Array:
    return pa.ExtensionArray.from_storage(pa.json_(), pa.array(values, pa.string()))


NESTED = pa.struct([pa.field("a", pa.int64(), nullable=False), pa.field("text", pa.string())])
WHEN = datetime(2024, 2, 29, 23, 59, 59, 999_999, UTC)


def every_type() -> pa.Table:
    """Return rows of all types that every table holds, with their extremes."""
    columns: dict[str, Any] = {
        "key": pa.array(["é'\"\\%s:x", "b", "c\n\t"]),
        "timestamp": pa.array([WHEN, datetime(1, 1, 1, tzinfo=UTC), None], SCHEMA.field(1).type),
        "whole": pa.array([2**63 - 1, -(2**63), None]),
        "small": pa.array([255, 0, None], pa.uint8()),
        "real": pa.array([0.1, float("inf"), None]),
        "yes": pa.array([True, False, None]),
        "bytes": pa.array([b"\x00\xff", b"", None]),
        "day": pa.array([date(1, 1, 1), date(9999, 12, 31), None]),
        "exact": pa.array(
            [Decimal("12345678901234567890.123456789012345678"), Decimal("-1E-18"), None],
            pa.decimal128(38, 18),
        ),
        "json": json_of(['{"a":[1,"x"]}', '"text"', None]),
        "list": pa.array([[1, None], [], None], pa.list_(pa.int64())),
        "struct": pa.array([{"a": 1, "text": "x"}, {"a": 2, "text": None}, None], NESTED),
        "map": pa.array([[("x", 1), ("y", None)], [], None], pa.map_(pa.string(), pa.int64())),
    }
    fields = [pa.field(name, of.type, nullable=name != "key") for name, of in columns.items()]
    return pa.table(list(columns.values()), schema=pa.schema(fields))


def values_of(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows as Python values."""
    found: list[dict[str, Any]] = rows.to_pylist()
    return found
