"""The command that runs a NEXMark query under load."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from headrace.cli.common import Duration, emit, output_option, say, typed_errors, with_options
from headrace.cli.session import SESSION, session_options
from headrace.cli.strategies import STRATEGIES, strategy_of
from headrace.cli.tables import aligned
from headrace.control.migrations import Strategy
from headrace.errors import PipelineError
from headrace.ledger.ledger import Ledger
from headrace.nexmark.queries import NAMES, module_of
from headrace.observe.durations import show_duration
from headrace.storage import Store, open_store

#: Attempts to delete the scratch directory, and the seconds between two of them.
_DELETIONS, _DELETES_AGAIN_S = 20, 0.25
#: Largest share of events that may be left over at the end. With more, the rate was too high.
_LEFT_OVER = 0.1
_STANDARD_OUTPUT = Path("-")

_OPTIONS = [
    click.argument("query", type=click.Choice(NAMES), metavar="QUERY"),
    click.option(
        "--rate",
        type=click.IntRange(1),
        default=10_000,
        show_default=True,
        help="Events per second, of all kinds.",
    ),
    click.option(
        "--duration", type=Duration(), default="60s", show_default=True, help="How long to measure."
    ),
    click.option(
        "--warm-up",
        type=Duration(),
        default="25s",
        show_default=True,
        help="Time before the measurement.",
    ),
    click.option(
        "--cool-down",
        type=Duration(),
        default="2s",
        show_default=True,
        help="Time after the measurement.",
    ),
    click.option(
        "--history",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Number of events before the clock starts. They fill the state.",
    ),
    click.option(
        "--dilation",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="How many times faster event time passes.",
    ),
    click.option(
        "--in-flight",
        type=click.IntRange(1),
        default=100,
        show_default=True,
        help="How many auctions are open at a time.",
    ),
    click.option(
        "--hot-sellers",
        type=click.IntRange(1),
        default=4,
        show_default=True,
        help="Of this many auctions, all but one are the hot seller's.",
    ),
    click.option(
        "--hot-auctions",
        type=click.IntRange(1),
        default=2,
        show_default=True,
        help="Of this many bids, all but one are for the hot auction.",
    ),
    click.option(
        "--hot-bidders",
        type=click.IntRange(1),
        default=4,
        show_default=True,
        help="Of this many bids, all but one are the hot bidder's.",
    ),
    click.option(
        "--disorder",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Events are shuffled within groups of this size.",
    ),
    click.option(
        "--seed", type=int, default=0, show_default=True, help="Another seed gives other events."
    ),
    click.option(
        "--migrate",
        callback=strategy_of,
        metavar="STRATEGY",
        help=f"Move a part of the state to other workers and back: {STRATEGIES}",
    ),
    click.option(
        "--prepare/--no-prepare", default=False, help="Load what a round moves before it moves."
    ),
    click.option("--workers", type=click.IntRange(1), default=2, show_default=True),
    click.option("--bins", type=click.IntRange(1), default=4_096, show_default=True),
    click.option(
        "--runner", type=click.Choice(["spark", "inline"]), default="spark", show_default=True
    ),
    click.option("--storage", help="An empty directory for the state.  [default: a temporary one]"),
    click.option(
        "--plot",
        type=click.Path(path_type=Path),
        help="Plot latency over time, memory, and a histogram of lateness.",
    ),
    click.option(
        "--json",
        "file",
        type=click.Path(path_type=Path, allow_dash=True),
        help="Write all measurements to a file; - is the same as --output json.",
    ),
    *SESSION,
    output_option,
]


@click.command()
@with_options(_OPTIONS)
def nexmark(
    query: str,
    storage: str | None,
    plot: Path | None,
    file: Path | None,
    output: str,
    master: str | None,
    conf: tuple[str, ...],
    packages: tuple[str, ...],
    log_level: str,
    **how: Any,
) -> None:
    """Run a NEXMark query while events arrive by the clock, and report how late its answers were.

    QUERY is one of q0 to q9 and q11 to q22. Latency counts from the time when an event was due
    until its step is committed and the answers are delivered, whatever causes the delay. With
    --migrate, every second bin of the first half of the workers moves to the other half after a
    third of the duration, and back after two thirds. With two workers that is a quarter of all
    bins.
    """
    if file == _STANDARD_OUTPUT:
        file, output = None, "json"
    with typed_errors(), _scratch() as scratch:
        _check_installed(["hdrh", "psutil", *(["matplotlib"] if plot is not None else [])])
        _check_places(file, plot)
        with session_options(master, conf, packages, log_level):
            _run(query, _new(storage or scratch), plot, file, output, **how)


@contextmanager
def _scratch() -> Iterator[str]:
    """Create a directory. Delete it at the end, even if the process is terminated."""

    def finish(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, finish)
    folder = tempfile.mkdtemp(prefix="headrace-nexmark-")
    try:
        yield folder
    finally:
        signal.signal(signal.SIGTERM, before)
        for _ in range(_DELETIONS):  # a task that Spark gave up may still write
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.exists(folder):
                break
            time.sleep(_DELETES_AGAIN_S)


def _check_installed(names: list[str]) -> None:
    """Check that the packages that will be needed are installed.

    Raises:
        PipelineError: if one is missing.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise PipelineError(
                f"a query under load needs the package {name}",
                remedy="pip install 'headrace[nexmark]'",
            )


