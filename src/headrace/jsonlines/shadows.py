"""Types for msgspec's decoder, which decodes JSON that Arrow's own reader cannot read.

A *shadow* of a column's type accepts what the column may hold as it is written in JSON: times,
dates, bytes and decimals as strings, maps as objects. The decoded values become an Arrow column of
the *type as read*, in which these are still strings. :mod:`headrace.jsonlines.texts` turns them
into values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import pyarrow as pa

from headrace.jsonlines.scanning import BARE_NUMBERS, NAMED_NUMBERS
from headrace.jsonlines.writing import json_lines
from headrace.schema.exact import family_of
from headrace.schema.forms import Form
from headrace.schema.nested import Constrained, Dict, FormPart, Many, RecordForm, relabelled
from headrace.schema.shown import as_kept, is_shown, is_sparse

Convert = Callable[[Any], Any]

_NUMBERS = dict.fromkeys(("NaN", BARE_NUMBERS[0]), math.nan) | {
    name: float(name.removeprefix(BARE_NUMBERS[0][0]))
    for name in (*NAMED_NUMBERS[1:], *BARE_NUMBERS[1:])
}
_AS_TEXT = (
    "point in time",
    "time without a zone",
    "date",
    "time of day",
    "duration",
    "bytes",
    "decimal",
)


def type_as_read(kind: pa.DataType) -> pa.DataType:
    """Return the type that a column has as read, while encoded values are still strings."""
    family = family_of(kind)
    if family in _AS_TEXT or family == "text" or isinstance(kind, pa.JsonType):
        return pa.string()
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return type_as_read(kind.value_type)
    if family == "list":
        return pa.list_(type_as_read(kind.value_type))
    if family == "map":
        return pa.map_(pa.string(), type_as_read(kind.item_type))
    if family == "struct":
        return pa.struct([pa.field(field.name, type_as_read(field.type)) for field in kind])
    return kind


def arrow_can(kind: pa.DataType, part: FormPart | None) -> bool:
    """Return whether Arrow's reader can read a column as its :func:`type_as_read`."""
    form = _form_of(part)
    family = family_of(kind)
    if family in ("bool", "int", "text", *_AS_TEXT):
        return True
    if family == "float":
        return bool(kind.bit_width > 16)
    if family == "list":
        return arrow_can(kind.value_type, _item_of(form))
    if family == "struct":
        parts = _parts_of(form)
        names = [field.name for field in kind]
        return bool(names) and all(arrow_can(f.type, parts.get(f.name)) for f in kind)
    return False


def has_defaults(part: FormPart | None) -> bool:
    """Return whether a field, or one inside it, has a default other than null."""
    if part is None:
        return False
    if part.default is not None and part.default() is not None:
        return True
    form = _form_of(part)
    return any(map(has_defaults, _parts_of(form).values())) or has_defaults(_item_of(form))


def _form_of(part: FormPart | None) -> Form | None:
    """Return the form of a field, without constraints on its values."""
    form = None if part is None else part.form
    return form.inner if isinstance(form, Constrained) else form


def _item_of(form: Form | None) -> FormPart | None:
    """Return the item of a list or a map."""
    return form.item if isinstance(form, Many | Dict) else None


def _parts_of(form: Form | None) -> dict[str, FormPart]:
    return {part.outside: part for part in form.parts} if isinstance(form, RecordForm) else {}


class Shadow:
    """The type that a column is decoded to, and how its values are converted for Arrow.

    Args:
        kind: the column's type.
        part: the field that the column is for, if known.
        exactly: whether to refuse floats that are not exactly the number that is written.

    Attributes:
        type: the type for msgspec's decoder.
        convert: converts decoded values to items of an Arrow array of the type as read; None if
            they need no conversion.
    """

    def __init__(
        self, kind: pa.DataType, part: FormPart | None = None, *, exactly: bool = False
    ) -> None:
        self.type, self.convert = _shadow(kind, _form_of(part), exactly)


def row_type(columns: dict[str, Shadow], parts: dict[str, FormPart]) -> type[msgspec.Struct]:
    """Return the shadow of a record or struct. Its fields are called ``f0``, ``f1``, …"""
    names = list(columns)
    fields: list[Any] = [
        (f"f{at}", columns[name].type, _absent(parts.get(name), columns[name].type))
        for at, name in enumerate(names)
    ]
    rename = {f"f{at}": name for at, name in enumerate(names)}
    return msgspec.defstruct("Row", fields, rename=rename, gc=False)


