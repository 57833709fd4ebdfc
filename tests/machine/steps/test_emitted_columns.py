"""What a columnar handler sends is kept as it is, or refused: arrays of NumPy, Arrow and Python alike."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import UserCodeError
from headrace.testing import drive


class Colour(enum.Enum):
    RED = "red"


class Item(msgspec.Struct):
    who: str
    at: int


def sent(kind: Any, values: Any, **how: Any) -> list[Any]:
    """Return what comes of values that a columnar handler sends."""

    class Sends(hr.ColumnarComputation):
        out = hr.Output(msgspec.defstruct("Sent", [("it", kind)]))

        def process_batch(self, ctx: hr.BatchContext, batch: hr.KeyedBatch) -> None:
            ctx.produce("out", batch.row_keys, {"it": values})

    pipeline = hr.Pipeline("emits")
    stream = pipeline.inject("in", hr.sources.Iterable([], Item, event_time="at"))
    pipeline.compute("it", Sends(), keys={stream: "who"}, **how)
    with drive(pipeline) as harness:
        harness.push_many("in", [Item("a", n) for n in range(len(values))])
        harness.run()
        return [record.value.it for record in harness.outputs("it.out")]


NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
MICROS = 1_704_110_400_000_000
#: (declared type, what is sent, what comes)
TAKEN: list[Any] = [
    (float, np.array([1, 2**53]), [1.0, 2.0**53]),
    (float | None, np.array([1, 2]), [1.0, 2.0]),
    (int, np.array([1, 2], np.uint8), [1, 2]),
    (int | None, pa.array([1, None], pa.int8()), [1, None]),
    (int | None, [np.int64(1), None], [1, None]),
    (datetime, np.array([MICROS]), [NOON]),
    (datetime | None, np.array([MICROS]), [NOON]),
    (datetime, np.array(["2024-01-01T12"], "M8[h]"), [NOON]),
    (datetime | None, np.array(["2024-01-01T12"], "M8[ns]"), [NOON]),
    (date, np.array(["2024-01-01"], "M8[us]"), [date(2024, 1, 1)]),
    (Colour, ["red"], [Colour.RED]),
    (Colour | None, [Colour.RED, None], [Colour.RED, None]),
    (UUID, [str(UUID(int=7))], [UUID(int=7)]),
    (Decimal, pa.array([Decimal("1.5")]), [Decimal("1.5")]),
    (list[int], pa.array([[1, 2], []]), [[1, 2], []]),
    (list[int], [[1, 2], []], [[1, 2], []]),
]


@pytest.mark.parametrize(("kind", "values", "come"), TAKEN, ids=lambda v: str(v)[:24])
def test_columns_arrive_as_they_were_sent(kind: Any, values: Any, come: Any) -> None:
    assert sent(kind, values) == come


#: (declared type, what is sent, what is said)
REFUSED: list[Any] = [
    (float, np.array([1, 2**53 + 1]), "numbers beyond"),
    (float | None, np.array([1, 2**53 + 1]), "row 2: 9007199254740993 cannot be kept"),
    (int, np.array([1.0]), "was given float64"),
    (int, np.array([2**64 - 1], np.uint64), "numbers beyond"),
    (int | None, pa.array([True]), "it is of type bool"),
    (int | None, np.array([1.5]), "1.5 cannot be kept"),
    (str | None, np.array([1]), "it is of type int64"),
    (date, np.array(["2024-01-01T12"], "M8[h]"), "was given"),
    (datetime, np.array(["NaT"], "M8[us]"), "a time that is none"),
    (Colour, ["green"], "'green' is not a valid Colour"),
    (UUID, ["seven"], "badly formed"),
    (list[int], pa.array([[1, None]]), "it is None"),
    (list[int], [[1, 2.5]], r"'it\[1\]'"),
    (str, [b"x"], "was given bytes"),
]


@pytest.mark.parametrize(("kind", "values", "said"), REFUSED, ids=lambda v: str(v)[:24])
def test_what_would_change_is_refused(kind: Any, values: Any, said: str) -> None:
    with pytest.raises(UserCodeError, match=said):
        sent(kind, values)
    assert sent(kind, values, on_error="skip") == []
