"""Views of SQL that are kept up to date.

A query is planned once: Spark's Catalyst (:mod:`~headrace.sql.catalyst`) gives every part its type,
:mod:`~headrace.sql.translation` turns the plan into relations and expressions of an IR
(:mod:`~headrace.sql.ir`), and :mod:`~headrace.sql.rules` improves that. The IR is plain data.
:mod:`~headrace.sql.expressions` computes with columns.
"""

from headrace.sql.views import Views

__all__ = ["Views"]
