"""Shapes: what a type comes to in storage, as plain data, and what became of it from code to code.

A shape is small JSON, kept in the manifests. So a change of code can be judged without the old code: what
passes, and what is refused, in words (:mod:`headrace.schema.compatibility.compare`). Pure.
"""

from headrace.schema.compatibility.compare import differences
from headrace.schema.compatibility.describe import shape_of_type
from headrace.schema.compatibility.wording import in_words

__all__ = ["differences", "in_words", "shape_of_type"]
