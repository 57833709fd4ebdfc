"""All experiments, one after another, and the page: ``python -m benchmarks.evaluation [NAME …] [--quick]``.

Each is a process of its own, and can be run alone, with more options: ``python -m
benchmarks.evaluation.sweeps --help``. What is measured is written to ``benchmarks/results/evaluation``;
with ``--quick`` beside it, where no page shows it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.evaluation import page
from benchmarks.evaluation.common import FOUND

#: What runs each experiment.
MODULES = {
    "lines": "benchmarks.evaluation.lines",
    "generator": "benchmarks.nexmark.generator",
    "queries": "benchmarks.evaluation.queries",
    "throughput": "benchmarks.nexmark.throughput",
    "overhead": "benchmarks.evaluation.overhead",
    "sweeps": "benchmarks.evaluation.sweeps",
    "millwheel": "benchmarks.evaluation.millwheel",
}
#: Those that draw something.
DRAWN = {name for name, pictures in page.PICTURES.items() if pictures}


def main() -> int:
    """Run experiments; return 0 when all ran to their ends."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(MODULES)}, or page")
    options.add_argument("--quick", action="store_true", help="small, to see that it runs")
    chosen = options.parse_args()
    names = chosen.names or list(MODULES)
    if unknown := set(names) - {*MODULES, "page"}:
        options.error(
            f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(MODULES)}, page"
        )
    failed = [name for name in names if name != "page" and not ran(name, quick=chosen.quick)]
    if not chosen.quick:
        page.write()
    print(f"failed: {', '.join(failed)}" if failed else "all ran")
    return len(failed)


def ran(name: str, *, quick: bool) -> bool:
    """Run an experiment; return whether it ran to its end."""
    print(f"-- {name}", flush=True)
    folder = FOUND.with_name("quick_evaluation") if quick else FOUND
    command = [sys.executable, "-m", MODULES[name], "--json", str(folder / f"{name}.json")]
    command += ["--pictures", str(folder)] if name in DRAWN else []
    command += ["--quick"] if quick else []
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
