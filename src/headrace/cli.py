"""The command line. Data on standard output; progress and errors on standard error.

Exit codes: 0 done; 2 wrong usage; 4 the pipeline or its storage failed, with a typed error; 5 nothing
is there to be looked at; 6 a command was refused; 7 it was not answered in time; 130 interrupted (after
the running step, with everything committed).
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from headrace.api import run as run_pipeline
from headrace.control import Control
from headrace.coordinator.settings import Settings
from headrace.errors import HeadraceError, PipelineError
from headrace.eventtime.timestamps import show_time
from headrace.ledger.commands import Kind
from headrace.ledger.log import Ledger
from headrace.ledger.manifest import Head
from headrace.observe.binmarks import bin_marks
from headrace.observe.progress import ProgressLine
from headrace.observe.recent import Recent
from headrace.observe.screen import render, show_live
from headrace.observe.top import View, view_of
from headrace.observe.why import explain, why
from headrace.recordids import IDS
from headrace.sources.base import Limit
from headrace.storage import open_store
from headrace.topology import Pipeline

FAILED, NOTHING_THERE, REFUSED, UNANSWERED, INTERRUPTED = 4, 5, 6, 7, 130


class _NothingThere(Exception):
    """There is nothing to be looked at."""


_storage = click.option(
    "--storage", required=True, envvar="HEADRACE_STORAGE", show_envvar=True,
    help="The directory that keeps the pipeline's state.",
)  # fmt: skip
_output = click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headrace")
def main() -> None:
    """Stateful stream processing on Apache Spark, exactly once."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")


@main.command()
@click.argument("target")
@_storage
@click.option("--workers", type=click.IntRange(1), help="How many workers.  [default: task slots]")
@click.option("--bins", type=int, default=256, show_default=True, help="Bins of a new pipeline.")
@click.option(
    "--runner", type=click.Choice(["spark", "inline"]), default="spark", show_default=True
)
@click.option("--exchange", type=click.Choice(["auto", "driver", "host", "shuffle"]), default="auto",
              show_default=True, help="Who carries records between layers.")  # fmt: skip
@click.option("--rows", type=click.IntRange(1), default=100_000, show_default=True,
              help="Records a step takes from each injector, at most.")  # fmt: skip
@click.option("--keep-running", is_flag=True, help="Go on when all input has ended.")
def run(
    target: str, storage: str, workers: int | None, bins: int, runner: Any, exchange: Any,
    rows: int, keep_running: bool,
) -> None:  # fmt: skip
    """Run (or resume) the pipeline of TARGET, until its input has ended.

    TARGET is FILE.py or FILE.py:NAME, where NAME is a Pipeline or a function that returns one (by default
    "pipeline"). Ctrl-C stops after the running step.
    """
    with _typed_errors():
        pipeline = load_pipeline(target)
        settings = Settings(limit=Limit(rows, 16 << 20), exchange=exchange)
        with ProgressLine(pipeline.name) as progress:
            job = run_pipeline(
                pipeline, storage=storage, workers=workers, bins=bins, runner=runner,
                settings=settings, listeners=[progress],
            )  # fmt: skip
            with job:
                try:
                    job.wait() if keep_running else job.drain()
                except KeyboardInterrupt:
                    click.echo("stopping after the running step", err=True)
                    job.stop()
                    sys.exit(INTERRUPTED)


@main.command()
@_storage
@_output
def status(storage: str, output: str) -> None:
    """Show how far a pipeline has come, as of its last committed step. Changes nothing."""
    with _typed_errors():
        ledger = _ledger_of(storage)
        head = ledger.open()
        if head is None:
            raise _no_pipeline(storage)
        name = ledger.read(0)[0].pipeline
        if output == "json":
            click.echo(msgspec.json.encode(status_of(name, head)).decode())
        else:
            click.echo(_status_text(name, head))


@main.command()
@_storage
@click.option("--steps", type=click.IntRange(1), default=100, show_default=True,
              help="How many of the newest steps to look at.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print one view and end.")
@click.option("--every", type=click.FloatRange(min=0.05), default=1.0, show_default=True,
              help="Seconds between two looks.")  # fmt: skip
