"""Sinks: where a step's productions are delivered, after its commit or (weak ones) before it.

Sinks that need a package of their own are imported when first accessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.pipeline.sink import Deliverer, Delivery, Sink
from headrace.sinks.calls import Calls
from headrace.sinks.console import Console
from headrace.sinks.files import Files
from headrace.sinks.table_sink import TableOptions

if TYPE_CHECKING:
    from headrace.sinks.delta import Delta as Delta
    from headrace.sinks.iceberg import Iceberg as Iceberg
    from headrace.sinks.kafka import Kafka as Kafka
    from headrace.sinks.spark import Spark as Spark
    from headrace.sinks.sql_table import Table as Table

__all__ = [
    "Calls",
    "Console",
    "Deliverer",
    "Delivery",
    "Delta",
    "Files",
    "Iceberg",
    "Kafka",
    "Sink",
    "Spark",
    "Table",
    "TableOptions",
]


def __getattr__(name: str) -> Any:
    if name == "Delta":
        from headrace.sinks.delta import Delta

        return Delta
    if name == "Spark":
        from headrace.sinks.spark import Spark

        return Spark
    if name == "Iceberg":
        from headrace.sinks.iceberg import Iceberg

        return Iceberg
    if name == "Kafka":
        from headrace.sinks.kafka import Kafka

        return Kafka
    if name == "Table":
        from headrace.sinks.sql_table import Table

        return Table
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
