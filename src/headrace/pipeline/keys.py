"""How a computation keys the streams that it reads: by columns, the producer's key, or a salt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headrace.errors import PipelineError
from headrace.keyspace.hashing import key_type_problem
from headrace.pipeline.arguments import check_listed
from headrace.pipeline.streams import Stream
from headrace.schema.declared import form_of
from headrace.schema.forms import Plain
from headrace.schema.row_columns import RowColumn

#: The key with which a consumer keeps the producer's key.
KEY = "key"


class Salt(msgspec.Struct, frozen=True):
    """A part of a key that is computed from the record: a number in [0, ``parts``), evenly spread.

    Use it for a key with more records than one worker can take. ``keys={hits: ("page", Salt(16))}``
    divides each page's records among sixteen keys. Their results are then combined by page; see
    :func:`headrace.ops.two_phase`. The number depends only on the record's event time and the
    columns ``by``. So it is the same however often the record is read.

    Args:
        parts: the number of keys into which each key is divided.
        by: columns that differ between records of one time.

    Example::

        parts = hr.ops.Running(visits=hr.ops.Count())
        p.compute("parts", parts, keys={hits: ("page", hr.Salt(16, by=("user",)))})
    """

    parts: int
    by: tuple[str, ...] = ()


class Hashed(msgspec.Struct, frozen=True):
    """A part of a key that is computed from the record: a hash of some columns, whatever they hold.

    A column of a key must not be null, and not be a float or a decimal. Here nulls, NaN, floats and
    decimals are values like others, as in SQL's GROUP BY: records have one key if their columns are
    equal, null equals null, NaN equals NaN, and -0.0 equals 0.0. The key is the hash, a number of 64
    bits. Different columns may share it, however rarely, so a computation that relies on more
    compares the columns.

    Args:
        columns: the columns; none for one key for all records.

    Example::

        users = hr.ops.Running(hits=hr.ops.Count())
        p.compute("users", users, keys={hits: hr.Hashed(("user", "ms"))})
    """

    columns: tuple[str, ...] = ()


class Computed(msgspec.Struct, frozen=True):
    """A part of a key that a function of yours computes from columns, many records at once.

    Args:
        function: gets the columns, one Arrow array each, and returns the parts: an Arrow or NumPy
            array, or a list, of one value for each record. None of them may be null. It must give
            the same for the same records, however they are divided.
        columns: the columns that it gets.
        type: the type of the part: ``str``, ``int``, ``bytes``, ``bool``, ``datetime`` or ``date``.

    Cost: that of the function, where records are routed: in the driver for small steps. For a
    function of single values, loop over ``column.to_pylist()``; that costs a Python call a record.

    Example::

        import pyarrow.compute as pc

        by_site = hr.Computed(pc.utf8_lower, columns=("page",))
        p.compute("sites", hr.ops.Running(hits=hr.ops.Count()), keys={hits: by_site})
    """

    function: Callable[..., Any]
    columns: tuple[str, ...]
    type: Any = str


KeyPartSpec = str | Salt | Hashed | Computed
KeySpec = KeyPartSpec | Sequence[KeyPartSpec]


def check_keys(keys: object, reader: str) -> Mapping[Any, Any]:
    """Return keys as they were given, after a check that they are given for each stream.

    Raises:
        PipelineError: if they are not.
    """
    if not isinstance(keys, Mapping):
        raise PipelineError(
            f"computation {reader!r}: keys={keys!r} says of no stream what its key is",
            remedy='give a dict of stream → column: keys={stream: "user"}',
        )
    return keys


def key_of(
    stream: Stream, spec: KeySpec, reader: str
) -> tuple[tuple[KeyPartSpec, ...] | None, tuple[pa.Field, ...]]:
    """Return the columns by which a reader keys a stream, and the parts of that key.

    The columns are None if the stream keeps the producer's key.

    Raises:
        PipelineError: if the stream cannot be keyed in this way.
    """
    columns = _parts(spec, stream, reader)
    schema = stream.values.schema
    if columns == (KEY,) and KEY not in schema.names and stream.key_fields:
        return None, stream.key_fields
    fields = []
    for column in columns:
        if isinstance(column, Salt):
            if not isinstance(column.parts, int) or column.parts < 1:
                raise PipelineError(f"computation {reader!r}: a salt has at least one part")
            check_listed("by", column.by, f"computation {reader!r}: a salt")
            for name in column.by:
                _key_field(stream, name, reader)
            fields.append(pa.field("salt", pa.int64(), nullable=False))
        elif isinstance(column, Hashed):
            check_listed("columns", column.columns, f"computation {reader!r}: a hash")
            for name in column.columns:
                _hashable(stream, name, reader)
            fields.append(pa.field("hash", pa.int64(), nullable=False))
        elif isinstance(column, Computed):
            fields.append(_computed_field(stream, column, reader))
        else:
            fields.append(_key_field(stream, column, reader))
    if not fields:
        raise PipelineError(f"computation {reader!r}: the key of {stream.name!r} has no column")
    return columns, tuple(fields)


def _parts(spec: KeySpec, stream: Stream, reader: str) -> tuple[KeyPartSpec, ...]:
    """Return the parts of a key as given, after a check that they are columns or salts."""
    parts: tuple[object, ...] = ()
    if isinstance(spec, str | Hashed | Computed):
        parts = (spec,)
    elif isinstance(spec, Iterable):
        parts = tuple(spec)
    columns = tuple(part for part in parts if isinstance(part, str | Salt | Hashed | Computed))
    if columns == parts and (parts or isinstance(spec, Iterable)):
        return columns
    raise PipelineError(
        f"computation {reader!r}: the key of {stream.name!r} is {spec!r}, which names no columns",
        remedy='name a column, or a tuple of them: keys={stream: "user"}; for a function of columns, '
        "give hr.Computed(function, columns=(…,))",
    )


def _key_field(stream: Stream, column: str, reader: str) -> pa.Field:
    """Return a column as part of a key.

    Raises:
        PipelineError: if the stream does not have the column, or it cannot be part of a key.
    """
    field = _column(stream, column, reader)
    problem = key_type_problem(field.type)
    if problem:
        raise PipelineError(
            f"computation {reader!r} keys stream {stream.name!r} by {column!r}: {problem}"
        )
    return pa.field(column, _stored_key_type(field.type), nullable=False)


def _computed_field(stream: Stream, part: Computed, reader: str) -> pa.Field:
    """Return a computed part of a key.

    Raises:
        PipelineError: if it is not a function of columns that the stream has, or its type cannot be
            part of a key.
    """
    place = f"computation {reader!r}: a computed key"
    check_listed("columns", part.columns, place)
    for name in part.columns:
        _column(stream, name, reader)
    if not callable(part.function):
        raise PipelineError(f"{place}: {part.function!r} is not a function")
    form = form_of(part.type, place)
    arrow = form.arrow if isinstance(form, Plain) else None
    problem = "a part of a key is a plain value" if arrow is None else key_type_problem(arrow)
    if arrow is None or problem:
        raise PipelineError(f"{place} is of type {part.type!r}: {problem}", remedy="use str or int")
    return pa.field("computed", _stored_key_type(arrow), nullable=False)


def _hashable(stream: Stream, column: str, reader: str) -> None:
    """Check that a stream has a column, and that its values have a hash.

    Raises:
        PipelineError: if not.
    """
    field = _column(stream, column, reader)
    RowColumn.of(field, f"computation {reader!r}, stream {stream.name!r}")


def _column(stream: Stream, column: str, reader: str) -> pa.Field:
    """Return a column of a stream.

    Raises:
        PipelineError: if it has none of that name.
    """
    schema = stream.values.schema
    if column not in schema.names:
        raise PipelineError(
            f"computation {reader!r} keys stream {stream.name!r} by {column!r}, "
            "which it does not have",
            remedy=f"its columns are: {', '.join(schema.names)}",
        )
    return schema.field(column)


def _stored_key_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which keys of this type are stored, whatever their width outside."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_uint64(kind):
        return kind
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    return kind


def common_key(
    keys: list[tuple[pa.Field, ...]], inputs: list[Stream], reader: str
) -> tuple[pa.Field, ...]:
    """Return the parts of the one key by which a computation reads all its inputs.

    Raises:
        PipelineError: if its inputs have keys of different types.
    """
    first = [field.type for field in keys[0]]
    for fields, stream in zip(keys[1:], inputs[1:], strict=True):
        if [field.type for field in fields] != first:
            raise PipelineError(
                f"computation {reader!r} has keys of different types: "
                f"{[str(kind) for kind in first]} in {inputs[0].name!r}, "
                f"{[str(field.type) for field in fields]} in {stream.name!r}",
                remedy="a computation has one key type; convert the column of one stream",
            )
    return tuple(pa.field(f"key{i}", kind, nullable=False) for i, kind in enumerate(first))
