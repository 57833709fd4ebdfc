"""A query under load: ``python -m benchmarks.nexmark q5 --rate 10000 --duration 60s --migrate batched``."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec

import headrace as hr
from benchmarks.harness import local_session, source_tree
from benchmarks.nexmark.compared import compared
from benchmarks.nexmark.load import Load, Query, Seen, run
from benchmarks.nexmark.queries import NAMES, module_of
from benchmarks.nexmark.timeline import Timeline
from headrace.eventtime.timestamps import duration_micros
from headrace.runners.base import Runner
from headrace.runners.inline import InlineRunner

SHARES = [50.0, 90.0, 99.0, 99.9, 100.0]
STRATEGIES: dict[str, Any] = {
    "all-at-once": hr.all_at_once(),
    "fluid": hr.fluid(),
    "batched": hr.batched(),
}


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A time such as 30s or 2m, in seconds."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        return value if isinstance(value, float) else duration_micros(value) / 1e6


@click.command()
@click.argument("query", type=click.Choice(NAMES))
@click.option(
    "--rate",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="Events a second, of all kinds.",
)
@click.option(
    "--duration", type=Duration(), default="60s", show_default=True, help="What is looked at."
)
@click.option("--warm-up", type=Duration(), default="20s", show_default=True)
@click.option("--cool-down", type=Duration(), default="2s", show_default=True)
@click.option(
    "--dilation",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="How many times faster event time passes.",
)
@click.option(
    "--in-flight",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="How many auctions are open at a time.",
)
@click.option("--migrate", type=click.Choice(list(STRATEGIES)), help="Move state there and back.")
@click.option("--prepare", is_flag=True, help="Copy what moves ahead.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True)
@click.option("--bins", type=int, default=4_096, show_default=True)
@click.option(
    "--runner", type=click.Choice(["spark", "inline"]), default="spark", show_default=True
)
@click.option("--plot", type=click.Path(path_type=Path), help="Draw what was seen.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write what was seen.")
def main(query: str, runner: str, plot: Path | None, file: Path | None, **how: Any) -> None:
    """Run a query while events come by the clock; tell how late they were."""
    load = Load(
        rate=how["rate"], seconds=how["duration"], warm_s=how["warm_up"], cool_s=how["cool_down"],
        workers=how["workers"], bins=how["bins"],
        migrate=STRATEGIES[how["migrate"]] if how["migrate"] else None, prepare=how["prepare"],
    )  # fmt: skip
    timeline = Timeline(rate=max(1, load.rate // how["dilation"]), in_flight=how["in_flight"])
    workload = Query(module_of(query).migratable, timeline, tasks=load.workers)
    folder = Path(tempfile.mkdtemp(prefix="nexmark-"))
    try:
        seen = run(workload, load, runner=_runner(runner, load.workers), storage=folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    facts = msgspec.json.format(msgspec.json.encode(_facts(query, load, seen)), indent=1)
    click.echo(facts.decode())
    if file is not None:
        file.write_bytes(facts + b"\n")
    if plot is not None:
        from benchmarks.nexmark.picture import draw

        draw(seen, load, f"{query}, {load.rate:,} events/s", plot)


def _runner(name: str, slots: int) -> Runner:
    if name == "inline":
        return InlineRunner()
    from headrace.runners.spark import SparkRunner

    return SparkRunner(local_session(slots).sparkContext)


def _facts(query: str, load: Load, seen: Seen) -> dict[str, Any]:
    found = compared(seen, load)
    window = seen.latencies.between(*load.window)
    names = [f"p{share:g}" if share < 100 else "max" for share in SHARES]
    told = {"all": window, "steady": found.steady, "moving": found.moving}
    return {
        "query": query,
        "source_tree": source_tree(),
        "load": {**msgspec.to_builtins(load), "migrate": str(load.migrate or "")},
        "latency_ms": {
            what: dict(zip(names, one.percentiles_ms(SHARES), strict=True))
            for what, one in told.items()
            if len(one.events)
        },
        "buckets": [
            [at, *(round(ms, 1) for ms in one.percentiles_ms([50, 99, 100]))]
            for at, one in window.buckets()
        ],
        "steps": seen.steps,
        "answers": seen.answers,
        "migrations": seen.moved,
        "memory_gib": [[round(at, 1), round(gib, 3)] for at, gib in seen.memory],
    }


if __name__ == "__main__":
    main()
