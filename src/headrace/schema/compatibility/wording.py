"""Writes shapes as people write types."""

from __future__ import annotations

from typing import Any

from headrace.schema.compatibility.describe import Shape

#: Most fields of a record that are listed. The others are counted.
_MOST_FIELDS = 12


def in_words(shape: Shape, *, whole: bool = False) -> str:
    """Return a shape as one would write the type.

    Args:
        shape: the shape of a type.
        whole: whether a record is written with its fields, rather than by its name alone.
    """
    if isinstance(shape, str):
        return "None" if shape == "none" else shape
    match shape["is"]:
        case "none":
            return "None"
        case "union":
            return " | ".join(in_words(member) for member in shape["each"])
        case "literal":
            return f"Literal[{', '.join(repr(value) for value in shape['each'])}]"
        case "fixed tuple":
            return f"tuple[{', '.join(in_words(item) for item in shape['each'])}]"
        case "tuple":
            return f"tuple[{in_words(shape['of'])}, ...]{_limits(shape)}"
        case "dict":
            return f"dict[{in_words(shape['keys'])}, {in_words(shape['of'])}]{_limits(shape)}"
        case "enum":
            return f"{shape['name']}({', '.join(repr(value) for value in shape['each'])})"
        case _ if "fields" in shape:
            return f"{shape['name']}({_fields(shape['fields'])})" if whole else shape["name"]
        case _ if "of" in shape:
            return f"{shape['is']}[{in_words(shape['of'])}]{_limits(shape)}"
        case _:
            return f"{shape.get('name', shape['is'])}{_limits(shape)}"


def default_in_words(field: dict[str, Any]) -> str:
    """Return the default of a field; empty if it has none."""
    if "default" in field:
        return repr(field["default"])
    return f"{field['made by']}()" if "made by" in field else ""


def _fields(fields: list[dict[str, Any]]) -> str:
    parts = [_field(field) for field in fields[:_MOST_FIELDS]]
    more = len(fields) - len(parts)
    return ", ".join([*parts, f"and {more} more"] if more else parts)


def _field(field: dict[str, Any]) -> str:
    default = default_in_words(field)
    marks = f" = {default}" if default else "?" if field.get("optional") else ""
    return f"{field['name']}: {in_words(field['of'])}{marks}"


def _limits(shape: dict[str, Any]) -> str:
    parts = [
        f"{name}={limit!r}"
        for name, limit in shape.items()
        if name not in ("is", "of", "keys", "name")
    ]
    return f" ({', '.join(parts)})" if parts else ""