def _check_places(file: Path | None, plot: Path | None) -> None:
    """Check that the results can be written at the end.

    Raises:
        UsageError: if they cannot.
    """
    for option, path in (("--json", file), ("--plot", plot)):
        if path is not None and (why := _not_written(path)):
            raise click.UsageError(
                f"{option} {path} cannot be written ({why}): choose a file in a folder that is there and "
                "may be written"
            )
    if plot is not None:
        from headrace.nexmark.harness.picture import kinds

        if plot.suffix.removeprefix(".") not in kinds():
            raise click.UsageError(f"--plot {plot}: it is one of {', '.join(sorted(kinds()))}")


def _not_written(path: Path) -> str:
    """Return why a file cannot be written; empty if it can. The file is left as it is.

    This is found out by trying, because permissions do not say: an administrator may write
    everywhere. Pipes are not tried, because a reader would see the end of its input.
    """
    try:
        if not path.exists():
            file = Path(os.path.realpath(path))  # keeps a symbolic link
            file.touch(exist_ok=False)
            file.unlink()
        elif path.is_file() or path.is_dir():
            path.open("ab").close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _new(storage: str) -> Store:
    """Return a storage on which nothing has run.

    Raises:
        PipelineError: if a pipeline has run there.
    """
    store = open_store(storage)
    if Ledger(store).open() is not None:
        raise PipelineError(f"a pipeline has run on {storage}", remedy="give a new place")
    return store


def _run(
    query: str,
    storage: Store,
    plot: Path | None,
    file: Path | None,
    output: str,
    *,
    rate: int,
    duration: int,
    warm_up: int,
    cool_down: int,
    history: int,
    dilation: int,
    migrate: Strategy | None,
    prepare: bool,
    workers: int,
    bins: int,
    runner: Any,
    **timeline_options: int,
) -> None:
    # The harness and the plot need more packages than running a pipeline does.
    from headrace.nexmark.harness.load import LoadTest, Query
    from headrace.nexmark.harness.report import latencies_of, report, share_left_over
    from headrace.nexmark.harness.run import run
    from headrace.nexmark.timeline import Timeline
    from headrace.observe.progress import ProgressLine

    load = LoadTest(
        rate=rate,
        seconds=duration / 1e6,
        warm_s=warm_up / 1e6,
        cool_s=cool_down / 1e6,
        workers=workers,
        bins=bins,
        migrate=migrate,
        prepare=prepare,
    )
    if rate % dilation:
        raise click.UsageError(f"--dilation {dilation} does not divide --rate {rate}")
    if prepare and migrate is None:
        raise click.UsageError("--prepare goes with --migrate")
    if duration <= 0:
        raise click.UsageError("--duration is nothing: there would be nothing to look at")
    if workers > bins:
        raise click.UsageError(f"--workers {workers} for --bins {bins}: some would own nothing")
    if migrate is not None and workers < 2:
        raise click.UsageError("--migrate needs two --workers: there is nowhere to move state to")
    timeline = Timeline(rate=rate // dilation, **timeline_options)
    workload = Query(module_of(query).migratable, timeline, history=history, tasks=workers)
    with ProgressLine(query) as progress:
        seen = run(workload, load, runner=runner, storage=storage, listeners=[progress])
    requested = {"query": query, "timeline": msgspec.to_builtins(timeline), "history": history}
    facts = requested | report(seen, load)
    if file is not None:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=1) + b"\n")
    if plot is not None:
        from headrace.nexmark.harness.picture import draw

        draw(seen, load, f"{query}, {rate:,} events/s", plot)
    moved = [
        f"{'moved' if one.state == 'done' else one.state} {one.bins:,} bins, {one.nbytes:,} bytes, "
        f"in {show_duration(round(one.seconds * 1e6))}"
        for one in seen.moved
    ]
    steps = f"{seen.steps:,} steps in {show_duration(duration)}"
    text = [f"{query}: {steps}, {seen.answers:,} answers in the whole run", *moved]
    emit(facts, "\n".join([*text, *aligned(latencies_of(facts))]), output)
    if (left := share_left_over(seen, load)) > _LEFT_OVER:
        say(
            f"The rate is more than this machine does: {left:.0%} of these events were done when no more "
            "came. Latencies and migrations say little; take a lower --rate.",
            err=True,
        )


COMMANDS = [nexmark]
