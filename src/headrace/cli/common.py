"""The parts that commands share: options, exit codes, and how errors and data are printed."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from headrace.checkpoints.catalog import Checkpoints
from headrace.checkpoints.checkpoint import Checkpoint
from headrace.checkpoints.opening import pinned
from headrace.cli import completion
from headrace.control.control import Control
from headrace.errors import HeadraceError, PipelineError
from headrace.errors.printable import (
    MOST_MESSAGE,
    hide_values,
    json_printable,
    printable,
    without_secrets,
)
from headrace.errors.user_code import whole_traceback
from headrace.eventtime.durations import duration_micros
from headrace.ledger.commands import Command
from headrace.ledger.head import Head
from headrace.ledger.ledger import Ledger
from headrace.ledger.manifest import MANIFEST_FOLDER
from headrace.logs import JsonLines
from headrace.storage import LocalStore, Store, open_store

F = TypeVar("F", bound=Callable[..., Any])

UNEXPECTED = 1
FAILED, NOTHING_THERE, REFUSED, UNANSWERED, DAMAGED, INTERRUPTED = 4, 5, 6, 7, 8, 130


#: The key under which the formatter of the log is, in the context of a command.
_JSON_LOG = "headrace.log.json"


class NothingThere(Exception):
    """There is nothing to look at."""


class Duration(click.ParamType[int]):
    """A duration such as 250ms, 30s or 1h30m, in microseconds."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Return the duration in microseconds."""
        try:
            micros = duration_micros(value)
        except PipelineError as error:
            return self.fail(f"{error.what}, such as 250ms, 30s or 1h30m", param, ctx)
        return self.fail(f"{value!r} is negative", param, ctx) if micros < 0 else micros


_storage: dict[str, Any] = {
    "envvar": "HEADRACE_STORAGE",
    "show_envvar": True,
    "shell_complete": completion.folders,
    "help": "Where the pipeline's state is: a directory, or s3://BUCKET/PREFIX.",
}
storage_option = click.option("--storage", required=True, **_storage)
#: For commands that need it only sometimes.
storage_if_needed = click.option("--storage", **_storage)
#: For commands that watch several pipelines, and serve what they see.
storages_option = click.option(
    "--storage",
    "storages",
    multiple=True,
    required=True,
    envvar="HEADRACE_STORAGE",
    show_envvar=True,
    shell_complete=completion.folders,
    help="Where the state of a pipeline is: a directory, or s3://BUCKET/PREFIX. Repeatable.",
)
allow_host_option = click.option(
    "--allow-host",
    multiple=True,
    metavar="HOST",
    help="A name of this machine under which others call it. Repeatable.",
)
output_option = click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True
)
#: For commands that ask a pipeline for something.
wait_option = click.option(
    "--wait",
    "seconds",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Seconds to wait for the answer; 0 only asks.",
)


at_step_option = click.option(
    "--at-step",
    type=click.IntRange(0),
    shell_complete=completion.steps,
    help="The step to look at.  [default: the newest]",
)


