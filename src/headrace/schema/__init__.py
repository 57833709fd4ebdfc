"""Value types: how a user's Python type becomes Arrow columns and back, without any loss."""

from headrace.schema.exact import NotExact, exact_cast
from headrace.schema.forms import TIMESTAMP, in_zone
from headrace.schema.values import (
    VALUE_COLUMN,
    ValueType,
    arrow_type_of,
    column_of,
    column_to_python,
    defaults_of,
    describe,
    value_type_of,
    value_type_of_schema,
    wants_zone,
)

__all__ = [
    "TIMESTAMP",
    "VALUE_COLUMN",
    "NotExact",
    "ValueType",
    "arrow_type_of",
    "column_of",
    "column_to_python",
    "defaults_of",
    "describe",
    "exact_cast",
    "in_zone",
    "value_type_of",
    "value_type_of_schema",
    "wants_zone",
]
