"""Shapes: how a type is stored, as plain data, and in what the shapes of two versions differ.

A shape is small JSON, kept in the manifests. So a change of code can be judged without the old
code: whether it passes, and if not, why (:mod:`headrace.schema.compatibility.compare`). Pure.
"""

from headrace.schema.compatibility.checking import check_shape
from headrace.schema.compatibility.compare import differences
from headrace.schema.compatibility.describe import shape_of_type
from headrace.schema.compatibility.wording import in_words

__all__ = ["check_shape", "differences", "in_words", "shape_of_type"]
