"""Forms of composite values (lists, maps, structs), and of values that have no columns (JSON)."""

from __future__ import annotations

import copyreg
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain, starmap
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.errors.user_code import error_text, goes_on
from headrace.schema.alike import encoded, in_order, may_hold, names_no_zone, same_value
from headrace.schema.exact import (
    Misfit,
    as_plain,
    cast_lists,
    cast_maps,
    check_once,
    entries_of,
    family_of,
    first_of,
    in_item,
    items_of,
    list_of,
    map_of,
    parts_by_name,
    present_rows,
    spread,
    stored,
    wrong_kind,
)
from headrace.schema.forms import Form, refused, shortened
from headrace.schema.numbers import plain_number


class FormPart:
    """A field of a struct or record, or the items of a list: a form, and whether None is allowed.

    Args:
        name: the name of the attribute in Python.
        form: how values are kept.
        nullable: whether None is allowed.
        outside: the name outside of Python: in files, and in what sinks get.
        default: makes the value of an absent field; None for a field that must be present.
    """

    def __init__(
        self,
        name: str,
        form: Form,
        *,
        nullable: bool = False,
        outside: str = "",
        default: Callable[[], Any] | None = None,
    ) -> None:
        self.name = name
        self.form = form
        self.nullable = nullable
        self.outside = outside or name
        self.default = default

    @property
    def field(self) -> pa.Field:
        """The field as the engine keeps it."""
        return pa.field(self.name, self.form.arrow, nullable=self.nullable)

    @property
    def outside_field(self) -> pa.Field:
        """The field as it is outside of Python."""
        return pa.field(self.outside, self.form.outside, nullable=self.nullable)

    def to_arrow(self, values: Sequence[Any], zone: str | None) -> pa.Array:
        """Return values as a column; see :meth:`Form.to_arrow`."""
        return self._checked(self.form.to_arrow(values, zone))

    def to_python(self, column: pa.Array) -> list[Any]:
        """Return a column as values; see :meth:`Form.to_python`."""
        return self.form.to_python(self._checked(column))

    def read(self, column: pa.Array) -> pa.Array:
        """Return a column that others wrote as one of the part's type; see :meth:`Form.read`."""
        if pa.types.is_null(column.type):
            return self._checked(pa.nulls(len(column), self.form.arrow))
        return self._checked(self.form.read(as_plain(column)))

    def absent(self, rows: int) -> pa.Array | None:
        """Return the column of records that lack the field; None if they must have it."""
        if self.default is None:
            return pa.nulls(rows, self.form.arrow) if self.nullable else None
        make = self.default
        return self.to_arrow([make() for _ in range(rows)], None)

    def _checked(self, column: pa.Array) -> pa.Array:
        if column.null_count and not self.nullable:
            raise Misfit(first_of(column.is_null()), "it is None, and may not be")
        return column


