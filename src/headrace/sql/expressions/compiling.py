"""From an expression of the IR to a function over columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from headrace.errors import PipelineError, SqlError
from headrace.sql.expressions.vectors import Frame, Mask, Vector, all_valid, constant
from headrace.sql.ir.expressions import Call, Expression, Literal, Ref
from headrace.sql.ir.types import SqlType

Evaluate: TypeAlias = Callable[[Frame], Vector]


@dataclass(frozen=True)
class Compiled:
    """An expression that can be evaluated.

    Attributes:
        evaluate: computes its values for the rows of a frame.
        source: the expression.
        raises: whether it may raise an error for a row. Such an expression is evaluated only for
            the rows for which SQL asks for its value.
    """

    evaluate: Evaluate
    source: Expression
    raises: bool

    @property
    def type(self) -> SqlType:
        """Its type."""
        return self.source.type

    @property
    def constant(self) -> Any:
        """The value of a constant, as a column holds it; None if it is no constant, or NULL."""
        return value_of(self.source) if isinstance(self.source, Literal) else None


Builder: TypeAlias = Callable[[Call, Sequence[Compiled]], "Evaluate | Partial"]


@dataclass(frozen=True)
class Partial:
    """An evaluation that may raise an error for a row."""

    evaluate: Evaluate


_BUILDERS: dict[str, Builder] = {}


def function(*names: str) -> Callable[[Builder], Builder]:
    """Register what compiles calls of some functions."""

    def register(builder: Builder) -> Builder:
        for name in names:
            _BUILDERS[name] = builder
        return builder

    return register


def names() -> frozenset[str]:
    """Return the names of all functions."""
    return frozenset(_BUILDERS)


def compile_expression(expression: Expression) -> Compiled:
    """Return an expression as a function over columns.

    Raises:
        PipelineError: if it has a function that is not known, or not for these types.
    """
    match expression:
        case Ref(index=index):
            return Compiled(lambda frame: frame.column(index), expression, False)
        case Literal():
            value, kind = value_of(expression), expression.type
            return Compiled(lambda frame: constant(value, kind, len(frame)), expression, False)
        case Call():
            return _compile_call(expression)


def _compile_call(call: Call) -> Compiled:
    args = [compile_expression(one) for one in call.args]
    builder = _BUILDERS.get(call.function)
    if builder is None:
        raise PipelineError(f"a view cannot have the function {call.function}")
    built = builder(call, args)
    inner = any(one.raises for one in args)
    if isinstance(built, Partial):
        return Compiled(built.evaluate, call, True)
    return Compiled(built, call, inner)


def value_of(literal: Literal) -> Any:
    """Return the value of a constant, as a column holds it."""
    value, kind = literal.value, literal.type
    if value is None:
        return None
    if kind.is_decimal:
        return int(value)
    if kind.is_float:
        return float(value)
    if kind.name == "binary":
        return bytes.fromhex(str(value))
    return value


@dataclass(frozen=True)
class Fault:
    """Rows for which a function has no value.

    Attributes:
        rows: where.
        condition: Spark's name for the error; None if the value is NULL there, in every mode.
    """

    rows: Mask
    condition: str | None


Kernel: TypeAlias = Callable[..., "Any | tuple[Any, Sequence[Fault]]"]


def strict(call: Call, args: Sequence[Compiled], kernel: Kernel) -> Evaluate:
    """Return the evaluation of a function that is NULL if an argument is NULL.

    Args:
        call: the call.
        args: its arguments.
        kernel: computes the values from those of the arguments. It may return faults, too; they
            count only where no argument is NULL. In ANSI mode a fault with a condition is an
            error; in the others it is NULL.
    """
    is_ansi = call.option("mode", "ansi") == "ansi"

    def evaluate(frame: Frame) -> Vector:
        vectors = [one.evaluate(frame) for one in args]
        valid = all_valid(*vectors)
        made = kernel(*(one.values for one in vectors))
        values, faults = made if isinstance(made, tuple) else (made, ())
        for fault in faults:
            rows = fault.rows if valid is None else fault.rows & valid
            if not rows.any():
                continue
            if fault.condition is not None and is_ansi:
                raise failed(call, fault.condition, vectors, int(np.argmax(rows)))
            valid = ~rows if valid is None else valid & ~rows
        return Vector(values, valid)

    return evaluate


#: What is NULL where a function has no value.
_INSTEAD = {
    **{
        one: f"try_{one}" for one in ("add", "subtract", "multiply", "divide", "cast", "element_at")
    },
    "remainder": "try_mod",
    "element": "get",
}


def failed(call: Call, condition: str, vectors: Sequence[Vector], row: int) -> SqlError:
    """Return the error for a row for which an expression has no value."""
    from headrace.sql.expressions.vectors import python_rows

    shown = [
        python_rows(one.take(np.array([row])), arg.type)[0]
        for one, arg in zip(vectors, call.args, strict=True)
    ]
    text = ", ".join("NULL" if one is None else str(one) for one in shown)
    remedy = "filter such rows out"
    if call.function in _INSTEAD and condition != "INVALID_INDEX_OF_ZERO":
        remedy += f", or use {_INSTEAD[call.function]}, which gives NULL"
    return SqlError(
        f"{call.function}({text}) has no value: {condition}",
        remedy=remedy,
        condition=condition,
        row=row,
    )


def unsupported(call: Call) -> PipelineError:
    """Return the error for a function that is not there for these types."""
    types = ", ".join(str(one.type) for one in call.args)
    return PipelineError(f"a view cannot have {call.function}({types}) with the result {call.type}")
