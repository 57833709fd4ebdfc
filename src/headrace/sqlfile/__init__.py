"""Pipelines that are nothing but SQL: a file declares tables, views and where results go.

:mod:`~headrace.sqlfile.tokens` finds words and their places, :mod:`~headrace.sqlfile.statements` reads
what a file declares, :mod:`~headrace.sqlfile.connectors` turns the options of tables into sources and
sinks, and :mod:`~headrace.sqlfile.building` makes a pipeline of it. Queries are Spark's: Catalyst plans
them.
"""

from headrace.sqlfile.building import SqlFile, read_sql_file

__all__ = ["SqlFile", "read_sql_file"]
