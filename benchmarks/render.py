"""Write benchmarks/RESULTS.md and docs/reliability.md from the JSON in benchmarks/results/.

The texts that explain the figures are in benchmarks/pages/, one for each program. Tables are
inserted at its braces. A program may have several files of results, whose names all begin with its
own.

usage: python -m benchmarks.render
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.bins import MEGAPHONE_P99_MS
from benchmarks.harness import ROOT
from benchmarks.peers import PEERS
from benchmarks.reliability import reliability
from benchmarks.tables import RESULTS, Result, load, page, table

#: The programs whose pages have one place for all their tables, in their order on the page.
PLAIN = [
    "latency",
    "user",
    "processor",
    "kafka",
    "sinks",
    "bins",
    "migrate",
    "estimates",
    "rescale",
    "measuring",
    "recover",
    "memory",
    "scale",
]

MET = {True: "yes", False: "no", None: ""}


# -- files and tables -------------------------------------------------------------------------


def results_of(program: str) -> list[Result]:
    """Return all files of results of a program."""
    return [load(path.stem) for path in sorted(RESULTS.glob(f"{program}*.json"))]


def tree(result: Result) -> str:
    """Return the short hash of the source tree that was measured."""
    return str(result["source_tree"][:12])


def values(result: Result) -> dict[str, float]:
    """Return the figures by name."""
    return {item["name"]: item["value"] for item in result["figures"]}


def shown(value: float) -> str:
    """Return a value with its significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def goals(result: Result) -> str:
    """Return the table of the figures that have a goal, and of the first figure."""
    rows: list[list[Any]] = [["command", "figure", "value", "goal", "met", "source tree"]]
    for number, item in enumerate(result["figures"]):
        if item["goal"] or number == 0:
            value = f"{shown(item['value'])} {item['unit']}"
            rows.append(
                [
                    f"`{result['command']}`",
                    item["name"],
                    value,
                    item["goal"],
                    MET[item["met"]],
                    tree(result),
                ]
            )
    return table(rows)


def phases(result: Result, what: str) -> str:
    """Return the table of the mean phases of a step, in each case."""
    cases = result.get("phases", {})
    if not cases:
        return ""
    names = list(dict.fromkeys(name for spent in cases.values() for name in spent))
    rows = [[what, *names]]
    for case, spent in cases.items():
        rows.append([case, *(f"{spent.get(name, 0.0):.1f}" for name in names)])
    return f"Phases of a step (mean, milliseconds; those of tasks are sums over them):\n\n{table(rows)}"


# -- what each program measures ---------------------------------------------------------------


def floor() -> str:
    """Return the section on steps over their floors."""
    rows: list[list[Any]] = [
        ["command", "workers", "floor p50 ms", "step p50 ms", "ratio", "source tree"]
    ]
    spent: list[list[Any]] = []
    cases = {
        "floor": "python -m benchmarks.floor",
        "floor_100_records": "python -m benchmarks.floor --quick --rows 100",
        "floor_per_record": "python -m benchmarks.floor --quick --per-record",
    }
    for name, usual in cases.items():
        result = load(name)
        called = result.get("command", usual)
        figures = values(result)
        for way in result["phases"]:
            base, step = (figures[f"{what}_p50_ms_{way}"] for what in ("floor", "step"))
            ratio = figures[f"step_over_floor_{way}"]
            rows.append(
                [
                    f"`{called}`",
                    way,
                    f"{base:.1f}",
                    f"{step:.1f}",
                    f"{ratio:.2f}",
                    tree(result),
                ]
            )
            found = result["phases"][way]
            if not spent:
                spent.append(["case", "workers", *found])
            cells = [f"{found.get(phase, 0.0):.1f}" for phase in spent[0][2:]]
            spent.append([name.replace("_", " "), way, *cells])
    return page("floor").format(table=table(rows), phases=table(spent))


def count() -> str:
    """Return the section on running counts, with the phases of the one that emits per key."""
    rows: list[list[Any]] = [
        ["command", "records/s", "step p50 ms", "step p95 ms", "goal", "met", "source tree"]
    ]
    spent = ""
    results = results_of("count_")
    for result in results:
        rows += count_rows(result)
        given = result["parameters"]
        if (given["emit"], given["keys"]) == ("key", "1000000"):
            found = result["phases"].items()
            spent = ", ".join(f"{name} {value:.0f}" for name, value in found if value >= 1)
    return page("count").format(table=table(rows), phases=spent, memory=memory(results))


