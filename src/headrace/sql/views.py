"""Views: queries of SQL whose results are kept up to date while their tables change."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal

import msgspec

from headrace.errors import PipelineError
from headrace.eventtime.durations import DurationLike, duration_micros
from headrace.pipeline.arguments import checked_name
from headrace.session import spark_session
from headrace.sql.explaining import explained, shown_after
from headrace.sql.ir.relations import Column, Query
from headrace.sql.ir.types import of_arrow
from headrace.sql.lowering import Lowering, chosen
from headrace.sql.planner import Parser, query_of
from headrace.sql.row_functions import name_of
from headrace.sql.rules.waterlines import Waterlines, Watermark
from headrace.sql.stored import PlannedView, what_it_reads
from headrace.zsets import OnTimeRows, ZStream

#: The longest name of a view: computations get longer ones, of which a name has 64.
MOST_LETTERS = 40


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
        self._waterlines = Waterlines()
        self._lowering = Lowering(self._streams, self._waterlines)
        self._late: dict[str, ZStream] = {}
        self._final: dict[str, str] = {}  # when the rows of views are final that wait for it
        self._known = dict(planned or {})
        for one in self._known.values():
            self._lowering.names |= one.names
        self.planned: dict[str, PlannedView] = {}

    def table(
        self,
        name: str,
        rows: ZStream,
        *,
        append_only: bool = False,
        watermark: str | None = None,
        lateness: DurationLike = "0s",
    ) -> None:
        """Declare a table.

        Of a table with a watermark, rows that come too late are left out of all views: they are
        counted as late, and are in :meth:`late`. In return, views let go of what they keep for rows
        that none can join any more, and can wait until a row is final (``emit="final"``).

        Args:
            name: its name in queries.
            rows: its rows; see :func:`headrace.zsets.table`.
            append_only: whether rows are only inserted. A deletion is an error then.
            watermark: the column of each row's time, for a table that is ``append_only``. It is not
                needed for rows of ``hr.zsets.table(…, watermark=…)``, which have one.
            lateness: how far a row may be behind the watermark of the stream, as it was after the
                step before.

        Raises:
            PipelineError: if the name is taken, or a column has a type that SQL does not have.

        Example::

            views = hr.sql.Views(spark)
            views.table("bid", hr.zsets.table("all_bids", bids), append_only=True, watermark="at")
            dear = views.view("dear", "SELECT at, price FROM bid WHERE price > 99", emit="final")
            dear.view("answer")
        """
        self._check_free(name)
        rows = self._on_time(name, rows, append_only, watermark, lateness)
        self._add_table(name, rows)

    def _on_time(
        self,
        name: str,
        rows: ZStream,
        append_only: bool,
        watermark: str | None,
        lateness: DurationLike,
    ) -> ZStream:
        """Return the rows of a table without those that come too late."""
        place = f"table {name!r}"
        if watermark is not None and not append_only:
            raise PipelineError(
                f"watermark={watermark!r} is for a table whose rows are only inserted",
                place=place,
                remedy="say append_only=True; a deletion of a row is an error then",
            )
        if watermark is None and duration_micros(lateness, "lateness", place=place):
            raise PipelineError(
                f"lateness={lateness!r} needs a watermark", place=place, remedy='watermark="at"'
            )
        is_checked = append_only and watermark is None and not rows.only_inserts
        if (watermark is not None and not _has(rows, watermark, lateness)) or is_checked:
            rows = rows.on_time(f"{name}_on_time", watermark, lateness, what=place)
        return rows

    def _add_table(self, name: str, rows: ZStream) -> None:
        place = f"table {name!r}"
        try:
            columns = [Column(one.name, of_arrow(one.type), one.nullable) for one in rows.schema]
        except TypeError as error:
            raise PipelineError(str(error), place=place) from error
        if isinstance(rows, OnTimeRows):
            self._late[name] = rows.late
            if rows.watermark is not None:
                self._waterlines.watermarks[name] = Watermark(
                    rows.schema.get_field_index(rows.watermark), duration_micros(rows.lateness)
                )
        if isinstance(rows, OnTimeRows) or rows.only_inserts:
            self._waterlines.append_only.add(name)
        self._columns[name] = columns
        self._streams[name] = rows
        self._undeclared.append(lambda planner: planner.declare(name, columns))

    def late(self, name: str) -> ZStream:
        """Return the rows of a table that came too late, and so are in no view.

        Args:
            name: the table.

        Raises:
            PipelineError: if there is no such table, or it has no watermark.
        """
        if name not in self._late:
            raise PipelineError(
                f"no row of {name!r} is ever late",
                remedy="declare the table with append_only=True and watermark=",
            )
        return self._late[name]

    def view(
        self, name: str, sql: str, *, emit: Literal["changes", "final"] = "changes"
    ) -> ZStream:
        """Declare a view, and return its rows: a stream of changes.

        Later views may read it by its name. What views compute alike is computed once. A column
        whose name is none of Python, such as ``sum(price)``, is called ``sum_price``.

        Args:
            name: its name.
            sql: a query over tables and views. The order that it asks for is one for readers, and
                is not maintained, unless there is a LIMIT.
            emit: ``"changes"`` has the result up to date after every step. ``"final"`` has each row
                once, when nothing can change it any more. It needs a column that says when that is,
                which follows from the watermark of a table, such as the end of a window. A later
                view that reads it sees only rows that are final.

        Raises:
            PipelineError: if the query is wrong, or cannot be maintained. It names the clause and
                the reason. Also for a name that is taken, or has more than 40 letters.
        """
        self._check_free(name)
        if len(checked_name(name, "a view")) > MOST_LETTERS:
            raise PipelineError(
                f"view {name!r} has a name of {len(name)} letters",
                remedy=f"use at most {MOST_LETTERS}: computations are named after it",
            )
        if emit not in ("changes", "final"):
            raise PipelineError(f"emit={emit!r}", remedy='"changes" or "final"')
        planned = self._planned(name, sql)
        query = planned.query
        self._lowering.view = name
        final = self._when_final(name, query) if emit == "final" else {}
        rows = self._lowering.stream(query.relation)
        names = [_python_name(one.name) for one in query.relation.columns]
        if len(set(names)) < len(names):
            raise PipelineError(
                f"view {name!r} has two columns of one name: {', '.join(names)}",
                place=sql,
                remedy="name them with AS",
            )
        planned = msgspec.structs.replace(planned, names=self._lowering.named(query.relation))
        self.planned[name] = planned
        rows.pipeline.views[name] = planned.declared()
        named = chosen(rows, {of: name_of(at) for at, of in enumerate(names)})
        if not final:
            self._texts[name] = sql
            self._undeclared.append(lambda planner: planner.declare_view(name, sql))
            return named
        ((at, after),) = final.items()
        until = {names[at]: timedelta(microseconds=after)}
        found = named.final(f"{name}_final", until)
        self._final[name] = f"{shown_after(after)} {names[at]}"
        self._add_table(name, found)
        self._waterlines.watermarks[name] = Watermark(at, after - 1)
        self._waterlines.append_only.add(name)
        return found

    def _when_final(self, name: str, query: Query) -> dict[int, int]:
        """Return the column that says when a row is final, and how long behind it that is.

        Raises:
            PipelineError: if there is none.
        """
        found = self._waterlines.final(query.relation)
        if not found:
            tables = list(what_it_reads(query.sql, self._columns, self._texts)[0])
            without = [one for one in tables if one not in self._waterlines.watermarks]
            why = (
                f"no watermark is declared for {', '.join(without)}"
                if without
                else "no column of it follows from their watermarks"
            )
            raise PipelineError(
                f'view {name!r} has emit="final", and nothing says when its rows are final: {why}',
                place=query.sql,
                remedy="select a time that is never NULL and behind which nothing comes: the end of a "
                "window that is in GROUP BY, or the watermark column of a table; in a join, times of "
                "both sides are compared. views.explain(…) tells what is known of each part",
            )
        return found

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
        keep_rows = [table for table in self._columns if self._streams[table].keeps_rows]
        query, final = self.planned[name].query, self._final.get(name, "")
        return explained(query, self._waterlines, final, keep_rows)

    def _check_free(self, name: str) -> None:
        if name in self._columns or name in self._texts:
            raise PipelineError(f"there is a table or view {name!r} already")


def _catalyst(spark: Any) -> Any:
    from headrace.sql.catalyst import Catalyst  # (imports Spark, which a test may do without)

    return Catalyst(spark if spark is not None else spark_session())


def _has(rows: ZStream, watermark: str, lateness: DurationLike) -> bool:
    """Return whether rows are judged by a watermark already."""
    return (
        isinstance(rows, OnTimeRows)
        and rows.watermark == watermark
        and duration_micros(rows.lateness) == duration_micros(lateness)
    )


def _python_name(name: str) -> str:
    """Return the name of a column in the stream of a view."""
    if name.isidentifier() and not name.startswith("_"):
        return name
    words = re.sub(r"\W+", "_", name).strip("_")
    return words if words.isidentifier() else f"x_{words}"
