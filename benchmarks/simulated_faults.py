"""How often each kind of fault occurs in a simulated run.

``python -m benchmarks.simulated_faults --json benchmarks/results/simulated_faults.json``. The
campaign (:mod:`tests.faults.simulation.campaign`) counts all faults of a seed, and the seeds in which each
kind occurred. This program counts the faults of each kind, in the first seeds of a campaign on this
tree.
"""

from __future__ import annotations

import os
from collections import Counter

from tests.faults.simulation.campaign import outcomes

from benchmarks.harness import figure, parser, report, source_tree
from benchmarks.tables import RESULTS, load

FAULT = "fault: "
#: Faults that make nothing fail, but come late or twice, or change how time passes.
HARMLESS = {"slow", "clock jumps", "a rival takes over", "task run twice", "stale list"}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=400)
    options.add_argument("--processes", type=int, default=os.cpu_count())
    chosen = options.parse_args()
    if chosen.quick:
        chosen.seeds = 20
    first = load("simulation")["first"] if (RESULTS / "simulation.json").exists() else 0
    kinds, faults = Counter[str](), 0
    for found in outcomes(range(first, first + chosen.seeds), chosen.processes, float("inf")):
        assert not found.problem, f"seed {found.seed}: {found.problem}"
        faults += found.faults
        kinds += Counter(
            {
                name.removeprefix(FAULT): count
                for name, count in found.seen.items()
                if name.startswith(FAULT)
            }
        )
    harmless = sum(kinds[name] for name in HARMLESS)
    rows = [["fault", "a seed", "share"]]
    rows += [
        [name, f"{count / chosen.seeds:.2f}", f"{count / kinds.total():.1%}"]
        for name, count in kinds.most_common()
    ]
    figures = [
        figure("faults_a_seed", faults / chosen.seeds, "faults"),
        figure("failing_faults_a_seed", (kinds.total() - harmless) / chosen.seeds, "faults"),
        *(
            figure(name.replace(" ", "_"), count / chosen.seeds, "a seed")
            for name, count in kinds.items()
        ),
    ]
    trees = {"first": first, "tests_tree": source_tree("tests/faults/simulation")}
    report("Faults of the simulation", rows, figures, chosen, **trees)


if __name__ == "__main__":
    main()