def with_options(options: Sequence[Callable[[F], F]]) -> Callable[[F], F]:
    """Return a decorator that adds options to a command, in this order."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def pass_on(context: click.Context, commands: Iterable[str], error_text: dict[str, Any]) -> None:
    """Let options of a group be the defaults of its commands.

    What was said for the group comes before what the project file says for a command, and that
    before the defaults of the group.
    """
    above = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT)
    explicit = {
        name: value
        for name, value in error_text.items()
        if context.get_parameter_source(name) in above
    }
    tables = context.default_map or {}
    context.default_map = {
        name: {**error_text, **(tables.get(name) or {}), **explicit} for name in commands
    }


def json_log() -> JsonLines | None:
    """Return what formats the log as JSON; None if it is text."""
    context = click.get_current_context(silent=True)
    found: JsonLines | None = None if context is None else context.meta.get(_JSON_LOG)
    return found


def log_as_json(context: click.Context) -> JsonLines:
    """Make the log of a command JSON."""
    formatter: JsonLines = context.meta.setdefault(_JSON_LOG, JsonLines())
    return formatter


def say_in_log(formatter: JsonLines, text: str) -> None:
    """Print a text for people as a record of the log. Works in any thread."""
    record = logging.LogRecord("headrace", logging.INFO, "", 0, text, None, None)
    click.echo(formatter.format(record), err=True)


def say(text: str, *, err: bool = False) -> None:
    """Print a text for people: escaped, each line bounded, without passwords.

    On standard error it is a record of the log, if the log is JSON.
    """
    if err and (formatter := json_log()) is not None:
        say_in_log(formatter, text)
        return
    lines = (printable(without_secrets(line), MOST_MESSAGE) for line in text.split("\n"))
    click.echo("\n".join(lines), err=err)


def say_json(facts: Any) -> None:
    """Print data as one whole line of JSON. Control characters are escaped, for terminals."""
    click.echo(json_printable(msgspec.json.encode(facts).decode()))


def say_as_it_is(text: str, *, err: bool = False) -> None:
    """Print text with nothing left out. It is printable already, and ends with a newline."""
    click.echo(text, nl=False, err=err)


def emit(facts: Any, text: str, output: str) -> None:
    """Print data as JSON, or as text for people."""
    if output == "json":
        say_json(facts)
    else:
        say(text)


def _hide(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        hide_values()


#: For commands that show rows, or whose errors may show them.
hide_option = click.option(
    "--hide-values",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_hide,
    help="Show no values of records, keys and state, also in errors (HEADRACE_HIDE_VALUES=1).",
)


def ask(storage: str, command: Command, seconds: float, output: str, *, quiet: bool = False) -> int:
    """Send a command and print the answer. Return the id of its migration; 0 if there is none.

    Exits with a code if the command is refused, or not answered in time.
    """
    control = Control(storage)
    number = control.put(command)
    answer = control.wait(number, seconds) if seconds else None
    facts: dict[str, Any] = {"command": number, "answered": answer is not None}
    code = 0
    if answer is None:
        code = UNANSWERED if seconds else 0
        text = unanswered(control, number)
    else:
        facts |= msgspec.to_builtins(answer)
        code = 0 if answer.applied else REFUSED
        error_text = "applied at" if answer.applied else "refused before"
        text = f"{answer.text}: {error_text} step {answer.step}{answer.why and f': {answer.why}'}"
    if not (quiet and answer is not None and answer.applied):
        emit(facts, text, output)
    if code:
        sys.exit(code)
    return 0 if answer is None else answer.migration


def unanswered(control: Control, number: int) -> str:
    """Return what is said of a command that has no answer yet."""
    nobody = control.why_nobody_answers()
    text = f"command {number} is not answered yet: it is applied when the pipeline runs"
    return f"{text} ({nobody})" if nobody else text


def store_of(storage: str) -> Store:
    """Return an existing storage.

    Raises:
        NothingThere: if it does not exist.
    """
    store = open_store(storage)
    if isinstance(store, LocalStore) and not (place := Path(store.location)).is_dir():
        raise NothingThere(f"{storage} is {'not a directory' if place.exists() else 'not there'}")
    return store


def ledger_of(storage: str) -> Ledger:
    """Return the ledger of an existing storage.

    Raises:
        NothingThere: if it does not exist.
    """
    return Ledger(store_of(storage))


def head_of(storage: str) -> Head:
    """Return the pipeline in a storage as of its last committed step.

    Raises:
        NothingThere: if no pipeline has run there.
    """
    head = ledger_of(storage).open()
    if head is None:
        raise no_pipeline(storage)
    return head


def no_pipeline(storage: str) -> NothingThere:
    """Return the error for a storage on which nothing has run.

    It may be the ``checkpointLocation`` of a query, whose state is in a folder of it.
    """
    text = f"no pipeline has run on {storage}"
    below = f"{storage.rstrip('/')}/state"
    with contextlib.suppress(NothingThere, HeadraceError):
        if store_of(below).list(MANIFEST_FOLDER):
            text += f"; the state of its query is in {below}"
    return NothingThere(text)


def checkpoints_of(storage: str) -> Checkpoints:
    """Return the checkpoints of a storage on which a pipeline has run.

    Raises:
        NothingThere: if none has.
    """
    store = store_of(storage)
    if not store.list(MANIFEST_FOLDER):
        raise no_pipeline(storage)
    return Checkpoints(store)


def opened(storage: str, step: int | None, pin_for: int = 0) -> Checkpoint:
    """Return a checkpoint, pinned for ``pin_for`` microseconds if that is not 0.

    Raises:
        NothingThere: if no pipeline has run there.
        HeadraceError: if it cannot be opened or pinned.
    """
    checkpoint = checkpoints_of(storage).open(step)
    return pinned(checkpoint, pin_for, "headrace") if pin_for else checkpoint


@contextlib.contextmanager
def typed_errors() -> Iterator[None]:
    """Print errors as a sentence, and exit with their code."""
    try:
        yield
    except HeadraceError as error:
        say(str(error), err=True)
        sys.exit(FAILED)
    except NothingThere as error:
        say(str(error), err=True)
        sys.exit(NOTHING_THERE)
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception as error:  # user code, or a defect: print all of it, escaped
        say(whole_traceback(error).rstrip(), err=True)
        sys.exit(UNEXPECTED)
