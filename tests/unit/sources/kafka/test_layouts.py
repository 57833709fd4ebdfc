"""What a format of one's own decodes is read in whatever layout and encoding it is."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from headrace.messages import MessageFormat, Raw
from headrace.messages.base import Wanted
from headrace.sources.columns import TimeOptions
from headrace.sources.kafka.decoding import MessageRecords
from tests.support.arrow_layouts import in_chunks, recoded, relaid


class Written(NamedTuple):
    """A message, as confluent-kafka gives it."""

    data: bytes | None
    number: int

    def value(self) -> bytes | None:
        return self.data

    def key(self) -> None:
        return None

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.number

    def timestamp(self) -> tuple[int, int]:
        return 1, self.number


class Numbers(MessageFormat):
    """Texts of numbers, as a list and a struct of them, in some layout."""

    name = "numbers"
    kind = pa.struct([("text", pa.string())])

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def columns(self) -> pa.Schema:
        return pa.schema([("texts", pa.list_(pa.string())), ("parts", self.kind)])

    def decode(self, messages: pa.Array, wanted: Wanted) -> pa.Table:
        rng = Random(self.seed)
        texts = messages.cast(pa.string()).to_pylist()
        lists = pa.array([[text, None] for text in texts], pa.list_(pa.string()))
        parts = pa.array([{"text": text} if text else None for text in texts], self.kind)
        found = {"texts": lists, "parts": parts}
        return pa.table({n: in_chunks(rng, recoded(rng, relaid(rng, c))) for n, c in found.items()})

    def encode(self, rows: pa.Table) -> pa.Array:
        raise NotImplementedError


@pytest.mark.parametrize("seed", range(12))
def test_columns_of_any_layout_are_read_also_beside_messages_without_a_value(seed: int) -> None:
    records = MessageRecords(
        Numbers(seed),
        Raw(),
        None,
        "at",
        columns={"at": "kafka.timestamp"},
        times=TimeOptions(),
        time_format=None,
        place="t",
    )
    data = [b"1", None, b"", b"more than twelve bytes"]
    messages: list[Any] = [Written(one, number) for number, one in enumerate(data)]
    found = records.read(messages)
    texts = [None if one is None else one.decode() for one in data]
    assert found.column("texts").to_pylist() == [None if t is None else [t, None] for t in texts]
    assert found.column("parts").to_pylist() == [{"text": t} if t else None for t in texts]
