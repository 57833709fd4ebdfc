"""Expressions of Catalyst as expressions of the IR."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Any, TypeAlias

from headrace.errors import PipelineError
from headrace.sql.ir.expressions import Call, Expression, Literal, Ref
from headrace.sql.ir.types import BOOLEAN, SqlType
from headrace.sql.translation.clock import clock_of
from headrace.sql.translation.functions import SCALAR
from headrace.sql.translation.tree import Node
from headrace.sql.translation.types import type_of

_EXACT = Context(prec=80)


@dataclass(frozen=True)
class Struct:
    """A value with named parts. The IR has none: each part becomes a column."""

    names: tuple[str, ...]
    parts: tuple[Value, ...]


Value: TypeAlias = Expression | Struct


@dataclass(frozen=True)
class Scope:
    """What an expression may refer to.

    Attributes:
        attributes: the value of each attribute, by Catalyst's id.
        special: replaces parts of an expression, from the top; it returns None for all others.
        sql: the query, for errors.
    """

    attributes: Mapping[str, Value]
    sql: str
    special: Callable[[Node], Value | None] = field(default=lambda node: None)

    def value(self, node: Node) -> Value:
        """Return the value of an expression."""
        if (replaced := self.special(node)) is not None:
            return replaced
        match node.name:
            case "Alias":
                return self.value(node.children[0])
            case "AttributeReference":
                return self._attribute(node)
            case "ScalarSubquery":
                return clock_of(node) or self._attribute(node)
            case "CreateNamedStruct":
                return self._struct(node)
            case "Literal" if node.fields["value"] is None:
                return _nulls(self.type(node))
            case "GetStructField":
                return self._part(node)
            case "KnownNullable" | "KnownNotNull" | "UnaryPositive":
                return self.value(node.children[0])
            case "EqualTo" | "EqualNullSafe":
                return self._equality(node)
            case "IsNotNull" | "IsNull":
                return self._null_test(node)
            case "ElementAt" if node.children[0].name == "StringSplitSQL":
                texts = (*node.children[0].children, node.children[1])
                args = tuple(self.expression(one) for one in texts)
                return Call("split_part", args, self.type(node), node.nullable)
            case _:
                return self._plain(node)

    def expression(self, node: Node) -> Expression:
        """Return an expression that has one part.

        Raises:
            PipelineError: if it is a struct where none can be.
        """
        value = self.value(node)
        if isinstance(value, Struct):
            raise PipelineError(
                f"a view cannot have a struct as an argument of {node.name}",
                place=self.sql,
                remedy="name the fields that you mean",
            )
        return value

    def type(self, node: Node) -> SqlType:
        """Return the type of an expression."""
        return type_of(node.type, self.sql)

    # -- the kinds of expression --------------------------------------------------------------

    def _attribute(self, node: Node) -> Value:
        found = self.attributes.get(node.fields["id"])
        if found is None:
            raise PipelineError(
                f"the plan refers to {node.fields.get('name', 'a subquery')}, which is not there",
                place=self.sql,
                remedy="this should not happen; please report it with the query",
            )
        return found

    def _struct(self, node: Node) -> Struct:
        names = tuple(str(one.fields["value"]) for one in node.children[::2])
        return Struct(names, tuple(self.value(one) for one in node.children[1::2]))

    def _part(self, node: Node) -> Value:
        whole = self.value(node.children[0])
        if not isinstance(whole, Struct):
            raise PipelineError("a field is taken of something that is no struct", place=self.sql)
        ordinal: int = node.fields["ordinal"]
        return whole.parts[ordinal]

    def _equality(self, node: Node) -> Value:
        left, right = (self.value(one) for one in node.children)
        if not isinstance(left, Struct) or not isinstance(right, Struct):
            return self._plain(node)
        # Fields of structs are compared as grouping does: NULL equals NULL.
        check_are_there(node.children, f"have {node.name} of", self.sql)
        pairs = zip(flat(left), flat(right), strict=True)
        parts = [Call("equal_null_safe", pair, BOOLEAN, nullable=False) for pair in pairs]
        whole: Expression = parts[0]
        for part in parts[1:]:
            whole = Call("and", (whole, part), BOOLEAN, nullable=False)
        return whole

    def _null_test(self, node: Node) -> Value:
        if isinstance(self.value(node.children[0]), Struct):
            check_are_there(node.children, f"have {node.name} of", self.sql)
            return Literal(node.name == "IsNotNull", BOOLEAN)
        return self._plain(node)

    def _plain(self, node: Node) -> Expression:
        if node.name == "Literal":
            return constant(node.fields["value"], self.type(node), self.sql)
        kind = self.type(node)
        args = tuple(self.expression(one) for one in node.children)
        if node.name == "CaseWhen":
            return _case(args, kind, node.nullable)
        if node.name == "Cast" and args[0].type == kind:
            return args[0]
        function = SCALAR.get(node.name)
        if function is None:
            raise PipelineError(f"{node.name} cannot stand here", place=self.sql)
        if function == "case":
            return _case(args, kind, node.nullable)
        return Call(function, args, kind, node.nullable, _options(node))


def check_are_there(structs: Iterable[Node], do: str, sql: str) -> None:
    """Refuse structs that may be NULL: their fields do not tell that from one of NULLs."""
    if any(one.nullable for one in structs):
        raise PipelineError(
            f"a view cannot {do} a struct that may be NULL",
            place=sql,
            remedy="name the fields that you mean",
        )


def _nulls(kind: SqlType) -> Value:
    """Return NULL; of a struct, in each of its fields."""
    if kind.name != "struct":
        return Literal(None, kind)
    names = tuple(name for name, _ in kind.fields)
    return Struct(names, tuple(_nulls(of) for _, of in kind.fields))


def _case(args: tuple[Expression, ...], kind: SqlType, nullable: bool) -> Expression:
    """Return a case whose arguments are conditions and values in turn, and then what else holds."""
    if len(args) % 2 == 0:
        args = (*args, Literal(None, kind))
    return Call("case", args, kind, nullable)


def _options(node: Node) -> tuple[tuple[str, str], ...]:
    kept = {
        key: str(value)
        for key, value in node.fields.items()
        if key in {"mode", "escape", "unit", "legacy"} and value is not None
    }
    return tuple(sorted(kept.items()))


def constant(value: Any, kind: SqlType, place: str) -> Expression:
    """Return a constant, or a call of ``array`` with the elements of one."""
    if value is None or not kind.is_array:
        return literal(value, kind, place)
    elements = tuple(constant(one, kind.element, place) for one in value)
    return Call("array", elements, kind, False)


def literal(value: Any, kind: SqlType, place: str) -> Literal:
    """Return a constant.

    Args:
        value: what Catalyst holds, as :mod:`headrace.sql.catalyst` reads it.
        kind: its type.
        place: where it occurs, for the error.
    """
    if value is None:
        return Literal(None, kind)
    if kind.is_decimal:
        digits = Decimal(str(value)).scaleb(kind.scale, _EXACT)
        return Literal(str(int(digits)), kind)
    if kind.is_float:
        return Literal(_float_text(value), kind)
    if kind.name == "binary":
        return Literal(bytes(value).hex(), kind)
    if kind.name == "string":
        return Literal(str(value), kind)
    if kind.name == "boolean":
        return Literal(bool(value), kind)
    if kind.name in {"struct", "array"}:
        raise PipelineError(f"a view cannot have a constant of the type {kind}", place=place)
    return Literal(int(value), kind)


def _float_text(value: Any) -> str:
    text = str(value).replace("Infinity", "inf")
    return repr(float(text))


def flat(value: Value) -> tuple[Expression, ...]:
    """Return the parts of a value, as columns."""
    if isinstance(value, Struct):
        return tuple(one for part in value.parts for one in flat(part))
    return (value,)


def flat_names(name: str, value: Value) -> tuple[str, ...]:
    """Return the names of the columns of a value."""
    if isinstance(value, Struct):
        parts = zip(value.names, value.parts, strict=True)
        return tuple(one for part, of in parts for one in flat_names(f"{name}.{part}", of))
    return (name,)


def rebuilt(value: Value, columns: list[Ref]) -> Value:
    """Return a value of the same form whose parts are columns, taken from the front of a list."""
    if isinstance(value, Struct):
        return Struct(value.names, tuple(rebuilt(part, columns) for part in value.parts))
    return columns.pop(0)
