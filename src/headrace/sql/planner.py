"""From the text of a query to its IR."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from headrace.sql.ir.relations import Column, Query
from headrace.sql.translation.relations import Translation
from headrace.sql.translation.tree import Planned


class Parser(Protocol):
    """What parses and optimizes a query: :class:`headrace.sql.catalyst.Catalyst`."""

    def plan(self, sql: str) -> Planned:
        """Return the plan of a query."""
        ...


def query_of(name: str, sql: str, tables: Mapping[str, Sequence[Column]], parser: Parser) -> Query:
    """Return the IR of a query.

    Args:
        name: the view's name.
        sql: its text.
        tables: the declared columns of each table.
        parser: where the tables are declared.

    Raises:
        PipelineError: if the query is wrong, or cannot be maintained. It names the clause and the
            reason.
    """
    planned = parser.plan(sql)
    columns = {table: tuple(of) for table, of in tables.items()}
    relation, order = Translation(sql, columns).query(planned)
    return Query(name, sql, relation, order)
