"""Numbers of NumPy where a number of Python is taken."""

from __future__ import annotations

from typing import Any

import numpy as np


def plain_number(value: Any, *, strict: bool = True) -> Any:
    """Return a NumPy scalar as the Python number (or text, or bytes) that it is.

    Raises:
        TypeError: for what is none; but for ``strict=False`` that is returned as it is.
    """
    if isinstance(value, np.timedelta64):  # (an integer by its class, and none by what it says)
        pass
    elif isinstance(value, np.bool_ | np.integer | np.floating | np.str_ | np.bytes_):
        plain = value.item()
        if type(plain) is not type(value):
            return plain
    if not strict:
        return value
    raise TypeError(f"{type(value).__name__} is no type that can be kept")
