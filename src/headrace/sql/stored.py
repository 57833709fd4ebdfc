"""What was planned of a view, as it is stored with the pipeline.

A later start takes it from there and does not plan again, if the text and all that it reads are the
same. So a view stays what it was compiled to, also with another version of Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from headrace.errors import Damaged
from headrace.pipeline.declared_schema import DeclaredView
from headrace.sql.ir.canonical import digest
from headrace.sql.ir.relations import Column, Query


class PlannedView(msgspec.Struct, frozen=True):
    """A view as it was planned, and what it depends on.

    Attributes:
        query: its text and its relations.
        tables: the columns of the tables that its text may read, by name.
        views: the texts of the views that it may read, by name.
        names: the names of the computations that maintain it, by what they do. They stay what they
            are when another view, which they are called after, is gone.

    Example::

        views = hr.sql.Views(spark)
        views.table("hit", hr.zsets.table("rows", hits))
        views.view("slowest", "SELECT page, max(ms) AS ms FROM hit GROUP BY page").view("answer")
        assert list(views.planned["slowest"].tables) == ["hit"]
    """

    query: Query
    tables: dict[str, tuple[Column, ...]]
    views: dict[str, str]
    names: dict[str, str] = {}

    def declared(self) -> DeclaredView:
        """Return the form in which the pipeline's storage keeps it."""
        return {
            "sql": self.query.sql,
            "digest": digest(self.query.relation),
            "plan": msgspec.json.encode(self).decode(),
        }


def planned_view(name: str, plan: str) -> PlannedView:
    """Return a view from its stored form.

    Raises:
        Damaged: if it is none.
    """
    try:
        return msgspec.json.decode(plan, type=PlannedView)
    except (msgspec.MsgspecError, TypeError) as error:
        raise Damaged(
            f"what was planned of view {name!r} cannot be read: {error}",
            remedy="restore the storage from a copy",
        ) from error


def what_it_reads(
    sql: str, tables: Mapping[str, Sequence[Column]], views: Mapping[str, str]
) -> tuple[dict[str, tuple[Column, ...]], dict[str, str]]:
    """Return the tables and views whose names occur in a text, directly or in a view that it reads.

    A name may occur without being read. Then a view is planned again without need.

    Args:
        sql: the text.
        tables: all tables.
        views: the texts of all views.
    """
    names = {name.lower(): name for name in (*tables, *views)}
    found: dict[str, str] = {}
    waiting = [sql]
    while waiting:
        for name in _occurring(waiting.pop(), names):
            if name not in found:
                found[name] = views.get(name, "")
                waiting.append(found[name])
    read = {name: tuple(tables[name]) for name in sorted(found) if name in tables}
    return read, {name: views[name] for name in sorted(found) if name in views}


def _occurring(sql: str, names: Mapping[str, str]) -> Iterator[str]:
    text = sql.lower()
    for lower, name in names.items():
        if re.search(rf"(?<!\w){re.escape(lower)}(?!\w)", text):
            yield name
