"""JSON lines: rows as lines of JSON, and back.

JSON has strings, numbers, booleans, lists and objects. Every other value is written as one of
these, and is read by its declared type. The encoding is that of msgspec: bytes are Base64; dates,
times and durations are ISO 8601; decimals are strings; maps are objects, whose names are the keys
as text. NaN and the infinities, for which JSON has no numbers, are the strings ``NaN``,
``Infinity`` and ``-Infinity``.
"""

from headrace.jsonlines.options import type_with_options
from headrace.jsonlines.shadows import Shadow, arrow_can, has_defaults, row_type, type_as_read
from headrace.jsonlines.texts import keys_of_texts, value_of_texts
from headrace.jsonlines.writing import json_lines

__all__ = [
    "Shadow",
    "arrow_can",
    "has_defaults",
    "json_lines",
    "keys_of_texts",
    "row_type",
    "type_as_read",
    "type_with_options",
    "value_of_texts",
]
