"""Comparisons, three-valued logic, and what is evaluated only where it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.sql.expressions.arrays import equal_arrays, less_arrays
from headrace.sql.expressions.compiling import (
    Compiled,
    Evaluate,
    function,
    strict,
    value_of,
)
from headrace.sql.expressions.vectors import (
    Frame,
    Mask,
    Positions,
    Vector,
    all_valid,
    nulls,
    scattered,
)
from headrace.sql.ir.expressions import Call, Literal
from headrace.sql.ir.types import SqlType

# -- comparisons ------------------------------------------------------------------------------


def equal(a: Any, b: Any, kind: SqlType) -> Mask:
    """Return where values are equal. NaN equals NaN."""
    if kind.is_array:
        return equal_arrays(a, b)
    if kind.is_text:
        return _booleans(pc.equal(a, b))
    same = (a == b).astype(bool)
    if kind.is_float:
        same |= np.isnan(a) & np.isnan(b)
    found: Mask = same
    return found


def less(a: Any, b: Any, kind: SqlType) -> Mask:
    """Return where values are less than others. NaN is greater than any number."""
    if kind.is_array:
        return less_arrays(a, b)
    if kind.is_text:
        return _booleans(pc.less(a, b))
    lower = (a < b).astype(bool)
    if kind.is_float:
        lower |= ~np.isnan(a) & np.isnan(b)
    found: Mask = lower
    return found


def _booleans(array: Any) -> Mask:
    found: Mask = array.fill_null(False).to_numpy(zero_copy_only=False)
    return found


@function("equal", "less", "less_or_equal", "greater", "greater_or_equal")
def _compare(call: Call, args: Sequence[Compiled]) -> Evaluate:
    kind = args[0].type

    def kernel(a: Any, b: Any) -> Mask:
        match call.function:
            case "equal":
                return equal(a, b, kind)
            case "less":
                return less(a, b, kind)
            case "less_or_equal":
                return ~less(b, a, kind)
            case "greater":
                return less(b, a, kind)
            case _:
                return ~less(a, b, kind)

    return strict(call, args, kernel)


@function("equal_null_safe")
def _equal_null_safe(call: Call, args: Sequence[Compiled]) -> Evaluate:
    left, right = args
    kind = left.type

    def evaluate(frame: Frame) -> Vector:
        a, b = left.evaluate(frame), right.evaluate(frame)
        same = equal(a.values, b.values, kind)
        if a.valid is None and b.valid is None:
            return Vector(same)
        return Vector((same & a.mask & b.mask) | (~a.mask & ~b.mask))

    return evaluate


@function("is_null", "is_not_null")
def _is_null(call: Call, args: Sequence[Compiled]) -> Evaluate:
    child, wanted = args[0], call.function == "is_not_null"

    def evaluate(frame: Frame) -> Vector:
        mask = child.evaluate(frame).mask
        return Vector(mask if wanted else ~mask)

    return evaluate


@function("in")
def _in(call: Call, args: Sequence[Compiled]) -> Evaluate:
    child, *others = args
    constants = [one.source for one in others if isinstance(one.source, Literal)]
    if len(constants) == len(others) and not child.type.is_float:
        return _in_constants(child, constants)

    def evaluate(frame: Frame) -> Vector:
        value = child.evaluate(frame)
        found = np.zeros(len(frame), dtype=np.bool_)
        unknown = ~value.mask
        for one in others:
            # an element is looked at only for rows that no element before it was equal to
            at = np.flatnonzero(~found)
            element = one.evaluate(frame.take(at))
            mine = value.take(at)
            valid = all_valid(mine, element)
            same = equal(mine.values, element.values, child.type)
            known = np.ones(len(at), dtype=np.bool_) if valid is None else valid
            found[at] = same & known
            unknown[at] |= ~known
        return Vector(found, None if not unknown.any() else found | ~unknown)

    return evaluate


def _in_constants(child: Compiled, constants: Sequence[Literal]) -> Evaluate:
    values = [value_of(one) for one in constants if one.value is not None]
    has_null = len(values) < len(constants)
    texts = pa.array(values, child.type.arrow) if child.type.is_text else None

    def evaluate(frame: Frame) -> Vector:
        value = child.evaluate(frame)
        found = (
            _booleans(pc.is_in(value.values, value_set=texts))
            if texts is not None
            else _among(value.values, values)
        )
        valid = value.valid
        if has_null:
            valid = found if valid is None else valid & found
        return Vector(found, valid)

    return evaluate


def _among(values: Any, wanted: Sequence[Any]) -> Mask:
    found = np.zeros(len(values), dtype=np.bool_)
    for one in wanted:
        found |= (values == one).astype(bool)
    return found


# -- logic ------------------------------------------------------------------------------------


@function("not")
def _not(call: Call, args: Sequence[Compiled]) -> Evaluate:
    return strict(call, args, np.logical_not)


@function("and", "or")
def _logic(call: Call, args: Sequence[Compiled]) -> Evaluate:
    left, right = args
    is_and = call.function == "and"

    def evaluate(frame: Frame) -> Vector:
        one = left.evaluate(frame)
        decided = one.is_false() if is_and else one.is_true()
        if not right.raises:
            return _joined(one, right.evaluate(frame), is_and)
        # The right side is evaluated only where the left one does not decide.
        at = np.flatnonzero(~decided)
        part = right.evaluate(frame.take(at))
        values = np.full(len(frame), not is_and)
        mask = np.ones(len(frame), dtype=np.bool_)
        values[at], mask[at] = part.values, part.mask
        return _joined(one, Vector(values, mask), is_and)

    return evaluate


def _joined(one: Vector, other: Vector, is_and: bool) -> Vector:
    if one.valid is None and other.valid is None:
        return Vector(one.values & other.values if is_and else one.values | other.values)
    true = one.is_true() & other.is_true() if is_and else one.is_true() | other.is_true()
    false = one.is_false() | other.is_false() if is_and else one.is_false() & other.is_false()
    return Vector(true, true | false)


# -- choices ----------------------------------------------------------------------------------


@function("case")
def _case(call: Call, args: Sequence[Compiled]) -> Evaluate:
    branches = list(zip(args[:-1:2], args[1:-1:2], strict=True))
    otherwise, kind = args[-1], call.type

    def evaluate(frame: Frame) -> Vector:
        left: Positions = np.arange(len(frame))
        rest, parts = frame, []
        for condition, value in branches:
            truth = condition.evaluate(rest).is_true()
            if truth.any():
                parts.append((left[truth], _as(value.evaluate(rest.take(truth)), kind)))
                left, rest = left[~truth], frame.take(left[~truth])
            if not len(left):
                break
        if len(left):
            parts.append((left, _as(otherwise.evaluate(rest), kind)))
        return scattered(parts, kind, len(frame))

    return evaluate


def _as(vector: Vector, kind: SqlType) -> Vector:
    """Return a bare NULL as a NULL of a type."""
    if kind.in_arrow and not vector.is_text:
        return nulls(kind, len(vector))
    return vector


@function("coalesce")
def _coalesce(call: Call, args: Sequence[Compiled]) -> Evaluate:
    kind = call.type

    def evaluate(frame: Frame) -> Vector:
        left: Positions = np.arange(len(frame))
        rest, parts = frame, []
        for one in args:
            value = _as(one.evaluate(rest), kind)
            if value.valid is None:
                parts.append((left, value))
                left = left[:0]
                break
            parts.append((left[value.valid], value.take(value.valid)))
            left = left[~value.valid]
            rest = frame.take(left)
        if len(left):
            parts.append((left, nulls(kind, len(left))))
        return scattered(parts, kind, len(frame))

    return evaluate


@function("nanvl")
def _nanvl(call: Call, args: Sequence[Compiled]) -> Evaluate:
    one, other = args

    def evaluate(frame: Frame) -> Vector:
        first = one.evaluate(frame)
        chosen = np.isnan(first.values) & first.mask
        at, rest = np.flatnonzero(chosen), np.flatnonzero(~chosen)
        parts = [(rest, first.take(rest)), (at, other.evaluate(frame.take(at)))]
        return scattered(parts, call.type, len(frame))

    return evaluate


@function("greatest", "least")
def _extreme(call: Call, args: Sequence[Compiled]) -> Evaluate:
    kind, greatest = call.type, call.function == "greatest"

    def evaluate(frame: Frame) -> Vector:
        best = _as(args[0].evaluate(frame), kind)
        for arg in args[1:]:
            other = _as(arg.evaluate(frame), kind)
            lower = less(best.values, other.values, kind)
            higher = less(other.values, best.values, kind)
            better = (lower if greatest else higher) & best.mask & other.mask
            taken = better | (~best.mask & other.mask)
            at, rest = np.flatnonzero(taken), np.flatnonzero(~taken)
            best = scattered([(rest, best.take(rest)), (at, other.take(at))], kind, len(frame))
        return best

    return evaluate