def count_command(result: Result) -> str:
    """Return the command of a running count. Older files do not contain it."""
    if "command" in result:
        return f"`{result['command']}`"
    given = result["parameters"]
    words = ["python -m benchmarks.count", f"--emit {given['emit']}", f"--keys {given['keys']}"]
    words += [f"--rows {given['rows']}"] if given["rows"] != "1000000" else []
    words += ["--quick"] if given["quick"] == "True" else []
    return f"`{' '.join(words)}`"


def count_rows(result: Result) -> list[list[Any]]:
    """Return the row of a running count, and those of its peers."""
    own = result["figures"][0]
    figures = values(result)
    times = [f"{figures[f'step_{which}_ms']:.0f}" for which in ("p50", "p95")]
    rows = [
        [
            count_command(result),
            f"{own['value']:,.0f}",
            *times,
            own["goal"],
            MET[own["met"]],
            tree(result),
        ]
    ]
    for name, ratio in figures.items():
        if name.startswith("ratio_"):
            peer = name.removeprefix("ratio_")
            rate = figures[f"records_per_second_{peer}"]
            rows.append(
                [
                    f"… beside it {PEERS[peer]}",
                    f"{rate:,.0f}",
                    "",
                    "",
                    f"ours is {ratio:.1f} times that",
                    "",
                    "",
                ]
            )
    return rows


def memory(results: Iterable[Result]) -> str:
    """Return the table of the size of states, compared with that of their columns."""
    rows: list[list[Any]] = [
        [
            "command",
            "keys",
            "memory GiB",
            "columns GiB",
            "over the columns",
            "disk GiB",
            "source tree",
        ]
    ]
    for result in results:
        figures = values(result)
        if "state_gib" in figures:
            state, columns = figures["state_gib"], figures["column_gib"]
            rows.append(
                [
                    count_command(result),
                    f"{figures['keys']:,.0f}",
                    f"{state:.2f}",
                    f"{columns:.2f}",
                    f"{state / columns:.1f}",
                    f"{figures['disk_gib']:.2f}",
                    tree(result),
                ]
            )
    return table(rows) if len(rows) > 1 else missing("count", "count_1e8", "--keys 100000000 ")


def latency(result: Result) -> list[str]:
    """Return the tables of latencies, bare jobs and watermarks, and the phases."""
    figures = values(result)
    found: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for name, value in figures.items():
        if match := re.fullmatch(r"(strong|weak)(_ids)?(_jobs)?_p([0-9.]+)_ms_(\d+)_(\d+)", name):
            way, ids, jobs, percentile, rate, depth = match.groups()
            way += ", record ids" if ids else ", steps are jobs" if jobs else ""
            found[rate, depth, way][percentile] = value
    names = list(next(iter(found.values())))
    heads = ["max ms" if name == "100" else f"p{name} ms" for name in names]
    rows = [["records/s", "computations", "productions", *heads]]
    for (rate, depth, way), times in found.items():
        rows.append([f"{int(rate):,}", depth, way, *(f"{times[name]:.1f}" for name in names)])
    floors = [["exchange", "computations", "bare jobs, p50 ms"]]
    for name, value in figures.items():
        if name.startswith("floor_p50_ms_"):
            floors.append([*name.removeprefix("floor_p50_ms_").split("_"), f"{value:.1f}"])
    details = [weak_gains(figures), watermark_lags(figures)]
    return [table(rows), table(floors), *details, phases(result, "records/s / computations")]


def weak_gains(figures: dict[str, float]) -> str:
    """Return the sentence on what weak productions gain, and on what they leave out."""
    lines = []
    for name, gain in figures.items():
        if match := re.fullmatch(r"weak_gains_p50_ms_(\d+)_1", name):
            commit, release = (figures[f"{what}_ms_{match[1]}_1"] for what in ("commit", "release"))
            lines.append(
                f"With {int(match[1]):,} records/s weak productions gain {gain:.1f} ms at p50; "
                f"a commit takes {commit:.1f} ms, and the release {release:.1f} ms."
            )
    return "\n".join(lines)


def watermark_lags(figures: dict[str, float]) -> str:
    """Return the table of watermarks behind real time, just before a commit moves them."""
    rows = [["records/s", "stage", "watermark behind, p50 ms", "p95 ms", "added by the stage, ms"]]
    for name, behind in figures.items():
        if match := re.fullmatch(r"watermark_behind_p50_ms_(\d+)_stage(\d+)", name):
            at = f"{match[1]}_stage{match[2]}"
            most, added = (
                figures[f"watermark_behind_p95_ms_{at}"],
                figures[f"watermark_added_ms_{at}"],
            )
            cells = [f"{ms:.1f}" for ms in (behind, most, added)]
            rows.append([f"{int(match[1]):,}", match[2], *cells])
    return table(rows) if len(rows) > 1 else ""


