"""Runs many seeds on all cores; fails if one finds something wrong, or a situation never came up.

python -m tests.simulation.campaign --seeds 1000 --first 0 --json benchmarks/results/simulation.json
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec

from tests.simulation.run import Outcome, simulate

#: Every how many-th seed is run twice, and must do the same.
_TWICE = 100
#: What must come up at least once in a campaign, or it has shown nothing of it.
WANTED = [
    "fault: error", "fault: lost reply", "fault: crash before", "fault: crash after", "fault: torn write",
    "fault: slow", "fault: stale list", "fault: full", "fault: task given up", "fault: task run twice",
    "fault: executor dies", "fault: a rival takes over", "fault: clock jumps", "fault: crash in delivery",
    "fenced", "fenced: its step was committed by another driver",
    "fenced: its predecessor was cleaned away by another driver",
    "a driver died", "a step is delivered again", "the boundary was raised", "migration done",
    "migration aborted", "bins of different depth", "a step while a migration is preparing",
    "a record was sent again",
]  # fmt: skip


def main() -> int:
    """Run a campaign; return 0 when all was as it must be."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=1_000)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--processes", type=int, default=os.cpu_count())
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    begun, seen = time.monotonic(), Counter[str]()
    total = Counter[str]()
    wrong: list[Outcome] = []
    with multiprocessing.Pool(chosen.processes, maxtasksperchild=500) as pool:
        for found in pool.imap_unordered(once_or_twice, seeds, chunksize=4):
            total.update(events=found.events, faults=found.faults, steps=found.steps,
                         effects=found.effects, seeds=1)  # fmt: skip
            seen.update(set(found.seen))
            if found.problem:
                wrong.append(found)
                print(f"seed {found.seed}: {found.problem}", flush=True)
    missing = [name for name in WANTED if not seen[name]]
    result = {
        "command": " ".join(["python -m tests.simulation.campaign", *sys.argv[1:]]),
        "source_tree": _tree(), "first": chosen.first, "seconds": round(time.monotonic() - begun),
        "wrong": [found.seed for found in wrong], "never": missing, **total,
        "seeds_with": dict(sorted(seen.items())),
    }  # fmt: skip
    text = msgspec.json.format(msgspec.json.encode(result), indent=1).decode()
    print(text)
    if chosen.json:
        chosen.json.write_text(text + "\n")
    return int(bool(wrong or missing))


def once_or_twice(seed: int) -> Outcome:
    """Run a seed; some are run twice, to see whether they do the same."""
    found = simulate(seed)
    if seed % _TWICE == 0 and simulate(seed).fingerprint != found.fingerprint:
        found.problem = found.problem or "it did something else the second time"
    return found


def _tree() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "HEAD:src"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
