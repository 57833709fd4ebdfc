"""What all experiments share: their options, and where what they find goes."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.harness import parser
from benchmarks.places import Place, local, two_hosts
from benchmarks.tables import RESULTS

#: Where what is found goes, if not said.
FOUND = RESULTS / "evaluation"


def options(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return the options of an experiment."""
    made = parser(description)
    made.set_defaults(json=FOUND / f"{name}.json")
    made.add_argument("--pictures", type=Path, default=FOUND, help="a folder for what is drawn")
    return made


def add_hosts(made: argparse.ArgumentParser) -> None:
    """Add the options that say what there is between two hosts."""
    made.add_argument("--hosts", type=int, choices=[1, 2], default=2)
    made.add_argument("--call-ms", type=float, default=10.0, help="that a call of the store takes")
    made.add_argument("--megabytes", type=float, default=100.0, help="a second, of each process")


def hosts(chosen: argparse.Namespace) -> AbstractContextManager[Place]:
    """Return where it is to run."""
    if chosen.hosts == 1:
        return local()
    return two_hosts(call_ms=chosen.call_ms, megabytes=chosen.megabytes)
