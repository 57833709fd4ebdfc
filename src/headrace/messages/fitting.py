"""Which types of columns may have the same values."""

from __future__ import annotations

import pyarrow as pa

from headrace.schema.exact import family_of, stored

#: Families of numbers, which may be those of one another.
_NUMBERS = ("int", "float", "decimal")


def may_fit(given: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether values of a type can be values of another one."""
    given = stored(given.value_type if pa.types.is_dictionary(given) else given)
    one, other = family_of(given), family_of(kind)
    if one != other:
        return one in _NUMBERS and other in _NUMBERS
    if one == "list":
        return may_fit(given.value_type, kind.value_type)
    if one == "map":
        return may_fit(given.item_type, kind.item_type)
    if one == "struct":
        there = {field.name: field.type for field in given}
        return all(of.name not in there or may_fit(there[of.name], of.type) for of in kind)
    return True
