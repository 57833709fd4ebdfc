"""Random types that a record may have, with values of each; and what it means that two values are equal.

Draw ``records()`` for a class with fields (structs, with renamed fields, defaults, tags; dataclasses),
or ``kinds()`` for any type. Both come as :class:`Typed`, with a strategy of values. Nothing here imports
what is tested.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
import typing
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import msgspec
from hypothesis import strategies as st

_NUMBERS = itertools.count()


class Typed(NamedTuple):
    """A type, and values of it.

    Attributes:
        kind: the type.
        values: a strategy.
        is_key: whether its values may be keys of a dict and elements of a set.
    """

    kind: Any
    values: st.SearchStrategy[Any]
    is_key: bool = False


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue sky"


class Level(enum.IntEnum):
    LOW = -1
    HIGH = 2**40


class Circle(msgspec.Struct, tag="circle", frozen=True):
    radius: float


class Square(msgspec.Struct, tag="square", frozen=True, rename="camel"):
    side_length: int
    name: str | None = None


_ZONES = st.sampled_from(
    [UTC, timezone(timedelta(hours=5, minutes=45)), timezone(-timedelta(hours=9))]
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INTS = st.integers(-(2**63), 2**63 - 1) | st.integers(-100, 100)
FLOATS = st.floats() | st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 5e-324])
_FIRST, _LAST = datetime(2, 1, 1), datetime(9998, 12, 31)  # noqa: DTZ001
TIMES = st.datetimes(_FIRST, _LAST, timezones=_ZONES)
DURATIONS = st.integers(-(2**62), 2**62).map(lambda us: timedelta(microseconds=us))
DECIMALS = st.decimals(-(10**19), 10**19, places=18) | st.decimals(-(10**6), 10**6, places=2)

PLAIN: list[Typed] = [
    Typed(int, INTS, True),
    Typed(float, FLOATS),
    Typed(str, TEXTS, True),
    Typed(bytes, st.binary(max_size=12), True),
    Typed(bool, st.booleans(), True),
    Typed(date, st.dates(), True),
    Typed(datetime, TIMES),
    Typed(timedelta, DURATIONS, True),
    Typed(time, st.times(), True),
    Typed(Decimal, DECIMALS),
    Typed(uuid.UUID, st.uuids(), True),
    Typed(Colour, st.sampled_from(Colour), True),
    Typed(Level, st.sampled_from(Level), True),
    Typed(Literal["a", "b"], st.sampled_from(["a", "b"]), True),
    Typed(Literal[1, 20, None], st.sampled_from([1, 20, None])),
]
_FINITE = st.floats(allow_nan=False, allow_infinity=False)
UNIONS: list[Typed] = [
    Typed(int | str, INTS | TEXTS),
    Typed(int | float | bool | None, INTS | _FINITE | st.booleans() | st.none()),
    Typed(
        Circle | Square,
        st.builds(Circle, _FINITE) | st.builds(Square, INTS, st.none() | TEXTS),
    ),
    Typed(list[int] | str, st.lists(INTS, max_size=3) | TEXTS),
]


def kinds(*, depth: int = 2) -> st.SearchStrategy[Typed]:
    """Return types that a field may have, nested up to a depth."""
    leaves = st.sampled_from([*PLAIN, *UNIONS])
    if depth == 0:
        return leaves
    inner = kinds(depth=depth - 1)
    keys = st.sampled_from([one for one in PLAIN if one.is_key])
    return st.one_of(
        leaves,
        inner.map(_optional),
        inner.map(lambda of: _many(list, of)),
        inner.map(_tuple),
        keys.map(_set),
        st.tuples(keys, inner).map(_dict),
        st.tuples(inner, inner).map(_pair),
        records(depth=depth - 1),
    )


def _optional(of: Typed) -> Typed:
    return Typed(of.kind | None, st.none() | of.values)


def _many(make: Any, of: Typed) -> Typed:
    return Typed(make[of.kind], st.lists(of.values, max_size=3))


def _tuple(of: Typed) -> Typed:
    return Typed(tuple[of.kind, ...], st.lists(of.values, max_size=3).map(tuple))


def _set(of: Typed) -> Typed:
    return Typed(frozenset[of.kind], st.frozensets(of.values, max_size=3))


def _dict(of: tuple[Typed, Typed]) -> Typed:
    key, item = of
    return Typed(dict[key.kind, item.kind], st.dictionaries(key.values, item.values, max_size=3))


def _pair(of: tuple[Typed, Typed]) -> Typed:
    return Typed(tuple[of[0].kind, of[1].kind], st.tuples(of[0].values, of[1].values))


#: Names that a field may have, some of which the engine has for columns of its own.
NAMES = st.sampled_from(
    ["a", "b", "c", "user_id", "nHits", "key", "_key", "timestamp", "value", "key0", "Key", "x_1"]
)
_RENAMES = st.sampled_from([None, "camel", "kebab", "upper", str.title])


def records(*, depth: int = 1) -> st.SearchStrategy[Typed]:
    """Return classes with fields: structs of all sorts, dataclasses, named tuples, typed dicts."""
    fields = st.lists(
        st.tuples(NAMES, kinds(depth=depth)), max_size=4, min_size=1, unique_by=_first
    )
    return st.one_of(_structs(fields), _structs(fields), fields.map(_dataclass), fields.map(_named))


def _first(item: tuple[str, Any]) -> str:
    return item[0]


Fields = list[tuple[str, Typed]]


def _structs(fields: st.SearchStrategy[Fields]) -> st.SearchStrategy[Typed]:
    return st.tuples(
        fields, _RENAMES, st.booleans(), st.booleans(), st.booleans(), st.booleans()
    ).map(_struct)


def _struct(drawn: tuple[Fields, Any, bool, bool, bool, bool]) -> Typed:
    fields, rename, keyword, frozen, tagged, defaults = drawn
    kind = msgspec.defstruct(
        f"Struct{next(_NUMBERS)}",
        [(name, of.kind, *_default(of.kind, defaults and keyword)) for name, of in fields],
        rename=_apart([name for name, _ in fields], rename),
        kw_only=keyword,
        frozen=frozen,
        tag="tag" if tagged else None,
        tag_field="is" if tagged else None,
    )
    return Typed(kind, st.builds(kind, **{name: of.values for name, of in fields}))


def _default(kind: Any, wanted: bool) -> list[Any]:
    """Return a default that a field has, for some types."""
    if not wanted:
        return []
    simple = {
        int: 7,
        str: "default",
        float: 0.5,
        bool: True,
        list[int]: msgspec.field(default_factory=list),
    }
    try:
        return [simple[kind]] if kind in simple else []
    except TypeError:
        return []


def _apart(names: list[str], rename: Any) -> Any:
    """Return a way to rename fields if they keep apart."""
    change: dict[Any, Callable[[str], str]] = {
        None: str,
        "upper": str.upper,
        "kebab": _kebab,
        "camel": _camel,
        str.title: str.title,
    }
    outside = [change[rename](name) for name in names]
    return rename if len({name.lower() for name in outside}) == len(outside) else None


def _kebab(name: str) -> str:
    return "-".join(part for part in name.split("_") if part)


def _camel(name: str) -> str:
    return name.replace("_", "")


def _dataclass(fields: Fields) -> Typed:
    name = f"Data{next(_NUMBERS)}"
    kind = dataclasses.make_dataclass(name, [(n, of.kind) for n, of in fields], frozen=True)
    return Typed(kind, st.builds(kind, **{n: of.values for n, of in fields}))


def _named(fields: Fields) -> Typed:
    """Return a typed dict (a named tuple may have no name with an underscore in front)."""
    kind = typing.TypedDict(f"Dict{next(_NUMBERS)}", {n: of.kind for n, of in fields})  # type: ignore[misc]
    values = st.tuples(*(of.values for _, of in fields))
    names = [name for name, _ in fields]
    return Typed(kind, values.map(lambda row: dict(zip(names, row, strict=True))))


def same(one: Any, other: Any, *, ordered: bool = True) -> bool:
    """Say whether two values are equal, of equal types, NaN with NaN, and -0.0 not with 0.0.

    Args:
        ordered: whether dicts must also have their keys in the same order.
    """

    def alike(mine: Any, its: Any) -> bool:
        return same(mine, its, ordered=ordered)

    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        if math.isnan(one):
            return math.isnan(other)
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        keys = alike(list(one), list(other)) if ordered else one.keys() == other.keys()
        return keys and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, msgspec.Struct):
        names = one.__struct_fields__
        return all(alike(getattr(one, name), getattr(other, name)) for name in names)
    if dataclasses.is_dataclass(one):
        names = tuple(field.name for field in dataclasses.fields(one))
        return all(alike(getattr(one, name), getattr(other, name)) for name in names)
    return bool(one == other)
