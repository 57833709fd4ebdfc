"""Which planted bugs the simulation finds by itself, and how many seeds it takes.

python -m tests.faults.simulation.finding [NAME …] [--seeds 400] [--json
benchmarks/results/simulation_finds.json]

What it does not find, others do: each bug has tests that must (``tests/faults/planted``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import source_tree

from tests.faults.planted.bugs import BUGS, BY_NAME, Bug
from tests.faults.planted.planting import planted
from tests.faults.simulation.campaign import outcomes


def main() -> int:
    """Plant bugs, one after another; return 0 when each run came to its end."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*", metavar="NAME")
    options.add_argument("--seeds", type=int, default=400, help="so many are tried at most")
    options.add_argument("--processes", type=int, default=os.cpu_count())
    options.add_argument("--json", type=Path)
    options.add_argument("--here", action="store_true", help="look for what is wrong in this tree")
    chosen = options.parse_args()
    if chosen.here:
        print(json.dumps(first_wrong(chosen.seeds, chosen.processes)))
        return 0
    names = chosen.names or [bug.name for bug in BUGS if not bug.with_spark]
    found: dict[str, Any] = {}
    for name in names:
        found[name] = search(BY_NAME[name], chosen.seeds, chosen.processes)
        print(f"{name}: {found[name]}", flush=True)
        if chosen.json:
            trees = {
                "source_tree": source_tree(),
                "tests_tree": source_tree("tests/faults/simulation"),
            }
            known = {**trees, "seeds": chosen.seeds, "found": found}
            chosen.json.write_text(json.dumps(known, indent=1) + "\n")
    return 0


def first_wrong(seeds: int, processes: int) -> dict[str, Any]:
    """Run seeds until one finds something; return how many there were, and what the last one found."""
    for number, outcome in enumerate(outcomes(range(seeds), processes, float("inf"))):
        if outcome.problem:
            return {"seeds": number + 1, "problem": outcome.problem.splitlines()[0]}
    return {"seeds": seeds, "problem": ""}


def search(bug: Bug, seeds: int, processes: int) -> dict[str, Any]:
    """Plant a bug, and run seeds until one finds it.

    Raises:
        CalledProcessError: when a run breaks off.
    """
    with planted(bug) as copy:
        command = [sys.executable, "-m", "tests.faults.simulation.finding", "--here"]
        command += ["--seeds", str(seeds), "--processes", str(processes)]
        path = {"PYTHONPATH": os.pathsep.join([str(copy), str(copy / "src")])}
        ran = subprocess.run(
            command,
            cwd=copy,
            env={**os.environ, **path},
            check=True,
            capture_output=True,
            text=True,
        )
    last: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return last


if __name__ == "__main__":
    sys.exit(main())
