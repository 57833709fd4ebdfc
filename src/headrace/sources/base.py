"""The interface of sources, under the name that it had in 0.1; see :mod:`headrace.sources`."""

from headrace.pipeline.source import (
    PARTITION_COLUMN,
    TIMESTAMP_COLUMN,
    InTasks,
    Limit,
    Offer,
    Part,
    Position,
    Source,
    Split,
)

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
