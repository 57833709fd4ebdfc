"""Figures of long campaigns, kept in the file that an environment variable names."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import source_tree

#: The variable that names it; without it nothing is kept.
KEPT_IN = "HEADRACE_SOAK_JSON"
#: How a campaign has ended in which nothing was wrong.
PASSED = "passed"


@contextmanager
def recording(name: str) -> Iterator[Callable[[Any], None]]:
    """Keep the figures that a campaign gives, with the trees that they are of, and how it has ended.

    From its beginning it stands there as not finished: so one that fails, or is cut short, leaves no older
    figures behind that look like its own.
    """
    figures: Any = {}

    def keep(seen: Any) -> None:
        nonlocal figures
        figures = seen
        _write(name, figures, "not finished")

    keep({})
    try:
        yield keep
    except BaseException as error:
        _write(name, figures, f"failed: {type(error).__name__}")
        raise
    _write(name, figures, PASSED)


def _write(name: str, figures: Any, ended: str) -> None:
    target = os.environ.get(KEPT_IN)
    if not target:
        return
    path = Path(target)
    known = json.loads(path.read_text()) if path.exists() else {}
    trees = {"source_tree": source_tree(), "tests_tree": source_tree("tests")}
    known[name] = {**trees, "ended": ended, "figures": figures}
    path.write_text(json.dumps(known, indent=1) + "\n")
