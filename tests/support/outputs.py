"""Reading what a pipeline's file sinks hold, without the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def steps_of(directory: Path) -> list[list[str]]:
    """Return a sink's non-empty steps in order, each as a sorted list of its records.

    Claims of an epoch are steps too, so numbers shift with restarts; the order does not.
    """
    files = sorted(directory.glob("step-*.jsonl"))
    return [sorted(file.read_text().splitlines()) for file in files]


def all_steps(out: Path) -> dict[str, list[list[str]]]:
    """Return the steps of each sink below a directory."""
    return {item.name: steps_of(item) for item in sorted(out.iterdir())}


def records(directory: Path) -> list[dict[str, Any]]:
    """Return all records of a sink."""
    return [json.loads(line) for step in steps_of(directory) for line in step]
