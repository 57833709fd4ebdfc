"""Compares two shapes: finds why values stored under one could not be read under the other.

The rule is narrow on purpose. A difference passes only if *every* value that was encoded under the
old type decodes under the new one and means the same. This must stay true through any number of
such changes. So a field that is added needs a default. And once rows may lack a field, its default
may not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headrace.schema.compatibility.describe import Shape
from headrace.schema.compatibility.wording import default_in_words, in_words

#: Largest integer up to which a float represents every integer.
_EXACT_FLOATS = 1 << 53
_LOWER, _UPPER = ("gt", "ge", "min_length"), ("lt", "le", "max_length")
#: Kinds by which a stored value is assigned to one member of a union when it is read.
_WIRE = {
    "int": "int",
    "float": "float",
    "bool": "bool",
    "none": "none",
    "any": "any",
    "ext": "ext",
    "raw": "any",
    "list": "array",
    "set": "array",
    "frozenset": "array",
    "tuple": "array",
    "collection": "array",
    "fixed tuple": "array",
    "named tuple": "array",
    "array record": "array",
    "dict": "map",
    "typed dict": "map",
    "record": "map",
}


def differences(old: Shape, new: Shape) -> list[str]:
    """Return, in words, why values of an old shape cannot be read as a new one; empty if all can.

    Args:
        old: the shape that was stored.
        new: the shape that is declared now.
    """
    return list(_Comparison(old, new).compare(old, new, ""))


class _Comparison:
    """One comparison. Classes that contain themselves are compared once."""

    def __init__(self, old: Shape, new: Shape) -> None:
        self._old, self._new = dict(_classes(old)), dict(_classes(new))
        self._compared: set[tuple[str, str]] = set()

    def compare(self, old: Shape, new: Shape, at: str) -> Iterator[str]:
        """Yield the differences of two shapes; ``at`` is the path to them."""
        olds = [self._full(self._old, member) for member in _members(old)]
        news = [self._full(self._new, member) for member in _members(new)]
        if len(olds) == len(news) == 1:
            yield from self._pair(olds[0], news[0], at)
            return
        had, has = ({_wire(member) for member in members} for members in (olds, news))
        if "float" in had and "int" in has and "int" not in had:
            # A float that was given as a whole number is stored as one.
            yield f"{_where(at)}int was added beside float, and stored whole numbers would become int"
        for member in olds:
            partner = _partner(member, news)
            if partner is None:
                yield f"{_where(at)}{in_words(member)} was allowed, is not"
            else:
                yield from self._pair(member, partner, at)

    def _full(self, classes: Mapping[str, Shape], shape: Shape) -> dict[str, Any]:
        if isinstance(shape, str):
            return {"is": shape}
        found: dict[str, Any] = classes[shape["name"]] if shape["is"] == "again" else shape
        return found

    def _pair(self, old: dict[str, Any], new: dict[str, Any], at: str) -> Iterator[str]:
        changed = f"{_where(at)}was {in_words(old)}, is {in_words(new)}"
        was, is_ = old["is"], new["is"]
        if "fields" in old and "fields" in new:
            pair = (old["name"], new["name"])
            if pair not in self._compared:
                self._compared.add(pair)
                yield from self._records(old, new, at)
        elif was in ("literal", "enum") and is_ == was:
            gone = [value for value in old["each"] if value not in new["each"]]
            if gone:
                yield f"{_where(at)}{', '.join(map(repr, gone))} was allowed, is not"
        elif was == "literal" and is_ in ("int", "str") and new == {"is": is_}:
            if type(old["each"][0]).__name__ != is_:
                yield changed
        elif was == "int" and is_ == "float" and len(new) == 1:
            if not _fits_float(old):
                yield f"{changed}: not every int is one exactly (bound it with msgspec.Meta(ge=, le=))"
        elif was != is_ or old.get("name") != new.get("name"):
            yield changed
        elif was == "fixed tuple":
            yield from self._tuples(old["each"], new["each"], changed, at)
        else:
            yield from self._alike(old, new, at)

    def _alike(self, old: dict[str, Any], new: dict[str, Any], at: str) -> Iterator[str]:
        yield from _narrowed(old, new, at)
        if "keys" in old:
            yield from self.compare(old["keys"], new["keys"], f"{at}{{keys}}")
        if "of" in old:
            yield from self.compare(old["of"], new["of"], f"{at}[]")

    def _tuples(
        self, old: Sequence[Shape], new: Sequence[Shape], changed: str, at: str
    ) -> Iterator[str]:
        if len(old) != len(new):
            yield changed
            return
        for number, (was, is_) in enumerate(zip(old, new, strict=True)):
            yield from self.compare(was, is_, f"{at}[{number}]")

    def _records(self, old: dict[str, Any], new: dict[str, Any], at: str) -> Iterator[str]:
        if old["is"] != new["is"]:
            yield f"{_where(at)}was a {old['is']}, is a {new['is']}"
        if old.get("tagged") != new.get("tagged"):
            yield f"{_where(at)}its tag was {old.get('tagged')}, is {new.get('tagged')}"
        known = {field["name"]: field for field in old["fields"]}
        now = {field["name"]: field for field in new["fields"]}
        by_place = old["is"] in ("array record", "named tuple")
        if by_place and list(now)[: len(known)] != list(known):
            names = (", ".join(fields) for fields in (known, now))
            yield "{}the fields are stored in order, which was ({}), is ({})".format(
                _where(at), *names
            )
            return
        for name, field in known.items():
            if name not in now:
                yield f"{_where(f'{at}.{name}')}was removed"
            else:
                yield from self._fields(field, now[name], f"{at}.{name}")
        for name, field in now.items():
            if name not in known and _is_required(field):
                yield f"{_where(f'{at}.{name}')}was added without a default"

    def _fields(self, old: dict[str, Any], new: dict[str, Any], at: str) -> Iterator[str]:
        yield from self.compare(old["of"], new["of"], at)
        if _is_required(old):
            return
        if _is_required(new):
            yield f"{_where(at)}lost its default, which rows without it need"
        elif _default(old) != _default(new):
            yield (
                f"{_where(at)}had the default {default_in_words(old) or 'none'}, "
                f"has {default_in_words(new) or 'none'}: rows without it would be read otherwise"
            )


def _classes(shape: Shape) -> Iterator[tuple[str, Shape]]:
    """Yield (name, shape) of every class that is described within a shape."""
    if isinstance(shape, dict):
        if "name" in shape and shape.get("is") not in (None, "again"):
            yield shape["name"], shape
        for key, part in shape.items():
            if key != "default":
                yield from _classes(part)
    elif isinstance(shape, list):
        for part in shape:
            yield from _classes(part)


def _members(shape: Shape) -> list[Shape]:
    is_union = isinstance(shape, dict) and shape["is"] == "union"
    return list(shape["each"]) if is_union else [shape]


def _wire(shape: dict[str, Any]) -> str:
    """Return the kind of a shape's stored values, by which a union's members are distinguished.

    Shapes that ``_WIRE`` does not list are of one kind: a union can have only one of them.
    """
    if shape["is"] in ("literal", "enum"):
        return "int" if all(type(value) is int for value in shape["each"]) else "text"
    return _WIRE.get(shape["is"], "text")


def _partner(member: dict[str, Any], news: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the member of a union that reads a member of another one; None if none does."""
    wire = _wire(member)
    alike = [new for new in news if _wire(new) == wire]
    if not alike and wire == "int":
        alike = [new for new in news if new["is"] == "float"]
    if "tagged" in member:
        alike = [new for new in alike if new.get("tagged") == member["tagged"]]
    return alike[0] if alike else None