def user(result: Result) -> list[str]:
    """Return the table of rates, of Headrace and its peers, and Headrace's phases."""
    figures = values(result)
    rows = [["keys", "what", "records/s", "step p50 ms", "step p95 ms"]]
    for name, value in figures.items():
        if match := re.fullmatch(r"records_per_second_(\d+)(?:_(.+))?", name):
            keys, peer = match.groups()
            own = [figures.get(f"step_p{p}_ms_{keys}") for p in (50, 95)]
            times = [f"{ms:.0f}" if ms and not peer else "" for ms in own]
            who = PEERS[peer] if peer else "headrace"
            rows.append([f"{int(keys):,}", who, f"{value:,.0f}", *times])
    return [table(rows), phases(result, "keys")]


def bins(result: Result) -> list[str]:
    """Return the table of rates and percentiles by the number of bins."""
    figures = values(result)
    rows = [["bins", "records/s", "p50 ms", "p90 ms", "p99 ms", "max ms", "Megaphone's p99 ms"]]
    for name, rate in figures.items():
        if match := re.fullmatch(r"records_per_second_(\d+)_bins", name):
            bits = int(match[1]).bit_length() - 1
            times = [figures[f"step_p{p}_ms_{match[1]}_bins"] for p in (50, 90, 99, 100)]
            rows.append(
                [
                    f"2^{bits}",
                    f"{rate:,.0f}",
                    *(f"{ms:.0f}" for ms in times),
                    f"{MEGAPHONE_P99_MS.get(bits, '')}",
                ]
            )
    return [table(rows)]


def migrate(result: Result) -> list[str]:
    """Return the table of the ways to move state, each compared with its own steady times."""
    figures = values(result)
    heads = {
        "max_over_steady_max": "max over the steady one",
        "p999_over_steady_p999": "p99.9 over the steady one",
        "seconds": "s",
    }
    ways: dict[str, dict[str, float]] = defaultdict(dict)
    for name, value in figures.items():
        if match := re.fullmatch(
            rf"(all_at_once|fluid|batched|batched_prepared)_({'|'.join(heads)})", name
        ):
            ways[match[1]][match[2]] = value
    rows = [["way", *heads.values()]]
    for way, of in ways.items():
        rows.append([way.replace("_", " "), *(f"{of[head]:.2f}" for head in heads)])
    return [table(rows), drawn("migrate")]


def estimates(result: Result) -> list[str]:
    """Return the table of estimates beside what came, for a first migration and the way back."""
    heads = [
        "rounds",
        "usual max ms",
        "longest ms: expected",
        "came",
        "s: expected",
        "came",
        "off by",
    ]
    rows = [["case", "migration", *heads]]
    objectives = [["case", "objective"]]
    for case, *cells, objective in result["table"][1:]:
        half = len(cells) // 2
        rows.append([case, "first", *cells[:half]])
        rows.append(["", "back", *cells[half:]])
        objectives.append([case, objective.replace("|", "\\|")])
    return [table(rows), table(objectives)]


def rescale(result: Result) -> list[str]:
    """Return the tables of rescaling by keys, Headrace's and Spark's way, and of missed steps."""
    figures = values(result)
    rows = [
        [
            "keys",
            "missed steps",
            "long gaps in a steady minute",
            "longest gap that counts, s",
            "s until done",
            "steady p50 / p99 / max ms",
            "moving p50 / p99 / max ms",
            "moved over the least",
            "read from storage over that",
            "Spark's way: s without a commit",
            "of these stop / repartition / start / first batch",
        ]
    ]
    for name in figures:
        if match := re.fullmatch(r"missed_steps_(\d+)", name):
            keys = match[1]
            of = {
                n.removesuffix(f"_{keys}"): v for n, v in figures.items() if n.endswith(f"_{keys}")
            }
            times = [
                " / ".join(f"{of[f'{when}_{p}_ms']:.0f}" for p in ("p50", "p99", "max"))
                for when in ("steady", "moving")
            ]
            parts = [
                of[f"spark_{part}_s"] for part in ("stop", "repartition", "start", "first_batch")
            ]
            rows.append(
                [
                    f"{int(keys):,}",
                    f"{of['missed_steps']:.0f}",
                    f"{of['long_gaps_a_steady_minute']:.1f}",
                    f"{of['outage_s']:.2f}",
                    f"{of['migration_s']:.1f}",
                    *times,
                    f"{of['bytes_moved_over_least']:.2f}",
                    f"{of['bytes_read_over_least']:.1f}",
                    f"{of['spark_outage_s']:.1f}",
                    " / ".join(f"{s:.1f}" for s in parts),
                ]
            )
    return [table(rows), missed_steps(result), drawn("rescale")]


