"""The page docs/evaluation.md, from the measured JSON: every figure on it is read from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.evaluation.common import FOUND
from benchmarks.evaluation.overhead import CASES
from benchmarks.evaluation.papers import MEMORY
from benchmarks.harness import ROOT
from benchmarks.tables import Result, load, page, table

PAGE = ROOT / "docs" / "evaluation.md"
#: Experiment → the pictures that it draws.
PICTURES: dict[str, Sequence[str]] = {
    "lines": (),
    "generator": (),
    "queries": [f"q{number}" for number in (*range(1, 10), 11, 12, *range(15, 21))],
    "throughput": (),
    "overhead": [case.picture for case in CASES],
    "sweeps": ["sweeps", "memory"],
    "millwheel": ["latency", "scaling", "lag", "cache"],
}
#: Options that say nothing of how it was measured.
UNTOLD = {"quick", "json", "pictures", "anew"}


def write() -> None:
    """Write it."""
    results = {name: found(name) for name in PICTURES}
    sections = {name: section(name, results[name], shown) for name, shown in PICTURES.items()}
    told = page("evaluation").format(**sections, reached=reached(results), their_memory=MEMORY)
    PAGE.write_text(told)


def found(name: str) -> Result | None:
    """Return what an experiment has found, if it was measured."""
    return load(f"evaluation/{name}") if (FOUND / f"{name}.json").exists() else None


def reached(results: Mapping[str, Result | None]) -> str:
    """Return how many goals each experiment has met, and which it has not, as a table."""
    rows = [["experiment", "goals", "met", "not met"]]
    for name, result in results.items():
        aimed = [item for item in result["figures"] if item["goal"]] if result else []
        short = [
            f"{item['name']} {plainly(item['value'])} (goal {item['goal']})"
            for item in aimed
            if not item["met"]
        ]
        if aimed:
            rows.append([name, str(len(aimed)), str(len(aimed) - len(short)), "; ".join(short)])
    return table(rows)


def section(name: str, result: Result | None, pictures: Sequence[str]) -> str:
    """Return what an experiment has found: how it was run, its table, its goals, and its pictures."""
    if result is None:
        return f"Not measured yet: `python -m benchmarks.evaluation {name}`."
    shown = [
        f"![{one}](../benchmarks/results/evaluation/{one}.png)"
        for one in pictures
        if (FOUND / f"{one}.png").exists()
    ]
    said = [origin(result), between_hosts(result), missing(result), table(result["table"])]
    return "\n\n".join(filter(None, [*said, goals(result), *shown]))


def origin(result: Result) -> str:
    """Say what was run, with which options, and on what."""
    machine, options = result["machine"], result["parameters"]
    told = ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in options.items() if name not in UNTOLD
    )
    with_options = f" ({told})" if told else ""
    return (
        f"`{result['command']}`{with_options}, source tree {result['source_tree'][:12]}, "
        f"{machine['cores']} cores and {machine['memory_gib']} GiB, "
        f"Spark {result['versions']['pyspark']}, Python {result['versions']['python']}."
    )


def between_hosts(result: Result) -> str:
    """Say what there is between two hosts, if it ran on two."""
    options = result["parameters"]
    if options.get("hosts") != "2":
        return ""
    return (
        f"Two hosts on one machine share nothing but a store that takes {float(options['call_ms']):g} ms a "
        f"call and carries {float(options['megabytes']):g} MB/s for each process."
    )


def missing(result: Result) -> str:
    """Say which parts are not measured yet."""
    parts, failed = result.get("missing", []), result.get("failed", {})
    told = [f"{part} (it failed: {failed[part]})" if part in failed else part for part in parts]
    return f"Not measured yet: {'; '.join(told)}." if told else ""


def goals(result: Result) -> str:
    """Return the figures that have a goal, as a table."""
    rows = [["figure", "value", "goal", "met"]]
    for item in result["figures"]:
        if item["goal"]:
            value = f"{plainly(item['value'])} {item['unit']}"
            rows.append([item["name"], value, item["goal"], "yes" if item["met"] else "no"])
    return table(rows) if len(rows) > 1 else ""


def plainly(value: float) -> str:
    """Return a number with four digits (what misses a goal by little shows it), none as a power of ten."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