def _is_required(field: dict[str, Any]) -> bool:
    return not ({"default", "made by", "optional"} & set(field))


def _default(field: dict[str, Any]) -> dict[str, Any]:
    return {name: field[name] for name in ("default", "made by", "optional") if name in field}


def _fits_float(shape: dict[str, Any]) -> bool:
    low = max(shape.get("ge", -_EXACT_FLOATS - 1), shape.get("gt", -_EXACT_FLOATS - 2) + 1)
    high = min(shape.get("le", _EXACT_FLOATS + 1), shape.get("lt", _EXACT_FLOATS + 2) - 1)
    return bool(low >= -_EXACT_FLOATS and high <= _EXACT_FLOATS)


def _narrowed(old: dict[str, Any], new: dict[str, Any], at: str) -> Iterator[str]:
    """Yield the new limits that old values may violate."""
    for name in (*_LOWER, *_UPPER, "multiple_of", "pattern", "tz"):
        if name not in new:
            continue
        was, is_ = old.get(name), new[name]
        looser = was is not None and (
            (name in _LOWER and is_ <= was) or (name in _UPPER and is_ >= was) or is_ == was
        )
        if not looser:
            yield f"{_where(at)}is limited by {name}={is_!r} now"


def _where(at: str) -> str:
    """Return the path to a difference, as the beginning of its description."""
    return f"field {at.removeprefix('.')!r} " if at.startswith(".") else f"{at} " if at else ""
