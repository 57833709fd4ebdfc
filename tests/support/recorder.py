"""What the world has seen of a pipeline: lines of a file. It knows nothing of the package."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: What a sink was told in one row: its name, and the row's values in the order of their names.
Effect = tuple[Any, ...]


def recorder(file: Path, sink: str) -> Callable[[int, Any], None]:
    """Return what writes down what a sink is told: an id, and rows as an Arrow table."""
    told = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def take(id_: int, rows: Any) -> None:
        names = sorted(name for name in rows.column_names if name != "timestamp")
        columns = [rows.column(name).to_pylist() for name in names]
        line = {"sink": sink, "id": id_, "rows": list(zip(*columns, strict=True))}
        os.write(told, f"\n{json.dumps(line)}\n".encode())  # (the line before may be torn)

    return take


def seen(file: Path) -> Counter[Effect]:
    """Return what had an effect: each id of a sink counts once, and is always the same."""
    known: dict[tuple[str, int], list[Any]] = {}
    for text in file.read_text().splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue  # a kill came in the middle of it, or it is empty
        at = line["sink"], line["id"]
        assert known.setdefault(at, line["rows"]) == line["rows"], f"{at} came with other rows"
    return Counter((sink, *row) for (sink, _), rows in known.items() for row in rows)
