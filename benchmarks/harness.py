"""The common parts of all benchmarks: figures, tables, JSON, and the fastest known session."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: Options that say where figures are written, and do not influence them.
_WHERE = {"--json", "--picture", "--pictures"}


def figure(
    name: str, value: float, unit: str, goal: str = "", met: bool | None = None
) -> dict[str, Any]:
    """Return one figure, in the form of the JSON files."""
    value = round(float(value), 4)  # (NumPy has float types of its own)
    return {"name": name, "value": value, "unit": unit, "goal": goal, "met": met}


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median_ms(values: Sequence[float]) -> float:
    """Return the median of seconds, in milliseconds."""
    return statistics.median(values) * 1e3


def source_tree(folder: str = "src") -> str:
    """Return the hash of the measured tree of files: git's, or one of the files if uncommitted."""
    done = subprocess.run(
        ["git", "rev-parse", f"HEAD:{folder}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    clean = subprocess.run(
        ["git", "status", "--porcelain", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0 and clean.returncode == 0 and not clean.stdout.strip():
        return done.stdout.strip()
    digest = hashlib.blake2b(digest_size=20)
    for path in sorted((ROOT / folder).rglob("*.py")):
        digest.update(path.read_bytes())
    return f"uncommitted {digest.hexdigest()}"


def programs_tree(but: Sequence[str] = ()) -> str:
    """Return a hash of the modules that the running program has imported, outside ``src/``.

    Args:
        but: modules that do not influence the measurements.
    """
    digest = hashlib.blake2b(digest_size=20)
    known = {
        Path(str(module.__file__))
        for name, module in list(sys.modules.items())
        if getattr(module, "__file__", None) and name not in but
    }
    for path in sorted(known):
        if path.is_relative_to(ROOT / "benchmarks") or path.is_relative_to(ROOT / "tests"):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def command() -> str:
    """Return the command that is running, without the options for output files."""
    words = iter(sys.argv[1:])
    given = []
    for word in words:
        if word in _WHERE:
            next(words, None)
        elif word.partition("=")[0] not in _WHERE:
            given.append(word)
    return shlex.join([*program(), *given])


def program() -> list[str]:
    """Return the command that runs this program, without options."""
    spec = sys.modules["__main__"].__spec__
    name = spec.name.removesuffix(".__main__") if spec else Path(sys.argv[0]).stem
    return ["python", "-m", name]


def facts(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the facts that a figure depends on."""
    packages = ["pyspark", "pyarrow", "numpy", "msgspec"]
    return {
        "command": command(),
        "source_tree": source_tree(),
        "versions": {name: version(name) for name in packages}
        | {"python": platform.python_version()},
        "machine": {
            "cores": os.cpu_count(),
            "processor": platform.machine(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        },
        "parameters": {
            name: str(value) for name, value in vars(arguments).items() if f"--{name}" not in _WHERE
        },
    }


def report(
    title: str,
    rows: list[list[str]],
    figures: list[dict[str, Any]],
    arguments: argparse.Namespace,
    **more: Any,
) -> None:
    """Print a table (its first row is the head) and the figures; write JSON, with more facts."""
    show(title, rows, figures)
    write(rows, figures, arguments, **more)


def show(title: str, rows: list[list[str]], figures: list[dict[str, Any]]) -> None:
    """Print a table (its first row is the head) and the figures."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    print(f"\n{title}")
    for number, row in enumerate(rows):
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))
    for item in figures:
        goal = (
            f"  (goal {item['goal']}: {'met' if item['met'] else 'not met'})"
            if item["goal"]
            else ""
        )
        print(f"{item['name']} = {item['value']} {item['unit']}{goal}")


def write(
    rows: list[list[str]], figures: list[dict[str, Any]], arguments: argparse.Namespace, **more: Any
) -> None:
    """Write a table and the figures as JSON, with more facts, if a file was given."""
    if arguments.json:
        content = {**facts(arguments), **more, "table": rows, "figures": figures}
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        aside = arguments.json.with_suffix(".tmp")  # (the file may hold the results of hours)
        aside.write_text(laid_out(content) + "\n")
        aside.replace(arguments.json)


def laid_out(value: Any, indent: str = "") -> str:
    """Return JSON with a line for each value, and a list of numbers and texts in one line.

    >>> print(laid_out({"a": [1, 2], "b": [[3], [4]]}))
    {
      "a": [1, 2],
      "b": [
        [3],
        [4]
      ]
    }
    """
    further = indent + "  "
    if isinstance(value, dict):
        ends = "{}"
        lines = [f"{json.dumps(str(name))}: {laid_out(of, further)}" for name, of in value.items()]
    elif isinstance(value, list | tuple) and any(
        isinstance(of, dict | list | tuple) for of in value
    ):
        ends, lines = "[]", [laid_out(of, further) for of in value]
    else:
        return json.dumps(value)
    within = f",\n{further}".join(lines)
    return f"{ends[0]}\n{further}{within}\n{indent}{ends[1]}" if lines else ends


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--quick", action="store_true", help="under a minute")
    made.add_argument("--json", type=Path, help="write the figures to a file")
    return made


def local_session(slots: int = 2) -> Any:
    """Start a local session, configured as Headrace's own."""
    from pyspark.sql import SparkSession

    from headrace.session.settings import SESSION_SETTINGS

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("headrace-bench").master(f"local[{slots}]")
    for key, value, _ in SESSION_SETTINGS:
        builder = builder.config(key, value)
    builder = builder.config("spark.ui.enabled", "false").config(
        "spark.ui.showConsoleProgress", "false"
    )
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def steps_of(
    driver: Any, *, warm: int, measured: int | None = None
) -> tuple[list[float], dict[str, float]]:
    """Run a driver and close it; return the seconds of each step with records, and mean phases.

    Args:
        driver: a :class:`headrace.driver.driver.Driver`.
        warm: how many steps do not count.
        measured: the number of steps to measure after that; None to go on until the driver stops.
    """
    commits = [time.perf_counter()]
    phases: dict[str, float] = {}

    def note(summary: Any) -> None:
        if not summary.records:
            return
        commits.append(time.perf_counter())
        done = len(commits) - 1 - warm
        if measured is not None and done >= measured:
            driver.request_stop(drain=False)
        if done > 0:
            for name, seconds in summary.phases.items():
                phases[name] = phases.get(name, 0.0) + seconds

    driver.listeners.append(note)
    try:
        driver.run()
    finally:
        driver.close()
    found = [after - before for before, after in itertools.pairwise(commits)][warm:]
    return found, {name: total / len(found) for name, total in phases.items()}


def timed(work: Callable[[], object], times: int) -> list[float]:
    """Return the seconds of each of ``times`` calls."""
    found = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return found


def bytes_on_disk(folder: Path) -> int:
    """Return the bytes that the files of a folder take on disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
