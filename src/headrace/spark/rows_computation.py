"""A computation whose input and output are rows of Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql.types import StructType

from headrace.computation.declarations import Output
from headrace.computation.grouped import GroupedComputation, StepTimes
from headrace.errors import PipelineError
from headrace.eventtime.timestamps import MAX_TIME
from headrace.schema import ValueType, value_type_of_schema
from headrace.session.arrow_types import arrow_schema
from headrace.sources.names import derived_fields
from headrace.spark.ddl import struct_of_schema
from headrace.spark.keys import GroupingKey
from headrace.spark.rows import Outgoing, spark_columns

#: The form in which the user's code gets and yields rows.
Form = Literal["row", "pandas"]


class RowsOutput(Output[Any]):
    """An output whose columns are those of a Spark schema."""

    def __init__(self, values: ValueType) -> None:
        super().__init__(values.python_type)
        self._values = values

    def value_type(self) -> ValueType:
        return self._values


class RowsComputation(GroupedComputation):
    """A grouped computation whose input and output are rows of Spark.

    Args:
        output: the schema of the rows that it yields.
        form: whether it gets and yields rows or DataFrames of pandas.
        key: the columns of the key, and how they are kept.
        inputs: the schema of each input, as the user's code sees it. The second is initial state.
        zone: the session's time zone.

    Attributes:
        form, key, zone: as given.
        schemas: the schemas of the inputs.
        output_schema: the schema of the output.
        output_values: the columns of the output, as they are kept here.
    """

    def __init__(
        self,
        output: StructType | str,
        form: Form,
        key: GroupingKey,
        inputs: Sequence[StructType],
        *,
        zone: str = "UTC",
    ) -> None:
        self.form, self.key, self.zone = form, key, zone
        self.schemas = list(inputs)
        self._arrows = [arrow_schema(schema) for schema in inputs]
        self._columns = [list(derived_fields(a, "the input")[0].names) for a in self._arrows]
        self.output_schema = struct_of_schema(output, "the output")
        self._out_arrow = arrow_schema(self.output_schema)
        self.output_values = value_type_of_schema(derived_fields(self._out_arrow, "the output")[0])

    def input_columns(self, number: int, batch: pa.RecordBatch) -> list[pa.Array]:
        """Return the columns of an input, in Spark's types."""
        return spark_columns(batch, self._columns[number], self._arrows[number], self.zone)

    def outgoing(self) -> Outgoing:
        """Return what turns yielded rows into columns."""
        return Outgoing(self.output_schema, self._out_arrow, self.output_values, self.zone)

    def late_before(self, number: int, before: int) -> int:
        return before if number == 0 else 0

    def columns(self, produced: Sequence[Any]) -> list[pa.Array]:
        out = self.outgoing()
        return out.of_rows(produced) if self.form == "row" else out.of_tuples(produced)

    def plain(self, records: Any) -> list[Any]:
        if self.form == "row":
            return [row.asDict(True) for row in records]
        found: list[Any] = records.to_dict("records")
        return found


def watermark_ms(times: StepTimes) -> int:
    """Return the watermark of a step as Spark has it: never before 1970."""
    return max(0, min(times.watermark_us, MAX_TIME) // 1_000)


def checked_mode(given: Any, name: str, modes: Sequence[str], *, condition: str = "") -> str:
    """Return a mode in lower case.

    Args:
        given: what the user has given.
        name: the argument.
        modes: all that can be given, in lower case.
        condition: the condition that Spark names in its error, if it does.

    Raises:
        PipelineError: if there is no such mode.
    """
    mode = given.lower() if isinstance(given, str) else ""
    if mode not in modes:
        raise PipelineError(
            f"{condition and f'[{condition}] '}{name}={given!r} is none of Spark's",
            remedy=f"use one of {', '.join(modes)}",
        )
    return mode