def missed_steps(result: Result) -> str:
    """Return the table of what is known of the longest missed steps."""
    found = [(where, of) for where, missed in result["causes"].items() for of in missed]
    found.sort(key=lambda one: -one[1]["gap_ms"])
    rows = [["missed", "gap ms", "during", "of which, ms", "Python processes started in it"]]
    for where, of in found[:8]:
        phases = ", ".join(f"{name} {ms}" for name, ms in of["phases_ms"].items())
        rows.append([where, of["gap_ms"], of["doing"], phases, of["python_processes_started"]])
    return (
        f"The longest of {len(found)} missed steps, over all runs:\n\n{table(rows)}"
        if found
        else ""
    )


def drawn(program: str) -> str:
    """Return the picture of a program, if there is one."""
    file = RESULTS / f"{program}.png"
    return f"![{program}](results/{file.name})" if file.exists() else ""


def recover(result: Result) -> list[str]:
    """Return the table of times by keys and history."""
    rows = [["keys", "steps of history", "seconds to the first new step"]]
    figures = values(result)
    for name, value in figures.items():
        if match := re.fullmatch(r"seconds_(\d+)_keys_(\d+)_steps", name):
            rows.append([f"{int(match[1]):,}", f"{int(match[2]):,}", f"{value:.2f}"])
    if "seconds_to_first_bare_job" in figures:
        rows.append(["", "the first bare job", f"{figures['seconds_to_first_bare_job']:.2f}"])
    return [table(rows)]


#: The series whose growth has a figure of another name.
ENDS = {"soft_state": "cache_hit_saves", "processes": "alternating_over_steady"}


def scale(result: Result) -> list[str]:
    """Return the table of costs, with a row for each series."""
    figures = values(result)
    series: dict[str, dict[str, float]] = defaultdict(dict)
    for name, value in figures.items():
        if name.startswith("cost_") and name != "cost_growth":
            which, _, case = name.removeprefix("cost_").rpartition("_")
            series[which][case] = value
    rows = [["series", "microseconds a record (and computation), by case", "last over first"]]
    for which, costs in series.items():
        cells = ", ".join(f"{case}: {cost:.2f}" for case, cost in costs.items())
        growth = figures.get(ENDS.get(which, f"growth_{which}"), 0.0)
        rows.append([which.replace("_", " "), cells, f"{growth:.2f}" if growth else ""])
    return [table(rows)]


def measuring(result: Result) -> list[str]:
    """Return nothing: the figures need no table."""
    return []


def whole(result: Result) -> list[str]:
    """Return the table that the program has printed."""
    return [table(result["table"])]


DETAILS: dict[str, Callable[[Result], list[str]]] = {
    "latency": latency,
    "user": user,
    "processor": whole,
    "kafka": whole,
    "sinks": whole,
    "bins": bins,
    "migrate": migrate,
    "estimates": estimates,
    "rescale": rescale,
    "measuring": measuring,
    "recover": recover,
    "memory": whole,
    "scale": scale,
}


def missing(program: str, name: str, more: str = "") -> str:
    """Return the text for figures that are not there."""
    called = f"python -m benchmarks.{program} {more}--json benchmarks/results/{name}.json"
    return f"Not measured yet: `{called}`."


def section(program: str) -> str:
    """Return the section of one of the plain programs.

    Files without a command are of programs that measured something else, and are left out.
    """
    parts = []
    for result in results_of(program):
        if "command" in result:
            parts += [goals(result), *filter(None, DETAILS[program](result))]
    return page(program).format(results="\n\n".join(parts) or missing(program, program))


def main() -> None:
    """Write both pages."""
    sections = [page("head"), floor(), count(), *(section(program) for program in PLAIN)]
    sections.append(page("views"))
    (ROOT / "benchmarks" / "RESULTS.md").write_text("\n".join(sections))
    (ROOT / "docs" / "reliability.md").write_text(reliability())


if __name__ == "__main__":
    main()
