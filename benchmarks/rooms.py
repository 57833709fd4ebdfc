"""How long the suite's parts of the campaigns take, one after another.

``python -m benchmarks.rooms --json benchmarks/results/rooms.json``. (``make test`` runs the
suite in two parallel processes.)
"""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.harness import figure, parser, report

#: The part of each campaign that runs in the suite.
ROOMS = {
    "simulation": "tests/faults/simulation",
    "crash points": "tests/faults/crashpoints",
    "power loss": "tests/faults/power",
    "full disks": "tests/faults/storage/test_full_and_read_only.py",
    "kills at system calls": "tests/faults/kills",
    "kills and zombies on Spark": "tests/spark/test_kill_campaign.py",
    "damage": "tests/faults/damage/test_damaged_checkpoints.py",
    "planted bugs": "tests/faults/planted",
}
GOAL_S = 480


def main() -> int:
    """Run them; return 0 if all have passed."""
    options = parser(__doc__)
    options.add_argument("--rooms", nargs="*", choices=list(ROOMS), default=list(ROOMS))
    chosen = options.parse_args()
    found, failed = {}, []
    for room in chosen.rooms:
        begun = time.perf_counter()
        pytest = [sys.executable, "-m", "pytest", "-q", "-m", "not soak", ROOMS[room]]
        if subprocess.run(pytest, check=False).returncode:
            failed.append(room)
        found[room] = time.perf_counter() - begun
    total = sum(found.values())
    rows = [["room", "s"], *([room, f"{seconds:.0f}"] for room, seconds in found.items())]
    goal = f"< {GOAL_S}", total < GOAL_S
    figures = [figure("seconds_in_suite", total, "s", *goal)]
    figures += [figure(room.replace(" ", "_"), seconds, "s") for room, seconds in found.items()]
    report("The campaigns' parts in the suite", rows, figures, chosen, failed=failed)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
