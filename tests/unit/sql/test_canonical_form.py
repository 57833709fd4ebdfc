"""Relations that compute the same have one form, and one that computes something else has another."""

from __future__ import annotations

import msgspec
import pytest

from headrace.sql.ir.canonical import canonical, digest
from headrace.sql.ir.expressions import Call, Expression, Literal, Ref
from headrace.sql.ir.printing import printed
from headrace.sql.ir.relations import (
    Column,
    Filter,
    Group,
    Join,
    KeyPair,
    Project,
    Query,
    Relation,
    Scan,
)
from headrace.sql.ir.types import BIGINT, BOOLEAN, SqlType
from headrace.sql.rules.properties import is_append_only, state_of
from headrace.sql.rules.sharing import shared

A, B = Ref(0, BIGINT), Ref(1, BIGINT)
SCAN = Scan("bid", (0, 1), (Column("a", BIGINT), Column("b", BIGINT)))


def one(value: int) -> Literal:
    return Literal(value, BIGINT)


def call(function: str, *args: Expression) -> Call:
    return Call(function, args, BOOLEAN)


def named(relation: Project, *names: str) -> Project:
    columns = tuple(Column(name, c.type) for name, c in zip(names, relation.columns, strict=True))
    return msgspec.structs.replace(relation, columns=columns)


BOTH = call("and", call("less", A, one(3)), call("equal", A, B))
PROJECT = Project(SCAN, (A, B), SCAN.columns)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (PROJECT, named(PROJECT, "x", "y")),
        (Filter(SCAN, call("less", A, B)), Filter(SCAN, call("greater", B, A))),
        (Filter(SCAN, BOTH), Filter(SCAN, call("and", BOTH.args[1], BOTH.args[0]))),
        (Filter(SCAN, call("equal", A, one(1))), Filter(SCAN, call("equal", one(1), A))),
        (
            Filter(named(PROJECT, "x", "y"), call("equal", A, one(1))),
            Filter(PROJECT, call("equal", one(1), A)),
        ),
    ],
)
def test_what_computes_the_same_has_one_name(first: Relation, second: Relation) -> None:
    assert first != second
    assert digest(first) == digest(second)
    assert canonical(canonical(first)) == canonical(first)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Filter(SCAN, call("less", A, B)), Filter(SCAN, call("less", B, A))),
        (Filter(SCAN, call("less", A, one(1))), Filter(SCAN, call("less", A, one(2)))),
        (SCAN, Scan("bid", (1, 0), SCAN.columns)),
        (SCAN, Scan("ask", (0, 1), SCAN.columns)),
        (SCAN, Scan("bid", (0, 1), (Column("a", BIGINT, False), Column("b", BIGINT)))),
    ],
)
def test_what_computes_something_else_has_another_name(first: Relation, second: Relation) -> None:
    assert digest(first) != digest(second)


def test_a_condition_that_guards_another_from_an_error_stays_before_it() -> None:
    division = call("greater", Call("divide", (one(1), A), BIGINT), one(0))
    guarded = call("and", call("not", call("equal", A, one(0))), division)
    assert (
        canonical(Filter(SCAN, guarded)).condition.args[1]
        == canonical(Filter(SCAN, division)).condition
    )  # type: ignore[union-attr]


def test_equal_parts_of_views_are_one_node() -> None:
    total = Group(PROJECT, (A,), (), (Column("a", BIGINT),))
    renamed = Group(named(PROJECT, "x", "y"), (A,), (), (Column("z", BIGINT),))
    graph = shared([Query("v", "…", total), Query("w", "…", renamed)])
    assert [node.readers for node in graph.nodes.values()] == [1, 1, 2]
    assert graph.views["v"] == graph.views["w"]
    assert graph.printed().splitlines()[0] == "1: scan bid (a, b)"


def test_a_stored_relation_reads_back_as_it_was() -> None:
    relation: Relation = Filter(SCAN, BOTH)
    stored = msgspec.json.encode(Query("v", "…", relation))
    assert msgspec.json.decode(stored, type=Query) == Query("v", "…", relation)


def test_a_relation_prints_as_one_line_a_node() -> None:
    join = Join(
        SCAN, SCAN, "left", (KeyPair(A, B),), call("less", A, Ref(3, BIGINT)), SCAN.columns * 2
    )
    assert printed(join).splitlines() == [
        "left join on a = b AND (a < b)",
        "  scan bid (a, b)",
        "  scan bid (a, b)",
    ]


def test_only_what_never_withdraws_a_row_is_append_only() -> None:
    inner = Join(SCAN, SCAN, "inner", (KeyPair(A, B),), None, SCAN.columns * 2)
    assert is_append_only(inner, {"bid"})
    assert not is_append_only(inner, set())
    assert not is_append_only(msgspec.structs.replace(inner, kind="left"), {"bid"})
    assert not is_append_only(Group(SCAN, (A,), (), (Column("a", BIGINT),)), {"bid"})


def test_a_sum_of_integers_keeps_groups_and_one_of_floats_keeps_rows() -> None:
    from headrace.sql.ir.expressions import Aggregate

    def kept(function: str, kind: SqlType, *tables: str, distinct: bool = False) -> str:
        of = Aggregate(function, (Ref(1, kind),), kind, distinct=distinct)
        return state_of(
            Group(SCAN, (A,), (of,), (Column("a", BIGINT), Column("x", kind))), set(tables)
        ).kept

    assert kept("sum", BIGINT) == "groups"
    assert kept("sum", SqlType("double")) == "rows"
    assert kept("sum", BIGINT, distinct=True) == "rows"
    assert kept("max", BIGINT) == "rows"
    assert kept("max", BIGINT, "bid") == "groups"
