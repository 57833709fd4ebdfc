"""Random tables and random queries over them, each of which Spark answers the same every time.

Tables are small and full of NULLs and doubles. Wherever SQL leaves something open, as the order of equal
rows does, a query orders by all columns.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.sql.ir.relations import Column
from headrace.sql.ir.types import SqlType, array_of

#: The time to which the times of rows are near.
NOW = datetime(2024, 1, 1, tzinfo=UTC)
#: The columns of every table, and values of which sums are exact in any order.
KINDS = {
    "a": (SqlType("int"), [0, 1, 2, 3, -1]),
    "b": (SqlType("bigint"), [0, 1, 5, 10**12]),
    "c": (
        SqlType("decimal", 10, 2),
        [Decimal("0.00"), Decimal("1.50"), Decimal("-2.25"), Decimal("99.99")],
    ),
    "d": (SqlType("string"), ["", "a", "b", "ab", "é"]),
    "e": (SqlType("double"), [0.0, -0.0, 0.5, 1.25, float("nan")]),
    "f": (SqlType("date"), [0, 1, 31, 365, -1]),
    "g": (SqlType("boolean"), [True, False]),
    "h": (
        SqlType("timestamp"),
        [NOW + timedelta(minutes=m) for m in (-1500, -90, -31, -10, -1, 0, 1, 10, 31, 90, 1500)],
    ),
    "i": (array_of(SqlType("int")), [[], [1], [0, None], [1, 2], [2, 1], [1, 1]]),
}
TABLES = ("r", "s", "t")
_BY_KIND = {
    "number": "abc",
    "text": "d",
    "float": "e",
    "date": "f",
    "boolean": "g",
    "time": "h",
    "array": "i",
}


def columns() -> list[Column]:
    return [Column(name, kind) for name, (kind, _) in KINDS.items()]


def table(r: random.Random, rows: int) -> pa.Table:
    """Return a table, a third of whose values are NULL."""
    made = {}
    for name, (kind, values) in KINDS.items():
        drawn = [None if r.random() < 0.3 else r.choice(values) for _ in range(rows)]
        array = (
            pa.array(drawn, pa.int32()).cast(kind.arrow)
            if name == "f"
            else pa.array(drawn, kind.arrow)
        )
        made[name] = array
    return pa.table(made)


@dataclass
class Queries:
    """Draws queries."""

    r: random.Random
    names: int = 0

    def one_of(self, *choices: Any) -> Any:
        return self.r.choice(choices)

    def fresh(self) -> str:
        self.names += 1
        return f"q{self.names}"

    def query(self, depth: int = 2) -> str:
        """Return a query of one of several forms."""
        kind = self.r.random()
        if kind < 0.35:
            return self.select(depth)
        if kind < 0.65:
            return self.grouped(depth)
        if kind < 0.8:
            return self.set_operation(depth)
        if kind < 0.9:
            return self.windowed(depth)
        return self.top(depth)

    def source(self, depth: int) -> str:
        """Return a relation with all seven columns."""
        if depth <= 0 or self.r.random() < 0.6:
            return self.one_of(*TABLES)
        return self.one_of(
            lambda: self.filtered(depth),
            lambda: self.exploded(depth),
            lambda: f"(SELECT DISTINCT * FROM {self.source(depth - 1)} AS {self.fresh()})",
            lambda: (
                f"(SELECT * FROM {self.one_of(*TABLES)} UNION ALL SELECT * FROM {self.one_of(*TABLES)})"
            ),
        )()

    def exploded(self, depth: int) -> str:
        """Return rows for elements of arrays of a relation."""
        source = f"{self.source(depth - 1)} AS {self.fresh()}"
        outer = self.one_of("", "OUTER ")
        array = self.value("", "array")
        return self.one_of(
            f"(SELECT x AS a, b, c, d, e, f, g, h, i FROM {source} "
            f"LATERAL VIEW {outer}explode({array}) v AS x)",
            f"(SELECT y AS a, x AS b, c, d, e, f, g, h, i FROM {source} "
            f"LATERAL VIEW {outer}posexplode({array}) v AS x, y)",
            f"(SELECT a, b, c, x AS d, e, f, g, h, i FROM {source} "
            f"LATERAL VIEW {outer}explode(split(d, '{self.one_of('b', '[ab]')}')) v AS x)",
            f"(SELECT explode({array}) AS a, b, c, d, e, f, g, h, i FROM {source})",
        )

    def filtered(self, depth: int) -> str:
        """Return some rows of a relation."""
        source = self.source(depth - 1)
        return f"(SELECT * FROM {source} AS {self.fresh()} WHERE {self.where('', 0)})"

    # -- expressions --------------------------------------------------------------------------

    def column(self, alias: str, kind: str = "") -> str:
        names = _BY_KIND[kind] if kind else "abcdefghi"
        name = self.one_of(*names)
        return f"{alias}.{name}" if alias else name

    def value(self, alias: str, kind: str) -> str:
        column = self.column(alias, kind)
        other = self.column(alias, kind)
        match kind:
            case "number":
                return self.one_of(
                    column,
                    f"{column} + 1",
                    f"{column} * 2",
                    f"coalesce({column}, {other})",
                    f"-{column}",
                    f"CASE WHEN {self.column(alias, 'boolean')} THEN {column} ELSE 0 END",
                    f"{column} % 3",
                    "1",
                    f"nullif({column}, 1)",
                    f"size({self.column(alias, 'array')})",
                    f"coalesce(try_element_at({self.column(alias, 'array')}, -1), 0)",
                )
            case "text":
                return self.one_of(
                    column,
                    f"upper({column})",
                    f"{column} || 'x'",
                    f"coalesce({column}, 'b')",
                    "'a'",
                )
            case "float":
                return self.one_of(column, f"{column} * 2", f"coalesce({column}, 0.5D)")
            case "date":
                return self.one_of(column, f"{column} + 1", f"last_day({column})")
            case "array":
                number = f"{alias}.a" if alias else "a"
                return self.one_of(
                    column,
                    f"array({number}, 1)",
                    f"sort_array({column})",
                    f"array_distinct({column})",
                    f"coalesce({column}, array(0))",
                    f"array({number}, size({column}))",
                )
            case "time":
                shifted = f"{column} + INTERVAL 1 HOUR"
                return self.one_of(column, shifted, f"date_trunc('HOUR', {column})")
            case _:
                return self.one_of(column, f"NOT {column}", f"{self.column(alias, 'number')} > 1")

    def kind(self) -> str:
        return self.one_of(
            "number", "number", "text", "text", "float", "date", "boolean", "time", "array"
        )

    def by_clock(self, alias: str) -> str:
        """Return a condition on the current time."""
        time, other = self.column(alias, "time"), self.value(alias, "time")
        sign = self.one_of("<", "<=", ">", ">=", "=")
        return self.one_of(
            f"{time} > now() - INTERVAL {self.one_of(30, 60)} MINUTES",
            f"{other} {sign} now()",
            f"now() - {time} {sign} INTERVAL {self.one_of(-30, 10)} MINUTES",
            f"now() BETWEEN {time} AND {other}",
            f"CAST({other} AS date) {sign} CAST(now() AS date)",
            f"date_trunc('HOUR', {time}) {sign} date_trunc('HOUR', now())",
            f"datediff(CAST(now() AS date), {self.column(alias, 'date')}) > 19000",
            f"NOT ({time} < now() AND {other} {sign} now())",
        )

    def where(self, alias: str, depth: int) -> str:
        """Return a condition of a WHERE."""
        condition = self.condition(alias, depth)
        if self.r.random() < 0.8:
            return condition
        return f"({condition}) {self.one_of('AND', 'AND', 'OR')} {self.by_clock(alias)}"

    def comparison(self, alias: str, other: str) -> str:
        kind = self.kind()
        sign = self.one_of("=", "=", "<", ">=", "<>", "<=>")
        return f"{self.column(alias, kind)} {sign} {self.column(other, kind)}"

    def condition(self, alias: str, depth: int) -> str:
        """Return a condition over one relation."""
        simple = [
            lambda: self.comparison(alias, alias),
            lambda: f"{self.column(alias)} IS NULL",
            lambda: f"{self.column(alias)} IS NOT NULL",
            lambda: f"{self.column(alias, 'number')} IN (0, 1, {self.one_of('2', 'NULL')})",
            lambda: f"{self.column(alias, 'text')} LIKE '{self.one_of('a%', '%b', '_')}'",
            lambda: f"{self.value(alias, 'number')} BETWEEN 0 AND 3",
            lambda: (
                f"array_contains({self.column(alias, 'array')}, {self.column(alias, 'number')})"
            ),
            lambda: f"({self.condition(alias, 0)} OR {self.comparison(alias, alias)})",
            lambda: f"({self.condition(alias, 0)} AND NOT {self.comparison(alias, alias)})",
        ]
        if depth <= 0 or not alias or self.r.random() < 0.4:
            return self.r.choice(simple)()
        found = self.subquery(alias, depth - 1)
        return f"({found} OR {self.comparison(alias, alias)})" if self.r.random() < 0.2 else found

    def subquery(self, alias: str, depth: int) -> str:
        """Return a condition with a subquery."""
        inner, kind = self.fresh(), self.kind()
        source = f"{self.source(depth)} AS {inner}"
        mine, theirs = self.column(alias, kind), self.column(inner, kind)
        link = self.comparison(alias, inner)
        also = "" if self.r.random() < 0.5 else f" AND {self.condition(inner, depth)}"
        number, outer = self.column(inner, "number"), self.column(alias, "number")
        every = ", ".join(f"{inner}.{name}" for name in KINDS)
        return self.one_of(
            f"{mine} IN (SELECT {theirs} FROM {source})",
            f"{mine} NOT IN (SELECT {theirs} FROM {source})",
            f"{mine} NOT IN (SELECT {theirs} FROM {source} WHERE {theirs} IS NOT NULL{also})",
            f"({mine}, {alias}.d) NOT IN (SELECT {theirs}, {inner}.d FROM {source})",
            f"({mine}, {outer}) NOT IN (SELECT {theirs}, {number} FROM {source} WHERE TRUE{also})",
            f"{mine} IN (SELECT {theirs} FROM {source} WHERE {inner}.a = {alias}.a{also})",
            f"EXISTS (SELECT 1 FROM {source} WHERE {link}{also})",
            f"NOT EXISTS (SELECT 1 FROM {source} WHERE {link}{also})",
            f"{outer} > (SELECT avg({number}) FROM {source})",
            f"{outer} = (SELECT max({number}) FROM {source})",
            f"{outer} BETWEEN (SELECT min({number}) FROM {source})"
            f" AND (SELECT avg({number}) FROM {source})",
            f"{outer} = (SELECT max({number}) FROM {source} WHERE {inner}.d = {alias}.d)",
            f"{outer} >= (SELECT count(*) FROM {source} WHERE {inner}.a = {alias}.a)",
            f"{outer} > (SELECT {inner}.a FROM {source} ORDER BY {every} LIMIT 1)",
        )

    # -- queries ------------------------------------------------------------------------------

    def select(self, depth: int) -> str:
        if self.r.random() < 0.65:
            return self.joined(depth)
        if self.r.random() < 0.1:
            return self.with_values(depth)
        alias = self.fresh()
        columns = ", ".join(
            f"{self.value(alias, self.kind())} AS x{at}" for at in range(self.r.randint(1, 4))
        )
        distinct = self.one_of("", "", "DISTINCT ")
        source, where = self.source(depth), self.where(alias, depth)
        return f"SELECT {distinct}{columns} FROM {source} AS {alias} WHERE {where}"

    def with_values(self, depth: int) -> str:
        """Return a query with rows that stand in it."""
        alias, inner = self.fresh(), self.fresh()
        kind = self.one_of("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
        rows = f"(VALUES (0, 'a'), (1, NULL), (NULL, 'b'), (1, 'ab')) AS {inner}(y, z)"
        source = f"{self.source(depth - 1)} AS {alias} {kind} {rows} ON {alias}.a = {inner}.y"
        return f"SELECT {alias}.b AS x0, {inner}.z AS x1 FROM {source}"

    def joined(self, depth: int) -> str:
        left, right = self.fresh(), self.fresh()
        kind = self.one_of(
            "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"
        )
        on = " AND ".join(self.comparison(left, right) for _ in range(self.r.randint(1, 2)))
        if self.r.random() < 0.3:
            on += f" AND {self.condition(self.one_of(left, right), 0)}"
        sides = [left] if "SEMI" in kind or "ANTI" in kind else [left, right]
        columns = ", ".join(
            f"{self.value(self.one_of(*sides), self.kind())} AS x{at}" for at in range(3)
        )
        where = "" if self.r.random() < 0.6 else f" WHERE {self.condition(sides[0], 0)}"
        source = (
            f"{self.source(depth - 1)} AS {left} {kind} {self.source(depth - 1)} AS {right} ON {on}"
        )
        return f"SELECT {columns} FROM {source}{where}"

    def aggregate(self, alias: str) -> str:
        number, any_column = self.value(alias, "number"), self.column(alias)
        choice = self.one_of(
            "count(*)",
            f"count({any_column})",
            f"sum({number})",
            f"avg({self.column(alias, 'number')})",
            f"min({any_column})",
            f"max({any_column})",
            f"count(DISTINCT {any_column})",
            f"sum(DISTINCT {self.column(alias, 'number')})",
            f"max({self.value(alias, 'text')})",
            f"bool_or({self.column(alias, 'boolean')})",
            f"count(DISTINCT {alias}.a, {alias}.d)",
            f"min({number})",
            f"count_if({self.column(alias, 'boolean')})",
            f"{self.one_of('bit_and', 'bit_or', 'bit_xor')}({alias}.{self.one_of('a', 'b')})",
            f"min_by(upper({alias}.d), {alias}.d)",
            f"max_by({alias}.a + 1, {alias}.a)",
            f"count({alias}.a, {alias}.d)",
            f"sort_array({self.one_of('collect_list', 'collect_set')}({self.collected(alias)}))",
            f"size(collect_set({self.collected(alias)}))",
            f"{self.one_of('stddev', 'var_pop')}({self.column(alias, 'number')})",
        )
        if self.r.random() < 0.15 and "count_if" not in choice and "collect" not in choice:
            choice += f" FILTER (WHERE {self.condition(alias, 0)})"
        return choice

    def collected(self, alias: str) -> str:
        return f"{alias}.{self.one_of(*'abcdfhi')}"

    def grouped(self, depth: int) -> str:
        alias = self.fresh()
        keys = [self.value(alias, self.kind()) for _ in range(self.r.randint(0, 2))]
        keys = [key for key in dict.fromkeys(keys) if alias in key]
        shown = [f"{key} AS k{at}" for at, key in enumerate(keys)]
        shown += [f"{self.aggregate(alias)} AS x{at}" for at in range(self.r.randint(1, 3))]
        sql = f"SELECT {', '.join(shown)} FROM {self.source(depth)} AS {alias}"
        if self.r.random() < 0.4:
            sql += f" WHERE {self.where(alias, depth)}"
        if keys:
            form = self.one_of("{}", "{}", "{}", "ROLLUP({})", "CUBE({})")
            sql += f" GROUP BY {form.format(', '.join(keys))}"
            if self.r.random() < 0.3:
                recent = f"max({alias}.h) > now() - INTERVAL 30 MINUTES"
                tests = (
                    "count(*) > 1",
                    f"sum({alias}.a) IS NOT NULL",
                    f"max({alias}.c) > 0",
                    recent,
                )
                sql += f" HAVING {self.one_of(*tests)}"
        return sql

    def set_operation(self, depth: int) -> str:
        kinds = [self.kind() for _ in range(self.r.randint(1, 3))]
        operation = self.one_of(
            "UNION", "UNION ALL", "EXCEPT", "EXCEPT ALL", "INTERSECT", "INTERSECT ALL"
        )
        return f" {operation} ".join(self.plain(kinds, depth) for _ in range(2))

    def plain(self, kinds: list[str], depth: int) -> str:
        alias = self.fresh()
        columns = ", ".join(f"{self.column(alias, kind)} AS x{at}" for at, kind in enumerate(kinds))
        where = "" if self.r.random() < 0.5 else f" WHERE {self.where(alias, depth - 1)}"
        return f"(SELECT {columns} FROM {self.source(depth - 1)} AS {alias}{where})"

    def windowed(self, depth: int) -> str:
        alias = self.fresh()
        everything = ", ".join(f"{alias}.{name}" for name in KINDS)
        way = self.one_of("", " DESC", " NULLS LAST")
        function = self.one_of(
            "row_number()",
            "rank()",
            "dense_rank()",
            f"sum({alias}.a)",
            f"count({alias}.d)",
            f"min({alias}.c)",
            f"lag({alias}.a)",
            f"lead({alias}.d, 2)",
            "ntile(3)",
            "percent_rank()",
            "cume_dist()",
            f"avg({alias}.c)",
            f"first_value({alias}.a)",
            f"last_value({alias}.d)",
            f"max({alias}.b)",
            f"lag({alias}.b, 2, 7)",
            f"lead({alias}.a) IGNORE NULLS",
            f"lag({alias}.d, 2) IGNORE NULLS",
            f"nth_value({alias}.d, 2)",
            f"first_value({alias}.b) IGNORE NULLS",
            f"last_value({alias}.b) IGNORE NULLS",
            f"bit_or({alias}.a)",
            f"stddev({alias}.a)",
        )
        is_ranked = function[:4] in {"rank", "dens", "perc", "cume"}
        order = (
            f"{alias}.{self.one_of('a', 'c', 'd')}{way}"
            if is_ranked
            else f"{alias}.a{way}, {everything}"
        )
        frame = ""
        if function[:3] in {"sum", "cou", "min", "avg", "max", "fir", "las", "nth", "bit", "std"}:
            frame = self.one_of(
                "",
                " ROWS BETWEEN 1 PRECEDING AND CURRENT ROW",
                " ROWS BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING",
                " ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING",
                " ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING",
                " ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
            )
            if function[:3] not in {"fir", "las", "nth"} and self.r.random() < 0.4:
                order = f"{alias}.{self.one_of('a', 'f')}{way}"
                frame = self.one_of(
                    "",
                    " RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING",
                    " RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING",
                    " RANGE BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING",
                )
        parts = self.one_of(
            "", f"PARTITION BY {self.column(alias)} ", f"PARTITION BY {alias}.d, {alias}.g "
        )
        over = f"{function} OVER ({parts}ORDER BY {order}{frame})"
        sql = f"SELECT {everything}, {over} AS x FROM {self.source(depth)} AS {alias}"
        if self.r.random() < 0.4 and function in {"row_number()", "rank()"}:
            return f"SELECT a, d, x FROM ({sql}) WHERE x <= 2"
        return sql

    def top(self, depth: int) -> str:
        alias = self.fresh()
        everything = ", ".join(f"{alias}.{name}" for name in KINDS)
        way = self.one_of("", " DESC", " DESC NULLS FIRST", " NULLS LAST")
        offset = self.one_of("", "", " OFFSET 1")
        return (
            f"SELECT {everything} FROM {self.source(depth)} AS {alias} "
            f"ORDER BY {self.column(alias)}{way}, {everything} LIMIT {self.r.randint(1, 5)}{offset}"
        )
