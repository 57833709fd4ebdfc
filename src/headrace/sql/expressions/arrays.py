"""Functions of arrays. Their elements are counted from 1 by ``element_at``, and from 0 by ``[…]``.

Arrays are Arrow arrays of lists. Where the order of elements matters, NULL is before all values, and NaN
behind all numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import PipelineError
from headrace.schema.row_columns import RowColumn
from headrace.schema.row_lists import spans_of
from headrace.sql.expressions.compiling import (
    Compiled,
    Evaluate,
    Partial,
    failed,
    function,
    unsupported,
)
from headrace.sql.expressions.patterns import Pattern
from headrace.sql.expressions.vectors import Frame, Mask, Vector, all_valid, from_arrow, to_arrow
from headrace.sql.ir.expressions import Call
from headrace.sql.ir.types import SqlType
from headrace.zsets.rows import order_codes


def equal_arrays(one: pa.Array, other: pa.Array) -> Mask:
    """Return where arrays are equal. In them NULL equals NULL, and NaN equals NaN."""
    kind = RowColumn(pa.field("", one.type))
    same: Mask = (kind.from_arrow(one) == kind.from_arrow(other)).astype(np.bool_)
    return same


def less_arrays(one: pa.Array, other: pa.Array) -> Mask:
    """Return where arrays are less than others, by the first elements that differ."""
    codes = order_codes(pa.concat_arrays([one, other.cast(one.type)]))
    lower: Mask = codes[: len(one)] < codes[len(one) :]
    return lower


def _lists(lengths: Any, flat: pa.Array, kind: SqlType, null: Mask | None = None) -> Vector:
    """Return arrays from their lengths and all elements."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    mask = None if null is None or not null.any() else pa.array(null)
    return Vector(pa.ListArray.from_arrays(offsets, flat, type=kind.arrow, mask=mask))


def _null(vector: Vector) -> Mask | None:
    return None if vector.valid is None else ~vector.valid


@function("array")
def _array(call: Call, args: Sequence[Compiled]) -> Evaluate:
    element = call.type.element

    def evaluate(frame: Frame) -> Vector:
        length, width = len(frame), len(args)
        if not args:
            return _lists(np.zeros(length, np.int64), pa.array([], element.arrow), call.type)
        parts = [to_arrow(one.evaluate(frame), one.type).cast(element.arrow) for one in args]
        order = np.arange(width * length).reshape(width, length).T.ravel()
        flat = pa.concat_arrays(parts).take(pa.array(order))
        return _lists(np.full(length, width), flat, call.type)

    return evaluate


@function("split")
def _split(call: Call, args: Sequence[Compiled]) -> Evaluate:
    pattern, limit = args[1].constant, -1 if len(args) < 3 else args[2].constant
    if pattern is None or limit is None:
        raise PipelineError("a view needs constants as the pattern and the limit of split()")
    found = Pattern(str(pattern))
    if found.may_be_empty or found.has_end:
        raise PipelineError(
            "a view cannot have split() by a pattern that may be empty or has $",
            remedy="write a pattern that has at least one letter",
        )
    most = None if limit <= 0 else int(limit) - 1
    child, text = args[0], found.re2

    def evaluate(frame: Frame) -> Vector:
        texts = child.evaluate(frame).values
        if most == 0:
            whole = _lists(np.ones(len(texts), np.int64), texts, call.type)
            return Vector(whole.values, np.asarray(texts.is_valid()))
        parts = pc.split_pattern_regex(texts, text, max_splits=most)
        return Vector(parts.cast(call.type.arrow))

    return evaluate


@function("size")
def _size(call: Call, args: Sequence[Compiled]) -> Evaluate:
    (child,) = args
    of_null = call.option("legacy") == "True"

    def evaluate(frame: Frame) -> Vector:
        arrays = child.evaluate(frame)
        lengths = np.diff(spans_of(arrays.values)[0]).astype(np.int32)
        if not of_null or arrays.valid is None:
            return Vector(lengths, arrays.valid)
        return Vector(np.where(arrays.valid, lengths, -1).astype(np.int32))

    return evaluate


_BEYOND: Final = "INVALID_ARRAY_INDEX"
_BEYOND_OF_ELEMENT_AT: Final = "INVALID_ARRAY_INDEX_IN_ELEMENT_AT"
_ZERO: Final = "INVALID_INDEX_OF_ZERO"


