"""What a stream's values are made of comes back as it was, however their types are declared."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import cloudpickle
import msgspec
import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import PipelineError
from headrace.schema import TIMESTAMP, NotExact, value_type_of
from tests.support.values import Circle, Colour, Square


class Camel(msgspec.Struct, rename="camel", frozen=True):
    user_id: int | None = None
    n_hits: int = 0


class Short(msgspec.Struct, omit_defaults=True, frozen=True):
    a: int = 7
    b: str | None = "default"


class Listed(msgspec.Struct, array_like=True, frozen=True):
    a: int
    b: float = 0.5


class Tagged(msgspec.Struct, tag="one", frozen=True):
    a: int


class ByName(msgspec.Struct, kw_only=True, frozen=True):
    a: int
    b: str = "b"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    a: int
    at: datetime | None = None


class Partly(msgspec.Struct, frozen=True):
    first: int
    inner: ByName
    many: list[Camel]
    by: dict[str, Short]
    deep: list[dict[str, list[Data]]] = []
    listed: Listed | None = None
    tagged: Tagged | None = None


NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
VALUES: list[Any] = [
    Camel(3, 4),
    Camel(),
    Short(1, None),
    Short(),
    Listed(1),
    Tagged(2),
    ByName(a=1),
    Data(a=1, at=NOON),
    Partly(1, ByName(a=2), [], {}),
    Partly(
        1,
        ByName(a=2, b="c"),
        [Camel(5, 6), Camel(None, 1)],
        {"x": Short(9, None), "y": Short()},
        [{"z": [Data(a=3, at=NOON), Data(a=4)]}, {}],
        Listed(8, 1.5),
        Tagged(6),
    ),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    values = value_type_of(type(value))
    assert values.to_python(values.to_columns([value, value])) == [value, value]


class Holding(msgspec.Struct, frozen=True):
    camel: Camel


def test_what_is_not_of_the_declared_type_is_named() -> None:
    values = value_type_of(Holding)
    for wrong in (Short(), 7, {"user_id": 1}):
        with pytest.raises(TypeError, match="field 'camel'"):
            values.to_columns([Holding(wrong)])  # type: ignore[arg-type]


def test_a_field_that_cannot_be_given_is_refused_when_it_is_drawn() -> None:
    @dataclasses.dataclass
    class Made:
        a: int
        b: int = dataclasses.field(default=1, init=False)

    with pytest.raises(PipelineError, match="cannot be given"):
        value_type_of(Made)


class Times(msgspec.Struct):
    at: datetime
    others: list[datetime]
    named: dict[str, Data]
    by: dict[datetime, int] = {}


NAIVE = NOON.replace(tzinfo=None)


@pytest.mark.parametrize(
    "value",
    [
        Times(NAIVE, [], {}),
        Times(NOON, [NOON, NAIVE], {}),
        Times(NOON, [], {"x": Data(a=1, at=NAIVE)}),
        Times(NOON, [], {}, {NAIVE: 1}),
    ],
    ids=["plain", "in a list", "in a struct in a map", "key of a map"],
)
def test_a_time_without_a_zone_is_refused_or_of_the_zone_that_is_given(value: Times) -> None:
    values = value_type_of(Times)
    with pytest.raises(TypeError, match="has no time zone"):
        values.to_columns([value])
    (found,) = values.to_python(values.to_columns([value], "America/New_York"))
    shown = [found.at, *found.others, *(one.at for one in found.named.values()), *found.by]
    assert datetime(2024, 1, 1, 17, tzinfo=UTC) in shown
    assert set(shown) <= {NOON, datetime(2024, 1, 1, 17, tzinfo=UTC)}


def test_lists_of_all_kinds_hold_no_times_without_a_zone() -> None:
    for kind in (pa.large_list(TIMESTAMP), pa.list_(TIMESTAMP, 1)):
        (column,) = value_type_of({"all": kind}).to_columns([Listing([NOON])])
        assert column.to_pylist() == [[NOON]]
        with pytest.raises(TypeError, match="has no time zone"):
            value_type_of({"all": kind}).to_columns([Listing([NAIVE])])


class Listing(msgspec.Struct):
    all: Any


def test_structs_may_be_given_as_tuples_or_without_what_is_optional() -> None:
    kind = pa.struct([pa.field("a", pa.int64(), False), pa.field("b", pa.string())])
    values = value_type_of({"all": kind})
    given = [Listing((1, "x")), Listing({"a": 2}), Listing({"a": 3, "b": "y"}), Listing(None)]
    (column,) = values.to_columns(given)
    assert column.to_pylist() == [{"a": 1, "b": "x"}, {"a": 2, "b": None}, {"a": 3, "b": "y"}, None]
    with pytest.raises(TypeError, match=r"'all\.a' .* it is missing"):
        values.to_columns([Listing({"b": "z"})])


class Everything(msgspec.Struct, rename="camel"):
    plain_one: int
    colour: Colour
    many: list[tuple[int, str]]
    by: dict[UUID, Circle | Square]
    price: Annotated[Decimal, pa.decimal128(10, 2)]
    above: Annotated[int, msgspec.Meta(gt=0)]
    free: Any = None
    default: list[int] = []


def test_a_type_of_values_travels_to_other_processes() -> None:
    value = Everything(
        1, Colour.RED, [(1, "x")], {UUID(int=7): Circle(0.5)}, Decimal("1.25"), 3, {"n": [1]}
    )
    values = value_type_of(Everything)
    columns = values.to_columns([value])
    sent = cloudpickle.loads(cloudpickle.dumps(values))
    assert sent.to_python(sent.to_columns([value])) == [value] == sent.to_python(columns)
    assert sent.outside_schema == values.outside_schema


def test_limits_and_widths_that_are_annotated_are_kept() -> None:
    values = value_type_of(Everything)
    good = Everything(1, Colour.RED, [], {}, Decimal("1.25"), 3)
    assert values.schema.field("price").type == pa.decimal128(10, 2)
    for name, wrong, said in [
        ("above", 0, "Expected `int` >= 1"),
        ("price", Decimal("1.255"), "cannot be kept as decimal128"),
    ]:
        with pytest.raises(NotExact, match=said):
            values.to_columns([msgspec.structs.replace(good, **{name: wrong})])
    with pytest.raises(PipelineError, match="cannot be kept as"):
        value_type_of(Annotated[int, pa.string()])


class Noted(TypedDict):
    above: Annotated[int, msgspec.Meta(gt=0)]


@pytest.mark.parametrize(
    ("kind", "good", "wrong"),
    [
        (Annotated[int, msgspec.Meta(ge=0), pa.int16()], [0, 32767], [-1, 70000]),
        (Annotated[int, pa.int16(), msgspec.Meta(ge=0)], [0, 32767], [-1, 70000]),
        (Annotated[int | None, "a note"], [None, 5], [True]),
        (Annotated[int | None, msgspec.Meta(ge=0)], [None, 5], [-1]),
        (Annotated[Annotated[int | None, "inner"], pa.int8()], [None, 5], [200]),
        (Annotated[Literal[1, None], "a note"], [None, 1], [2]),
        (Annotated[str, pa.string_view()], ["a"], [1]),
        (Noted, [{"above": 1}], [{"above": 0}]),
    ],
    ids=str,
)
def test_all_that_is_noted_of_a_type_holds(kind: Any, good: list[Any], wrong: list[Any]) -> None:
    values = value_type_of({"x": kind})
    row = values.python_type
    (column,) = values.to_columns([row(one) for one in good])
    assert [one.x for one in values.to_python([column])] == good
    column.take(pa.array([0]))
    for one in wrong:
        with pytest.raises(NotExact):
            values.to_columns([row(one)])


@pytest.mark.parametrize(
    "kind",
    [
        Annotated[Decimal, msgspec.Meta(ge=0)],
        Annotated[datetime, msgspec.Meta(tz=False)],
        Annotated[time, msgspec.Meta(tz=True)],
    ],
    ids=str,
)
def test_limits_that_nothing_keeps_to_are_refused_when_they_are_drawn(kind: Any) -> None:
    with pytest.raises(PipelineError):
        value_type_of({"x": kind})


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (int, None),
        (int, "1"),
        (datetime, NAIVE),
        (int | msgspec.UnsetType, msgspec.UNSET),
        (Annotated[int, msgspec.Meta(gt=0)], 0),
        (list[int], msgspec.field(default_factory=lambda: ["x"])),
    ],
)
def test_a_default_that_does_not_fit_is_refused_when_it_is_drawn(kind: Any, default: Any) -> None:
    declared = msgspec.defstruct("Defaulted", [("price", kind, default)])
    with pytest.raises(PipelineError, match="default of field 'price'"):
        value_type_of(declared)


def test_times_of_numpy_are_no_numbers() -> None:
    nanos, micros = np.array([5], "m8[ns]"), np.array([5], "m8[us]")
    for kind, wrong in [
        (list[int], nanos),
        (list[int], micros),
        (list[int], np.array([5], "M8[ns]")),
        (list[timedelta | None], np.array(["nat"], "m8[us]")),
        (int, nanos[0]),
        (float, nanos[0]),
        (Decimal, nanos[0]),
        (int | str, nanos[0]),
    ]:
        with pytest.raises(NotExact):
            value_type_of(kind).to_columns([wrong])
    (column,) = value_type_of(list[timedelta]).to_columns([micros])
    assert column.to_pylist() == [[timedelta(microseconds=5)]]


@dataclasses.dataclass(frozen=True)
class Ordered:
    first: int
    last: int

    def __post_init__(self) -> None:
        if self.last < self.first:
            raise RuntimeError("it ends before it begins")


def test_what_a_class_refuses_is_named_with_its_row_at_any_depth() -> None:
    firsts, lasts = pa.array([1, 2]), pa.array([1, 1])
    with pytest.raises(NotExact, match="RuntimeError: it ends") as caught:
        value_type_of(Ordered).to_python([firsts, lasts])
    assert caught.value.row == 1
    inner = pa.StructArray.from_arrays([firsts, lasts], ["first", "last"])
    for kind, column in [
        (Ordered, inner),
        (list[Ordered], pa.ListArray.from_arrays([0, 1, 2], inner)),
    ]:
        with pytest.raises(NotExact, match="it ends") as caught:
            value_type_of({"x": kind}).exact("x", column)
        assert caught.value.row == 1
