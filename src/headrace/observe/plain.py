"""What observers show as plain data, for JSON."""

from __future__ import annotations

from typing import Any

import msgspec

#: Fields that hold a time, or "-" for one that is not known.
_TIMES = frozenset({"watermark", "oldest", "input_watermark", "output_watermark"})


def with_null_times(facts: Any) -> Any:
    """Return data for JSON, in which a watermark that is not known yet is null."""
    plain = msgspec.to_builtins(facts)
    if isinstance(plain, list):
        return [with_null_times(each) for each in plain]
    if isinstance(plain, dict):
        return {
            name: None if name in _TIMES and value == "-" else with_null_times(value)
            for name, value in plain.items()
        }
    return plain
