"""What all experiments share: their options, and where what they find goes."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.harness import parser
from benchmarks.tables import RESULTS

#: Where what is found goes, if not said.
FOUND = RESULTS / "evaluation"


def options(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return the options of an experiment."""
    made = parser(description)
    made.set_defaults(json=FOUND / f"{name}.json")
    made.add_argument("--pictures", type=Path, default=FOUND, help="a folder for what is drawn")
    return made
