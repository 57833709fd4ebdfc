"""Expressions over columns, with the meaning that Spark gives them.

:func:`compile_expression` turns an expression of the IR into a function over columns. Importing
this package registers all functions.
"""

from __future__ import annotations

from headrace.sql.expressions import arithmetic, arrays, casts, conditions, patterns, texts, times
from headrace.sql.expressions.compiling import Compiled, compile_expression, names
from headrace.sql.expressions.vectors import Frame, Vector, from_arrow, to_arrow

__all__ = [
    "Compiled",
    "Frame",
    "Vector",
    "arithmetic",
    "arrays",
    "casts",
    "compile_expression",
    "conditions",
    "from_arrow",
    "names",
    "patterns",
    "texts",
    "times",
    "to_arrow",
]