def _absent(part: FormPart | None, shadow: Any) -> Any:
    """Return what an absent field is decoded to: its default, as it would be written in JSON."""
    if part is None or part.default is None or not has_defaults(part):
        return None
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(dict[str, shadow])

    def default() -> Any:
        column = part.absent(1)
        assert column is not None  # there is a default
        line = json_lines(pa.table({"value": relabelled(column, part.form.outside)}))
        return decoder.decode(line)["value"]

    return msgspec.field(default_factory=default)


def _shadow(kind: pa.DataType, form: Any, exactly: bool) -> tuple[Any, Convert | None]:
    if isinstance(kind, pa.JsonType):
        return msgspec.Raw, _raw_text
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _shadow(kind.value_type, None, exactly)
    family = family_of(kind)
    if family in _NESTED:
        return _NESTED[family](kind, form, exactly)
    if family not in _PLAIN:
        raise pa.ArrowInvalid(f"a column of {kind} cannot be read from JSON")
    if family == "float" and exactly:
        return msgspec.Raw, _exact_float(kind)
    return _PLAIN[family]


def _exact_float(kind: pa.DataType) -> Convert:
    """Return a function that makes floats of texts, and refuses those that no such float shows."""

    def number_of(raw: msgspec.Raw | None) -> float | None:
        text = _raw_text(raw)
        if text is None or text.startswith('"'):
            return None if text is None else _NUMBERS[msgspec.json.decode(text)]
        number = as_kept(float(text), kind)
        if is_sparse(number, kind) and not is_shown(text, number):
            raise ValueError(f"{text} is not a number of type {kind}")
        return number

    return number_of


def _raw_text(raw: msgspec.Raw | None) -> str | None:
    text = b"null" if raw is None else bytes(raw)
    return None if text == b"null" else text.decode()


def _digits_or_text(raw: msgspec.Raw | None) -> str | None:
    """Return a string, or the digits of a number as written, since a float would round them."""
    text = _raw_text(raw)
    if text is None or text[0] in "-0123456789":
        return text
    if text[0] != '"':
        raise ValueError(f"{text[:80]} is neither a text nor a number")
    return str(msgspec.json.decode(text)) if "\\" in text else text[1:-1]


def _number_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else repr(value)


def _float(value: Any) -> float | None:
    return _NUMBERS[value] if isinstance(value, str) else value


_PLAIN: dict[str, tuple[Any, Convert | None]] = {
    "bool": (bool | None, None),
    "int": (int | None, None),
    "float": (float | Literal[(*NAMED_NUMBERS, *BARE_NUMBERS)] | None, _float),
    "text": (str | None, None),
    "bytes": (str | None, None),
    "date": (str | int | None, _number_text),
    "time of day": (str | None, None),
    "duration": (str | None, None),
    "decimal": (msgspec.Raw, _digits_or_text),
    "point in time": (msgspec.Raw, _digits_or_text),
    "time without a zone": (msgspec.Raw, _digits_or_text),
}


def _list(kind: pa.DataType, form: Any, exactly: bool) -> tuple[Any, Convert | None]:
    inner, convert = _shadow(kind.value_type, _form_of(_item_of(form)), exactly)
    if convert is None:
        return list[inner] | None, None  # type: ignore[valid-type]

    def converted(values: Any) -> Any:
        return None if values is None else [convert(value) for value in values]

    return list[inner] | None, converted  # type: ignore[valid-type]


def _map(kind: pa.DataType, form: Any, exactly: bool) -> tuple[Any, Convert | None]:
    inner, convert = _shadow(kind.item_type, _form_of(_item_of(form)), exactly)

    def converted(values: Any) -> Any:
        if values is None:
            return None
        if convert is None:
            return list(values.items())
        return [(key, convert(value)) for key, value in values.items()]

    return dict[str, inner] | None, converted  # type: ignore[valid-type]


def _struct(kind: pa.DataType, form: Any, exactly: bool) -> tuple[Any, Convert | None]:
    parts = _parts_of(form)
    columns = {
        field.name: Shadow(field.type, parts.get(field.name), exactly=exactly) for field in kind
    }
    made: Any = row_type(columns, parts)
    each = [(f"f{at}", name, shadow.convert) for at, (name, shadow) in enumerate(columns.items())]

    def converted(value: Any) -> Any:
        if value is None:
            return None
        values = value if type(value) is tuple else [getattr(value, field) for field, _, _ in each]
        return {
            name: of if convert is None else convert(of)
            for (_, name, convert), of in zip(each, values, strict=True)
        }

    if isinstance(form, RecordForm) and form.is_tuple and columns:  # msgspec writes tuples as lists
        made = made | tuple[tuple(shadow.type for shadow in columns.values())]  # type: ignore[misc]
    return made | None, converted


_NESTED: dict[str, Callable[[pa.DataType, Any, bool], tuple[Any, Convert | None]]] = {
    "list": _list,
    "map": _map,
    "struct": _struct,
}
