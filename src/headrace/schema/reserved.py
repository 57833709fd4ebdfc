"""Names of columns that are the engine's own: they begin with two underscores, as no user's field may."""

from __future__ import annotations

#: The hash of a record's key.
HASH = "__hash"
#: The event time of a record, in microseconds since 1970 UTC.
TIMESTAMP_COLUMN = "__timestamp_us"
#: The partition of a record, where each record names its own.
PARTITION_COLUMN = "__partition"