@_output
def top(storage: str, steps: int, once: bool, every: float, output: str) -> None:
    """Show where the time of a pipeline's steps goes, live, from any process that sees its storage.

    Prints one view and ends where standard output is no terminal, and for JSON. Ctrl-C ends it.
    Changes nothing.
    """
    with _typed_errors():
        recent = Recent(_ledger_of(storage), steps)

        def look() -> View:
            window = recent.look()
            if not window:
                raise _no_pipeline(storage)
            return view_of(window, time.time_ns() // 1_000)

        if output == "json":
            click.echo(msgspec.json.encode(look()).decode())
        elif once or not sys.stdout.isatty():
            Console().print(render(look()))
        else:
            look()  # so that what is wrong is told before the screen is taken
            show_live(Console(), look, lambda: time.sleep(every))


@main.group()
def watermark() -> None:
    """Look into low watermarks."""


@watermark.command("why")
@click.argument("name")
@_storage
@_output
def watermark_why(name: str, storage: str, output: str) -> None:
    """Show who holds the watermark of NAME (a computation, a stream or an injector), since when, and what
    to do. Looks at the last committed step. Changes nothing.
    """
    with _typed_errors():
        head = _ledger_of(storage).open()
        if head is None:
            raise _no_pipeline(storage)
        way = why(head, name, time.time_ns() // 1_000)
        click.echo(msgspec.json.encode(way).decode() if output == "json" else explain(way))


@watermark.command("bins")
@click.argument("name")
@_storage
@click.option("--most", type=click.IntRange(1), default=20, show_default=True,
              help="How many bins to show, those with the oldest work first.")  # fmt: skip
@_output
def watermark_bins(name: str, storage: str, most: int, output: str) -> None:
    """Show the watermark of computation NAME bin by bin: which have the oldest work still to do.

    Reads the state of the last committed step. Changes nothing.
    """
    with _typed_errors():
        ledger = _ledger_of(storage)
        head = ledger.open()
        if head is None:
            raise _no_pipeline(storage)
        found = bin_marks(open_store(storage), head, name, most)
        if output == "json":
            click.echo(msgspec.json.encode(found).decode())
            return
        for mark in found:
            click.echo(
                f"bin {mark.bin} on worker {mark.worker}: watermark {mark.watermark}, "
                f"oldest work {mark.oldest}, {mark.pending:,} pending"
            )
        if not found:
            click.echo(f"{name} has no work pending in event time")


# -- commands to a pipeline -------------------------------------------------------------------

_wait = click.option(
    "--wait", "seconds", type=click.FloatRange(min=0), default=10.0, show_default=True,
    help="Seconds to wait for the answer; 0 only asks.",
)  # fmt: skip


@main.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_storage
@click.option("--sink", "sinks", multiple=True, help="A sink to be removed with it; repeatable.")
@click.option("--forget", is_flag=True, help="Give its state up, too.")
@click.option("--dry-run", is_flag=True, help="Only say what it would come to.")
@_wait
@_output
def remove(
    names: tuple[str, ...], storage: str, sinks: tuple[str, ...], forget: bool, dry_run: bool,
    seconds: float, output: str,
) -> None:  # fmt: skip
    """Remove computations from a pipeline, between two steps. Their state is kept.

    A pipeline that does not run applies it when it is started. What others read, or sinks take, is
    removed only together with these.
    """
    if dry_run:
        with _typed_errors():
            _show_removal(storage, list(names), list(sinks), forget, output)
        return
    _ask(storage, "remove", seconds, output, names=list(names), sinks=list(sinks), forget=forget)


@main.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@_storage
@_wait
@_output
def restore(names: tuple[str, ...], storage: str, seconds: float, output: str) -> None:
    """Bring back computations that were removed, if the pipeline's code still draws them.

    They go on with the state that was kept, from now on.
    """
    _ask(storage, "restore", seconds, output, names=list(names))


@main.command()
@_storage
@_wait
@_output
def stop(storage: str, seconds: float, output: str) -> None:
    """Stop a running pipeline after its running step."""
    _ask(storage, "stop", seconds, output)


@main.command()
@_storage
@_wait
@_output
def drain(storage: str, seconds: float, output: str) -> None:
    """Let a running pipeline stop when all its input has ended."""
    _ask(storage, "drain", seconds, output)


@main.command()
@_storage
@_wait
@_output
def pause(storage: str, seconds: float, output: str) -> None:
    """Let a pipeline run no more steps until "resume"; also when it is started again."""
    _ask(storage, "pause", seconds, output)


@main.command()
@_storage
@_wait
@_output
def resume(storage: str, seconds: float, output: str) -> None:
    """Let a paused pipeline go on."""
    _ask(storage, "resume", seconds, output)


def _ask(
    storage: str, kind: Kind, seconds: float, output: str, *, names: list[str] | None = None,
    sinks: list[str] | None = None, forget: bool = False,
) -> None:  # fmt: skip
    """Ask for something, wait for the answer, and end with the exit code that it has."""
    code = 0
    with _typed_errors():
        control = _control_of(storage)
        number = control.ask(kind, names, sinks=sinks, forget=forget)
        answer = control.wait(number, seconds) if seconds else None
        facts: dict[str, Any] = {"command": number, "kind": kind, "answered": answer is not None}
        if answer is not None:
            facts |= {"applied": answer.applied, "step": answer.step, "why": answer.why}
            code = 0 if answer.applied else REFUSED
            said = "applied at" if answer.applied else "refused before"
            text = f"{answer.text}: {said} step {answer.step}{answer.why and f': {answer.why}'}"
        else:
            code = UNANSWERED if seconds else 0
            text = f"command {number} is not answered yet: it is applied when the pipeline runs"
        click.echo(msgspec.json.encode(facts).decode() if output == "json" else text)
    sys.exit(code)


def _show_removal(
    storage: str, names: list[str], sinks: list[str], forget: bool, output: str
) -> None:
    """Say what a removal would come to, as far as storage tells; change nothing."""
    preview = _control_of(storage).preview_removal(names, sinks, forget=forget)
    if output == "json":
        click.echo(msgspec.json.encode(preview).decode())
    elif preview.why:
        click.echo(f"would be refused: {preview.why}")
    else:
        for name, records in preview.records.items():
            what = "given up" if forget else "kept"
            click.echo(f"remove {name}: {records:,} records so far; its state is {what}")
        click.echo("whether others read it, the running pipeline will tell")
    if preview.why:
        sys.exit(REFUSED)


def _control_of(storage: str) -> Control:
    """Return the controls of a pipeline that is there.

    Raises:
        _NothingThere: when there is none.
    """
    if _ledger_of(storage).open() is None:
        raise _no_pipeline(storage)
    return Control(open_store(storage))


def _ledger_of(storage: str) -> Ledger:
    """Return the ledger of a storage that is there.

    Raises:
        _NothingThere: when it is not.
    """
    if not storage.startswith("memory:") and not Path(storage).is_dir():
        raise _NothingThere(f"{storage} is not there")
    return Ledger(open_store(storage))


def _no_pipeline(storage: str) -> _NothingThere:
    return _NothingThere(f"no pipeline has run on {storage}")


def status_of(name: str, head: Head) -> dict[str, Any]:
    """Return a pipeline's status as plain data."""
    return {
        "pipeline": name,
        "step": head.step,
        "epoch": head.epoch,
        "workers": head.layout.workers,
        "paused": head.paused,
        "removed": head.identity.get("removed", {}),
        "catching_up": head.resting,
        "bins": sum(count for _, count, _ in head.layout.runs),
        "ended": head.ended,
        "released": head.released,
        "outbox": {
            "steps": len(head.unreleased),
            "bytes": sum(file.length for files in head.unreleased.values() for file in files),
            "delivered": head.delivered,
            "waits_for": head.waits_for,
        },
        "injectors": {
            injector: {"position": position, "highest_event_time": show_time(head.highest[injector])
                       if injector in head.highest else None}
            for injector, position in head.positions.items()
        },
        "computations": {
            node: {
                "input_watermark": show_time(head.watermark_of(node)[0]),
                "output_watermark": show_time(head.watermark_of(node)[1]),
                **msgspec.to_builtins(counts),
            }
            for node, counts in sorted(head.counts.items())
        },
    }  # fmt: skip


def _status_text(name: str, head: Head) -> str:
    facts = status_of(name, head)
    lines = [
        f"{name}: step {head.step}, epoch {head.epoch}, {facts['workers']} workers, "
        f"{facts['bins']} bins{', paused' if head.paused else ''}"
    ]
    if head.waits_for:
        lines.append(
            f"  the outbox is full ({facts['outbox']['steps']} steps, {facts['outbox']['bytes']:,} "
            f"bytes): the input waits for sink {', '.join(head.waits_for)}"
        )
    for injector in facts["injectors"]:
        state = "ended" if injector in head.ended else "reading"
        seen = facts["injectors"][injector]["highest_event_time"]
        lines.append(f"  injector {injector}: {state}, highest event time {seen or '-'}")
    for node, of in facts["computations"].items():
        injector, _, part = node.partition(".")
        if part == IDS:
            lines.append(
                f"  ids of {injector}: {of['records']:,} records went on, "
                f"{of['duplicates']:,} duplicates, {of['expired']:,} expired"
            )
            continue
        lines.append(
            f"  computation {node}: watermark {of['output_watermark']}, {of['records']:,} records, "
            f"{of['late']:,} late, {of['skipped']:,} skipped, {of['timers']:,} timers fired, "
            f"{of['produced']:,} produced"
        )
    lines += [f"  computation {node}: still catching up" for node in facts["catching_up"]]
    for node, since in facts["removed"].items():
        lines.append(f"  computation {node}: removed at step {since}")
    return "\n".join(lines)


def load_pipeline(target: str) -> Pipeline:
    """Return the pipeline of ``FILE.py`` or ``FILE.py:NAME``.

    Raises:
        PipelineError: when there is none.
    """
    file, _, name = target.partition(":")
    path = Path(file)
    if not path.is_file():
        raise PipelineError(f"{file} is not a file", remedy="give FILE.py, or FILE.py:NAME")
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    found = getattr(module, name or "pipeline", None)
    if callable(found) and not isinstance(found, Pipeline):
        found = found()
    if not isinstance(found, Pipeline):
        raise PipelineError(
            f"{file} has no pipeline called {name or 'pipeline'!r}",
            remedy="define `pipeline`, or a function of that name, or say FILE.py:NAME",
        )
    return found


@contextlib.contextmanager
def _typed_errors() -> Any:
    try:
        yield
    except HeadraceError as error:
        click.echo(str(error), err=True)
        sys.exit(FAILED)
    except _NothingThere as error:
        click.echo(str(error), err=True)
        sys.exit(NOTHING_THERE)


if __name__ == "__main__":
    main()
