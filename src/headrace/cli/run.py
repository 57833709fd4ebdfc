"""The commands that run a pipeline: from its storage, or by taking over from another process."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import click

from headrace.cli import completion
from headrace.cli.beside import (
    dashboard_beside,
    dashboard_option,
    metrics_beside,
    metrics_options,
)
from headrace.cli.common import (
    INTERRUPTED,
    hide_option,
    json_log,
    say,
    say_in_log,
    storage_option,
    typed_errors,
    with_options,
)
from headrace.cli.loading import load_again, load_pipeline
from headrace.cli.opening import dropping, say_what_is_there
from headrace.cli.policy import checked, policy_option, set_option
from headrace.cli.session import SESSION, session_options
from headrace.cli.strategies import layout_option
from headrace.coordinator.machine import CAUGHT_UP
from headrace.coordinator.settings import Settings, with_checkpoints
from headrace.errors import EndedEarly
from headrace.job import run as run_pipeline
from headrace.ledger.heartbeats import HANDED_OVER, HeartbeatSettings
from headrace.logs import RunFacts
from headrace.migration.sharding import Sharding
from headrace.observe.progress import ProgressLine
from headrace.pipeline import Pipeline
from headrace.pipeline.source import Limit
from headrace.runners.inline import InlineRunner

#: The options of all commands that run a pipeline, beside the storage.
RUN_OPTIONS = [
    click.option(
        "--workers",
        type=click.IntRange(1),
        help="Number of workers.  [default: unchanged; one per task slot in the first run]",
    ),
    click.option(
        "--bins", type=int, help="Number of bins.  [default: unchanged; 256 in the first run]"
    ),
    layout_option("How bins are shared when the number of workers changes"),
    click.option(
        "--runner", type=click.Choice(["spark", "inline"]), default="spark", show_default=True
    ),
    click.option(
        "--exchange",
        type=click.Choice(["auto", "driver", "host", "shuffle"]),
        default="auto",
        show_default=True,
        help="How records travel between layers; with auto, workers stay between steps.",
    ),
    click.option(
        "--checkpoint-every",
        metavar="STEPS|TIME",
        help="How often to write a checkpoint: a number of steps, or a time such as 5s.  [default: 1]",
    ),
    click.option(
        "--rows",
        type=click.IntRange(1),
        default=100_000,
        show_default=True,
        help="The most records that a step takes from an injector.",
    ),
    click.option(
        "--task-timeout",
        metavar="TIME",
        help="Time limit for the tasks of a step, such as 10m.  [default: 30m]",
    ),
    click.option(
        "--sink-timeout",
        metavar="TIME",
        help="Time limit for a delivery to a sink, such as 10m.  [default: 10m]",
    ),
    click.option(
        "--recompute-shown",
        is_flag=True,
        help="Compute a step that other code has begun to deliver to weak sinks again, under a new id.",
    ),
    *SESSION,
    hide_option,
    dashboard_option,
    *metrics_options,
    policy_option,
    set_option,
    click.option("--policy-dry-run", is_flag=True, help="Only report what the policy decides."),
    click.option("--keep-running", is_flag=True, help="Continue to run when all input has ended."),
    click.option(
        "--available-now",
        is_flag=True,
        help="Read what is available now, then exit. Windows stay open; the next run continues.",
    ),
    click.option(
        "--reopen",
        multiple=True,
        metavar="NAME",
        shell_complete=completion.injectors,
        help="Continue to read injector NAME, even if its input had ended. Repeatable.",
    ),
    click.option(
        "--remove-injector",
        "remove_injectors",
        multiple=True,
        metavar="NAME",
        shell_complete=completion.injectors,
        help="Continue without injector NAME, which the code no longer has. Repeatable.",
    ),
    click.option(
        "--patience",
        type=click.FloatRange(0.1),
        default=HeartbeatSettings().patience_s,
        show_default=True,
        help="Seconds without a heartbeat after which the leader counts as dead.",
    ),
]


_target = click.argument("target", shell_complete=completion.files)

#: How a run begins if another process runs the pipeline.
START_OPTIONS = [
    click.option(
        "--standby", is_flag=True, help="Get ready, and start when no other driver leads."
    ),
    click.option(
        "--take-over",
        is_flag=True,
        help="Start at once, and replace a process that runs the pipeline.",
    ),
]


@click.command()
@_target
@storage_option
@with_options(RUN_OPTIONS)
@with_options(START_OPTIONS)
def run(target: str, standby: bool, take_over: bool, **options: Any) -> None:
    """Run or resume the pipeline of TARGET until its input has ended (see also --available-now).

    TARGET is FILE.py or FILE.py:NAME, where NAME is a Pipeline or a function that returns one (by
    default "pipeline"). Ctrl-C and SIGTERM stop after the running step. If another process runs the
    pipeline, this one is refused, unless it stands by or is to take over.
    """
    check_start(standby, take_over)
    run_loaded(
        lambda: load_pipeline(target),
        **options,
        standby=standby,
        take_over=take_over,
        reload=functools.partial(load_again, target),
    )


def check_start(standby: bool, take_over: bool) -> None:
    """Refuse options of a start that contradict each other."""
    if standby and take_over:
        raise click.UsageError("--standby waits, and --take-over does not: give one of them")


@click.command()
@_target
@storage_option
@with_options(RUN_OPTIONS)
@click.option("--standby", is_flag=True, help="Stand by again when another driver takes over.")
@click.option(
    "--wait",
    "seconds",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to wait for the leader to hand over.",
)
def handover(target: str, standby: bool, seconds: float, **options: Any) -> None:
    """Take over a running pipeline: get TARGET ready, let the leader end after its step, and go on.

    If the code of TARGET does not fit what is stored, the handover is refused before anything
    stops. Takes the options of "run", and goes on as "run" would.
    """
    run_loaded(
        lambda: load_pipeline(target),
        **options,
        reload=functools.partial(load_again, target),
        standby=standby,
        handover=True,
        handover_timeout=timedelta(seconds=min(seconds, 1e9)),
    )


def run_loaded(
    load: Callable[[], Pipeline],
    storage: str,
    workers: int | None,
    bins: int | None,
    layout: Sharding | None,
    runner: Any,
    exchange: Any,
    checkpoint_every: str | None,
    rows: int,
    keep_running: bool,
    available_now: bool,
    name: str | None,
    options: dict[str, str],
    policy_dry_run: bool,
    patience: float,
    recompute_shown: bool,
    master: str | None,
    conf: Sequence[str],
    packages: Sequence[str],
    log_level: str,
    port: int | None,
    metrics_at: str | None,
    metrics_token_file: Path | None,
    **how: Any,
) -> None:
    """Run a pipeline with the options of the command line, and show how far it is.

    Args:
        load: returns the pipeline, once the session of Spark has its options.
        storage, workers, bins, runner, exchange, checkpoint_every, rows, keep_running, available_now:
            options of the run.
        name, options, policy_dry_run: the policy.
        patience, recompute_shown: further options of the run.
        master, conf, packages, log_level: the session of Spark.
        port, metrics_at, metrics_token_file: what is served beside the run.
        how: passed to :func:`headrace.run`.
    """
    if keep_running and available_now:
        raise click.UsageError("--keep-running goes on, and --available-now ends: give one of them")
    with typed_errors(), _interruptible(), session_options(master, conf, packages, log_level):
        pipeline = load()
        settings = with_checkpoints(
            Settings(
                limit=Limit(rows, 16 << 20), exchange=exchange, recompute_shown=recompute_shown
            ),
            _steps_or_time(checkpoint_every),
        )
        heartbeat = HeartbeatSettings(
            period_s=min(HeartbeatSettings().period_s, patience / 3), patience_s=patience
        )
        say_what_is_there(storage, pipeline.name)
        facts = RunFacts(pipeline.name)
        if (log := json_log()) is not None:
            log.facts = facts
        with (
            dashboard_beside(storage, port),
            metrics_beside(storage, pipeline.name, metrics_at, metrics_token_file) as durations,
            ProgressLine(
                pipeline.name,
                dropping=dropping(pipeline),
                show=None if log is None else functools.partial(say_in_log, log),
            ) as progress,
        ):
            job = run_pipeline(
                pipeline,
                storage=storage,
                workers=workers,
                bins=bins,
                layout=layout,
                runner=InlineRunner(ends_process=True) if runner == "inline" else runner,
                settings=settings,
                listeners=[facts.after_step, progress, *durations],
                policy=checked(name, options),
                policy_dry_run=policy_dry_run,
                heartbeat=heartbeat,
                **how,
            )
            progress.ended = lambda: job.ended
            with job:
                try:
                    wait_for = job.catch_up if available_now else job.drain
                    with contextlib.suppress(EndedEarly):  # (the closing line says how it ended)
                        job.wait() if keep_running else wait_for()
                except KeyboardInterrupt:
                    say("stopping after the running step", err=True)
                    job.stop()
                    sys.exit(INTERRUPTED)
        if job.ended is not None and job.ended.startswith((HANDED_OVER, CAUGHT_UP)):
            say(job.ended, err=True)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """End on Ctrl-C with the exit code for it, and let SIGTERM do what Ctrl-C does.

    Container platforms and service managers stop a process with SIGTERM.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted", err=True)
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, before)


def _steps_or_time(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdigit() else text


COMMANDS = [run, handover]