def relabelled(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in a type that differs only in names, or in JSON instead of text."""
    if column.type.equals(kind):
        return column
    if isinstance(kind, pa.JsonType):
        return pa.ExtensionArray.from_storage(kind, column)
    if isinstance(column.type, pa.JsonType):
        return column.storage
    if not pa.types.is_nested(kind):
        return column
    if pa.types.is_struct(kind):
        there, present = present_rows(column)
        parts = [
            relabelled(part, field.type)
            for part, field in zip(present.flatten(), kind, strict=True)
        ]
        return spread(pa.StructArray.from_arrays(parts, fields=list(kind)), there, len(column))
    if pa.types.is_map(kind):
        offsets, keys, items = entries_of(column)
        keys, items = relabelled(keys, kind.key_type), relabelled(items, kind.item_type)
        return map_of(kind, offsets, keys, items, column)
    offsets, items = items_of(column)
    return list_of(kind, offsets, relabelled(items, kind.value_type), column)


def empty_of(kind: pa.DataType) -> pa.Array:
    """Return an empty column of a type. Arrow makes none for types that contain JSON."""
    return relabelled(pa.array([], stored(kind)), kind)


class Many(Form):
    """Lists, tuples and sets of items of one type.

    Attributes:
        item: the part for the items.
    """

    def __init__(
        self, type_name: str, make: type[Any], accepts: tuple[type, ...], item: FormPart
    ) -> None:
        self.type_name = type_name
        self.arrow = pa.list_(pa.field("item", item.form.arrow))
        self._make, self._accepts, self.item = make, accepts, item
        self._unordered = issubclass(make, set | frozenset)

    @property
    def outside(self) -> pa.DataType:
        return pa.list_(pa.field("item", self.item.form.outside))

    def to_arrow(self, values: Sequence[Any], zone: str | None) -> pa.Array:
        lists: list[Any] = []
        for row, value in enumerate(values):
            if value is None:
                lists.append(())
            elif isinstance(value, self._accepts):
                lists.append(_in_order(value) if self._unordered else value)
            elif isinstance(value, np.ndarray) and value.ndim == 1:
                lists.append(_items_of_numpy(value))
            else:
                raise refused(row, value, self.type_name)
        offsets = _offsets(lists)
        try:
            items = self.item.to_arrow(list(chain.from_iterable(lists)), zone)
        except Misfit as error:
            raise in_item(error, offsets) from None
        return list_of(self.arrow, offsets, items, _nones(values))

    def to_python(self, column: pa.Array) -> list[Any]:
        offsets, flat = items_of(column)
        try:
            items = self.item.to_python(flat)
        except Misfit as error:
            raise in_item(error, offsets) from None
        at, make = offsets.tolist(), self._make
        lists = [items[first:last] for first, last in zip(at[:-1], at[1:], strict=True)]
        found: list[Any] = lists if make is list else [make(one) for one in lists]
        return _with_nones(found, column)

    def read(self, column: pa.Array) -> pa.Array:
        return cast_lists(column, self.arrow, self.item.read)


class Dict(Form):
    """Dicts, kept as maps with their keys in the order of insertion.

    Attributes:
        key, item: the parts for keys and items.
    """

    def __init__(self, type_name: str, key: FormPart, item: FormPart) -> None:
        self.type_name = type_name
        self.arrow = pa.map_(key.form.arrow, item.form.arrow)
        self.key, self.item = key, item

    @property
    def outside(self) -> pa.DataType:
        return pa.map_(self.key.form.outside, self.item.form.outside)

    def to_arrow(self, values: Sequence[Any], zone: str | None) -> pa.Array:
        for row, value in enumerate(values):
            if value is not None and not isinstance(value, Mapping):
                raise refused(row, value, self.type_name)
        dicts = [{} if value is None else value for value in values]
        offsets = _offsets(dicts)
        keys = list(chain.from_iterable(dicts))
        items = list(chain.from_iterable(one.values() for one in dicts))
        try:
            new_keys = self.key.to_arrow(keys, zone)
            new_items = self.item.to_arrow(items, zone)
        except Misfit as error:
            raise in_item(error, offsets, repr(keys[error.row])[:80]) from None
        check_once(offsets, new_keys)  # (such as equal times in two zones)
        return map_of(self.arrow, offsets, new_keys, new_items, _nones(values))

    def to_python(self, column: pa.Array) -> list[Any]:
        offsets, old_keys, old_items = entries_of(column)
        try:
            keys, items = self.key.to_python(old_keys), self.item.to_python(old_items)
        except Misfit as error:
            raise in_item(error, offsets) from None
        at = offsets.tolist()
        found: list[Any] = [
            dict(zip(keys[first:last], items[first:last], strict=True))
            for first, last in zip(at[:-1], at[1:], strict=True)
        ]
        return _with_nones(found, column)

    def read(self, column: pa.Array) -> pa.Array:
        return cast_maps(column, self.arrow, self.key.read, self.item.read)


class RecordForm(Form):
    """Structs, dataclasses, named and fixed tuples, typed dicts: a part for each field.

    Args:
        type_name: the name of the type in messages.
        parts: the fields.
        accepts: the class whose instances are accepted.
        get: returns a getter for a field, given the field's name and position.
        make: makes a value from its fields, in their order.

    Attributes:
        is_tuple: whether the values are tuples, which others write as lists.
    """

    def __init__(
        self,
        type_name: str,
        parts: Sequence[FormPart],
        *,
        accepts: type[Any],
        get: Callable[[str, int], Callable[[Any], Any]],
        make: Callable[..., Any],
    ) -> None:
        self.type_name = type_name
        self.arrow = pa.struct([part.field for part in parts])
        self.parts, self.accepts, self._get, self._make = list(parts), accepts, get, make
        self._looks = looks_at_itself(accepts)
        self.is_tuple = issubclass(accepts, tuple)

    @property
    def outside(self) -> pa.DataType:
        return pa.struct([part.outside_field for part in self.parts])

    def to_arrow(self, values: Sequence[Any], zone: str | None) -> pa.Array:
        there = [row for row, value in enumerate(values) if value is not None]
        present = [values[row] for row in there]
        for row, value in zip(there, present, strict=True):
            if not isinstance(value, self.accepts | Mapping):
                raise refused(row, value, self.type_name)
            if isinstance(value, Mapping):
                self._check_names(value, row)
        given = any(not isinstance(value, self.accepts) for value in present)
        columns = []
        for at, part in enumerate(self.parts):
            try:
                if given:
                    column = self._of_mappings(present, part, at)
                else:
                    column = [self._field_of(v, part, at, n) for n, v in enumerate(present)]
                columns.append(part.to_arrow(column, zone))
            except Misfit as error:
                raise Misfit(there[error.row], error.why, f".{part.name}{error.path}") from None
        found = pa.StructArray.from_arrays(columns, fields=list(self.arrow))
        if not self.parts:
            found = pa.array([{}] * len(present), self.arrow)
        return spread(found, np.array(there, dtype=np.int64), len(values))

    def _field_of(self, value: Any, part: FormPart, at: int, row: int) -> Any:
        try:
            return self._get(part.name, at)(value)
        except (AttributeError, KeyError, IndexError):
            raise Misfit(row, f"it is missing in {str(value)[:80]}") from None

    def _of_mappings(self, values: list[Any], part: FormPart, at: int) -> list[Any]:
        """Return one field of values. Some may be mappings with the names from outside."""
        found = []
        for row, value in enumerate(values):
            if isinstance(value, self.accepts):
                found.append(self._field_of(value, part, at, row))
                continue
            found.append(field_of_mapping(value, part, row))
        return found

    def _check_names(self, value: Mapping[str, Any], row: int) -> None:
        known = {part.outside for part in self.parts}
        strange = next((name for name in value if name not in known), None)
        if strange is not None:
            raise Misfit(row, f"{self.type_name} has no field {strange!r}")

    def to_python(self, column: pa.Array) -> list[Any]:
        there, present = present_rows(column)
        lists = []
        for part, values in zip(self.parts, present.flatten(), strict=True):
            try:
                lists.append(part.to_python(values))
            except Misfit as error:
                path = f".{part.name}{error.path}"
                raise Misfit(int(there[error.row]), error.why, path) from None
        rows = zip(*lists, strict=True) if lists else iter([()] * len(present))
        try:
            made = all_made(self._make, rows)
        except Misfit as error:
            raise Misfit(int(there[error.row]), error.why) from None
        if len(there) == len(column):
            return made
        found: list[Any] = [None] * len(column)
        for row, value in zip(there.tolist(), made, strict=True):
            found[row] = value
        return found

    def read(self, column: pa.Array) -> pa.Array:
        if family_of(column.type) != "struct":
            raise wrong_kind(column, self.outside)
        there, present = present_rows(column)
        wanted = {name for part in self.parts for name in (part.outside, part.name)}
        columns = parts_by_name(present, wanted, there)
        made = []
        for part in self.parts:
            try:
                made.append(part_of_columns(part, columns, len(present)))
            except Misfit as error:
                path = f".{part.outside}{error.path}"
                raise Misfit(int(there[error.row]), error.why, path) from None
        found = pa.StructArray.from_arrays(made, fields=list(self.arrow))
        if not self.parts:
            found = pa.array([{}] * len(present), self.arrow)
        found = spread(found, there, len(column))
        if self._looks:
            self.to_python(found)
        return found


def looks_at_itself(cls: Any) -> bool:
    """Return whether a class may refuse values that its fields can hold (``__post_init__``)."""
    return hasattr(cls, "__post_init__")


def all_made(make: Callable[..., Any], rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Return a value for each row of fields.

    Raises:
        Misfit: for the first row from which no value can be made.
    """
    made: list[Any] = []
    try:
        made.extend(starmap(make, rows))
    except BaseException as error:  # (a user's class may raise anything)
        if goes_on(error):
            raise
        raise Misfit(len(made), error_text(error)) from error
    return made


def part_of_columns(part: FormPart, columns: Mapping[str, pa.Array], rows: int) -> pa.Array:
    """Return a field of columns that others wrote, or its default if its column is absent.

    Raises:
        Misfit: for a value that the field cannot hold, or when a required column is missing.
    """
    column = columns.get(part.outside)
    if column is None:
        column = columns.get(part.name)  # (as in older batches of an inbox)
    found = part.absent(rows) if column is None else part.read(column)
    if found is None:
        raise Misfit(0, f"there is no field {part.outside!r}")
    return found


def field_of_mapping(value: Mapping[str, Any], part: FormPart, row: int) -> Any:
    """Return a field of a mapping with the names from outside, or the field's default.

    Raises:
        Misfit: when a required field is missing.
    """
    if part.outside in value:
        return value[part.outside]
    if part.default is not None:
        return part.default()
    if not part.nullable:
        raise Misfit(row, f"{part.outside!r} is missing")
    return None


class Json(Form):
    """Values of unions and of other types that have no column: kept as JSON, in a column of texts.

    Outside, the column is of Arrow's JSON type, so that others can distinguish it from plain texts.
    """

    arrow = pa.string()

    @property
    def outside(self) -> pa.DataType:
        return pa.json_()

    def __init__(self, declared: Any, type_name: str) -> None:
        self.type_name = type_name
        self._declared = declared
        _decoder(declared)  # (raises for a type that cannot be decoded)
        self._has_times = _may_hold_times(declared)

    def to_arrow(self, values: Sequence[Any], zone: str | None) -> pa.Array:
        texts: list[str | None] = []
        for row, value in enumerate(values):
            texts.append(None if value is None else self._text(row, value))
        return pa.array(texts, pa.string())

    def _text(self, row: int, value: Any) -> str:
        try:
            text = _json(value)
            same = same_value(value, _decoder(self._declared).decode(text))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise refused(row, value, self.type_name, f"{shortened(value)}: {error}") from None
        if not same:
            raise refused(
                row, value, self.type_name, f"{shortened(value)} has no form in JSON of its own"
            )
        self._check_zone(row, value)
        return text.decode()

    def _check_zone(self, row: int, value: Any) -> None:
        if self._has_times and names_no_zone(value):
            raise Misfit(row, f"{shortened(value)} has no time zone, which no column says either")

    def to_python(self, column: pa.Array) -> list[Any]:
        found: list[Any] = []
        for row, text in enumerate(column.to_pylist()):
            try:
                found.append(None if text is None else _decoder(self._declared).decode(text))
            except (ValueError, RecursionError) as error:
                raise Misfit(
                    row, f"{text[:60]!r} is not of type {self.type_name}: {error}"
                ) from None
        return found

    def read(self, column: pa.Array) -> pa.Array:
        column = super().read(column)
        for row, value in enumerate(self.to_python(column)):
            self._check_zone(row, value)
        return column


def _may_hold_times(declared: Any) -> bool:
    try:
        return may_hold(datetime, declared)
    except NameError:  # (a forward reference cannot be resolved from here)
        return True


_IN_ORDER = msgspec.json.Encoder(enc_hook=plain_number, order="deterministic")
_AS_IT_IS = msgspec.json.Encoder(enc_hook=plain_number)


def _json(value: Any) -> bytes:
    try:
        return _IN_ORDER.encode(value)
    except TypeError:  # (such as for a dict whose keys are not texts)
        return _AS_IT_IS.encode(in_order(value))


@functools.cache
def _decoder(declared: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(declared)


class Constrained(Form):
    """Values within declared limits (``msgspec.Meta``), such as numbers above zero."""

    def __init__(self, inner: Form, declared: Any) -> None:
        self.inner, self._declared = inner, declared
        self.arrow, self.type_name = inner.arrow, inner.type_name

    @property
    def outside(self) -> pa.DataType:
        return self.inner.outside

    def to_arrow(self, values: Sequence[Any], zone: str | None) -> pa.Array:
        self._check(values)
        return self.inner.to_arrow(values, zone)

    def _check(self, values: Iterable[Any]) -> None:
        for row, value in enumerate(values):
            if value is None:
                continue
            try:
                msgspec.convert(plain_number(value, strict=False), self._declared)
            except (msgspec.ValidationError, TypeError) as error:
                raise refused(row, value, self.type_name, f"{str(value)[:60]!r}: {error}") from None

    def to_python(self, column: pa.Array) -> list[Any]:
        return self.inner.to_python(column)

    def read(self, column: pa.Array) -> pa.Array:
        column = self.inner.read(column)
        self._check(self.inner.to_python(column))
        return column


#: What ``msgspec.Meta`` can say.
META = (
    "gt",
    "ge",
    "lt",
    "le",
    "multiple_of",
    "pattern",
    "min_length",
    "max_length",
    "tz",
    "title",
    "description",
    "examples",
    "extra_json_schema",
    "extra",
)


def _limits(given: dict[str, Any]) -> msgspec.Meta:
    return msgspec.Meta(**given)


def _reduced(limits: msgspec.Meta) -> tuple[Any, ...]:
    given = {name: getattr(limits, name) for name in META}
    return _limits, ({name: of for name, of in given.items() if of is not None},)


copyreg.pickle(msgspec.Meta, _reduced)  # (types travel to tasks, and pickle alone cannot do it)


def _in_order(values: Any) -> list[Any]:
    """Return the elements of a set in an order that is the same in every process."""
    return sorted(values, key=encoded)


def _items_of_numpy(array: Any) -> list[Any]:
    """Return the items of an array. Times that Python cannot represent stay NumPy scalars."""
    if array.dtype.kind not in "mM":
        found: list[Any] = array.tolist()
        return found
    return [
        one if plain is None or isinstance(plain, int) else plain
        for one, plain in zip(array, array.tolist(), strict=True)
    ]


def _offsets(values: Sequence[Any]) -> Any:
    offsets = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    return offsets


def _nones(values: Sequence[Any]) -> pa.Array:
    """Return an array that is null where values are None."""
    return pa.array([None if value is None else True for value in values], pa.bool_())


def _with_nones(found: list[Any], column: pa.Array) -> list[Any]:
    if not column.null_count:
        return found
    there = column.is_valid().to_pylist()
    return [value if is_there else None for value, is_there in zip(found, there, strict=True)]


def by_attribute(name: str, at: int) -> Callable[[Any], Any]:
    """Return a getter for a field that is an attribute."""
    return operator.attrgetter(name)


def by_place(name: str, at: int) -> Callable[[Any], Any]:
    """Return a getter for a field that has a position."""
    return operator.itemgetter(at)


def by_key(name: str, at: int) -> Callable[[Any], Any]:
    """Return a getter for a field that is a key of a mapping."""
    return operator.itemgetter(name)
