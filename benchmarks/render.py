"""Write benchmarks/RESULTS.md and docs/soak.md from the measured JSON in benchmarks/results/.

usage: python -m benchmarks.render
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.harness import ROOT
from benchmarks.peers import PEERS

RESULTS = ROOT / "benchmarks" / "results"

PAGE = """# Results

Written by `python -m benchmarks.render` from `benchmarks/results/`; no figure is typed by hand. Ratios are what counts: machines are noisy,
and each ratio was taken in one run. All of it ran on two shared virtual cores; durability is on.

## floor: a durable, exactly-once step over the bare Spark job that it rides on

One computation that counts by key, two workers, against the empty job of the same stages, tasks and pools. The goal is 1.25 for both exchanges.

{floor}

**The goal is not reached.** Where the time goes, by the phases that each step records (milliseconds; those of tasks are sums over two
tasks, which run at the same time):

{phases}

What is left of a columnar step of 10 000 records, over the bare job, is in about equal parts: two synced files (state, and the manifest: on a file
system in memory the ratio is 1.3), routing in the driver (hashing, dividing, a digest of what was read), handing the parcels over as job
properties, and the work on the table. With 100 records a step the same things cost what they cost however little there is to do.

What was tried, and kept: RDDs built once with the plan as a local property (a one-stage job went from 39 to 15 ms, a two-stage one from 42
to 27); freezing garbage between tasks; columnar state behind a hash index whose homes follow the worker's own share of the hash space (by
leading bits alone, chains grew to ninety places); a radix sort by hash (6 times as fast as a comparison sort); digests that mix words before
they hash; sending neither the hash nor a key that is a column of the value (half of the bytes); for per-record code, checking values of exact
types without decoding them, handles as plain attributes, and one loop over keys without calls of its own.

What was tried, and dropped: one file for the state of all workers, written by the driver. It saves a sync in each task and adds one to
the driver, where nothing overlaps with it: three pairs of runs gave ratios of 1.67, 1.66, 1.42 with it and 1.32, 1.54, 1.59 without.

## count: a running count, durable and exactly once

int64 keys uniform in a domain, read from Parquet files, a step of each file; what is emitted goes through a file sink (Parquet). The final
state is read back and checked. Beside it, on the same files in the same run, Spark's own aggregation.

{count}

**The goals** are 5 million records/s emitting per key and step (10^6 keys; 6 million for 10^5), and 1 million emitting per record, with a p95 step of at
most 500 ms. Phases of the step that emits per key (milliseconds, summed over two tasks): {count_phases}. The rest of `try` is the bare job, Spark's
shuffle of 16 bytes a record (2.3 ms a MiB here), and two Python processes, a JVM and its collector on two cores: the same step takes about
150 ms of one core when it runs in one process without Spark.

Tried, without effect: larger buffers of Spark's shuffle and of its Kryo serializer, another allocator threshold. Tried, and kept: serving
sinks while the next step runs (from 2.07 to 2.68 million records/s emitting per key).
"""

SOAK = """# Soak

Written by `python -m benchmarks.render` from `benchmarks/results/soak.json`, which `make soak` makes.

## 5 000 steps

Two workers on Spark in local mode, 200 records a step, timers that forget, a sink; storage, memory, threads and shuffle files must stay flat.

{flat}

## Kills

The flights job as a process (500 records a step, about 660 steps), killed with SIGKILL at random moments and started again until it is done;
its output, read as a set of records per step, must equal the undisturbed run's in every round.

