"""PyArrow has no types. Both type checkers take what comes of it as ``Any``."""

from typing import Any

def __getattr__(name: str) -> Any: ...
