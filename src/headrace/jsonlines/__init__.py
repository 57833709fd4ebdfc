"""JSON lines: rows as lines of JSON, and back.

JSON has texts, numbers, booleans, lists and objects. Everything else is written as one of these, and
read again by the type that is declared: bytes are Base64; dates, times and durations are ISO 8601;
decimals are texts; maps are objects, whose keys are the texts of keys; NaN and the infinities, which JSON
has no numbers for, are the texts ``NaN``, ``Infinity`` and ``-Infinity``. That is as msgspec has it.
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