@function("element", "element_at")
def _element(call: Call, args: Sequence[Compiled]) -> Partial:
    child, index = args
    from_one = call.function == "element_at"
    is_ansi = call.option("mode") == "ansi"

    def evaluate(frame: Frame) -> Vector:
        arrays, wanted = child.evaluate(frame), index.evaluate(frame)
        starts, flat = spans_of(arrays.values)
        lengths = np.diff(starts)
        valid = all_valid(arrays, wanted)
        valid = np.ones(len(frame), dtype=np.bool_) if valid is None else valid
        at = wanted.values.astype(np.int64)
        if from_one:
            if (zero := valid & (at == 0)).any():
                raise failed(call, _ZERO, [arrays, wanted], int(np.argmax(zero)))
            at = np.where(at > 0, at - 1, lengths + at)
        beyond = (at < 0) | (at >= lengths)
        if is_ansi and (wrong := valid & beyond).any():
            name = _BEYOND_OF_ELEMENT_AT if from_one else _BEYOND
            raise failed(call, name, [arrays, wanted], int(np.argmax(wrong)))
        there = valid & ~beyond
        places = pa.array(np.where(there, starts[:-1] + at, 0), mask=~there)
        return from_arrow(flat.take(places), call.type)

    return Partial(evaluate)


@function("array_contains")
def _contains(call: Call, args: Sequence[Compiled]) -> Evaluate:
    child, wanted = args

    def evaluate(frame: Frame) -> Vector:
        arrays, value = child.evaluate(frame), wanted.evaluate(frame)
        starts, flat = spans_of(arrays.values)
        lengths = np.diff(starts)
        of = np.repeat(np.arange(len(frame)), lengths)
        sought = to_arrow(value, wanted.type).cast(flat.type).take(pa.array(of))
        there = np.asarray(flat.is_valid())
        same = _same(flat, sought) & there
        found = np.bincount(of[same], minlength=len(frame)) > 0
        has_null = np.bincount(of[~there], minlength=len(frame)) > 0
        known = found | ~has_null
        valid = all_valid(arrays, value)
        return Vector(found, known if valid is None else known & valid)

    return evaluate


def _same(one: pa.Array, other: pa.Array) -> Mask:
    kind = RowColumn(pa.field("", one.type))
    same: Mask = (kind.from_arrow(one) == kind.from_arrow(other)).astype(np.bool_)
    return same


@function("sort_array")
def _sort(call: Call, args: Sequence[Compiled]) -> Evaluate:
    child, ascending = args[0], args[1].constant if len(args) > 1 else True
    if ascending is None:
        raise unsupported(call)

    def evaluate(frame: Frame) -> Vector:
        arrays = child.evaluate(frame)
        starts, flat = spans_of(arrays.values)
        lengths = np.diff(starts)
        of = np.repeat(np.arange(len(frame)), lengths)
        codes = order_codes(flat)  # (a NULL is the least)
        order = np.lexsort((codes if ascending else -codes, of))
        return _lists(lengths, flat.take(pa.array(order)), call.type, _null(arrays))

    return evaluate


@function("array_distinct")
def _distinct(call: Call, args: Sequence[Compiled]) -> Evaluate:
    (child,) = args

    def evaluate(frame: Frame) -> Vector:
        arrays = child.evaluate(frame)
        starts, flat = spans_of(arrays.values)
        of = np.repeat(np.arange(len(frame)), np.diff(starts))
        codes = order_codes(flat)
        # a stable sort has the first of equal elements first
        order = np.lexsort((codes, of))
        new = np.ones(len(order), dtype=np.bool_)
        new[1:] = (codes[order][1:] != codes[order][:-1]) | (of[order][1:] != of[order][:-1])
        kept = np.sort(order[new])
        lengths = np.bincount(of[kept], minlength=len(frame))
        return _lists(lengths, flat.take(pa.array(kept)), call.type, _null(arrays))

    return evaluate


@function("array_join")
def _join(call: Call, args: Sequence[Compiled]) -> Evaluate:
    def evaluate(frame: Frame) -> Vector:
        arrays, *others = (one.evaluate(frame).values.to_pylist() for one in args)
        joined = [
            None if array is None or None in texts else _joined(array, *texts)
            for array, *texts in zip(arrays, *others, strict=True)
        ]
        return Vector(pa.array(joined, pa.string()))

    return evaluate


def _joined(texts: list[str | None], between: str, in_place: str | None = None) -> str:
    """Return texts joined; NULLs are left out, or replaced."""
    shown = (in_place if text is None else text for text in texts)
    return between.join(text for text in shown if text is not None)
