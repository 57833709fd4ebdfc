"""The table of types is true: examples are written so and come back, what it refuses is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.schema import NotExact, value_type_of
from headrace.schema.table import TABLE, Row, page
from headrace.sinks import Files

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "types.md"


def column_of(row: Row) -> pa.Table:
    values = value_type_of({"it": row.kind})
    columns = values.to_columns([values.python_type(row.example)])
    return pa.table(values.outward(columns), schema=values.outside_schema)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_an_example_is_written_as_the_table_says(row: Row, tmp_path: Path) -> None:
    table = column_of(row)
    Files(tmp_path).deliver(1, table)
    assert (tmp_path / "step-000000000001.jsonl").read_text() == f'{{"it":{row.json}}}\n'
    if row.csv is not None:
        Files(tmp_path, format="csv").deliver(1, table)
        assert (tmp_path / "step-000000000001.csv").read_text() == f'"it"\n{row.csv}\n'
    Files(tmp_path, format="parquet").deliver(1, table)
    column = pq.ParquetFile(tmp_path / "step-000000000001.parquet").schema.column(0)
    if row.parquet.split()[0] not in ("LIST", "MAP", "group"):
        assert row.parquet.startswith(column.physical_type)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_an_example_comes_back_and_what_is_like_it_is_refused(row: Row) -> None:
    values = value_type_of({"it": row.kind})
    make: Any = values.python_type
    assert values.to_python(values.to_columns([make(row.example)])) == [make(row.example)]
    for wrong in row.refuses:
        with pytest.raises(NotExact, match=r"field .it"):
            values.to_columns([make(wrong)])


def test_the_page_is_made_of_the_table() -> None:
    assert PAGE.read_text() == page(), (
        "run python -m headrace.schema.table > docs/reference/types.md"
    )
