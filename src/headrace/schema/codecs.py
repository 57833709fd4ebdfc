"""Codecs of state values: typed and checked. Headrace's own never execute what they read."""

from __future__ import annotations

import dataclasses
import hashlib
import types
import typing
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import numpy as np

from headrace.errors import PipelineError
from headrace.errors.user_code import error_text, goes_on, raise_again
from headrace.schema.alike import PLAIN, encoded, may_hold, same_types
from headrace.schema.compatibility import shape_of_type
from headrace.schema.forms import shortened

_IMMUTABLE: tuple[Any, ...] = (
    int,
    float,
    str,
    bytes,
    bool,
    date,
    datetime,
    timedelta,
    time,
    Decimal,
    UUID,
    type(None),
    frozenset,
)
#: Types that say nothing about what a value contains.
_UNTYPED: tuple[Any, ...] = (Any, object, list, dict, tuple, set, frozenset)
_EXACT: tuple[Any, ...] = (int, float, str, bytes, bool)
#: An attribute of frozen structs. True means that whatever makes one checks the values, and that
#: they are the same after they were written and read. So they need not be read to see that.
SETTLED = "__settled__"


_CODEC_REMEDY = "fix the codec and start again: what is stored is as it was"


class StateCodec:
    """Encodes values of one declared type, with MessagePack or with the user's own codec.

    An encoded value is decoded again before it may be kept, except for exact scalars. So a value
    that could not be read back is refused while the user's code that set it can still be named.
    """

    def __init__(self, declared: Any, user_codec: Any, *, place: str) -> None:
        self.declared = declared
        self._user = user_codec
        self._place = place
        self._exact = user_codec is None and (
            declared in _EXACT or getattr(declared, SETTLED, False) is True
        )
        self.immutable = user_codec is None and is_immutable(declared)
        #: Whether values can be changed in place, but nothing inside them can.
        self.flat = user_codec is None and not self.immutable and _is_flat(declared)
        self._floats = user_codec is None and may_hold(float, declared)
        self._untyped = user_codec is None and any(may_hold(of, declared) for of in _UNTYPED)
        if user_codec is not None:
            return
        try:
            self._decoder: Any = msgspec.msgpack.Decoder(declared)
        except TypeError as error:
            raise PipelineError(
                f"{declared!r} is not a type that state can have: {error}",
                place=place,
                remedy="use types that msgspec knows, or give the state a codec=",
            ) from error

    def encode(self, value: Any) -> bytes:
        """Return the value as bytes.

        Raises:
            TypeError: when the value is not of the declared type.
        """
        return self.keep(value)[0]

    def encode_kept(self, value: Any) -> bytes:
        """Return the bytes of a value that :meth:`keep` or :meth:`decode` returned."""
        data: bytes = (
            self._call_user(self._user.encode, value) if self._user is not None else encoded(value)
        )
        return data

    def keep(self, value: Any) -> tuple[bytes, Any]:
        """Return the value as bytes, and the value that is decoded from these bytes.

        Only the decoded value may stay in memory. A user's object may share parts with another
        object. Or it may only resemble the declared type, like an int for a float, or a time in
        another zone. If it stayed, a process that remembers it would differ from one that reads it.

        Raises:
            TypeError: when the value is not of the declared type.
        """
        try:
            if self._exact and type(value) is self.declared:
                return PLAIN.encode(value), value
            if self._user is not None:
                data = self._call_user(self._user.encode, value)
                if not isinstance(data, bytes):
                    raise TypeError(f"codec.encode returned {type(data).__name__}, not bytes")
                return data, self._call_user(self._user.decode, data)
            data = encoded(value)
            kept = self._decoder.decode(data)
            if self._floats and kept != value:
                _check_floats(value, kept)
            if self._untyped and not same_types(value, kept):
                raise TypeError(
                    f"{shortened(value)} would become {shortened(kept)}: declare what it holds, "
                    "for no type says what texts, lists and dicts were"
                )
            return data, kept
        except (msgspec.MsgspecError, OverflowError, UnicodeEncodeError) as error:
            raise TypeError(f"{shortened(value)} is not a {self.declared!r}: {error}") from error

    def decode(self, data: bytes) -> Any:
        """Return the value that was encoded."""
        if self._user is None:
            return self._decoder.decode(data)
        try:
            return self._user.decode(data)
        except BaseException as error:
            raise_again(error, self._place, _CODEC_REMEDY, "its codec cannot decode what is stored")

    def _call_user(self, do: Callable[[Any], Any], value: Any) -> Any:
        """Return the result of the user's codec for a value that is to be kept.

        Raises:
            TypeError: when the codec raises an error.
        """
        try:
            return do(value)
        except BaseException as error:
            if goes_on(error) or isinstance(error, TypeError):
                raise
            raise TypeError(f"its codec raised {error_text(error)}") from error

    def shape(self) -> dict[str, Any]:
        """Return the shape of what is stored; see :mod:`headrace.schema.compatibility`."""
        if self._user is not None:
            return {"codec": type(self._user).__qualname__}
        return {"type": shape_of_type(self.declared)}

    def describe(self) -> str:
        """Return a stable description of the type. The storage keeps it to recognise a change."""
        if self._user is not None:
            return f"codec {type(self._user).__qualname__}"
        try:
            schema = _without_prose(msgspec.json.schema(self.declared))
        except TypeError as error:
            raise PipelineError(
                f"{self.declared!r} is not a type that state can have: {str(error).splitlines()[-1]}",
                place=self._place,
                remedy="use types that msgspec knows, or give the state a codec=",
            ) from error
        encoded = msgspec.json.encode(schema, order="sorted")
        name = getattr(self.declared, "__name__", repr(self.declared))
        return f"{name} {hashlib.blake2b(encoded, digest_size=8).hexdigest()}"


