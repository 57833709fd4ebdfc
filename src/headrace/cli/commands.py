"""Commands that are sent to a pipeline, running or not, and wait for the answer."""

from __future__ import annotations

import sys
import time
from typing import Any, NoReturn, get_args

import click

from headrace.cli import completion
from headrace.cli.common import (
    REFUSED,
    UNANSWERED,
    ask,
    emit,
    head_of,
    output_option,
    storage_option,
    typed_errors,
    unanswered,
    wait_option,
)
from headrace.cli.loading import digest_of
from headrace.control.control import Control
from headrace.coordinator.changes.changes import Begin
from headrace.ledger.commands import Command, Kind

#: Seconds between two looks whether a driver has ended.
_LOOK_S = 0.1

#: Commands that only end a run, so that there is nothing to do where none is.
_ENDS: frozenset[Kind] = frozenset({"stop", "drain", "catch_up"})


@click.command()
@click.argument(
    "names", nargs=-1, required=True, metavar="NAME...", shell_complete=completion.computations
)
@storage_option
@click.option("--sink", "sinks", multiple=True, help="A sink to remove with it. Repeatable.")
@click.option("--forget", is_flag=True, help="Delete its state, too.")
@click.option("--dry-run", is_flag=True, help="Only print the plan.")
@wait_option
@output_option
def remove(
    names: tuple[str, ...],
    storage: str,
    sinks: tuple[str, ...],
    forget: bool,
    dry_run: bool,
    seconds: float,
    output: str,
) -> None:
    """Remove computations from a pipeline, between two steps. Their state is kept.

    A pipeline that does not run applies this when it is started. A computation that others read, or
    that a sink takes, can only be removed together with these.
    """
    if dry_run:
        with typed_errors():
            _show_removal(storage, list(names), list(sinks), forget, output)
        return
    _ask(storage, "remove", seconds, output, names=list(names), sinks=list(sinks), forget=forget)


@click.command()
@click.argument(
    "names", nargs=-1, required=True, metavar="NAME...", shell_complete=completion.computations
)
@storage_option
@wait_option
@output_option
def restore(names: tuple[str, ...], storage: str, seconds: float, output: str) -> None:
    """Bring back removed computations, if the pipeline's code still has them.

    They go on from now, with the state that was kept.
    """
    _ask(storage, "restore", seconds, output, names=list(names))


@click.command()
@click.argument("target", shell_complete=completion.files)
@storage_option
@click.option(
    "--begin",
    multiple=True,
    metavar="NAME=now|rows|beginning",
    help="Where an added computation begins.  [default: operators on Z-sets with the rows of their "
    "inputs, others now]  Repeatable.",
)
@click.option(
    "--forget",
    multiple=True,
    metavar="NAME",
    help="Give up the state of a computation. Repeatable.",
)
@wait_option
@output_option
def change(
    target: str,
    storage: str,
    begin: tuple[str, ...],
    forget: tuple[str, ...],
    seconds: float,
    output: str,
) -> None:
    """Let a running pipeline go on with the new code of its file, TARGET, between two steps.

    The process that "headrace run TARGET" or "headrace sql TARGET" has started loads the file again.
    If the new code cannot run, or what it has added fails at its first records, the pipeline goes on
    as it was. Views that a file of SQL adds begin with all that their tables hold.
    """
    with typed_errors():
        wanted = dict(_where(text) for text in begin)
        command = Command("change", names=list(forget), code=digest_of(target), begin=wanted)
        nobody = _control_of(storage).why_nobody_answers()
        if nobody:
            _refuse("change", nobody, output)
        ask(storage, command, seconds, output)


def _where(text: str) -> tuple[str, str]:
    name, equals, where = text.partition("=")
    if not equals or where not in get_args(Begin):
        wanted = ", ".join(f"NAME={one}" for one in get_args(Begin))
        raise click.BadParameter(f"{text!r} is none of {wanted}", param_hint="--begin")
    return name, where


def _plain(kind: Kind, help: str, name: str = "") -> click.Command:
    """Return a command that takes no further options."""

    @click.command(name or kind, help=help)
    @storage_option
    @wait_option
    @output_option
    def command(storage: str, seconds: float, output: str) -> None:
        _ask(storage, kind, seconds, output)

    return command


