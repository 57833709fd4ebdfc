"""Random schemas of Avro, with values of each as fastavro takes them. Nothing here is Headrace's."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any, NamedTuple

from hypothesis import strategies as st

_NUMBERS = itertools.count()
_WIDE = Context(prec=100)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Typed(NamedTuple):
    """A schema as in JSON, and values of it."""

    schema: Any
    values: st.SearchStrategy[Any]


def name() -> str:
    return f"N{next(_NUMBERS)}"


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_MILLIS = st.integers(-62_135_596_800_000, 253_402_300_799_999)
_MICROS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)


def _time(micros: int) -> time:
    return (datetime(1, 1, 1) + timedelta(microseconds=micros)).time()  # noqa: DTZ001


def _logical(kind: str, logical: str, values: st.SearchStrategy[Any]) -> Callable[[], Typed]:
    return lambda: Typed({"type": kind, "logicalType": logical}, values)


def _plain(kind: str, values: st.SearchStrategy[Any]) -> Callable[[], Typed]:
    return lambda: Typed(kind, values)


def _enum() -> Typed:
    symbols = ["A", "b", "C_9"]
    return Typed({"type": "enum", "name": name(), "symbols": symbols}, st.sampled_from(symbols))


def _fixed() -> Typed:
    return Typed({"type": "fixed", "name": name(), "size": 5}, st.binary(min_size=5, max_size=5))


def _decimals(digits: int, behind: int) -> st.SearchStrategy[Decimal]:
    most = 10**digits - 1
    return st.integers(-most, most).map(lambda of: Decimal(of).scaleb(-behind, _WIDE))


@st.composite
def _decimal(draw: st.DrawFn) -> Typed:
    digits = draw(st.integers(1, 76))
    behind = draw(st.integers(0, digits))
    schema: Any = {"logicalType": "decimal", "precision": digits, "scale": behind}
    if draw(st.booleans()):
        least = (10**digits).bit_length() // 8 + 1  # (one bit is the sign)
        size = draw(st.integers(least, 40))
        schema |= {"type": "fixed", "name": name(), "size": size}
    else:
        schema |= {"type": "bytes"}
    return Typed(schema, _decimals(digits, behind))


_PLAIN: list[Callable[[], Typed]] = [
    _plain("boolean", st.booleans()),
    _plain("int", st.integers(-(2**31), 2**31 - 1)),
    _plain("long", st.integers(-(2**63), 2**63 - 1)),
    _plain("float", st.floats(width=32)),
    _plain("double", st.floats()),
    _plain("bytes", st.binary(max_size=8)),
    _plain("string", TEXTS),
    _logical("int", "date", st.dates()),
    _logical("int", "time-millis", st.integers(0, 86_399_999).map(lambda ms: _time(ms * 1000))),
    _logical("long", "time-micros", st.integers(0, 86_399_999_999).map(_time)),
    _logical("long", "timestamp-millis", _MILLIS.map(lambda n: _EPOCH + timedelta(milliseconds=n))),
    _logical("long", "timestamp-micros", _MICROS.map(lambda n: _EPOCH + timedelta(microseconds=n))),
    _logical(
        "long",
        "local-timestamp-millis",
        _MILLIS.map(lambda n: (_EPOCH + timedelta(milliseconds=n)).replace(tzinfo=None)),
    ),
    _logical(
        "long",
        "local-timestamp-micros",
        _MICROS.map(lambda n: (_EPOCH + timedelta(microseconds=n)).replace(tzinfo=None)),
    ),
    _logical("string", "uuid", st.uuids()),
    _logical("int", "something-else", st.integers(-5, 5)),
    _enum,
    _fixed,
]


def plain() -> st.SearchStrategy[Typed]:
    """Types that are not nested."""
    return st.sampled_from(_PLAIN).map(lambda make: make()) | _decimal()


def _optional(inner: Typed) -> Typed:
    return Typed(["null", inner.schema], st.none() | inner.values)


def _optional_last(inner: Typed) -> Typed:
    return Typed([inner.schema, "null"], st.none() | inner.values)


def _array(inner: Typed) -> Typed:
    return Typed({"type": "array", "items": inner.schema}, st.lists(inner.values, max_size=3))


def _map(inner: Typed) -> Typed:
    return Typed(
        {"type": "map", "values": inner.schema}, st.dictionaries(TEXTS, inner.values, max_size=3)
    )


def record_of(inner: list[Typed]) -> Typed:
    names = [f"f{at}" for at in range(len(inner))]
    fields = [{"name": of, "type": one.schema} for of, one in zip(names, inner, strict=True)]
    values = st.fixed_dictionaries({of: one.values for of, one in zip(names, inner, strict=True)})
    return Typed({"type": "record", "name": name(), "fields": fields}, values)


def _nested(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    lists = inner.filter(lambda of: not isinstance(of.schema, list))
    return (
        lists.map(_optional)
        | lists.map(_optional_last)
        | inner.map(_array)
        | inner.map(_map)
        | st.lists(inner, min_size=1, max_size=3).map(record_of)
    )


def types() -> st.SearchStrategy[Typed]:
    """Types of any kind that have columns."""
    return st.recursive(plain(), _nested, max_leaves=5)


def records() -> st.SearchStrategy[Typed]:
    return st.lists(types(), min_size=1, max_size=4).map(record_of)


def shown(value: Any) -> Any:
    """Return a value of fastavro as one of a column: UUIDs are texts, maps are lists of pairs."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return {key: shown(of) for key, of in value.items()}
    if isinstance(value, list):
        return [shown(of) for of in value]
    if isinstance(value, float):
        return repr(value)  # (NaN is NaN, and minus zero is not zero)
    if isinstance(value, date | datetime | time | Decimal):
        return repr(value.replace(tzinfo=UTC) if getattr(value, "tzinfo", None) else value)
    return value