def _check_floats(value: Any, kept: Any) -> None:
    """Check that integers that are kept as floats are still the same numbers.

    Raises:
        TypeError: for an integer that is not.
    """
    if isinstance(kept, float):
        if isinstance(value, int | np.integer) and value != kept:
            raise TypeError(f"{value!r} cannot be kept as a float: it would become {kept!r}")
    elif isinstance(kept, list | tuple) and isinstance(value, list | tuple):
        for one, other in zip(value, kept, strict=False):
            _check_floats(one, other)
    elif isinstance(kept, dict) and isinstance(value, dict):
        for key in kept.keys() & value.keys():
            _check_floats(value[key], kept[key])
    elif type(value) is type(kept) and isinstance(kept, msgspec.Struct):
        for name in kept.__struct_fields__:
            _check_floats(getattr(value, name), getattr(kept, name))
    elif type(value) is type(kept) and dataclasses.is_dataclass(kept):
        for field in dataclasses.fields(kept):
            _check_floats(getattr(value, field.name), getattr(kept, field.name))


def _without_prose(schema: Any) -> Any:
    """Return a JSON schema without docstrings: editing one does not change a type."""
    if isinstance(schema, dict):
        return {
            k: _without_prose(v) for k, v in schema.items() if k not in ("description", "title")
        }
    if isinstance(schema, list):
        return [_without_prose(item) for item in schema]
    return schema


def _is_flat(kind: Any) -> bool:
    """Return whether nothing inside a value of the type can be changed in place."""
    if typing.get_origin(kind) in (list, dict, set):
        return all(is_immutable(argument) for argument in typing.get_args(kind))
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return all(is_immutable(field.type) for field in msgspec.structs.fields(kind))
    return False


def is_immutable(kind: Any) -> bool:
    """Return whether no value of the type can be changed in place."""
    if kind in _IMMUTABLE:
        return True
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType, tuple):
        return all(argument is Ellipsis or is_immutable(argument) for argument in arguments)
    if origin is typing.Literal:
        return True
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        frozen = kind.__struct_config__.frozen
        return frozen and all(is_immutable(field.type) for field in msgspec.structs.fields(kind))
    return False
