"""Shapes: what a type comes to in storage, as plain data, and what became of it from code to code.

A shape is small JSON, kept in the manifests. So a change of code can be judged without the old code: what
passes, and what is refused, in words (:mod:`headrace.shapes.compare`). Pure.
"""

from headrace.shapes.compare import differences
from headrace.shapes.describe import shape_of_type
from headrace.shapes.words import in_words

__all__ = ["differences", "in_words", "shape_of_type"]