{kills}
"""


def table(rows: list[list[Any]]) -> str:
    """Return rows (the first is the head) as Markdown."""
    lines = [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join([lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]])


def load(name: str) -> dict[str, Any]:
    """Return a file of results."""
    loaded: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return loaded


def floor() -> tuple[str, str]:
    """Return the table of steps over their floors, and that of their phases."""
    rows: list[list[Any]] = [
        ["command", "exchange", "floor p50 ms", "step p50 ms", "ratio", "source tree"]
    ]
    phases: list[list[Any]] = []
    cases = {
        "floor": "python -m benchmarks.floor",
        "floor_100_records": "python -m benchmarks.floor --quick --rows 100",
        "floor_per_record": "python -m benchmarks.floor --quick --per-record",
    }
    for name, command in cases.items():
        result = load(name)
        figures = {item["name"]: item["value"] for item in result["figures"]}
        for exchange in ("driver", "shuffle"):
            base, step = (figures[f"{what}_p50_ms_{exchange}"] for what in ("floor", "step"))
            ratio = figures[f"step_over_floor_{exchange}"]
            tree = result["source_tree"][:12]
            rows.append(
                [f"`{command}`", exchange, f"{base:.1f}", f"{step:.1f}", f"{ratio:.2f}", tree]
            )
            found = result["phases"][exchange]
            if not phases:
                phases.append(["case", "exchange", *found])
            cells = [f"{found.get(phase, 0.0):.1f}" for phase in phases[0][2:]]
            phases.append([name.replace("_", " "), exchange, *cells])
    return table(rows), table(phases)


def count() -> tuple[str, str]:
    """Return the table of running counts, and the phases of the one that emits per key."""
    rows: list[list[Any]] = [
        ["command", "records/s", "step p50 ms", "step p95 ms", "goal", "met", "source tree"]
    ]
    phases = ""
    for path in sorted(RESULTS.glob("count_*.json")):
        result = load(path.stem)
        given = result["parameters"]
        figures = {item["name"]: item for item in result["figures"]}
        own = figures["records_per_second"]
        command = f"python -m benchmarks.count --emit {given['emit']} --keys {given['keys']}"
        command += f" --rows {given['rows']}" if given["rows"] != "1000000" else ""
        command += " --quick" if given["quick"] == "True" else ""
        times = [f"{figures[f'step_{which}_ms']['value']:.0f}" for which in ("p50", "p95")]
        met = {True: "yes", False: "no", None: ""}[own["met"]]
        tree = result["source_tree"][:12]
        rows.append([f"`{command}`", f"{own['value']:,.0f}", *times, own["goal"], met, tree])
        for name, item in figures.items():
            if name.startswith("ratio_"):
                peer = name.removeprefix("ratio_")
                rate = figures[f"records_per_second_{peer}"]["value"]
                rows.append(
                    [f"… beside it {PEERS[peer]}", f"{rate:,.0f}", "", "",
                     f"ours is {item['value']:.1f} times that", "", ""]
                )  # fmt: skip
        if (given["emit"], given["keys"]) == ("key", "1000000"):
            spent = result["phases"].items()
            phases = ", ".join(f"{name} {value:.0f}" for name, value in spent if value >= 1)
    return table(rows), phases


def soak() -> str:
    """Return the page of the long campaigns."""
    results = load("soak")
    parts = []
    for exchange in ("driver", "shuffle"):
        found = results[f"flat_{exchange}"]
        seen = found["figures"]
        rows = [list(seen[0]), *([row[name] for name in seen[0]] for row in seen)]
        parts.append(
            f"With the {exchange} exchange (source tree {found['source_tree'][:12]}):\n\n{table(rows)}"
        )
    kills = results["kills"]
    facts = kills["figures"]
    who = ", ".join(f"{name} {count}" for name, count in sorted(facts["killed"].items()))
    line = (
        f"{sum(facts['killed'].values())} kills ({who}) in {facts['rounds']} rounds, seed {facts['seed']}: "
        f"{facts['lost_or_twice']} records lost or twice. Source tree {kills['source_tree'][:12]}."
    )
    return SOAK.format(flat="\n\n".join(parts), kills=line)


def main() -> None:
    """Write both pages."""
    steps, phases = floor()
    counts, count_phases = count()
    page = PAGE.format(floor=steps, phases=phases, count=counts, count_phases=count_phases)
    (ROOT / "benchmarks" / "RESULTS.md").write_text(page)
    (ROOT / "docs" / "soak.md").write_text(soak())


if __name__ == "__main__":
    main()
