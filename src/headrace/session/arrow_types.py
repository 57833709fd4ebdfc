"""Types of Spark as types of Arrow, the same in each version of Spark."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from pyspark.sql.pandas import types

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

#: Before 4.2, Spark takes no zone here: points in time are in UTC.
_IN_UTC = (
    {"timezone": "UTC"} if "timezone" in inspect.signature(types.to_arrow_schema).parameters else {}
)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return columns of Spark as columns of Arrow. Points in time are in UTC."""
    return types.to_arrow_schema(schema, **_IN_UTC)


def arrow_type(of: DataType) -> pa.DataType:
    """Return a type of Spark as a type of Arrow. Points in time are in UTC."""
    return types.to_arrow_type(of, **_IN_UTC)
