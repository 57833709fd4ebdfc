"""Checks a shape that comes from storage: whether it has the parts that its kind has.

Whoever compares shapes may then take them for granted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: The parts that a shape of each kind must have.
_LISTS = ("list", "set", "frozenset", "tuple", "collection")
_RECORDS = ("record", "array record", "typed dict", "named tuple")
_PARTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_LISTS, ("of",)),
    **dict.fromkeys(_RECORDS, ("name", "fields")),
    "dict": ("keys", "of"),
    "union": ("each",),
    "fixed tuple": ("each",),
    "literal": ("each",),
    "enum": ("name", "each"),
    "again": ("name",),
}
_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length")
_TEXTS, _LISTED = ("is", "name"), ("each", "fields")


def check_shape(shape: Any) -> None:
    """Check a shape from storage.

    Raises:
        ValueError: saying what is wrong with it.
    """
    known: set[str] = set()
    again: set[str] = set()
    for part in _within(shape):
        if part["is"] == "again":
            again.add(part["name"])
        elif "name" in part:
            known.add(part["name"])
    if again - known:
        raise ValueError(f"{sorted(again - known)[0]!r} is described nowhere")


def _within(shape: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every part of a shape that is more than a word."""
    if isinstance(shape, str):
        return
    if not isinstance(shape, Mapping) or not isinstance(shape.get("is"), str):
        raise ValueError(f"{str(shape)[:60]} does not say what it is")
    for name in _PARTS.get(shape["is"], ()):
        if name not in shape:
            raise ValueError(f"a {shape['is']} lacks {name!r}")
    for name in _TEXTS:
        if not isinstance(shape.get(name, ""), str):
            raise ValueError(f"{name!r} of a {shape['is']} is no text")
    for name in _LISTED:
        if not isinstance(shape.get(name, []), list):
            raise ValueError(f"{name!r} of a {shape['is']} is no list")
    if shape["is"] in ("literal", "enum", "union") and not shape["each"]:
        raise ValueError(f"a {shape['is']} has no member")
    for name in _LIMITS:
        if isinstance(shape.get(name, 0), bool) or not isinstance(shape.get(name, 0), int | float):
            raise ValueError(f"{name!r} of a {shape['is']} is no number")
    yield shape
    yield from _inside(shape)


def _inside(shape: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for name in ("of", "keys"):
        if name in shape:
            yield from _within(shape[name])
    if shape["is"] in ("union", "fixed tuple"):
        for each in shape["each"]:
            yield from _within(each)
    for field in shape.get("fields", ()):
        if not isinstance(field, Mapping) or not isinstance(field.get("name"), str):
            raise ValueError(f"a field of a {shape['is']} has no name")
        if "of" not in field:
            raise ValueError(f"field {field['name']!r} has no type")
        yield from _within(field["of"])
