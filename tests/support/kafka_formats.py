"""Small formats of messages for tests of sinks, independent of those that users have."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from headrace.messages.base import MessageFormat, Unreadable, Wanted


class Lines(MessageFormat):
    """Each row as a JSON object, by Python's own encoder. It cannot write the number -13."""

    name = "lines"
    is_text = is_json = True

    def __init__(self) -> None:
        self.opened: list[tuple[str, str]] = []

    def decode(self, messages: pa.Array, wanted: Wanted) -> pa.Table:
        raise NotImplementedError

    def encode(self, rows: pa.Table) -> pa.Array:
        assert self.opened, "it was opened"
        made = []
        for number, row in enumerate(rows.to_pylist()):
            if -13 in row.values():
                raise Unreadable(number, "-13 is unlucky")
            made.append(json.dumps(row, default=str).encode())
        return pa.array(made, pa.binary())

    def open(self, topic: str, part: str, schema: pa.Schema | None) -> None:
        assert schema is not None
        self.opened.append((topic, part))


class Plain(Lines):
    """The text of a single column; null stays null."""

    name = "plain"

    def encode(self, rows: pa.Table) -> pa.Array:
        (column,) = rows.columns
        values: list[Any] = column.to_pylist()
        return pa.array([None if v is None else str(v).encode() for v in values], pa.binary())
