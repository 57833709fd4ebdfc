"""Records of every type come back from a topic in every format that can hold them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.errors import PipelineError
from headrace.messages import Avro, Csv, Json, MessageFormat
from headrace.schema import value_type_of
from headrace.schema.table import TABLE, Row
from tests.support.kafka import Kafka, new_topic, write
from tests.support.values import Typed, records, same
from tests.unit.messages.test_types import avro_of, rows_of


@pytest.fixture(scope="module")
def topic(kafka: Kafka) -> str:
    return new_topic(kafka)


def through(
    kafka: Kafka,
    topic: str,
    writer: MessageFormat,
    reader: MessageFormat,
    kind: Any,
    drawn: list[Any],
) -> list[Any]:
    """Return records after they were in a topic."""
    table = rows_of(kind, *drawn)
    writer.open("t", "value", table.schema)
    source = hr.sources.Kafka(
        topic, servers=kafka.bootstrap, type=kind, format=reader, start="latest"
    )
    position = source.start()
    write(kafka, topic, [(None, message) for message in writer.encode(table).to_pylist()])
    while True:
        offer = source.offer(position, hr.sources.Limit(1_000, 1 << 30))
        assert offer is not None
        if not offer.empty:
            break
    values = value_type_of(kind)
    found: list[Any] = []
    for split in source.splits(position, offer.end):
        read = source.for_tasks().read(split)
        found += values.to_python([read.column(n).combine_chunks() for n in values.schema.names])
    return found


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
@pytest.mark.parametrize("name", ["json", "csv", "avro"])
def test_each_type_comes_back_or_is_refused_by_its_column(
    kafka: Kafka, topic: str, row: Row, name: str
) -> None:
    kind: Any = {"it": row.kind, "n": int}
    value = value_type_of(kind).python_type(row.example, 7)
    try:
        writer, reader = {
            "json": lambda: (Json(), Json()),
            "csv": lambda: (Csv(), Csv(["it", "n"])),
            "avro": lambda: (Avro(), avro_of(kind)),
        }[name]()
        writer.open("t", "value", value_type_of(kind).outside_schema)
    except PipelineError as error:
        assert "column 'it'" in error.what
        return
    (found,) = through(kafka, topic, writer, reader, kind, [value])
    assert (found.it, found.n) == (row.example, 7)


@given(data=st.data())
def test_records_come_back_from_a_topic(kafka: Kafka, topic: str, data: st.DataObject) -> None:
    typed: Typed = data.draw(records())
    drawn: list[Any] = data.draw(st.lists(typed.values, min_size=1, max_size=4))
    try:
        formats = [(Json(), Json()), (Avro(), avro_of(typed.kind))]
    except PipelineError:
        formats = [(Json(), Json())]  # (Avro cannot hold one of the columns)
    for writer, reader in formats:
        assert same(through(kafka, topic, writer, reader, typed.kind, drawn), drawn)
