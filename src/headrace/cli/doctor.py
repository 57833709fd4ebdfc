"""The command that looks at everything that a pipeline needs, before it runs."""

from __future__ import annotations

import os
import platform
import time
import uuid
from collections.abc import Iterator, Sequence
from importlib import metadata

import click
import msgspec

from headrace.cli import completion
from headrace.cli.common import FAILED, output_option, say, say_json, with_options
from headrace.cli.project import commands_of
from headrace.cli.session import SESSION, session_options
from headrace.doctor.findings import Finding, failed, is_well
from headrace.doctor.process import of_process
from headrace.doctor.spark import Executor, of_session
from headrace.doctor.storage import of_storage
from headrace.errors import HeadraceError
from headrace.session import spark_session
from headrace.storage import open_store


@click.command()
@click.option(
    "--storage",
    "storages",
    multiple=True,
    envvar="HEADRACE_STORAGE",
    show_envvar=True,
    shell_complete=completion.folders,
    help="A storage to look at: a directory, or s3://BUCKET/PREFIX. Repeatable. Files are made "
    "in its folder probes/, and removed.",
)
@click.option("--no-spark", is_flag=True, help="Start no Spark.")
@with_options(SESSION)
@output_option
def doctor(
    storages: tuple[str, ...],
    no_spark: bool,
    master: str | None,
    conf: tuple[str, ...],
    packages: tuple[str, ...],
    log_level: str,
    output: str,
) -> None:
    """Look at what a pipeline needs: packages, Java, storage, Spark, executors, clocks.

    What is wrong comes with a remedy. Exits with 4 if something has failed.
    """
    found: list[Finding] = []
    for finding in _findings(storages, no_spark, (master, conf, packages, log_level)):
        found.append(finding)
        if output == "text":
            _show(finding)
    if output == "json":
        say_json({"well": is_well(found), "findings": msgspec.to_builtins(found)})
    if not is_well(found):
        raise SystemExit(FAILED)


def _findings(
    storages: Sequence[str],
    no_spark: bool,
    session: tuple[str | None, Sequence[str], Sequence[str], str],
) -> Iterator[Finding]:
    yield from of_process(os.environ, _variables())
    for storage in storages:
        yield from of_storage(
            lambda storage=storage: open_store(storage),  # type: ignore[misc]
            uuid.uuid4().hex,
            lambda: time.time_ns() // 1_000,
            time.perf_counter,
        )
    if no_spark:
        yield Finding("spark", "skipped", "not looked at, because of --no-spark")
        return
    ours = Executor(
        os.uname().nodename, platform.python_version(), metadata.version("headrace"), time.time()
    )
    try:
        with session_options(*session):
            yield from of_session(spark_session(), ours, time.time)
    except HeadraceError as error:
        yield failed("spark", error)


def _variables() -> Iterator[str]:
    """Yield the variables of the environment that commands know."""
    root = click.get_current_context().find_root().command
    assert isinstance(root, click.Group)
    for command in (root, *(command for _, command in commands_of(root))):
        for option in command.params:
            known = getattr(option, "envvar", None)
            yield from [known] if isinstance(known, str) else known or []


def _show(finding: Finding) -> None:
    say(f"{finding.state:<8} {finding.check:<14} {finding.text}")
    if finding.remedy:
        say(f"{'':<8} {'':<14} remedy: {finding.remedy}")


COMMANDS = [doctor]
