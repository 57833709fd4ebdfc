"""The page docs/evaluation.md, from the measured JSON: every figure on it is read from there."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.evaluation.common import FOUND
from benchmarks.evaluation.overhead import CASES
from benchmarks.harness import ROOT
from benchmarks.tables import Result, load, page, table

PAGE = ROOT / "docs" / "evaluation.md"
#: Experiment → the pictures that it draws.
PICTURES: dict[str, Sequence[str]] = {
    "lines": (),
    "generator": (),
    "queries": [f"q{number}" for number in range(1, 9)],
    "throughput": (),
    "overhead": [case.picture for case in CASES],
    "sweeps": ["sweeps", "memory"],
    "millwheel": ["latency", "cache"],
}


def write() -> None:
    """Write it."""
    sections = {name: section(name, pictures) for name, pictures in PICTURES.items()}
    PAGE.write_text(page("evaluation").format(**sections))


def section(name: str, pictures: Sequence[str]) -> str:
    """Return what an experiment has found: how it was run, its table, its goals, and its pictures."""
    if not (FOUND / f"{name}.json").exists():
        return f"Not measured yet: `python -m benchmarks.evaluation {name}`."
    result = load(f"evaluation/{name}")
    shown = [f"![{one}](../benchmarks/results/evaluation/{one}.png)" for one in pictures
             if (FOUND / f"{one}.png").exists()]  # fmt: skip
    return "\n\n".join(
        filter(
            None, [origin(result), missing(result), table(result["table"]), goals(result), *shown]
        )
    )


def origin(result: Result) -> str:
    """Say what was run, and on what."""
    machine = result["machine"]
    return (
        f"`{result['command']}`, source tree {result['source_tree'][:12]}, {machine['cores']} cores, "
        f"Spark {result['versions']['pyspark']}, Python {result['versions']['python']}."
    )


def missing(result: Result) -> str:
    """Say which parts are not measured yet."""
    parts = result.get("missing", [])
    return f"Not measured yet: {'; '.join(parts)}." if parts else ""


def goals(result: Result) -> str:
    """Return the figures that have a goal, as a table."""
    rows = [["figure", "value", "goal", "met"]]
    for item in result["figures"]:
        if item["goal"]:
            value = f"{item['value']:.3g} {item['unit']}"
            rows.append([item["name"], value, item["goal"], "yes" if item["met"] else "no"])
    return table(rows) if len(rows) > 1 else ""
