"""The interface of sources, under the name it had in version 0.1; see :mod:`headrace.sources`."""

from headrace.pipeline.source import InTasks, Limit, Offer, Part, Position, Source, Split
from headrace.schema.reserved import PARTITION_COLUMN, TIMESTAMP_COLUMN

__all__ = [
    "PARTITION_COLUMN",
    "TIMESTAMP_COLUMN",
    "InTasks",
    "Limit",
    "Offer",
    "Part",
    "Position",
    "Source",
    "Split",
]