def _stop_command(kind: Kind, help: str) -> click.Command:
    """Return a command that stops or pauses the pipeline, at once or at a step."""

    @click.command(kind, help=help)
    @storage_option
    @click.option(
        "--at-step",
        type=click.IntRange(1),
        metavar="N",
        help="Take effect right after step N.  [default: the running step]",
    )
    @wait_option
    @output_option
    def command(
        storage: str, at_step: int | None, seconds: float, output: str, now: bool = False
    ) -> None:
        _ask(storage, kind, seconds, output, at_step=at_step or 0, now=now)

    if kind == "stop":
        now_option = click.option(
            "--now",
            is_flag=True,
            help="Cancel the running step instead of waiting for it.",
        )
        return now_option(command)
    return command


def _ask(
    storage: str,
    kind: Kind,
    seconds: float,
    output: str,
    *,
    names: list[str] | None = None,
    sinks: list[str] | None = None,
    forget: bool = False,
    at_step: int = 0,
    now: bool = False,
) -> None:
    """Send a command, print the answer, and exit with its code."""
    code = 0
    with typed_errors():
        control = _control_of(storage)
        nobody = control.why_nobody_answers() if kind in _ENDS else ""
        if nobody:
            _refuse(kind, nobody, output)
        number = control.ask(kind, names, sinks=sinks, forget=forget, at_step=at_step, now=now)
        if now and seconds:
            ended = _ended_now(control, number, seconds)
            if ended:
                emit(
                    {"command": number, "kind": kind, "answered": True, "why": ended}, ended, output
                )
                return
        answer = control.wait(number, 0.0 if now else seconds) if seconds else None
        facts: dict[str, Any] = {"command": number, "kind": kind, "answered": answer is not None}
        if answer is not None:
            facts |= {"applied": answer.applied, "step": answer.step, "why": answer.why}
            code = 0 if answer.applied else REFUSED
            text = "applied at" if answer.applied else "refused before"
            text = f"{answer.text}: {text} step {answer.step}{answer.why and f': {answer.why}'}"
        else:
            code = UNANSWERED if seconds else 0
            text = unanswered(control, number)
        emit(facts, text, output)
    sys.exit(code)


def _refuse(kind: Kind, why: str, output: str) -> NoReturn:
    """Refuse a command that ends a pipeline which nobody runs. Nothing is sent."""
    facts = {"command": None, "kind": kind, "answered": True, "applied": False, "why": why}
    emit(facts, f"{kind.replace('_', '-')}: refused: {why}", output)
    sys.exit(REFUSED)


def _ended_now(control: Control, number: int, seconds: float) -> str:
    """Wait until the driver notes that it was cancelled. Return its note.

    Empty if the driver has answered as to any other stop, or notes nothing in time.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if control.answer(number) is not None:
            return ""
        how = control.how_it_ended()
        if how.startswith("cancelled"):
            return how
        time.sleep(_LOOK_S)
    return ""


def _show_removal(
    storage: str, names: list[str], sinks: list[str], forget: bool, output: str
) -> None:
    """Print what a removal would do, as far as the storage shows. Changes nothing."""
    preview = _control_of(storage).preview_removal(names, sinks, forget=forget)
    what = "given up" if forget else "kept"
    lines = [
        f"remove {name}: {records:,} records so far; its state is {what}"
        for name, records in preview.records.items()
    ]
    lines.append("the running pipeline checks whether others read it")
    text = f"would be refused: {preview.why}" if preview.why else "\n".join(lines)
    emit(preview, text, output)
    if preview.why:
        sys.exit(REFUSED)


def _control_of(storage: str) -> Control:
    """Return the control of a pipeline.

    Raises:
        NothingThere: if no pipeline has run there.
    """
    head_of(storage)
    return Control(storage)


COMMANDS = [
    change,
    remove,
    restore,
    _stop_command("stop", "Stop a running pipeline after its running step, or after a later one."),
    _plain("drain", "Let a running pipeline stop when all its input has ended."),
    _plain(
        "catch_up", "Let a running pipeline stop when it has read what is there now.", "catch-up"
    ),
    _stop_command(
        "pause", 'Let a pipeline run no more steps until "resume"; also when it is started again.'
    ),
    _plain("resume", "Let a paused pipeline go on."),
]
