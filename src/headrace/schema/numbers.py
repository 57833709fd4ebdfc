"""NumPy numbers, where a Python number is expected."""

from __future__ import annotations

from typing import Any

import numpy as np


def plain_number(value: Any, *, strict: bool = True) -> Any:
    """Return a NumPy scalar as the Python number, text or bytes that it equals.

    Raises:
        TypeError: for any other value. With ``strict=False`` such a value is returned as it is.
    """
    if isinstance(value, np.timedelta64):  # (an integer by its class, but not by its meaning)
        pass
    elif isinstance(value, np.bool_ | np.integer | np.floating | np.str_ | np.bytes_):
        plain = value.item()
        if type(plain) is not type(value):
            return plain
    if not strict:
        return value
    raise TypeError(f"{type(value).__name__} is not a type that can be kept")
