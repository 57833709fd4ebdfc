"""Views: queries of SQL whose results are kept up to date while their tables change."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from headrace.errors import PipelineError
from headrace.session import spark_session
from headrace.sql.explaining import explained
from headrace.sql.ir.relations import Column, Query
from headrace.sql.ir.types import of_arrow
from headrace.sql.lowering import Lowering, chosen
from headrace.sql.planner import Parser, query_of
from headrace.sql.row_functions import name_of
from headrace.sql.stored import PlannedView, what_it_reads
from headrace.zsets import ZStream


class Views:
    """The SQL of a pipeline: its tables, and the views over them.

    Args:
        spark: the session of Spark that plans queries. By default the active one, or one that is
            started as :func:`headrace.spark_session` does it. It runs no job.
        planner: what plans queries, in the place of Spark's Catalyst.
        planned: views as they were planned before, by name, such as those of
            :func:`headrace.planned_views`. A view whose text, tables and views are the same is not
            planned again. If none has to be planned, no session is needed.

    Attributes:
        planned: the views as they are planned, by name. The pipeline's storage keeps them.

    Example::

        views = hr.sql.Views(spark)
        views.table("hit", hr.zsets.table("rows", hits))
        slowest = views.view("slowest", "SELECT page, max(ms) AS ms FROM hit GROUP BY page")
        slowest.view("answer", key=["page"])
    """

    def __init__(
        self,
        spark: Any = None,
        *,
        planner: Any = None,
        planned: Mapping[str, PlannedView] | None = None,
    ) -> None:
        self._planner = planner
        self._spark = spark
        self._undeclared: list[Callable[[Any], None]] = []  # what the planner does not know yet
        self._texts: dict[str, str] = {}
        self._columns: dict[str, list[Column]] = {}
        self._streams: dict[str, ZStream] = {}
        self._lowering = Lowering(self._streams)
        self._known = dict(planned or {})
        self.planned: dict[str, PlannedView] = {}

    def table(self, name: str, rows: ZStream) -> None:
        """Declare a table.

        Args:
            name: its name in queries.
            rows: its rows; see :func:`headrace.zsets.table`.

        Raises:
            PipelineError: if the name is taken, or a column has a type that SQL does not have.
        """
        self._check_free(name)
        try:
            columns = [Column(one.name, of_arrow(one.type), one.nullable) for one in rows.schema]
        except TypeError as error:
            raise PipelineError(str(error), place=f"table {name!r}") from error
        self._columns[name] = columns
        self._streams[name] = rows
        self._undeclared.append(lambda planner: planner.declare(name, columns))

    def view(self, name: str, sql: str) -> ZStream:
        """Declare a view, and return its rows: a stream of changes.

        Later views may read it by its name. What views compute alike is computed once. A column
        whose name is none of Python, such as ``sum(price)``, is called ``sum_price``.

        Args:
            name: its name.
            sql: a query over tables and views. The order that it asks for is one for readers, and
                is not maintained, unless there is a LIMIT.

        Raises:
            PipelineError: if the query is wrong, or cannot be maintained. It names the clause and
                the reason.
        """
        self._check_free(name)
        planned = self._planned(name, sql)
        query = planned.query
        self._texts[name] = sql
        self._undeclared.append(lambda planner: planner.declare_view(name, sql))
        self._lowering.view = name
        rows = self._lowering.stream(query.relation)
        names = [_python_name(one.name) for one in query.relation.columns]
        if len(set(names)) < len(names):
            raise PipelineError(
                f"view {name!r} has two columns of one name: {', '.join(names)}",
                place=sql,
                remedy="name them with AS",
            )
        self.planned[name] = planned
        rows.pipeline.views[name] = planned.declared()
        return chosen(rows, {of: name_of(at) for at, of in enumerate(names)})

    @property
    def queries(self) -> dict[str, Query]:
        """The relations of each view."""
        return {name: planned.query for name, planned in self.planned.items()}

    def _planned(self, name: str, sql: str) -> PlannedView:
        """Return a view as it was planned before, or plan it."""
        tables, views = what_it_reads(sql, self._columns, self._texts)
        known = self._known.get(name)
        if known is not None and (known.query.sql, known.tables, known.views) == (
            sql,
            tables,
            views,
        ):
            return known
        return PlannedView(query_of(name, sql, self._columns, self._parser()), tables, views)

    def _parser(self) -> Parser:
        """Return the planner, which knows all tables and views by then."""
        if self._planner is None:
            self._planner = _catalyst(self._spark)
        while self._undeclared:
            self._undeclared.pop(0)(self._planner)
        parser: Parser = self._planner
        return parser

    def explain(self, name: str) -> str:
        """Return what a view is made of, and the state with which each part is maintained."""
        if name not in self.planned:
            raise PipelineError(f"there is no view {name!r}")
        return explained(self.planned[name].query)

    def _check_free(self, name: str) -> None:
        if name in self._columns or name in self._texts:
            raise PipelineError(f"there is a table or view {name!r} already")


def _catalyst(spark: Any) -> Any:
    from headrace.sql.catalyst import Catalyst  # (imports Spark, which a test may do without)

    return Catalyst(spark if spark is not None else spark_session())


def _python_name(name: str) -> str:
    """Return the name of a column in the stream of a view."""
    if name.isidentifier() and not name.startswith("_"):
        return name
    words = re.sub(r"\W+", "_", name).strip("_")
    return words if words.isidentifier() else f"x_{words}"
