"""Schemas written as DDL are read as Spark's own parser reads them, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from headrace.errors import PipelineError
from headrace.spark.ddl import struct_of_schema

pytestmark = pytest.mark.spark

SIMPLE = [
    "INT", "integer", "LONG", "bigint", "short", "SMALLINT", "tinyint", "BYTE", "float", "real", "DOUBLE",
    "string", "BINARY", "boolean", "date", "TIMESTAMP", "timestamp_ntz", "timestamp_ltz", "DECIMAL",
    "decimal(12)",
    "DEC(4,1)", "numeric(38, 18)", "INTERVAL DAY TO SECOND", "interval hour to minute", "INTERVAL DAY",
]  # fmt: skip
NAMES = [
    "a",
    "b_1",
    "key",
    "value",
    "order",
    "timestamp",
    "date",
    "user",
    "`a b`",
    "`x.y`",
    "`é`",
    "count",
]


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> str:
    form = draw(
        st.sampled_from(["simple", "simple", "array", "map", "struct"] if depth else ["simple"])
    )
    inner = kinds(depth - 1)
    match form:
        case "array":
            return f"ARRAY<{draw(inner)}>"
        case "map":
            return f"map<{draw(inner)}, {draw(inner)}>"
        case "struct":
            names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
            colon = draw(st.sampled_from([": ", " "]))
            return f"STRUCT<{', '.join(f'{name}{colon}{draw(inner)}' for name in names)}>"
    return draw(st.sampled_from(SIMPLE))


@st.composite
def schemas(draw: st.DrawFn) -> str:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    more = st.sampled_from(["", "", " NOT NULL", " COMMENT 'it is'", ' not null comment "x"'])
    return ", ".join(f"{name} {draw(kinds())}{draw(more)}" for name in names)


@given(ddl=schemas())
def test_a_schema_is_read_as_spark_reads_it(local_spark: Any, ddl: str) -> None:
    assert struct_of_schema(ddl, "a test") == StructType.fromDDL(ddl)


@pytest.mark.parametrize(
    "ddl", ["", "a", "a INT b INT", "a INT, a INT", "a WHATEVER", "a ARRAY<INT", "a VARIANT"]
)
def test_what_cannot_be_read_is_refused(ddl: str) -> None:
    with pytest.raises(PipelineError, match="cannot be read"):
        struct_of_schema(ddl, "a test")
