"""Sources: where records come from. Those that need Spark or SQLAlchemy are imported late."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.pipeline.source import Limit, Offer, Part, Source, Split
from headrace.sources.files import Files
from headrace.sources.inbox import Inbox
from headrace.sources.iterables import Iterable
from headrace.sources.kafka import Kafka

if TYPE_CHECKING:
    from headrace.sources.spark_reader import SparkReader as SparkReader
    from headrace.sources.spark_stream import SparkStream as SparkStream
    from headrace.sources.spark_table import SparkTable as SparkTable
    from headrace.sources.table import Table as Table

__all__ = [
    "Files",
    "Inbox",
    "Iterable",
    "Kafka",
    "Limit",
    "Offer",
    "Part",
    "Source",
    "SparkReader",
    "SparkStream",
    "SparkTable",
    "Split",
    "Table",
]


def __getattr__(name: str) -> Any:
    if name == "SparkReader":
        from headrace.sources.spark_reader import SparkReader

        return SparkReader
    if name == "SparkStream":
        from headrace.sources.spark_stream import SparkStream

        return SparkStream
    if name == "SparkTable":
        from headrace.sources.spark_table import SparkTable

        return SparkTable
    if name == "Table":
        from headrace.sources.table import Table

        return Table
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
