"""Figures of long campaigns, kept in the file that HEADRACE_SOAK_JSON names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.harness import source_tree


def record(name: str, figures: Any) -> None:
    """Keep figures under a name, with the source tree that they are of."""
    target = os.environ.get("HEADRACE_SOAK_JSON")
    if not target:
        return
    path = Path(target)
    before = json.loads(path.read_text()) if path.exists() else {}
    before[name] = {"source_tree": source_tree(), "figures": figures}
    path.write_text(json.dumps(before, indent=1) + "\n")
