"""The command that shows pipelines in a browser, from any process that can read their storage."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from headrace.cli.common import (
    allow_host_option,
    no_pipeline,
    say,
    say_as_it_is,
    storage_option,
    storages_option,
    store_of,
    typed_errors,
)
from headrace.cli.metrics import warn_if_missing
from headrace.errors import PipelineError
from headrace.errors.printable import hides_values
from headrace.observe.watching import StorageWatcher, shown_location
from headrace.observe.web.addresses import Address, address_of, hosts_of, listening_socket
from headrace.observe.web.packages import check_installed
from headrace.observe.web.tokens import check_reach, read_token
from headrace.storage import open_store

if TYPE_CHECKING:
    from headrace.observe.web.guard import Access

_TOKEN_BYTES = 32


@click.command()
@storages_option
@click.option(
    "--listen",
    default="127.0.0.1:9465",
    show_default=True,
    metavar="HOST:PORT",
    help="The address to serve on; port 0 for a free one. For other machines, give --token-file.",
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    help="A storage is read at most once in this many seconds, and only while somebody looks.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file with the token that browsers and programs must show.  [default: a random one]",
)
@allow_host_option
@click.option(
    "--show-values/--hide-values",
    default=None,
    help="Whether keys and stored values may be looked at.  [default: on 127.0.0.1 only]",
)
@click.option(
    "--allow-commands",
    is_flag=True,
    help="Let the page pause, resume and rescale pipelines, and control migrations.",
)
@click.option("--until-input-ends", is_flag=True, hidden=True)
def dashboard(
    storages: tuple[str, ...],
    listen: str,
    every: float,
    token_file: Path | None,
    allow_host: tuple[str, ...],
    show_values: bool | None,
    allow_commands: bool,
    until_input_ends: bool,
) -> None:
    """Show pipelines in a browser, live. Changes nothing, unless commands are allowed.

    Prints an address with a token, and serves until Ctrl-C or SIGTERM. It reads the storages alone,
    so it also shows a pipeline whose driver is gone, or runs elsewhere. Serves /metrics, too.
    """
    with typed_errors():
        check_installed("headrace dashboard", "dashboard")
        from headrace.observe.web.guard import Access

        address = address_of(listen)
        given = "" if token_file is None else read_token(token_file)
        check_reach(address, given)
        shows = address.is_loopback if show_values is None else show_values
        if until_input_ends:
            threading.Thread(target=_end_with_input, daemon=True).start()
        access = Access(
            hosts_of(address, allow_host),
            given or secrets.token_urlsafe(_TOKEN_BYTES),
            show_values=shows and not hides_values(),
            allow_commands=allow_commands,
        )
        _serve(storages, address, access, every)


def _end_with_input() -> None:
    """End this process when its standard input does, as SIGTERM would."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _serve(storages: tuple[str, ...], address: Address, access: Access, every_s: float) -> None:
    from headrace.observe.web.dashboard import Dashboard
    from headrace.observe.web.server import serve

    stores = [open_store(storage) for storage in storages]
    watchers = [
        StorageWatcher(number, store, shown_location(storage), every_s=every_s)
        for number, (store, storage) in enumerate(zip(stores, storages, strict=True), start=1)
    ]
    for storage in storages:
        warn_if_missing(storage)
    with listening_socket(address) as listening:
        at = Address(address.host, listening.getsockname()[1])
        # Browsers send cookies to all ports of a host, so each server has a name of its own.
        access = msgspec.structs.replace(access, cookie=f"headrace-{at.port}")
        found = Dashboard(watchers, stores, access, every_s=every_s)
        say_as_it_is(f"open {at.url}/?token={access.token} (Ctrl-C ends it)\n", err=True)
        serve(found.app, listening, found.close)


@click.command()
@storage_option
@click.option(
    "-o",
    "--output",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The file to write, such as report.html.",
)
def report(storage: str, path: Path) -> None:
    """Write what the dashboard shows now into one file of HTML, to keep or to send on.

    It holds names, positions, times and errors, and no keys or stored values. It needs no server
    and no network. Changes nothing in the storage.
    """
    with typed_errors():
        from headrace.observe.web.report import report_of

        watcher = StorageWatcher(1, store_of(storage), shown_location(storage))
        sight = watcher.sight()
        if sight.reading.state == "unreachable":
            raise PipelineError(sight.reading.why, place=sight.reading.storage)
        if sight.reading.picture is None:
            raise no_pipeline(storage)
        text = report_of(sight)
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise PipelineError(
                f"the report cannot be written: {error.strerror or error}", place=str(path)
            ) from None
        say(f"{path}: step {sight.reading.picture.step} of {sight.reading.pipeline}", err=True)


COMMANDS = [dashboard, report]
