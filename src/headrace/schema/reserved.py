"""Names of the engine's own columns. They begin with two underscores; users' fields must not."""

from __future__ import annotations

#: The hash of a record's key.
HASH = "__hash"
#: The event time of a record, in microseconds since 1970 UTC.
TIMESTAMP_COLUMN = "__timestamp_us"
#: The partition of a record, where each record names its own.
PARTITION_COLUMN = "__partition"
